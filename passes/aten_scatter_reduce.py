"""ATen scatter_reduce."""

from __future__ import annotations

from onnx import TensorProto

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, scalar_argument
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.lowering.along import lower_along
from graphfix.pass_base import Refusal, Rewrite, Site
from graphfix.passes.aten_scatter import read_along

REDUCTIONS = {
    "sum": Reduction.ADD,
    "mean": Reduction.ADD,
    "prod": Reduction.MUL,
    "amin": Reduction.MIN,
    "amax": Reduction.MAX,
}


class AtenScatterReduce(AtenPass):
    """Replace ATen scatter_reduce nodes (sum, mean, prod, amin, amax) by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, dim, index, src, reduce="amax", include_self) operator="scatter_reduce"``
    After: a Reduce over what matches each position, combined with x unless include_self is False; for the mean a sum
        of ones as well, by which the other sum is divided.
    """

    code = "GF109"
    name = "aten-scatter-reduce"
    aten_operator = "scatter_reduce"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        arguments = read_along(call, node, site)
        reduce = scalar_argument(call, "reduce", site.facts)
        include_self = bool(scalar_argument(call, "include_self", site.facts, True))
        if reduce not in REDUCTIONS:
            return Refusal(f"scatter_reduce has no reduction {reduce!r}")
        if isinstance(arguments, Refusal):
            return arguments
        mean = reduce == "mean"
        if mean and arguments[0].dtype not in (*_FLOATS, *_INTEGERS):
            return Refusal("a mean of this element type has no exact form here")
        return (*arguments, REDUCTIONS[reduce], include_self, mean)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, reduction, include_self, mean = match
        write = IndexWrite(data, (Along(axis, index),), source, reduction, output)
        reduced = lower_along(write, builder, site.context, include_self)
        if isinstance(reduced, str):
            return Refusal(reduced)
        if not mean:
            return Rewrite(*reduced)
        total, lowering, kept = reduced
        sizes = [builder.size(data, axis) for axis in range(builder.rank(data))]
        start = builder.filled(int(include_self), data.dtype, sizes, builder.dims(data))
        ones = IndexWrite(start, write.index, builder.constant(1, data.dtype), reduction, output)
        counted = lower_along(ones, builder, site.context)
        if isinstance(counted, str):
            return Refusal(counted)
        count = counted[0] if include_self else _at_least_one(counted[0], builder)
        return Rewrite(_divided(total, count, builder), lowering, kept or counted[2])


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)  # those that ONNX Runtime divides


def _at_least_one(count: Value, builder: Builder) -> Value:
    none = builder.equal(count, builder.constant(0, count.dtype))
    return builder.where(none, builder.constant(1, count.dtype), count)


def _divided(total: Value, count: Value, builder: Builder) -> Value:
    """The quotient, rounded down for integers as PyTorch does; ONNX rounds towards zero."""
    if total.dtype in _FLOATS:
        return builder.binary("Div", total, count)
    builder.require(9, "Less on integers")
    quotient = builder.binary("Div", total, count)
    rest = builder.binary("Sub", total, builder.binary("Mul", quotient, count))
    below = builder.cast(builder.binary("Less", rest, builder.constant(0, rest.dtype), TensorProto.BOOL), total.dtype)
    return builder.binary("Sub", quotient, below)
