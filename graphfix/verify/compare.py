"""Compare the outputs of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfix.report import OutputComparison

Array = np.ndarray[Any, Any]

# Relative and absolute tolerance by dtype. An element may differ by absolute + relative * its expected size.
TOLERANCES: dict[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-9),
    "complex128": (1e-7, 1e-9),
    "float32": (1e-4, 1e-5),
    "complex64": (1e-4, 1e-5),
    "float16": (1e-2, 1e-2),
    "bfloat16": (1e-2, 1e-2),
}
# The 8-bit and smaller floats: one step of the coarsest.
_COARSE = (0.25, 0.25)


@dataclass(frozen=True)
class Difference:
    """How one output differs from the expected one. ``problem`` is "" when it is within the tolerance."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    exact: bool = True
    problem: str = ""


def compare(expected: Any, actual: Any, *, rtol: float | None = None, atol: float | None = None) -> Difference:
    """Compare two values of one output.

    dtype and shape must be equal. Integers, bools and strings must be equal; floats may differ by the tolerance of
    their dtype (``rtol`` and ``atol`` replace it); NaN equals NaN, and an infinity only itself. Sequences are compared
    element by element. ``max_rel`` is relative to the expected values other than zero.
    """
    if isinstance(expected, list) or isinstance(actual, list):
        return _compare_lists(expected, actual, rtol, atol)
    if expected is None or actual is None:
        return Difference() if expected is actual else _unlike("is an empty optional on one side only")
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.dtype != actual.dtype:
        return _unlike(f"has dtype {actual.dtype}, not {expected.dtype}")
    if expected.shape != actual.shape:
        return _unlike(f"has shape {list(actual.shape)}, not {list(expected.shape)}")
    kind = expected.dtype.kind
    if kind in "OSU":
        differing = int(np.count_nonzero(expected != actual))
        return _unlike(f"differs in {differing} of {expected.size} strings") if differing else Difference()
    if kind in "biu":
        return _compare_integers(expected, actual)
    return _compare_floats(expected, actual, rtol, atol)


def outputs(
    expected: Mapping[str, Any], actual: Mapping[str, Any], *, rtol: float | None = None, atol: float | None = None
) -> dict[str, Difference]:
    """Compare all outputs by name; one that is missing differs."""
    return {
        name: compare(value, actual[name], rtol=rtol, atol=atol) if name in actual else _unlike("is missing")
        for name, value in expected.items()
    }


def merge(name: str, dtype: str, differences: list[Difference]) -> OutputComparison:
    """One line of the report: the largest differences of an output over all runs."""
    return OutputComparison(
        name=name,
        dtype=dtype,
        max_abs=max((d.max_abs for d in differences), default=0.0),
        max_rel=max((d.max_rel for d in differences), default=0.0),
        exact=all(d.exact for d in differences),
    )


def _unlike(problem: str) -> Difference:
    return Difference(float("inf"), float("inf"), False, problem)


def _compare_lists(expected: Any, actual: Any, rtol: float | None, atol: float | None) -> Difference:
    if not isinstance(expected, list) or not isinstance(actual, list):
        return _unlike("is a sequence on one side only")
    if len(expected) != len(actual):
        return _unlike(f"has {len(actual)} elements, not {len(expected)}")
    parts = [compare(e, a, rtol=rtol, atol=atol) for e, a in zip(expected, actual, strict=True)]
    problems = [f"element {n} {part.problem}" for n, part in enumerate(parts) if part.problem]
    return Difference(
        max((p.max_abs for p in parts), default=0.0),
        max((p.max_rel for p in parts), default=0.0),
        all(p.exact for p in parts),
        problems[0] if problems else "",
    )


def _compare_integers(expected: Array, actual: Array) -> Difference:
    wrong = expected != actual
    count = int(np.count_nonzero(wrong))
    if not count:
        return Difference()
    # Python integers: a difference of 64-bit values may not fit into one.
    pairs = list(zip(expected[wrong].tolist(), actual[wrong].tolist(), strict=True))
    largest = float(max(abs(int(a) - int(e)) for e, a in pairs))
    relative = max((abs(int(a) - int(e)) / abs(int(e)) for e, a in pairs if e), default=0.0)
    return Difference(largest, relative, False, f"differs in {count} of {wrong.size} elements, by up to {largest:g}")


def _compare_floats(expected: Array, actual: Array, rtol: float | None, atol: float | None) -> Difference:
    default = TOLERANCES.get(expected.dtype.name, _COARSE)
    relative = default[0] if rtol is None else rtol
    absolute = default[1] if atol is None else atol
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    e, a = expected.astype(wide), actual.astype(wide)
    same = (e == a) | (np.isnan(e) & np.isnan(a))
    if bool(same.all()):
        return Difference()
    finite = np.isfinite(e) & np.isfinite(a)
    with np.errstate(all="ignore"):
        gap = np.where(same, 0.0, np.where(finite, np.abs(a - e), np.inf))
        size = np.where(finite, np.abs(e), 0.0)
        ratio = np.where(gap == 0, 0.0, np.where(size > 0, gap / size, np.where(finite, 0.0, np.inf)))
    wrong = gap > absolute + relative * size
    largest, count = float(gap.max()), int(np.count_nonzero(wrong))
    problem = ""
    if count:
        at = np.unravel_index(int(np.argmax(gap)), gap.shape)
        place = f"[{', '.join(str(int(i)) for i in at)}]"
        problem = f"differs in {count} of {gap.size} elements, most at {place}: {a[at]:g}, not {e[at]:g}"
    return Difference(largest, float(ratio.max()), False, problem)
