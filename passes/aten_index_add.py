"""ATen index_add."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, scalar_argument
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower
from graphfix.passes.aten_index_copy import read_rows, write_rows


class AtenIndexAdd(AtenPass):
    """Replace ATen index_add nodes, ``x.index_add(dim, index, source, alpha)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, source) operator="index_add"``
    After: rows that meet at one position are summed, by ReduceSum over Where or by a one-hot MatMul, and added.
    """

    code = "GF104"
    name = "aten-index-add"
    aten_operator = "index_add"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        arguments = read_rows(call, node, site)
        alpha = scalar_argument(call, "alpha", site.facts, 1)
        return arguments if isinstance(arguments, Refusal) else (*arguments[:-1], alpha)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, alpha = match
        if alpha != 1:
            source = builder.arithmetic("Mul", source, builder.constant(alpha, source.dtype))
        return lower(write_rows(data, axis, index, source, Reduction.ADD, output, builder), builder, site)
