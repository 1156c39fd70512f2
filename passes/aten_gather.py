"""ATen gather."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.pass_base import Refusal, Rewrite, Site


class AtenGather(AtenPass):
    """Replace ATen gather nodes by GatherElements.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index) operator="gather"``
    After: ``GatherElements(x, index) axis=dim``
    """

    code = "GF203"
    name = "aten-gather"
    aten_operator = "gather"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, index = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "index")
        rank = site.facts.rank(data)
        if not rank or site.facts.rank(index) != rank:
            return Refusal("the rank of the data or of the index is unknown or 0")
        return data, dim_argument(call, rank, site.facts), index

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index = match
        builder.require(11, "GatherElements")
        result = builder.emit("GatherElements", [data, index], {"axis": axis}, data.dtype, builder.dims(index))
        return Rewrite(result, "gather_elements")
