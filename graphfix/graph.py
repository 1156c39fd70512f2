"""The working view of a model: GraphSurgeon nodes and tensors over the original protobuf.

GraphSurgeon's own import and export drop metadata, doc strings and what they do not know. Here the protobuf stays the
model: every node keeps its ``NodeProto``, passes work on the GraphSurgeon view, and `Model.write_back` replaces only
the nodes that passes replaced. Nothing else is touched, copied or renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues

from graphfix.protobuf import all_nodes, attribute_bodies, bodies

STANDARD_DOMAINS = ("", "ai.onnx")


class _Identity:
    """GraphSurgeon compares tensors by name and nodes by content; a view needs objects that are just themselves."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Tensor(_Identity, gs.Variable):
    """A value made by a node or given as an input. ``dtype`` is an ONNX element type or None; ``shape`` holds ints,
    dim_param strings and None, or is None when the rank is unknown."""


class _ProtoValues(LazyValues):
    """Values of a TensorProto, loaded on use. (The base class cannot describe every element type.)"""

    def __init__(self, tensor: TensorProto):
        self.tensor = tensor
        self.shape = list(tensor.dims)
        self.dtype = tensor.data_type
        self.nbytes = 0

    def load(self) -> np.ndarray:
        return np.array(onnx.numpy_helper.to_array(self.tensor))


class Constant(_Identity, gs.Constant):
    """An initializer. ``proto`` is its TensorProto."""

    def __init__(self, proto: TensorProto):
        super().__init__(proto.name, _ProtoValues(proto))
        self.proto = proto

    @property
    def dtype(self) -> int:
        return self.proto.data_type

    @property
    def shape(self) -> list[int]:
        return list(self.proto.dims)


Value = Tensor | Constant


class Node(_Identity, gs.Node):
    """A node of the view. ``proto`` is the NodeProto that stands for it in the file."""

    def __init__(self, proto: onnx.NodeProto, attrs: dict[str, Any], inputs: list[Value], outputs: list[Tensor]):
        super().__init__(proto.op_type, proto.name, attrs, inputs, outputs, proto.domain)
        self.proto = proto

    @property
    def has_references(self) -> bool:
        """Whether an attribute stands for one of the function's: its value is the caller's, and differs by call."""
        return any(a.ref_attr_name for a in self.proto.attribute)

    @property
    def standard(self) -> bool:
        """Whether the node belongs to the default ONNX domain."""
        return (self.domain or "") in STANDARD_DOMAINS

    def is_op(self, *op_types: str) -> bool:
        """Whether the node is one of these standard operators."""
        return self.standard and self.op in op_types

    def arg(self, position: int) -> Value | None:
        """The input at a position, None when it is missing or the empty name."""
        if position >= len(self.inputs) or self.inputs[position].name == "":
            return None
        return self.inputs[position]

    @property
    def label(self) -> str:
        """What to call the node in messages: its name, or its first output's."""
        return self.name or next((o.name for o in self.outputs if o.name), "?")


class Scope:
    """One graph of the model: the main graph, the body of an If/Loop/Scan node, or a local function.

    ``nodes`` are in file order. ``outer`` is the scope whose names are visible here (None for the main graph and for
    functions). ``opset`` is the version of the default domain. ``lifted`` maps masks to the tensors that were
    computed on all rows in place of packed ones (see `graphfix.row_region`).
    """

    def __init__(self, model: Model, proto: onnx.GraphProto | onnx.FunctionProto, outer: Scope | None, path: str):
        self.model = model
        self.proto = proto
        self.outer = outer
        self.path = path
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Value] = []
        self.tensors: dict[str, Value] = {}
        self.opset = opset_of(proto if isinstance(proto, onnx.FunctionProto) else model.proto)
        self.constants: dict[tuple[int, tuple[int, ...], bytes], Value] = {}
        self.emitted: dict[Any, Value] = {}
        self.lifted: dict[Value, dict[Value, Value]] = {}
        self._spliced: dict[Node, list[Node]] = {}
        self._removed: set[Node] = set()
        self._new_initializers: list[TensorProto] = []

    @property
    def is_function(self) -> bool:
        return isinstance(self.proto, onnx.FunctionProto)

    def find(self, name: str) -> Value | None:
        """The value of this name that is visible here."""
        if name in self.tensors:
            return self.tensors[name]
        return self.outer.find(name) if self.outer else None

    def add_initializer(self, constant: Constant, key: tuple[int, tuple[int, ...], bytes]) -> None:
        """Add a new initializer to the graph; ``key`` (type, shape, bytes) lets equal ones be shared."""
        self.tensors[constant.name] = constant
        self.constants[key] = constant
        self._new_initializers.append(constant.proto)

    def drop_unused_initializers(self, candidates: list[Constant]) -> None:
        """Forget those of some new initializers that nothing reads."""
        unused = {c.name for c in candidates if not c.outputs and c not in self.model.outputs}
        if unused:
            self._new_initializers = [t for t in self._new_initializers if t.name not in unused]
            self.constants = {k: v for k, v in self.constants.items() if v.name not in unused}
            for name in unused:
                self.tensors.pop(name, None)
                self.model.names.discard(name)

    def is_removed(self, node: Node) -> bool:
        return node in self._removed

    def splice(self, old: Node, new: list[Node]) -> None:
        """Put nodes in the place of another, whose outputs they have taken over; drop what fed only the old one."""
        self._spliced[old] = new
        self.remove(old)
        self.model.changed = True

    def remove(self, node: Node) -> None:
        """Remove a node that nothing reads any more, and then all that was there only for it."""
        queue = [node]
        while queue:
            current = queue.pop()
            scope = self.model.scope_of(current)
            if current in scope._removed:
                continue
            feeding = list(current.inputs)
            scope._removed.add(current)
            current.inputs.clear()
            current.outputs.clear()
            for body in self.model.bodies.get(current, ()):
                for inner in list(body.nodes):
                    feeding += [t for t in inner.inputs if t.inputs or isinstance(t, Constant)]
                    body._removed.add(inner)
                    inner.inputs.clear()
                    inner.outputs.clear()
            for tensor in feeding:
                for producer in list(tensor.inputs):
                    if self.model.is_dead(producer):
                        queue.append(producer)

    def apply(self) -> None:
        """Bring ``nodes`` up to date with what was spliced and removed."""
        if not self._removed and not self._spliced:
            return
        nodes: list[Node] = []

        def emit(node: Node) -> None:
            if node in self._spliced:
                for new in self._spliced[node]:
                    emit(new)
            elif node not in self._removed:
                nodes.append(node)

        for node in self.nodes:
            emit(node)
        self.nodes = nodes
        self._spliced = {}
        self._removed = set()


