"""Reductions: values that meet at one position are combined, and nothing else is touched (not even -0.0 or NaN)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from graphfix.builder import BOOL, FLOATS, INT32, INT64, WHERE_TYPES, Builder
from graphfix.facts import INTEGERS, Facts
from graphfix.graph import Value
from graphfix.index_write import Full, Reduction
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.combine import combine
from graphfix.lowering.gather_form import hit_map, pick_values
from graphfix.lowering.layout import dtype_of, rows_of, values_by_group
from graphfix.lowering.positions import is_unique, matches
from graphfix.masks import MASKS
from graphfix.selection import Group, Selection
from graphfix.symbolic import ONE

FLOAT = TensorProto.FLOAT

# Types that the Reduce operators (in ONNX Runtime on CPU) do not take, and the type they are reduced in.
REDUCED_AS: dict[int, int] = {
    TensorProto.FLOAT16: FLOAT,
    TensorProto.BFLOAT16: FLOAT,
    TensorProto.INT8: INT32,
    TensorProto.UINT8: INT32,
    TensorProto.INT16: INT32,
    TensorProto.UINT16: INT32,
    TensorProto.UINT32: INT64,
    BOOL: INT32,
}
_SAME_ELEMENTS = ("Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
REDUCE_OPERATORS = {
    Reduction.ADD: "ReduceSum",
    Reduction.MUL: "ReduceProd",
    Reduction.MIN: "ReduceMin",
    Reduction.MAX: "ReduceMax",
}


def identity_of(reduction: Reduction, dtype: int) -> object:
    """The element that changes nothing under a reduction."""
    if reduction is Reduction.ADD:
        return 0
    if reduction is Reduction.MUL:
        return 1
    if dtype in FLOATS:
        return np.inf if reduction is Reduction.MIN else -np.inf
    info = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    return info.max if reduction is Reduction.MIN else info.min


def _basic_reason(selection: Selection) -> str | None:
    if selection.reduction is Reduction.NONE:
        return "nothing is accumulated"
    if any(not isinstance(g.index, Full) and not g.varies for g in selection.groups):
        return "the index has slices"
    if not selection.varying:
        return "the index covers everything"
    return None if selection.data.dtype in WHERE_TYPES else "the element type has no Where"


def _reduced_groups(selection: Selection, context: Context) -> list[Group]:
    """The groups in which indices may meet."""
    return [g for g in selection.varying if not is_unique(selection, g, context.facts)]


def _emit(
    selection: Selection, builder: Builder, reduce: Callable[[Selection, Group, Value, int, Builder], Value]
) -> Value:
    """Bring the values to the positions they belong to, one group after the other, and combine where any is written."""
    rows, values = rows_of(selection, builder), values_by_group(selection, builder)
    for group in selection.varying:
        if is_unique(selection, group, builder.facts):
            if selection.values_vary_along(group) and group.length != ONE:
                values = pick_values(selection, rows, group, values, builder)
            continue
        if not builder.rank(values):
            values = builder.reshape(values, [1] * len(rows.groups), [ONE] * len(rows.groups))
        values = reduce(selection, group, values, rows.axis(group), builder)
    result = combine(selection.reduction, rows.data, values, builder)
    if not _keeps_under_zero(selection, builder.facts):
        result = builder.where(hit_map(selection, rows, selection.varying, builder), result, rows.data)
    return rows.restore(result, builder)


def _keeps_under_zero(selection: Selection, facts: Facts) -> bool:
    """Whether sums may be added everywhere: they are 0 where nothing is written, and adding that leaves the data as
    it is. For floats that holds for all but -0.0, and the data has to be known not to be that.
    """
    summed = not any(is_unique(selection, g, facts) for g in selection.varying)
    if selection.reduction is not Reduction.ADD or selection.data.dtype == BOOL or not summed:
        return False
    if selection.data.dtype not in FLOATS:
        return True
    fill = facts.uniform(selection.data)
    return fill is not None and not (fill == 0 and np.signbit(fill))


class Reduce(Lowering):
    """``Reduce*`` over ``Where(match, values, identity)``: exact for NaN and Inf, as nothing is multiplied."""

    name = "reduce"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if multiplies_integers(selection.reduction, selection.data.dtype) and _reduced_groups(selection, context):
            return "ONNX Runtime multiplies integers up in floating point"
        return _basic_reason(selection)

    def cost(self, selection: Selection, context: Context) -> Cost:
        data = context.data_bytes(selection)
        largest = data
        shape = context.facts.shape(selection.data)
        assert shape is not None
        for group in _reduced_groups(selection, context):
            spread = [*(shape[a] for a in group.axes), *selection.shape]
            largest = max(largest, context.bytes_of(spread, selection.data.dtype))
        return Cost(3 * data + 4 * (largest - data), largest)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        return _emit(selection, builder, _reduce_where)


def _reduce_where(selection: Selection, group: Group, values: Value, axis: int, builder: Builder) -> Value:
    rank = builder.rank(values)
    match = matches(selection, group, builder)
    match = builder.insert_axes(match, [i for i in range(rank + 1) if i not in (axis, axis + 1)])
    return reduce_matching(selection.reduction, match, builder.insert_axes(values, [axis]), axis + 1, builder)


def reduce_matching(reduction: Reduction, match: Value, values: Value, axis: int, builder: Builder) -> Value:
    """The values reduced along an axis (which goes), only those where ``match`` holds; the two broadcast together."""
    dtype = dtype_of(values)
    wide = REDUCED_AS.get(dtype, dtype)
    if dtype == BOOL:
        reduction = Reduction.MAX if reduction in (Reduction.ADD, Reduction.MAX) else Reduction.MIN
    values = builder.cast(values, wide)
    nothing = builder.constant(identity_of(reduction, wide), wide)
    spread = builder.where(match, values, nothing)
    if reduction is Reduction.ADD and wide not in FLOATS:
        return builder.cast(_integer_sum(spread, axis, builder), dtype)
    total = builder.reduce(REDUCE_OPERATORS[reduction], spread, [axis])
    if wide in FLOATS and reduction in (Reduction.MIN, Reduction.MAX):
        # ReduceMin and ReduceMax of ONNX Runtime may lose NaN.
        nan = builder.cast(builder.binary("And", match, builder.is_nan(values)), INT32)
        met = builder.binary("Greater", builder.reduce("ReduceMax", nan, [axis]), builder.constant(0, INT32), BOOL)
        total = builder.where(met, builder.constant(np.nan, wide), total)
    return builder.cast(total, dtype)


def _integer_sum(x: Value, axis: int, builder: Builder) -> Value:
    """The sum along an axis as a product with ones: ONNX Runtime's ReduceSum adds integers up in floating point."""
    rank, dtype = builder.rank(x), dtype_of(x)
    moved = builder.transpose(x, [*(i for i in range(rank) if i != axis), axis])
    count = builder.dims(moved)[-1]
    ones = builder.filled(1, dtype, [builder.size(moved, rank - 1), 1], [count, ONE])
    if rank == 1:
        moved = builder.insert_axes(moved, [0])
    shape = (*builder.dims(moved)[:-1], ONE)
    total = builder.emit("MatMul", [moved, ones], None, dtype, shape)
    return builder.drop_axes(total, [0, 1] if rank == 1 else [rank - 1])


