"""Sizes to try for a model's dynamic dims."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from graphfix.errors import UsageError
from graphfix.reference.session import Input

Sizes = dict[str, int]

_FIRST = (3, 5, 4, 7, 6, 9, 8)
_SECOND = (5, 2, 6, 3, 8, 4, 7)
_MOST_COMBINATIONS = 24


def symbol(name: str, axis: int, dim: str | int | None) -> str | None:
    """The name that ties a dim to its equals: its own, or one of its position. None for a fixed dim."""
    if isinstance(dim, int):
        return None
    return dim if dim is not None else f"{name}[{axis}]"


def free_symbols(inputs: Sequence[Input], given: Mapping[str, tuple[int, ...]]) -> tuple[list[str], Sizes]:
    """The symbols that may take any size, in order of appearance, and those that ``given`` input shapes settle.

    Raises UsageError when a shape does not fit the model, or two shapes give one symbol different sizes.
    """
    bound: Sizes = {}
    for name, shape in given.items():
        declared = next((i.shape for i in inputs if i.name == name), None)
        if declared is None and name not in {i.name for i in inputs}:
            raise UsageError(f"--input-shape {name}: the model has no such input ({', '.join(i.name for i in inputs)})")
        if declared is not None and len(declared) != len(shape):
            raise UsageError(f"--input-shape {name}: {len(shape)} sizes, but the input has rank {len(declared)}")
        for axis, (dim, size) in enumerate(zip(declared or (), shape, strict=False)):
            if isinstance(dim, int) and dim != size:
                raise UsageError(f"--input-shape {name}: dim {axis} is fixed to {dim} in the model, not {size}")
            tie = symbol(name, axis, dim)
            if tie is not None and bound.setdefault(tie, size) != size:
                raise UsageError(f"--input-shape {name}: dim {axis} ({tie}) is {size} here and {bound[tie]} elsewhere")
    free: dict[str, None] = {}
    for entry in inputs:
        for axis, dim in enumerate(entry.shape or ()):
            tie = symbol(entry.name, axis, dim)
            if tie is not None and tie not in bound:
                free[tie] = None
    return list(free), bound


def shape_of(entry: Input, sizes: Mapping[str, int], given: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of an input under an assignment; None when nothing declares its rank."""
    if entry.name in given:
        return tuple(given[entry.name])
    if entry.shape is None:
        return None
    ties = [symbol(entry.name, axis, dim) for axis, dim in enumerate(entry.shape)]
    return tuple(int(dim) if tie is None else sizes[tie] for tie, dim in zip(ties, entry.shape, strict=True))  # type: ignore[arg-type]


def declared_sizes(inputs: Sequence[Input], graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Sizes of dynamic dims that declared outputs tell.

    Old exporters name the dims of inputs and write the traced sizes into the outputs: an input ``[B, T, 5]`` and an
    output ``[4, 6, 5]`` say that the model was traced with B = 4 and T = 6, the only sizes it may run with.
    """
    found: dict[str, list[int]] = {}
    for value in graph.output:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        for entry in inputs:
            shape = entry.shape or ()
            pairs = list(zip(shape, dims, strict=False))
            if not pairs or any(isinstance(dim, int) and dim != size for dim, size in pairs):
                continue
            for axis, (dim, size) in enumerate(pairs):
                tie = symbol(entry.name, axis, dim)
                if tie is not None and size > 0 and size not in found.setdefault(tie, []):
                    found[tie].append(size)
    return found


def assignments(
    symbols: Sequence[str], declared: Mapping[str, list[int]], numbers: Sequence[int], fixed: Collection[int] = ()
) -> Iterator[Sizes]:
    """Sizes for all symbols, each assignment once: the most telling first, then those that odd models may need.

    ``declared`` are sizes that outputs tell, ``numbers`` sizes that the graph's constants may have baked in.
    ``fixed`` are the sizes of fixed dims: dims of equal size hide that they were mixed up, and are tried late.
    """
    seen: set[tuple[int, ...]] = set()
    for sizes in _assignments(len(symbols), [declared.get(s, []) for s in symbols], numbers, fixed):
        if sizes not in seen:
            seen.add(sizes)
            yield dict(zip(symbols, sizes, strict=True))


def variations(base: Sizes) -> Iterator[Sizes]:
    """Neighbours of an assignment that ran: all sizes together, then one at a time. For a model that runs with few."""
    for size in sorted({value + 1 for value in base.values()}):
        yield dict.fromkeys(base, size)
    for name, size in base.items():
        for other in (size + 1, 1, size + 3, 2 * size):
            if other != size:
                yield {**base, name: other}


def _assignments(
    count: int, declared: list[list[int]], numbers: Sequence[int], fixed: Collection[int]
) -> Iterator[tuple[int, ...]]:
    def cycle(values: Sequence[int], factor: int = 1) -> tuple[int, ...]:
        return tuple(values[k % len(values)] * factor for k in range(count))

    yield cycle([size for size in _FIRST if size not in fixed] or _FIRST)
    traced = tuple(d[0] if d else _FIRST[k % len(_FIRST)] for k, d in enumerate(declared))
    yield traced
    # Dims of size 1 broadcast, and hide what was mixed up: each beside larger ones.
    large = cycle((16, 24, 11, 19))
    for odd in (0, 1):
        yield tuple(1 if k % 2 == odd else size for k, size in enumerate(large))
    yield cycle([size for size in _SECOND if size not in fixed] or _SECOND)
    yield large
    yield cycle((1,))
    for size in (4, 6, 2, *sorted(fixed)[:4]):
        yield cycle((size,))
    candidates = [
        [*d, *(n for n in numbers if n not in d)][:6] or [size] for d, size in zip(declared, traced, strict=True)
    ]
    if any(declared) or numbers:
        yield from itertools.islice(itertools.product(*candidates), _MOST_COMBINATIONS)
    # Images: several poolings or strides leave nothing of a small one.
    for size in (32, 64, 224):
        yield cycle((size,))
        yield tuple(1 if k == 0 else size for k in range(count))
    # One dim at a time beside the traced sizes: a model may halve a dim and have the half baked in.
    for k in range(count if any(declared) else 0):
        for size in range(1, 13):
            yield (*traced[:k], size, *traced[k + 1 :])
