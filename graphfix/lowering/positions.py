"""From an index to its source map: which element of the index writes each position of an axis.

A source map of a group has one entry for each position of its (flattened) axes: 0 where nothing is written, k + 1 where
element k of the (flattened) index writes last. Comparisons are on integers; only index-sized vectors go through them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphfix.builder import BOOL, INT32, INT64, Builder, Size
from graphfix.facts import Facts
from graphfix.graph import Value
from graphfix.index_write import Mask
from graphfix.lowering.layout import mask_row
from graphfix.selection import Group, PointSet, Selection, vector_behind
from graphfix.symbolic import ONE


def constant_points(selection: Selection, group: Group, facts: Facts) -> tuple[np.ndarray, int] | None:
    """The flattened linear indices of a group and the number of positions, when both are constant and in range."""
    shape = facts.shape(selection.data)
    if not isinstance(group.index, PointSet) or shape is None:
        return None
    sizes = [s for a in group.axes if (s := shape[a].constant) is not None]
    tensors = [t for i in group.index.tensors if (t := facts.const(i)) is not None]
    if len(sizes) < len(group.axes) or len(tensors) < len(group.axes):
        return None
    linear = np.zeros((), np.int64)
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor.size and not -size <= tensor.min() <= tensor.max() < size:
            return None
        linear = linear * size + np.where(tensor < 0, tensor + size, tensor).astype(np.int64)
    order = _grid_order(selection, group, linear.ndim)
    return linear.transpose(order).reshape(-1), int(np.prod(sizes, dtype=np.int64))


def _grid_order(selection: Selection, group: Group, rank: int) -> list[int]:
    """The axes of a group's index tensor in the order of its grid; axes of size 1 that are in no grid come first."""
    first = selection.grid_at + selection.grid_rank - rank
    used = [d - first for d in group.grid]
    return [a for a in range(rank) if a not in used] + used


def last_writers(linear: np.ndarray, total: int) -> np.ndarray:
    """The source map of constant indices: for each position 0, or 1 + the last index that names it."""
    writers = np.zeros(total, np.int64)
    writers[linear] = np.arange(1, len(linear) + 1)  # NumPy applies them in order for 1-d integer indices
    return writers


def wrapped(builder: Builder, tensor: Value, size: Size) -> Value:
    """Indices with negative ones counted from the end, as int64."""
    if builder.facts.nonnegative(tensor):
        return builder.cast(tensor, INT64)
    tensor = builder.cast(tensor, INT64)
    length = _like(tensor, size, builder)
    negative = builder.binary("Less", tensor, builder.constant(0), BOOL)
    return builder.where(negative, builder.binary("Add", tensor, length), tensor)


def _like(tensor: Value, size: Size, builder: Builder) -> Value:
    """A size as a tensor that does not raise the rank of what it is combined with."""
    if isinstance(size, int):
        return builder.constant(size)
    return size if builder.rank(tensor) else builder.drop_axes(size, [0])


def linear_positions(builder: Builder, data: Value, axes: Sequence[int], tensors: Sequence[Value]) -> Value:
    """Index tensors that broadcast together as positions in their axes of ``data`` flattened, as int64."""
    total: Value | None = None
    for axis, tensor in zip(axes, tensors, strict=True):
        size = builder.size(data, axis)
        term = wrapped(builder, tensor, size)
        if total is None:
            total = term
        else:
            total = builder.binary("Add", builder.binary("Mul", total, _like(total, size, builder)), term)
    assert total is not None
    return total


def linear_index(selection: Selection, axes: Sequence[int], group: Group, builder: Builder) -> Value:
    """The indices into some axes of a group as positions in these axes flattened, in the index's own shape."""
    assert isinstance(group.index, PointSet)
    tensors = dict(zip(group.axes, group.index.tensors, strict=True))
    return linear_positions(builder, selection.data, axes, [tensors[axis] for axis in axes])


def flatten(selection: Selection, group: Group, index: Value, builder: Builder) -> Value:
    """An index tensor as a vector, in the order of its group's grid."""
    rank = builder.rank(index)
    if not rank:
        return builder.reshape(index, [1], [ONE])
    return builder.merge_axes(builder.transpose(index, _grid_order(selection, group, rank)), 0, rank)


def matches(selection: Selection, group: Group, builder: Builder) -> Value:
    """Where each position meets each index: bool of shape [positions, indices] for a group without batch axes.

    Writes with the same indices into axes of the same sizes share it.
    """
    assert isinstance(group.index, PointSet)
    facts, sizes = builder.facts, builder.dims(selection.data)
    vector = vector_behind(group.index.tensors[0], facts) if len(group.axes) == 1 else None

    def make() -> Value:
        if vector is None:
            linear = linear_index(selection, group.axes, group, builder)
            index = flatten(selection, group, linear, builder)
        else:
            index = linear_positions(builder, selection.data, group.axes, [vector])
        positions = builder.insert_axes(builder.iota(selection.data, group.axes), [1])
        return builder.equal(positions, builder.insert_axes(index, [0]))

    if vector is None:
        return make()
    return builder.once(("matches", vector.name, sizes[group.axes[0]]), make)


