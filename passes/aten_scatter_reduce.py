"""ATen scatter_reduce."""

from __future__ import annotations

from graphfix.passes.aten_scatter import match_along

from graphfix.aten import AtenFormError
from graphfix.aten_nodes import scalar_argument
from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.lowering.along import lower_along
from graphfix.pass_base import Pass, Refusal, Rewrite, Site

REDUCTIONS = {"sum": Reduction.ADD, "prod": Reduction.MUL, "amin": Reduction.MIN, "amax": Reduction.MAX}


class AtenScatterReduce(Pass):
    """Replace ATen scatter_reduce nodes (sum, prod, amin, amax) by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src, reduce="amax", include_self) operator="scatter_reduce"``
    After: a Reduce over what matches each position, combined with x unless include_self is False.
    """

    code = "GF109"
    name = "aten-scatter-reduce"

    def match(self, node: Node, site: Site):
        try:
            arguments = match_along(node, "scatter_reduce", site)
            if arguments is None or isinstance(arguments, Refusal):
                return arguments
            reduce = scalar_argument(arguments[-1], "reduce", site.facts)
            include_self = bool(scalar_argument(arguments[-1], "include_self", site.facts, True))
        except AtenFormError as error:
            return Refusal(str(error))
        if reduce not in REDUCTIONS:
            return Refusal(f"scatter_reduce with {reduce!r} has no exact form here")
        return (*arguments[:-1], REDUCTIONS[reduce], include_self)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, reduction, include_self = match
        write = IndexWrite(data, (Along(axis, index),), source, reduction, output)
        result = lower_along(write, builder, site.context, include_self)
        return Refusal(result) if isinstance(result, str) else Rewrite(*result)

    def operator(self, node: Node) -> str:
        return "aten::scatter_reduce"
