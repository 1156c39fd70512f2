"""A slice of one or more axes: cut it out, write into it whole, and put the pieces together again."""

from __future__ import annotations

from dataclasses import replace

from graphfix.builder import BOOL, INT64, Builder
from graphfix.facts import Bound, Facts
from graphfix.graph import Value
from graphfix.index_write import Full, Span
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.layout import aligned
from graphfix.lowering.replace import Replace
from graphfix.selection import Group, Selection


class SpanSlices(Lowering):
    """``Slice`` and ``Concat``, nested for several axes. The form that every engine runs."""

    name = "span"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if any(g.varies for g in selection.groups):
            return "the index is not made of whole axes and slices alone"
        if not any(isinstance(g.index, Span) for g in selection.groups):
            return "the index has no slice"
        if any(isinstance(g.index, Span) and not _constant(g.index) for g in selection.groups):
            return "the bounds of a slice are known only at run time"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        spans = sum(isinstance(g.index, Span) for g in selection.groups)
        return Cost(2 * spans * context.data_bytes(selection), 0)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        return peel(selection, builder, Replace().emit)


class SpanMask(Lowering):
    """A slice whose bounds are known only at run time, filled with what does not vary along it: compare and Where."""

    name = "span_where"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if any(g.varies for g in selection.groups):
            return "the index is not made of whole axes and slices alone"
        spans = [g for g in selection.groups if isinstance(g.index, Span)]
        if not spans or all(_constant(g.index) for g in spans if isinstance(g.index, Span)):
            return "no slice has bounds that are known only at run time"
        if any(selection.values_vary_along(g) for g in spans):
            return "the values vary along the slice"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(context.data_bytes(selection), 0)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rank = len(selection.groups)
        inside: Value | None = None
        for axis, group in enumerate(selection.groups):
            if not isinstance(group.index, Span):
                continue
            hit = span_hits(selection, group, builder)
            hit = builder.insert_axes(hit, [i for i in range(rank) if i != axis])
            inside = hit if inside is None else builder.binary("And", inside, hit)
        assert inside is not None
        dims = [None if isinstance(g.index, Span) or not g.grid else g.grid[0] for g in selection.groups]
        values = aligned(selection, builder, dims)
        return builder.where(inside, combine(selection.reduction, selection.data, values, builder), selection.data)


class SpanRuntime(SpanSlices):
    """A slice whose bounds are known only at run time: Slice by computed bounds, and Concat."""

    name = "span_runtime"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if any(g.varies for g in selection.groups):
            return "the index is not made of whole axes and slices alone"
        return None if any(isinstance(g.index, Span) for g in selection.groups) else "the index has no slice"

    def cost(self, selection: Selection, context: Context) -> Cost:
        return Cost(4 * context.data_bytes(selection), 0)


def peel(selection: Selection, builder: Builder, inner) -> Value:
    """Reduce a write to one without slices: ``inner`` writes into the part that the slices cut out."""
    group = next((g for g in selection.groups if isinstance(g.index, Span)), None)
    if group is None:
        return inner(selection, builder)
    assert isinstance(group.index, Span)
    (axis,) = group.axes
    data, span = selection.data, group.index
    part = builder.slice(data, axis, span.start, span.stop, length=group.length)
    whole = replace(group, index=Full())
    cut = replace(selection, data=part, groups=tuple(whole if g is group else g for g in selection.groups))
    written = peel(cut, builder, inner)
    pieces = [written]
    if not _starts_at_zero(span.start, builder.dims(data)[axis].constant):
        pieces = [*_part(data, axis, 0, _bound(span.start, builder), builder), written]
    stop = _end_of(span, builder.dims(data)[axis].constant)
    if stop is not None and _in_order(span):
        pieces += _part(data, axis, stop, None, builder)
    elif stop is not None:
        # The slice may be empty, and its stop before its start: what is left starts where the part ends.
        rest = builder.slice(data, axis, _bound(span.start, builder), None)
        pieces.append(builder.slice(rest, axis, builder.size(part, axis), None))
    if len(pieces) == 1:
        return written
    result = builder.concat(pieces, axis)
    builder.facts.set_shape(result, builder.dims(data))
    return result


