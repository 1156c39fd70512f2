"""Check one rewrite alone: what was there and what takes its place, on inputs made to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graphfix.reference.ort import OrtModel
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import ReferenceSession, uses_kernels
from graphfix.symbolic import Expr
from graphfix.verification import compare
from graphfix.verification.empty import takes_empty
from graphfix.verification.excerpt import OUTPUT, Excerpt, ExcerptInput
from graphfix.verification.inputs import InputSearch, InputSet, describe

Array = np.ndarray[Any, Any]
Sizes = dict[str, int]

# Elements of all inputs together: from where on few input sets are tried, and none.
_LARGE, _MOST_ELEMENTS = 1 << 18, 1 << 25
# Fixed sizes beyond the first are made smaller where the elements are too many, down to the others: larger than every
# integer that the nodes may then hold, so that a wrong bound shows.
_LARGE_SIZE, _SMALLER = 16, (17, 19, 23, 29, 31, 37)
_DISTINCT = (3, 5, 2, 7, 11, 13, 17)  # primes: no product of some is a product of others by chance


@dataclass
class RewriteCheck:
    """What came of checking one rewrite.

    ``problem`` is "" when the two agree on every one of ``sets`` input sets. ``unchecked`` says why nothing could be
    compared. ``exact`` is False when some results agreed but for rounding.
    """

    sets: int = 0
    problem: str = ""
    unchecked: str = ""
    exact: bool = True
    feeds: dict[str, Array] = field(default_factory=dict)


def check_rewrite(excerpt: Excerpt, *, base_dir: Path | None = None, seed: int = 0) -> RewriteCheck:
    """Run both sides of an excerpt and compare.

    Where dims are dynamic several sizes are tried, 1 and 0 among them; for each of them, indices that repeat, count
    from the end, lie at the ends and are in order; masks that hold nowhere, everywhere, once; floats with NaN,
    infinities, -0.0 and subnormal numbers. Sets that the side before refuses do not count; what it runs, the side after
    has to run with the same result: bit for bit, unless it sums or computes anew in other lanes.

    Where fixed sizes are large, the same nodes are run on smaller inputs, unless they hold constants that may come from
    the sizes. If they do not agree there, that shows nothing: a few sets of the full sizes have to do.

    ONNX leaves open which of several writes to one place wins: the side before takes the last, as PyTorch does.
    """
    check = _Check(excerpt, base_dir, seed)
    if check.least_elements() > _LARGE and not _holds_sizes(excerpt):
        small = _Check(_shrunk(excerpt), base_dir, seed).run()
        if small.sets and not small.problem:
            return small
    return check.run()


class _Check:
    def __init__(self, excerpt: Excerpt, base_dir: Path | None, seed: int) -> None:
        self.excerpt = excerpt
        self.base_dir = base_dir
        self.result = RewriteCheck()
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.unknowns = sorted({u for i in excerpt.inputs for dim in i.shape for m, _ in dim.terms for u in m})

    def run(self) -> RewriteCheck:
        result = self.result
        try:
            self.before = ReferenceSession(self.excerpt.before, base_dir=self.base_dir, scatters=True)
        except ReferenceRefusal as refusal:
            result.unchecked = f"the reference cannot run it: {refusal}"
            return result
        try:
            self.after = self.candidate()
        except ReferenceRefusal as refusal:
            result.problem = f"does not load: {refusal}"
            return result
        reason, ran = "", []
        for sizes in self.assignments():
            shapes = self.shapes(sizes)
            if shapes is None or (0 in sizes.values() and {n: max(s, 1) for n, s in sizes.items()} not in ran):
                continue  # of what is empty, nobody sees whether sizes and indices fit
            elements = sum(int(np.prod(s)) for s in shapes.values())
            if elements > _MOST_ELEMENTS:
                reason = reason or f"its inputs have {elements:,} elements"
                continue
            base, refused = self.base_set(shapes)
            if base is None or self.fits_only_by_luck(base):
                reason = reason or refused
                continue
            ran.append(sizes)
            for feeds, expected in self.with_variants(base, few=elements > _LARGE):
                result.sets += 1
                result.problem = self.difference(feeds, expected)
                if result.problem:
                    result.feeds = feeds
                    return result
        if not result.sets:
            result.unchecked = reason or "no sizes were found for its inputs"
        return result

    def candidate(self) -> OrtModel | ReferenceSession:
        """The side after, in ONNX Runtime itself unless that is not to blame: what it refuses may be on both sides."""
        before, after = self.excerpt.before, self.excerpt.after
        if uses_kernels(after):
            return ReferenceSession(after, base_dir=self.base_dir)
        try:
            return OrtModel(after, base_dir=self.base_dir)
        except ReferenceRefusal:
            if uses_kernels(before):
                raise
            try:
                OrtModel(before, base_dir=self.base_dir)
            except ReferenceRefusal:
                return ReferenceSession(after, base_dir=self.base_dir)
            raise

    # ---- sizes

    def least_elements(self) -> int:
        """How many elements the inputs have when every unknown size is 1."""
        shapes = self.shapes(dict.fromkeys(self.unknowns, 1)) or {}
        return sum(int(np.prod(shape)) for shape in shapes.values())

    def assignments(self) -> Iterator[Sizes]:
        """Sizes for the unknowns: all different, all alike, each in turn 1, all 1, each in turn 0 (where none of the
        operators may end the process then).

        Those of fixed dims when nothing else ran: a dynamic dim may have to match one.
        """
        names = self.unknowns
        if not names:
            yield {}
            return
        distinct = {name: _DISTINCT[i % len(_DISTINCT)] for i, name in enumerate(names)}
        yield distinct
        yield dict.fromkeys(names, 4)
        yield {name: _DISTINCT[-1 - i % len(_DISTINCT)] for i, name in enumerate(names)}
        for name in names[:4]:
            yield {**distinct, name: 1}
        if len(names) > 1:
            yield dict.fromkeys(names, 1)
        survives = takes_empty(self.excerpt.before) and takes_empty(self.excerpt.after)
        for name in names[:4] if survives else ():
            yield {**distinct, name: 0}
        for size in sorted(self.fixed_sizes()) if not self.result.sets else ():
            yield dict.fromkeys(names, size)
            yield from ({**distinct, name: size} for name in names[:4])

    def fixed_sizes(self) -> set[int]:
        """Small sizes of fixed dims, of inputs and of constants."""
        sizes = {dim.constant for given in self.excerpt.inputs for dim in given.shape}
        for side in (self.excerpt.before, self.excerpt.after):
            sizes.update(size for tensor in _constants(side) for size in tensor.dims)
        return {size for size in sizes if size is not None and 1 < size <= 64}

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]] | None:
        shapes = {}
        for given in self.excerpt.inputs:
            dims = tuple(_evaluate(dim, sizes) for dim in given.shape)
            if any(d < 0 for d in dims):
                return None
            shapes[given.name] = dims
        return shapes

    # ---- values

    def base_set(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[InputSet | None, str]:
        search = InputSearch(self.before, self.excerpt.before, count=1, seed=self.seed, input_shapes=shapes)
        try:
            found = next(iter(search), None)
        except ReferenceRefusal as refusal:  # it does not load
            return None, str(refusal)
        if found is not None and self.excerpt.multiplies:
            found.feeds = {name: self.tame(value) for name, value in found.feeds.items()}
            found.outputs = self.before.run(found.feeds)
        return found, next(iter(search.refused.values()), "")

    def tame(self, values: Array) -> Array:
        """Powers of two, whose products are exact in any order, in the place of floats."""
        if not _is_float(values.dtype):
            return values
        return self.rng.choice(np.array([0.5, 1.0, 2.0, -1.0]), values.shape).astype(values.dtype)

    def fits_only_by_luck(self, base: InputSet) -> bool:
        """Whether the sizes may not fit each other, which no one sees as long as a mask holds at the front or nowhere.

        Sizes that no fact ties are chosen freely, and some of them must be equal. PyTorch looks at no index where
        nothing is selected; what replaces the node may. (A mask may be the negation of the one that is given.)
        """
        masks = [i.name for i in self.excerpt.inputs if _kind(i) == "b" and base.feeds[i.name].size]
        if not masks or not self.unknowns:
            return False

        def runs(change: Callable[[Array], Array]) -> bool:
            try:
                self.before.run({**base.feeds, **{name: change(base.feeds[name]) for name in masks}})
            except ReferenceRefusal:
                return False
            return True

        if runs(np.ones_like) and runs(np.zeros_like):
            return False
        some = any(base.feeds[name].any() for name in masks)
        return not (some and runs(lambda mask: np.sort(mask, axis=None).reshape(mask.shape)))

    def with_variants(self, base: InputSet, few: bool) -> Iterator[tuple[dict[str, Array], Array]]:
        """The set and its variants, as far as the side before runs them, with its result."""
        if all(base.feeds[i.name].min(initial=0) >= 0 for i in self.excerpt.inputs if i.nonnegative):
            yield base.feeds, base.outputs[OUTPUT]
        for number, feeds in enumerate(self.variants(base.feeds)):
            if few and number > 1:
                return
            try:
                yield feeds, self.before.run(feeds)[OUTPUT]
            except ReferenceRefusal:
                continue

    def variants(self, base: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        floats = [i for i in self.excerpt.inputs if _kind(i) == "f"]
        masks = [i for i in self.excerpt.inputs if _kind(i) == "b"]
        integers = [i for i in self.excerpt.inputs if _kind(i) in "iu"]
        odd = {i.name: self.odd_floats(base[i.name]) for i in floats}
        if odd:
            yield {**base, **odd}
        for given in floats if len(floats) <= 4 else ():
            values = self.odd_values(base[given.name].dtype)
            yield {**base, given.name: np.resize(self.rng.permutation(values), base[given.name].shape)}
        for integer in integers:
            for values in self.other_integers(integer, base[integer.name]):
                yield {**base, **odd, integer.name: values}
        for fill in (self.none, self.all, self.first, self.last) if masks else ():
            yield {**base, **{i.name: fill(base[i.name]) for i in masks}}
        for mask in masks[:4] if len(masks) > 1 else ():
            yield {**base, **odd, mask.name: ~base[mask.name]}
        for _ in range(2):
            yield {
                **base,
                **{i.name: self.rng.permutation(base[i.name].reshape(-1)).reshape(base[i.name].shape) for i in masks},
                **{
                    i.name: self.rng.permutation(base[i.name].reshape(-1)).reshape(base[i.name].shape) for i in integers
                },
            }

    def odd_floats(self, base: Array) -> Array:
        """NaN, infinities, zeros of both signs, subnormal and extreme numbers among the others."""
        values = self.rng.choice(self.odd_values(base.dtype), base.shape)
        return np.where(self.rng.random(base.shape) < 0.4, values, base).astype(base.dtype)

    def odd_values(self, dtype: np.dtype[Any]) -> Array:
        if self.excerpt.multiplies:
            return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(dtype)
        info = _finfo(dtype)
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, info.smallest_subnormal, -info.smallest_subnormal]
        # Where sums are compared, what overflows depends on their order.
        return np.array(odd + ([info.max, info.min] if not self.excerpt.rounds else [info.smallest_normal])).astype(
            dtype
        )

    def other_integers(self, given: ExcerptInput, base: Array) -> Iterator[Array]:
        """The whole range of the type, the same value everywhere, the ends, in order, backwards, from the end."""
        if not base.size:
            return
        info = np.iinfo(base.dtype)
        ends = np.array([info.max, info.min, info.max // 3, 0] if not given.nonnegative else [info.max, 0])
        yield self.rng.choice(ends.astype(base.dtype), base.shape)
        flat = np.sort(base.reshape(-1))
        low, high = int(flat[0]), int(flat[-1])
        for value in dict.fromkeys((low, high, 0)):
            yield np.full(base.shape, value).astype(base.dtype)
        yield flat.reshape(base.shape)
        yield flat[::-1].reshape(base.shape).copy()
        if base.dtype.kind == "i" and not given.nonnegative:
            yield np.where(base >= 0, -1 - base, base).astype(base.dtype)
            yield np.where(self.rng.random(base.shape) < 0.5, -1 - np.abs(base), base).astype(base.dtype)
            yield np.full(base.shape, -1).astype(base.dtype)

    @staticmethod
    def none(base: Array) -> Array:
        return np.zeros_like(base)

    @staticmethod
    def all(base: Array) -> Array:
        return np.ones_like(base)

    @staticmethod
    def first(base: Array) -> Array:
        single = np.zeros_like(base)
        single.reshape(-1)[:1] = True
        return single

    @staticmethod
    def last(base: Array) -> Array:
        single = np.zeros_like(base)
        single.reshape(-1)[-1:] = True
        return single

    # ---- comparison

    def difference(self, feeds: dict[str, Array], expected: Array) -> str:
        try:
            actual = self.after.run(feeds)[OUTPUT]
        except ReferenceRefusal as refusal:
            return f"does not run on {describe(feeds)}: {refusal}"
        tolerance = 0.0 if not self.excerpt.rounds else None
        found = compare.compare(expected, actual, rtol=tolerance, atol=tolerance)
        self.result.exact &= found.exact
        return f"{found.problem} on {describe(feeds)}" if found.problem else ""


def _holds_sizes(excerpt: Excerpt) -> bool:
    """Whether a constant of either side may come from a large size."""
    for side in (excerpt.before, excerpt.after):
        for tensor in _constants(side):
            if any(size > _LARGE_SIZE for size in tensor.dims) or tensor.data_location == onnx.TensorProto.EXTERNAL:
                return True
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype.kind in "iu":
                ends = (np.iinfo(values.dtype).max, np.iinfo(values.dtype).min)
                if any(abs(int(v)) > _LARGE_SIZE and int(v) not in ends for v in values.reshape(-1)):
                    return True
    return False


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                yield attribute.t
            elif attribute.ints:
                yield onnx.numpy_helper.from_array(np.array(attribute.ints, np.int64))
            elif attribute.HasField("i"):
                yield onnx.numpy_helper.from_array(np.array(attribute.i, np.int64))


def _shrunk(excerpt: Excerpt) -> Excerpt:
    """The excerpt with smaller sizes in the place of large fixed ones; equal ones stay equal."""
    fixed = {d.constant for given in excerpt.inputs for d in given.shape if d.constant is not None}
    large = sorted(size for size in fixed if size > _SMALLER[-1])
    small = {size: Expr.of(_SMALLER[i % len(_SMALLER)]) for i, size in enumerate(large)}
    inputs = tuple(
        replace(given, shape=tuple(small.get(d.constant, d) if d.constant is not None else d for d in given.shape))
        for given in excerpt.inputs
    )
    sides = []
    for side in (excerpt.before, excerpt.after):
        model = onnx.ModelProto()
        model.CopyFrom(side)
        for value, given in zip(model.graph.input, inputs, strict=True):
            for dim, size in zip(value.type.tensor_type.shape.dim, given.shape, strict=True):
                if size.constant is not None:
                    dim.dim_value = size.constant
        sides.append(model)
    return replace(excerpt, before=sides[0], after=sides[1], inputs=inputs)


def _evaluate(dim: Expr, sizes: Sizes) -> int:
    total = 0
    for monomial, coefficient in dim.terms:
        for unknown in monomial:
            coefficient *= sizes[unknown]
        total += coefficient
    return total


def _kind(given: ExcerptInput) -> str:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(given.dtype)
    return "f" if _is_float(dtype) else dtype.kind


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fV"  # NumPy calls bfloat16 and the like void


def _finfo(dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype) if dtype.kind not in "f" or dtype.name == "bfloat16" else np.finfo(dtype)
