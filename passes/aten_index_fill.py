"""ATen index_fill."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import AxisIndex, Full, IndexWrite, Points, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower


class AtenIndexFill(AtenPass):
    """Replace ATen index_fill nodes, ``x.index_fill(dim, index, value)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, index, value) dim=1 operator="index_fill"``
    After: Equal of the positions along ``dim`` with the indices, and Where; Slice and Concat for constant indices.
    """

    code = "GF102"
    name = "aten-index-fill"
    aten_operator = "index_fill"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, index = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "index")
        rank = site.facts.rank(data)
        if rank is None:
            return Refusal("the rank of the data is unknown")
        axis = dim_argument(call, rank, site.facts)
        value = call.scalars.get("value", call.arguments.get("value"))
        if value is None:
            return Refusal("index_fill lacks its value")
        return data, axis, index, value, node.outputs[0]

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, value, output = match
        if isinstance(value, int | float):
            value = builder.constant(value, data.dtype)
        place: tuple[AxisIndex, ...] = (*[Full()] * axis, Points(index))
        return lower(IndexWrite(data, place, value, Reduction.NONE, output), builder, site)
