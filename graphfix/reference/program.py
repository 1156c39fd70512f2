"""A graph as a list of steps: standard segments for ONNX Runtime, and what Python runs between them.

Python runs the ATen nodes and their relatives (``DynamicSlice``, ``prim::ListConstruct``), a ``SequenceConstruct``
that feeds one of them, and If, Loop and Scan nodes whose bodies hold one. Everything else is collected into as few
segments as possible. A segment becomes a model of its own when it first runs: only then the dtypes of what enters it
are known, because no inference sees through an ATen node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap, deque
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphfix import aten
from graphfix.protobuf import bodies, nodes_within, used_names
from graphfix.reference import control, kernels, scatter
from graphfix.reference.ort import OrtModel, Value, known_operators
from graphfix.reference.refusal import ReferenceRefusal

Values = MutableMapping[str, Value]
Array = np.ndarray[Any, Any]

_STANDARD = ("", "ai.onnx")
_LIST_MAKERS = {("prim", "ListConstruct"), ("", "SequenceConstruct"), ("ai.onnx", "SequenceConstruct")}


@dataclass(frozen=True)
class Context:
    """What the graphs of one model share. ``model`` has all local functions that hold ATen nodes inlined.

    With ``scatters`` the kernels run ONNX's own scatters as well (see graphfix.reference.scatter).
    """

    model: onnx.ModelProto
    base_dir: Path | None
    optimise: bool = False
    custom_ops: tuple[str, ...] = ()
    scatters: bool = False

    @property
    def local_functions(self) -> set[tuple[str, str]]:
        return {(f.domain, f.name) for f in self.model.functions}

    def needs_kernel(self, node: onnx.NodeProto) -> bool:
        """Whether a kernel is to run this node."""
        return needs_kernel(node) or (self.scatters and is_scatter(node))

    def holds_kernel(self, nodes: Iterable[onnx.NodeProto]) -> bool:
        """Whether a kernel is to run any of the nodes, or of the nodes in their bodies."""
        return any(self.needs_kernel(n) for n in nodes_within(nodes))

    def array(self, tensor: onnx.TensorProto) -> Array:
        return numpy_helper.to_array(tensor, str(self.base_dir) if self.base_dir is not None else "")


def needs_kernel(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime cannot run this node itself and the kernels can, or have to say why not."""
    if aten.is_aten(node.op_type, node.domain) or node.domain == "prim":
        return True
    return node.op_type == "DynamicSlice" and node.domain in _STANDARD


def is_scatter(node: onnx.NodeProto) -> bool:
    """Whether this is one of ONNX's own scatters."""
    return node.op_type in scatter.SCATTERS and node.domain in _STANDARD


def holds_kernel(nodes: Iterable[onnx.NodeProto]) -> bool:
    """Whether any of the nodes, or of the nodes in their bodies, needs a kernel."""
    return any(needs_kernel(n) for n in nodes_within(nodes))


