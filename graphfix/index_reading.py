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
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_write import Full, Mask, Points, Span
from graphfix.masks import MASKS, count_of
from graphfix.selection import as_span, constant_span
from graphfix.symbolic import ONE, Expr


@dataclass(frozen=True)
class Column:
    """One column of an index tensor, without its last dimension.

    ``tensor`` broadcasts (from the right) with the other columns to the index grid. For a column of
    ``Transpose(NonZero(mask))``, ``mask`` and ``axis`` say which, and ``tensor`` is None; for a constant ``values`` are
    given instead.
    """

    tensor: Value | None = None
    mask: Value | None = None
    axis: int = 0
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Factor:
    """A column that runs along one dim of the index grid (None: along none), whatever the other columns are.

    ``index`` says which part of the data's ``axis`` it is. The positions of a mask have ``mask`` instead, and are one
    factor for as many axes (``width``) as the mask has.
    """

    axis: int
    dim: int | None
    index: Full | Span | None = None
    mask: Value | None = None
    width: int = 1


def read_index(index: Value, data: Value, width: int, facts: Facts, builder: Builder) -> tuple[Points | Mask, ...]:
    """The indices into the first ``width`` axes of ``data`` that an index tensor of shape [grid..., width] stands for.

    They broadcast to exactly the tensor's grid. What cannot be read is taken as it is, one Gather for each column.
    """
    shape = facts.shape(index)
    assert shape is not None
    columns = columns_of(index, facts)
    if columns is None or len(columns) != width or not _spans_grid(columns, shape[:-1], facts):
        columns = _plain_columns(index, width, facts, builder)
    return _with_masks(columns, data, facts, builder)


def read_write(
    index: Value, updates: Value, data: Value, width: int, facts: Facts, builder: Builder
) -> tuple[tuple[Full | Span | Points | Mask, ...], Value]:
    """`read_index`, and the values to write.

    An index that pairs each position where a mask of one axis holds with whole axes, slices and single positions is
    read as the outer product that it is, and the values are laid out like its axes.
    """
    shape = facts.shape(index)
    assert shape is not None
    columns = columns_of(index, facts)
    factors = factors_of(columns, shape[:-1], data, facts) if columns is not None and len(columns) == width else None
    single = factors is not None and width > 1 and len(factors) == width
    if single and factors is not None and columns is not None and any(f.mask is not None for f in factors):
        values = _laid_out(updates, factors, len(shape) - 1, data, facts, builder)
        if _spans_grid(columns, shape[:-1], facts) and values is not None:
            return tuple(_placed(f, data, builder) for f in factors), values
        values = _before_reshape(updates, factors, data, facts)
        if values is not None:
            return tuple(_placed(f, data, builder) for f in factors), values
    return read_index(index, data, width, facts, builder), updates


def factors_of(columns: list[Column], grid: tuple[Expr, ...], data: Value, facts: Facts) -> list[Factor] | None:
    """Each column of an index as a factor of an outer product, or None when one of them is none.

    At most one of them is a mask. Whether they run along dims of their own is not looked at.
    """
    sizes = facts.shape(data)
    if sizes is None or len(columns) > len(sizes):
        return None
    factors: list[Factor] = []
    for axis, column in enumerate(columns):
        if factors and axis < factors[-1].axis + factors[-1].width:
            continue
        if column.mask is not None:
            rank = facts.rank(column.mask) or 0
            run = [(c.mask, c.axis) for c in columns[axis : axis + rank]]
            if not rank or run != [(column.mask, i) for i in range(rank)]:
                return None
            factors.append(Factor(axis, len(grid) - 1, None, column.mask, rank))
            continue
        shape = facts.shape(column.tensor) if column.tensor is not None else None
        if column.values is not None:
            shape = tuple(Expr.of(n) for n in column.values.shape)
        if shape is None:
            return None
        long = [len(grid) - len(shape) + i for i, size in enumerate(shape) if size != ONE]
        if len(long) > 1:
            return None
        dim = long[0] if long else None
        mask = mask_of_vector(column.tensor, facts) if column.tensor is not None else None
        span = None
        if mask is None:
            if column.values is not None:
                span = constant_span(column.values, sizes[axis])
            elif column.tensor is not None:
                span = as_span(column.tensor, sizes[axis], facts)
            if span is None:
                return None
        factors.append(Factor(axis, dim, span, mask))
    return factors if sum(f.mask is not None for f in factors) <= 1 else None


