"""``y[..., mask, ...] = f(x[..., mask, ...])`` with an elementwise f: f of everything, and one Where."""

from __future__ import annotations

from graphfix.builder import WHERE_TYPES, Builder
from graphfix.facts import Facts
from graphfix.graph import Value
from graphfix.index_write import Full, Mask
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.layout import arranged, dtype_of
from graphfix.packed_values import PackedValues, find_packed_values
from graphfix.selection import Selection


class MaskRegion(Lowering):
    """The values are computed at all positions that the mask decides about, and a Where takes those where it holds.

    The mask may be shorter than the axis: what is beyond it stays as it is.
    """

    name = "mask_where"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if len(selection.varying) != 1 or not isinstance(selection.varying[0].index, Mask):
            return "the index is not one mask"
        if any(not isinstance(g.index, Full | Mask) for g in selection.groups):
            return "the index has slices"
        if selection.data.dtype not in WHERE_TYPES:
            return "the element type has no Where"
        return None if _packed(selection, context.facts) is not None else "the values are not read by the mask"

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(2 * context.data_bytes(selection), context.data_bytes(selection))

    def emit(self, selection: Selection, builder: Builder) -> Value:
        (group,) = selection.varying
        packed, rank = _packed(selection, builder.facts), builder.rank(selection.data)
        assert packed is not None
        width, axis = len(group.axes), group.axes[0]
        mask, part, values = packed.emit(selection.data, axis, builder)
        have: list[object] = []
        for dim in selection.dims:
            have += [("mask", i) for i in range(width)] if dim in group.grid else [dim]
        wanted: list[object] = [None] * rank
        for other in selection.groups:
            if other is group:
                wanted[axis : axis + width] = [("mask", i) for i in range(width)]
            elif other.grid:
                wanted[other.axes[0]] = other.grid[0]
        values = arranged(builder.cast(values, dtype_of(selection.data)), have, wanted, builder)
        mask = builder.insert_axes(mask, [a for a in range(rank) if a not in group.axes])
        result = builder.where(mask, combine(selection.reduction, part, values, builder), part)
        for at, size in zip(group.axes, builder.dims(packed.mask), strict=True):
            if width > 1 and size != builder.dims(part)[at]:
                # A mask that is larger than the data there holds in none of what is cut off.
                result = builder.slice(result, at, 0, builder.size(part, at), length=builder.dims(part)[at])
        builder.facts.set_shape(result, builder.dims(part))
        if part is not selection.data:
            rest = builder.slice(selection.data, axis, builder.size(part, axis), None)
            result = builder.concat([result, rest], axis)
            builder.facts.set_shape(result, builder.dims(selection.data))
        return result


def _packed(selection: Selection, facts: Facts) -> PackedValues | None:
    """How the values of a write by one mask are computed on all positions."""
    (group,) = selection.varying
    assert isinstance(group.index, Mask)
    if not selection.values_vary_along(group) or selection.reshaped(facts):
        return None
    (packed,) = (i for i, dim in enumerate(selection.dims) if dim in group.grid)
    mask = group.index.origin or group.index.tensor
    return find_packed_values(selection.values, packed, mask, facts)
