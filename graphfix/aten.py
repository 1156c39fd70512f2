"""Read an ATen node: which operator it is, and its arguments by PyTorch's parameter names.

PyTorch writes these nodes in several forms (torch 1.8 to 1.11: domain ``""``; later and ONNX_ATEN mode:
``org.pytorch.aten``; op_type ``ATen`` with an ``operator`` attribute, or the operator itself as op_type). Arguments
arrive as inputs (scalars as Constants, None as the empty name) or as attributes of the parameter's name, in which
case they are missing from the inputs. The parameter lists are those of PyTorch's ``native_functions.yaml``.

The module knows nothing of graphs: an input is whatever object the caller has for it (a name, a tensor).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

ATEN_DOMAIN = "org.pytorch.aten"

V = TypeVar("V")

# Parameters in order; tuples are alternatives by the number of positional arguments, longest first when equal.
_TENSOR_FACTORY = ("dtype", "layout", "device", "pin_memory")
PARAMETERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "arange": (
        ("end", *_TENSOR_FACTORY),
        ("start", "end", *_TENSOR_FACTORY),
        ("start", "end", "step", *_TENSOR_FACTORY),
        ("end",),
        ("start", "end"),
        ("start", "end", "step"),
    ),
    "diagonal_scatter": (("self", "src", "offset", "dim1", "dim2"),),
    "gather": (("self", "dim", "index", "sparse_grad"), ("self", "dim", "index")),
    "index_add": (("self", "dim", "index", "source", "alpha"), ("self", "dim", "index", "source")),
    "index_copy": (("self", "dim", "index", "source"),),
    "index_fill": (("self", "dim", "index", "value"),),
    "masked_fill": (("self", "mask", "value"),),
    "masked_scatter": (("self", "mask", "source"),),
    "scatter": (("self", "dim", "index", "src", "reduce"), ("self", "dim", "index", "src")),
    "scatter_add": (("self", "dim", "index", "src"),),
    "scatter_reduce": (
        ("self", "dim", "index", "src", "reduce", "include_self"),
        ("self", "dim", "index", "src", "reduce"),
    ),
    "select_scatter": (("self", "src", "dim", "index"),),
    "slice_scatter": (("self", "src", "dim", "start", "end", "step"),),
}


class AtenFormError(ValueError):
    """The node does not have the form its operator must have."""


@dataclass(frozen=True)
class AtenCall(Generic[V]):
    """An ATen node's operator and arguments.

    ``arguments`` maps parameter names to inputs; a missing or None argument is absent. ``scalars`` holds the
    arguments that came as attributes (int, float, str, lists of them). For ``index`` and ``index_put`` the tensor
    list is ``indices``: one entry an axis, None for a full slice; a single entry may be a list value (the output of
    SequenceConstruct or prim::ListConstruct), which the caller must open.
    """

    operator: str
    overload: str
    arguments: dict[str, V]
    scalars: dict[str, Any]
    indices: tuple[V | None, ...] = ()


def is_aten(op_type: str, domain: str | None) -> bool:
    """Whether a node is an ATen node, in any of its forms."""
    return domain == ATEN_DOMAIN or (op_type == "ATen" and not domain)


def is_placeholder(op_type: str, domain: str | None, attributes: Mapping[str, Any]) -> bool:
    """Whether a node is the lossy ``Placeholder`` of torch 1.12 and later: its operands were not exported."""
    return is_aten(op_type, domain) and _text(attributes.get("operator", op_type)) == "Placeholder"


def operator_name(op_type: str, attributes: Mapping[str, Any]) -> str:
    """The operator without ``aten::`` and without the in-place underscore: ``index_put``."""
    name = _text(attributes.get("operator", op_type)) if op_type == "ATen" else op_type
    if name == "Placeholder":
        name = _text(attributes.get("name", name))
    return name.removeprefix("aten::").removesuffix("_")


def read_call(op_type: str, attributes: Mapping[str, Any], inputs: Sequence[V | None]) -> AtenCall[V]:
    """Read a node. ``inputs`` holds None for the empty name.

    Raises AtenFormError when the inputs do not fit the operator, and for operators without a parameter list here.
    """
    operator = operator_name(op_type, attributes)
    overload = _text(attributes.get("overload_name", ""))
    scalars = {k: v for k, v in attributes.items() if k not in ("operator", "overload_name", "name")}
    if operator == "index_put":
        if len(inputs) < 4:
            raise AtenFormError(f"index_put has {len(inputs)} inputs, but needs data, indices, values and accumulate")
        data, *indices, values, accumulate = inputs
        if data is None or values is None or accumulate is None:
            raise AtenFormError("index_put lacks its data, values or accumulate input")
        arguments = {"self": data, "values": values, "accumulate": accumulate}
        return AtenCall(operator, overload, arguments, scalars, tuple(indices))
    if operator == "index":
        if len(inputs) < 2 or inputs[0] is None:
            raise AtenFormError(f"index has {len(inputs)} inputs, but needs data and indices")
        return AtenCall(operator, overload, {"self": inputs[0]}, scalars, tuple(inputs[1:]))
    if operator not in PARAMETERS:
        raise AtenFormError(f"graphfix has no parameter list for aten::{operator}")
    for form in PARAMETERS[operator]:
        positional = [p for p in form if p not in scalars]
        if len(positional) == len(inputs):
            named = {p: v for p, v in zip(positional, inputs, strict=True) if v is not None}
            return AtenCall(operator, overload, named, scalars)
    raise AtenFormError(f"aten::{operator} has {len(inputs)} inputs and attributes {sorted(scalars)}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
