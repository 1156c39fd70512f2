"""Two models without the nodes that nothing here can run: compared up to these nodes and, where possible, behind them.

A node of a custom domain runs only with its library. Without it, both models are cut at such nodes: what goes into one
becomes an output, to be compared, and what comes out becomes an input, with generated values. Where the type of such an
output is not known, everything that depends on it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.numpy_helper

from graphfix.protobuf import bodies, used_names
from graphfix.reference.ort import known_operators
from graphfix.reference.program import needs_kernel
from graphfix.verification import shell as shells
from graphfix.verification.pairing import Pairing

# Domains that ONNX Runtime has operators of, for versions that do not tell their operators.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft")


@dataclass(frozen=True)
class Cut:
    """Both models without the nodes, ``pairing`` with the new inputs and outputs, and what to say.

    ``made`` are the names of the new inputs in the reference, ``behind`` says that anything which is compared may read
    one. ``not_run`` names the nodes, one line each. ``blind``
    are outputs of nodes whose type is not known, so that nothing behind them is compared. ``lost`` are the reference's
    outputs that are not compared.
    """

    reference: onnx.ModelProto
    candidate: onnx.ModelProto
    pairing: Pairing
    made: tuple[str, ...]
    behind: bool
    not_run: list[str]
    blind: list[str]
    lost: list[str]

    def detail(self) -> str:
        """One sentence about what was not run."""
        domains = Counter(line.partition("::")[0] for line in self.not_run)
        told = " and ".join(
            f"{number} node{'s' if number > 1 else ''} of domain {domain}" for domain, number in domains.items()
        )
        one = len(self.not_run) == 1
        them = "it" if one else "them"
        behind = f" and behind {them}" if self.behind else " only"
        text = f"{told} {'was' if one else 'were'} not run: compared up to {them}{behind}"
        if self.blind:
            text += f"; not behind {', '.join(self.blind)}, as the type is not known"
        return f"{text} (--custom-ops runs {them})"


def unknown_nodes(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The nodes of the main graph that neither ONNX Runtime nor graphfix knows, or that hold or call such a node.

    By a line that names each: ``my::Op (output 'y')``.
    """
    known = known_operators()
    functions = {(f.domain, f.name): f for f in model.functions}
    calls: dict[tuple[str, str], str] = {}

    def unknown(node: onnx.NodeProto) -> str:
        """The operator that is not known: the node's own or one within; "" when all are."""
        key = (node.domain, node.op_type)
        inside = next((found for body in bodies(node) for inner in body.node if (found := unknown(inner))), "")
        if inside:
            return f"{inside} in {node.op_type}"
        if key in functions:
            if key not in calls:
                calls[key] = ""  # ends a recursion, which ONNX forbids
                calls[key] = next((found for inner in functions[key].node if (found := unknown(inner))), "")
            return f"{calls[key]} in {node.op_type}" if calls[key] else ""
        if needs_kernel(node) or node.domain in ("", "ai.onnx"):
            return ""
        is_known = key in known if known is not None else node.domain in _DOMAINS
        return "" if is_known else f"{node.domain}::{node.op_type}"

    return {f"{what} (output {_first(node)!r})": node for node in model.graph.node if (what := unknown(node))}


