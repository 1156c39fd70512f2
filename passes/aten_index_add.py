"""ATen index_add."""

from __future__ import annotations

from graphfix.passes.aten_index_copy import match_rows, write_rows

from graphfix.aten import AtenFormError
from graphfix.aten_nodes import scalar_argument
from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.index_write import Reduction
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower


class AtenIndexAdd(Pass):
    """Replace ATen index_add nodes, ``x.index_add(dim, index, source, alpha)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, source) operator="index_add"``
    After: rows that meet at one position are summed, by ReduceSum over Where or by a one-hot MatMul, and added.
    """

    code = "GF104"
    name = "aten-index-add"

    def match(self, node: Node, site: Site):
        return match_rows(node, "index_add", site)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, call = match
        try:
            alpha = scalar_argument(call, "alpha", site.facts, 1)
        except AtenFormError as error:
            return Refusal(str(error))
        if alpha != 1:
            source = builder.arithmetic("Mul", source, builder.constant(alpha, source.dtype))
        return lower(write_rows(data, axis, index, source, Reduction.ADD, output, builder), builder, site)

    def operator(self, node: Node) -> str:
        return "aten::index_add"
