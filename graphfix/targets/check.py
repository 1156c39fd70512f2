"""Holds the nodes of a model against the rules of a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import TensorProto

from graphfix.facts import Facts
from graphfix.graph import Constant, Model, Node, Scope, Value
from graphfix.report import Finding
from graphfix.targets.model import VALUES, Rule, Target, Tensor
from graphfix.targets.origins import Level, Origins

VALUE_LEVELS = {word: Level[word.upper()] for word in VALUES}
SHAPE_LEVELS = {"fixed": Level.FOLDED, "sized": Level.SIZED, "run": Level.COUNTED}


class Checker:
    """The rules of one target, against nodes of one view."""

    def __init__(self, target: Target, model: Model, facts: Facts) -> None:
        self._model = model
        self._facts = facts
        self._origins = Origins(model, facts)
        graph = model.proto.graph
        names = {name for value in graph.input for name in _size_names(value)}
        self._named = {value.name for value in graph.value_info if not names.isdisjoint(_size_names(value))}
        self._anywhere = [rule for rule in target.rules if "*" in rule.op]
        self._inputs = [rule for rule in target.rules if "input" in rule.op]
        self._by_op: dict[str, list[Rule]] = {}
        for rule in target.rules:
            for op in rule.op:
                self._by_op.setdefault(op, []).append(rule)

    def model(self) -> list[Finding]:
        """What is known against the model: its inputs first, then its nodes in order."""
        found = [
            Finding(rule.kind, "input", "", tensor.name, "", rule.why, rule.source, rule.blocks)
            for tensor in self._model.main.inputs
            for rule in self._inputs
            if rule.since <= self._model.main.opset <= (rule.until or self._model.main.opset)
            and all(self._holds(said, tensor, []) for said in rule.inputs)
        ]
        for scope in self._model.scopes:
            found += self.nodes(scope.nodes, scope)
        return found

    def nodes(self, nodes: Iterable[Node], scope: Scope) -> Iterator[Finding]:
        """What is known against some nodes of a scope."""
        for node in nodes:
            if not node.standard:
                continue
            for rule in (*self._by_op.get(node.op, ()), *self._anywhere):
                if self._applies(rule, node, scope.opset):
                    output = next((o.name for o in node.outputs if o.name), "")
                    yield Finding(rule.kind, node.op, node.name, output, scope.path, rule.why, rule.source, rule.blocks)

    def _applies(self, rule: Rule, node: Node, opset: int) -> bool:
        if not rule.since <= opset <= (rule.until or opset):
            return False
        if rule.inputs_over is not None and sum(bool(i.name) for i in node.inputs) <= rule.inputs_over:
            return False
        for name, wanted in (rule.attributes or {}).items():
            given = node.attrs.get(name)
            if given is None:
                if not any(one is False for one in wanted):
                    return False
            elif not any(one is True or _is_value(given, one) for one in wanted):
                return False
        return all(self._some(said, node.inputs, node) for said in rule.inputs) and all(
            self._some(said, node.outputs, node) for said in rule.outputs
        )

    def _some(self, said: Tensor, tensors: list[Value], node: Node) -> bool:
        chosen = [tensors[i] for i in said.at if i < len(tensors)] if said.at else tensors
        return any(self._holds(said, tensor, node.inputs) for tensor in chosen if tensor.name)

    def _holds(self, said: Tensor, tensor: Value, inputs: list[Value]) -> bool:
        if said.type and _type_name(tensor) not in said.type:
            return False
        if said.value and self._origins.value(tensor) not in {VALUE_LEVELS[word] for word in said.value}:
            return False
        if said.shape and self._origins.shape(tensor) not in {SHAPE_LEVELS[word] for word in said.shape}:
            return False
        if said.named and tensor.name not in self._named:
            return False
        if said.made_by and not (tensor.inputs and tensor.inputs[0].is_op(*said.made_by)):
            return False
        if said.typed_data and not _has_typed_data(tensor):
            return False
        if said.rank_over is not None or said.rank_under is not None:
            rank = self._facts.rank(tensor)
            if rank is None or (said.rank_over is not None and rank <= said.rank_over):
                return False
            if said.rank_under is not None and rank >= said.rank_under:
                return False
        for position, above in ((said.rank_over_input, True), (said.rank_up_to_input, False)):
            if position is not None and self._is_rank_over(tensor, inputs[position : position + 1]) is not above:
                return False
        if said.negative:
            known = self._facts.const(tensor)
            if known is None or known.dtype.kind not in "if" or not np.any(known < 0):
                return False
        if said.longer_than is None:
            return True
        return any(self._is_longer(tensor, other) for other in inputs[said.longer_than : said.longer_than + 1])

    def _is_rank_over(self, tensor: Value, others: list[Value]) -> bool | None:
        """Against the one other, if there is any. None when it is not known."""
        rank, limit = self._facts.rank(tensor), self._facts.rank(others[0]) if others else None
        return None if rank is None or limit is None else rank > limit

    def _is_longer(self, tensor: Value, other: Value) -> bool:
        sizes, others = self._facts.shape(tensor), self._facts.shape(other)
        if sizes is None or others is None:
            return False
        pairs = [(a.constant, b.constant) for a, b in zip(sizes, others, strict=False)]
        return any(a is not None and b is not None and a > b for a, b in pairs)


def _is_value(given: object, wanted: object) -> bool:
    """Whether an attribute has this value; False stands for none (and equals 0, but is not one)."""
    return not isinstance(wanted, bool) and (given.decode() if isinstance(given, bytes) else given) == wanted


def _size_names(value: onnx.ValueInfoProto) -> list[str]:
    return [dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param]


def _has_typed_data(tensor: Value) -> bool:
    proto = tensor.proto if isinstance(tensor, Constant) else None
    if proto is None and tensor.inputs and tensor.inputs[0].is_op("Constant"):
        proto = tensor.inputs[0].attrs.get("value")
    return proto is not None and bool(proto.int32_data or proto.int64_data or proto.float_data or proto.double_data)


def _type_name(tensor: Value) -> str:
    return TensorProto.DataType.Name(tensor.dtype).lower() if tensor.dtype else ""
