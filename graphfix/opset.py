"""Convert a model to another opset, node by node, and leave everything else as it is.

onnx's own version converter rebuilds the whole model: it stops at ATen nodes, drops metadata, loses local functions and
refuses whole models for one operator. Here only nodes whose operator differs between the two opsets are looked at. What
differs is one of:

- only the types allowed: the node stays, when its own types are allowed at the target;
- attributes or inputs were added, with a default that means what was before: the node stays upwards; downwards it loses
  what says no more than the default;
- anything else has a rule below, for one step up or down. Steps that have no rule go through onnx's version converter,
  one node at a time, or are refused with the node's name.

Rules keep the node that makes the output (its name, doc string and metadata), and put helpers before or after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphfix.aten import is_aten
from graphfix.errors import UnsupportedError, UsageError
from graphfix.model_io import DEFAULT_DOMAINS, REMOVED_OPS, node_label
from graphfix.protobuf import attribute_bodies, bodies

# Opsets whose changes have been read. A later one may give an added attribute a default that means something new.
_REVIEWED = 28
_INT64_MAX = np.iinfo(np.int64).max
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
_REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)

# Operators that allow fewer types in a later opset than in an earlier one.
_NARROWED = frozenset({"Erf", "ReduceLogSum", "ReduceLogSumExp"})


class _Impossible(Exception):
    """Why a node cannot be converted."""


def opset_version(model: ModelProto | FunctionProto) -> int:
    """The version of the default domain that a model or a local function imports; 0 when it imports none."""
    return next((item.version for item in model.opset_import if item.domain in DEFAULT_DOMAINS), 0)


def convert(model: ModelProto, target: int) -> None:
    """Convert a model in place, with its subgraphs and local functions, to an opset of the default domain.

    ATen nodes, operators that ONNX removed, and other domains are left as they are. The IR version is raised where the
    target needs it. Raises UnsupportedError, naming the node and the reason, when there is no equivalent, and
    UsageError when there is no such opset; the model is unchanged then.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= target <= newest:
        raise UsageError(f"there is no opset {target}: the installed onnx package knows 1 to {newest}")
    _Conversion(model, target).run()


# -------------------------------------------------------------------------------------------------------- the driver


