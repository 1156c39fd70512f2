"""ATen scatter_reduce."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, scalar_argument
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.lowering.along import lower_along
from graphfix.pass_base import Refusal, Rewrite, Site
from graphfix.passes.aten_scatter import read_along

REDUCTIONS = {"sum": Reduction.ADD, "prod": Reduction.MUL, "amin": Reduction.MIN, "amax": Reduction.MAX}


class AtenScatterReduce(AtenPass):
    """Replace ATen scatter_reduce nodes (sum, prod, amin, amax) by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src, reduce="amax", include_self) operator="scatter_reduce"``
    After: a Reduce over what matches each position, combined with x unless include_self is False.
    """

    code = "GF109"
    name = "aten-scatter-reduce"
    aten_operator = "scatter_reduce"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        arguments = read_along(call, node, site)
        reduce = scalar_argument(call, "reduce", site.facts)
        include_self = bool(scalar_argument(call, "include_self", site.facts, True))
        if reduce not in REDUCTIONS:
            return Refusal(f"scatter_reduce with {reduce!r} has no exact form here")
        return arguments if isinstance(arguments, Refusal) else (*arguments, REDUCTIONS[reduce], include_self)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, reduction, include_self = match
        write = IndexWrite(data, (Along(axis, index),), source, reduction, output)
        result = lower_along(write, builder, site.context, include_self)
        return Refusal(result) if isinstance(result, str) else Rewrite(*result)