def label(node: onnx.NodeProto) -> str:
    """How messages name a node: its operator, its name if it has one, and the output it makes."""
    what = node.op_type
    if aten.is_aten(node.op_type, node.domain):
        what = f"aten::{aten.operator_name(node.op_type, attributes(node))}"
    output = next((name for name in node.output if name), "")
    return f"{what} (node {node.name!r}, output {output!r})" if node.name else f"{what} (output {output!r})"


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values; tensors as arrays, strings as bytes. Bodies are left out."""
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            continue
        value = helper.get_attribute_value(attribute)
        values[attribute.name] = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    return values


class Program:
    """One graph, ready to run. ``outer`` is the program of the graph around a body.

    Raises ReferenceRefusal when it holds a node that neither ONNX Runtime nor a kernel can run.
    """

    def __init__(self, graph: onnx.GraphProto, context: Context, outer: Program | None = None) -> None:
        self.graph = graph
        self.context = context
        self.outer = outer
        self.inputs = [i.name for i in graph.input]
        self.outputs = [o.name for o in graph.output]
        self._tensors = {t.name: t for t in graph.initializer}
        self._sparse = {t.values.name: t for t in graph.sparse_initializer}
        self._constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant" and n.domain in _STANDARD}
        self._arrays: dict[str, Value] = {}
        self._nodes = list(graph.node)
        self.producers = {name: n for n in self._nodes for name in n.output if name}
        self.steps = self._schedule()
        self._drops = self._last_uses()

    def run(
        self,
        inputs: Mapping[str, Value],
        outer: Values | None = None,
        *,
        shapes: dict[str, tuple[int, ...]] | None = None,
    ) -> list[Value]:
        """The graph's outputs in order. ``outer`` holds the values of the graphs around it.

        ``shapes`` receives the shape of every tensor that a step makes.
        """
        values: Values = ChainMap(dict(inputs), outer if outer is not None else {})
        for step, drops in zip(self.steps, self._drops, strict=True):
            step.run(values)
            if shapes is not None:
                shapes.update({n: values[n].shape for n in step.makes if isinstance(values.get(n), np.ndarray)})
            for name in drops:
                values.pop(name, None)
        return [self.value(name, values) for name in self.outputs]

    def value(self, name: str, values: Values) -> Value:
        """A value by name, computed or constant. The empty name is None."""
        if not name:
            return None
        if name in values:
            return values[name]
        if self.is_constant(name):
            return self.constant(name)
        raise ReferenceRefusal(f"nothing makes the tensor {name!r}")

    # --- constants: initializers and Constant nodes, here or further out

    def is_constant(self, name: str) -> bool:
        return self._owner(name) is not None

    def constant(self, name: str) -> Value:
        """An initializer's or Constant node's value, as an array."""
        owner = self._owner(name)
        if owner is None:
            raise ReferenceRefusal(f"nothing makes the tensor {name!r}")
        if name not in owner._arrays:
            owner._arrays[name] = owner._read_constant(name)
        return owner._arrays[name]

    def embed_constant(self, name: str, graph: onnx.GraphProto) -> None:
        """Add the constant to a segment's graph in its own form: a weight is neither read nor converted."""
        owner = self._owner(name)
        assert owner is not None
        if name in owner._tensors:
            graph.initializer.append(owner._tensors[name])
        elif name in owner._sparse:
            graph.sparse_initializer.append(owner._sparse[name])
        else:
            graph.node.append(owner._constants[name])

    def _owner(self, name: str) -> Program | None:
        program: Program | None = self
        while program is not None:
            if name in program._tensors or name in program._sparse or name in program._constants:
                return program
            if name in program.producers or name in program.inputs:
                return None
            program = program.outer
        return None

    def _read_constant(self, name: str) -> Value:
        if name in self._tensors:
            return self.context.array(self._tensors[name])
        if name in self._sparse:
            return _dense(self._sparse[name])
        (attribute,) = self._constants[name].attribute
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return self.context.array(value)
        if isinstance(value, onnx.SparseTensorProto):
            return _dense(value)
        # The typed forms of opset 12, and string constants that only ATen nodes take ("cpu", "amax").
        if attribute.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS):
            return np.asarray(value, np.float32)
        if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
            return np.asarray(value, np.int64)
        return np.asarray(value, object)

    def declared(self, name: str) -> onnx.ValueInfoProto | None:
        """What an input that is no tensor (a sequence, an optional) is declared as: its value does not tell."""
        program: Program | None = self
        while program is not None:
            found = next((i for i in program.graph.input if i.name == name), None)
            if found is not None or name in program.producers:
                return None if found is None or found.type.HasField("tensor_type") else found
            program = program.outer
        return None

    # --- from nodes to steps

    def python_step(self, node: onnx.NodeProto, feeds_kernel: set[str]) -> bool:
        """Whether Python runs this node."""
        if self.context.needs_kernel(node) or any(self.context.holds_kernel(g.node) for g in bodies(node)):
            return True
        return (node.domain, node.op_type) in _LIST_MAKERS and node.output[0] in feeds_kernel

    def _schedule(self) -> list[Step]:
        nodes = self._live_nodes()
        feeds_kernel = {name for n in nodes if needs_kernel(n) for name in n.input}
        python: dict[int, Step] = {}
        uses: list[set[str]] = []
        for number, node in enumerate(nodes):
            if self.python_step(node, feeds_kernel):
                python[number] = self._make_python_step(node)
                uses.append(set(python[number].uses))
            else:
                self._check_known(node)
                uses.append(set(used_names(node)))
        order = _levels(nodes, uses, python)
        if sum(len(level) for level in order) != len(nodes):
            raise ReferenceRefusal("the graph has a cycle")
        steps: list[Step] = []
        wanted = set(self.outputs)
        for level in reversed(order):
            made = [python[n] for n in reversed(level)] if level[0] in python else [self._segment(nodes, level, wanted)]
            steps.extend(made)
            wanted.update(name for step in made for name in step.uses)
        return steps[::-1]

    def _segment(self, nodes: list[onnx.NodeProto], level: list[int], wanted: set[str]) -> Step:
        return Segment(self, [nodes[n] for n in level], wanted)

    def _live_nodes(self) -> list[onnx.NodeProto]:
        """Nodes that an output needs, without Constants. Exporters leave many that nothing reads."""
        needed = list(self.outputs)
        seen: set[int] = set()
        while needed:
            node = self.producers.get(needed.pop())
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                needed.extend(used_names(node))
        return [n for n in self._nodes if id(n) in seen and n.output[0] not in self._constants]

    def _check_known(self, node: onnx.NodeProto) -> None:
        # A library's operators have no schema that ONNX Runtime would tell.
        known = None if self.context.custom_ops else known_operators()
        functions = self.context.local_functions
        for inner in nodes_within([node]):
            domain = "" if inner.domain == "ai.onnx" else inner.domain
            if (
                known is not None
                and (domain, inner.op_type) not in known
                and (inner.domain, inner.op_type) not in functions
            ):
                name = f"{domain}::{inner.op_type}" if domain else inner.op_type
                raise ReferenceRefusal(f"ONNX Runtime does not know the operator {name} (output {inner.output[0]!r})")

    def _make_python_step(self, node: onnx.NodeProto) -> Step:
        if (node.domain, node.op_type) in _LIST_MAKERS:
            return ListStep(self, node)
        if node.op_type == "DynamicSlice" and node.domain in _STANDARD:
            return DynamicSliceStep(self, node)
        if needs_kernel(node):
            return AtenStep(self, node)
        if is_scatter(node):
            return ScatterStep(self, node)
        return ControlStep(self, node)

    def _last_uses(self) -> list[list[str]]:
        """What is dropped after each step, so that large intermediates do not outlive their readers."""
        keep = set(self.outputs)
        drops: list[list[str]] = []
        for step in reversed(self.steps):
            ends = {name for name in (*step.uses, *step.makes) if name not in keep}
            keep |= ends
            drops.append(sorted(ends))
        return drops[::-1]

    # --- masks that were flattened

    def mask_source(self, name: str) -> str:
        """The tensor that ``Reshape(x, [-1])`` flattened into ``name``, looking through Cast; "" if there is none."""
        node = self.producers.get(name)
        while node is not None and node.op_type in ("Cast", "Identity") and node.domain in _STANDARD:
            node = self.producers.get(node.input[0])
        if node is None or node.op_type != "Reshape" or node.domain not in _STANDARD or len(node.input) < 2:
            return ""
        if not self.is_constant(node.input[1]) or np.asarray(self.constant(node.input[1])).tolist() != [-1]:
            return ""
        return node.input[0]

    def list_names(self, name: str) -> list[str]:
        """The tensors of a list by name, when a node of this graph makes it; else the name itself."""
        node = self.producers.get(name)
        if node is not None and (node.domain, node.op_type) in _LIST_MAKERS:
            return list(node.input)
        return [name]