def multiplies_integers(reduction: Reduction, dtype: int | None) -> bool:
    """Whether a reduction is one that ONNX Runtime's Reduce operators do in floating point, and so not exactly."""
    return reduction is Reduction.MUL and dtype not in FLOATS and dtype != BOOL


class OneHotAdd(Lowering):
    """``MatMul(one_hot, values)`` for sums too large to be spread out.

    A matrix product multiplies by zero, and 0 * Inf is NaN: for float values that are not known to be finite the finite
    part is summed alone, and two more products find where +Inf or NaN and where -Inf or NaN come in. (+Inf and -Inf
    make NaN.) Writes with the same indices share the one-hot matrix.
    """

    name = "one_hot_add"

    def supports(self, selection: Selection, context: Context) -> str | None:
        reason = _basic_reason(selection)
        if reason is not None:
            return reason
        if selection.reduction is not Reduction.ADD or selection.data.dtype == BOOL:
            return "only numbers that are added up can be summed by a matrix product"
        if len(_reduced_groups(selection, context)) != 1:
            return "indices may meet in none or several groups"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        (group,) = _reduced_groups(selection, context)
        compared = context.comparison_bytes(selection, group)
        data, values = context.data_bytes(selection), context.values_bytes(selection)
        shape = context.facts.shape(selection.data)
        assert shape is not None
        safe = selection.data.dtype not in FLOATS or _finite(selection, context.facts)
        count, passes = (1, 4) if safe else (3, 14)
        columns = [d for i, d in enumerate(shape) if i not in group.axes] if not selection.uniform else []
        products = count * context.elements_of([*(shape[a] for a in group.axes), group.length, *columns])
        return Cost(2 * compared + passes * (data + values), max(compared, count * data, count * values), products)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        return _emit(selection, builder, _reduce_matmul)


