"""ATen gather."""

from __future__ import annotations

from graphfix.aten import AtenFormError
from graphfix.aten_nodes import call_of, dim_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.pass_base import Pass, Refusal, Rewrite, Site


class AtenGather(Pass):
    """Replace ATen gather nodes by GatherElements.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index) operator="gather"``
    After: ``GatherElements(x, index) axis=dim``
    """

    code = "GF203"
    name = "aten-gather"

    def match(self, node: Node, site: Site):
        try:
            call = call_of(node, "gather")
            if call is None:
                return None
            data, index = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "index")
            rank = site.facts.rank(data)
            if not rank or site.facts.rank(index) != rank:
                return Refusal("the rank of the data or of the index is unknown or 0")
            return data, dim_argument(call, rank, site.facts), index
        except AtenFormError as error:
            return Refusal(str(error))

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index = match
        builder.require(11, "GatherElements")
        result = builder.emit("GatherElements", [data, index], {"axis": axis}, data.dtype, builder.dims(index))
        return Rewrite(result, "gather_elements")

    def operator(self, node: Node) -> str:
        return "aten::gather"