class Step(ABC):
    """Part of a program. ``uses`` are the names it reads, ``makes`` those it writes into the values."""

    uses: list[str]
    makes: list[str]

    @abstractmethod
    def run(self, values: Values) -> None: ...


class Segment(Step):
    """Standard nodes that ONNX Runtime runs together."""

    def __init__(self, program: Program, nodes: list[onnx.NodeProto], wanted: set[str]) -> None:
        self._program = program
        self._nodes = nodes
        made = {name for n in nodes for name in n.output if name}
        read = {name for n in nodes for name in used_names(n)} - made
        self._constants = sorted(name for name in read if program.is_constant(name))
        self.uses = sorted(read.difference(self._constants))
        self.makes = sorted(made & wanted)
        self._models: dict[tuple[Any, ...], OrtModel] = {}

    def run(self, values: Values) -> None:
        feeds = {name: self._program.value(name, values) for name in self.uses}
        key = tuple(_signature(value) for value in feeds.values())
        if key not in self._models:
            context = self._program.context
            self._models[key] = OrtModel(
                self._build(feeds),
                base_dir=context.base_dir,
                optimise=context.optimise,
                custom_ops=context.custom_ops,
            )
        values.update(self._models[key].run(feeds))

    def _build(self, feeds: Mapping[str, Value]) -> onnx.ModelProto:
        whole = self._program.context.model
        model = onnx.ModelProto(ir_version=whole.ir_version, producer_name="graphfix")
        model.opset_import.extend(o for o in whole.opset_import if o.domain not in (aten.ATEN_DOMAIN, "prim"))
        model.functions.extend(whole.functions)
        model.graph.name = "segment"
        declared = self._program.declared
        model.graph.input.extend(declared(name) or _value_info(name, value) for name, value in feeds.items())
        for name in self._constants:
            self._program.embed_constant(name, model.graph)
        model.graph.node.extend(self._nodes)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.makes)
        return model