def _part(data: Value, axis: int, start: Bound, stop: Bound, builder: Builder) -> list[Value]:
    """``data[start:stop]`` along an axis as pieces to concatenate.

    Where ``data`` was put together by an earlier write and nothing else reads it, its own pieces are used: a chain of
    writes then ends in one Concat, and the ones before it go.
    """
    maker = data.inputs[0] if data.inputs else None
    chained = maker is not None and maker.is_op("Concat") and builder.is_own(maker) and maker.attrs["axis"] == axis
    readers = [r for r in data.outputs if r is not builder.anchor and r not in builder.nodes and not r.is_op("Shape")]
    if chained and not readers and data not in builder.scope.model.outputs:
        pieces = concat_part(data, axis, start, stop, builder.facts)
        if pieces is not None:
            return [builder.slice(piece, axis, first, last) for piece, first, last in pieces]
    return [builder.slice(data, axis, start, stop)]


def concat_part(
    data: Value, axis: int, start: Bound, stop: Bound, facts: Facts
) -> list[tuple[Value, int, int | None]] | None:
    """The inputs of the Concat that made ``data`` that ``data[start:stop]`` takes, each with its own start and stop.

    None when the bounds or the sizes are not known, or count from the end.
    """
    inputs = list(data.inputs[0].inputs)
    sizes = []
    for value in inputs:
        shape = facts.shape(value)
        sizes.append(shape[axis].constant if shape is not None else None)
    if not isinstance(start, int) or not isinstance(stop, int | None) or min(start, stop or 0) < 0:
        return None
    if any(s is None for s in sizes[:-1]):
        return None
    parts: list[tuple[Value, int, int | None]] = []
    position = 0
    for value, size in zip(inputs, sizes, strict=True):
        first = max(start - position, 0)
        last = None if stop is None else stop - position
        if last is not None and last <= 0:
            break
        if size is None or first < size:
            parts.append((value, first, None if size is not None and (last is None or last >= size) else last))
        position += size or 0
    return parts or None


def span_hits(selection: Selection, group: Group, builder: Builder) -> Value:
    """Which positions of an axis a slice selects, as bool of shape [positions]."""
    assert isinstance(group.index, Span)
    (axis,) = group.axes
    positions = builder.iota(selection.data, [axis])
    size = builder.size(selection.data, axis)
    length = builder.constant([size]) if isinstance(size, int) else size
    inside: Value | None = None
    for bound, is_stop in ((group.index.start, False), (group.index.stop, True)):
        if bound is None or (bound == 0 and not is_stop):
            continue
        edge = builder.constant([bound]) if isinstance(bound, int) else builder.as_vector(bound)
        if not builder.facts.nonnegative(edge):
            negative = builder.binary("Less", edge, builder.constant(0), BOOL)
            edge = builder.where(negative, builder.binary("Add", edge, length), edge)
        # position >= start is Greater(position + 1, start); position < stop is Greater(stop, position).
        if is_stop:
            test = builder.binary("Greater", edge, positions, BOOL)
        else:
            test = builder.binary("Greater", builder.binary("Add", positions, builder.constant(1)), edge, BOOL)
        inside = test if inside is None else builder.binary("And", inside, test)
    if inside is None:
        inside = builder.binary(
            "Greater", builder.binary("Add", positions, builder.constant(1)), builder.constant(0), BOOL
        )
    return inside


def _constant(span: Span) -> bool:
    return isinstance(span.start, int | None) and isinstance(span.stop, int | None)


def _starts_at_zero(start: Bound, size: int | None) -> bool:
    return start in (0, None) or (isinstance(start, int) and size is not None and start <= -size)


def _bound(bound: Bound, builder: Builder) -> Bound:
    return bound if isinstance(bound, int | None) else builder.cast(bound, INT64)


def _in_order(span: Span) -> bool:
    """Whether the stop of a slice cannot be before its start, whatever the size of the axis."""
    start, stop = span.start or 0, span.stop
    if not isinstance(start, int) or not isinstance(stop, int):
        return False
    return (start < 0) == (stop < 0) and start <= stop


def _end_of(span: Span, size: int | None) -> Bound:
    """Where a slice stops; None when it goes to the end."""
    if span.stop is None or (isinstance(span.stop, int) and size is not None and span.stop >= size):
        return None
    return span.stop
