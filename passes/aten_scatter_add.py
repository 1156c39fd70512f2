"""ATen scatter_add."""

from __future__ import annotations

from graphfix.passes.aten_scatter import match_along

from graphfix.aten import AtenFormError
from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower


class AtenScatterAdd(Pass):
    """Replace ATen scatter_add nodes by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src) operator="scatter_add"``
    After: ReduceSum over what matches each position, added where anything does.
    """

    code = "GF108"
    name = "aten-scatter-add"

    def match(self, node: Node, site: Site):
        try:
            return match_along(node, "scatter_add", site)
        except AtenFormError as error:
            return Refusal(str(error))

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, _ = match
        return lower(IndexWrite(data, (Along(axis, index),), source, Reduction.ADD, output), builder, site)

    def operator(self, node: Node) -> str:
        return "aten::scatter_add"
