"""What is known of a Python expression: a small lattice of kinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

TENSOR = "tensor"  # a torch.Tensor
INT = "int"  # a Python int
NUMBER = "number"  # a Python float or bool
SIZES = "sizes"  # a torch.Size
LIST = "list"  # a list or tuple; `items` when they are known, `element` when they are alike
SLICE = "slice"
NONE = "none"
STRING = "string"
OTHER = "other"  # known to be none of these: a dict, a NumPy array, a data frame, an object
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Value:
    """What an expression is.

    ``dtype`` of a tensor: "bool", "int", "float" or "" (unknown). ``sure`` is False where only the use of a name speaks
    for a tensor. ``bases`` are the names (with their version) of the tensors that this one is a view of. Tensors with
    the same ``shape`` token have the same shape. ``origin`` of an int: "const", "size" (from a tensor's shape), "item"
    (from a tensor's content), "loop-size" and "loop-tensor" (a loop over one of these), or "".
    """

    kind: str = UNKNOWN
    dtype: str = ""
    sure: bool = True
    bases: tuple[tuple[str, int], ...] = ()
    shape: object = None
    origin: str = ""
    element: Value | None = None
    items: tuple[Value, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.kind == TENSOR


NOTHING = Value()
OTHER_VALUE = Value(OTHER)
ARRAY = Value(OTHER, origin="array")  # of another library: its parts and what its methods give are arrays, too
CONSTANT = Value(INT, origin="const")
FLOAT = Value(NUMBER)
NO = Value(NONE)
TEXT = Value(STRING)

_ORIGINS = ("loop-tensor", "item", "loop-size", "size", "", "const")


def tensor(dtype: str = "", *, sure: bool = True, shape: object = None) -> Value:
    """A tensor that is a view of nothing."""
    return Value(TENSOR, dtype, sure, shape=shape or object())


def number_of(values: Iterable[Value]) -> Value:
    """An int computed from these: its origin is the least constant of theirs."""
    origins = {value.origin if value.kind == INT else "" for value in values} or {"const"}
    return Value(INT, origin=min(origins, key=_ORIGINS.index))


def join(one: Value | None, other: Value | None) -> Value:
    """What is known when a name may be either."""
    if one is None or other is None:
        return NOTHING
    if one == other:
        return one
    if one.kind == NONE:
        return other
    if other.kind == NONE:
        return one
    if one.kind != other.kind:
        return NOTHING
    if one.kind == INT:
        return number_of([one, other])
    if one.kind == TENSOR:
        return Value(
            TENSOR,
            one.dtype if one.dtype == other.dtype else "",
            one.sure and other.sure,
            tuple(dict.fromkeys(one.bases + other.bases)),
            one.shape if one.shape is other.shape else object(),
            one.origin if one.origin == other.origin else "",
        )
    if one.kind == LIST:
        same = one.items is not None and other.items is not None and len(one.items) == len(other.items)
        items = tuple(map(join, one.items or (), other.items or ())) if same else None
        return Value(
            LIST, element=join(one.element, other.element) if one.element or other.element else None, items=items
        )
    return replace(one, origin="")
