"""Emits new nodes in the forms that the model's opset has, and that engines were seen to run.

Choices that are not obvious come from trials of each form in fifteen engines: constants are initializers and never
Constant nodes with ``value_ints``; no bool constants; ``Where`` only with a computed condition; axes that are inserted
into a tensor of known shape by Reshape; indices are compared as integers and never as floats.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from graphfix.facts import INT64_MAX, Bound, Facts
from graphfix.graph import Constant, Node, Scope, Tensor, Value
from graphfix.symbolic import ONE, Expr, product

PASS_METADATA_KEY = "graphfix.pass"

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL

# Element types that ONNX Runtime's CPU provider has no Where for (int8 and uint32 in versions before 1.27 or so), and a
# type that holds each of them exactly.
_WHERE_THROUGH: dict[int, int] = {
    TensorProto.INT8: INT32,
    TensorProto.INT16: INT32,
    TensorProto.UINT16: INT32,
    TensorProto.UINT32: INT64,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
}
# Arithmetic on these is missing below opset 14 (Add) or in ONNX Runtime; float16 and bfloat16 sums are made in float.
_COMPUTED_AS: dict[int, int] = {
    TensorProto.INT8: INT32,
    TensorProto.UINT8: INT32,
    TensorProto.INT16: INT32,
    TensorProto.UINT16: INT32,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
}

WHERE_TYPES = frozenset(
    {
        *FLOATS,
        BOOL,
        TensorProto.UINT8,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.UINT16,
        TensorProto.INT32,
        TensorProto.UINT32,
        TensorProto.INT64,
    }
)

Size = int | Value  # a number, or an int64 tensor of shape [1]


class OpsetTooLow(Exception):
    """An operator is needed that the scope's opset does not have. ``needed`` is the first opset that has it."""

    def __init__(self, needed: int, what: str):
        super().__init__(f"{what} needs opset {needed}")
        self.needed = needed
        self.what = what


@functools.cache
def first_opset(op: str) -> int:
    """The first opset of the default domain that has an operator."""
    return min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "")


