"""What tensors hold after a write in place, by functions that the exporter and the passes know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphfix.errors import ExportError
from graphfix.torch_export import subscript
from graphfix.torch_export.operators import AUGMENTED

_RANDOM = frozenset(
    ("bernoulli_", "uniform_", "normal_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_")
)


def value_after(name: str, function: Callable[..., Any], data: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What ``data`` holds once the operator ``name``, which is ``function``, has written it: ``data`` stays as it is.

    Raises ExportError for an operator that has no such value.
    """
    if name in VALUES:
        value: Any = VALUES[name](data, *args, **kwargs)
    else:
        plain = AUGMENTED.get(name, name[:-1])
        if name in _RANDOM or not hasattr(Tensor, plain):
            value = data.clone()
            function(value, *args, **kwargs)
        else:
            value = INSTEAD.get(plain, getattr(Tensor, plain))(data, *args, **kwargs)
    if not isinstance(value, Tensor):
        raise ExportError(f"{name}() cannot be followed")
    return value if value.dtype == data.dtype else value.to(data.dtype)


def _copied(data: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    source = source if source.dtype == data.dtype else source.to(data.dtype)
    return subscript.stretched(source, data).clone()


def _filled(data: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(data.dtype).expand_as(data).clone()
    return torch.full_like(data, value)


def _index_put(data: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    indices = [i.bool() if isinstance(i, Tensor) and i.dtype == torch.uint8 else i for i in indices]
    written: Tensor = torch.ops.aten.index_put(data, indices, values.to(data.dtype), accumulate)
    return written


def _put(data: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return _index_put(data.reshape(-1), [index], source, accumulate).reshape(data.shape)


def _index_reduce(
    data: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    column = index.reshape([-1 if axis == dim % source.dim() else 1 for axis in range(source.dim())])
    return data.scatter_reduce(dim, column.expand_as(source), source, reduce, include_self=include_self)


def _diagonal_filled(data: Tensor, value: float, wrap: bool = False) -> Tensor:
    if data.dim() != 2 or wrap:
        raise ExportError("fill_diagonal_() of more than two axes, or with wrap, cannot be followed")
    return torch.diagonal_scatter(data, torch.full_like(data.diagonal(), value))


def _unflattened(data: Tensor, dim: int, sizes: Any) -> Tensor:
    """The exporter fixes the sizes of what its own translation of unflatten() makes."""
    dim %= data.dim()
    return data.reshape([*data.shape[:dim], *sizes, *data.shape[dim + 1 :]])


def _of_tensors(bitwise: Callable[..., Tensor], logical: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that the exporter does not know of a tensor and a number, nor always of bools."""

    def operate(*operands: Any) -> Tensor:
        tensors = [one if isinstance(one, Tensor) else torch.tensor(one) for one in operands]
        return (logical if all(one.dtype == torch.bool for one in tensors) else bitwise)(*tensors)

    return operate


VALUES: dict[str, Callable[..., Tensor]] = {
    "copy_": _copied,
    "fill_": _filled,
    "zero_": torch.zeros_like,
    "fill_diagonal_": _diagonal_filled,
}
# Functions by others, which the passes know.
INSTEAD: dict[str, Callable[..., Tensor]] = {
    "index_put": _index_put,
    "put": _put,
    "index_reduce": _index_reduce,
    "unflatten": _unflattened,
    "data": Tensor.detach,  # the trace does not see .data
    "bitwise_and": _of_tensors(torch.bitwise_and, torch.logical_and),
    "bitwise_or": _of_tensors(torch.bitwise_or, torch.logical_or),
    "bitwise_xor": _of_tensors(torch.bitwise_xor, torch.logical_xor),
}
INSTEAD |= {f"__{name}__": INSTEAD[f"bitwise_{name}"] for name in ("and", "or", "xor")}