class _Scope:
    """One graph: the main graph, a subgraph, or a local function's body.

    ``nodes`` is the node list to be; ``constants`` maps names to tensors known before the model runs.
    """

    def __init__(
        self, conversion: _Conversion, proto: GraphProto | FunctionProto, outer: _Scope | None, source: int, path: tuple
    ) -> None:
        self.conversion = conversion
        self.proto = proto
        self.outer = outer
        self.source = source
        self.path = path
        self.nodes: list[NodeProto] = []
        self.changed = False
        self.new_initializers: list[TensorProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.defined: set[str] = set()
        model = conversion.model
        if isinstance(proto, GraphProto):
            inputs = {i.name for i in proto.input}
            # From IR 4 on an initializer that is an input too is only a default.
            overridable = inputs if model.ir_version >= 4 or path else set()
            self.constants = {t.name: t for t in proto.initializer if t.name not in overridable}
            self.defined |= inputs | {t.name for t in proto.initializer}
        else:
            self.defined |= set(proto.input)
        for node in proto.node:
            self.defined.update(node.output)
            tensor = _constant_tensor(node)
            if tensor is not None:
                self.constants[node.output[0]] = tensor

    @property
    def keeps_constants_as_nodes(self) -> bool:
        """Functions have no initializers, and below IR 4 an initializer would have to become an input."""
        return isinstance(self.proto, FunctionProto) or self.conversion.ir_version < 4

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a constant in memory, None for anything else."""
        tensor = self.constants.get(name)
        if tensor is None:
            return None if name in self.defined or self.outer is None else self.outer.constant(name)
        return None if tensor.data_location == TensorProto.EXTERNAL else numpy_helper.to_array(tensor)

    def type_of(self, name: str) -> onnx.TypeProto.Tensor | None:
        """Element type and shape of a value, as far as known."""
        if name in self.constants:
            tensor = self.constants[name]
            return helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
        found = self.inferred_types.get(name)
        if found is not None and found.HasField("tensor_type"):
            return found.tensor_type
        return None if name in self.defined or self.outer is None else self.outer.type_of(name)

    @functools.cached_property
    def inferred_types(self) -> dict[str, onnx.TypeProto]:
        inferred: Any = self.conversion.inferred
        for step in self.path:
            if isinstance(step, str):  # a local function
                position = [f.name for f in self.conversion.model.functions].index(step)
                inferred = inferred.functions[position] if position < len(inferred.functions) else None
            else:
                node_index, attribute_name, body_index = step
                attributes = inferred.node[node_index].attribute if inferred is not None else ()
                attribute = next((a for a in attributes if a.name == attribute_name), None)
                inferred = None if attribute is None else attribute_bodies(attribute)[body_index]
        if inferred is None:
            return {}
        values = [*inferred.value_info]
        if isinstance(inferred, (ModelProto, GraphProto)):
            values += [*inferred.input, *inferred.output]
        return {value.name: value.type for value in values}


class _Conversion:
    """A conversion of one model: plans everything first, then writes it into the model."""

    def __init__(self, model: ModelProto, target: int) -> None:
        self.model = model
        self.target = target
        imports = [helper.make_opsetid(i.domain, i.version) for i in model.opset_import]
        for item in imports:
            if item.domain in DEFAULT_DOMAINS:
                item.version = target
        self.ir_version = max(model.ir_version, helper.find_min_ir_version_for(imports, ignore_unknown=True))
        self.scopes: list[_Scope] = []  # bodies before the graphs that hold them
        self.names = set(_names(model.graph))
        for function in model.functions:
            self.names.update(_names(function))
        self.made: set[str] = set()  # new constants
        self.local = {(f.domain, f.name) for f in model.functions}

    @functools.cached_property
    def inferred(self) -> Any:
        from graphfix.shapes import infer

        inferred = infer(self.model)

        main = inferred.graph
        values = [*main.value_info, *main.input, *main.output]
        # So that a path starts alike for the graph and for a function.
        return SimpleNamespace(functions=inferred.functions, node=main.node, value_info=values)

    def run(self) -> None:
        source = opset_version(self.model)
        if source and source != self.target:
            self._plan(self.model.graph, None, source, ())
        for function in self.model.functions:
            source_here = opset_version(function) or source
            if source_here and source_here != self.target:
                self._plan(function, None, source_here, (function.name,))
        candidates = _read_names(self.model) | self.made
        for scope in self.scopes:
            self._write(scope)
        self._drop_unread(candidates)
        for owner in (self.model, *self.model.functions):
            for item in owner.opset_import:
                if item.domain in DEFAULT_DOMAINS:
                    item.version = self.target
        self.model.ir_version = self.ir_version if source != self.target else self.model.ir_version

    def fresh(self, base: str) -> str:
        n = 0
        while (name := f"{base}/graphfix/opset/{n}") in self.names:
            n += 1
        self.names.add(name)
        return name

    def _plan(self, proto: GraphProto | FunctionProto, outer: _Scope | None, source: int, path: tuple) -> None:
        scope = _Scope(self, proto, outer, source, path)
        for index, node in enumerate(proto.node):
            for attribute in node.attribute:
                for body_index, body in enumerate(attribute_bodies(attribute)):
                    self._plan(body, scope, source, (*path, (index, attribute.name, body_index)))
            converted = [node] if self._leaves_alone(node) else self._migrate_or_refuse(scope, node, source)
            scope.changed |= len(converted) != 1 or converted[0] is not node
            scope.nodes += converted
        self.scopes.append(scope)

    def _leaves_alone(self, node: NodeProto) -> bool:
        return (
            node.domain not in DEFAULT_DOMAINS
            or (node.domain, node.op_type) in self.local
            or node.op_type in REMOVED_OPS
            or is_aten(node.op_type, node.domain)
            or not onnx.defs.has(node.op_type)
        )

    def _migrate_or_refuse(self, scope: _Scope, node: NodeProto, source: int) -> list[NodeProto]:
        try:
            converted = self._migrate(scope, node, source)
            if _since(node.op_type, source) != _since(node.op_type, self.target):
                types = self.target < source or node.op_type in _NARROWED
                for result in converted:
                    _check_fits(scope, result, self.target, types=types)
        except _Impossible as error:
            raise UnsupportedError(
                f"cannot convert {node_label(node)} from opset {source} to {self.target}: {error}; choose another opset"
            ) from None
        return converted

    def _migrate(self, scope: _Scope, node: NodeProto, version: int) -> list[NodeProto]:
        """Take a node that is valid at a version to the target, one change of its operator at a time."""
        versions = _versions(node.op_type)
        if version < self.target:
            reached = next((v for v in versions if version < v <= self.target), None)
            if reached is None:
                return [node]
            rule = _UP.get((node.op_type, reached))
            if rule is None and reached <= _REVIEWED and _only_adds(node.op_type, reached):
                return self._migrate(scope, node, reached)
        else:
            current = _since(node.op_type, version)
            if current is None or current <= self.target:
                return [node]
            reached = current - 1
            rule = _DOWN.get((node.op_type, current))
            if rule is None and _only_types(node.op_type, current):
                return self._migrate(scope, node, reached)
            if rule is None and _since(node.op_type, reached) is None:
                raise _Impossible(f"the operator came with opset {current}")
            if rule is None and _only_adds(node.op_type, current):
                rule = functools.partial(_undo_additions, version=current)
        step = _Step(scope, node)
        if rule is not None:
            rule(step)
        else:
            step.by_version_converter(version, reached)
        return [final for made in step.result() for final in self._migrate(scope, made, reached)]

    def _write(self, scope: _Scope) -> None:
        if not scope.changed:
            return
        del scope.proto.node[:]
        scope.proto.node.extend(scope.nodes)
        if isinstance(scope.proto, GraphProto):
            scope.proto.initializer.extend(scope.new_initializers)

    def _drop_unread(self, candidates: set[str]) -> None:
        """Drop constants that only the old forms, or forms between the two opsets, read."""
        unread = candidates - _read_names(self.model)
        for scope in self.scopes:
            declared = {i.name for i in scope.proto.input} if isinstance(scope.proto, GraphProto) else set()
            dropped = unread - declared
            proto = scope.proto
            _replace(proto.node, [n for n in proto.node if n.op_type != "Constant" or not dropped.issuperset(n.output)])
            if isinstance(proto, GraphProto):
                _replace(proto.initializer, [t for t in proto.initializer if t.name not in dropped])
                _replace(proto.value_info, [v for v in proto.value_info if v.name not in dropped])


class _Step:
    """One node on its way over one change of its operator. Rules edit ``node``, a copy that keeps its outputs."""

    def __init__(self, scope: _Scope, original: NodeProto) -> None:
        self.scope = scope
        self.node = NodeProto()
        self.node.CopyFrom(original)
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in original.attribute):
            raise _Impossible("the form of its body changed between the two")
        self.base = original.name or next((o for o in original.output if o), original.op_type)
        self.before: list[NodeProto] = []
        self.after: list[NodeProto] = []

    def result(self) -> list[NodeProto]:
        return [*self.before, self.node, *self.after]

    # ---- attributes and inputs

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; Impossible when it is a parameter of the local function."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                if attribute.ref_attr_name:
                    raise _Impossible(f"its {name} is an attribute of the local function it is in")
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def pop(self, name: str, default: Any = None) -> Any:
        value = self.attribute(name, default)
        self.remove(name)
        return value

    def remove(self, *names: str) -> None:
        kept = [a for a in self.node.attribute if a.name not in names]
        del self.node.attribute[:]
        self.node.attribute.extend(kept)

    def set(self, name: str, value: Any) -> None:
        self.remove(name)
        kind = AttributeProto.INTS if isinstance(value, list) else None
        self.node.attribute.append(helper.make_attribute(name, value, attr_type=kind))

    def input(self, position: int) -> str:
        """The name of an input, empty when it is absent."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def set_inputs(self, *names: str) -> None:
        """Replace all inputs; absent ones at the end are left out."""
        wanted = list(names)
        while wanted and not wanted[-1]:
            wanted.pop()
        del self.node.input[:]
        self.node.input.extend(wanted)

    def value(self, position: int, what: str) -> np.ndarray | None:
        """The constant value of an input; None when it is absent. Impossible when it is known only at run time."""
        if not self.input(position):
            return None
        value = self.scope.constant(self.input(position))
        if value is None:
            raise _Impossible(f"its {what} is not constant, and the target has no input for it")
        return value

    # ---- facts

    def dtype(self, name: str, need: bool = True) -> int:
        found = self.scope.type_of(name)
        if found is not None and found.elem_type:
            return found.elem_type
        if need:
            raise _Impossible(f"the type of {name!r} is unknown")
        return 0

    def dims(self, name: str) -> list[int | None] | None:
        """The shape of a value with None for dynamic dims; None when not even the rank is known."""
        found = self.scope.type_of(name)
        if found is None or not found.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in found.shape.dim]

    def rank(self, name: str) -> int:
        dims = self.dims(name)
        if dims is None:
            raise _Impossible(f"the rank of {name!r} is unknown")
        return len(dims)

    def is_read(self, output: int) -> bool:
        """Whether anything in the model reads an output."""
        name = self.node.output[output] if output < len(self.node.output) else ""
        return bool(name) and name in _read_names(self.scope.conversion.model)

    # ---- new nodes

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """A new constant. ``dtype`` is a NumPy type, or an ONNX element type for the others."""
        if isinstance(dtype, int):
            dtype = helper.tensor_dtype_to_np_dtype(dtype)
        name = self.scope.conversion.fresh(self.base)
        tensor = numpy_helper.from_array(np.asarray(values, dtype), name)
        self.scope.constants[name] = tensor
        self.scope.conversion.made.add(name)
        if self.scope.keeps_constants_as_nodes:
            self.before.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.scope.new_initializers.append(tensor)
        return name

    def emit(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A new node before this one. Returns the name of what it makes."""
        return self._new(self.before, op_type, inputs, self.scope.conversion.fresh(self.base), attributes)

    def finish(self, op_type: str, position: int, inputs: Callable[[str], Sequence[str]], **attributes: Any) -> None:
        """A new node after this one that makes one of its outputs, out of what this one makes for it from now on."""
        output = self.node.output[position]
        self.node.output[position] = self.scope.conversion.fresh(self.base)
        self._new(self.after, op_type, inputs(self.node.output[position]), output, attributes)

    def become(self, op_type: str, *inputs: str, **attributes: Any) -> None:
        """Turn the node itself into another operator."""
        self.node.op_type = op_type
        self.set_inputs(*inputs)
        del self.node.attribute[:]
        self.node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())

    def _new(
        self, place: list[NodeProto], op_type: str, inputs: Sequence[str], output: str, attributes: dict[str, Any]
    ) -> str:
        name = self.scope.conversion.fresh(self.base)
        place.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    # ---- the last resort

    def by_version_converter(self, source: int, target: int) -> None:
        """Let onnx convert this one node."""
        reason = f"{self.node.op_type} changed, and no equivalent is known"
        model = ModelProto(ir_version=8, graph=GraphProto(name="node"))
        model.opset_import.add(domain="", version=source)
        model.graph.node.append(self.node)
        for name in dict.fromkeys(filter(None, self.node.input)):
            known = self.scope.type_of(name)
            value = self.scope.constant(name)
            if known is None:
                raise _Impossible(reason)
            if value is not None:
                model.graph.initializer.append(numpy_helper.from_array(value, name))
            else:
                model.graph.input.append(onnx.ValueInfoProto(name=name, type=onnx.TypeProto(tensor_type=known)))
        for name in filter(None, self.node.output):
            known = self.scope.type_of(name)
            kind = onnx.TypeProto(tensor_type=known) if known is not None else None
            model.graph.output.append(onnx.ValueInfoProto(name=name, type=kind))
        try:
            graph = onnx.version_converter.convert_version(model, target).graph
        except Exception:
            raise _Impossible(reason) from None
        self._take_over(graph)

    def _take_over(self, graph: GraphProto) -> None:
        """Use the nodes that onnx made in the place of this one."""
        outer = {*self.node.input, *self.node.output}
        names = {"": ""} | {name: name for name in outer}
        for tensor in graph.initializer:
            if tensor.name not in outer:
                array = numpy_helper.to_array(tensor)
                names[tensor.name] = self.constant(array, array.dtype)
        main = next((n for n in graph.node if n.output[0] == self.node.output[0]), None)
        if main is None:
            raise _Impossible(f"{self.node.op_type} changed, and no equivalent is known")
        for node in graph.node:
            for output in node.output:
                names.setdefault(output, self.scope.conversion.fresh(self.base))
            inputs = [names[name] for name in node.input]
            outputs = [names[name] for name in node.output]
            target = self.node if node is main else NodeProto(name=self.scope.conversion.fresh(self.base))
            if node is not main:
                self.before.append(target)
            target.op_type, target.domain = node.op_type, ""
            del target.input[:], target.output[:], target.attribute[:]
            target.input.extend(inputs)
            target.output.extend(outputs)
            target.attribute.extend(node.attribute)


def _replace(items: Any, kept: list) -> None:
    """Shorten a repeated field, which is touched only when something goes."""
    if len(kept) < len(items):
        del items[:]
        items.extend(kept)


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """What a Constant node holds, when that is a dense tensor."""
    if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.ref_attr_name:
        return None
    if attribute.name == "value":
        return attribute.t
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if attribute.name in kinds:
        return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), kinds[attribute.name]))
    if attribute.name in ("value_string", "value_strings"):
        return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), object))
    return None


def _names(proto: GraphProto | FunctionProto) -> Iterator[str]:
    """Every name of a value or a node."""
    if isinstance(proto, GraphProto):
        yield from (value.name for value in (*proto.input, *proto.output, *proto.value_info, *proto.initializer))
        yield from (sparse.values.name for sparse in proto.sparse_initializer)
    else:
        yield from (*proto.input, *proto.output)
    for node in proto.node:
        yield from (node.name, *node.input, *node.output)
        for body in bodies(node):
            yield from _names(body)


def _read_names(model: ModelProto) -> set[str]:
    """Every name that a node reads or that leaves a graph."""
    read: set[str] = set()

    def collect(proto: GraphProto | FunctionProto) -> None:
        read.update(o if isinstance(o, str) else o.name for o in proto.output)
        for node in proto.node:
            read.update(node.input)
            for body in bodies(node):
                collect(body)

    for proto in (model.graph, *model.functions):
        collect(proto)
    return read


# ----------------------------------------------------------------------------------------------- what schemas tell


@functools.cache
def _history() -> dict[str, dict[int, Any]]:
    history: dict[str, dict[int, Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, {})[schema.since_version] = schema
    return {name: dict(sorted(versions.items())) for name, versions in history.items()}


def _versions(op_type: str) -> tuple[int, ...]:
    """The opsets that changed an operator, oldest first."""
    return tuple(_history().get(op_type, ()))


def _since(op_type: str, opset: int) -> int | None:
    """The opset that an operator of this opset has its definition from; None when it did not exist yet."""
    return max((v for v in _versions(op_type) if v <= opset), default=None)


def _attribute_signature(attribute: Any) -> tuple:
    return attribute.type, attribute.required, attribute.default_value.SerializeToString()


@functools.cache
def _only_adds(op_type: str, version: int) -> bool:
    """Whether this version of an operator only allows more: types, optional attributes and inputs at the end."""
    new, old = _history()[op_type][version], _history()[op_type][_since(op_type, version - 1) or version]
    if new.deprecated or len(new.outputs) != len(old.outputs) or len(new.inputs) < len(old.inputs):
        return False
    for name, attribute in old.attributes.items():
        # Constant's value was required before it had alternatives.
        if name not in new.attributes or (
            op_type != "Constant" and _attribute_signature(attribute) != _attribute_signature(new.attributes[name])
        ):
            return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    same = all(a.option == b.option or b.option == optional for a, b in zip(old.inputs, new.inputs, strict=False))
    added = new.inputs[len(old.inputs) :]
    return (
        same
        and all(i.option == optional for i in added)
        and not any(a.required for name, a in new.attributes.items() if name not in old.attributes)
    )


@functools.cache
def _only_types(op_type: str, version: int) -> bool:
    """Whether this version of an operator allows more types, and nothing else is new."""
    before = _since(op_type, version - 1)
    if before is None or not _only_adds(op_type, version):
        return False
    new, old = _history()[op_type][version], _history()[op_type][before]
    return new.attributes.keys() == old.attributes.keys() and [i.option for i in new.inputs] == [
        i.option for i in old.inputs
    ]


def _undo_additions(step: _Step, version: int) -> None:
    """Down by one change that only added: drop attributes that say what the default says, refuse all else."""
    op_type = step.node.op_type
    new, old = _history()[op_type][version], _history()[op_type][_since(op_type, version - 1) or version]
    for name in [a.name for a in step.node.attribute]:
        if name in old.attributes or name not in new.attributes:
            continue
        value = step.attribute(name)
        default = new.attributes[name].default_value
        if default.type:
            neutral = helper.get_attribute_value(default)
            neutral = neutral.decode() if isinstance(neutral, bytes) else neutral
        else:
            neutral = [1] * len(value) if name == "dilations" else None
        if value != neutral:
            raise _Impossible(f"{name}={value} came with opset {version}")
        step.remove(name)
    for position, parameter in enumerate(new.inputs):
        wanted = step.input(position)
        if position >= len(old.inputs) and wanted:
            raise _Impossible(f"its input {parameter.name} came with opset {version}")
        if position < len(old.inputs) and not wanted and parameter.option != old.inputs[position].option:
            raise _Impossible(f"its input {parameter.name} may be left out only from opset {version} on")
    if len(step.node.input) > old.max_input:
        step.set_inputs(*step.node.input[: old.max_input])


def _check_fits(scope: _Scope, node: NodeProto, target: int, *, types: bool) -> None:
    """Hold a converted node against the target's schema."""
    since = _since(node.op_type, target)
    if since is None:
        raise _Impossible(f"{node.op_type} does not exist there")
    schema = _history()[node.op_type][since]
    unknown = [a.name for a in node.attribute if a.name not in schema.attributes]
    if schema.deprecated or unknown or not schema.min_input <= len(node.input) <= schema.max_input:
        raise _Impossible(f"{node.op_type} has another form there")
    if not types:
        return
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, str] = {}
    for names, parameters in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for position, name in enumerate(names):
            parameter = parameters[min(position, len(parameters) - 1)]
            known = scope.type_of(name) if name else None
            if known is None or not known.elem_type:
                continue
            kind = f"tensor({TensorProto.DataType.Name(known.elem_type).lower()})"
            if kind not in allowed.get(parameter.type_str, {parameter.type_str}):
                raise _Impossible(f"{parameter.name} may not be {kind[7:-1]} there")
            if parameter.is_homogeneous and bound.setdefault(parameter.type_str, kind) != kind:
                raise _Impossible(f"{parameter.name} may not be {kind[7:-1]} beside {bound[parameter.type_str][7:-1]}")


