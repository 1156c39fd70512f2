"""ATen select_scatter."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Full, IndexWrite, Points, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower


class AtenSelectScatter(AtenPass):
    """Replace ATen select_scatter nodes, ``x[:, index] = src`` with one index, by standard operators.

    Why: torch.export turns a write at one position of an axis into select_scatter, which its ONNX exporter expresses
    by ScatterElements. `graphfix export` keeps the write as an ATen node instead.
    Before: ``ATen(x, src, dim, index) operator="select_scatter"``
    After: Slice and Concat; Equal and Where for an index known at run time.
    """

    code = "GF111"
    name = "aten-select-scatter"
    aten_operator = "select_scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, source = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "src")
        rank = site.facts.rank(data)
        if rank is None or site.facts.rank(source) != rank - 1:
            return Refusal("the rank of the data is unknown, or the source has not one axis less")
        index = call.scalars.get("index", call.arguments.get("index"))
        if index is None:
            return Refusal("select_scatter lacks its index")
        if not isinstance(index, int) and site.facts.rank(index) != 0:
            return Refusal("the index of select_scatter is not a scalar")
        return data, source, dim_argument(call, rank, site.facts), index, node.outputs[0]

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, source, axis, index, output = match
        points = Points(builder.constant(index) if isinstance(index, int) else index)
        return lower(IndexWrite(data, (*[Full()] * axis, points), source, Reduction.NONE, output), builder, site)
