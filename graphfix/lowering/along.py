"""Writes with one index per element along one axis (ScatterElements, scatter, scatter_add, scatter_reduce)."""

from __future__ import annotations

import math

import numpy as np

from graphfix.builder import BOOL, INT32, INT64, WHERE_TYPES, Builder, OpsetTooLow
from graphfix.graph import Value
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.lowering.accumulate import REDUCED_AS, identity_of, multiplies_integers, reduce_matching
from graphfix.lowering.base import BUDGET_FACTOR, BUDGET_FLOOR, Context
from graphfix.lowering.choose import size_text
from graphfix.lowering.combine import combine
from graphfix.lowering.keep import scatter_reduction
from graphfix.lowering.layout import dtype_of
from graphfix.lowering.positions import last_along, wrapped
from graphfix.symbolic import ONE, product

MOST_UNROLLED = 16
MOST_MAPPED = 1 << 20  # elements of data for which a constant map is written into the model


def lower_along(
    write: IndexWrite, builder: Builder, context: Context, include_self: bool = True
) -> tuple[Value, str, str | None] | str:
    """Emit a write whose index is an Along. Returns the written tensor, the lowering's name, and why it is kept as a
    scatter if it is; or why there is no form of it at all.

    With ``include_self=False`` (PyTorch's scatter_reduce) what is written over does not take part in the reduction.
    """
    (along,) = write.index
    assert isinstance(along, Along)
    facts = context.facts
    data_shape, index_shape, value_shape = (facts.shape(t) for t in (write.data, along.tensor, write.values))
    if data_shape is None or index_shape is None or value_shape is None:
        return "the rank of the data, the index or the values is unknown"
    if len(index_shape) != len(data_shape) or len(value_shape) not in (0, len(data_shape)):
        return f"the index has rank {len(index_shape)}, the data {len(data_shape)}"
    if write.data.dtype not in WHERE_TYPES:
        return "the element type has no Where"
    if not data_shape:
        return "the data is a scalar"
    largest = _largest(write, along, context)
    limit = context.budget
    if limit is None:
        limit = max(BUDGET_FLOOR, BUDGET_FACTOR * context.bytes_of([product(data_shape) + product(index_shape)], INT32))
    if multiplies_integers(write.reduction, write.data.dtype) and index_shape[along.axis] != ONE:
        why = "ONNX Runtime multiplies integers up in floating point"
        return _kept(write, along, builder, include_self), "scatter_elements", why
    if largest > limit:
        needed, allowed = size_text(largest), size_text(limit)
        why = f"comparing every position with every index takes {needed}, the budget is {allowed}"
        return _kept(write, along, builder, include_self), "scatter_elements", why
    return (*_cut_to_index(write, along, builder, include_self), None)


def _largest(write: IndexWrite, along: Along, context: Context) -> int:
    """The largest new intermediate of `_write`, in bytes."""
    data_shape, index_shape = context.facts.shape(write.data), context.facts.shape(along.tensor)
    assert data_shape is not None and index_shape is not None
    size = product(data_shape).constant
    mapped = size is not None and size <= MOST_MAPPED and context.facts.const(along.tensor) is not None
    if index_shape[along.axis] == ONE or (mapped and write.reduction is Reduction.NONE):
        return context.bytes_of(data_shape, INT64)
    return context.bytes_of([*index_shape, data_shape[along.axis]], INT32)


def _kept(write: IndexWrite, along: Along, builder: Builder, include_self: bool) -> Value:
    """The write as ScatterElements, in a type that engines reduce in."""
    builder.require(11, "ScatterElements")
    attrs = {"axis": along.axis, **scatter_reduction(write.reduction, "ScatterElements", builder)}
    data, index, dtype = write.data, along.tensor, dtype_of(write.data)
    values = _cut_values(builder.cast(write.values, dtype), index, builder)
    wide = REDUCED_AS.get(dtype, dtype) if write.reduction is not Reduction.NONE else dtype
    data, values = builder.cast(data, wide), builder.cast(values, wide)
    shape = builder.dims(index)
    sizes = [builder.size(index, i) for i in range(len(shape))]

    def scatter(into: Value, updates: Value, attributes: dict[str, object]) -> Value:
        updates = builder.expand(updates, sizes, shape)
        return builder.emit("ScatterElements", [into, index, updates], attributes, wide, builder.dims(into))

    if not include_self and write.reduction is not Reduction.NONE:
        data = scatter(data, builder.constant(identity_of(write.reduction, wide), wide), {"axis": along.axis})
    return builder.cast(scatter(data, values, attrs), dtype)


def _cut_values(values: Value, index: Value, builder: Builder) -> Value:
    """The part of the values that the index is as large as; a single value stays one."""
    shape = builder.dims(index)
    for axis in range(builder.rank(values)):
        if builder.dims(values)[axis] != shape[axis]:
            values = builder.slice(values, axis, 0, builder.size(index, axis), length=shape[axis])
    return values