class PythonStep(Step):
    """A node that Python runs."""

    def __init__(self, program: Program, node: onnx.NodeProto) -> None:
        self.program = program
        self.node = node
        self.uses = [name for name in node.input if name]
        self.makes = [name for name in node.output if name]

    def run(self, values: Values) -> None:
        try:
            results = self.results(values)
        except ReferenceRefusal as refusal:
            raise refusal.at(label(self.node), self.tensor(refusal.argument)) from None
        values.update({name: value for name, value in zip(self.node.output, results, strict=False) if name})

    @abstractmethod
    def results(self, values: Values) -> list[Value]: ...

    def tensor(self, argument: str) -> str:
        """The name of the tensor that a kernel calls ``argument``."""
        return ""

    def inputs(self, values: Values) -> list[Value]:
        return [self.program.value(name, values) for name in self.node.input]


class ListStep(PythonStep):
    """SequenceConstruct and prim::ListConstruct: a Python list. An empty name in it is None."""

    def results(self, values: Values) -> list[Value]:
        return [self.inputs(values)]


class DynamicSliceStep(PythonStep):
    """The removed operator DynamicSlice."""

    def results(self, values: Values) -> list[Value]:
        return [kernels.dynamic_slice(*self.inputs(values))]


class ScatterStep(PythonStep):
    """ScatterND, ScatterElements or Scatter."""

    def results(self, values: Values) -> list[Value]:
        given = attributes(self.node)
        reduction = given.get("reduction", b"none").decode()
        data, indices, updates = self.inputs(values)
        if self.node.op_type == "ScatterND":
            return [scatter.scatter_nd(data, indices, updates, reduction)]
        return [scatter.scatter_elements(data, indices, updates, given.get("axis", 0), reduction)]

    def tensor(self, argument: str) -> str:
        return self.node.input[1] if argument == "indices" else ""


