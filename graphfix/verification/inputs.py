"""Input sets that a model accepts: found by trying, with what its graph and its refusals tell."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from graphfix.reference.memory import Memory, size_of
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import Input, ReferenceSession
from graphfix.verification import shell as shells
from graphfix.verification import sizes as sizing
from graphfix.verification.empty import takes_empty
from graphfix.verification.roles import usual_range
from graphfix.verification.uses import Strength, Use, Uses

Array = np.ndarray[Any, Any]

FLAVOURS = ("plain", "negative, repeated and false", "boundary and true", "unique")
_PATIENCE = 60.0  # seconds spent on refused sets before the search is content with less
_MOST_REFUSALS = 160
_UNHURRIED = 20.0  # seconds that all sets may have taken for the sets of size 0 and with NaN to be tried
_MOST_EMPTY = 4  # dims that are tried with size 0
_SPECIAL_SHARE = 0.3
_MEMORY_SHARE = 0.25  # of the memory limit, that sets after the first may fill: the runs need the rest
_CHUNK = 1 << 20  # elements that are drawn at a time, as most are drawn in a wider dtype
_ELEMENTS = 2  # of a sequence
_REPAIRS = 4  # times that one refused set is mended by what the refusal says
_PLAIN = (-4, 9)
# Ranges of integers that decide nothing, by flavour; None for the whole range of the dtype.
_FREE: tuple[tuple[int, int] | None, ...] = ((0, 100), (-1000, 1000), None, (0, 10))

_LAST_RESORT = 120  # random tries for models whose integers fit each other by chance only

# How careful integers are, from as varied as the graph allows to those that ran before. Some models need it.
_CAREFUL, _ZEROS, _ONES, _SAME = 1, 2, 3, 4


@dataclass
class InputSet:
    """Inputs that the reference ran, and its outputs. ``sizes`` are those of the dynamic dims.

    ``special`` names the values among the inputs that optimisations may treat in another way (``NaN and infinities``).
    """

    feeds: dict[str, Array]
    outputs: dict[str, Array]
    sizes: dict[str, int] = field(default_factory=dict)
    special: str = ""

    def describe(self) -> str:
        """The shapes of the inputs: ``x 4x6x5, i 3``."""
        return describe(self.feeds) + (f" with {self.special}" if self.special else "")


def describe(feeds: Mapping[str, Array]) -> str:
    """The shapes of input arrays, in one line."""
    return ", ".join(f"{name} {_shape_text(value)}" for name, value in feeds.items()) or "no inputs"


def _shape_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shape_text, value))}]"
    return "x".join(map(str, np.shape(value))) or "scalar"


class InputSearch:
    """Iterates over input sets that ``session`` runs, of different sizes where dims are dynamic.

    There are up to ``count`` of them, then some with a dim of size 0 unless ``empty`` is off or an operator might not
    survive it, and, unless ``special`` is off, one with NaN, infinities and -0.0 in the float inputs; both where the
    model takes them. ``refusals`` counts the others that were refused.

    ``input_shapes`` fix the shapes of some inputs, ``sizes`` some dynamic dims, ``ranges`` the lowest and the
    highest value of some inputs, ``values`` all values of some. Without ``ties`` floats are unlikely to be equal.
    Generated inputs are held in ``memory``, which refuses sizes before anything is made. Afterwards ``refused``
    maps a description of every size that no set could be found for to the reason, ``symbols`` are the dynamic dims,
    ``short_of_memory`` says that the first size took too much memory, and ``fewer`` that for this reason there are
    fewer sets. Raises ReferenceRefusal when the model does not load, or holds an operator that does not run with
    its dtypes.
    """

    def __init__(
        self,
        session: ReferenceSession,
        model: onnx.ModelProto,
        *,
        count: int = 4,
        seed: int = 0,
        input_shapes: Mapping[str, tuple[int, ...]] | None = None,
        sizes: Mapping[str, int] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        values: Mapping[str, Array] | None = None,
        special: bool = True,
        empty: bool = True,
        memory: Memory | None = None,
        ties: bool = True,
    ) -> None:
        self.refused: dict[str, str] = {}
        self.short_of_memory = False
        self.fewer = ""
        self._memory = memory or Memory()
        self._session = session
        self._count = count
        self._wants_special = special
        self._wants_empty = empty and takes_empty(model)
        self._ties = ties
        self._fixed = dict(values or {})
        self._given = {**(input_shapes or {}), **{n: np.shape(v) for n, v in self._fixed.items()}}
        self._ranges = dict(ranges or {})
        symbols, self._bound = sizing.free_symbols(session.inputs, self._given)
        self._bound = {**(sizes or {}), **self._bound}
        self.symbols = [s for s in symbols if s not in self._bound]
        self._declared = sizing.declared_sizes(session.inputs, model.graph)
        self._uses = Uses(model.graph)
        self._limits = _Limits(self._uses, session.inputs, model)
        self._rng = np.random.default_rng(seed)
        self._caution = 0
        self._has_integers = any(i.dtype is not None and i.dtype.kind in "iu" for i in session.inputs)
        self._last: dict[str, Array] = {}
        self.refusals = 0
        self._spent = 0.0

    def __iter__(self) -> Iterator[InputSet]:
        unknown = [i.name for i in self._session.inputs if i.dtype is None]
        ranks = [i.name for i in self._session.inputs if i.shape is None and i.name not in self._given]
        if unknown or ranks:
            what = f"input {unknown[0]!r} holds no tensors" if unknown else f"input {ranks[0]!r} has no declared rank"
            self.refused["no inputs were made"] = what
            return
        started = time.monotonic()
        found: list[InputSet] = []
        tried: list[dict[str, int]] = []
        fixed = {dim for i in self._session.inputs for dim in i.shape or () if isinstance(dim, int)}
        candidates = sizing.assignments(self.symbols, self._declared, self._uses.small_integers(), fixed)
        while len(found) < self._count and not self._exhausted():
            sizes = next(candidates, None)
            if sizes is None or self._is_full(sizes, found):
                break
            tried.append(sizes)
            accepted = self._try(sizes, len(found))
            if accepted is not None:
                found.append(accepted)
                yield accepted
        # Sizes that no list has: next to one that ran, when it was the only one.
        base = found[0].sizes if found else {}
        for sizes in sizing.variations({s: base[s] for s in self.symbols}) if found else ():
            if len(found) >= self._count or self._exhausted():
                break
            if sizes not in tried and not self._is_full(sizes, found):
                tried.append(sizes)
                accepted = self._try(sizes, len(found))
                if accepted is not None:
                    found.append(accepted)
                    yield accepted
        if not found and self._has_integers:
            lucky = self._try_luck()
            if lucky is not None:
                found.append(lucky)
                yield lucky
        # Then other values for sizes that ran.
        for number in range(len(found), self._count if found else 0):
            again = found[number % len(found)].sizes
            accepted = None if self._is_full(again, found) else self._try(again, number)
            if accepted is not None:
                found.append(accepted)
                yield accepted
        if found and time.monotonic() - started < _UNHURRIED:
            if self._wants_empty and not self._uses.divides():
                yield from self._empty(found)
            largest = max(found, key=_elements)
            if self._wants_special and not self._is_full(largest.sizes, found):
                yield from self._special(largest)

    def _is_full(self, sizes: Mapping[str, int], found: list[InputSet]) -> bool:
        """Whether one more set of these sizes would leave too little memory for the runs."""
        if not found:
            return False
        last = found[-1]
        inputs = sum(size_of(value) for value in last.feeds.values())
        outputs = sum(size_of(value) for value in last.outputs.values())
        wanted = sum(self._bytes(self._shapes(sizes)).values())
        if not self._memory.excess(wanted + outputs * wanted // max(inputs, 1), _MEMORY_SHARE):
            return False
        self.fewer = f"{len(found)} input set{'s' if len(found) > 1 else ''} only, as more would not fit into memory"
        self.fewer += " (--memory-limit)"
        return True

    def _bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The bytes of every input that is to be generated."""
        return {
            i.name: math.prod(shapes[i.name]) * i.dtype.itemsize * (_ELEMENTS if i.is_list else 1)
            for i in self._session.inputs
            if i.name not in self._fixed and i.dtype is not None
        }

    def _excess(self, shapes: Mapping[str, tuple[int, ...]]) -> ReferenceRefusal | None:
        """The refusal of inputs that would take more memory than there is to take."""
        wanted = self._bytes(shapes)
        problem = self._memory.excess(sum(wanted.values()))
        if not problem:
            return None
        name = max(wanted, key=lambda n: wanted[n])
        return ReferenceRefusal(
            f"the inputs, the largest of them {name!r} of shape {list(shapes[name])}, would take {problem}", memory=True
        )

    def _empty(self, found: list[InputSet]) -> Iterator[InputSet]:
        """Sets in which one dim, and then another, has the size 0.

        Dims of equal size are taken for one dim, whatever their names are: where they are free, they have different
        sizes. They start from sizes above 1, as 1 would broadcast to 0.
        """
        accepted = 0
        base = min(found, key=lambda s: sum(s.sizes[name] == 1 for name in self.symbols)).sizes
        for size in list(dict.fromkeys(base[name] for name in self.symbols))[:_MOST_EMPTY]:
            empty = {name: 0 if base[name] == size else base[name] for name in self.symbols}
            shapes = self._shapes(empty)
            self._limits.resize(shapes)
            feeds = {i.name: self._values(i, shapes[i.name], 0, self._caution) for i in self._session.inputs}
            try:
                yield InputSet(feeds, self._session.run(feeds), {**self._bound, **empty})
            except ReferenceRefusal:
                continue
            accepted += 1
            if accepted == 2:
                return

    def _special(self, plain: InputSet) -> Iterator[InputSet]:
        """A set again, with NaN, infinities and -0.0 in float inputs that nothing limits."""
        # ONNX Runtime's own scatter loses NaN where it takes the largest or smallest.
        nan = not self._uses.scatters_extremes()
        chosen_from = [*([np.nan] if nan else []), np.inf, -np.inf, -0.0]
        feeds = dict(plain.feeds)
        for entry in self._session.inputs:
            value = feeds[entry.name]
            if entry.name in self._ranges or entry.name in self._fixed or entry.dtype is None or entry.is_list:
                continue
            if _holds_infinity(entry.dtype) and self._limits.of(entry).limits is None:
                feeds[entry.name] = self._with_specials(value, np.array(chosen_from).astype(entry.dtype))
        if all(feeds[name] is value for name, value in plain.feeds.items()):
            return
        with contextlib.suppress(ReferenceRefusal):
            yield InputSet(feeds, self._session.run(feeds), plain.sizes, "NaN and infinities" if nan else "infinities")

    def _with_specials(self, value: Array, specials: Array) -> Array:
        """The array with some elements replaced by any of the specials."""
        made = value.copy()
        flat = made.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            places = self._rng.random(part.shape) < _SPECIAL_SHARE
            part[places] = self._rng.choice(specials, int(np.count_nonzero(places)))
        return made

    def _try_luck(self) -> InputSet | None:
        """A set by many tries of random integers, with the likeliest sizes."""
        sizes = next(sizing.assignments(self.symbols, self._declared, ()))
        sizes.update({name: found[0] for name, found in self._declared.items() if name in sizes and found})
        shapes = self._shapes(sizes)
        if self._excess(shapes) is not None:
            return None
        self._limits.resize(shapes)
        for _ in range(_LAST_RESORT):
            if self._spent > _PATIENCE:
                break
            accepted, _refusal = self._attempt(shapes, 0, 0)
            if accepted is not None:
                self._caution = _SAME
                return self._accept(accepted, sizes)
        return None

    def _exhausted(self) -> bool:
        return self.refusals >= _MOST_REFUSALS or self._spent > _PATIENCE

    def _try(self, sizes: Mapping[str, int], flavour: int) -> InputSet | None:
        """A set of these sizes, the flavour asked for if the model takes it. Records the reason if there is none."""
        shapes = self._shapes(sizes)
        first = self._excess(shapes)
        if first is not None:
            self._refuse(shapes, first)
            return None
        self._limits.resize(shapes)
        for kind, caution in self._ladder(flavour % len(FLAVOURS)):
            accepted, refusal = self._attempt(shapes, kind, caution)
            if accepted is not None:
                self._caution = caution
                return self._accept(accepted, sizes)
            first = first or refusal
            if self._exhausted() or (refusal is not None and refusal.memory and not self._has_integers):
                break
        for count in self._likely_counts(shapes):
            self._limits.trues = count
            accepted, _refusal = self._attempt(shapes, 0, self._caution)
            if accepted is not None:
                return self._accept(accepted, sizes)
        assert first is not None
        self._refuse(shapes, first)
        return None

    def _refuse(self, shapes: Mapping[str, tuple[int, ...]], refusal: ReferenceRefusal) -> None:
        """Record why there is no set of these sizes."""
        if not self.refused:
            self.short_of_memory = refusal.memory
        self.refused.setdefault(describe({n: np.broadcast_to(False, s) for n, s in shapes.items()}), str(refusal))

    def _likely_counts(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
        """Counts of trues for masks, where packed values beside them may want just as many."""
        masks = [i.name for i in self._session.inputs if i.dtype == np.bool_]
        others = [shape[0] for name, shape in shapes.items() if name not in masks and shape]
        for count in list(dict.fromkeys(others))[:6] if masks and not self._exhausted() else []:
            yield dict.fromkeys(masks, count)

    def _shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for entry in self._session.inputs:
            shape = sizing.shape_of(entry, {**self._bound, **sizes}, self._given)
            assert shape is not None
            shapes[entry.name] = shape
        return shapes

    def _accept(self, accepted: tuple[dict[str, Array], dict[str, Array]], sizes: Mapping[str, int]) -> InputSet:
        self._last = accepted[0]
        self._memory.hold(*(value for name, value in accepted[0].items() if name not in self._fixed))
        return InputSet(*accepted, {**self._bound, **sizes})

    def _ladder(self, flavour: int) -> list[tuple[int, int]]:
        """Flavours and cautions to try, from the wanted to the harmless. What helped before comes first."""
        steps = [(flavour, self._caution), (0, self._caution), (0, 0)]
        if self._has_integers:
            steps += [(0, _CAREFUL), (0, _ZEROS), (0, _ONES)]
            steps += [(0, _SAME)] if self._last else []
        if any(i.dtype == np.bool_ for i in self._session.inputs):
            steps += [(1, self._caution), (2, self._caution)]
        return list(dict.fromkeys(steps))

    def _attempt(
        self, shapes: Mapping[str, tuple[int, ...]], flavour: int, caution: int
    ) -> tuple[tuple[dict[str, Array], dict[str, Array]] | None, ReferenceRefusal | None]:
        first: ReferenceRefusal | None = None
        for _ in range(1 + _REPAIRS):
            feeds = {
                entry.name: self._values(entry, shapes[entry.name], flavour, caution) for entry in self._session.inputs
            }
            started = time.monotonic()
            try:
                outputs = self._session.run(feeds)
                self._limits.observe(self._session.shapes)
                return (feeds, outputs), None
            except ReferenceRefusal as refusal:
                if refusal.loading or refusal.unsupported:
                    raise
                self._spent += time.monotonic() - started
                self.refusals += 1
                first = first or refusal
                self._limits.observe(self._session.shapes)
                if not self._limits.learn(refusal):
                    break
        return None, first

    def _values(self, entry: Input, shape: tuple[int, ...], flavour: int, caution: int) -> Any:
        """An array, or a list of arrays for a sequence."""
        if entry.name in self._fixed:
            return self._fixed[entry.name]
        if entry.is_list:
            return [self._array(entry, shape, flavour, caution) for _ in range(_ELEMENTS)]
        return self._array(entry, shape, flavour, caution)

    def _array(self, entry: Input, shape: tuple[int, ...], flavour: int, caution: int) -> Array:
        assert entry.dtype is not None
        if entry.name in self._ranges:
            return within(self._rng, shape, flavour, entry.dtype, *self._ranges[entry.name])
        if entry.dtype.kind in "OSU":
            return self._rng.choice(np.array(["a", "b", "graph"], object), shape)
        if entry.dtype == np.bool_:
            return mask(self._rng, shape, flavour, self._limits.trues.get(entry.name))
        domain = self._limits.of(entry)
        if entry.dtype.kind not in "iu":
            return self._floats(entry.dtype, shape, flavour, domain)
        last = self._last.get(entry.name)
        if caution == _SAME and isinstance(last, np.ndarray) and last.shape == shape:
            return last
        if caution in (_ZEROS, _ONES):
            return np.full(shape, caution - _ZEROS, entry.dtype)
        low, high = self._bounds(domain, entry.dtype, flavour, caution)
        made = integers(self._rng, shape, flavour, low, high, entry.dtype)
        if domain.telling is not None and not caution:
            low, high = max(domain.telling[0], low), min(domain.telling[1], high)
            if low < high:
                flat = made.reshape(-1)
                for start in range(0, flat.size, _CHUNK):
                    part = flat[start : start + _CHUNK]
                    places = self._rng.random(part.size) < 0.4
                    part[places] = self._rng.integers(low, high, int(np.count_nonzero(places))).astype(entry.dtype)
        return made

    def _bounds(self, domain: _Domain, dtype: np.dtype[Any], flavour: int, caution: int) -> tuple[int, int]:
        """The half-open range to draw integers from, within the dtype."""
        least, most = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), np.iinfo(np.int64).max)
        if domain.limits is not None:
            low, high = domain.limits
        elif caution:
            low, high = 0, 2
        elif domain.free:
            low, high = _FREE[flavour] or (least, most + 1)
            if domain.telling is not None:
                low, high = min(low, domain.telling[0]), max(high, domain.telling[1])
        else:
            low, high = _PLAIN
            if domain.telling is not None:
                low, high = domain.telling
        low = max(low, 0 if caution else least)
        return low, max(min(high, most + 1), low + 1)

    def _floats(self, dtype: np.dtype[Any], shape: tuple[int, ...], flavour: int, domain: _Domain) -> Array:
        if domain.limits is None:
            return floats(self._rng, shape, flavour if self._ties else 0, dtype)
        if domain.real:
            values = within(self._rng, shape, flavour, dtype, *domain.limits)
            return np.sort(values, axis=-1) if domain.ordered and shape else values
        return integers(self._rng, shape, flavour, *domain.limits, dtype)


