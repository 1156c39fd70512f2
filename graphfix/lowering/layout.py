"""Bring data and values into the layout that lowerings share: one axis for each group of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfix.builder import BOOL, INT64, Builder, Size
from graphfix.graph import Value
from graphfix.index_write import Full, Mask
from graphfix.selection import Group, PointSet, Selection


@dataclass(frozen=True)
class Rows:
    """Data with each group's axes moved together and flattened: axis i belongs to ``groups[i]``."""

    data: Value
    groups: tuple[Group, ...]
    original: Value
    order: tuple[int, ...]

    def axis(self, group: Group) -> int:
        return self.groups.index(group)

    def restore(self, result: Value, builder: Builder) -> Value:
        """Undo the flattening and the moves on a tensor of the same layout."""
        shape = builder.dims(self.original)
        for position in reversed(range(len(self.groups))):
            axes = self.groups[position].axes
            sizes = [builder.size(self.original, a) for a in axes]
            result = builder.split_axis(result, position, sizes, [shape[a] for a in axes])
        inverse = [self.order.index(a) for a in range(len(self.order))]
        return builder.transpose(result, inverse)


def rows_of(selection: Selection, builder: Builder) -> Rows:
    """Lay out the data."""
    order = tuple(axis for group in selection.groups for axis in group.axes)
    data = builder.transpose(selection.data, order)
    for position, group in enumerate(selection.groups):
        data = builder.merge_axes(data, position, len(group.axes))
    return Rows(data, selection.groups, selection.data, order)


def values_of(selection: Selection, builder: Builder) -> Value:
    """The values in the data's element type, as a 0-d tensor when all get the same one."""
    values = selection.values
    fill = builder.facts.uniform(values)
    if fill is not None:
        return builder.cast(builder.constant(fill, dtype_of(values)), dtype_of(selection.data))
    if selection.uniform and builder.rank(values):
        values = builder.reshape(values, [], [])
    elif selection.reshaped(builder.facts):
        sizes = [grid_size(selection, builder, d) for d in range(len(selection.shape))]
        values = builder.reshape(values, sizes, selection.shape)
    return builder.cast(values, dtype_of(selection.data))


def aligned(selection: Selection, builder: Builder, dims: Sequence[int | None]) -> Value:
    """The values with one axis for each entry of ``dims``: that dimension of the selection, or size 1.

    Dimensions that the values lack have size 1. A single value stays 0-d.
    """
    values = values_of(selection, builder)
    if selection.uniform:
        return values
    return arranged(values, selection.dims, dims, builder)


def arranged(values: Value, have: Sequence[object], dims: Sequence[object], builder: Builder) -> Value:
    """Values whose axes are called ``have``, with one axis for each name in ``dims``: of size 1 for a name they lack.

    An axis without a name (None) has size 1.
    """
    have = list(have)
    wanted = [d if d in have else None for d in dims]
    if have == wanted:
        return values
    values = builder.drop_axes(values, [i for i, d in enumerate(have) if d is None])
    have = [d for d in have if d is not None]
    values = builder.transpose(values, [have.index(d) for d in wanted if d is not None])
    return builder.insert_axes(values, [i for i, d in enumerate(wanted) if d is None])


def values_by_group(selection: Selection, builder: Builder) -> Value:
    """The values with one axis for each group, flattened like `rows_of`; size 1 where they do not vary.

    Dimensions of one group's grid along which the values only partly vary are repeated first. Along whole axes it is
    left to broadcasting.
    """
    if selection.uniform:
        return values_of(selection, builder)
    dims: list[int | None] = []
    widths: list[int] = []
    for group in selection.groups:
        along: Sequence[int | None] = group.grid if selection.values_vary_along(group) else (None,)
        dims += along
        widths.append(len(along))
    values = aligned(selection, builder, dims)
    have = builder.dims(values)
    partly = [
        i
        for i, d in enumerate(dims)
        if d is not None and have[i] != selection.shape[d] and not _left_alone(selection, d)
    ]
    if partly:
        shape = list(builder.dims(values))
        sizes = [builder.size(values, i) for i in range(len(dims))]
        for i in partly:
            dim = dims[i]
            assert dim is not None
            shape[i], sizes[i] = selection.shape[dim], grid_size(selection, builder, dim)
        values = builder.expand(values, sizes, shape)
    for position, width in enumerate(widths):
        values = builder.merge_axes(values, position, width)
    return values


def _left_alone(selection: Selection, dim: int) -> bool:
    """Whether a dimension is a whole axis, or how often a mask holds: values need no repeating along it (see
    `gather_form`)."""
    return any(dim in g.grid and isinstance(g.index, Mask | Full) for g in selection.groups)


def grid_size(selection: Selection, builder: Builder, dim: int) -> Size:
    """The size of a dimension of the selection at run time."""
    known = selection.shape[dim].constant
    if known is not None:
        return known
    if not selection.reshaped(builder.facts):
        for axis, along in enumerate(selection.dims):
            if along == dim and builder.dims(selection.values)[axis] == selection.shape[dim]:
                return builder.size(selection.values, axis)
    for group in selection.groups:
        if dim in group.grid and isinstance(group.index, Full):
            return builder.size(selection.data, group.axes[0])
        if dim in group.grid and isinstance(group.index, PointSet):
            walked = {d: a for a, d in group.index.batch}
            if dim in walked:
                return builder.size(selection.data, walked[dim])
            from_end = selection.grid_at + selection.grid_rank - dim
            reach = [t for t in group.index.tensors if builder.rank(t) >= from_end]
            for tensor in reach:
                if builder.dims(tensor)[-from_end] == selection.shape[dim]:
                    return builder.size(tensor, builder.rank(tensor) - from_end)
            # Sizes that are not known to be equal: what the indices broadcast to.
            total = builder.cast(reach[0], INT64)
            for tensor in reach[1:]:
                total = builder.binary("Add", total, builder.cast(tensor, INT64))
            return builder.size(total, builder.rank(total) - from_end)
        if dim in group.grid and isinstance(group.index, Mask):
            count = builder.cast(mask_row(builder, group), INT64)
            return builder.reduce("ReduceSum", count, [0], keepdims=True)
    raise AssertionError(f"dimension {dim} belongs to no group")


def mask_row(builder: Builder, group: Group) -> Value:
    """A Mask's bool tensor as one axis."""
    assert isinstance(group.index, Mask)
    mask = builder.cast(group.index.tensor, BOOL)
    return builder.merge_axes(mask, 0, len(group.axes))


def dtype_of(tensor: Value) -> int:
    """A tensor's element type, which every tensor of a write must have."""
    assert tensor.dtype is not None, f"element type of {tensor.name} is unknown"
    return tensor.dtype