class Model:
    """A ModelProto and its working view.

    ``scopes`` holds the main graph first, then every body and local function. ``types`` is the same model with
    inferred types, as `graphfix.shapes.infer` returns it.
    """

    def __init__(self, proto: onnx.ModelProto, types: onnx.ModelProto):
        self.proto = proto
        self.changed = False
        self.scopes: list[Scope] = []
        self.bodies: dict[Node, list[Scope]] = {}
        self.names = set(_all_names(proto))
        self.outputs: set[Value] = set()
        self._scope_of: dict[Node, Scope] = {}
        self.main = self._import_graph(proto.graph, types.graph, None, "")
        for function, typed in zip(proto.functions, types.functions, strict=True):
            self._import_function(function, typed)

    def scope_of(self, node: Node) -> Scope:
        return self._scope_of[node]

    def adopt(self, node: Node, scope: Scope) -> None:
        """Tell the model that a new node belongs to a scope."""
        self._scope_of[node] = scope

    def is_dead(self, node: Node) -> bool:
        """Whether nothing reads any output of a node, inside or outside of its scope."""
        return all(not t.outputs and t not in self.outputs for t in node.outputs)

    def fresh(self, base: str) -> str:
        """A name that no tensor or node of the model has."""
        name, n = base, 0
        while name in self.names:
            n += 1
            name = f"{base}_{n}"
        self.names.add(name)
        return name

    def write_back(self) -> None:
        """Write what passes changed into the protobuf. The view is stale afterwards: make a new one.

        Bodies come before the graphs that hold them, as a graph's nodes are copied, bodies included.
        """
        for scope in reversed(self.scopes):
            if not scope._spliced and not scope._removed and not scope._new_initializers:
                continue
            read_before = {name for node in scope.proto.node for name in _names_read(node)}
            scope.apply()
            kept = [node.proto for node in scope.nodes]
            del scope.proto.node[:]
            scope.proto.node.extend(kept)
            if not scope.is_function:
                self._drop_unread_initializers(scope, read_before)
                scope.proto.initializer.extend(scope._new_initializers)
                self._drop_stale_value_info(scope)

    @staticmethod
    def _drop_unread_initializers(scope: Scope, read_before: set[str]) -> None:
        read = {name for node in scope.proto.node for name in _names_read(node)}
        unread = read_before - read - {v.name for v in (*scope.proto.output, *scope.proto.input)}
        if any(t.name in unread for t in scope.proto.initializer):
            kept = [t for t in scope.proto.initializer if t.name not in unread]
            del scope.proto.initializer[:]
            scope.proto.initializer.extend(kept)

    @staticmethod
    def _drop_stale_value_info(scope: Scope) -> None:
        made = {name for node in scope.proto.node for name in node.output}
        made |= {t.name for t in scope.proto.initializer} | {i.name for i in scope.proto.input}
        stale = [v for v in scope.proto.value_info if v.name not in made]
        for value in stale:
            scope.proto.value_info.remove(value)

    def _import_graph(self, proto: onnx.GraphProto, types: onnx.GraphProto, outer: Scope | None, path: str) -> Scope:
        scope = Scope(self, proto, outer, path)
        self.scopes.append(scope)
        known = {v.name: v.type for v in (*types.value_info, *types.output, *types.input)}
        inputs = {i.name for i in proto.input}
        for value in proto.input:
            scope.inputs.append(self._new_tensor(scope, value.name, known))
        overridable = inputs if self.proto.ir_version >= 4 else set()
        for tensor in proto.initializer:
            if tensor.name not in overridable:
                scope.tensors[tensor.name] = Constant(tensor)
        for sparse in proto.sparse_initializer:
            self._new_tensor(scope, sparse.values.name, known)
        self._import_nodes(scope, proto.node, types.node, known)
        scope.outputs = [scope.find(o.name) or self._new_tensor(scope, o.name, known) for o in proto.output]
        self.outputs.update(scope.outputs)
        return scope

    def _import_function(self, proto: onnx.FunctionProto, types: onnx.FunctionProto) -> None:
        scope = Scope(self, proto, None, f"{proto.domain}::{proto.name}")
        self.scopes.append(scope)
        known = {v.name: v.type for v in types.value_info}
        scope.inputs = [self._new_tensor(scope, name, known) for name in proto.input]
        self._import_nodes(scope, proto.node, types.node, known)
        scope.outputs = [scope.find(name) or self._new_tensor(scope, name, known) for name in proto.output]
        self.outputs.update(scope.outputs)

    def _import_nodes(self, scope: Scope, protos: Any, types: Any, known: dict[str, onnx.TypeProto]) -> None:
        for proto in protos:
            for name in proto.output:
                if name:
                    self._new_tensor(scope, name, known)
        for proto, typed in zip(protos, types, strict=True):
            inputs = [scope.find(n) or self._new_tensor(scope, n, known) if n else Tensor("") for n in proto.input]
            outputs = [scope.tensors[n] if n else Tensor("") for n in proto.output]
            node = Node(proto, attributes_of(proto), inputs, outputs)
            scope.nodes.append(node)
            self._scope_of[node] = scope
            typed_graphs = {a.name: a for a in typed.attribute}
            for attribute in proto.attribute:
                pairs = []
                if attribute.type == AttributeProto.GRAPH:
                    pairs = [(attribute.g, typed_graphs[attribute.name].g)]
                elif attribute.type == AttributeProto.GRAPHS:
                    pairs = list(zip(attribute.graphs, typed_graphs[attribute.name].graphs, strict=True))
                for graph, typed_graph in pairs:
                    path = f"{scope.path}/{node.label}.{attribute.name}".lstrip("/")
                    body = self._import_graph(graph, typed_graph, scope, path)
                    self.bodies.setdefault(node, []).append(body)

    @staticmethod
    def _new_tensor(scope: Scope, name: str, known: dict[str, onnx.TypeProto]) -> Tensor:
        dtype, shape = tensor_type(known[name]) if name in known else (None, None)
        tensor = Tensor(name, dtype, shape)
        scope.tensors[name] = tensor
        return tensor


