"""Boolean masks: a Where when the values do not depend on which True it is, else each True takes the next value."""

from __future__ import annotations

from graphfix.builder import BOOL, WHERE_TYPES, Builder
from graphfix.graph import Value
from graphfix.index_write import Full, Mask, Reduction
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.gather_form import gather_from_both, hit_map
from graphfix.lowering.layout import aligned, rows_of, values_by_group
from graphfix.selection import Selection


class MaskWhere(Lowering):
    """``Where(mask, values, data)`` with the mask's axes where they belong."""

    name = "mask_where"

    def supports(self, selection: Selection, context: Context) -> str | None:
        varying = selection.varying
        if not varying or any(not isinstance(g.index, Mask) for g in varying):
            return "the index is not a mask"
        if any(not isinstance(g.index, Full | Mask) for g in selection.groups):
            return "the index has slices"
        if any(selection.values_vary_along(g) for g in varying):
            return "the values are packed, one for each True"
        return None if selection.data.dtype in WHERE_TYPES else "the element type has no Where"

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(context.data_bytes(selection), context.data_bytes(selection) // 4)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rank = builder.rank(selection.data)
        dims: list[int | None] = [None] * rank
        condition: Value | None = None
        for group in selection.groups:
            if isinstance(group.index, Mask):
                mask = builder.cast(group.index.tensor, BOOL)
                mask = builder.insert_axes(mask, [a for a in range(rank) if a not in group.axes])
                condition = mask if condition is None else builder.binary("And", condition, mask)
            else:
                dims[group.axes[0]] = group.grid[0] if group.grid else None
        assert condition is not None
        values = combine(selection.reduction, selection.data, aligned(selection, builder, dims), builder)
        return builder.where(condition, values, selection.data)


class MaskPacked(Lowering):
    """The n-th True of the mask takes the n-th value: a running count of the mask is the source map."""

    name = "mask_packed"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if len(selection.varying) != 1 or not isinstance(selection.varying[0].index, Mask):
            return "the index is not one mask"
        if any(not isinstance(g.index, Full | Mask) for g in selection.groups):
            return "the index has slices"
        if not selection.values_vary_along(selection.varying[0]):
            return "the values do not vary along the mask"
        if selection.reduction is not Reduction.NONE and selection.data.dtype not in WHERE_TYPES:
            return "the element type has no Where"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        data = context.data_bytes(selection)
        return Cost(3 * data, 2 * data)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rows, values = rows_of(selection, builder), values_by_group(selection, builder)
        (group,) = selection.varying
        written = gather_from_both(selection, rows, group, values, builder)
        if selection.reduction is not Reduction.NONE:
            hit = hit_map(selection, rows, [group], builder)
            written = builder.where(hit, combine(selection.reduction, rows.data, written, builder), rows.data)
        return rows.restore(written, builder)
