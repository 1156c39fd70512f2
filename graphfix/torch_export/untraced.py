"""Looking at tensors while PyTorch traces: nothing that is done here gets into the trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def untraced() -> Iterator[None]:
    """Suspend the trace: sizes are numbers, and operators leave no nodes."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[arg-type]


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The sizes of a tensor as numbers."""
    with untraced():
        return tuple(tensor.shape)


def memory_of(tensor: Tensor) -> int:
    """Where a tensor's storage lies; 0 for one without elements, or without a storage."""
    with untraced():
        try:
            storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
            return storage.data_ptr()
        except (RuntimeError, NotImplementedError):  # a sparse tensor
            return 0


def layout_of(tensor: Tensor) -> tuple[int, ...]:
    """How the elements of a tensor lie in memory: its strides, of the axes that have more than one element."""
    with untraced():
        return tuple(step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor whose elements lie in memory as those of another one of its shape, if that has no gaps.

    What a reshape() or contiguous() later on returns, a view or a copy, depends on it. This one is traced.
    """
    if layout_of(tensor) == layout_of(like):
        return tensor
    with untraced():
        order = sorted(range(like.dim()), key=lambda axis: -like.stride(axis))
        if not like.permute(order).is_contiguous():
            return tensor
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)