class AtenStep(PythonStep):
    """An ATen node. Its form is read when the program is made, so that an unknown one is refused then."""

    def __init__(self, program: Program, node: onnx.NodeProto) -> None:
        super().__init__(program, node)
        given = attributes(node)
        if aten.is_placeholder(node.op_type, node.domain, given):
            raise ReferenceRefusal(f"{label(node)}: the exporter wrote a Placeholder, without its operands")
        if not aten.is_aten(node.op_type, node.domain):
            raise ReferenceRefusal(f"{label(node)}: the reference cannot run operators of domain {node.domain}")
        try:
            self._call = aten.read_call(node.op_type, given, [name or None for name in node.input])
        except aten.AtenFormError as error:
            raise ReferenceRefusal(f"{label(node)}: {error}") from None
        if self._call.operator not in kernels.KERNELS:
            raise ReferenceRefusal(f"{label(node)}: the reference has no kernel for it")
        names = [name or "" for name in self._call.indices]
        self._index_names = program.list_names(names[0]) if len(names) == 1 else names
        self._sources = [program.mask_source(name) for name in self._index_names]
        self.uses = sorted({*self.uses, *(name for name in self._sources if name)})

    def results(self, values: Values) -> list[Value]:
        call = aten.AtenCall(
            self._call.operator,
            self._call.overload,
            {parameter: self.program.value(name, values) for parameter, name in self._call.arguments.items()},
            self._call.scalars,
            tuple(self.program.value(name or "", values) for name in self._call.indices),
        )
        ranks = [np.ndim(self.program.value(name, values)) if name else None for name in self._sources]
        return [kernels.run_call(call, ranks)]

    def tensor(self, argument: str) -> str:
        name, _, number = argument.partition(":")
        if name == "indices":
            return self._index_names[int(number)] if int(number) < len(self._index_names) else ""
        return self._call.arguments.get(name, "")


class ControlStep(PythonStep):
    """If, Loop or Scan whose body holds an ATen node."""

    def __init__(self, program: Program, node: onnx.NodeProto) -> None:
        super().__init__(program, node)
        self.uses = sorted(set(used_names(node)))
        programs = {
            a.name: Program(a.g, program.context, program)
            for a in node.attribute
            if a.type == onnx.AttributeProto.GRAPH
        }
        try:
            self._run = control.interpreter(node.op_type, programs, attributes(node))
        except ReferenceRefusal as refusal:
            raise refusal.at(label(node)) from None

    def results(self, values: Values) -> list[Value]:
        return self._run(self.inputs(values), values)


def _levels(nodes: list[onnx.NodeProto], uses: list[set[str]], python: Mapping[int, Step]) -> list[list[int]]:
    """Node numbers in an order that can run, as runs of one kind: standard nodes or Python's, as few as possible."""
    maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    waits = [{maker[name] for name in used if name in maker} for used in uses]
    readers: dict[int, list[int]] = {}
    for number, before in enumerate(waits):
        for other in before:
            readers.setdefault(other, []).append(number)
    open_waits = [len(before) for before in waits]
    ready: dict[bool, deque[int]] = {True: deque(), False: deque()}
    for number, count in enumerate(open_waits):
        if count == 0:
            ready[number in python].append(number)
    levels: list[list[int]] = []
    kind = True
    while ready[True] or ready[False]:
        level: list[int] = []
        while ready[kind]:
            number = ready[kind].popleft()
            level.append(number)
            for reader in readers.get(number, ()):
                open_waits[reader] -= 1
                if open_waits[reader] == 0:
                    ready[reader in python].append(reader)
        if level:
            levels.append(level)
        kind = not kind
    return levels


def _signature(value: Value) -> tuple[Any, ...]:
    if isinstance(value, list):
        return ("list", value[0].dtype if value else None)
    if value is None:
        return (None,)
    return (value.dtype, value.ndim)


def _value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        if not value:
            raise ReferenceRefusal(f"the sequence {name!r} is empty, so that its type is unknown")
        element = helper.make_tensor_type_proto(_elem_type(value[0]), None)
        return helper.make_value_info(name, helper.make_sequence_type_proto(element))
    if value is None:
        raise ReferenceRefusal(f"the optional {name!r} is empty, so that its type is unknown")
    return helper.make_tensor_value_info(name, _elem_type(value), [None] * value.ndim)


def _elem_type(value: Array) -> int:
    if value.dtype == object:
        return onnx.TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _dense(tensor: onnx.SparseTensorProto) -> Array:
    values = numpy_helper.to_array(tensor.values)
    indices = numpy_helper.to_array(tensor.indices)
    dense = np.zeros(list(tensor.dims), values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return dense
