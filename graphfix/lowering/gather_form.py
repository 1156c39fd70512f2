"""The form that most lowerings end in: a Gather from data and values by a source map, or a Where on what is hit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphfix.builder import BOOL, Builder
from graphfix.graph import Value
from graphfix.index_write import Mask
from graphfix.lowering.layout import Rows, dtype_of
from graphfix.lowering.positions import constant_points, hits, last_writers, source_map
from graphfix.selection import Group, Selection
from graphfix.symbolic import ONE


def gather_from_both(
    selection: Selection, rows: Rows, group: Group, values: Value, builder: Builder, writers: Value | None = None
) -> Value:
    """``Gather(Concat(data, values), map)`` along one group's axis: exact for every element type, NaN and Inf too.

    ``values`` has one axis for each group and varies along ``group``. Works for empty indices: nothing is gathered
    from values that are not there. ``writers`` is the group's source map when the caller has a cheaper one.
    """
    axis = rows.axis(group)
    shape = list(builder.dims(rows.data))
    value_shape = list(builder.dims(values))
    target = [*shape[:axis], value_shape[axis], *shape[axis + 1 :]]
    sizes = [builder.size(values if i == axis else rows.data, i) for i in range(len(shape))]
    both = builder.concat([rows.data, builder.expand(values, sizes, target)], axis)
    known = constant_points(selection, group, builder.facts)
    if known is not None:
        last = last_writers(*known)
        chosen = np.where(last > 0, len(last) - 1 + last, np.arange(len(last)))
        return builder.gather(both, builder.constant(chosen), axis)
    writers = source_map(selection, group, builder) if writers is None else writers
    writers = _within(writers, values, axis, group, builder)
    count = builder.size(rows.data, axis)
    positions = builder.iota(rows.data, [axis])
    before = (
        builder.constant(count - 1) if isinstance(count, int) else builder.binary("Sub", count, builder.constant(1))
    )
    written = builder.binary("Greater", writers, builder.constant(0), BOOL)
    source = builder.where(written, builder.binary("Add", writers, before), positions)
    return builder.gather(both, source, axis)


def pick_values(selection: Selection, rows: Rows, group: Group, values: Value, builder: Builder) -> Value:
    """Values brought to the positions they are written to along one group; zero where nothing is written."""
    axis = rows.axis(group)
    shape = list(builder.dims(values))
    shape[axis] = ONE
    sizes = [1 if i == axis else builder.size(values, i) for i in range(len(shape))]
    nothing = builder.expand(builder.constant(0, dtype_of(values)), sizes, shape)
    writers = _within(source_map(selection, group, builder), values, axis, group, builder)
    return builder.gather(builder.concat([nothing, values], axis), writers, axis)


def _within(writers: Value, values: Value, axis: int, group: Group, builder: Builder) -> Value:
    """A source map whose numbers stay within the values: where these turn out to be one, all positions take it.

    Only the values of a mask can turn out so: those of points are repeated to the size of the index. Values of a known
    size are left alone: a mask that holds more often is an error, and stays one.
    """
    size = builder.dims(values)[axis]
    if not isinstance(group.index, Mask) or (size.constant is not None and size != ONE):
        return writers
    count = builder.size(values, axis)
    limit = builder.constant(count) if isinstance(count, int) else count
    beyond = builder.binary("Greater", writers, limit, BOOL)
    return builder.where(beyond, builder.where(builder.equal(limit, builder.constant(1)), limit, writers), writers)


def hit_map(selection: Selection, rows: Rows, groups: Sequence[Group], builder: Builder) -> Value:
    """Which rows all of some groups write, as bool with one axis for each group of the rows."""
    rank = len(rows.groups)
    result: Value | None = None
    for group in groups:
        hit = hits(selection, group, builder)
        hit = builder.insert_axes(hit, [i for i in range(rank) if i != rows.axis(group)])
        result = hit if result is None else builder.binary("And", result, hit)
    assert result is not None
    return result
