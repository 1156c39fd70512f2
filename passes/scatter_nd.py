"""Standard ScatterND nodes."""

from __future__ import annotations

from graphfix.builder import INT64, Builder
from graphfix.graph import Node, Value
from graphfix.index_write import IndexWrite, Mask, Points, Reduction
from graphfix.masked_region import mask_of_indices
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower


class ScatterND(Pass):
    """Replace ScatterND nodes by portable operators.

    Why: engines refuse ScatterND, ignore its reduction, or compute it wrongly; the NonZero that feeds it for masks has a
    size that depends on the data.
    Before: ``ScatterND(x, Transpose(NonZero(mask)), v)``, ``ScatterND(x, indices, v)``
    After: Where for masks; for other indices what index_put would become. Kept when that would cost too much.
    """

    code = "GF120"
    name = "scatter-nd"
    asked = False

    def match(self, node: Node, site: Site):
        if not node.is_op("ScatterND") or len(node.inputs) != 3:
            return None
        data, index, updates = node.inputs
        shape, index_shape = site.facts.shape(data), site.facts.shape(index)
        if shape is None or index_shape is None or not index_shape or index_shape[-1].constant is None:
            return Refusal("the rank of the data or the width of the indices is unknown")
        if not 0 < index_shape[-1].constant <= len(shape):
            return Refusal("the indices are wider than the data has axes")
        reduction = Reduction((node.attrs.get("reduction") or b"none").decode())
        return node, reduction, index_shape[-1].constant

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        node, reduction, width = match
        data, index, updates = node.inputs
        mask = mask_of_indices(index)
        if mask is not None and site.facts.rank(mask) == width:
            values = _without_take(updates, site)
            write = IndexWrite(data, (Mask(mask),), values, reduction, node.outputs[0])
            return portable(lower(write, builder, site))
        columns: list[Points] = []
        rank = builder.rank(index)
        for i in range(width):
            known = site.facts.const(index)
            if known is not None:
                columns.append(Points(builder.constant(known[..., i])))
                continue
            column = builder.emit(
                "Gather", [index, builder.constant(i)], {"axis": rank - 1}, INT64, builder.dims(index)[:-1]
            )
            columns.append(Points(column))
        return portable(lower(IndexWrite(data, tuple(columns), updates, reduction, node.outputs[0]), builder, site))


def portable(rewrite: Rewrite | Refusal) -> Rewrite | Refusal:
    """A node that is a scatter already does not become another one: it is kept as it is."""
    if isinstance(rewrite, Rewrite) and rewrite.kept is not None:
        return Refusal(rewrite.kept)
    return rewrite


def _without_take(updates: Value, site: Site) -> Value:
    """Updates without a Slice from 0 that only takes as many rows as the mask has."""
    node = updates.inputs[0] if updates.inputs else None
    if node is None or not node.is_op("Slice"):
        return updates
    cuts = site.facts.slices(node)
    if cuts is None or set(cuts) != {0}:
        return updates
    start, stop, step = cuts[0]
    counted = isinstance(stop, Value) and _is_count(stop)
    return node.inputs[0] if start == 0 and step == 1 and counted else updates


def _is_count(tensor: Value) -> bool:
    """Whether a tensor is the size of a NonZero result."""
    while tensor.inputs:
        node = tensor.inputs[0]
        if node.is_op("Unsqueeze", "Squeeze", "Reshape", "Cast", "Gather", "Identity"):
            tensor = node.inputs[0]
        elif node.is_op("Shape"):
            return mask_of_indices(node.inputs[0]) is not None
        else:
            return False
    return False
