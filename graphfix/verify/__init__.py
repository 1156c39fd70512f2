"""Check a fixed model against the model it was made from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfix.report import Verification

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from graphfix.verify.compare import Difference
    from graphfix.verify.inputs import InputSet

Progress = Callable[[int, int], None]
Runner = Callable[[Mapping[str, Any]], dict[str, Any]]

_RANDOM_OPS = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_MOST_SKIPPED = 8


@dataclass
class VerifyOptions:
    """How to check.

    ``inputs``: input sets to use instead of generated ones. ``input_shapes``: shapes of generated inputs.
    ``rtol``, ``atol``: instead of the defaults of graphfix.verify.compare. ``sets``: how many sets to generate.
    ``against``: what to call the reference.
    """

    inputs: list[dict[str, np.ndarray[Any, Any]]] | None = None
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    sets: int = 4
    against: str = "the input model"


def check_model(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    *,
    base_dir: Path | None = None,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Run both models on the same input sets and compare every output.

    The reference runs as it is (graphfix.reference), twice a set: outputs that differ between its own two runs are
    named and not compared. The candidate runs in ONNX Runtime, without and with its optimisations; one that still
    holds ATen nodes runs as the reference does. Neither model is changed. External data is read from ``base_dir``.

    The status is "confirmed" when at least one set ran and all sets agree, else "failed", with the reason in
    ``detail``. ``progress`` is called with the runs done and all runs.

    Raises UsageError when ``options.input_shapes`` do not fit the model.
    """
    check = _Check(base_dir, options or VerifyOptions(), progress)
    return check.run(*_seeded(reference, candidate))


class _Check:
    def __init__(self, base_dir: Path | None, options: VerifyOptions, progress: Progress | None) -> None:
        self._base_dir = base_dir
        self._options = options
        self._progress = progress
        self._against = self._options.against
        self._result = Verification("failed", self._against)
        self._unstable: set[str] = set()
        self._sensitive: set[str] = set()
        self._optimise = False

    def run(self, reference: onnx.ModelProto, candidate: onnx.ModelProto) -> Verification:
        from graphfix.reference.refusal import ReferenceRefusal

        result = self._result
        try:
            sets = self._reference_sets(reference)
        except ReferenceRefusal as refusal:
            sets, reason = [], f"{self._against} could not be run: {refusal}"
        else:
            reason = f"no inputs were found that {self._against} runs with"
            reason += f": {result.skipped[0].partition(': ')[2]}; give some with --inputs" if result.skipped else ""
        if not sets and not self._optimise:
            # Some exports run only once their constants have been folded: shapes declared in branches are wrong.
            skipped, self._optimise, result.skipped = result.skipped, True, []
            try:
                sets = self._reference_sets(reference)
            except ReferenceRefusal:
                result.skipped = skipped
        if not sets:
            result.detail = reason
            return result
        result.sets = [s.describe() for s in sets]
        if all(name in self._unstable for name in sets[0].outputs) and sets[0].outputs:
            result.detail = f"every output of {self._against} differs from run to run, so that nothing can be compared"
            return result
        differences: dict[str, list[Difference]] = {name: [] for name in sets[0].outputs if name not in self._unstable}
        problem = self._compare_all(reference, candidate, sets, differences)
        from graphfix.verify.compare import merge

        result.outputs = [merge(name, _dtype(sets[0].outputs[name]), found) for name, found in differences.items()]
        notes = [problem] if problem else []
        if self._sensitive:
            names = ", ".join(sorted(self._sensitive))
            notes.append(f"ONNX Runtime's optimisations change {self._against} itself, beyond the tolerance: {names}")
        if self._unstable:
            names = ", ".join(sorted(self._unstable))
            notes.append(f"not compared, as {self._against} itself gives another result in each run: {names}")
        result.status = "failed" if problem else "confirmed"
        result.detail = "; ".join(notes)
        return result

    # --- the reference

    def _reference_sets(self, model: onnx.ModelProto) -> list[InputSet]:
        from graphfix.reference.session import ReferenceSession
        from graphfix.verify import compare

        session = ReferenceSession(model, base_dir=self._base_dir, optimise=self._optimise)
        fresh = _has_random(model)
        sets: list[InputSet] = []
        for found in self._search(session, model):
            if fresh:
                # Generators go on from run to run: only the first runs of two sessions are alike.
                session = ReferenceSession(model, base_dir=self._base_dir, optimise=self._optimise)
                found.outputs = session.run(found.feeds)
                session = ReferenceSession(model, base_dir=self._base_dir, optimise=self._optimise)
            again = session.run(found.feeds)
            # Exact: the same code ran on the same values. But sums may be split over threads in any way.
            agrees = compare.outputs(found.outputs, again, rtol=self._options.rtol, atol=self._options.atol)
            self._unstable |= {name for name, difference in agrees.items() if difference.problem}
            sets.append(found)
            self._tick(len(sets))
        return sets

    def _search(self, session: Any, model: onnx.ModelProto) -> Iterator[InputSet]:
        from graphfix.reference.refusal import ReferenceRefusal
        from graphfix.verify.inputs import InputSearch, InputSet, describe

        options = self._options
        if options.inputs is not None:
            for feeds in options.inputs:
                try:
                    outputs = session.run(feeds)
                except ReferenceRefusal as refusal:
                    self._result.skipped.append(f"{describe(feeds)}: {refusal}")
                    continue
                yield InputSet(dict(feeds), outputs)
            return
        search = InputSearch(session, model, count=options.sets, seed=options.seed, input_shapes=options.input_shapes)
        sizes = set()
        for found in search:
            sizes.add(tuple(found.sizes.get(s, 0) for s in search.symbols))
            yield found
        self._result.skipped.extend(_skipped_lines(search.refused, search.symbols, sizes, self._against))

    # --- the candidate

    def _compare_all(
        self,
        reference: onnx.ModelProto,
        candidate: onnx.ModelProto,
        sets: Sequence[InputSet],
        differences: dict[str, list[Difference]],
    ) -> str:
        """The first problem, or "". Fills in all differences up to it."""
        from graphfix.reference.refusal import ReferenceRefusal
        from graphfix.verify import compare

        done = 0
        runners = list(self._runners(candidate))
        for how, make in runners:
            try:
                run = make()
            except ReferenceRefusal as refusal:
                return f"the fixed model does not load{how}: {refusal}"
            for expected in sets:
                try:
                    actual = run(expected.feeds)
                except ReferenceRefusal as refusal:
                    return f"the fixed model does not run{how} on {expected.describe()}: {refusal}"
                wanted = {name: expected.outputs[name] for name in differences if name not in self._sensitive}
                found = compare.outputs(wanted, actual, rtol=self._options.rtol, atol=self._options.atol)
                for name, difference in found.items():
                    differences[name].append(difference)
                wrong = {name: d for name, d in found.items() if d.problem}
                if wrong and how and len(runners) > 1:
                    # Equal without optimisations: is it they that change the result, in the input model too?
                    self._sensitive |= self._changed_by_optimisation(reference, expected, wrong)
                    wrong = {name: d for name, d in wrong.items() if name not in self._sensitive}
                if wrong:
                    name, difference = max(wrong.items(), key=lambda item: item[1].max_abs)
                    return f"output {name!r} {difference.problem}{how}, on {expected.describe()}"
                done += 1
                if self._progress is not None:
                    self._progress(len(sets) + done, len(sets) * (1 + len(runners)))
        return ""

    def _changed_by_optimisation(
        self, reference: onnx.ModelProto, expected: InputSet, names: Iterable[str]
    ) -> set[str]:
        """The outputs of the reference that ONNX Runtime's optimisations alone take beyond the tolerance."""
        from graphfix.reference.refusal import ReferenceRefusal
        from graphfix.reference.session import ReferenceSession
        from graphfix.verify import compare

        try:
            optimised = ReferenceSession(reference, base_dir=self._base_dir, optimise=True).run(expected.feeds)
        except ReferenceRefusal:
            return set()
        wanted = {name: expected.outputs[name] for name in names}
        found = compare.outputs(wanted, optimised, rtol=self._options.rtol, atol=self._options.atol)
        return {name for name, difference in found.items() if difference.problem}

    def _runners(self, model: onnx.ModelProto) -> Iterator[tuple[str, Callable[[], Runner]]]:
        from graphfix.reference.ort import OrtModel
        from graphfix.reference.session import ReferenceSession, uses_kernels

        fresh = _has_random(model)
        if uses_kernels(model):
            yield (
                "",
                _maker(lambda: ReferenceSession(model, base_dir=self._base_dir, optimise=self._optimise).run, fresh),
            )
            return
        if not self._optimise:
            yield "", _maker(lambda: OrtModel(model, base_dir=self._base_dir).run, fresh)
        optimised = " with ONNX Runtime's optimisations"
        yield optimised, _maker(lambda: OrtModel(model, base_dir=self._base_dir, optimise=True).run, fresh)

    def _tick(self, sets: int) -> None:
        if self._progress is not None:
            planned = len(self._options.inputs) if self._options.inputs is not None else self._options.sets
            self._progress(sets, max(planned, sets) * 3)