def cut(reference: onnx.ModelProto, candidate: onnx.ModelProto, pairing: Pairing | None = None) -> Cut | None:
    """Cut both models at their unknown nodes; None when there is none, or when those of one model are not the other's.

    They are when operators, attributes and the places of their inputs are the same; what is in the inputs is compared.
    Neither model is changed.
    """
    ours, theirs = unknown_nodes(reference), unknown_nodes(candidate)
    pairs = _pair(list(ours.values()), list(theirs.values()))
    if not pairs:
        return None
    one, other = _Side(reference, list(ours.values())), _Side(candidate, list(theirs.values()))
    inputs, outputs = _names(reference, candidate, pairing)
    blind, made = [], []
    for node, twin in pairs:
        for name, twin_name in zip(node.output, twin.output, strict=False):
            value = one.value_info(name) or other.value_info(twin_name)
            if name and twin_name and value is not None:
                one.feed(name, value)
                other.feed(twin_name, value)
                inputs[name] = twin_name
                made.append(name)
            elif name:
                blind.append(name)
                one.leave(name)
                other.leave(twin_name)
    for node, twin in pairs:
        for name, twin_name in _read(node, twin):
            if one.lacks(name) or other.lacks(twin_name) or outputs.get(name) == twin_name:
                continue
            if not _plainly_equal(one, name, other, twin_name, inputs):
                outputs[one.tap(name, apart=name in outputs)] = other.tap(twin_name)
    lost = [name for name, twin_name in outputs.items() if one.lacks(name) or other.lacks(twin_name)]
    outputs = {name: twin_name for name, twin_name in outputs.items() if name not in lost}
    old = pairing or Pairing({}, {})
    return Cut(
        one.build(outputs),
        other.build(dict.fromkeys(outputs.values())),
        Pairing(inputs, outputs, old.sizes, old.notes),
        tuple(made),
        any(one.is_kept_for(name) for name in made),
        list(ours),
        [name for name in blind if one.is_read(name)],
        lost,
    )


