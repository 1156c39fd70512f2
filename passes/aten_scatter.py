"""ATen scatter."""

from __future__ import annotations

from graphfix.aten import AtenFormError
from graphfix.aten_nodes import call_of, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower

REDUCTIONS = {"": Reduction.NONE, "add": Reduction.ADD, "multiply": Reduction.MUL}


class AtenScatter(Pass):
    """Replace ATen scatter nodes, ``x.scatter(dim, index, src)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src) operator="scatter"``
    After: Equal of the positions along ``dim`` with the indices, GatherElements of the last writer, and Where.
    """

    code = "GF107"
    name = "aten-scatter"

    def match(self, node: Node, site: Site):
        try:
            arguments = match_along(node, "scatter", site)
            if arguments is None or isinstance(arguments, Refusal):
                return arguments
            call = arguments[-1]
            reduce = scalar_argument(call, "reduce", site.facts, "")
        except AtenFormError as error:
            return Refusal(str(error))
        if reduce not in REDUCTIONS:
            return Refusal(f"scatter has no reduction {reduce!r}")
        return (*arguments[:-1], REDUCTIONS[reduce])

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, reduction = match
        if isinstance(source, int | float):
            source = builder.constant(source, data.dtype)
        return lower(IndexWrite(data, (Along(axis, index),), source, reduction, output), builder, site)

    def operator(self, node: Node) -> str:
        return "aten::scatter"


def match_along(node: Node, operator: str, site: Site):
    """The arguments of the scatter operators: (data, axis, index, source tensor or number, output, call)."""
    call = call_of(node, operator)
    if call is None:
        return None
    data, index = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "index")
    source = call.scalars.get("src", call.arguments.get("src"))
    rank = site.facts.rank(data)
    if source is None or rank is None:
        return Refusal(f"{operator} lacks its source, or the rank of the data is unknown")
    return data, dim_argument(call, rank, site.facts), index, source, node.outputs[0], call
