"""Passes over ATen nodes: the operator's arguments as tensors and constants."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from graphfix import aten
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.pass_base import Pass, Refusal, Site


class AtenPass(Pass):
    """A pass for one ATen operator, ``aten_operator`` (``index_put``)."""

    aten_operator: ClassVar[str]

    def match(self, node: Node, site: Site) -> Any | Refusal | None:
        """What `read` makes of the call; a Refusal when the node does not have the form of its operator."""
        try:
            call = call_of(node, self.aten_operator)
            return None if call is None else self.read(call, node, site)
        except aten.AtenFormError as error:
            return Refusal(str(error))

    @abstractmethod
    def read(self, call: aten.AtenCall[Value], node: Node, site: Site) -> Any | Refusal:
        """What `rewrite` needs, or a Refusal. May raise AtenFormError."""

    def operator(self, node: Node) -> str:
        return f"aten::{self.aten_operator}"


def call_of(node: Node, operator: str) -> aten.AtenCall[Value] | None:
    """The call that a node makes, when it is an ATen node of this operator. Raises AtenFormError for a bad form."""
    if not aten.is_aten(node.op, node.domain) or aten.operator_name(node.op, node.attrs) != operator:
        return None
    if aten.is_placeholder(node.op, node.domain, node.attrs):
        return None
    return aten.read_call(node.op, node.attrs, [i if i.name else None for i in node.inputs])


def scalar_argument(call: aten.AtenCall[Value], name: str, facts: Facts, default: Any = None) -> Any:
    """A scalar argument's value: from an attribute or a constant input; ``default`` when it is missing.

    Raises AtenFormError when it is given but not constant.
    """
    if name in call.scalars:
        value = call.scalars[name]
        return value.decode() if isinstance(value, bytes) else value
    if name not in call.arguments:
        return default
    tensor = call.arguments[name]
    value = facts.scalar(tensor)
    if value is None:
        value = _string_constant(tensor)
    if value is None:
        raise aten.AtenFormError(f"{name} of aten::{call.operator} is not a constant")
    return value.decode() if isinstance(value, bytes) else value


def dim_argument(call: aten.AtenCall[Value], rank: int, facts: Facts, name: str = "dim") -> int:
    """The ``dim`` of a call, or another parameter like it, as an axis from 0.

    Raises AtenFormError when it is missing, not constant or out of range.
    """
    dim = scalar_argument(call, name, facts)
    limit = max(rank, 1)
    if dim is None or not -limit <= int(dim) < limit:
        raise aten.AtenFormError(f"{name} {dim} of aten::{call.operator} does not fit a tensor of rank {rank}")
    return int(dim) % limit


def tensor_or_scalar(call: aten.AtenCall[Value], name: str) -> Value:
    """A tensor argument. Raises AtenFormError when it is missing."""
    if name not in call.arguments:
        raise aten.AtenFormError(f"aten::{call.operator} lacks its {name}")
    return call.arguments[name]


def _string_constant(tensor: Value) -> Any:
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None or node.op != "Constant":
        return None
    value = node.attrs.get("value_string", node.attrs.get("value"))
    if isinstance(value, str | bytes):
        return value
    if value is not None and getattr(value, "string_data", None):
        return value.string_data[0]
    return None
