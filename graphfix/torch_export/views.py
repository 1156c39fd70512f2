"""Views of PyTorch as functions: how a view is made from its parent, and what the parent is once it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphfix.errors import ExportError
from graphfix.torch_export import subscript
from graphfix.torch_export.operators import names
from graphfix.torch_export.untraced import untraced

_RESHAPES = names("view reshape flatten unflatten ravel view_as reshape_as squeeze unsqueeze _unsafe_view")
_TRANSPOSES = names("transpose swapaxes swapdims")
_REVERSALS = names("t T mT adjoint H mH")
_MOVES = names("movedim moveaxis")
_EXPANSIONS = names("expand expand_as broadcast_to")
_SAME = names("alias detach data contiguous to type_as float double half long int")  # where they share memory
# Views along one axis, many at once.
_PARTS = names("split chunk tensor_split split_with_sizes unsafe_split unsafe_chunk hsplit vsplit dsplit")
_PART_AXIS = {"hsplit": 1, "vsplit": 0, "dsplit": 2}


@dataclass(frozen=True)
class View:
    """A view: ``function(parent, *args, **kwargs)``, of which it is the result number ``pick`` where there are many."""

    name: str
    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pick: int | None = None

    def of(self, parent: Tensor) -> Tensor:
        """The view of a parent's value."""
        made = self.function(parent, *self.args, **self.kwargs)
        view: Tensor = made if self.pick is None else made[self.pick]
        return view

    def written(self, parent: Tensor, value: Tensor) -> Tensor:
        """The parent's value, once its view holds ``value``.

        Raises ExportError for a view that does not tell where its elements lie in the parent.
        """
        name = self.name
        if name == "__getitem__":
            return subscript.write_basic(parent, subscript.parse(parent, self.args[0]), value)
        if name in _RESHAPES:
            return value.reshape(parent.shape)
        if name in _TRANSPOSES:
            first, second = self._arguments(("dim0", "axis0"), ("dim1", "axis1"))
            return value.transpose(first, second)
        if name in _REVERSALS:
            if value.dim() < 2:
                return value
            return value.permute(_back(value)) if name == "T" else value.transpose(-2, -1)
        if name == "permute":
            order = self._list("dims")
            return value.permute([_position(order, axis, len(order)) for axis in range(len(order))])
        if name in _MOVES:
            source, destination = self._arguments(("source",), ("destination",))
            return torch.movedim(value, destination, source)
        if name == "select":
            dim, index = self._arguments(("dim",), ("index",))
            return torch.select_scatter(parent, value, dim, index)
        if name == "narrow":
            dim, start, length = self._arguments(("dim",), ("start",), ("length",))
            return subscript.slice_scatter(parent, value, dim, slice(start, start + length))
        if name == "unbind":
            assert self.pick is not None
            return torch.select_scatter(parent, value, self._argument(0, ("dim",), 0), self.pick)
        if name in _PARTS:
            return self._part_written(parent, value)
        if name == "diagonal":
            parameters = (("offset", 0), ("dim1", 0), ("dim2", 1))
            offset, dim1, dim2 = (self._argument(n, (key,), default) for n, (key, default) in enumerate(parameters))
            return torch.diagonal_scatter(parent, value, offset, dim1, dim2)
        with untraced():
            same = value.shape == parent.shape
        if same and (name in _EXPANSIONS or name in _SAME):
            return value
        raise ExportError(f"a write into a view made by {name}() cannot be followed")

    def _part_written(self, parent: Tensor, value: Tensor) -> Tensor:
        parts = self.function(parent, *self.args, **self.kwargs)
        dim = _PART_AXIS.get(self.name, self._argument(1, ("dim",), 0))
        if self.name == "hsplit" and parent.dim() == 1:
            dim = 0
        start: Any = 0
        for part in parts[: self.pick]:
            start = start + part.shape[dim]
        return subscript.slice_scatter(parent, value, dim, slice(start, start + value.shape[dim]))

    def _arguments(self, *names: tuple[str, ...]) -> list[Any]:
        return [self._argument(number, some) for number, some in enumerate(names)]

    def _argument(self, number: int, names: tuple[str, ...], default: Any = None) -> Any:
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[number] if number < len(self.args) else default

    def _list(self, name: str) -> list[Any]:
        """An argument that may be given as a list or as several arguments."""
        if name in self.kwargs:
            return list(self.kwargs[name])
        return list(self.args[0]) if self.args and isinstance(self.args[0], (list, tuple)) else list(self.args)


@dataclass(frozen=True)
class UnfollowedView(View):
    """A view whose place in its parent is unknown: as good as any other value until one of the two is written."""

    def of(self, parent: Tensor) -> Tensor:
        raise ExportError(f"a tensor is written while {self.name}() has made a view of it that cannot be followed")

    def written(self, parent: Tensor, value: Tensor) -> Tensor:
        raise ExportError(f"a write into a view made by {self.name}() cannot be followed")


def _back(value: Tensor) -> list[int]:
    return list(range(value.dim() - 1, -1, -1))


def _position(order: Sequence[Any], axis: int, rank: int) -> int:
    return next(n for n, one in enumerate(order) if int(one) % rank == axis)
