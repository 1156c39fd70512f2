"""Read the index tensor of a ScatterND back into one index for each axis.

Exporters build the tensor from one grid per axis: a Range, a constant or a vector, reshaped so that it runs along one
dimension, expanded to the size of the whole grid, and put side by side by Concat. Reading goes the other way and stops
at the vectors; what they hold is for `graphfix.facts` and `graphfix.selection` to tell. The parts that come from
``NonZero(mask)`` become that mask again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphfix.builder import BOOL, INT32, INT64, Builder
from graphfix.facts import MASKS, Facts
from graphfix.graph import Node, Value
from graphfix.index_write import Mask, Points
from graphfix.symbolic import ONE, Expr


@dataclass(frozen=True)
class Column:
    """One column of an index tensor, without its last dimension.

    ``tensor`` broadcasts (from the right) with the other columns to the index grid. For a column of
    ``Transpose(NonZero(mask))``, ``mask`` and ``axis`` say which, and ``tensor`` is None.
    """

    tensor: Value | None
    mask: Value | None = None
    axis: int = 0


def read_index(index: Value, data: Value, width: int, facts: Facts, builder: Builder) -> tuple[Points | Mask, ...]:
    """The indices into the first ``width`` axes of ``data`` that an index tensor of shape [grid..., width] stands for.

    They broadcast to exactly the tensor's grid. What cannot be read is taken as it is, one Gather for each column.
    """
    shape = facts.shape(index)
    assert shape is not None
    columns = _columns(index, facts)
    if columns is None or len(columns) != width or not _spans_grid(columns, shape[:-1], facts):
        columns = _plain_columns(index, width, facts, builder)
    return _with_masks(columns, data, facts, builder)


def _columns(index: Value, facts: Facts) -> list[Column] | None:
    """The columns of an index tensor, or None when it is not put together in a known way."""
    shape = facts.shape(index)
    node: Node | None = index.inputs[0] if index.inputs else None
    constant = facts.const(index)
    if constant is not None and constant.ndim:
        return None  # `_plain_columns` does better
    if node is None or shape is None or not shape:
        return None
    if node.is_op("Concat") and node.attrs.get("axis", 0) % len(shape) == len(shape) - 1:
        columns: list[Column] = []
        for part in node.inputs:
            found = _columns(part, facts)
            if found is None:
                return None
            columns += found
        return columns
    if node.is_op("Cast", "Identity"):
        return _columns(node.inputs[0], facts)
    if node.is_op("Transpose") and len(shape) == 2 and list(node.attrs.get("perm", [1, 0])) == [1, 0]:
        maker = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
        if maker is not None and maker.is_op("NonZero") and facts.rank(maker.inputs[0]) is not None:
            mask = maker.inputs[0]
            return [Column(None, mask, axis) for axis in range(facts.rank(mask) or 0)]
    if shape[-1] != ONE:
        return None
    if node.is_op("Unsqueeze"):
        axes = facts.axes(node)
        if axes is not None and [a % len(shape) for a in axes] == [len(shape) - 1]:
            return [_stripped(node.inputs[0], facts)]
    if node.is_op("Reshape", "Expand", "Unsqueeze"):
        inner = node.inputs[0]
        inner_shape = facts.shape(inner)
        if inner_shape == shape[:-1]:
            return [_stripped(inner, facts)]
        if node.is_op("Expand") and inner_shape is not None and inner_shape and inner_shape[-1] == ONE:
            return _columns(inner, facts)
    return None


def _stripped(tensor: Value, facts: Facts) -> Column:
    """A column without what only repeats it."""
    while tensor.inputs and tensor.inputs[0].is_op("Expand", "Identity"):
        source = tensor.inputs[0].inputs[0]
        if facts.shape(source) is None:
            break
        tensor = source
    return Column(tensor)


def _spans_grid(columns: list[Column], grid: tuple[Expr, ...], facts: Facts) -> bool:
    """Whether the columns broadcast to the grid: else elements of the index would be lost."""
    shapes: list[tuple[Expr, ...]] = []
    for column in columns:
        if column.tensor is None:
            shapes.append(grid[-1:])  # a mask's positions run along the last dimension, whatever their number
        else:
            shape = facts.shape(column.tensor)
            if shape is None:
                return False
            shapes.append(shape)
    found = facts.broadcast(shapes, "columns")
    if len(found) != len(grid):
        return False
    masked = any(c.tensor is None for c in columns)
    pairs = list(zip(found, grid, strict=True))
    return all(a == b for a, b in (pairs[:-1] if masked else pairs))


def _plain_columns(index: Value, width: int, facts: Facts, builder: Builder) -> list[Column]:
    """Each column as its own tensor: constants with what only repeats cut off, others by Gather."""
    constant = facts.const(index)
    shape = builder.dims(index)
    if constant is None:
        columns = []
        for i in range(width):
            column = builder.emit(
                "Gather", [index, builder.constant(i)], {"axis": len(shape) - 1}, index.dtype, shape[:-1]
            )
            columns.append(Column(builder.cast(column, INT64)))
        return columns
    parts = [constant[..., i] for i in range(width)]
    compact = [_compact(part) for part in parts]
    for axis in range(constant.ndim - 1):
        if constant.shape[axis] != 1 and all(c.shape[axis] == 1 for c in compact):
            compact[0] = np.repeat(compact[0], constant.shape[axis], axis)
    return [Column(builder.constant(c)) for c in compact]


def _compact(array: np.ndarray) -> np.ndarray:
    """An array with size 1 along each axis on which it only repeats."""
    for axis in range(array.ndim):
        first = np.take(array, [0], axis) if array.shape[axis] else array
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array


def _with_masks(columns: list[Column], data: Value, facts: Facts, builder: Builder) -> tuple[Points | Mask, ...]:
    """Columns that are all axes of one mask, in order, become that mask, where it is as large as the axes it is for.

    A mask of one axis that may be shorter or longer is padded or cut: beyond the axis it cannot hold.
    """
    sizes = builder.dims(data)
    index: list[Points | Mask] = []
    i = 0
    while i < len(columns):
        column = columns[i]
        mask = column.mask if column.mask is not None else _mask_of_row(column.tensor, facts)
        rank = facts.rank(mask) if mask is not None else None
        if mask is not None and rank:
            run = columns[i : i + rank]
            whole = rank == 1 or [(c.mask, c.axis) for c in run] == [(mask, axis) for axis in range(rank)]
            wanted = sizes[i : i + rank]
            if (
                whole
                and mask.dtype in MASKS
                and (facts.shape(mask) == wanted or rank == 1 or _expanded_to(mask, wanted, facts))
            ):
                index.append(Mask(_fitted(mask, data, i, builder)))
                i += rank
                continue
        if column.tensor is None:
            assert column.mask is not None
            index.append(Points(_mask_column(column.mask, column.axis, builder)))
        else:
            index.append(Points(column.tensor))
        i += 1
    return tuple(index)


def _expanded_to(mask: Value, sizes: tuple[Expr, ...], facts: Facts) -> bool:
    """Whether a mask was expanded to these sizes: it is no smaller then, and larger only where one of them is 1."""
    maker = mask.inputs[0] if mask.inputs else None
    return maker is not None and maker.is_op("Expand") and facts.ints(maker.inputs[1]) == sizes


def _fitted(mask: Value, data: Value, first: int, builder: Builder) -> Value:
    """A mask with the sizes of the data's axes from ``first`` on: cut where it may be larger (it cannot hold there),
    and, when it has one axis, padded with False where it may be smaller."""
    for axis in range(builder.rank(mask)):
        size, extent = builder.size(data, first + axis), builder.dims(data)[first + axis]
        if builder.dims(mask)[axis] == extent:
            continue
        if builder.rank(mask) == 1:
            padded = [builder.cast(mask, INT32), builder.filled(0, INT32, [size], [extent])]
            mask = builder.cast(builder.concat(padded, 0), BOOL)
        mask = builder.slice(mask, axis, 0, size, length=extent)
    return mask


def _mask_of_row(tensor: Value | None, facts: Facts) -> Value | None:
    """The mask of rank 1 whose ``NonZero`` (of shape [1, count]) a column is."""
    shape = facts.shape(tensor) if tensor is not None else None
    if not shape or shape[-1] == ONE:
        return None
    while tensor is not None and tensor.inputs:
        node = tensor.inputs[0]
        if node.is_op("NonZero"):
            return node.inputs[0] if facts.rank(node.inputs[0]) == 1 else None
        shape = facts.shape(tensor)
        vector = shape is not None and len([d for d in shape if d != ONE]) <= 1
        if not (vector and node.is_op("Squeeze", "Unsqueeze", "Reshape", "Transpose", "Identity", "Cast")):
            return None
        tensor = node.inputs[0]
    return None


def _mask_column(mask: Value, axis: int, builder: Builder) -> Value:
    count = Expr.dim(f"true({mask.name})")
    found = builder.emit("NonZero", [mask], None, INT64, (Expr.of(builder.rank(mask)), count))
    return builder.emit("Gather", [found, builder.constant(axis)], {"axis": 0}, INT64, (count,))
