"""ATen nodes of a model view: the operator's arguments as tensors and constants."""

from __future__ import annotations

from typing import Any

from graphfix import aten
from graphfix.facts import Facts
from graphfix.graph import Node, Value


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


def dim_argument(call: aten.AtenCall[Value], rank: int, facts: Facts) -> int:
    """The ``dim`` of a call as an axis from 0.

    Raises AtenFormError when it is missing, not constant or out of range.
    """
    dim = scalar_argument(call, "dim", facts)
    limit = max(rank, 1)
    if dim is None or not -limit <= int(dim) < limit:
        raise aten.AtenFormError(f"dim {dim} of aten::{call.operator} does not fit a tensor of rank {rank}")
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
