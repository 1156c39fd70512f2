"""What the values of an input are used for: indices into which axis, sizes, bounds.

An index that is out of range makes a model fail, so inputs cannot be random integers. The walk goes forward from an
input through operators that pass values on, to those that limit them. It is conservative and incomplete: what it does
not find, the search learns from refusals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphfix import aten
from graphfix.reference.program import attributes, subgraphs, used_names

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
    ("ConstantOfShape", 0): (1, 4),
    ("CumSum", 1): (0, 1),
    ("Expand", 1): (1, 4),
    ("Loop", 0): (0, 5),
    ("OneHot", 1): (1, 6),
    ("Pad", 1): (0, 3),
    ("Range", 0): (0, 2),
    ("Range", 1): (2, 7),
    ("Range", 2): (1, 3),
    ("Reshape", 1): (1, 4),
    ("Slice", 3): (0, 1),
    ("Slice", 4): (1, 3),
    ("Tile", 1): (1, 4),
    ("TopK", 1): (1, 2),
}
_SMALL_ARANGE = {"start": (0, 2), "end": (2, 7), "step": (1, 3)}

_INDEXED_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
_INDEXED_AXES = {"GatherND", "ScatterND"}
_LIST_INDEXED = {"index", "index_put"}
_NEGATIVE_ATEN = {"index", "index_put", "index_fill"}
_MASK_TYPES = (onnx.TensorProto.BOOL, onnx.TensorProto.UINT8)

Shapes = Mapping[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class Use:
    """Values must lie in ``[low, high)``, or below the size of an axis of ``data``, or of the smallest of several.

    ``axes`` is None when any axis of ``data`` may be meant. ``inclusive`` is for bounds, which may equal the size.
    ``factor`` and ``shift`` say that the value so limited is ``factor * x + s`` for every s in the shift.
    """

    data: str = ""
    axes: tuple[int, ...] | None = None
    negative: bool = False
    inclusive: bool = False
    low: int = 0
    high: int | None = None
    factor: int = 1
    shift: tuple[int, int] = (0, 0)

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
            low = -min(known) if self.negative else 0
        return (
            math.ceil((low - self.shift[0]) / self.factor),
            math.floor((high - 1 - self.shift[1]) / self.factor) + 1,
        )


class Uses:
    """The uses of a graph's values, and where values come from.

    ``graph`` is walked with its bodies; names that are used twice in different bodies are taken together.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        self._aliases: dict[str, list[str]] = {}
        self._constants: dict[str, np.ndarray[Any, Any]] = {}
        for scope in _graphs(graph):
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
        queue: list[tuple[str, int, tuple[int, int]]] = [(name, 1, (0, 0))]
        seen = set(queue)
        while queue:
            here, factor, shift = queue.pop()
            for other in self._aliases.get(here, ()):
                if (other, factor, shift) not in seen:
                    seen.add((other, factor, shift))
                    queue.append((other, factor, shift))
            for node, position in self._readers.get(here, ()):
                for use in self._limit(node, position, types):
                    found[Use(**{**vars(use), "factor": factor, "shift": shift})] = None
                step = self._pass_on(node, position, factor, shift)
                for output in node.output if step is not None else ():
                    state = (output, *step) if step is not None else None
                    if state is not None and output and state not in seen and len(seen) < 10_000:
                        seen.add(state)
                        queue.append(state)
        return list(found)

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

    def _pass_on(
        self, node: onnx.NodeProto, position: int, factor: int, shift: tuple[int, int]
    ) -> tuple[int, tuple[int, int]] | None:
        """The factor and shift behind a node that passes the values on; None behind any other."""
        if aten.is_aten(node.op_type, node.domain):
            return (factor, shift) if position == 0 else None
        if node.op_type in ("Add", "Sub", "Mul"):
            other = node.input[1 - position] if len(node.input) == 2 else ""
            constant = self._constant(other)
            if constant is None or not constant.size or constant.dtype.kind not in "iu":
                # Two computed values: taken as if the other were zero. Wrong now and then, and then learned.
                return (factor, shift) if node.op_type == "Add" else None
            low, high = int(constant.min()), int(constant.max())
            if node.op_type == "Add":
                return factor, (shift[0] + low, shift[1] + high)
            if node.op_type == "Sub" and position == 0:
                return factor, (shift[0] - high, shift[1] - low)
            if node.op_type == "Mul" and low >= 1:
                return factor * high, (shift[0] * low, shift[1] * high)
            return None
        passing = _PASS.get(node.op_type, ())
        return (factor, shift) if passing is None or position in passing else None

    def _limit(self, node: onnx.NodeProto, position: int, types: Mapping[str, tuple[int, int]]) -> Iterator[Use]:
        if aten.is_aten(node.op_type, node.domain):
            yield from self._aten_limit(node, position, types)
            return
        op, given = node.op_type, node.input
        if (op, position) in _SMALL:
            low, high = _SMALL[op, position]
            yield Use(low=low, high=high)
        elif op in _INDEXED_AXIS and position == 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            yield Use(given[0], (axis,), negative=op != "Scatter")
        elif op in _INDEXED_AXES and position == 1:
            yield Use(given[0], None, negative=True)
        elif op == "OneHot" and position == 0:
            depth = self._constant(given[1])
            yield Use(low=0, high=3 if depth is None or not depth.size else int(depth.reshape(-1)[0]))
        elif op in ("Slice", "DynamicSlice") and position in (1, 2):
            axes = self._constant(given[3]) if len(given) > 3 else None
            chosen = None if axes is None else tuple(int(a) for a in axes)
            yield Use(given[0], chosen, inclusive=True)

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


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _graphs(body)


def _bindings(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Pairs of names for one value, inside and outside of a body, in the direction that values go."""
    for body in subgraphs(node):
        if node.op_type in ("Loop", "Scan"):
            yield from ((name, inner.name) for name, inner in zip(node.input, body.input, strict=False) if name)
        results = list(body.output)[1 if node.op_type == "Loop" else 0 :]
        yield from ((inner.name, name) for inner, name in zip(results, node.output, strict=False) if name)


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= 1024
