"""Integer indices: a source map says for each position which value it takes, and one Gather moves the data."""

from __future__ import annotations

from graphfix.builder import WHERE_TYPES, Builder
from graphfix.graph import Value
from graphfix.index_write import Full, Reduction
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.gather_form import gather_from_both, hit_map, pick_values
from graphfix.lowering.layout import aligned, rows_of, values_by_group
from graphfix.lowering.positions import constant_points, is_unique, wrapped
from graphfix.selection import Group, PointSet, Selection
from graphfix.symbolic import ONE, Expr


def _point_groups(selection: Selection) -> list[Group] | str:
    """The groups of a write that has point sets (and masks) but no slices, or why it is none."""
    if any(not isinstance(g.index, Full) and not g.varies for g in selection.groups):
        return "the index has slices"
    if not any(isinstance(g.index, PointSet) for g in selection.groups):
        return "the index has no integer indices"
    return list(selection.varying)


class PointsConstant(Lowering):
    """Constant indices into axes of known size: ``Gather(Concat(data, values), constant map)``."""

    name = "points_constant"

    def supports(self, selection: Selection, context: Context) -> str | None:
        groups = _point_groups(selection)
        if isinstance(groups, str):
            return groups
        if len(groups) != 1:
            return "there are several independent indices"
        if constant_points(selection, groups[0], context.facts) is None:
            return "the indices or the sizes of their axes are not constant, or an index is out of range"
        if selection.reduction is Reduction.NONE:
            return None
        return None if is_unique(selection, groups[0], context.facts) else "an index occurs twice under a reduction"

    def cost(self, selection: Selection, context: Context) -> Cost:
        both = context.data_bytes(selection) + context.values_bytes(selection)
        return Cost(2 * both, both)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rows = rows_of(selection, builder)
        (group,) = selection.varying
        known = constant_points(selection, group, builder.facts)
        assert known is not None
        values = values_by_group(selection, builder)
        if not known[0].size:
            return selection.data
        if selection.reduction is not Reduction.NONE:
            # Unique indices: combine what is there with the values, then write that.
            old = builder.gather(rows.data, builder.constant(known[0]), rows.axis(group))
            values = combine(selection.reduction, old, values, builder)
        elif not selection.values_vary_along(group):
            values = _repeat(values, rows.axis(group), known[0].size, len(rows.groups), builder)
        return rows.restore(gather_from_both(selection, rows, group, values, builder), builder)


def _repeat(values: Value, axis: int, count: int, rank: int, builder: Builder) -> Value:
    """Give values that do not vary along an axis that many equal rows there."""
    if not builder.rank(values):
        values = builder.reshape(values, [1] * rank, [ONE] * rank)
    shape = list(builder.dims(values))
    sizes = [builder.size(values, i) for i in range(rank)]
    sizes[axis], shape[axis] = count, Expr.of(count)
    return builder.expand(values, sizes, shape)


class PointsBatch(Lowering):
    """One position for each row of a batch, as ``x[arange(B), i] = v``: compare and Where, nothing is gathered."""

    name = "points_batch"

    def supports(self, selection: Selection, context: Context) -> str | None:
        groups = _point_groups(selection)
        if isinstance(groups, str):
            return groups
        if len(groups) != 1 or not isinstance(groups[0].index, PointSet) or not groups[0].index.batch:
            return "no axis is walked through in order"
        if len(groups[0].grid) != len(groups[0].index.batch):
            return "each row of the batch has several indices"
        return None if selection.data.dtype in WHERE_TYPES else "the element type has no Where"

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(context.data_bytes(selection), context.data_bytes(selection) // 4)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        (group,) = selection.varying
        assert isinstance(group.index, PointSet)
        walked = dict(group.index.batch)
        rank = builder.rank(selection.data)
        batch_axes = [a for a in group.axes if a in walked]
        hit: Value | None = None
        for axis, tensor in zip(group.axes, group.index.tensors, strict=True):
            if axis in walked:
                continue
            index = wrapped(builder, tensor, builder.size(selection.data, axis))
            index = _at_axes(selection, index, {walked[a]: a for a in batch_axes}, rank, builder)
            positions = builder.iota(selection.data, [axis])
            positions = builder.insert_axes(positions, [i for i in range(rank) if i != axis])
            match = builder.equal(positions, index)
            hit = match if hit is None else builder.binary("And", hit, match)
        assert hit is not None
        dims: list[int | None] = [None] * rank
        for other in selection.groups:
            if isinstance(other.index, Full):
                dims[other.axes[0]] = other.grid[0] if other.grid else None
        for axis, dim in walked.items():
            dims[axis] = dim
        values = combine(selection.reduction, selection.data, aligned(selection, builder, dims), builder)
        return builder.where(hit, values, selection.data)


def _at_axes(selection: Selection, index: Value, axis_of: dict[int, int], rank: int, builder: Builder) -> Value:
    """An index tensor over some dimensions of the grid, with those put at the data axes they belong to."""
    shape = builder.dims(index)
    first = selection.grid_at + selection.grid_rank - len(shape)
    kept = [i for i in range(len(shape)) if first + i in axis_of]
    index = builder.drop_axes(index, [i for i in range(len(shape)) if i not in kept])
    targets = [axis_of[first + i] for i in kept]
    order = sorted(range(len(targets)), key=lambda i: targets[i])
    index = builder.transpose(index, order)
    return builder.insert_axes(index, [a for a in range(rank) if a not in targets])


class PointsRuntime(Lowering):
    """Indices known at run time: every position is compared with every index, and the last that matches wins."""

    name = "points_runtime"

    def supports(self, selection: Selection, context: Context) -> str | None:
        groups = _point_groups(selection)
        if isinstance(groups, str):
            return groups
        if selection.reduction is not Reduction.NONE:
            return "several indices may meet under a reduction"
        varying = [g for g in groups if selection.values_vary_along(g)]
        if (len(groups) > 1 or not varying) and selection.data.dtype not in WHERE_TYPES:
            return "the element type has no Where"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        compared = [context.comparison_bytes(selection, g) for g in selection.varying]
        both = context.data_bytes(selection) + context.values_bytes(selection)
        return Cost(2 * both + 4 * sum(compared), max([both, *compared]))

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rows, values = rows_of(selection, builder), values_by_group(selection, builder)
        groups = selection.varying
        varying = [g for g in groups if selection.values_vary_along(g)]
        if len(groups) == 1 and varying:
            return rows.restore(gather_from_both(selection, rows, groups[0], values, builder), builder)
        for group in varying:
            values = pick_values(selection, rows, group, values, builder)
        hit = hit_map(selection, rows, groups, builder)
        return rows.restore(builder.where(hit, values, rows.data), builder)
