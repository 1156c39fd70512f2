"""Compare the outputs of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfix.report import OutputComparison
from graphfix.verification.tolerance import Tolerance, tolerance

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 20  # elements that are widened to float64 at a time


@dataclass(frozen=True)
class Difference:
    """How one output differs from the expected one. ``problem`` is "" when it is within the tolerance.

    ``max_ulp`` counts representable values between the two (for integers, their distance), ``differing`` the elements
    out of ``size`` that are not equal, ``at`` is the index of the largest absolute difference. ``exact`` says that
    every value is equal: NaN to NaN, and -0.0 to 0.0, which ONNX Runtime's Where does not tell apart. ``relative`` and
    ``absolute`` are the tolerance that was applied.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    exact: bool = True
    problem: str = ""
    max_ulp: float = 0.0
    differing: int = 0
    size: int = 0
    at: tuple[int, ...] | None = None
    relative: float = 0.0
    absolute: float = 0.0


def compare(
    expected: Any,
    actual: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    depth: int = 1,
    elsewhere: bool = False,
) -> Difference:
    """Compare two values of one output.

    dtype and shape must be equal. Integers, bools and strings must be equal; floats may differ by the tolerance of
    their dtype and ``depth`` (see graphfix.verification.tolerance; ``rtol`` and ``atol`` replace it, ``elsewhere`` is
    for expected values that other kernels than ONNX Runtime's have made); NaN equals
    NaN, and an infinity only itself. Sequences are compared element by element. ``max_rel`` is relative to the
    expected values other than zero.
    """
    if isinstance(expected, list) or isinstance(actual, list):
        return _compare_lists(expected, actual, {"rtol": rtol, "atol": atol, "depth": depth, "elsewhere": elsewhere})
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
    if kind in "biu" or expected.dtype.name.startswith(("int", "uint")):  # int4 and its kin have a kind of their own
        return _compare_integers(expected, actual)
    allowed = tolerance(expected.dtype.name, depth, rtol=rtol, atol=atol)
    return _compare_floats(expected, actual, allowed, elsewhere and depth > 0)


def outputs(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    depths: Mapping[str, int] | None = None,
    elsewhere: bool = False,
) -> dict[str, Difference]:
    """Compare all outputs by name; one that is missing differs. ``depths``: see graphfix.verification.tolerance."""
    depths = depths or {}
    return {
        name: compare(value, actual[name], rtol=rtol, atol=atol, depth=depths.get(name, 1), elsewhere=elsewhere)
        if name in actual
        else _unlike("is missing")
        for name, value in expected.items()
    }


def merge(name: str, dtype: str, differences: list[Difference]) -> OutputComparison:
    """One line of the report: the largest differences of an output over all runs."""
    worst = max(differences, key=lambda d: d.max_abs, default=Difference())
    return OutputComparison(
        name=name,
        dtype=dtype,
        max_abs=worst.max_abs,
        max_rel=max((d.max_rel for d in differences), default=0.0),
        exact=all(d.exact for d in differences),
        max_ulp=max((d.max_ulp for d in differences), default=0.0),
        differing=sum(d.differing for d in differences),
        elements=sum(d.size for d in differences),
        largest_at=worst.at if worst.max_abs else None,
        rtol=max((d.relative for d in differences), default=0.0),
        atol=max((d.absolute for d in differences), default=0.0),
        problem=next((d.problem for d in differences if d.problem), ""),
    )


def ulps(expected: Array, actual: Array) -> Array:
    """How many representable values lie between two finite arrays of one real float dtype, element by element.

    The bits of a float, read as an integer, count the values from zero on; both zeros are one value.
    """
    bits = np.dtype(f"int{8 * expected.dtype.itemsize}")
    lowest = np.iinfo(bits).min

    def ordered(array: Array) -> Array:
        whole = np.ascontiguousarray(array).view(bits)
        # As floats: a distance may not fit into an integer of the same width. Their rounding does not matter here.
        return np.where(whole < 0, lowest - whole, whole)  # the subtraction cannot overflow: both are negative

    one, other = ordered(expected), ordered(actual)
    if bits.itemsize < 8:
        return np.abs(one.astype(np.int64) - other.astype(np.int64)).astype(np.float64)
    with np.errstate(over="ignore"):
        near = (one >= 0) == (other >= 0)
        exact = np.abs(np.where(near, one - other, 0)).astype(np.float64)
    return np.where(near, exact, np.abs(one.astype(np.float64)) + np.abs(other.astype(np.float64)))


def _unlike(problem: str) -> Difference:
    return Difference(float("inf"), float("inf"), False, problem, float("inf"))


def _compare_lists(expected: Any, actual: Any, how: dict[str, Any]) -> Difference:
    if not isinstance(expected, list) or not isinstance(actual, list):
        return _unlike("is a sequence on one side only")
    if len(expected) != len(actual):
        return _unlike(f"has {len(actual)} elements, not {len(expected)}")
    parts = [compare(e, a, **how) for e, a in zip(expected, actual, strict=True)]
    if not parts:
        return Difference()
    problems = [f"element {n} {part.problem}" for n, part in enumerate(parts) if part.problem]
    worst = max(range(len(parts)), key=lambda n: parts[n].max_abs)
    place = parts[worst].at
    return Difference(
        parts[worst].max_abs,
        max(p.max_rel for p in parts),
        all(p.exact for p in parts),
        problems[0] if problems else "",
        max(p.max_ulp for p in parts),
        sum(p.differing for p in parts),
        sum(p.size for p in parts),
        (worst, *place) if place is not None else None,
        max(p.relative for p in parts),
        max(p.absolute for p in parts),
    )


