"""What the values of an input are used for: indices into which axis, sizes, bounds.

An index that is out of range makes a model fail, so inputs cannot be random integers. The walk goes forward from an
input through operators that pass values on, to those that limit them. It is conservative and incomplete: what it does
not find, the search learns from refusals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphfix import aten
from graphfix.protobuf import bodies, graphs_within, used_names
from graphfix.reference.program import attributes

# Operators that pass the values of these inputs on unchanged (None: of all inputs).
_PASS: dict[str, tuple[int, ...] | None] = {
    "Cast": (0,),
    "Concat": None,
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "ListConstruct": None,
    "Max": None,
    "Min": None,
    "Clip": (0,),
    "Pad": (0,),
    "ReduceMax": (0,),
    "ReduceMin": (0,),
    "Reshape": (0,),
    "SequenceAt": (0,),
    "SequenceConstruct": None,
    "Slice": (0,),
    "DynamicSlice": (0,),
    "Split": (0,),
    "SplitToSequence": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}

# Operators whose input at this position is a size or the like: small values that are always accepted.
_SMALL: dict[tuple[str, int], tuple[int, int]] = {
    ("AffineGrid", 1): (1, 5),
    ("BlackmanWindow", 0): (1, 9),
    ("CenterCropPad", 1): (1, 5),
    ("ConstantOfShape", 0): (1, 4),
    ("CumSum", 1): (0, 1),
    ("DFT", 1): (1, 9),
    # Division by zero ends the process, not only the run.
    ("Div", 1): (1, 9),
    ("Expand", 1): (1, 4),
    ("HammingWindow", 0): (1, 9),
    ("HannWindow", 0): (1, 9),
    ("Loop", 0): (0, 5),
    ("Mod", 1): (1, 9),
    ("NonMaxSuppression", 2): (1, 6),
    ("OneHot", 1): (1, 6),
    ("Pad", 1): (0, 3),
    ("ReduceMax", 1): (0, 1),
    ("ReduceMean", 1): (0, 1),
    ("ReduceMin", 1): (0, 1),
    ("ReduceSum", 1): (0, 1),
    ("Range", 0): (0, 2),
    ("Range", 1): (2, 7),
    ("Range", 2): (1, 3),
    ("Reshape", 1): (1, 4),
    ("Resize", 3): (1, 7),
    ("SequenceAt", 1): (0, 1),
    ("SequenceErase", 1): (0, 1),
    ("SequenceInsert", 2): (0, 1),
    ("Slice", 3): (0, 1),
    ("Slice", 4): (1, 3),
    ("Squeeze", 1): (0, 1),
    ("Tile", 1): (1, 4),
    ("Trilu", 1): (-2, 3),
    ("Unsqueeze", 1): (0, 1),
}
# Operators whose float input at this position must lie in a range.
_REAL: dict[tuple[str, int], tuple[int, int]] = {
    ("Bernoulli", 0): (0, 1),
    ("Dropout", 1): (0, 1),
    ("NonMaxSuppression", 3): (0, 1),
    ("Resize", 2): (1, 2),
    ("RoiAlign", 1): (0, 4),
    ("Upsample", 1): (1, 2),
}
# Inputs that index axis 0 of another input, whose position this tells.
_ROWS = {
    ("RoiAlign", 2): 0,
    ("EmbedLayerNormalization", 0): 2,
    ("EmbedLayerNormalization", 1): 4,
    ("EmbedLayerNormalization", 8): 3,
}
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_RECURRENT = ("GRU", "LSTM", "RNN")
# A sum of so many values is expected: a mask or durations that are summed up into an index.
_TERMS = 32
_SMALL_ARANGE = {"start": (0, 2), "end": (2, 7), "step": (1, 3)}

_INDEXED_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
_INDEXED_AXES = {"GatherND", "ScatterND"}
_LIST_INDEXED = {"index", "index_put"}
_NEGATIVE_ATEN = {"index", "index_put", "index_fill"}
_RESHAPING = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)
_MASK_TYPES = (onnx.TensorProto.BOOL, onnx.TensorProto.UINT8)

Shapes = Mapping[str, tuple[int | None, ...]]


class Strength(Enum):
    """How a use limits values: others make the model fail, mean nothing, or are well but miss what is telling."""

    MUST = 1
    SHOULD = 2
    TELLING = 3


@dataclass(frozen=True)
class Use:
    """Values must lie in ``[low, high)``, or below the size of an axis of ``data``, or of the smallest of several.

    ``axes`` is None when any axis of ``data`` may be meant. ``inclusive`` is for bounds, which may equal the size, and
    begin with ``low`` then. ``factor`` and ``shift`` say that the value so limited is ``factor * x + s`` for every s in
    the shift; ``summed``, that it is a sum of such values, ``partial``, that something computed is added to it, which
    needs room too. ``real`` is for floats: in ``[low, high]``, and rising along the last axis when ``ordered``, as
    the corners of boxes do.
    """

    data: str = ""
    axes: tuple[int, ...] | None = None
    negative: bool = False
    inclusive: bool = False
    low: int = 0
    high: int | None = None
    factor: Fraction = Fraction(1)
    shift: tuple[int, int] = (0, 0)
    summed: bool = False
    partial: bool = False
    real: bool = False
    ordered: bool = False
    strength: Strength = Strength.MUST

    def limits(self, shapes: Shapes) -> tuple[int, int] | None:
        """The half-open range of the input's values, or None when the shape that decides is not known."""
        low, high = self.low, self.high
        if high is None:
            shape = shapes.get(self.data)
            if shape is None:
                return None
            rank = len(shape)
            axes = range(rank) if self.axes is None else [a for a in self.axes if -rank <= a < rank]
            sizes = [shape[axis] for axis in axes]
            known = [size for size in sizes if size is not None]
            if not known or len(known) < len(sizes):
                return None
            high = min(known) + int(self.inclusive)
            low = -min(known) if self.negative else min(self.low, high - 1)
        low = math.ceil((low - self.shift[0]) / self.factor)
        high = math.floor((high - 1 - self.shift[1]) / self.factor) + 1
        if self.summed:
            return 0, max(high // _TERMS, 2)
        return (low, max(high // 2, low + 1)) if self.partial and high > 0 else (low, high)


@dataclass(frozen=True)
class _Path:
    """How a tensor comes from an input ``x``: as ``factor * x + s``, or as a sum of such values.

    ``partial`` says that something computed was added.
    """

    factor: Fraction = Fraction(1)
    shift: tuple[int, int] = (0, 0)
    summed: bool = False
    partial: bool = False

    def through(self, op: str, position: int, low: int, high: int) -> _Path | None:
        """The path behind an operation with a constant of values from ``low`` to ``high``."""
        if op == "Add":
            return replace(self, shift=(self.shift[0] + low, self.shift[1] + high))
        if op == "Sub" and position == 0:
            return replace(self, shift=(self.shift[0] - high, self.shift[1] - low))
        if op == "Mul" and low >= 1:
            return replace(self, factor=self.factor * high, shift=(self.shift[0] * low, self.shift[1] * high))
        if op == "Div" and position == 0 and low >= 1:
            return replace(self, factor=self.factor / high, shift=(self.shift[0] // low, self.shift[1] // low))
        return None


class Uses:
    """The uses of a graph's values, and where values come from.

    ``graph`` is walked with its bodies; names that are used twice in different bodies are taken together.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        self._aliases: dict[str, list[str]] = {}
        self._constants: dict[str, np.ndarray[Any, Any]] = {}
        for scope in graphs_within(graph):
            self._constants.update({t.name: numpy_helper.to_array(t) for t in scope.initializer if _is_small(t)})
            for node in scope.node:
                for inner, outer in _bindings(node):
                    self._aliases.setdefault(inner, []).append(outer)
                self._makers.update({name: node for name in node.output if name})
                for position, name in enumerate(node.input):
                    if name:
                        self._readers.setdefault(name, []).append((node, position))
                self._read_constant(node)

    def of(self, name: str, types: Mapping[str, tuple[int, int]]) -> list[Use]:
        """The uses of an input's values. ``types`` holds elem type and rank by name, as far as they are known."""
        found: dict[Use, None] = {}
        start = (name, _Path())
        queue, seen = [start], {start}
        while queue:
            here, path = queue.pop()
            steps = [(other, path) for other in self._aliases.get(here, ())]
            for node, position in self._readers.get(here, ()):
                for use in self._limit(node, position, types):
                    found[replace(use, **vars(path))] = None
                onward = self._pass_on(node, position, path)
                steps += [(output, onward) for output in node.output if output and onward is not None]
            for step in steps:
                if step not in seen and len(seen) < 10_000:
                    seen.add(step)
                    queue.append(step)
        return list(found)

    def is_free(self, name: str) -> bool:
        """Whether an input's values decide nothing but values: no index, size, bound or count, however computed."""
        queue, seen = [name], {name}
        while queue:
            here = queue.pop()
            steps = list(self._aliases.get(here, ()))
            for node, position in self._readers.get(here, ()):
                if node.op_type in ("Shape", "Size") and not node.domain:
                    continue
                if node.domain not in ("", "ai.onnx", "ai.onnx.ml") or position < 0 or bodies(node):
                    return False
                if any(use.strength is Strength.MUST for use in self._limit(node, position, {})):
                    return False
                steps += node.output
            for step in steps:
                if step and step not in seen:
                    seen.add(step)
                    queue.append(step)
        return True

    def divides(self) -> bool:
        """Whether integers may be divided by something computed: by zero, that would end the process."""
        return any(
            node.op_type in ("Div", "Mod") and not node.domain and position == 1 and self._constant(name) is None
            for name, readers in self._readers.items()
            for node, position in readers
        )

    def scatters_extremes(self) -> bool:
        """Whether a scatter takes the largest or the smallest of what meets."""
        return any(
            attribute.name == "reduction" and attribute.s in (b"max", b"min")
            for node in self._makers.values()
            if node.op_type in ("ScatterElements", "ScatterND")
            for attribute in node.attribute
        )

    def sources(self, tensor: str, inputs: Iterable[str]) -> list[str]:
        """Those of the inputs that a tensor is computed from, the nearest first."""
        wanted, found = set(inputs), []
        queue, seen = [tensor], {tensor}
        for name in queue:
            if name in wanted:
                found.append(name)
            maker = self._makers.get(name)
            for before in used_names(maker) if maker is not None else ():
                if before not in seen:
                    seen.add(before)
                    queue.append(before)
        return found

    def index_of(self, node_name: str) -> str:
        """The indices that a named node takes: its second input. "" when there is no such node."""
        for node in self._makers.values() if node_name else ():
            if node.name == node_name and len(node.input) > 1:
                return node.input[1]
        return ""

    def small_integers(self) -> list[int]:
        """Integers from 1 to 1024 in the constants, the rarest last: sizes that an exporter may have baked in."""
        counts: dict[int, int] = {}
        for value in self._constants.values():
            if value.dtype.kind == "i" and value.size <= 8:
                for number in value.reshape(-1).tolist():
                    if 1 < number <= 1024:
                        counts[number] = counts.get(number, 0) + 1
        return sorted(counts, key=lambda number: -counts[number])

    def _constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The elements of a constant, flat, looking through what old exporters wrap around a constant."""
        maker = self._makers.get(name)
        if name in self._constants:
            return self._constants[name].reshape(-1)
        if maker is not None and maker.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"):
            return self._constant(maker.input[0])
        if maker is not None and maker.op_type == "Concat":
            parts = [self._constant(part) for part in maker.input]
            known = [part for part in parts if part is not None]
            return np.concatenate(known) if len(known) == len(parts) else None
        return None

    def _read_constant(self, node: onnx.NodeProto) -> None:
        if node.op_type != "Constant" or node.domain or not node.output:
            return
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t") and _is_small(attribute.t):
                self._constants[node.output[0]] = numpy_helper.to_array(attribute.t)
            elif attribute.name in ("value_int", "value_ints"):
                self._constants[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(attribute), np.int64)

    def _pass_on(self, node: onnx.NodeProto, position: int, path: _Path) -> _Path | None:
        """The path behind a node that passes the values on; None behind any other."""
        if aten.is_aten(node.op_type, node.domain):
            return path if position == 0 else None
        if node.op_type in ("CumSum", "ReduceSum"):
            return replace(path, summed=True) if position == 0 else None
        if node.op_type == "Mul" and path.summed:
            return path  # by what was summed, as position ids are
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            other = node.input[1 - position] if len(node.input) == 2 else ""
            constant = self._constant(other)
            if constant is None or not constant.size or constant.dtype.kind not in "iu":
                # Two computed values: taken as if the other were zero. Wrong now and then, and then learned.
                return replace(path, partial=True) if node.op_type == "Add" else None
            return path.through(node.op_type, position, int(constant.min()), int(constant.max()))
        passing = _PASS.get(node.op_type, ())
        return path if passing is None or position in passing else None

    def _limit(self, node: onnx.NodeProto, position: int, types: Mapping[str, tuple[int, int]]) -> Iterator[Use]:
        if aten.is_aten(node.op_type, node.domain):
            yield from self._aten_limit(node, position, types)
            return
        op, given = node.op_type, node.input
        if op in ("Div", "Mod") and types.get(given[position], (0, 0))[0] in _FLOATS:
            return
        if (op, position) in _SMALL:
            low, high = _SMALL[op, position]
            yield Use(low=low, high=high)
        elif (op, position) in _REAL:
            low, high = _REAL[op, position]
            yield Use(low=low, high=high, real=True, ordered=op == "RoiAlign")
        elif (op, position) in _ROWS and len(given) > _ROWS[op, position]:
            yield Use(given[_ROWS[op, position]], (0,))
        elif op == "EmbedLayerNormalization" and position == 7:
            yield Use(low=0, high=2, strength=Strength.SHOULD)
        elif op in _RECURRENT and position == 4:
            yield Use(given[0], (_attribute(node, "layout", 0),), inclusive=True, low=1)
        elif op == "ReverseSequence" and position == 1:
            yield Use(given[0], (_attribute(node, "time_axis", 0),), inclusive=True, low=1)
        elif op == "TopK" and position == 1:
            yield Use(given[0], (_attribute(node, "axis", -1),), inclusive=True, low=1)
        elif op in _COMPARISONS and len(given) == 2:
            yield from self._compared(op, given[1 - position])
        elif op in _INDEXED_AXIS and position == 1:
            yield Use(given[0], (_attribute(node, "axis", 0),), negative=op != "Scatter")
        elif op in _INDEXED_AXES and position == 1:
            yield Use(given[0], None, negative=True)
        elif op == "OneHot" and position == 0:
            depth = self._constant(given[1])
            yield Use(low=0, high=3 if depth is None or not depth.size else int(depth.reshape(-1)[0]))
        elif op in ("Slice", "DynamicSlice") and position in (1, 2):
            axes = self._constant(given[3]) if len(given) > 3 else None
            chosen = None if axes is None else tuple(int(a) for a in axes)
            yield Use(given[0], chosen, inclusive=True)

    def _compared(self, op: str, other: str) -> Iterator[Use]:
        """What values mean that are compared with a counter, a size or a constant."""
        constant = self._constant(other)
        if constant is not None:
            if constant.size and constant.dtype.kind in "iu":
                low, high = int(constant.min()) - 1, int(constant.max()) + 2
                yield Use(low=low, high=high, strength=Strength.TELLING)
            return
        counted = self._counter(other)
        if counted is None:
            return
        # Equal picks one of the counted numbers, the others compare a length with all of them.
        length = op != "Equal"
        size = self._constant(counted)
        if size is not None and size.size == 1:
            yield Use(low=int(length), high=int(size[0]) + int(length), strength=Strength.SHOULD)
            return
        tensor, axis = self._dim_of(counted)
        if tensor:
            yield Use(tensor, (axis,), inclusive=length, low=int(length), strength=Strength.SHOULD)

    def _counter(self, name: str) -> str | None:
        """The limit of the Range that a tensor is an unsqueezed or expanded form of, or the tensor when it is none."""
        maker = self._makers.get(name)
        while maker is not None and maker.op_type in _RESHAPING and not maker.domain:
            name = maker.input[0]
            maker = self._makers.get(name)
        if maker is None:
            return None
        if maker.op_type == "Range" and not maker.domain:
            return maker.input[1]
        return name if self._dim_of(name)[0] else None

    def _dim_of(self, name: str) -> tuple[str, int]:
        """The tensor and the axis whose size a scalar is; ("", 0) when it is none."""
        maker = self._makers.get(name)
        while maker is not None and maker.op_type in _RESHAPING and not maker.domain:
            name = maker.input[0]
            maker = self._makers.get(name)
        if maker is None or maker.op_type not in ("Gather", "Slice") or maker.domain or len(maker.input) < 2:
            return "", 0
        shape, at = self._makers.get(maker.input[0]), self._constant(maker.input[1])
        if shape is None or shape.op_type != "Shape" or at is None or at.size != 1:
            return "", 0
        return shape.input[0], int(at[0])

    def _aten_limit(self, node: onnx.NodeProto, position: int, types: Mapping[str, tuple[int, int]]) -> Iterator[Use]:
        try:
            call = aten.read_call(node.op_type, attributes(node), [name or None for name in node.input])
        except aten.AtenFormError:
            return
        name, data = node.input[position], call.arguments.get("self", "")
        if call.operator == "arange":
            for parameter, (low, high) in _SMALL_ARANGE.items():
                if call.arguments.get(parameter) == name:
                    yield Use(low=low, high=high)
        if call.operator in _LIST_INDEXED:
            yield from self._list_limit(data, list(call.indices), name, types)
        elif call.arguments.get("index") == name:
            axis = self._dim(call)
            if axis is not None:
                yield Use(data, (axis,), negative=call.operator in _NEGATIVE_ATEN)

    def _list_limit(
        self, data: str, indices: list[str | None], name: str, types: Mapping[str, tuple[int, int]]
    ) -> Iterator[Use]:
        if len(indices) == 1:
            maker = self._makers.get(indices[0] or "")
            if maker is not None and maker.op_type in ("SequenceConstruct", "ListConstruct"):
                # The walk arrives at the list under its own name, so every entry of it is looked at.
                indices, name = [n or None for n in maker.input], ""
        axis = 0
        for entry in indices:
            elem_type, rank = types.get(entry or "", (0, 1))
            mask = elem_type in _MASK_TYPES
            if entry is not None and not mask and name in ("", entry):
                yield Use(data, (axis,), negative=True)
            elif entry == name and elem_type == onnx.TensorProto.UINT8:
                yield Use(low=0, high=2)
            axis += rank if mask else 1

    def _dim(self, call: aten.AtenCall[str]) -> int | None:
        if "dim" in call.scalars:
            return int(call.scalars["dim"])
        constant = self._constant(call.arguments.get("dim", ""))
        return int(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else None


def _bindings(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Pairs of names for one value, inside and outside of a body, in the direction that values go."""
    for body in bodies(node):
        if node.op_type in ("Loop", "Scan"):
            yield from ((name, inner.name) for name, inner in zip(node.input, body.input, strict=False) if name)
        results = list(body.output)[1 if node.op_type == "Loop" else 0 :]
        yield from ((inner.name, name) for inner, name in zip(results, node.output, strict=False) if name)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= 1024
