"""Indices into several axes that are too large to compare all positions with all indices."""

from __future__ import annotations

from onnx import TensorProto

from graphfix.builder import INT32, INT64, Builder
from graphfix.graph import Value
from graphfix.index_write import Full, Reduction
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.gather_form import gather_from_both
from graphfix.lowering.layout import rows_of, values_by_group
from graphfix.lowering.positions import count_from_one, flatten, linear_index
from graphfix.selection import Group, PointSet, Selection
from graphfix.symbolic import Expr

FLOAT = TensorProto.FLOAT


class PointsMatmul(Lowering):
    """Of equal index tuples only the last is kept (K x K comparisons); one MatMul of one-hot rows of the first axis
    with numbered one-hot rows of the others is then the source map. Each entry has one term: exact below 2**24.
    """

    name = "points_matmul"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if any(not isinstance(g.index, Full | PointSet) for g in selection.groups):
            return "the index has slices or masks"
        if len(selection.varying) != 1:
            return "the index is not one set of points"
        (group,) = selection.varying
        if not isinstance(group.index, PointSet) or len(group.axes) < 2 or group.index.batch:
            return "the indices are not into several axes at once"
        if selection.reduction is not Reduction.NONE:
            return "several indices may meet under a reduction"
        if not selection.values_vary_along(group):
            return "the values do not vary along the index"
        count = group.length.constant
        return "more indices than float32 numbers exactly" if count is not None and count >= 1 << 24 else None

    def cost(self, selection: Selection, context: Context) -> Cost:
        (group,) = selection.varying
        shape = context.facts.shape(selection.data)
        assert shape is not None
        first = context.bytes_of([shape[group.axes[0]], group.length], FLOAT)
        rest = context.bytes_of([*(shape[a] for a in group.axes[1:]), group.length], FLOAT)
        pairs = context.bytes_of([group.length, group.length], FLOAT)
        source = context.bytes_of([shape[a] for a in group.axes], FLOAT)
        both = context.data_bytes(selection) + context.values_bytes(selection)
        parts = [first, rest, pairs, source]
        products = context.elements_of([*(shape[a] for a in group.axes), group.length])
        return Cost(2 * both + 8 * sum(parts), max(both, *parts), products)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        rows, values = rows_of(selection, builder), values_by_group(selection, builder)
        (group,) = selection.varying
        writers = matmul_source_map(selection, group, builder)
        return rows.restore(gather_from_both(selection, rows, group, values, builder, writers), builder)


def matmul_source_map(selection: Selection, group: Group, builder: Builder) -> Value:
    """The source map of a group with several axes, as int64 of shape [positions]."""
    first_axes, rest_axes = group.axes[:1], group.axes[1:]
    total = linear_index(selection, group.axes, group, builder)
    parts = []
    for axes in (first_axes, rest_axes):
        part = linear_index(selection, axes, group, builder)
        shape = builder.dims(total)
        part = builder.expand(part, [builder.size(total, i) for i in range(len(shape))], shape)
        parts.append(flatten(selection, group, part, builder))
    linear = flatten(selection, group, total, builder)
    first = _one_hot(selection, first_axes, builder.insert_axes(parts[0], [0]), 1, builder)  # [D1, K]
    rest = _one_hot(selection, rest_axes, builder.insert_axes(parts[1], [1]), 0, builder)  # [K, D2]
    numbers = builder.binary("Mul", count_from_one(builder, linear, 0), _is_last(linear, builder))
    numbered = builder.binary("Mul", rest, builder.insert_axes(builder.cast(numbers, FLOAT), [1]))
    table_shape = (builder.dims(first)[0], builder.dims(rest)[1])
    table = builder.emit("MatMul", [first, numbered], None, FLOAT, table_shape)
    return builder.cast(builder.merge_axes(table, 0, 2), INT64)


def _one_hot(selection: Selection, axes: tuple[int, ...], index: Value, at: int, builder: Builder) -> Value:
    positions = builder.insert_axes(builder.iota(selection.data, axes), [at])
    return builder.cast(builder.equal(positions, index), FLOAT)


def _is_last(linear: Value, builder: Builder) -> Value:
    """1 for each index that no later one equals, else 0, as int32."""
    count: Expr = builder.dims(linear)[0]
    same = builder.cast(builder.equal(builder.insert_axes(linear, [1]), builder.insert_axes(linear, [0])), INT32)
    numbers = count_from_one(builder, linear, 0)
    last = builder.reduce("ReduceMax", builder.binary("Mul", same, builder.insert_axes(numbers, [0])), [1])
    builder.facts.set_shape(last, (count,))
    return builder.cast(builder.equal(last, numbers), INT32)