def _cut_to_index(write: IndexWrite, along: Along, builder: Builder, include_self: bool) -> tuple[Value, str]:
    """Write only into the part of the data that the index is as large as, and put the rest beside it again."""
    data, index = write.data, along.tensor
    values = _cut_values(write.values, index, builder)
    rank = builder.rank(data)
    parts: list[tuple[int, Value]] = []
    for axis in range(rank):
        if axis == along.axis or builder.dims(data)[axis] == builder.dims(index)[axis]:
            continue
        bound = builder.size(index, axis)
        parts.append((axis, builder.slice(data, axis, bound, None)))
        data = builder.slice(data, axis, 0, bound, length=builder.dims(index)[axis])
    uniform = _uniform(values, builder)
    values = uniform if uniform is not None else values
    result, name = _write(data, index, values, along.axis, write.reduction, builder, include_self)
    for axis, rest in reversed(parts):
        result = builder.concat([result, rest], axis)
    return result, name


def _uniform(values: Value, builder: Builder) -> Value | None:
    """The one value that all elements have, as a 0-d tensor."""
    fill = builder.facts.uniform(values)
    if fill is not None:
        return builder.constant(fill, dtype_of(values))
    shape = builder.facts.shape(values)
    if shape is not None and all(d == ONE for d in shape):
        return builder.reshape(values, [], [])
    return None


def _write(
    data: Value,
    index: Value,
    values: Value,
    axis: int,
    reduction: Reduction,
    builder: Builder,
    include_self: bool,
) -> tuple[Value, str]:
    dtype = dtype_of(data)
    values = builder.cast(values, dtype)
    constant = _constant_map(data, index, values, axis, reduction, builder)
    if constant is not None:
        return constant, "points_constant"
    rank = builder.rank(data)
    index = wrapped(builder, index, builder.size(data, axis))
    positions = builder.insert_axes(builder.iota(data, [axis]), [i for i in range(rank) if i != axis])
    if builder.dims(index)[axis] == ONE:
        hit = builder.equal(positions, index)
        new = combine(reduction, data, values, builder) if include_self else values
        return builder.where(hit, new, data), "points_along"
    if builder.opset < 11 and reduction is Reduction.NONE and builder.rank(values):
        return _one_by_one(data, index, values, positions, axis, builder), "points_along"
    positions = builder.insert_axes(positions, [axis + 1])
    match = builder.equal(positions, builder.insert_axes(index, [axis]))
    if reduction is Reduction.NONE:
        last = last_along(builder, builder.cast(match, INT32), axis + 1)
        hit = builder.binary("Greater", last, builder.constant(0, INT32), BOOL)
        if builder.rank(values):
            values = _pick(values, builder.cast(last, INT64), axis, builder)
        return builder.where(hit, values, data), "points_along"
    found = builder.reduce("ReduceMax", builder.cast(match, INT32), [axis + 1])
    hit = builder.binary("Greater", found, builder.constant(0, INT32), BOOL)
    spread = builder.insert_axes(values, [axis]) if builder.rank(values) else values
    total = reduce_matching(reduction, match, spread, axis + 1, builder)
    new = combine(reduction, data, total, builder) if include_self else total
    return builder.where(hit, new, data), "reduce"


def _one_by_one(data: Value, index: Value, values: Value, positions: Value, axis: int, builder: Builder) -> Value:
    """One Where for each index along the axis, for opsets without GatherElements; a later index wins."""
    count = builder.dims(index)[axis].constant
    if count is None or count > MOST_UNROLLED:
        raise OpsetTooLow(11, "GatherElements")
    for k in range(count):
        hit = builder.equal(positions, builder.slice(index, axis, k, k + 1))
        data = builder.where(hit, builder.slice(values, axis, k, k + 1), data)
    return data


def _pick(values: Value, numbers: Value, axis: int, builder: Builder) -> Value:
    """Element ``numbers - 1`` of the values along an axis; zero for number 0."""
    builder.require(11, "GatherElements")
    shape, rank = list(builder.dims(values)), builder.rank(values)
    shape[axis] = ONE
    sizes = [1 if i == axis else builder.size(values, i) for i in range(rank)]
    nothing = builder.expand(builder.constant(0, dtype_of(values)), sizes, shape)
    both = builder.concat([nothing, values], axis)
    return builder.emit("GatherElements", [both, numbers], {"axis": axis}, values.dtype, builder.dims(numbers))


def _constant_map(
    data: Value, index: Value, values: Value, axis: int, reduction: Reduction, builder: Builder
) -> Value | None:
    """A constant index into data of known shape: one GatherElements from both."""
    known = builder.facts.const(index)
    shape = [d.constant for d in builder.dims(data)]
    if known is None or reduction is not Reduction.NONE or any(d is None for d in shape) or not builder.rank(values):
        return None
    size = shape[axis]
    assert size is not None
    if builder.opset < 11 or (known.size and not -size <= known.min() <= known.max() < size):
        return None
    if math.prod(d or 0 for d in shape) > MOST_MAPPED:
        return None
    rows = np.moveaxis(known, axis, -1)
    outer, count = rows.shape[:-1], rows.shape[-1]
    lines = math.prod(outer)
    source = np.tile(np.arange(size), (lines, 1))
    # Later values have larger numbers: of those that meet, the largest is the last.
    at = (np.arange(lines)[:, None], rows.reshape(lines, count) % size)
    np.maximum.at(source, at, size + np.arange(count))
    source = np.moveaxis(source.reshape(*outer, size), -1, axis)
    both = builder.concat([data, values], axis)
    return builder.emit(
        "GatherElements", [both, builder.constant(source)], {"axis": axis}, data.dtype, builder.dims(data)
    )