class Builder:
    """Emits the nodes that replace one node.

    New nodes and their outputs are named ``<replaced node>/graphfix/<pass>/<n>`` and carry the pass code as metadata.
    """

    def __init__(self, scope: Scope, anchor: Node, facts: Facts, pass_name: str, code: str):
        self.scope = scope
        self.anchor = anchor
        self.facts = facts
        self.nodes: list[Node] = []
        self._prefix = f"{anchor.label}/graphfix/{pass_name}"
        self._code = code
        self._count = 0
        self._shapes: dict[Value, Value] = {}
        self._emitted: dict[Any, Value] = {}
        self._own_constants: list[Constant] = []

    @property
    def opset(self) -> int:
        return self.scope.opset

    def counts(self) -> dict[str, int]:
        """How many nodes of each type were emitted."""
        return dict(Counter(node.op for node in self.nodes))

    def require(self, opset: int, what: str) -> None:
        """Raise OpsetTooLow unless the scope has at least this opset."""
        if self.opset < opset:
            raise OpsetTooLow(opset, what)

    # ---- nodes and constants ---------------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any] | None = None,
        dtype: int | None = None,
        shape: Sequence[Expr] | None = None,
    ) -> Value:
        """Add a standard node with one output and return that output. The same node is not added twice."""
        first = first_opset(op)
        if first > self.opset:
            raise OpsetTooLow(first, op)
        names = [i.name if i is not None else "" for i in inputs]
        key = (op, tuple(names), tuple(sorted((k, repr(v)) for k, v in (attrs or {}).items())))
        if key in self._emitted:
            return self._emitted[key]
        shared = self.scope.emitted.get(key)
        if shared is not None and shared.inputs and not self.scope.is_removed(shared.inputs[0]):
            return shared
        name = self.scope.model.fresh(f"{self._prefix}/{self._count}")
        self._count += 1
        proto = onnx.helper.make_node(op, names, [name], name, **attrs or {})
        entry = proto.metadata_props.add()
        entry.key, entry.value = PASS_METADATA_KEY, self._code
        output = Tensor(name, dtype, None)
        node = Node(proto, dict(attrs or {}), [i if i is not None else Tensor("") for i in inputs], [output])
        self.scope.model.adopt(node, self.scope)
        self.scope.tensors[name] = output
        self.nodes.append(node)
        if shape is not None:
            self.facts.set_shape(output, tuple(shape))
        self._emitted[key] = output
        return output

    def once(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """What ``make`` emits, once in a scope for each key: for what `emit` cannot see to be the same."""
        found = self._emitted.get(key)
        if found is None:
            found = self.scope.emitted.get(key)
            if found is None or not found.inputs or self.scope.is_removed(found.inputs[0]):
                found = self._emitted[key] = make()
        return found

    def copy(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Add a node that does with other inputs what a node of the model does; returns its outputs.

        Their shapes are not known, unless stated with ``facts.set_shape``.
        """
        name = self.scope.model.fresh(f"{self._prefix}/{self._count}")
        self._count += 1
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.name = name
        del proto.input[:], proto.output[:]
        proto.input.extend(i.name if i is not None else "" for i in inputs)
        names = [self.scope.model.fresh(f"{name}.{i}") if o.name else "" for i, o in enumerate(node.outputs)]
        proto.output.extend(names)
        entry = proto.metadata_props.add()
        entry.key, entry.value = PASS_METADATA_KEY, self._code
        outputs: list[Value] = [Tensor(n, o.dtype, None) for n, o in zip(names, node.outputs, strict=True)]
        added = Node(proto, dict(node.attrs), [i if i is not None else Tensor("") for i in inputs], outputs)
        self.scope.model.adopt(added, self.scope)
        for output in outputs:
            if output.name:
                self.scope.tensors[output.name] = output
        self.nodes.append(added)
        return outputs

    def constant(self, array: Any, dtype: int = INT64) -> Value:
        """A constant of an ONNX element type; equal constants of a scope are shared."""
        bfloat16 = dtype == TensorProto.BFLOAT16
        numpy_dtype = np.dtype(ml_dtypes.bfloat16) if bfloat16 else onnx.helper.tensor_dtype_to_np_dtype(dtype)
        values = np.asarray(array).astype(numpy_dtype)
        key = (dtype, values.shape, values.tobytes())
        if key in self.scope.constants:
            return self.scope.constants[key]
        if self.scope.is_function or self.scope.model.proto.ir_version < 4:
            # Functions have no initializers, and up to IR version 3 each of them has to be an input as well.
            if ("Constant", key) not in self._emitted:
                tensor = onnx.helper.make_tensor("", dtype, values.shape, values.tobytes(), raw=True)
                shape = tuple(Expr.of(d) for d in values.shape)
                self._emitted["Constant", key] = self.emit("Constant", [], {"value": tensor}, dtype, shape)
            return self._emitted["Constant", key]
        name = self.scope.model.fresh(f"{self._prefix}/c{len(self.scope.constants)}")
        proto = onnx.helper.make_tensor(name, dtype, values.shape, values.tobytes(), raw=True)
        value = Constant(proto)
        self.scope.add_initializer(value, key)
        self._own_constants.append(value)
        return value

    def finish(self, result: Value) -> None:
        """Let ``result`` take the place of the replaced node's first output, and put the new nodes into the graph."""
        old = self.anchor.outputs[0]
        producer: Any = result.inputs[0] if result.inputs else None
        if producer not in self.nodes:
            result = self.emit("Identity", [result], None, result.dtype)
            producer = result.inputs[0]
        self._drop_unread(result)
        self.anchor.outputs.clear()
        for consumer in list(result.outputs):
            for i, value in enumerate(consumer.inputs):
                if value is result:
                    consumer.inputs[i] = old
                    consumer.proto.input[i] = old.name
        producer.outputs[0] = old
        producer.proto.output[0] = old.name
        self.scope.tensors.pop(result.name, None)
        # What comes later in the scope may use the same nodes again.
        self.scope.emitted.update((k, v) for k, v in self._emitted.items() if v is not result and v.inputs)
        self.scope.splice(self.anchor, self.nodes)
        self.scope.drop_unused_initializers(self._own_constants)

    def _drop_unread(self, result: Value) -> None:
        """Drop nodes that were emitted on the way and are not needed for the result."""
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(o is result or o.outputs for o in node.outputs):
                kept.append(node)
                continue
            for output in node.outputs:
                self.scope.tensors.pop(output.name, None)
            node.inputs.clear()
            node.outputs.clear()
        self.nodes = kept[::-1]

    def _small_constant(self, x: Value) -> Any | None:
        """The value of a constant that is small enough to be written out once more in another form."""
        known = self.facts.const(x)
        return known if known is not None and known.size <= 4096 else None

    def abort(self) -> None:
        """Take back everything that was emitted."""
        for node in self.nodes:
            for output in node.outputs:
                self.scope.tensors.pop(output.name, None)
                self.scope.model.names.discard(output.name)
            node.inputs.clear()
            node.outputs.clear()
        self.nodes = []
        self.scope.drop_unused_initializers(self._own_constants)

    # ---- sizes -----------------------------------------------------------------------------------------------------

    def dims(self, tensor: Value) -> tuple[Expr, ...]:
        """The shape of a tensor of known rank."""
        shape = self.facts.shape(tensor)
        assert shape is not None, f"rank of {tensor.name} is unknown"
        return shape

    def rank(self, tensor: Value) -> int:
        return len(self.dims(tensor))

    def size(self, tensor: Value, axis: int) -> Size:
        """A tensor's size along an axis: a number where it is known, else read at run time."""
        known = self.dims(tensor)[axis].constant
        if known is not None:
            return known
        rank = self.rank(tensor)
        shape = self.emit("Shape", [tensor], None, INT64, (Expr.of(rank),))
        # Slice and not Gather, and Squeeze for a scalar and not Reshape: what TVM and nncase follow.
        return self.slice(shape, 0, axis, axis + 1)

    def sizes(self, tensor: Value, axes: Sequence[int]) -> Size:
        """The product of a tensor's sizes along some axes."""
        total: Size = 1
        for axis in axes:
            total = self.times(total, self.size(tensor, axis))
        return total

    def times(self, a: Size, b: Size) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(a, int) and a == 1:
            return b
        if isinstance(b, int) and b == 1:
            return a
        return self.emit("Mul", [self.vector([a]), self.vector([b])], None, INT64, (ONE,))

    def vector(self, sizes: Sequence[Size]) -> Value:
        """A 1-d int64 tensor of sizes, such as a target shape."""
        if all(isinstance(s, int) for s in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts: list[Value] = []
        for size in sizes:
            parts.append(self.constant([size]) if isinstance(size, int) else size)
        return parts[0] if len(parts) == 1 else self.concat(parts, 0)

    # ---- layout ----------------------------------------------------------------------------------------------------

    def reshape(self, x: Value, sizes: Sequence[Size], shape: Sequence[Expr]) -> Value:
        """Reshape to explicit sizes, right for empty tensors too. ``shape`` are the same sizes.

        In a target shape 0 means "as it was there" below opset 14, and -1 cannot be told beside a 0.
        """
        if tuple(shape) == self.facts.shape(x):
            return x
        if not shape:
            return self.drop_axes(x, range(self.rank(x)))
        known = self._small_constant(x)
        if known is not None and all(isinstance(s, int) for s in sizes):
            return self.constant(known.reshape([s for s in sizes if isinstance(s, int)]), x.dtype)
        if product(tuple(shape)).constant == 0:
            return self.filled(0, x.dtype, sizes, shape)
        runtime = [i for i, s in enumerate(sizes) if not isinstance(s, int)]
        if len(runtime) == 1:
            target = self.vector([-1 if i in runtime else s for i, s in enumerate(sizes)])
            return self.emit("Reshape", [x, target], None, x.dtype, shape)
        if runtime and self.opset < 14:
            return self.split_axis(self.merge_axes(x, 0, self.rank(x)), 0, sizes, shape)
        attrs = {"allowzero": 1} if runtime else None
        return self.emit("Reshape", [x, self.vector(sizes)], attrs, x.dtype, shape)

    def filled(self, value: Any, dtype: int | None, sizes: Sequence[Size], shape: Sequence[Expr]) -> Value:
        """A tensor of one value."""
        assert dtype is not None
        if all(isinstance(s, int) for s in sizes):
            return self.constant(np.full([s for s in sizes if isinstance(s, int)], value), dtype)
        scalar = self.constant(value, dtype)
        return self.emit("Expand", [scalar, self.vector(sizes)], None, dtype, shape)

    def insert_axes(self, x: Value, positions: Sequence[int]) -> Value:
        """Insert axes of size 1 so that they are at these positions of the result."""
        if not positions:
            return x
        added, rest = set(positions), iter(self.dims(x))
        shape = [ONE if i in added else next(rest) for i in range(self.rank(x) + len(added))]
        constants = [d.constant for d in shape]
        if all(c is not None for c in constants):
            return self.reshape(x, [c for c in constants if c is not None], shape)
        if self.opset < 13:
            return self.emit("Unsqueeze", [x], {"axes": sorted(added)}, x.dtype, shape)
        return self.emit("Unsqueeze", [x, self.constant(np.array(sorted(added)))], None, x.dtype, shape)

    def drop_axes(self, x: Value, positions: Sequence[int]) -> Value:
        """Drop axes of size 1."""
        if not positions:
            return x
        dropped = set(positions)
        shape = [d for i, d in enumerate(self.dims(x)) if i not in dropped]
        constants = [d.constant for d in shape]
        known = self._small_constant(x)
        if known is not None:
            return self.constant(known.reshape([n for i, n in enumerate(known.shape) if i not in dropped]), x.dtype)
        if shape and all(c is not None for c in constants) and all(self.dims(x)[p] == ONE for p in positions):
            return self.reshape(x, [c for c in constants if c is not None], shape)
        if self.opset < 13:
            return self.emit("Squeeze", [x], {"axes": sorted(dropped)}, x.dtype, shape)
        return self.emit("Squeeze", [x, self.constant(np.array(sorted(dropped)))], None, x.dtype, shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Two of them become one, or none."""
        if list(perm) == list(range(len(perm))):
            return x
        before = self.facts.permutation(x)
        if before is not None:
            return self.transpose(x.inputs[0].inputs[0], [before[p] for p in perm])
        known = self._small_constant(x)
        if known is not None:
            return self.constant(known.transpose(perm), x.dtype)
        shape = self.dims(x)
        return self.emit("Transpose", [x], {"perm": list(perm)}, x.dtype, [shape[p] for p in perm])

    def merge_axes(self, x: Value, first: int, count: int) -> Value:
        """Flatten ``count`` neighbouring axes into one."""
        if count == 1:
            return x
        if not count:
            return self.insert_axes(x, [first])
        shape, rank = self.dims(x), self.rank(x)
        merged = product(shape[first : first + count])
        result = [*shape[:first], merged, *shape[first + count :]]
        if count == rank and merged.constant is None:
            return self.emit("Reshape", [x, self.constant([-1])], None, x.dtype, result)
        if first == 0 and count == rank - 1 and merged.constant is None:
            return self.emit("Flatten", [x], {"axis": count}, x.dtype, result)
        sizes = [self.size(x, a) for a in range(rank)]
        total = self.sizes(x, range(first, first + count))
        return self.reshape(x, [*sizes[:first], total, *sizes[first + count :]], result)

    def split_axis(self, x: Value, axis: int, sizes: Sequence[Size], shape: Sequence[Expr]) -> Value:
        """Undo `merge_axes`: give one axis the sizes (and symbolic shape) of several."""
        if len(sizes) == 1:
            return x
        before, rank = self.dims(x), self.rank(x)
        result = [*before[:axis], *shape, *before[axis + 1 :]]
        whole = [*(self.size(x, a) for a in range(axis)), *sizes, *(self.size(x, a) for a in range(axis + 1, rank))]
        if self.opset >= 14 or sum(not isinstance(s, int) for s in whole) < 2:
            return self.reshape(x, whole, result)
        # Gather by indices of the new shape: right even if one of the sizes turns out to be 0.
        numbers = self._row_major(sizes, shape)
        maker: Any = x.inputs[0] if x.inputs else None
        if (
            maker in self.nodes
            and maker.op == "Gather"
            and maker.attrs["axis"] == axis
            and self.rank(maker.inputs[1]) == 1
        ):
            x, numbers = maker.inputs[0], self.gather(maker.inputs[1], numbers, 0)
        split = self.gather(x, numbers, axis)
        self.facts.set_shape(split, tuple(result))
        return split

    def _row_major(self, sizes: Sequence[Size], shape: Sequence[Expr]) -> Value:
        """0, 1, 2, ... in this shape."""
        total: Value | None = None
        stride: Size = 1
        for axis in reversed(range(len(sizes))):
            steps = self.insert_axes(self.arange(sizes[axis], shape[axis]), range(1, len(sizes) - axis))
            if total is not None:
                steps = self.binary("Mul", steps, self.constant(stride) if isinstance(stride, int) else stride)
            total = steps if total is None else self.binary("Add", steps, total)
            stride = self.times(stride, sizes[axis])
        assert total is not None
        return total

    def expand(self, x: Value, sizes: Sequence[Size], shape: Sequence[Expr]) -> Value:
        """Broadcast to exactly this shape."""
        if tuple(shape) == self.facts.shape(x):
            return x
        if x.dtype == TensorProto.BFLOAT16:  # for which ONNX Runtime on CPU has no Expand
            return self.cast(self.expand(self.cast(x, TensorProto.FLOAT), sizes, shape), x.dtype)
        return self.emit("Expand", [x, self.vector(sizes)], None, x.dtype, shape)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(self.dims(parts[0]))
        for part in parts[1:]:
            shape[axis] = shape[axis] + self.dims(part)[axis]
        return self.emit("Concat", list(parts), {"axis": axis}, parts[0].dtype, shape)

    def slice(self, x: Value, axis: int, start: Bound, stop: Bound, step: int = 1, length: Expr | None = None) -> Value:
        """``x[start:stop:step]`` along one axis, by Python's rules. ``length`` is the result's size, if known."""
        if start in (None, 0) and stop is None and step == 1:
            return x
        x, start, stop = self._through_slice(x, axis, start, stop, step)
        shape = list(self.dims(x))
        if length is None:
            extent = shape[axis].constant
            if extent is not None and isinstance(start, int | None) and isinstance(stop, int | None):
                length = Expr.of(len(range(extent)[start:stop:step]))
            else:
                length = Expr.dim(f"{self._prefix}/{self._count}")
        shape[axis] = length
        first, last = (0 if start is None else start), (INT64_MAX if stop is None else stop)
        if self.opset < 10:
            if step != 1 or not isinstance(first, int) or not isinstance(last, int):
                raise OpsetTooLow(10, "Slice with a step or computed bounds")
            return self.emit("Slice", [x], {"starts": [first], "ends": [last], "axes": [axis]}, x.dtype, shape)
        bounds = [self.constant([v]) if isinstance(v, int) else self.as_vector(v) for v in (first, last)]
        inputs = [x, *bounds, self.constant([axis])]
        if step != 1:
            inputs.append(self.constant([step]))
        return self.emit("Slice", inputs, None, x.dtype, shape)

    def _through_slice(self, x: Value, axis: int, start: Bound, stop: Bound, step: int) -> tuple[Value, Bound, Bound]:
        """A slice of a slice of ours as one slice of what that was taken from."""
        maker: Any = x.inputs[0] if x.inputs else None
        plain = step == 1 and isinstance(start, int | None) and isinstance(stop, int | None)
        if maker is None or not plain or not maker.is_op("Slice") or not self.is_own(maker):
            return x, start, stop
        cuts = self.facts.slices(maker)
        if cuts is None or set(cuts) != {axis}:
            return x, start, stop
        before, after, stride = cuts[axis]
        first, last = (before or 0), after
        if not isinstance(first, int) or not isinstance(last, int | None) or stride != 1 or first < 0:
            return x, start, stop
        start = start or 0
        if min(start, stop or 0, last or 0) < 0:
            return x, start, stop
        ends = [e for e in (last, None if stop is None else first + stop) if e is not None]
        return maker.inputs[0], first + start, min(ends, default=None)

    @staticmethod
    def is_own(node: Node) -> bool:
        """Whether a node was made by graphfix."""
        return any(p.key == PASS_METADATA_KEY for p in node.proto.metadata_props)

    def as_vector(self, scalar: Value) -> Value:
        """A tensor of one element as int64 with shape [1]."""
        scalar = self.cast(scalar, INT64)
        return scalar if self.dims(scalar) == (ONE,) else self.reshape(scalar, [1], [ONE])

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        shape = self.dims(x)
        result = [*shape[:axis], *self.dims(indices), *shape[axis + 1 :]]
        return self.emit("Gather", [x, indices], {"axis": axis}, x.dtype, result)

    # ---- arithmetic ------------------------------------------------------------------------------------------------

    def broadcast_shape(self, *tensors: Value) -> tuple[Expr, ...]:
        """The shape of an elementwise result; sizes that cannot be told are new unknowns."""
        return self.facts.broadcast([self.dims(t) for t in tensors], f"{self._prefix}/{self._count}")

    def binary(self, op: str, a: Value, b: Value, dtype: int | None = None) -> Value:
        """An elementwise node of two inputs; ``dtype`` is the result's type when it is not that of ``a``."""
        return self.emit(op, [a, b], None, dtype if dtype is not None else a.dtype, self.broadcast_shape(a, b))

    def cast(self, x: Value, dtype: int) -> Value:
        if x.dtype == dtype:
            return x
        known = self._small_constant(x)
        if known is not None and (dtype in FLOATS or known.dtype.kind in "biu"):
            return self.constant(known, dtype)
        return self.emit("Cast", [x], {"to": dtype}, dtype, self.dims(x))

    def unary(self, op: str, x: Value) -> Value:
        return self.emit(op, [x], None, x.dtype, self.dims(x))

    def equal(self, a: Value, b: Value) -> Value:
        """Equal on integers (floats only from opset 11 on)."""
        if a.dtype in FLOATS:
            self.require(11, "Equal on floats")
        return self.binary("Equal", a, b, BOOL)

    def reduce(self, op: str, x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
        """ReduceMax, ReduceMin, ReduceSum or ReduceProd over some axes."""
        dropped = set(axes)
        shape = [ONE if i in dropped else d for i, d in enumerate(self.dims(x))]
        if not keepdims:
            shape = [d for i, d in enumerate(shape) if i not in dropped]
        if self.opset >= (13 if op == "ReduceSum" else 18):
            inputs: list[Value] = [x, self.constant(np.array(list(axes)))]
            return self.emit(op, inputs, {"keepdims": int(keepdims)}, x.dtype, shape)
        return self.emit(op, [x], {"axes": list(axes), "keepdims": int(keepdims)}, x.dtype, shape)

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        """``yes`` where the condition holds, else ``no``, broadcast together, for every element type.

        ONNX Runtime on CPU has no Where for some types: bool goes through And/Or/Not, narrow integers and bfloat16
        through a type that holds them. There is none for uint64 (see WHERE_TYPES).
        """
        self.require(9, "Where")
        dtype = yes.dtype if yes.dtype is not None else no.dtype
        assert dtype is not None
        if dtype == BOOL:
            return self._where_bool(condition, yes, no)
        if dtype in _WHERE_THROUGH:
            wide = _WHERE_THROUGH[dtype]
            return self.cast(self.where(condition, self.cast(yes, wide), self.cast(no, wide)), dtype)
        shape = self.broadcast_shape(condition, yes, no)
        return self.emit("Where", [condition, yes, no], None, dtype, shape)

    def _where_bool(self, condition: Value, yes: Value, no: Value) -> Value:
        otherwise = self.unary("Not", condition)
        if_true, if_false = self._plain_bool(yes, condition, no), self._plain_bool(no, condition, yes)
        if if_true is not None:
            return self.binary("Or", condition, no) if if_true else self.binary("And", otherwise, no)
        if if_false is not None:
            return self.binary("Or", otherwise, yes) if if_false else self.binary("And", condition, yes)
        return self.binary("Or", self.binary("And", condition, yes), self.binary("And", otherwise, no))

    def _plain_bool(self, side: Value, *others: Value) -> bool | None:
        """The value of a constant of one element that has no part in what it and the others broadcast to."""
        value = self.facts.scalar(side)
        alone = value is not None and self.rank(side) <= max(self.rank(other) for other in others)
        return bool(value) if alone else None

    def add(self, a: Value, b: Value) -> Value:
        """The sum in the type of ``a``, wrapping as integers do; logical or for bool."""
        return self.binary("Or", a, b) if a.dtype == BOOL else self.arithmetic("Add", a, b)

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        """Add, Mul, Min or Max of two tensors of one type, in a wider type where engines lack the narrow one."""
        dtype = a.dtype
        assert dtype is not None
        extremum = op in ("Min", "Max")
        wide = _COMPUTED_AS.get(dtype)
        if extremum and dtype == TensorProto.FLOAT16:
            wide = TensorProto.FLOAT  # ReduceMin and ReduceMax are made in float as well
        if extremum and (wide or dtype) not in FLOATS:
            self.require(12, f"{op} on integers")
        if wide is not None and (extremum or self.opset < 14 or dtype == TensorProto.BFLOAT16):
            return self.cast(self.arithmetic(op, self.cast(a, wide), self.cast(b, wide)), dtype)
        if not extremum or dtype not in FLOATS:
            return self.binary(op, a, b)
        # Min and Max of ONNX Runtime may lose NaN.
        either = self.binary("Or", self.is_nan(a), self.is_nan(b))
        return self.where(either, self.constant(np.nan, dtype), self.binary(op, a, b))

    def is_nan(self, x: Value) -> Value:
        """``-x != x * -1``, which holds for NaN alone, where there is an Equal for it: several engines lack IsNaN, and
        compilers fold ``x != x``."""
        if self.opset < 11 or x.dtype not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            return self.emit("IsNaN", [x], None, BOOL, self.dims(x))
        product = self.binary("Mul", x, self.constant(-1, x.dtype))
        return self.unary("Not", self.equal(self.unary("Neg", x), product))

    def iota(self, tensor: Value, axes: Sequence[int], dtype: int = INT64) -> Value:
        """``arange(n)`` for the (merged) size n of a tensor along some axes: constant where the size is."""
        size = self.sizes(tensor, axes)
        extent = product([self.dims(tensor)[a] for a in axes])
        return self.arange(size, extent, dtype)

    def arange(self, size: Size, extent: Expr, dtype: int = INT64) -> Value:
        """``arange(size)``; ``extent`` is the same size as a symbol."""
        if isinstance(size, int):
            return self.constant(np.arange(size), dtype)
        self.require(11, "Range")
        stop = self.drop_axes(size, [0])
        ramp = self.emit("Range", [self.constant(0), stop, self.constant(1)], None, INT64, (extent,))
        return self.cast(ramp, dtype)