# ------------------------------------------------------------------------------------------------------- rules, up

_Rule = Callable[[_Step], None]
_UP: dict[tuple[str, int], _Rule] = {}
_DOWN: dict[tuple[str, int], _Rule] = {}


def _up(version: int, *op_types: str) -> Callable[[_Rule], _Rule]:
    """Registers a rule that takes an operator from the opset before this version to this version."""
    return functools.partial(_register, _UP, version, op_types)


def _down(version: int, *op_types: str) -> Callable[[_Rule], _Rule]:
    """Registers a rule that takes an operator of this version to the opset before it."""
    return functools.partial(_register, _DOWN, version, op_types)


def _register(table: dict[tuple[str, int], _Rule], version: int, op_types: Iterable[str], rule: _Rule) -> _Rule:
    for op_type in op_types:
        table[op_type, version] = rule
    return rule


def _attribute_to_input(step: _Step, name: str) -> None:
    """A list attribute becomes the second input. An empty list means the same as none."""
    values = step.pop(name)
    if values:
        step.set_inputs(step.input(0), step.constant(values))


@_up(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
def _(step: _Step) -> None:
    """The second operand could start at any axis of the first. (onnx's own converter takes the wrong one.)"""
    axis = step.pop("axis")
    if step.pop("broadcast", 0) and axis is not None:
        rank, given = step.rank(step.input(0)), step.rank(step.input(1))
        missing = rank - (axis + rank if axis < 0 else axis) - given
        if missing > 0:
            axes = list(range(given, given + missing))
            step.set_inputs(step.input(0), step.emit("Unsqueeze", [step.input(1)], axes=axes))


@_up(8, "MaxPool")
def _(step: _Step) -> None:
    """The indices, a second output, came."""


@_up(9, "BatchNormalization")
def _(step: _Step) -> None:
    if step.pop("spatial", 1) != 1:
        raise _Impossible("statistics for each position (spatial=0) are gone")


@_up(9, "Upsample")
def _(step: _Step) -> None:
    step.set_inputs(step.input(0), step.constant(step.pop("scales"), np.float32))


@_up(10, "Upsample")
def _(step: _Step) -> None:
    step.node.op_type = "Resize"


@_up(10, "Slice")
def _(step: _Step) -> None:
    starts, ends, axes = step.pop("starts"), step.pop("ends"), step.pop("axes")
    step.set_inputs(step.input(0), *(step.constant(v) for v in (starts, ends, axes) if v is not None))


@_up(10, "TopK")
def _(step: _Step) -> None:
    step.set_inputs(step.input(0), step.constant([step.pop("k")]))


@_up(10, "Dropout")
def _(step: _Step) -> None:
    if step.is_read(1):
        raise _Impossible("its mask, which is read, has another type there")


@_up(11, "Clip")
def _(step: _Step) -> None:
    bounds = [step.pop("min"), step.pop("max")]
    kind = step.dtype(step.input(0)) if any(b is not None for b in bounds) else 0
    step.set_inputs(step.input(0), *("" if b is None else step.constant(b, kind) for b in bounds))


@_up(11, "Pad")
def _(step: _Step) -> None:
    pads, value = step.pop("pads"), step.pop("value", 0.0)
    fill = step.constant(value, step.dtype(step.input(0))) if value else ""
    step.set_inputs(step.input(0), step.constant(pads), fill)


@_up(11, "Resize")
def _(step: _Step) -> None:
    """Opset 10 left the coordinates open. ONNX Runtime rounds down when enlarging and up when shrinking."""
    scales = step.scope.constant(step.input(1))
    rounding = {"floor"}
    if scales is not None and step.attribute("mode", "nearest") == "nearest":
        inverse = [1 / s for s in scales.tolist()]
        rounding = {"floor" if v < 1 else "ceil" for v in inverse if not float(v).is_integer()} or {"floor"}
        if any(v < 1 for v in inverse) and "ceil" in rounding:
            raise _Impossible("it enlarges one axis and shrinks another, which round differently")
    step.set("coordinate_transformation_mode", "asymmetric")
    step.set("nearest_mode", next(iter(rounding)))
    step.set_inputs(step.input(0), step.constant([], np.float32), step.input(1))


@_up(11, "Scatter")
def _(step: _Step) -> None:
    step.node.op_type = "ScatterElements"


@_up(12, "Dropout")
def _(step: _Step) -> None:
    if step.is_read(1):
        raise _Impossible("its mask, which is read, is inverted there")
    ratio = step.pop("ratio")
    if ratio is not None:
        step.set_inputs(step.input(0), step.constant(ratio, np.float32))


@_up(13, "Resize")
def _(step: _Step) -> None:
    if step.attribute("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise _Impossible("coordinate_transformation_mode=tf_half_pixel_for_nn is gone")
    if step.input(3):  # scales had to be an empty tensor then, and has to be absent now
        step.set_inputs(step.input(0), step.input(1), "", step.input(3))


@_up(13, "ReduceSum", "Squeeze", "Unsqueeze")
@_up(18, *_REDUCTIONS)
def _(step: _Step) -> None:
    _attribute_to_input(step, "axes")


@_up(13, "Split")
def _(step: _Step) -> None:
    _attribute_to_input(step, "split")


@_up(13, "Softmax", "LogSoftmax", "Hardmax")
def _(step: _Step) -> None:
    """Until 12, all axes from ``axis`` on count as one; from 13 on, ``axis`` is a single axis."""
    data = step.input(0)
    axis = step.attribute("axis", 1)
    dims = step.dims(data)
    if axis == -1:
        return
    if dims is not None:
        first = axis + len(dims) if axis < 0 else axis
        wide = [i for i in range(first, len(dims)) if dims[i] != 1]
        if first == len(dims) - 1 or len(wide) <= 1:
            step.set("axis", wide[0] if wide else first)
            if step.attribute("axis") == len(dims) - 1:
                step.set("axis", -1)
            return
    shape = step.emit("Shape", [data])
    step.set_inputs(step.emit("Flatten", [data], axis=axis))
    step.set("axis", -1)
    step.finish("Reshape", 0, lambda flat: [flat, shape])


@_up(14, "BatchNormalization")
def _(step: _Step) -> None:
    if any(step.node.output[1:]):
        raise _Impossible("it is in training mode (it has statistics as outputs), which was defined anew")
    del step.node.output[1:]


@_up(16, "RoiAlign")
def _(step: _Step) -> None:
    step.set("coordinate_transformation_mode", "output_half_pixel")


@_up(18, "Split")
def _(step: _Step) -> None:
    if not step.input(1):
        step.set("num_outputs", len(step.node.output))


@_up(20, "GridSample")
def _(step: _Step) -> None:
    mode = step.pop("mode", "bilinear")
    step.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_up(20, "DFT")
def _(step: _Step) -> None:
    step.set_inputs(step.input(0), step.input(1), step.constant(step.pop("axis", 1)))


@_up(21, "GroupNormalization")
def _(step: _Step) -> None:
    """Scale and bias come for each channel now, not for each group."""
    groups = step.attribute("num_groups")
    dims = step.dims(step.input(0))
    if dims is None or dims[1] is None:
        raise _Impossible("the number of its channels is unknown")
    names = []
    for position in (1, 2):
        column = step.emit("Reshape", [step.input(position), step.constant([-1, 1])])
        spread = step.emit("Expand", [column, step.constant([groups, dims[1] // groups])])
        names.append(step.emit("Reshape", [spread, step.constant([-1])]))
    step.set_inputs(step.input(0), *names)


# ----------------------------------------------------------------------------------------------------- rules, down


def _input_to_attribute(step: _Step, name: str) -> None:
    """The second input, a list, becomes an attribute."""
    values = step.value(1, name)
    step.set_inputs(step.input(0))
    if values is not None and values.size:
        step.set(name, [int(v) for v in values.reshape(-1)])


@_down(13, "ReduceSum", "Squeeze", "Unsqueeze")
@_down(18, *_REDUCTIONS)
def _(step: _Step) -> None:
    noop = step.pop("noop_with_empty_axes", 0)
    _input_to_attribute(step, "axes")
    if noop and step.attribute("axes") is None:
        if step.node.op_type not in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"):
            raise _Impossible("noop_with_empty_axes does not exist there")
        step.become("Identity", step.input(0))


@_down(18, "Split")
def _(step: _Step) -> None:
    """Before 18, parts without given sizes are equal."""
    parts = step.pop("num_outputs")
    if step.input(1) or parts is None:
        return
    dims = step.dims(step.input(0))
    size = dims[step.attribute("axis", 0)] if dims is not None else None
    if size is None:
        raise _Impossible("whether its parts are equal is unknown, as the size of the split axis is")
    if size % parts:
        part = -(-size // parts)
        step.set_inputs(step.input(0), step.constant([part] * (parts - 1) + [size - part * (parts - 1)]))


@_down(13, "Split")
def _(step: _Step) -> None:
    _input_to_attribute(step, "split")


@_down(13, "Softmax", "LogSoftmax", "Hardmax")
def _(step: _Step) -> None:
    axis = step.attribute("axis", -1)
    dims = step.dims(step.input(0))
    if dims is None:
        if axis != -1:
            raise _Impossible(f"the rank of {step.input(0)!r} is unknown")
        step.set("axis", -1)
        return
    axis = axis + len(dims) if axis < 0 else axis
    if all(d == 1 for d in dims[axis + 1 :]):
        step.set("axis", axis)
        return
    order = list(range(len(dims)))
    order[axis], order[-1] = order[-1], order[axis]
    step.set_inputs(step.emit("Transpose", [step.input(0)], perm=order))
    step.set("axis", len(dims) - 1)
    step.finish("Transpose", 0, lambda moved: [moved], perm=order)


@_down(21, "QuantizeLinear")
def _(step: _Step) -> None:
    kind = step.pop("output_dtype", 0)
    if kind and not step.input(2) and kind != TensorProto.UINT8:
        step.set_inputs(step.input(0), step.input(1), step.constant(0, kind))
        scale = step.dims(step.input(1))
        if scale is None or scale not in ([], [1]):
            raise _Impossible("its zero point would need the shape of its scale, which is unknown")
    _undo_additions(step, 21)


@_down(23, "DequantizeLinear")
def _(step: _Step) -> None:
    kind = step.pop("output_dtype", 0)
    if kind and kind != step.dtype(step.input(1)):
        raise _Impossible("its output has not the type of its scale")


@_down(13, "QuantizeLinear", "DequantizeLinear")
def _(step: _Step) -> None:
    dims = step.dims(step.input(1))
    if dims is None or any(d != 1 for d in dims):
        raise _Impossible("it has a scale for each channel")
    step.remove("axis")


@_down(20, "GridSample")
def _(step: _Step) -> None:
    if step.rank(step.input(0)) != 4:
        raise _Impossible("only images (4 dims) can be sampled there")
    mode = step.pop("mode", "linear")
    step.set("mode", {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))


@_down(21, "GroupNormalization")
def _(step: _Step) -> None:
    """Before 21 scale and bias were those of a group: normalise the groups, then scale the channels."""
    data, groups, rank = step.input(0), step.attribute("num_groups"), step.rank(step.input(0))
    kind = step.dtype(data)
    grouped = step.emit("Reshape", [data, step.constant([0, groups, -1])])
    unit = [step.constant(np.full(groups, value), kind) for value in (1, 0)]
    normal = step.emit("InstanceNormalization", [grouped, *unit], epsilon=float(step.attribute("epsilon", 1e-5)))
    normal = step.emit("Reshape", [normal, step.emit("Shape", [data])])
    column = step.constant([-1] + [1] * (rank - 2))
    scale, bias = (step.emit("Reshape", [step.input(i), column]) for i in (1, 2))
    step.become("Add", step.emit("Mul", [normal, scale]), bias)


@_down(20, "DFT")
def _(step: _Step) -> None:
    axis = step.value(2, "axis")
    step.set_inputs(step.input(0), step.input(1))
    step.set("axis", -2 if axis is None else int(axis))
    if step.attribute("axis") < 0:
        step.set("axis", step.attribute("axis") + step.rank(step.input(0)))


@_down(19, "Resize")
def _(step: _Step) -> None:
    if step.attribute("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise _Impossible("coordinate_transformation_mode=half_pixel_symmetric came with opset 19")


@_down(18, "Resize")
def _(step: _Step) -> None:
    axes = step.pop("axes")
    if axes and list(axes) != list(range(step.rank(step.input(0)))):
        _spread_resize(step, axes)
    _undo_additions(step, 18)


def _spread_resize(step: _Step, axes: Sequence[int]) -> None:
    """Give scales or sizes for all axes instead of some."""
    dims = step.dims(step.input(0)) or []
    if step.input(1):
        raise _Impossible("its region of interest is given for some axes only")
    name, full, kind = ("scales", [1.0] * len(dims), np.float32) if step.input(2) else ("sizes", dims, np.int64)
    given = step.value(2 if step.input(2) else 3, name)
    wanted: list[Any] = list(full)
    for axis, value in zip(axes, [] if given is None else given.tolist(), strict=True):
        wanted[axis] = value
    if None in wanted:
        raise _Impossible("its sizes are given for some axes only, and the others are dynamic")
    constant = step.constant(wanted, kind)
    step.set_inputs(step.input(0), "", constant if step.input(2) else "", "" if step.input(2) else constant)


@_down(13, "Resize")
def _(step: _Step) -> None:
    """Region of interest and scales must be there, if only as empty tensors."""
    empty = step.constant([], np.float32) if not (step.input(1) and step.input(2)) else ""
    step.set_inputs(step.input(0), step.input(1) or empty, step.input(2) or empty, step.input(3))


@_down(11, "Resize")
def _(step: _Step) -> None:
    """Opset 10 has one way to find coordinates: the asymmetric one, rounding down (when enlarging)."""
    scales = step.value(2, "scales")
    nearest = step.pop("mode", "nearest") == "nearest"
    same = step.pop("coordinate_transformation_mode", "half_pixel") == "asymmetric"
    rounding = step.pop("nearest_mode", "round_prefer_floor")
    step.remove("cubic_coeff_a", "exclude_outside", "extrapolation_value")
    if step.attribute("mode") == "cubic" or not same or scales is None or not scales.size:
        raise _Impossible("its way to find coordinates came with opset 11")
    if nearest and (rounding != "floor" or any(not float(1 / s).is_integer() for s in scales.tolist() if s < 1)):
        raise _Impossible("its way to round coordinates came with opset 11")
    step.set("mode", "nearest" if nearest else "linear")
    step.set_inputs(step.input(0), step.input(2))


@_down(10, "Resize")
def _(step: _Step) -> None:
    scales = step.value(1, "scales")
    if scales is None or (scales < 1).any():
        raise _Impossible("it makes an axis smaller")
    step.node.op_type = "Upsample"


@_down(18, "Pad")
def _(step: _Step) -> None:
    axes = step.value(3, "axes")
    if axes is None:
        step.set_inputs(*list(step.node.input)[:3])
        return
    pads = step.value(1, "pads")
    rank = step.rank(step.input(0))
    full = np.zeros((2, rank), np.int64)
    full[:, axes.astype(np.int64)] = np.reshape([] if pads is None else pads, (2, -1))
    step.set_inputs(step.input(0), step.constant(full.reshape(-1)), step.input(2))


@_down(19, "Pad")
def _(step: _Step) -> None:
    if step.attribute("mode") == "wrap":
        raise _Impossible("mode=wrap came with opset 19")


@_down(11, "Pad")
def _(step: _Step) -> None:
    pads, value = step.value(1, "pads"), step.value(2, "fill value")
    step.set_inputs(step.input(0))
    step.set("pads", [int(v) for v in ([] if pads is None else pads)])
    if value is not None:
        step.set("value", float(value.reshape(())))


@_down(11, "Clip")
def _(step: _Step) -> None:
    bounds = {"min": step.value(1, "minimum"), "max": step.value(2, "maximum")}
    step.set_inputs(step.input(0))
    for name, bound in bounds.items():
        if bound is not None:
            step.set(name, float(bound.reshape(())))


@_down(12, "Clip", "Max", "Min")
def _(step: _Step) -> None:
    """Integers came with opset 12: compare and choose instead."""
    if step.dtype(step.input(0), need=False) in {0, *_FLOATS}:
        return
    if step.node.op_type == "Clip":
        pairs = [(bound, "Less" if i == 0 else "Greater") for i, bound in enumerate(step.node.input[1:]) if bound]
    else:
        pairs = [(other, "Less" if step.node.op_type == "Max" else "Greater") for other in step.node.input[1:]]
    current = step.input(0)
    for other, comparison in pairs[:-1]:
        current = step.emit("Where", [step.emit(comparison, [current, other]), other, current])
    if pairs:
        other, comparison = pairs[-1]
        step.become("Where", step.emit(comparison, [current, other]), other, current)
    else:
        step.become("Identity", current)


@_down(10, "TopK")
def _(step: _Step) -> None:
    count = step.value(1, "K")
    step.set_inputs(step.input(0))
    if count is not None:
        step.set("k", int(count.reshape(())))


@_down(10, "Slice")
def _(step: _Step) -> None:
    steps = step.value(4, "steps")
    if steps is not None and (steps != 1).any():
        raise _Impossible("it has steps, which came with opset 10")
    values = {n: step.value(i, n) for i, n in enumerate(("starts", "ends", "axes"), 1)}
    step.set_inputs(step.input(0))
    for name, value in values.items():
        if value is not None:
            step.set(name, [int(v) for v in value])


@_down(12, "Dropout")
def _(step: _Step) -> None:
    training = step.value(2, "training mode")
    if training is not None and training.any():
        raise _Impossible("it is in training mode")
    if step.is_read(1):
        raise _Impossible("its mask, which is read, is inverted there")
    ratio = step.value(1, "ratio")
    step.set_inputs(step.input(0))
    step.remove("seed")
    if ratio is not None:
        step.set("ratio", float(ratio.reshape(())))


@_down(14, "BatchNormalization")
def _(step: _Step) -> None:
    if step.pop("training_mode", 0):
        raise _Impossible("it is in training mode")
    del step.node.output[1:]


@_down(14, "Reshape")
def _(step: _Step) -> None:
    if step.pop("allowzero", 0):
        shape = step.value(1, "shape")
        if shape is None or (shape == 0).any():
            raise _Impossible("allowzero came with opset 14")


@_down(16, "RoiAlign")
def _(step: _Step) -> None:
    if step.pop("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise _Impossible("coordinate_transformation_mode=half_pixel came with opset 16")


@_down(15, "Shape")
def _(step: _Step) -> None:
    start, end = step.pop("start", 0), step.pop("end")
    if start or end is not None:
        shape = step.emit("Shape", [step.input(0)])
        bounds = [step.constant([start]), step.constant([_INT64_MAX if end is None else end]), step.constant([0])]
        step.become("Slice", shape, *bounds)


@_down(12, "Constant")
def _(step: _Step) -> None:
    tensor = _constant_tensor(step.node)
    if tensor is None:
        raise _Impossible("it is sparse or an attribute of a local function")
    step.become("Constant", value=tensor)


@_down(11, "Gemm")
def _(step: _Step) -> None:
    if not step.input(2):
        step.set_inputs(step.input(0), step.input(1), step.constant([0], step.dtype(step.input(0))))


@_down(11, "ScatterElements")
def _(step: _Step) -> None:
    _from_the_front(step)
    step.node.op_type = "Scatter"


@_down(11, *_REDUCTIONS, "ReduceSum", "ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "Hardmax")
@_down(11, "LogSoftmax", "OneHot", "Softmax", "Split", "Squeeze", "Unsqueeze")
def _from_the_front(step: _Step) -> None:
    """Axes that count from the end came with opset 11."""
    axes = step.attribute("axes")
    if axes is not None and min(axes) < 0:
        rank = step.rank(step.input(0)) + (len(axes) if step.node.op_type == "Unsqueeze" else 0)
        step.set("axes", [axis + rank if axis < 0 else axis for axis in axes])
    axis = step.attribute("axis")
    if axis is not None and axis < 0 and step.node.op_type != "OneHot":
        step.set("axis", axis + step.rank(step.input(0)))


@_down(12, "GreaterOrEqual", "LessOrEqual")
def _(step: _Step) -> None:
    """Not a negated Less: comparisons with NaN are false both ways."""
    pair = [step.input(0), step.input(1)]
    strict = step.emit(step.node.op_type.removesuffix("OrEqual"), pair)
    step.become("Or", strict, step.emit("Equal", pair))


@_down(12, "Celu")
def _(step: _Step) -> None:
    data, alpha = step.input(0), step.attribute("alpha", 1.0)
    kind = step.dtype(data)
    scaled = step.emit("Div", [data, step.constant(alpha, kind)])
    low = step.emit("Elu", [scaled], alpha=1.0)
    low = step.emit("Min", [step.emit("Mul", [low, step.constant(alpha, kind)]), step.constant(0, kind)])
    step.become("Add", step.emit("Relu", [data]), low)


@_down(14, "HardSwish")
def _(step: _Step) -> None:
    data = step.input(0)
    step.become("Mul", data, step.emit("HardSigmoid", [data], alpha=1 / 6, beta=0.5))


@_down(14, "Trilu")
def _(step: _Step) -> None:
    """Keep what is on the right side of the diagonal: where column - row is at least k, or at most."""
    data, kind = step.input(0), step.dtype(step.input(0))
    shape = step.emit("Shape", [data])
    zero, one = step.constant(0), step.constant(1)
    rows, columns = (
        step.emit("Range", [zero, step.emit("Gather", [shape, step.constant(axis)]), one]) for axis in (-2, -1)
    )
    distance = step.emit("Sub", [columns, step.emit("Unsqueeze", [rows, step.constant([1])])])
    compare = "GreaterOrEqual" if step.attribute("upper", 1) else "LessOrEqual"
    kept = step.emit(compare, [distance, step.input(1) or zero])
    if kind == TensorProto.BOOL:
        step.become("And", data, kept)
    else:
        step.become("Where", kept, data, step.constant(0, kind))


@_down(15, "CastLike")
def _(step: _Step) -> None:
    step.become("Cast", step.input(0), to=step.dtype(step.input(1)))


@_down(17, "LayerNormalization")
def _(step: _Step) -> None:
    data, axis = step.input(0), step.attribute("axis", -1)
    epsilon, kind = step.attribute("epsilon", 1e-5), step.dtype(data)
    inner = step.attribute("stash_type", TensorProto.FLOAT)
    dims = step.dims(data)
    if dims is not None:
        axes = list(range(len(dims)))[axis:]
    elif axis < 0:
        axes = list(range(axis, 0))
    else:
        raise _Impossible(f"the rank of {data!r} is unknown")
    source = data if kind == inner else step.emit("Cast", [data], to=inner)
    mean = step.emit("ReduceMean", [source], axes=axes, keepdims=1)
    centred = step.emit("Sub", [source, mean])
    variance = step.emit("ReduceMean", [step.emit("Mul", [centred, centred])], axes=axes, keepdims=1)
    deviation = step.emit("Sqrt", [step.emit("Add", [variance, step.constant(epsilon, inner)])])
    normal = step.emit("Div", [centred, deviation])
    if kind != inner:
        normal = step.emit("Cast", [normal], to=kind)
    extra = list(step.node.output[1:])
    del step.node.output[1:]
    for output, op_type, inputs in zip(extra, ("Identity", "Reciprocal"), (mean, deviation), strict=False):
        if output:
            step.after.append(
                helper.make_node(op_type, [inputs], [output], name=step.scope.conversion.fresh(step.base))
            )
    bias, scale = step.input(2), step.input(1)
    if bias:
        step.become("Add", step.emit("Mul", [normal, scale]), bias)
    else:
        step.become("Mul", normal, scale)


@_down(18, "Mish")
def _(step: _Step) -> None:
    data = step.input(0)
    step.become("Mul", data, step.emit("Tanh", [step.emit("Softplus", [data])]))


@_down(20, "Gelu")
def _(step: _Step) -> None:
    data = step.input(0)
    kind = step.dtype(data)

    def scaled(name: str, factor: float) -> str:
        return step.emit("Mul", [name, step.constant(factor, kind)])

    if step.attribute("approximate", "none") == "tanh":
        cube = step.emit("Mul", [step.emit("Mul", [data, data]), data])
        bent = step.emit("Tanh", [scaled(step.emit("Add", [data, scaled(cube, 0.044715)]), float(np.sqrt(2 / np.pi)))])
    else:
        bent = step.emit("Erf", [scaled(data, float(np.sqrt(0.5)))])
    step.become("Mul", scaled(data, 0.5), step.emit("Add", [bent, step.constant(1, kind)]))


@_down(24, "Swish")
def _(step: _Step) -> None:
    data, alpha = step.input(0), step.attribute("alpha", 1.0)
    inner = data if alpha == 1 else step.emit("Mul", [data, step.constant(alpha, step.dtype(data))])
    step.become("Mul", data, step.emit("Sigmoid", [inner]))