@dataclass(frozen=True)
class _Domain:
    """What values an input may have: in half-open ``limits``, unless they are None, and which of them tell most.

    ``real`` says that floats lie in ``limits`` with both ends, ``ordered`` that they rise along the last axis, ``free``
    that integers without limits may be any.
    """

    limits: tuple[int, int] | None = None
    telling: tuple[int, int] | None = None
    real: bool = False
    ordered: bool = False
    free: bool = False


class _Limits:
    """What values each input may have at the present sizes: from the graph, from runs and from refusals."""

    def __init__(self, uses: Uses, inputs: list[Input], model: onnx.ModelProto) -> None:
        self.trues: dict[str, int] = {}
        self._uses = uses
        self._inputs = inputs
        self._shell: onnx.ModelProto | None = None
        self._learned: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, tuple[int | None, ...]] = {}
        self._of_inputs: dict[str, tuple[int, ...]] = {}
        whole = [i.name for i in inputs if i.dtype is not None and i.dtype.kind in "iu"]
        self._free = {name for name in whole if uses.is_free(name)}
        self._by_input: dict[str, list[Use]] = {i.name: [] for i in inputs}
        numeric = [i for i in inputs if i.dtype is not None and i.dtype.kind not in "bOSU"]
        if numeric:
            empty = shells.shell(model)
            types = shells.types(empty)
            self._by_input.update({i.name: uses.of(i.name, types) for i in numeric})
            if any(use.data for found in self._by_input.values() for use in found):
                self._shell = empty

    def resize(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Forget what other sizes taught, and infer the shapes of these."""
        self.trues, self._learned, self._shapes = {}, {}, dict(shapes)
        self._of_inputs = dict(shapes)
        if self._shell is not None:
            shells.resize(self._shell, shapes)
            self._shapes.update(shells.shapes(self._shell))

    def observe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Take in the shapes that a run had."""
        self._shapes.update(shapes)

    def of(self, entry: Input) -> _Domain:
        """What an input's values may be."""
        name, kind = entry.name, entry.dtype.kind if entry.dtype is not None else ""
        uses = self._by_input[name]
        telling = _meet([use.limits(self._shapes) for use in uses if use.strength is Strength.TELLING])
        if name in self._learned:
            return _Domain(self._learned[name], telling)
        must = [use for use in uses if use.strength is Strength.MUST]
        ranges = [use.limits(self._shapes) for use in must]
        # An axis whose size nobody knows yet: the smallest indices fit nearly any.
        hard = _meet(ranges) or ((0, 2) if ranges else None)
        soft = _meet([use.limits(self._shapes) for use in uses if use.strength is Strength.SHOULD])
        if soft is None and all(use.summed for use in must):
            soft = usual_range(name, kind, self._of_inputs)
        limits = hard or soft
        if hard is not None and soft is not None and max(hard[0], soft[0]) < min(hard[1], soft[1]):
            limits = max(hard[0], soft[0]), min(hard[1], soft[1])
        return _Domain(
            limits, telling, any(use.real for use in must), any(use.ordered for use in must), name in self._free
        )

    def learn(self, refusal: ReferenceRefusal) -> bool:
        """Take in what a refusal tells about the values of inputs. False when it tells nothing new."""
        sources = self._uses.sources(refusal.tensor, self._by_input) if refusal.tensor else []
        kinds = {i.name: i.dtype.kind if i.dtype is not None else "" for i in self._inputs}
        if refusal.needs_true is not None:
            masks = [name for name in sources if kinds[name] == "b"]
            changed = bool(masks) and self.trues.get(masks[0]) != refusal.needs_true
            self.trues.update(dict.fromkeys(masks[:1], refusal.needs_true))
            return changed
        limits = refusal.index_range
        if limits is not None and not refusal.tensor:
            tensor = self._uses.index_of(refusal.node)
            sources = self._uses.sources(tensor, self._by_input) if tensor else list(kinds)
        indices = [name for name in sources if kinds[name] in "iu"][:1]
        if limits is None or not indices or self._learned.get(indices[0]) == limits:
            return False
        self._learned[indices[0]] = limits
        return True


def _elements(found: InputSet) -> int:
    return sum(np.size(value) for value in found.feeds.values() if not isinstance(value, list))


def _holds_infinity(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a float that has infinities and NaN."""
    if dtype.kind in "fc":
        return True
    return dtype.kind == "V" and dtype.name in ("bfloat16", "float8_e5m2")


def _meet(ranges: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """What lies in all ranges that are known; the narrowest where nothing does, None where none is known."""
    known = [r for r in ranges if r is not None]
    if not known:
        return None
    low, high = max(r[0] for r in known), min(r[1] for r in known)
    return (low, high) if low < high else min(known, key=lambda r: r[1] - r[0])


def within(
    rng: np.random.Generator, shape: tuple[int, ...], flavour: int, dtype: np.dtype[Any], low: float, high: float
) -> Array:
    """Numbers from ``low`` to ``high``, both included."""
    if dtype.kind in "iu":
        return integers(rng, shape, flavour, int(low), int(high) + 1, dtype)
    if dtype.kind == "b":
        return drawn(shape, dtype, lambda size: rng.integers(int(low), int(high) + 1, size))
    # Rounding to the dtype may leave the range by one step.
    least, most = np.asarray(low, dtype), np.asarray(high, dtype)

    def values(size: int) -> Array:
        made = rng.uniform(low, high, size)
        if flavour in (1, 2):
            made = np.where(rng.random(size) < 0.25, rng.choice(np.array([low, high], np.float64), size), made)
        return np.clip(made.astype(dtype), least, most)

    return drawn(shape, dtype, values)


def drawn(shape: tuple[int, ...], dtype: np.dtype[Any] | type, make: Callable[[int], Array]) -> Array:
    """An array filled in parts, by ``make`` of a number of elements: what it needs on the way stays small."""
    made = np.empty(shape, dtype)
    flat = made.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[...] = make(part.size).astype(dtype)
    return made


def mask(rng: np.random.Generator, shape: tuple[int, ...], flavour: int, trues: int | None = None) -> Array:
    """A bool array: random, all false, all true, or sparse; with exactly ``trues`` trues when that is asked for."""
    size = math.prod(shape)
    if trues is not None:
        flat = np.zeros(size, np.bool_)
        flat[rng.choice(size, min(max(trues, 0), size), replace=False)] = True
        return flat.reshape(shape)
    if flavour in (1, 2):
        return np.full(shape, flavour == 2)
    flat = drawn((size,), np.bool_, lambda part: rng.random(part, np.float32) < (0.5 if flavour == 0 else 0.25))
    if size > 1:
        # One of each at least, whatever the draw.
        flat[rng.choice(size, 2, replace=False)] = (True, False)
    return flat.reshape(shape)


def floats(
    rng: np.random.Generator, shape: tuple[int, ...], flavour: int, dtype: np.dtype[Any] | type = np.float64
) -> Array:
    """Floats: standard normal, wide with zeros of both signs among them, in [0, 1), or small whole numbers."""
    width = np.float64 if np.dtype(dtype).itemsize >= 8 else np.float32

    def values(size: int) -> Array:
        if flavour == 1:
            made = rng.standard_normal(size, width) * width(30)
            zeros = rng.random(size, np.float32)
            made[zeros < 0.1] = 0.0
            made[zeros >= 0.9] = -0.0
            return made
        if flavour == 2:
            return rng.random(size, width)
        if flavour == 3:
            return rng.integers(-4, 5, size)
        return rng.standard_normal(size, width)

    return drawn(shape, dtype, values)


def integers(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    flavour: int,
    low: int,
    high: int,
    dtype: np.dtype[Any] | type = np.int64,
) -> Array:
    """Integers in ``[low, high)``: non-negative ones, a few repeated ones, the boundaries, or unique ones."""
    size = math.prod(shape)
    floor = low if high <= 0 else max(low, 0)
    if flavour == 1:
        pool = rng.integers(low, high, max(1, min(size // 2, _CHUNK)))
        if size and low < 0 < high:
            pool[0] = -1  # the commonest negative index; some engines know no other
        return drawn(shape, dtype, lambda part: rng.choice(pool, part))
    if flavour == 2:
        return drawn(shape, dtype, lambda part: rng.choice(np.array([low, floor, high - 1]), part))
    if flavour == 3 and size <= high - floor <= 1_000_000:
        return (rng.permutation(high - floor)[:size] + floor).reshape(shape).astype(dtype)
    return drawn(shape, dtype, lambda part: rng.integers(floor, high, part))
