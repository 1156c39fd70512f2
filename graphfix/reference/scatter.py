"""ONNX's own scatters in NumPy: of writes to one place the last one wins, and NaN is never lost.

ONNX leaves the order of duplicate writes open (ScatterND and ScatterElements, operator text), and ONNX Runtime spreads
large ones over threads. ``max`` and ``min`` of NaN are NaN here, as in PyTorch; ONNX Runtime may lose it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphfix.reference.refusal import ReferenceRefusal

Array = np.ndarray[Any, Any]

SCATTERS = ("ScatterND", "ScatterElements", "Scatter")

_OPERATIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scatter_nd(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Array:
    """``data[indices[i]] = updates[i]`` for every row i. ``indices`` is int64 of shape [..., k], k <= rank of data."""
    width = indices.shape[-1] if indices.ndim else 0
    if not 0 < width <= data.ndim or updates.shape != indices.shape[:-1] + data.shape[width:]:
        raise ReferenceRefusal(
            f"ScatterND of updates {list(updates.shape)} at indices {list(indices.shape)} into {list(data.shape)}"
        )
    columns = [_in_range(indices[..., axis], data.shape[axis], axis) for axis in range(width)]
    return _write(data, tuple(columns), updates, reduction)


def scatter_elements(data: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none") -> Array:
    """``data[..., indices[i], ...] = updates[i]`` for every element i, at its own place along the other axes."""
    if (
        not data.ndim
        or indices.ndim != data.ndim
        or indices.shape != updates.shape
        or not -data.ndim <= axis < data.ndim
    ):
        raise ReferenceRefusal(
            f"ScatterElements of updates {list(updates.shape)} at indices {list(indices.shape)} into "
            f"{list(data.shape)} along axis {axis}"
        )
    axis %= data.ndim
    if any(have > room for i, (have, room) in enumerate(zip(indices.shape, data.shape, strict=True)) if i != axis):
        raise ReferenceRefusal(f"ScatterElements: indices {list(indices.shape)} reach out of {list(data.shape)}")
    place: list[Array] = list(np.indices(indices.shape, sparse=True))
    place[axis] = _in_range(indices, data.shape[axis], axis)
    return _write(data, tuple(np.broadcast_arrays(*place)), updates, reduction)


def _write(data: Array, place: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = data.copy()
    if reduction == "none":
        result[place] = updates
    elif reduction in _OPERATIONS:
        with np.errstate(all="ignore"):
            _OPERATIONS[reduction].at(result, place, updates)
    else:
        raise ReferenceRefusal(f"unknown reduction {reduction!r}")
    return result


def _in_range(index: Array, size: int, axis: int) -> Array:
    if index.size and (index.min() < -size or index.max() >= size):
        wrong = int(index.min()) if index.min() < -size else int(index.max())
        raise ReferenceRefusal(
            f"index {wrong} is out of range for axis {axis} of size {size}",
            argument="indices",
            index_range=(-size, size),
        )
    return np.where(index < 0, index + size, index)
