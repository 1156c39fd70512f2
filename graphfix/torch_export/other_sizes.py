"""Arguments of other sizes than the example's: what shows which sizes of a module's tensors are dynamic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphfix.errors import ExportError
from graphfix.torch_export.subject import Subject

_STEPS = (1, 2, 8, 32, 64, 0)  # what is added to a size; 0 doubles it


def other_sizes(subject: Subject, dims: Mapping[int, Mapping[int, str]]) -> tuple[list[Any], list[str]]:
    """Flat arguments with which the module runs, and as many dynamic dims as possible of other sizes.

    ``dims`` are the names of the dynamic axes, by the positions of the arguments; equal names are one size. Elements
    are those of the example, over and over; more of a mask is False, so that it selects as much as before. The second result are the names of dims that cannot be changed alone or
    with those before them. Raises ExportError when none can.
    """
    old = _sizes(subject, dims)
    new = dict(old)
    found, stuck, problem = subject.leaves, [], ""
    for number, name in enumerate(old):
        for step in _STEPS:
            tried = {**new, name: old[name] + step * (number + 1) if step else 2 * old[name]}
            leaves = _resized(subject.leaves, dims, old, tried)
            try:
                subject.call(leaves)
            except Exception as error:  # a module may raise anything
                problem = problem or " ".join(str(error).split())[:200]
                continue
            found, new = leaves, tried
            break
        else:
            stuck.append(name)
    if old and len(stuck) == len(old):
        raise ExportError(
            f"{subject.name} runs with no other sizes of its dynamic dims than the example's ({problem}): leave "
            "dynamic_shapes out"
        )
    return found, stuck


def _sizes(subject: Subject, dims: Mapping[int, Mapping[int, str]]) -> dict[str, int]:
    leaves = subject.leaves
    return {name: leaves[n].shape[axis] for n, axes in dims.items() for axis, name in axes.items()}


def _resized(
    leaves: list[Any], dims: Mapping[int, Mapping[int, str]], old: Mapping[str, int], new: Mapping[str, int]
) -> list[Any]:
    made = list(leaves)
    for n, axes in dims.items():
        for axis, name in axes.items():
            if new[name] != old[name]:
                made[n] = _repeated(made[n], axis, new[name])
    return made


def _repeated(tensor: Tensor, axis: int, size: int) -> Tensor:
    """A tensor with its elements over and over along an axis; False, or zeros where it has none."""
    if tensor.dtype == torch.bool or not tensor.shape[axis]:
        more = tensor.new_zeros([*tensor.shape[:axis], size - tensor.shape[axis], *tensor.shape[axis + 1 :]])
        return torch.cat([tensor, more], axis)
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
