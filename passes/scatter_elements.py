"""Standard ScatterElements nodes (and Scatter, its old name)."""

from __future__ import annotations

from graphfix.passes.scatter_nd import portable

from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.pass_base import IndexWritePass, Refusal, Rewrite, Site


class ScatterElements(IndexWritePass):
    """Replace ScatterElements nodes by portable operators.

    Why: engines refuse ScatterElements or ignore its reduction.
    Before: ``ScatterElements(x, index, v) axis=1``
    After: Equal of the positions along the axis with the indices, GatherElements of the last writer, and Where; a
    Reduce for reductions. Kept when that would cost too much.
    """

    code = "GF121"
    name = "scatter-elements"
    asked = False

    def match(self, node: Node, site: Site) -> IndexWrite | Refusal | None:
        if not node.is_op("ScatterElements", "Scatter") or len(node.inputs) != 3:
            return None
        data, index, updates = node.inputs
        rank = site.facts.rank(data)
        if not rank:
            return Refusal("the rank of the data is unknown or 0")
        reduction = Reduction((node.attrs.get("reduction") or b"none").decode())
        axis = node.attrs.get("axis", 0) % rank
        return IndexWrite(data, (Along(axis, index),), updates, reduction, node.outputs[0])

    def rewrite(self, match: IndexWrite, builder: Builder, site: Site) -> Rewrite | Refusal:
        return portable(super().rewrite(match, builder, site))
