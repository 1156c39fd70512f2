"""The write as a standard scatter: what is left when every portable form costs too much."""

from __future__ import annotations

from onnx import TensorProto

from graphfix.builder import BOOL, INT64, Builder
from graphfix.graph import Value
from graphfix.index_write import Full, Mask, Reduction
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.layout import rows_of, values_by_group
from graphfix.lowering.positions import flatten, linear_index
from graphfix.selection import PointSet, Selection
from graphfix.symbolic import ONE

REDUCED_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)


class Scatter(Lowering):
    """``ScatterND`` over the flattened axes of one set of points; its ``reduction`` from opset 16 on."""

    name = "scatter_nd"

    def supports(self, selection: Selection, context: Context) -> str | None:
        if any(not isinstance(g.index, Full | PointSet | Mask) for g in selection.groups):
            return "the index has slices"
        if len(selection.varying) != 1:
            return "the index is not one set of points"
        if selection.reduction is not Reduction.NONE and selection.data.dtype not in REDUCED_TYPES:
            return "ONNX Runtime has no ScatterND with a reduction for the element type"
        return None

    def cost(self, selection: Selection, context: Context) -> Cost:
        both = context.data_bytes(selection) + context.values_bytes(selection)
        return Cost(2 * both, both)

    def emit(self, selection: Selection, builder: Builder) -> Value:
        builder.require(11, "ScatterND")
        attrs = scatter_reduction(selection.reduction, "ScatterND", builder)
        rows, values = rows_of(selection, builder), values_by_group(selection, builder)
        (group,) = selection.varying
        axis, rank = rows.axis(group), len(rows.groups)
        order = [axis, *(i for i in range(rank) if i != axis)]
        data = builder.transpose(rows.data, order)
        if isinstance(group.index, Mask):
            mask = builder.merge_axes(builder.cast(group.index.tensor, BOOL), 0, len(group.axes))
            found = builder.emit("NonZero", [mask], None, INT64, (ONE, group.length))
            index = builder.transpose(found, [1, 0])
        else:
            linear = linear_index(selection, group.axes, group, builder)
            index = builder.insert_axes(flatten(selection, group, linear, builder), [1])
        if not builder.rank(values):
            values = builder.reshape(values, [1] * rank, [ONE] * rank)
        values = builder.transpose(values, order)
        if isinstance(group.index, Mask) and builder.dims(values)[0] != ONE:
            # Those of masked_scatter may be more than the mask takes, and one may turn out to stand for all.
            values = builder.slice(values, 0, 0, builder.size(index, 0))
        shape = [builder.dims(index)[0], *builder.dims(data)[1:]]
        sizes = [builder.size(index, 0), *(builder.size(data, i) for i in range(1, rank))]
        values = builder.expand(values, sizes, shape)
        result = builder.emit("ScatterND", [data, index, values], attrs, data.dtype, builder.dims(data))
        inverse = [order.index(i) for i in range(rank)]
        return rows.restore(builder.transpose(result, inverse), builder)


def scatter_reduction(reduction: Reduction, op: str, builder: Builder) -> dict[str, str]:
    """The ``reduction`` attribute of a scatter; none for NONE, as engines refuse even ``reduction="none"``."""
    if reduction is Reduction.NONE:
        return {}
    builder.require(scatter_opset(reduction), f"{op} with reduction {reduction.value}")
    return {"reduction": reduction.value}


def scatter_opset(reduction: Reduction) -> int:
    """The first opset whose scatters have a reduction."""
    if reduction is Reduction.NONE:
        return 11
    return 16 if reduction in (Reduction.ADD, Reduction.MUL) else 18
