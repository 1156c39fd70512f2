"""The index covers everything: the values take the place of the data."""

from __future__ import annotations

from graphfix.builder import Builder
from graphfix.graph import Value
from graphfix.index_write import Full
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.layout import aligned
from graphfix.selection import Selection


class Replace(Lowering):
    """``Expand`` or nothing at all; for a reduction, one elementwise operator."""

    name = "replace"

    def supports(self, selection: Selection, context: Context) -> str | None:
        whole = all(isinstance(g.index, Full) for g in selection.groups)
        return None if whole else "the index does not cover everything"

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(context.data_bytes(selection), 0)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        shape = builder.dims(selection.data)
        values = aligned(selection, builder, [g.grid[0] if g.grid else None for g in selection.groups])
        combined = combine(selection.reduction, selection.data, values, builder)
        return builder.expand(combined, [builder.size(selection.data, a) for a in range(len(shape))], shape)