def _compare_integers(expected: Array, actual: Array) -> Difference:
    wrong = expected != actual
    count = int(np.count_nonzero(wrong))
    if not count:
        return Difference(size=wrong.size)
    # Unsigned: the difference of two 64-bit values may not fit into a signed one, but wraps to the right bits.
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    e, a = expected[wrong].astype(wide), actual[wrong].astype(wide)
    with np.errstate(over="ignore"):
        gaps = np.where(a > e, a - e, e - a).view(np.uint64)
        scale = np.abs(e).view(np.uint64)
    largest = float(gaps.max())
    told = scale > 0
    relative = float((gaps[told] / scale[told]).max(initial=0.0))
    at = tuple(int(i) for i in np.unravel_index(np.flatnonzero(wrong)[int(gaps.argmax())], wrong.shape))
    problem = f"differs in {count} of {wrong.size} elements, by up to {largest:g}"
    return Difference(largest, relative, False, problem, largest, count, wrong.size, at)


def _compare_floats(expected: Array, actual: Array, allowed: Tolerance, elsewhere: bool) -> Difference:
    size = expected.size
    if _same_bits(expected, actual):
        return Difference(size=size)
    relative, absolute = allowed.relative, allowed.absolute
    if allowed.scaled:
        absolute *= min(1.0, _magnitude(expected))
        if elsewhere:
            absolute *= max(1.0, _root_mean_square(expected))
    largest = ratio = steps = 0.0
    wrong = differing = 0
    at = -1
    for start, e_given, a_given in _chunks(expected, actual):
        if bool(((e_given == a_given) | ((e_given != e_given) & (a_given != a_given))).all()):
            continue
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        e, a = e_given.astype(wide), a_given.astype(wide)
        same = (e == a) | (np.isnan(e) & np.isnan(a))
        finite = np.isfinite(e) & np.isfinite(a)
        with np.errstate(all="ignore"):
            gap = np.where(same, 0.0, np.where(finite, np.abs(a - e), np.inf))
            scale = np.where(finite, np.abs(e), 0.0)
            ratios = np.where(gap == 0, 0.0, np.where(scale > 0, gap / scale, np.where(finite, 0.0, np.inf)))
        wrong += int(np.count_nonzero(gap > absolute + relative * scale))
        differing += int(np.count_nonzero(~same))
        ratio = max(ratio, float(ratios.max()))
        steps = max(steps, _most_ulps(e_given, a_given, ~same, finite))
        if float(gap.max()) > largest:
            largest, at = float(gap.max()), start + int(np.argmax(gap))
    place = tuple(int(i) for i in np.unravel_index(at, expected.shape)) if at >= 0 else None
    problem = ""
    if wrong:
        where = f"[{', '.join(map(str, place or ()))}]"
        e_at, a_at = _number(expected, place), _number(actual, place)
        problem = f"differs in {wrong} of {size} elements, most at {where}: {_unequal(a_at, e_at)}"
    return Difference(largest, ratio, not differing, problem, steps, differing, size, place, relative, absolute)


def _chunks(expected: Array, actual: Array) -> Iterator[tuple[int, Array, Array]]:
    one, other = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, one.size, _CHUNK):
        yield start, one[start : start + _CHUNK], other[start : start + _CHUNK]


def _root_mean_square(values: Array) -> float:
    """Of the finite values: what the error of sums in another order is in proportion to, also of those near zero."""
    finite = values[np.isfinite(values)].astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    with np.errstate(over="ignore"):
        found = float(np.sqrt(np.mean(np.abs(finite) ** 2))) if finite.size else 0.0
    return found if np.isfinite(found) else 1.0


def _magnitude(expected: Array) -> float:
    """The largest finite magnitude."""
    largest = 0.0
    for _, part, _ in _chunks(expected, expected):
        wide = np.abs(part.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
        largest = max(largest, float(wide[np.isfinite(wide)].max(initial=0.0)))
    return largest


def _most_ulps(expected: Array, actual: Array, differs: Array, finite: Array) -> float:
    if not bool(finite[differs].all()):
        return float("inf")
    e, a = expected[differs], actual[differs]
    if e.dtype.kind == "c":
        return float(max(ulps(e.real, a.real).max(), ulps(e.imag, a.imag).max()))
    return float(ulps(e, a).max())


def _same_bits(expected: Array, actual: Array) -> bool:
    pairs = _chunks(np.ascontiguousarray(expected), np.ascontiguousarray(actual))
    return all(np.array_equal(e.view(np.uint8), a.view(np.uint8)) for _, e, a in pairs)


def _unequal(actual: Any, expected: Any) -> str:
    """Both numbers, in as many digits as tell them apart."""
    for digits in (6, 9, 17):
        one, other = f"{actual:.{digits}g}", f"{expected:.{digits}g}"
        if one != other:
            break
    return f"{one}, not {other}"


def _number(array: Array, place: tuple[int, ...] | None) -> Any:
    value = array[place if place is not None else ()]
    return complex(value) if array.dtype.kind == "c" else float(value)
