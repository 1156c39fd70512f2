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
