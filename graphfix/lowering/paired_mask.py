"""``x[mask, j] = v``: a mask whose n-th True is paired with the n-th of other indices.

PyTorch takes the positions where the mask holds as one more index, which broadcasts with the others. Without NonZero:
the mask's axes are flattened into one, and the position of its k-th True is found by comparing k with the running
count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphfix.builder import BOOL, INT64, Builder, Size
from graphfix.graph import Value
from graphfix.index_write import Full, IndexWrite, Mask, Points, Span
from graphfix.lowering.positions import running_count
from graphfix.symbolic import ONE, Expr


def unpack(write: IndexWrite, builder: Builder) -> tuple[IndexWrite, Callable[[Value], Value]]:
    """The same write with indices instead of masks, and what turns its result into the write's."""
    shape = builder.dims(write.data)
    sizes = [builder.size(write.data, i) for i in range(len(shape))]
    lengths: list[Size] = [
        builder.size(i.tensor, builder.rank(i.tensor) - 1)
        for i in write.index
        if isinstance(i, Points) and builder.rank(i.tensor) and builder.dims(i.tensor)[-1] != ONE
    ]
    rows: dict[int, Value] = {}
    counts: dict[int, Value] = {}
    for position, index in enumerate(write.index):
        if isinstance(index, Mask):
            mask = builder.cast(index.tensor, BOOL)
            rows[position] = builder.merge_axes(mask, 0, builder.rank(mask))
            counts[position] = builder.reduce("ReduceSum", builder.cast(rows[position], INT64), [0], keepdims=True)
    known = [n for n in lengths if isinstance(n, int)]
    length: Size = known[0] if known else _broadcast_size([*lengths, *counts.values()], builder)
    extent = Expr.of(length) if isinstance(length, int) else Expr.dim(f"paired({length.name})")
    numbers = builder.binary("Add", builder.arange(length, extent), builder.constant(1))
    data, axis = write.data, 0
    merged: list[tuple[int, int]] = []
    index_now: list[Full | Span | Points | Mask] = []
    for position, index in enumerate(write.index):
        if not isinstance(index, Mask):
            index_now.append(index)  # type: ignore[arg-type]
            axis += 1
            continue
        width = builder.rank(index.tensor)
        data = builder.merge_axes(data, axis, width)
        merged.append((axis, width))
        index_now.append(Points(_positions(rows[position], counts[position], numbers, builder)))
        axis += 1

    def restore(result: Value) -> Value:
        for at, width in reversed(merged):
            # Axes before this one are still merged: count them as in the data's own shape.
            start = at + sum(w - 1 for a, w in merged if a < at)
            result = builder.split_axis(result, at, sizes[start : start + width], shape[start : start + width])
        return result

    return replace(write, data=data, index=tuple(index_now)), restore


def _broadcast_size(lengths: list[Size], builder: Builder) -> Size:
    """The size that sizes broadcast to: the first that is not 1."""
    result = lengths[0]
    for other in lengths[1:]:
        a, b = builder.vector([result]), builder.vector([other])
        result = builder.where(builder.equal(a, builder.constant([1])), b, a)
    return result


def _positions(row: Value, count: Value, numbers: Value, builder: Builder) -> Value:
    """Where a mask holds for the first, second, ... time. When it holds once, that position stands for all of them."""
    beyond = builder.binary("Greater", numbers, count, BOOL)
    wanted = builder.insert_axes(builder.where(beyond, count, numbers), [0])
    match = builder.cast(builder.equal(builder.insert_axes(running_count(row, builder), [1]), wanted), INT64)
    places = builder.insert_axes(builder.iota(row, [0]), [1])
    return builder.reduce("ReduceSum", builder.binary("Mul", match, places), [0])