def _reduce_matmul(selection: Selection, group: Group, values: Value, axis: int, builder: Builder) -> Value:
    dtype = dtype_of(values)
    wide = REDUCED_AS.get(dtype, dtype)
    match = builder.cast(matches(selection, group, builder), wide)
    values = builder.cast(values, wide)
    count = builder.dims(match)[1]
    if builder.dims(values)[axis] == ONE:
        sizes = [builder.size(match, 1) if i == axis else builder.size(values, i) for i in range(builder.rank(values))]
        shape = [count if i == axis else d for i, d in enumerate(builder.dims(values))]
        values = builder.expand(values, sizes, shape)
    order = [axis, *(i for i in range(builder.rank(values)) if i != axis)]
    moved = builder.transpose(values, order)
    table = builder.merge_axes(moved, 1, len(order) - 1) if len(order) > 1 else builder.insert_axes(moved, [1])
    total = _exact_product(match, table, wide, _finite(selection, builder.facts), builder)
    sizes = [builder.size(match, 0), *(builder.size(moved, i) for i in range(1, len(order)))]
    total = builder.reshape(total, sizes, [builder.dims(match)[0], *builder.dims(moved)[1:]])
    inverse = [order.index(i) for i in range(len(order))]
    return builder.cast(builder.transpose(total, inverse), dtype)


def _finite(selection: Selection, facts: Facts) -> bool:
    """Whether no value can be NaN or Inf, whatever goes into the model: constants, and casts of integers."""
    tensor, dtype = selection.values, dtype_of(selection.data)
    while True:
        known = facts.uniform(tensor)
        known = known if known is not None else facts.const(tensor)
        if known is not None:
            with np.errstate(over="ignore"):
                return bool(np.isfinite(known.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))).all())
        node = tensor.inputs[0] if tensor.inputs else None
        if node is not None and node.is_op("Cast") and node.inputs[0].dtype in INTEGERS | MASKS:
            return dtype != TensorProto.FLOAT16 and node.outputs[0].dtype != TensorProto.FLOAT16
        if node is None or not node.is_op(*_SAME_ELEMENTS):
            return False
        tensor = node.inputs[0]


def _exact_product(match: Value, table: Value, dtype: int, finite: bool, builder: Builder) -> Value:
    def product(right: Value) -> Value:
        return builder.emit("MatMul", [match, right], None, dtype, (builder.dims(match)[0], builder.dims(right)[1]))

    if dtype not in FLOATS or finite:
        return product(table)
    zero = builder.constant(0, dtype)
    # x - x is 0 for finite x and NaN for all others.
    odd = builder.is_nan(builder.binary("Sub", table, table))
    total = product(builder.where(odd, zero, table))
    not_negative = builder.unary("Not", builder.binary("Greater", zero, table, BOOL))
    not_positive = builder.unary("Not", builder.binary("Greater", table, zero, BOOL))
    for special, side in ((np.inf, not_negative), (-np.inf, not_positive)):
        met = builder.binary("Greater", product(builder.cast(builder.binary("And", odd, side), dtype)), zero, BOOL)
        total = builder.binary("Add", total, builder.where(met, builder.constant(special, dtype), zero))
    return total
