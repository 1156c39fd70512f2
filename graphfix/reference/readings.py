"""How ``index_put`` and ``index`` nodes are read that are not literally valid.

Old exporters (torch 1.8 to 1.11) wrote nodes whose shapes PyTorch itself would refuse. Two readings make sense of
them. The reference kernels and the lowerings must agree on both, so both call these functions. They are pure: shapes
in, shapes out.

Values. ``x[..., 0] = v`` arrives with a selection of shape ``[B, T, 1]`` and values ``[B, T]``. Values that do not
broadcast to the selection but have as many elements are reshaped to it. Not where a mask decides how much is selected:
the numbers may then be equal by chance.

Masks. torch 1.8 flattens a mask: ``Reshape(mask, [-1])`` of length B*T on data ``[B, T, D]``. When that Reshape is in
the graph, the rank of what it reshapes says how many axes the mask covers. When it is not, a rank-1 mask as long as
its axis is an ordinary mask of that axis; any other length must be the product of the next k >= 2 axes for exactly
one k, and the mask covers these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class ReadingError(ValueError):
    """No reading makes the shapes fit, or more than one does."""


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts to ``target`` without changing it. A higher rank never does, as in PyTorch."""
    if len(shape) > len(target):
        return False
    aligned = target[len(target) - len(shape) :]
    return all(have in (1, want) for have, want in zip(shape, aligned, strict=True))


def read_values_shape(values: Sequence[int], selection: Sequence[int], *, masked: bool = False) -> tuple[int, ...]:
    """The shape to give ``values`` so that they broadcast to ``selection``: their own, or the selection's.

    ``masked``: a mask is among the indices. Raises ReadingError when neither fits.
    """
    if broadcasts_to(values, selection):
        return tuple(values)
    if not masked and math.prod(values) == math.prod(selection):
        return tuple(selection)
    raise ReadingError(f"values of shape {list(values)} do not fit the selection of shape {list(selection)}")


def read_mask_shape(
    mask: Sequence[int], data: Sequence[int], axis: int = 0, reshaped_rank: int | None = None
) -> tuple[int, ...]:
    """The shape to give a mask that starts at ``axis`` of ``data``; its length is the number of axes it covers.

    ``reshaped_rank`` is the rank of the tensor that a ``Reshape(mask, [-1])`` in the graph flattened, None when there
    is no such node. Raises ReadingError when no reading fits, or several do.
    """
    mask, rest = tuple(mask), tuple(data[axis:])
    misfit = ReadingError(f"a mask of shape {list(mask)} does not fit axes {axis} and on of data {list(data)}")
    if not mask:
        raise ReadingError("a mask of rank 0 is not supported")
    if len(mask) == 1 and reshaped_rank is not None and reshaped_rank >= 1:
        covered = rest[:reshaped_rank]
        if len(covered) < reshaped_rank or math.prod(covered) != mask[0]:
            raise misfit
        return covered
    if mask == rest[: len(mask)]:
        return mask
    if len(mask) > 1:
        raise misfit
    fits = [k for k in range(2, len(rest) + 1) if math.prod(rest[:k]) == mask[0]]
    if len(fits) > 1:
        raise ReadingError(f"a flattened mask of length {mask[0]} could cover {fits} axes of data {list(data)}")
    if not fits:
        raise misfit
    return rest[: fits[0]]