def opset_of(proto: onnx.ModelProto | onnx.FunctionProto) -> int:
    """The version of the default domain that a model or function imports (1 when it imports none)."""
    return max((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), default=1)


def tensor_type(proto: onnx.TypeProto) -> tuple[int | None, list[int | str | None] | None]:
    """Element type and shape of a type; (None, None) for what is not a dense tensor. Negative sizes are unknown."""
    if not proto.HasField("tensor_type"):
        return None, None
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type or None, None
    shape: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            shape.append(dim.dim_param or None)
    return tensor.elem_type or None, shape


def attributes_of(proto: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values; tensors stay TensorProto, graphs and references are left out."""
    attrs: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name or attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            continue
        attrs[attribute.name] = onnx.helper.get_attribute_value(attribute)
    return attrs


def walk(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Every node with the path of the graph it is in, as in the report."""

    def of(nodes: Any, path: str) -> Iterator[tuple[str, onnx.NodeProto]]:
        for node in nodes:
            yield path, node
            label = node.name or next((o for o in node.output if o), "?")
            for attribute in node.attribute:
                for body in attribute_bodies(attribute):
                    yield from of(body.node, f"{path}/{label}.{attribute.name}".lstrip("/"))

    yield from of(model.graph.node, "")
    for function in model.functions:
        yield from of(function.node, f"{function.domain}::{function.name}")


def count_nodes(model: onnx.ModelProto) -> int:
    """The number of nodes in all graphs, bodies and functions."""
    return sum(1 for _ in all_nodes(model))


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for graph in bodies(node):
        yield from (o.name for o in graph.output)
        for inner in graph.node:
            yield from _names_read(inner)


def _all_names(model: onnx.ModelProto) -> Iterator[str]:
    graphs: list[Any] = [model.graph, *model.functions]
    while graphs:
        graph = graphs.pop()
        if isinstance(graph, onnx.FunctionProto):
            yield from graph.input
        else:
            yield from (v.name for v in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))
            yield from (s.values.name for s in graph.sparse_initializer)
        for node in graph.node:
            yield node.name
            yield from node.input
            yield from node.output
            graphs.extend(bodies(node))
