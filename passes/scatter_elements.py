"""Standard ScatterElements nodes (and Scatter, their old name)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_write import Along, Full, IndexWrite, Points, Reduction
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower
from graphfix.passes.scatter_nd import portable
from graphfix.symbolic import ONE, Expr


@dataclass(frozen=True)
class _Scatter:
    """A scatter, and what its index is repeated from when it is the same for all other axes (see `_rows`)."""

    data: Value
    axis: int
    index: Value
    updates: Value
    reduction: Reduction
    output: Value
    rows: Value | np.ndarray | None


class ScatterElements(Pass):
    """Replace ScatterElements nodes by portable operators.

    Why: engines refuse ScatterElements or ignore its reduction.
    Before: ``ScatterElements(x, index, v) axis=1``
    After: Equal of the positions along the axis with the indices, GatherElements of the last writer, and Where; a
    Reduce for reductions. An index that is the same for all other axes, as graph networks have it, becomes what
    index_copy or index_add would. Kept when that would cost too much.
    """

    code = "GF121"
    name = "scatter-elements"
    asked = False

    def match(self, node: Node, site: Site) -> _Scatter | Refusal | None:
        if not node.is_op("ScatterElements", "Scatter") or len(node.inputs) != 3:
            return None
        data, index, updates = node.inputs
        shape = site.facts.shape(data)
        if not shape:
            return Refusal("the rank of the data is unknown or 0")
        for given in (index, updates):
            if site.facts.shape(given) is None:
                # The operator asks for the rank of the data; with any other the model does not run.
                site.facts.set_shape(given, tuple(Expr.dim(f"{given.name}[{i}]") for i in range(len(shape))))
        reduction = Reduction((node.attrs.get("reduction") or b"none").decode())
        axis = node.attrs.get("axis", 0) % len(shape)
        rows = _rows(index, axis, shape, site.facts)
        return _Scatter(data, axis, index, updates, reduction, node.outputs[0], rows)

    def rewrite(self, match: _Scatter, builder: Builder, site: Site) -> Rewrite | Refusal:
        along = IndexWrite(match.data, (Along(match.axis, match.index),), match.updates, match.reduction, match.output)
        if match.rows is None:
            return portable(lower(along, builder, site), builder)
        if isinstance(match.rows, np.ndarray):
            vector = builder.constant(match.rows)
        else:
            from_end = builder.rank(match.data) - match.axis
            rank = builder.rank(match.rows)
            vector = builder.drop_axes(match.rows, [i for i in range(rank) if i != rank - from_end])
        write = IndexWrite(
            match.data, (*[Full()] * match.axis, Points(vector)), match.updates, match.reduction, match.output
        )
        return portable(lower(write, builder, site), builder)


def _rows(index: Value, axis: int, data: tuple[Expr, ...], facts: Facts) -> Value | np.ndarray | None:
    """What an index that is the same for all other axes was repeated from, when it covers these axes whole.

    That is a vector, or a tensor with size 1 along all axes but the scatter's.
    """
    shape = facts.shape(index)
    if shape is None or any(i != axis and size != shape[i] for i, size in enumerate(data)):
        return None
    known = facts.const(index)
    if known is not None:
        first = known[tuple(slice(None) if i == axis else slice(0, 1) for i in range(known.ndim))]
        return first.reshape(-1) if known.size and (known == first).all() else None
    source = _unrepeated(index, facts)
    narrow = facts.shape(source)
    own = len(narrow) - (len(data) - axis) if narrow is not None else -1
    if narrow is None or own < 0 or narrow[own] != shape[axis]:
        return None
    return source if all(size == ONE for i, size in enumerate(narrow) if i != own) else None


def _unrepeated(tensor: Value, facts: Facts) -> Value:
    """A tensor before the Expand and Tile nodes that only repeat it along axes of size 1."""
    while tensor.inputs:
        node = tensor.inputs[0]
        source = node.inputs[0] if node.inputs else None
        shape = facts.shape(source) if source is not None else None
        if source is None or shape is None:
            break
        if node.is_op("Tile"):
            counts = facts.ints(node.inputs[1])
            if counts is None or any(n != ONE and size != ONE for n, size in zip(counts, shape, strict=True)):
                break
        elif not node.is_op("Expand", "Identity"):
            break
        tensor = source
    return tensor