def source_map(selection: Selection, group: Group, builder: Builder) -> Value:
    """The source map of a group as int64 of shape [positions]."""
    known = constant_points(selection, group, builder.facts)
    if known is not None:
        return builder.constant(last_writers(*known))
    if isinstance(group.index, Mask):
        return running_count(mask_row(builder, group), builder)
    assert isinstance(group.index, PointSet)
    if group.index.batch:
        return _batched_source_map(selection, group, builder)
    match = builder.cast(matches(selection, group, builder), INT32)
    if builder.dims(match)[1] == ONE:
        return builder.cast(builder.drop_axes(match, [1]), INT64)
    return builder.cast(last_along(builder, match, 1), INT64)


def running_count(mask: Value, builder: Builder) -> Value:
    """For each element of a bool vector 0, or which True it is (from 1), as int64; CumSum itself on portable int32."""
    count = builder.cast(mask, INT32)
    running = builder.emit("CumSum", [count, builder.constant(0, INT32)], None, INT32, builder.dims(count))
    return builder.cast(builder.binary("Mul", running, count), INT64)


def last_along(builder: Builder, match: Value, axis: int) -> Value:
    """The number (from 1) of the last match along an axis of 0/1 int32, which goes; 0 where there is none."""
    shape = builder.dims(match)
    numbers = count_from_one(builder, match, axis)
    numbers = builder.insert_axes(numbers, [i for i in range(len(shape)) if i != axis])
    last = builder.reduce("ReduceMax", builder.binary("Mul", match, numbers), [axis])
    if shape[axis].positive:
        return last
    # The largest of nothing is the least integer.
    positive = builder.cast(builder.binary("Greater", last, builder.constant(0, INT32), BOOL), INT32)
    return builder.binary("Mul", last, positive)


def count_from_one(builder: Builder, tensor: Value, axis: int) -> Value:
    size = builder.size(tensor, axis)
    if isinstance(size, int):
        return builder.constant(np.arange(1, size + 1), INT32)
    ramp = builder.arange(size, builder.dims(tensor)[axis], INT32)
    return builder.binary("Add", ramp, builder.constant(1, INT32))


def _batched_source_map(selection: Selection, group: Group, builder: Builder) -> Value:
    assert isinstance(group.index, PointSet)
    batch_axes = [axis for axis, _ in group.index.batch]
    moving = [axis for axis in group.axes if axis not in batch_axes]
    batch = len(batch_axes)
    index = linear_index(selection, moving, group, builder)
    rank = builder.rank(index)
    index = builder.transpose(index, _grid_order(selection, group, rank))
    index = builder.drop_axes(index, list(range(rank - len(group.grid))))
    # [batch dims..., free dims flattened]
    index = builder.merge_axes(index, batch, len(group.grid) - batch) if len(group.grid) > batch else index
    if len(group.grid) == batch:
        index = builder.insert_axes(index, [batch])
    positions = builder.insert_axes(builder.iota(selection.data, moving), [*range(batch), batch + 1])
    match = builder.cast(builder.equal(positions, builder.insert_axes(index, [batch])), INT32)
    one_each = builder.dims(match)[-1] == ONE
    last = builder.drop_axes(match, [batch + 1]) if one_each else last_along(builder, match, batch + 1)
    last = builder.cast(last, INT64)
    # Row b of the batch takes its values from the b-th block of the flattened grid.
    free = builder.size(index, batch)
    walk = builder.iota(selection.data, batch_axes)
    block = builder.binary("Mul", walk, builder.constant(free) if isinstance(free, int) else free)
    flat_last = builder.merge_axes(last, 0, batch)
    block = builder.insert_axes(block, [1])
    hit = builder.cast(builder.binary("Greater", flat_last, builder.constant(0), BOOL), INT64)
    numbered = builder.binary("Mul", builder.binary("Add", flat_last, block), hit)
    return builder.merge_axes(numbered, 0, 2)


def hits(selection: Selection, group: Group, builder: Builder) -> Value:
    """Which positions of a group are written at all, as bool of shape [positions]."""
    if isinstance(group.index, Mask):
        return mask_row(builder, group)
    assert isinstance(group.index, PointSet)
    if group.index.batch or constant_points(selection, group, builder.facts) is not None:
        return builder.binary("Greater", source_map(selection, group, builder), builder.constant(0), BOOL)
    match = matches(selection, group, builder)
    if builder.dims(match)[1] == ONE:
        return builder.drop_axes(match, [1])
    found = builder.reduce("ReduceMax", builder.cast(match, INT32), [1])
    return builder.binary("Greater", found, builder.constant(0, INT32), BOOL)


def is_unique(selection: Selection, group: Group, facts: Facts) -> bool:
    """Whether no position of a group can be named twice."""
    if not isinstance(group.index, PointSet):
        return True
    known = constant_points(selection, group, facts)
    if known is not None:
        return len(set(known[0].tolist())) == known[0].size
    if group.length == ONE:
        return True
    walked = {d for _, d in group.index.batch}
    return bool(walked) and all(d in walked for d in group.grid)
