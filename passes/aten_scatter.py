"""ATen scatter."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower

REDUCTIONS = {"": Reduction.NONE, "add": Reduction.ADD, "multiply": Reduction.MUL}


class AtenScatter(AtenPass):
    """Replace ATen scatter nodes, ``x.scatter(dim, index, src)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src) operator="scatter"``
    After: Equal of the positions along ``dim`` with the indices, GatherElements of the last writer, and Where.
    """

    code = "GF107"
    name = "aten-scatter"
    aten_operator = "scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        arguments = read_along(call, node, site)
        reduce = scalar_argument(call, "reduce", site.facts, "")
        if reduce not in REDUCTIONS:
            return Refusal(f"scatter has no reduction {reduce!r}")
        return arguments if isinstance(arguments, Refusal) else (*arguments, REDUCTIONS[reduce])

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, reduction = match
        if isinstance(source, int | float):
            source = builder.constant(source, data.dtype)
        return lower(IndexWrite(data, (Along(axis, index),), source, reduction, output), builder, site)


def read_along(call: AtenCall[Value], node: Node, site: Site):
    """The arguments of the scatter operators: (data, axis, index, source tensor or number, output)."""
    data, index = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "index")
    source = call.scalars.get("src", call.arguments.get("src"))
    rank = site.facts.rank(data)
    if source is None or rank is None:
        return Refusal(f"{call.operator} lacks its source, or the rank of the data is unknown")
    return data, dim_argument(call, rank, site.facts), index, source, node.outputs[0]
