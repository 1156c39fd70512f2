"""Names of dynamic dims: those that the user gave, in the place of the exporter's symbols."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch

from graphfix.errors import UsageError
from graphfix.torch_export.subject import Subject


def check_dims(subject: Subject, dynamic_shapes: Any) -> None:
    """Raise UsageError for dynamic shapes that do not fit the arguments. Other objects are torch.export's to check."""
    if isinstance(dynamic_shapes, (Mapping, tuple, list)):
        _check(_arguments(subject, dynamic_shapes), dynamic_shapes, "the module's arguments")


def _check(value: Any, shapes: Any, what: str) -> None:
    if isinstance(value, torch.Tensor):
        axes = [axis for axis, _ in _items(shapes)]
        if any(not isinstance(axis, int) or not 0 <= axis < value.dim() for axis in axes):
            raise UsageError(
                f"dynamic_shapes has the axes {axes} for {what}, of which the shape is {list(value.shape)}"
            )
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key, some in shapes.items():
            if key not in value:
                raise UsageError(f"dynamic_shapes names {key!r}, but {what} are {', '.join(map(str, value))}")
            _check(value[key], some, str(key))
    elif isinstance(value, (tuple, list)) and isinstance(shapes, (tuple, list)):
        if len(value) != len(shapes):
            raise UsageError(f"dynamic_shapes has {len(shapes)} entries for {what}, of which there are {len(value)}")
        for number, (one, some) in enumerate(zip(value, shapes, strict=True)):
            _check(one, some, f"number {number} of {what}")


def named_dims(subject: Subject, dynamic_shapes: Any) -> dict[int, dict[int, str]]:
    """The names that ``dynamic_shapes`` has for the axes of the flat arguments, by their positions."""
    positions: dict[int, int] = {}
    for number, leaf in enumerate(subject.leaves):
        positions.setdefault(id(leaf), number)
    found: dict[int, dict[int, str]] = {}
    for tensor, axes in _pairs(_arguments(subject, dynamic_shapes), dynamic_shapes):
        names = {axis: _name(dim) for axis, dim in _items(axes)}
        found[positions[id(tensor)]] = {axis: name for axis, name in names.items() if name}
    return found


def dynamic_dims(subject: Subject, dynamic_shapes: Any) -> dict[int, dict[int, str]]:
    """The dynamic axes of the flat arguments by their positions, each with a name of its own where none is given."""
    found = named_dims(subject, dynamic_shapes)
    positions = {id(leaf): number for number, leaf in reversed(list(enumerate(subject.leaves)))}
    for tensor, axes in _pairs(_arguments(subject, dynamic_shapes), dynamic_shapes):
        number = positions[id(tensor)]
        for axis, dim in _items(axes):
            if type(dim).__name__ == "_DerivedDim":
                raise UsageError(f"the dim {dim.__name__} is made of another one, which only torch.export takes")
            if axis not in found[number] and _is_dynamic_hint(dim):
                found[number][axis] = f"dim_{number}_{axis}"
    return found


def rename_dims(model: onnx.ModelProto, names: Mapping[str, Mapping[int, str]]) -> None:
    """Give the dims of the model the names that its inputs' have in ``names``."""
    known: dict[str, str] = {}
    for value in model.graph.input:
        for axis, name in names.get(value.name, {}).items():
            dim = value.type.tensor_type.shape.dim[axis].dim_param
            if dim.isidentifier():
                known.setdefault(dim, name)
    if not known:
        return
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, known))})\b")
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    for dim in (d for value in values for d in value.type.tensor_type.shape.dim):
        if dim.dim_param:
            dim.dim_param = pattern.sub(lambda match: known[match[0]], dim.dim_param)


def _arguments(subject: Subject, dynamic_shapes: Any) -> Any:
    """The arguments in the form that the dynamic shapes have: by position, or by the names of the parameters.

    What ``*args`` and ``**kwargs`` take is one entry of them, as for torch.export.
    """
    try:
        bound = inspect.signature(subject.module.forward).bind(*subject.args, **subject.kwargs).arguments
    except (TypeError, ValueError):
        return subject.kwargs if isinstance(dynamic_shapes, Mapping) else (*subject.args, *subject.kwargs.values())
    return bound if isinstance(dynamic_shapes, Mapping) else tuple(bound.values())


def _pairs(value: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Each tensor with what the dynamic shapes hold for it."""
    if isinstance(value, torch.Tensor):
        if shapes:
            yield value, shapes
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key in shapes:
            if key in value:
                yield from _pairs(value[key], shapes[key])
    elif isinstance(value, (tuple, list)) and isinstance(shapes, (tuple, list)):
        for one, some in zip(value, shapes, strict=False):
            yield from _pairs(one, some)


def _items(axes: Any) -> list[tuple[int, Any]]:
    if isinstance(axes, Mapping):
        return list(axes.items())
    return list(enumerate(axes)) if isinstance(axes, Sequence) and not isinstance(axes, str) else []


def _is_dynamic_hint(dim: Any) -> bool:
    """Whether it is Dim.AUTO or Dim.DYNAMIC."""
    return type(dim).__name__ == "_DimHint" and "STATIC" not in str(dim)


def _name(dim: Any) -> str:
    """The name of a Dim, or the name itself; "" for a hint such as Dim.AUTO and for a number."""
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", "")
    hint = type(dim).__name__ == "_DimHint"
    return name if isinstance(name, str) and name.isidentifier() and not hint else ""
