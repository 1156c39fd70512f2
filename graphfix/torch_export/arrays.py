"""Tensors of PyTorch as arrays of NumPy, and back: bfloat16 too, which NumPy has only through ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray[Any, Any]


def to_numpy(tensor: torch.Tensor) -> Array:
    """A copy of a tensor as an array of the same element type."""
    tensor = tensor.detach().cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def to_torch(array: Array) -> torch.Tensor:
    """A copy of an array as a tensor of the same element type."""
    array = np.array(array, order="C")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