@dataclass
class _Side:
    """One of the models, while it is cut."""

    model: onnx.ModelProto
    gone: list[onnx.NodeProto]
    fed: list[onnx.ValueInfoProto] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    extra: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Kept, as the Python objects of a protobuf have no identity of their own.
        self._nodes = list(self.model.graph.node)
        gone = {tuple(node.output) for node in self.gone}
        self._removed = {n for n, node in enumerate(self._nodes) if tuple(node.output) in gone}
        kept = (node for n, node in enumerate(self._nodes) if n not in self._removed)
        self._made = {name for node in kept for name in node.output if name}
        self._infos: dict[str, onnx.ValueInfoProto] | None = None
        self.constants = {tensor.name: tensor for tensor in self.model.graph.initializer}

    def value_info(self, name: str) -> onnx.ValueInfoProto | None:
        """What is declared or inferred of a tensor, if that is its type and rank."""
        if self._infos is None:
            graph = self.model.graph
            self._infos = shells.value_infos(shells.shell(self.model))
            declared = [*graph.value_info, *graph.output]
            self._infos.update((v.name, v) for v in declared if v.type.tensor_type.HasField("shape"))
        found = self._infos.get(name)
        return found if found is not None and found.type.tensor_type.elem_type else None

    def feed(self, name: str, value: onnx.ValueInfoProto) -> None:
        """Make a tensor an input."""
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        copy.name = name
        self.fed.append(copy)

    def leave(self, name: str) -> None:
        """Leave out a tensor and all that depends on it."""
        self.left.add(name)
        for n, node in enumerate(self._nodes):
            if n not in self._removed and any(used in self.left for used in used_names(node)):
                self._removed.add(n)
                self.left.update(node.output)

    def lacks(self, name: str) -> bool:
        """Whether a tensor is left out, or is now an input: as an output, it would tell nothing."""
        return name in self.left or name in {value.name for value in self.fed}

    def computes(self, name: str) -> bool:
        """Whether a node that stays makes a tensor."""
        return name in self._made

    def is_read(self, name: str) -> bool:
        """Whether anything but an output of the graph reads a tensor."""
        return any(name in used_names(node) for node in self._nodes)

    def is_kept_for(self, name: str) -> bool:
        """Whether a node that stays reads a tensor."""
        return any(name in used_names(node) for n, node in enumerate(self._nodes) if n not in self._removed)

    def tap(self, name: str, *, apart: bool = False) -> str:
        """The name under which a tensor can be an output: one that no node makes, or an output already, needs a node.

        ``apart`` says that it is an output already, to be compared with another tensor.
        """
        if self.computes(name) and not apart:
            return name
        copy = f"{name}/graphfix/boundary"
        known = [node.output[0] for node in self.extra if node.input[0] == name]
        if known and not apart:
            return known[0]
        copy += f"_{len(known)}" if known else ""
        self.extra.append(onnx.helper.make_node("Identity", [name], [copy]))
        return copy

    def build(self, outputs: Iterable[str]) -> onnx.ModelProto:
        """The model without the nodes, with these outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        kept = [node for n, node in enumerate(graph.node) if n not in self._removed]
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept] + self.extra
        del graph.node[:]
        graph.node.extend(kept)
        graph.input.extend(self.fed)
        declared = {o.name: onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in graph.output}
        del graph.output[:]
        graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
        return model


def _pair(ours: list[onnx.NodeProto], theirs: list[onnx.NodeProto]) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """The unknown nodes of both models that are the same: by their outputs, or by their order."""
    by_output = {_first(node): node for node in theirs}
    if len(ours) != len(theirs):
        return []
    pairs = list(zip(ours, theirs, strict=True))
    if all(_first(node) in by_output for node in ours):
        pairs = [(node, by_output[_first(node)]) for node in ours]
    return pairs if all(_alike(node, twin) for node, twin in pairs) else []


def _first(node: onnx.NodeProto) -> str:
    return next((name for name in node.output if name), "")


def _alike(node: onnx.NodeProto, twin: onnx.NodeProto) -> bool:
    """Whether two nodes compute the same from equal inputs, as far as can be told. Bodies are not looked into."""
    if (node.domain, node.op_type) != (twin.domain, twin.op_type) or _places(node) != _places(twin):
        return False
    ours, theirs = _settings(node), _settings(twin)
    return ours.keys() == theirs.keys() and all(_same(value, theirs[name]) for name, value in ours.items())


def _settings(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return {attribute.name: attribute for attribute in node.attribute if attribute.type not in graphs}


def _places(node: onnx.NodeProto) -> list[int]:
    return [place for place, name in enumerate(node.input) if name]


def _same(one: onnx.AttributeProto, other: onnx.AttributeProto) -> bool:
    """Whether two attributes hold the same: tensors may be written in other fields."""
    ours, theirs = onnx.helper.get_attribute_value(one), onnx.helper.get_attribute_value(other)
    if one.type != other.type or one.type != onnx.AttributeProto.TENSOR or _is_external(ours) or _is_external(theirs):
        return one.type == other.type and bool(ours == theirs)
    a, b = onnx.numpy_helper.to_array(ours), onnx.numpy_helper.to_array(theirs)
    return ours.data_type == theirs.data_type and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _read(node: onnx.NodeProto, twin: onnx.NodeProto) -> list[tuple[str, str]]:
    """What two nodes read: their inputs by place, and what the bodies of both capture by name."""
    pairs = [(node.input[place], twin.input[place]) for place in _places(node)]
    captured = set(used_names(node)) & set(used_names(twin)) - set(node.input) - set(twin.input)
    return pairs + [(name, name) for name in sorted(captured)]


def _plainly_equal(one: _Side, name: str, other: _Side, twin: str, inputs: Mapping[str, str]) -> bool:
    """Whether two tensors are an input of both models, or a constant with the same bytes: nothing is to be compared."""
    if inputs.get(name) == twin:
        return True
    ours, theirs = one.constants.get(name), other.constants.get(twin)
    if ours is None or theirs is None or not ours.HasField("raw_data") or not theirs.HasField("raw_data"):
        return False
    return (ours.data_type, ours.dims, ours.raw_data) == (theirs.data_type, theirs.dims, theirs.raw_data)


def _names(
    reference: onnx.ModelProto, candidate: onnx.ModelProto, pairing: Pairing | None
) -> tuple[dict[str, str], dict[str, str]]:
    if pairing is not None:
        return dict(pairing.inputs), dict(pairing.outputs)
    inputs = {i.name: i.name for i in reference.graph.input}
    return inputs, {o.name: o.name for o in reference.graph.output}
