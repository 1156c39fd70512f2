"""ATen scatter_add."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower
from graphfix.passes.aten_scatter import read_along


class AtenScatterAdd(AtenPass):
    """Replace ATen scatter_add nodes by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src) operator="scatter_add"``
    After: ReduceSum over what matches each position, added where anything does.
    """

    code = "GF108"
    name = "aten-scatter-add"
    aten_operator = "scatter_add"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        return read_along(call, node, site)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output = match
        return lower(IndexWrite(data, (Along(axis, index),), source, Reduction.ADD, output), builder, site)
