"""Writes at a counter: ``x[:, i : min(i + 1, n)] = v``, as exporters of loops write ``x[:, i] = v``.

The positions ``Range(i, min(i + 1, n))`` are i itself, or none where i is beyond the axis. A single index that is
compared with every position does the same: beyond the axis it meets none. That needs no last-wins bookkeeping.
"""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto

from graphfix.builder import INT64, Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_write import Full, IndexWrite, Points
from graphfix.selection import range_bounds
from graphfix.symbolic import ONE, Expr

_LAYOUT = ("Identity", "Reshape", "Squeeze", "Unsqueeze")
_MOST_EXACT = 1 << 24  # up to here these types count without a gap
_COUNTING = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)


def at_counter(write: IndexWrite, facts: Facts, builder: Builder) -> IndexWrite:
    """The same write with the counter for an index, when its only index besides whole axes is such a range."""
    (*before, last) = write.index
    if not isinstance(last, Points) or not all(isinstance(i, Full) for i in before):
        return write
    bounds, axis, shape = range_bounds(last.tensor, facts), len(before), facts.shape(write.data)
    if bounds is None or shape is None or not _is_next(*bounds, shape[axis], facts):
        return write
    if not _alike_along(write.values, len(shape) - axis, facts):
        return write
    return replace(write, index=(*before, Points(builder.reshape(builder.cast(bounds[0], INT64), [1], [ONE]))))


def _is_next(start: Value, stop: Value, extent: Expr, facts: Facts) -> bool:
    """Whether ``stop`` is ``start + 1`` or, where that is beyond the axis, the axis's size.

    Exporters count in floats at times. What is beyond float32's integers is beyond the axis as well, as ``start`` is
    then, and the range is empty.
    """
    base, (node, cut) = _counted(start), (_maker(_counted(stop)), False)
    if node is not None and node.is_op("Min") and len(node.inputs) == 2:
        sizes = [i for i in node.inputs if facts.ints(i) == (extent,)]
        rest = [i for i in node.inputs if i not in sizes]
        if len(rest) != 1:
            return False
        node, cut = _maker(_counted(rest[0])), True
    if node is None or not node.is_op("Add"):
        return False
    one = [i for i in node.inputs if facts.scalar(i) == 1]
    others = [i for i in node.inputs if i not in one]
    if len(others) != 1 or _counted(others[0]) is not base:
        return False
    exact = node.outputs[0].dtype == INT64 and _integers_only(stop) and _integers_only(others[0])
    return exact or (cut and extent.constant is not None and extent.constant < _MOST_EXACT)


def _counted(tensor: Value) -> Value:
    """A number before it was cast to a type that counts as far, or given another shape."""
    node = _maker(tensor)
    while node is not None and (node.is_op(*_LAYOUT) or (node.is_op("Cast") and node.attrs.get("to") in _COUNTING)):
        tensor = node.inputs[0]
        node = _maker(tensor)
    return tensor


def _integers_only(tensor: Value) -> bool:
    """Whether a number is not cast on the way back to what it was made from."""
    while tensor.inputs and tensor.inputs[0].is_op(*_LAYOUT):
        tensor = tensor.inputs[0].inputs[0]
    return not (tensor.inputs and tensor.inputs[0].is_op("Cast"))


def _maker(tensor: Value) -> Node | None:
    return tensor.inputs[0] if tensor.inputs else None


def _alike_along(values: Value, from_end: int, facts: Facts) -> bool:
    """Whether values are only repeated along an axis, so that they can be had where the range is empty."""
    while True:
        shape = facts.shape(values)
        if facts.uniform(values) is not None or (shape is not None and len(shape) < from_end):
            return True
        if shape is None or shape[-from_end] == ONE:
            return shape is not None
        node = _maker(values)
        if node is None or not node.is_op("Expand", "Identity"):
            return False
        values = node.inputs[0]