def _laid_out(
    updates: Value, factors: list[Factor], rank: int, data: Value, facts: Facts, builder: Builder
) -> Value | None:
    """Updates with one axis for each factor in front of the rest, when the factors have dims of their own, in order."""
    own = [f.dim for f in factors if f.dim is not None]
    shape = facts.shape(updates)
    if own != sorted(set(own)) or shape is None or len(shape) != rank + len(builder.dims(data)) - len(factors):
        return None
    unused = [d for d in range(rank) if d not in own]
    single = [i for i, f in enumerate(factors) if f.dim is None]
    if len(unused) == len(single) and all(d == i for d, i in zip(unused, single, strict=True)):
        return updates
    return builder.insert_axes(builder.drop_axes(updates, unused), single)


def _before_reshape(updates: Value, factors: list[Factor], data: Value, facts: Facts) -> Value | None:
    """What the updates were before they were reshaped to the index grid, when that is the selection.

    Exporters broadcast the positions of ``x[:, mask.nonzero()]``, of shape [K, 1], with those of a whole axis, [N, 1].
    The grid has as many elements as there are values, N * K, only where N or K is 1, and is the outer product then.
    """
    node = updates.inputs[0] if updates.inputs else None
    if node is None or not node.is_op("Reshape"):
        return None
    values = node.inputs[0]
    shape, sizes = facts.shape(values), facts.shape(data)
    if shape is None or sizes is None:
        return None
    wanted: list[Expr] = []
    for axis, factor in enumerate(factors):
        if factor.mask is not None:
            wanted.append(count_of(factor.mask))
        elif isinstance(factor.index, Full):
            wanted.append(sizes[axis])
        elif factor.dim is not None:
            return None
    wanted += sizes[len(factors) :]
    return values if [d for d in shape if d != ONE] == [d for d in wanted if d != ONE] else None


def _placed(factor: Factor, data: Value, builder: Builder) -> Full | Span | Mask:
    if factor.mask is not None:
        return Mask(_fitted(factor.mask, data, factor.axis, builder), factor.mask)
    assert factor.index is not None
    return factor.index


def columns_of(index: Value, facts: Facts) -> list[Column] | None:
    """The columns of an index tensor, or None when it is not put together in a known way."""
    shape = facts.shape(index)
    node: Node | None = index.inputs[0] if index.inputs else None
    constant = facts.const(index)
    if constant is not None and constant.ndim:
        return [Column(values=_compact(constant[..., i])) for i in range(constant.shape[-1])]
    if node is None or shape is None or not shape:
        return None
    if node.is_op("Concat") and node.attrs.get("axis", 0) % len(shape) == len(shape) - 1:
        columns: list[Column] = []
        for part in node.inputs:
            found = columns_of(part, facts)
            if found is None:
                return None
            columns += found
        return columns
    if node.is_op("Cast", "Identity"):
        return columns_of(node.inputs[0], facts)
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
            return columns_of(inner, facts)
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
        if column.values is not None:
            shapes.append(tuple(Expr.of(n) for n in column.values.shape))
        elif column.tensor is None:
            shapes.append(grid[-1:])  # a mask's positions run along the last dimension, whatever their number
        else:
            shape = facts.shape(column.tensor)
            if shape is None:
                return False
            shapes.append(shape)
    found = facts.broadcast(shapes, "columns")
    if len(found) != len(grid):
        return False
    masked = any(c.mask is not None for c in columns)
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
        shape = facts.shape(column.tensor) if column.tensor is not None else None
        mask = column.mask
        if mask is None and column.tensor is not None and shape and shape[-1] != ONE:
            mask = mask_of_vector(column.tensor, facts)
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
                index.append(Mask(_fitted(mask, data, i, builder), mask))
                i += rank
                continue
        if column.values is not None:
            index.append(Points(builder.constant(column.values)))
        elif column.tensor is None:
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


def mask_of_vector(tensor: Value, facts: Facts) -> Value | None:
    """The mask of rank 1 whose positions a tensor holds, with axes of size 1 around."""
    while tensor.inputs:
        node = tensor.inputs[0]
        if node.is_op("NonZero"):
            mask = node.inputs[0]
            return mask if facts.rank(mask) == 1 and mask.dtype in MASKS else None
        shape = facts.shape(tensor)
        vector = shape is not None and len([d for d in shape if d != ONE]) <= 1
        if not (vector and node.is_op("Squeeze", "Unsqueeze", "Reshape", "Transpose", "Identity", "Cast")):
            return None
        tensor = node.inputs[0]
    return None


def _mask_column(mask: Value, axis: int, builder: Builder) -> Value:
    count = count_of(mask)
    found = builder.emit("NonZero", [mask], None, INT64, (Expr.of(builder.rank(mask)), count))
    return builder.emit("Gather", [found, builder.constant(axis)], {"axis": 0}, INT64, (count,))
