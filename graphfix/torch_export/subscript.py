"""``x[index] = value`` as a function of x and value, by operators that keep what is written where.

The reading of an index is that of PyTorch's indexing: integers and slices make views, None adds an axis, tensors and
lists of integers or booleans are advanced indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphfix.errors import ExportError
from graphfix.torch_export.untraced import shape_of

Item = Any  # an int or a 0-d integer tensor, a slice, None, or an advanced index as a tensor


def parse(data: Tensor, index: Any) -> list[Item]:
    """The items of an index: without an ellipsis, arrays and lists as tensors. Trailing full slices may be missing."""
    items = list(index) if isinstance(index, tuple) or _is_old_tuple(index) else [index]
    items = [_item(item) for item in items]
    if any(item is Ellipsis for item in items):
        at = next(n for n, item in enumerate(items) if item is Ellipsis)
        rest = data.dim() - sum(_axes(item) for item in items if item is not Ellipsis)
        items[at : at + 1] = [slice(None)] * rest
    if any(item is Ellipsis for item in items):
        raise ExportError("an index with two ellipses cannot be written")
    return items


def write(data: Tensor, index: Any, value: Any) -> Tensor:
    """``data`` once ``data[index] = value``."""
    items = parse(data, index)
    value = _as_value(data, value)
    advanced = [n for n, item in enumerate(items) if _is_advanced(item)]
    if not advanced:
        view = data[tuple(items)] if items else data
        return write_basic(data, items, _stretched(value, view))
    # The basic part makes a view, and the advanced indices write into that.
    basic = [slice(None) if n in advanced and items[n].dim() else item for n, item in enumerate(items)]
    basic = [None if n in advanced and not items[n].dim() else item for n, item in enumerate(basic)]
    spread: list[Item] = []
    for n, item in enumerate(basic):
        spread += [item] * (max(_axes(items[n]), 1) if n in advanced else 1)
    view = data[tuple(spread)]
    indices: list[Tensor | None] = []
    for n, item in enumerate(items):
        if n in advanced:
            indices.append(item if item.dim() or item.dtype != torch.bool else item.unsqueeze(0))
        elif item is None or isinstance(item, slice):
            indices.append(None)
    while value.dim() and value.dim() > view.dim() and shape_of(value)[0] == 1:
        value = value.select(0, 0)
    written = torch.ops.aten.index_put(view, indices, value, False)
    return write_basic(data, spread, written)


def write_basic(data: Tensor, items: Sequence[Item], value: Tensor) -> Tensor:
    """``data`` once its view ``data[items]``, without advanced indices, holds ``value``, which has the view's shape."""
    # From the outside in: what each integer or slice leaves is the data of the next one.
    steps: list[tuple[Tensor, Item, int]] = []
    axis, view = 0, data
    for item in items:
        if item is None:
            continue
        if isinstance(item, slice):
            if item != slice(None):
                steps.append((view, item, axis))
                view = view[(slice(None),) * axis + (item,)]
            axis += 1
        else:
            steps.append((view, item, axis))
            view = view[(slice(None),) * axis + (item,)]
    new_axes = [n for n, item in enumerate(i for i in items if _keeps_axis(i)) if item is None]
    for n in reversed(new_axes):
        value = value.select(n, 0)  # squeeze() becomes an If in PyTorch 1.13
    for parent, item, dim in reversed(steps):
        if isinstance(item, slice):
            value = slice_scatter(parent, value, dim, item)
        else:
            value = torch.select_scatter(parent, value, dim, item)
    return value


def slice_scatter(data: Tensor, value: Tensor, dim: int, where: slice) -> Tensor:
    """``data`` once its slice along an axis holds ``value``."""
    step = 1 if where.step is None else where.step
    bounds = (where.start, where.stop)
    if hasattr(torch, "sym_int") or not any(isinstance(bound, Tensor) for bound in bounds):
        return torch.slice_scatter(data, value, dim, *bounds, step)
    # Tracing, PyTorch 1.13 mixes up bounds of which one is a tensor.
    size = number_tensor(data.shape[dim])
    first = number_tensor(0 if where.start is None else where.start)
    last = size if where.stop is None else number_tensor(where.stop)
    start, stop = (torch.where(bound < 0, bound + size, bound) for bound in (first, last))
    start, stop = (torch.minimum(torch.clamp(bound, min=0), size) for bound in (start, stop))
    return torch.index_copy(data, dim, torch.arange(start, torch.maximum(start, stop), step), value)


def number_tensor(number: Any) -> Tensor:
    """A number as a tensor. A size is one while PyTorch traces, and torch.as_tensor() would make it a constant."""
    return number if isinstance(number, Tensor) else torch.tensor(number)


def as_index_tensor(values: Any) -> Any:
    """A list of numbers and 0-d tensors, nested or not, as one tensor that keeps what the tensors are made of."""
    if isinstance(values, (list, tuple)) and _holds_tensor(values):
        parts = [as_index_tensor(value) for value in values]
        parts = [part if isinstance(part, Tensor) else torch.tensor(part) for part in parts]
        dtype = parts[0].dtype
        for part in parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        return torch.stack([part.to(dtype) for part in parts])
    return values


def _holds_tensor(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return any(_holds_tensor(value) for value in values)
    return isinstance(values, Tensor)


def _is_old_tuple(index: Any) -> bool:
    """Whether a list stands for a tuple: PyTorch takes ``x[[slice(1), 2]]`` for ``x[1:, 2]``."""
    return isinstance(index, list) and any(
        item is None or item is Ellipsis or isinstance(item, slice) for item in index
    )


def _item(item: Any) -> Item:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool):
        return torch.tensor(item)
    if isinstance(item, Tensor):
        return item.bool() if item.dtype == torch.uint8 else item
    if isinstance(item, (list, tuple, range)):
        made = as_index_tensor(list(item))
        return made if isinstance(made, Tensor) else torch.tensor(made, dtype=torch.long if not made else None)
    if hasattr(item, "__array__") and getattr(item, "ndim", False):
        return torch.as_tensor(item)
    return item.__index__()


def _is_advanced(item: Item) -> bool:
    return isinstance(item, Tensor) and (item.dim() > 0 or item.dtype == torch.bool)


def _axes(item: Item) -> int:
    """How many axes of the data an item covers."""
    if item is None:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _keeps_axis(item: Item) -> bool:
    """Whether an item without advanced ones has an axis in the view."""
    return item is None or isinstance(item, slice)


def _as_value(data: Tensor, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.tensor(value, dtype=data.dtype)
    return value if value.dtype == data.dtype else value.to(data.dtype)


def _stretched(value: Tensor, view: Tensor) -> Tensor:
    """A value in the shape of the view that it is copied into; leading axes of size 1 may be too many."""
    while value.dim() > view.dim() and shape_of(value)[0] == 1:
        value = value.select(0, 0)
    return stretched(value, view)


def stretched(value: Tensor, like: Tensor) -> Tensor:
    """A value broadcast to the shape of another tensor."""
    if value.dim() == like.dim() and 1 not in shape_of(value) and shape_of(value) == shape_of(like):
        return value
    return value.expand_as(like)