def _maker(make: Callable[[], Runner], fresh: bool) -> Callable[[], Runner]:
    """Make the session once, or anew for every run."""
    if not fresh:
        return make

    def runner() -> Runner:
        make()  # A model that does not load is found before it is run.
        return lambda feeds: make()(feeds)

    return runner


def _skipped_lines(refused: Mapping[str, str], symbols: Sequence[str], accepted: set[Any], against: str) -> list[str]:
    lines = [f"{shapes}: {reason}" for shapes, reason in refused.items()]
    if len(lines) > _MOST_SKIPPED:
        lines[_MOST_SKIPPED:] = [f"and {len(lines) - _MOST_SKIPPED} more sizes"]
    if symbols and len(accepted) == 1 and refused:
        sizes = ", ".join(f"{name}={size}" for name, size in zip(symbols, next(iter(accepted)), strict=True))
        lines.insert(0, f"all sizes but {sizes}: {against} runs with no other that was tried")
    return lines


def _dtype(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {_dtype(value[0])}" if value else "sequence"
    return "optional" if value is None else str(value.dtype)


# --- random operators


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    from graphfix.reference.program import subgraphs

    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    from graphfix.reference.program import subgraphs

    yield from _nodes(model.graph)
    for function in model.functions:
        for node in function.node:
            yield node
            for body in subgraphs(node):
                yield from _nodes(body)


def _has_random(model: onnx.ModelProto) -> bool:
    return any(node.op_type in _RANDOM_OPS and not node.domain for node in _all_nodes(model))


def _seeded(*models: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The models with a seed in every random operator that lacks one, the same in both for the same output name."""
    import onnx

    for model in models:
        if not _has_random(model):
            yield model
            continue
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for node in _all_nodes(copy):
            if node.op_type in _RANDOM_OPS and not node.domain and all(a.name != "seed" for a in node.attribute):
                seed = float(zlib.crc32(node.output[0].encode()) % 65536)
                node.attribute.append(onnx.helper.make_attribute("seed", seed))
        yield copy
