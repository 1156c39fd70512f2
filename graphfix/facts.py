"""What is known about tensors before the model runs: shapes, constants, shape vectors, and index values.

Everything here is read from the graph and computed once. Nothing is guessed: a fact that cannot be proved is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from graphfix import aten
from graphfix.graph import Constant, Model, Node, Value
from graphfix.masks import MASKS, count_of
from graphfix.shapes import LIKE_SELF, MASKED
from graphfix.symbolic import ONE, Expr, broadcast_dim, product

INTEGERS = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
_MOST_ELEMENTS = 1 << 20  # larger constants are not computed
_MOST_FLOATS = 1 << 14
_MOST_INTS = 256  # longer integer vectors are no shape vectors
INT64_MAX = np.iinfo(np.int64).max

# Operators that are evaluated when all their inputs are constants: those of index and shape computations.
_FOLDED = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Concat",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "Or",
        "Range",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)
_ELEMENTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Clip",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sqrt",
        "Sub",
        "Tanh",
        "Where",
        "Xor",
    ]
)

Bound = int | Value | None


@dataclass(frozen=True)
class Ramp:
    """A tensor that holds ``arange(extent)[start:stop:step]`` along one axis and has size 1 along all others.

    ``start`` and ``stop`` follow Python's slice rules (negative counts from the end, both are clamped); each is an int,
    a tensor of one element, or None. ``step`` is positive.
    """

    extent: Expr
    start: Bound
    stop: Bound
    step: int
    axis: int

    @property
    def whole(self) -> bool:
        return self.start in (0, None) and self.stop is None and self.step == 1


class Facts:
    """Facts about the tensors of one model view; they hold as long as the view is not changed upstream of a tensor."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._shapes: dict[Value, tuple[Expr, ...] | None] = {}
        self._constants: dict[Value, np.ndarray | None] = {}
        self._ints: dict[Value, tuple[Expr, ...] | None] = {}
        self._warmed: set[Value] = set()
        self._warming = False

    # ---- shapes -------------------------------------------------------------------------------------------------

    def rank(self, tensor: Value) -> int | None:
        shape = self.shape(tensor)
        return None if shape is None else len(shape)

    def shape(self, tensor: Value) -> tuple[Expr, ...] | None:
        """The tensor's shape; sizes that are not known are unknowns of their own. None when the rank is unknown."""
        if tensor not in self._shapes:
            self._warm(tensor)
        if tensor not in self._shapes:
            self._shapes[tensor] = None  # a cycle ends here
            self._shapes[tensor] = self._find_shape(tensor)
        return self._shapes[tensor]

    def _warm(self, tensor: Value) -> None:
        """Find the facts of all that a tensor is made from first, producers before consumers.

        Facts are recursive, and graphs are deeper than Python's stack.
        """
        if self._warming or tensor in self._warmed:
            return
        order: list[Value] = []
        stack: list[tuple[Value, bool]] = [(tensor, False)]
        while stack:
            current, expanded = stack.pop()
            if expanded:
                order.append(current)
            elif current not in self._warmed:
                self._warmed.add(current)
                stack.append((current, True))
                for node in current.inputs:
                    stack += [(i, False) for i in node.inputs if i.name]
        self._warming = True
        try:
            for current in order:
                self.shape(current)
                self.const(current)
        finally:
            self._warming = False

    def opset_of(self, node: Node) -> int:
        """The opset of the scope that a node is in."""
        return self._model.scope_of(node).opset

    def set_shape(self, tensor: Value, shape: tuple[Expr, ...]) -> None:
        """State the shape of a tensor that was just made."""
        self._shapes[tensor] = shape

    def _find_shape(self, tensor: Value) -> tuple[Expr, ...] | None:
        declared = tensor.shape
        unknown = declared is None or any(_is_unknown(d) for d in declared)
        known = self.const(tensor) if unknown else None
        if known is not None:
            return tuple(Expr.of(d) for d in known.shape)
        derived = self._derive_shape(tensor) if unknown and tensor.inputs else None
        if declared is None:
            return derived
        if derived is None or len(derived) != len(declared):
            derived = None
        dims = []
        for axis, dim in enumerate(declared):
            if isinstance(dim, int):
                dims.append(Expr.of(dim))
            elif not _is_unknown(dim):
                dims.append(Expr.dim(str(dim)))
            elif derived is not None:
                dims.append(derived[axis])
            else:
                dims.append(Expr.dim(str(dim or f"{tensor.name}[{axis}]")))
        return tuple(dims)

    def _derive_shape(self, tensor: Value) -> tuple[Expr, ...] | None:
        node: Any = tensor.inputs[0]
        if aten.is_aten(node.op, node.domain):
            operator = aten.operator_name(node.op, node.attrs)
            if operator in LIKE_SELF and node.arg(0) is not None:
                return self.shape(node.inputs[0])
            if operator in MASKED and node.arg(0) is not None and node.arg(1) is not None:
                data, mask = self.shape(node.inputs[0]), self.shape(node.inputs[1])
                return None if data is None or mask is None else self.broadcast([data, mask], tensor.name)
            if operator == "arange":
                ramp = self.ramp(tensor)
                return (self._ramp_length(ramp, tensor),) if ramp else (Expr.dim(f"{tensor.name}[0]"),)
            return None
        if not node.standard or node.has_references or node.outputs[0] is not tensor:
            return None
        if node.op == "Constant":
            value = self.const(tensor)
            return None if value is None else tuple(Expr.of(d) for d in value.shape)
        inputs = [self.shape(i) if i.name else None for i in node.inputs]
        handler = getattr(self, f"_shape_of_{node.op.lower()}", None)
        if handler is not None:
            return handler(node, inputs, tensor)
        if node.op in _ELEMENTWISE:
            operands = inputs if node.op != "Clip" else inputs[:1]
            known = [i for i in operands if i is not None]
            return self.broadcast(known, tensor.name) if operands and len(known) == len(operands) else None
        if node.op in ("ScatterND", "ScatterElements", "Scatter", "Softmax", "Dropout", "CumSum"):
            return inputs[0]
        return None

    @staticmethod
    def broadcast(shapes: list[tuple[Expr, ...]], name: str) -> tuple[Expr, ...]:
        """The shape that shapes broadcast to; a size that cannot be told is an unknown named after ``name``."""
        rank = max(len(s) for s in shapes)
        dims: list[Expr | None] = [ONE] * rank
        for shape in shapes:
            for i, size in enumerate(shape, rank - len(shape)):
                current = dims[i]
                dims[i] = None if current is None else broadcast_dim(current, size)
        return tuple(d if d is not None else Expr.dim(f"{name}[{i}]") for i, d in enumerate(dims))

    def _shape_of_expand(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        target = self.ints(node.inputs[1])
        return None if target is None or inputs[0] is None else self.broadcast([inputs[0], target], tensor.name)

    def _shape_of_constantofshape(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        return self.ints(node.inputs[0])

    def _shape_of_range(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        ramp = self.ramp(tensor)
        return (self._ramp_length(ramp, tensor),) if ramp else (Expr.dim(f"{tensor.name}[0]"),)

    def _shape_of_tile(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        counts = self.ints(node.inputs[1])
        if inputs[0] is None or counts is None or len(counts) != len(inputs[0]):
            return None
        return tuple(size * count for size, count in zip(inputs[0], counts, strict=True))

    def _shape_of_transpose(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        if inputs[0] is None:
            return None
        perm = node.attrs.get("perm") or range(len(inputs[0]) - 1, -1, -1)
        return tuple(inputs[0][p] for p in perm)

    def _shape_of_reshape(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        target = self.ints(node.inputs[1]) if len(node.inputs) > 1 else None
        if target is None:
            return None
        zero_copies = not node.attrs.get("allowzero", 0)
        dims: list[Expr | None] = []
        for i, size in enumerate(target):
            if size.constant == 0 and zero_copies:
                if inputs[0] is None or i >= len(inputs[0]):
                    return None
                dims.append(inputs[0][i])
            else:
                dims.append(None if size.constant == -1 else size)
        if None in dims:
            i = dims.index(None)
            others = product([d for d in dims if d is not None])
            dims[i] = self._quotient(product(inputs[0]), others) if inputs[0] is not None else None
            if dims[i] is None:
                dims[i] = Expr.dim(f"{tensor.name}[{i}]")
        return tuple(d for d in dims if d is not None)

    @staticmethod
    def _quotient(total: Expr, divisor: Expr) -> Expr | None:
        if divisor == ONE:
            return total
        if len(divisor.terms) != 1 or not total.terms:
            return None
        (monomial, coefficient), quotient = divisor.terms[0], []
        for term, c in total.terms:
            rest = list(term)
            for unknown in monomial:
                if unknown not in rest:
                    return None
                rest.remove(unknown)
            if c % coefficient:
                return None
            quotient.append((tuple(rest), c // coefficient))
        return Expr(tuple(sorted(quotient)))

    def _shape_of_unsqueeze(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        axes = self.axes(node)
        if inputs[0] is None or axes is None:
            return None
        rank = len(inputs[0]) + len(axes)
        added = {a % rank for a in axes}
        rest = iter(inputs[0])
        return tuple(ONE if i in added else next(rest) for i in range(rank))

    def _shape_of_squeeze(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        axes = self.axes(node)
        if inputs[0] is None or axes is None:
            return None
        dropped = {a % len(inputs[0]) for a in axes}
        return tuple(d for i, d in enumerate(inputs[0]) if i not in dropped)

    def _shape_of_concat(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        if any(i is None for i in inputs) or not inputs or not inputs[0]:
            return None
        axis = node.attrs.get("axis", 1) % len(inputs[0])
        total = Expr.of(0)
        for shape in inputs:
            total = total + shape[axis]
        return (*inputs[0][:axis], total, *inputs[0][axis + 1 :])

    def _shape_of_gather(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        if inputs[0] is None or inputs[1] is None or not inputs[0]:
            return None
        axis = node.attrs.get("axis", 0) % len(inputs[0])
        return (*inputs[0][:axis], *inputs[1], *inputs[0][axis + 1 :])

    def _shape_of_slice(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        cuts = self.slices(node)
        if inputs[0] is None or cuts is None:
            return None
        dims = list(inputs[0])
        for axis, (start, stop, step) in cuts.items():
            length = _slice_length(dims[axis], start, stop, step)
            dims[axis] = length if length is not None else Expr.dim(f"{tensor.name}[{axis}]")
        return tuple(dims)

    _shape_of_dynamicslice = _shape_of_slice

    def _shape_of_nonzero(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        return None if inputs[0] is None else (Expr.of(max(len(inputs[0]), 1)), count_of(node.inputs[0]))

    def _shape_of_gathernd(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        data, index = inputs
        if data is None or not index or index[-1].constant is None:
            return None
        return (*index[:-1], *data[node.attrs.get("batch_dims", 0) + index[-1].constant :])

    def _shape_of_conv(self, node: Node, inputs: list, tensor: Value) -> tuple[Expr, ...] | None:
        """The rank and the channels of a convolution come from its weight."""
        weight = inputs[1]
        if weight is None or len(weight) < 3:
            return None
        transposed = node.op == "ConvTranspose"
        channels = weight[1] * node.attrs.get("group", 1) if transposed else weight[0]
        batch = inputs[0][0] if inputs[0] else Expr.dim(f"{tensor.name}[0]")
        return (batch, channels, *(Expr.dim(f"{tensor.name}[{i}]") for i in range(2, len(weight))))

    _shape_of_convtranspose = _shape_of_conv

    @staticmethod
    def _ramp_length(ramp: Ramp, tensor: Value) -> Expr:
        length = _slice_length(ramp.extent, ramp.start, ramp.stop, ramp.step)
        return length if length is not None else Expr.dim(f"{tensor.name}[0]")

    # ---- operator arguments --------------------------------------------------------------------------------------

    def axes(self, node: Node) -> list[int] | None:
        """The axes of a Squeeze, Unsqueeze or Reduce node, from the attribute or the constant input."""
        if node.has_references:
            return None
        if "axes" in node.attrs:
            return [int(a) for a in node.attrs["axes"]]
        given = node.arg(1)
        values = self.const(given) if given is not None else None
        return None if values is None else [int(a) for a in values.reshape(-1)]

    def permutation(self, tensor: Value) -> list[int] | None:
        """The order of axes of the Transpose that makes a tensor; None when none does."""
        node: Any = tensor.inputs[0] if tensor.inputs else None
        rank = self.rank(tensor)
        if node is None or not node.is_op("Transpose") or node.has_references or rank is None:
            return None
        return list(node.attrs.get("perm") or range(rank - 1, -1, -1))

    def slices(self, node: Node) -> dict[int, tuple[Bound, Bound, int]] | None:
        """The (start, stop, step) of a Slice or DynamicSlice node by axis; None when axes or steps are not constant.

        A start or stop that is not constant is a tensor of one element. Stops beyond the largest int32 are None.
        """
        data = self.rank(node.inputs[0])
        if data is None or node.has_references:
            return None
        if "starts" in node.attrs:
            starts: list[Bound] = [int(v) for v in node.attrs["starts"]]
            stops: list[Bound] = [int(v) for v in node.attrs["ends"]]
            axes = node.attrs.get("axes", list(range(len(starts))))
            steps = [1] * len(starts)
        else:
            start, stop, axis, step = (node.arg(i) for i in (1, 2, 3, 4))
            if start is None or stop is None:
                return None
            first, last = self._bounds(start), self._bounds(stop)
            if first is None or last is None:
                return None
            starts, stops = first, last
            given_axes = self.const(axis) if axis is not None else np.arange(len(starts))
            given_steps = self.const(step) if step is not None else np.ones(len(starts), np.int64)
            if given_axes is None or given_steps is None:
                return None
            axes, steps = [int(a) for a in given_axes.reshape(-1)], [int(s) for s in given_steps.reshape(-1)]
        if not len(starts) == len(stops) == len(axes) == len(steps):
            return None
        result: dict[int, tuple[Bound, Bound, int]] = {}
        for start_bound, stop_bound, axis_number, stride in zip(starts, stops, axes, steps, strict=True):
            end = None if isinstance(stop_bound, int) and stop_bound >= np.iinfo(np.int32).max else stop_bound
            result[axis_number % max(data, 1)] = (start_bound, end, stride)
        return result

    def _bounds(self, tensor: Value) -> list[Bound] | None:
        """The starts or stops in a tensor; None when they are not constant and more than one."""
        known = self.const(tensor)
        if known is not None:
            return [int(v) for v in known.reshape(-1)]
        shape = self.shape(tensor)
        return [tensor] if shape is not None and product(shape) == ONE else None

    # ---- constants -----------------------------------------------------------------------------------------------

    def const(self, tensor: Value) -> np.ndarray | None:
        """The tensor's value, when it is the same for every input of the model and not too large."""
        if tensor not in self._constants:
            self._warm(tensor)
        if tensor not in self._constants:
            self._constants[tensor] = None
            self._constants[tensor] = self._find_const(tensor)
        return self._constants[tensor]

    def scalar(self, tensor: Value | None) -> Any | None:
        """The value of a constant tensor of one element."""
        value = self.const(tensor) if tensor is not None else None
        return value.item() if value is not None and value.size == 1 else None

    def _find_const(self, tensor: Value) -> np.ndarray | None:
        if isinstance(tensor, Constant):
            external = tensor.proto.data_location == TensorProto.EXTERNAL
            return None if external or math.prod(tensor.shape) > _MOST_ELEMENTS else tensor.values
        if not tensor.inputs:
            return None
        node: Any = tensor.inputs[0]
        if node.is_op("Constant"):
            return _constant_node_value(node)
        if aten.is_aten(node.op, node.domain) or node.is_op("DynamicSlice"):
            ramp = self.ramp(tensor)
            if ramp is None or ramp.extent.constant is None or not isinstance(ramp.start, int | None):
                return None
            if not isinstance(ramp.stop, int | None) or tensor.dtype not in INTEGERS:
                return None
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
            return np.arange(ramp.extent.constant, dtype=dtype)[ramp.start : ramp.stop : ramp.step]
        if node.is_op("Shape", "Size"):
            known = self.ints(tensor)
            if known is None or any(e.constant is None for e in known):
                return None
            values = np.array([e.constant for e in known], np.int64)
            return values if node.op == "Shape" else values.reshape(())
        if not node.standard or node.has_references or node.op not in _FOLDED:
            return None
        inputs = [self.const(i) if i.name else np.zeros(0) for i in node.inputs]
        if any(i is None for i in inputs):
            return self._const_from_ints(node, tensor)
        shape = self.shape(tensor)
        most = _MOST_ELEMENTS if tensor.dtype in INTEGERS | MASKS else _MOST_FLOATS
        if shape is not None and product(shape).estimate(1) > most:
            return None
        return _evaluate(node, inputs, tensor, self._model.scope_of(node).opset)

    def _const_from_ints(self, node: Node, tensor: Value) -> np.ndarray | None:
        """A size taken from a shape of which other sizes are unknown."""
        handler = getattr(self, f"_ints_of_{node.op.lower()}", None)
        if handler is None or tensor.dtype not in INTEGERS or tensor.shape is None or len(tensor.shape) > 1:
            return None
        known = handler(node)
        if known is None or any(e.constant is None for e in known) or (not tensor.shape and len(known) != 1):
            return None
        values = np.array([e.constant for e in known], onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype))
        return values if tensor.shape else values.reshape(())

    def uniform(self, tensor: Value) -> np.ndarray | None:
        """The one value that all elements of a tensor have, to the bit, as a 0-d array."""
        while True:
            known = self.const(tensor)
            if known is not None:
                first = known.reshape(-1)[:1]
                alike = known.size > 0 and known.tobytes() == first.tobytes() * known.size
                return first.reshape(()) if alike else None
            node: Any = tensor.inputs[0] if tensor.inputs else None
            if node is None or not node.standard:
                return None
            if node.op == "ConstantOfShape":
                fill = node.attrs.get("value")
                return onnx.numpy_helper.to_array(fill).reshape(()) if fill is not None else np.zeros((), np.float32)
            if node.op not in ("Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Flatten", "Tile"):
                return None
            tensor = node.inputs[0]

    # ---- integer vectors -----------------------------------------------------------------------------------------

    def ints(self, tensor: Value) -> tuple[Expr, ...] | None:
        """The elements of a 0-d or 1-d integer tensor of known length, such as a shape."""
        if tensor not in self._ints:
            self._ints[tensor] = None
            self._ints[tensor] = self._find_ints(tensor)
        return self._ints[tensor]

    def _find_ints(self, tensor: Value) -> tuple[Expr, ...] | None:
        if tensor.dtype is not None and tensor.dtype not in INTEGERS:
            return None
        size = self.shape(tensor)
        if size is not None and len(size) > 1 and product(size) != ONE:
            return None
        node: Any = tensor.inputs[0] if tensor.inputs else None
        if node is not None and node.has_references:
            return self._opaque_ints(tensor)
        if node is not None and node.is_op("Shape"):
            shape = self.shape(node.inputs[0])
            return None if shape is None else shape[node.attrs.get("start", 0) : node.attrs.get("end", len(shape))]
        if node is not None and node.is_op("Size"):
            shape = self.shape(node.inputs[0])
            return None if shape is None else (product(shape),)
        known = self.const(tensor)
        if known is not None:
            if known.ndim > 1 or known.size > _MOST_INTS or known.dtype.kind not in "iu":
                return None
            return tuple(Expr.of(int(v)) for v in known.reshape(-1))
        if node is not None and node.standard and not node.has_references:
            handler: Callable[..., tuple[Expr, ...] | None] | None = getattr(self, f"_ints_of_{node.op.lower()}", None)
            found = handler(node) if handler is not None else None
            if found is not None:
                return found
        return self._opaque_ints(tensor)

    def _opaque_ints(self, tensor: Value) -> tuple[Expr, ...] | None:
        if tensor.shape is None or len(tensor.shape) > 1 or tensor.dtype not in INTEGERS:
            return None
        length = tensor.shape[0] if tensor.shape else 1
        if not isinstance(length, int) or length > _MOST_INTS:
            return None
        return tuple(Expr.value(f"{tensor.name}[{i}]") for i in range(length))

    def _ints_of_cast(self, node: Node) -> tuple[Expr, ...] | None:
        return self.ints(node.inputs[0]) if _keeps_sizes(node) else None

    def _ints_of_identity(self, node: Node) -> tuple[Expr, ...] | None:
        return self.ints(node.inputs[0])

    _ints_of_unsqueeze = _ints_of_squeeze = _ints_of_reshape = _ints_of_flatten = _ints_of_identity

    def _ints_of_concat(self, node: Node) -> tuple[Expr, ...] | None:
        parts = [self.ints(i) for i in node.inputs]
        return None if any(p is None for p in parts) else tuple(e for p in parts if p is not None for e in p)

    def _ints_of_gather(self, node: Node) -> tuple[Expr, ...] | None:
        data, positions = self.ints(node.inputs[0]), self.const(node.inputs[1])
        if data is None or positions is None or positions.ndim > 1:
            return None
        flat = [int(p) for p in positions.reshape(-1)]
        return None if any(not -len(data) <= p < len(data) for p in flat) else tuple(data[p] for p in flat)

    def _ints_of_slice(self, node: Node) -> tuple[Expr, ...] | None:
        data, cuts = self.ints(node.inputs[0]), self.slices(node)
        if data is None or cuts is None or set(cuts) - {0}:
            return None
        start, stop, step = cuts.get(0, (0, None, 1))
        return data[start:stop:step] if isinstance(start, int) and isinstance(stop, int | None) else None

    def _ints_of_constantofshape(self, node: Node) -> tuple[Expr, ...] | None:
        length = self.ints(node.inputs[0])
        if length is None or len(length) != 1 or length[0].constant is None or length[0].constant > _MOST_INTS:
            return None
        value = node.attrs.get("value")
        fill = int(onnx.numpy_helper.to_array(value).reshape(-1)[0]) if value is not None else 0
        return (Expr.of(fill),) * length[0].constant

    def _pairs(self, node: Node) -> list[tuple[Expr, Expr]] | None:
        a, b = self.ints(node.inputs[0]), self.ints(node.inputs[1])
        if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
            return None
        n = max(len(a), len(b)) if 0 not in (len(a), len(b)) else 0
        return list(zip(a * n if len(a) == 1 else a, b * n if len(b) == 1 else b, strict=True))

    def _ints_of_add(self, node: Node) -> tuple[Expr, ...] | None:
        pairs = self._pairs(node)
        return None if pairs is None else tuple(a + b for a, b in pairs)

    def _ints_of_sub(self, node: Node) -> tuple[Expr, ...] | None:
        pairs = self._pairs(node)
        return None if pairs is None else tuple(a - b for a, b in pairs)

    def _ints_of_mul(self, node: Node) -> tuple[Expr, ...] | None:
        pairs = self._pairs(node)
        return None if pairs is None else tuple(a * b for a, b in pairs)

    def _ints_of_div(self, node: Node) -> tuple[Expr, ...] | None:
        """Truncation and floor agree where both sides are not negative; the quotient is then a size of its own."""
        pairs = self._pairs(node)
        if pairs is None or not all(a.nonnegative and (b.constant or 0) > 0 for a, b in pairs):
            return None
        return tuple(Expr.dim(f"({a})//{b}") for a, b in pairs)

    def _ints_of_reduceprod(self, node: Node) -> tuple[Expr, ...] | None:
        values = self.ints(node.inputs[0])
        return None if values is None else (product(values),)

    def _ints_of_where(self, node: Node) -> tuple[Expr, ...] | None:
        """Where(Equal(shape, -1), other, shape), as exporters write for ``expand``; sizes are never -1."""
        condition: Any = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
        if condition is None or not condition.is_op("Equal"):
            return None
        pairs = self._pairs(condition)
        if_true, if_false = self.ints(node.inputs[1]), self.ints(node.inputs[2])
        if pairs is None or if_true is None or if_false is None or len({len(pairs), len(if_true), len(if_false)}) != 1:
            return None
        result = []
        for (a, b), yes, no in zip(pairs, if_true, if_false, strict=True):
            difference = a - b
            if difference.constant == 0:
                result.append(yes)
            elif difference.constant is not None or difference.positive or (difference * -1).positive:
                result.append(no)
            else:
                return None
        return tuple(result)

    # ---- index values --------------------------------------------------------------------------------------------

    def ramp(self, tensor: Value) -> Ramp | None:
        """The tensor as a sliced ``arange`` along one axis, when it is one."""
        known = self.const(tensor) if tensor.dtype in INTEGERS else None
        if known is not None:
            return _constant_ramp(known)
        node: Any = tensor.inputs[0] if tensor.inputs else None
        if node is None or node.has_references or tensor.dtype not in INTEGERS | {None}:
            return None
        if aten.is_aten(node.op, node.domain):
            try:
                call = aten.read_call(node.op, node.attrs, [i if i.name else None for i in node.inputs])
            except aten.AtenFormError:
                return None
            if call.operator != "arange":
                return None
            bounds = [call.arguments.get(p) for p in ("start", "end", "step")]
            scalars = [call.scalars.get(p) for p in ("start", "end", "step")]
            return self._range(bounds, scalars)
        if not node.standard:
            return None
        if node.op == "Range":
            return self._range(list(node.inputs), [None, None, None])
        if node.op in ("Cast", "Identity"):
            return self.ramp(node.inputs[0]) if _keeps_sizes(node) else None
        if node.op in ("Unsqueeze", "Squeeze", "Reshape", "Flatten"):
            ramp, shape = self.ramp(node.inputs[0]), self.shape(tensor)
            if ramp is None or shape is None:
                return None
            long = [i for i, d in enumerate(shape) if d != ONE]
            if len(long) == 1:
                return Ramp(ramp.extent, ramp.start, ramp.stop, ramp.step, long[0])
            return None
        if node.op in ("Slice", "DynamicSlice"):
            ramp, cuts = self.ramp(node.inputs[0]), self.slices(node)
            if ramp is None or cuts is None or set(cuts) != {ramp.axis} or not ramp.whole:
                return None
            start, stop, step = cuts[ramp.axis]
            return Ramp(ramp.extent, start, stop, step, ramp.axis) if step > 0 else None
        return None

    def _range(self, bounds: list[Value | None], scalars: list[Any]) -> Ramp | None:
        start, stop, step = (
            Expr.of(int(s)) if isinstance(s, int) else self._one_int(b) if b is not None else default
            for b, s, default in zip(bounds, scalars, (Expr.of(0), None, ONE), strict=True)
        )
        if start is None or stop is None or step is None or start.constant is None or step.constant is None:
            return None
        if start.constant < 0 or step.constant < 1:
            return None
        if not stop.nonnegative:
            return None
        return Ramp(stop, start.constant, None, step.constant, 0)

    def _one_int(self, tensor: Value) -> Expr | None:
        known = self.ints(tensor)
        return known[0] if known is not None and len(known) == 1 else None

    def nonnegative(self, tensor: Value) -> bool:
        """Whether no element of an integer tensor can be negative."""
        known = self.const(tensor)
        if known is not None:
            return bool((known >= 0).all())
        if tensor.dtype in MASKS:
            return True
        ints = self.ints(tensor)
        if ints is not None and all(e.nonnegative for e in ints):
            return True
        node: Any = tensor.inputs[0] if tensor.inputs else None
        if node is None:
            return False
        if self.ramp(tensor) is not None:
            return True
        if not node.standard:
            return False
        if node.op in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Abs"):
            return True
        if node.op == "TopK":
            return tensor is node.outputs[1]
        if node.op == "Cast":
            known_sign = node.inputs[0].dtype in MASKS or _keeps_sizes(node)
            return known_sign and node.inputs[0].dtype in INTEGERS | MASKS and self.nonnegative(node.inputs[0])
        if node.op in (
            "Reshape",
            "Unsqueeze",
            "Squeeze",
            "Slice",
            "Gather",
            "Expand",
            "Transpose",
            "Identity",
            "Flatten",
        ):
            return self.nonnegative(node.inputs[0])
        if node.op in ("Concat", "Add", "Mul", "Min"):
            return all(self.nonnegative(i) for i in node.inputs)
        if node.op == "Max":
            return any(self.nonnegative(i) for i in node.inputs)
        if node.op == "Where":
            return self.nonnegative(node.inputs[1]) and self.nonnegative(node.inputs[2])
        return False


def _keeps_sizes(node: Node) -> bool:
    """Whether a Cast (or Identity) keeps every size and index as it is: narrow integers wrap."""
    return node.op != "Cast" or node.attrs.get("to") in (TensorProto.INT32, TensorProto.INT64)


def _constant_ramp(array: np.ndarray) -> Ramp | None:
    """``arange(n)`` along one axis as a Ramp."""
    long = [i for i, n in enumerate(array.shape) if n != 1]
    if len(long) != 1 or not (array.reshape(-1) == np.arange(array.size)).all():
        return None
    return Ramp(Expr.of(array.size), 0, None, 1, long[0])


def _is_unknown(dim: Any) -> bool:
    return dim is None or (isinstance(dim, str) and dim.startswith("unk__"))


def _slice_length(extent: Expr, start: Bound, stop: Bound, step: int) -> Expr | None:
    """How many elements a slice of ``extent`` selects; None when that depends on more than symbols tell."""
    if not isinstance(start, int | None) or not isinstance(stop, int | None) or step < 1:
        return None
    if extent.constant is not None:
        return Expr.of(len(range(extent.constant)[start:stop:step]))
    if start in (0, None) and stop is None and step == 1:
        return extent
    return None


def _constant_node_value(node: Node) -> np.ndarray | None:
    for name, value in node.attrs.items():
        if name == "value" and isinstance(value, TensorProto):
            if value.data_location == TensorProto.EXTERNAL or math.prod(value.dims) > _MOST_ELEMENTS:
                return None
            return onnx.numpy_helper.to_array(value)
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
    return None


def _evaluate(node: Node, inputs: list[Any], tensor: Value, opset: int) -> np.ndarray | None:
    """Run one node on constants in onnx's reference evaluator; None when it does not run."""
    from onnx.reference import ReferenceEvaluator

    outputs = [onnx.ValueInfoProto(name=o.name) for o in node.outputs if o.name]
    graph = onnx.GraphProto(node=[node.proto], name="constant", output=outputs)
    feeds = {}
    for value, array in zip(node.inputs, inputs, strict=True):
        if value.name and value.name not in feeds:
            graph.input.append(onnx.ValueInfoProto(name=value.name))
            feeds[value.name] = array
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=opset)])
    try:
        results: Any = ReferenceEvaluator(model).run([tensor.name], feeds)
    except Exception:  # an invalid node, or one that the evaluator does not have: not a constant then
        return None
    value = results[0]
    if not isinstance(value, np.ndarray | np.generic) or value.size > _MOST_ELEMENTS:
        return None
    return np.asarray(value)
