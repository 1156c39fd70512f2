"""The check of a whole model: both models run on the same input sets, and every output is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfix.model_io import tensor_bytes
from graphfix.protobuf import all_nodes
from graphfix.reference.memory import Memory, bounded, default_limit
from graphfix.reference.ort import OrtModel
from graphfix.reference.program import is_scatter
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import ReferenceSession, graph_inputs, uses_kernels
from graphfix.report import OutputComparison, Verification
from graphfix.verification import compare, seeds
from graphfix.verification.boundary import Cut, cut, unknown_nodes
from graphfix.verification.empty import takes_empty
from graphfix.verification.inputs import InputSearch, InputSet, describe
from graphfix.verification.pairing import Pairing
from graphfix.verification.tolerance import depths

if TYPE_CHECKING:
    import onnx

    from graphfix.verification import Progress, VerifyOptions
    from graphfix.verification.compare import Difference

Runner = Callable[[Mapping[str, Any]], dict[str, Any]]
Found = dict[str, list["Difference"]]

_MOST_SKIPPED = 8
_MOST_NAMES = 6
_OPTIMISED = " with ONNX Runtime's optimisations"


class Check:
    """One comparison. ``reference`` is None when ``recorded`` sets, inputs and outputs, take its place.

    ``telling`` is, after a run, the set that showed a problem, or the first one. ``reference``, ``candidate`` and
    ``pairing`` are what is compared: the models with seeds, and without the nodes that cannot be run.
    """

    def __init__(
        self,
        reference: onnx.ModelProto | None,
        candidate: onnx.ModelProto,
        options: VerifyOptions,
        *,
        base_dir: Path | None = None,
        candidate_dir: Path | None = None,
        recorded: Sequence[InputSet] = (),
        pairing: Pairing | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._recorded = list(recorded)
        self._options = options
        self._base_dir = base_dir
        self._candidate_dir = candidate_dir
        self.pairing = pairing
        self._can_check_rewrites = reference is not None and pairing is None
        self._progress = progress
        limit = options.memory_limit
        if limit is None:
            limit = default_limit(_weight_bytes(candidate if reference is None else reference))
        self._memory = Memory(limit)
        self._against, self._subject = options.against, options.subject
        self._result = Verification("failed", self._against)
        self._unstable: set[str] = set()
        self._sensitive: set[str] = set()
        self._optimise = False
        self._scatters = False  # whether NumPy runs ONNX's scatters, as ONNX Runtime does not with these dtypes
        self._unsupported = False
        self._fewer = ""
        self._short_of_memory = False
        self.reference = reference
        self.candidate = candidate
        self._real_outputs = {o.name for o in reference.graph.output} if reference is not None else set()
        self.telling: InputSet | None = None
        self._cut: Cut | None = None
        if reference is not None:
            self.reference, self.candidate = seeds.seeded(reference, candidate)
            if not options.custom_ops:
                self._cut = cut(self.reference, self.candidate, pairing)
        if self._cut is not None:
            self.reference, self.candidate = self._cut.reference, self._cut.candidate
            self.pairing = self._cut.pairing
        self._depths = self._deepest()

    def run(self) -> Verification:
        """Do it. See graphfix.verification.check_model."""
        result = self._result
        if self._cut is not None:
            result.not_run = self._cut.not_run
            if not self._cut.pairing.outputs:
                result.detail = f"nothing can be compared: {self._cut.detail()}"
                return result
        sets, reason = self._sets()
        if not sets:
            result.detail = reason
            return result
        result.sets = [s.describe() for s in sets]
        made = {name: value for found in reversed(sets) for name, value in found.outputs.items()}
        if made and all(name in self._unstable for name in made):
            result.detail = f"every output of {self._against} differs from run to run, so that nothing can be compared"
            return result
        self.telling = sets[0]
        names = [name for name in made if name not in self._unstable]
        dtypes = {name: _dtype(made[name]) for name in names}
        plain: Found = {name: [] for name in names}
        optimised: Found = {name: [] for name in names}
        problem = self._compare_all(sets, plain, optimised)
        if not any(plain.values()):
            plain, optimised = optimised, {}
        result.outputs = _merged(plain, dtypes)
        result.optimised = _merged({name: found for name, found in optimised.items() if found}, dtypes)
        notes = [problem] if problem else []
        if self._sensitive:
            notes.append(
                f"ONNX Runtime's optimisations change {self._against} itself, beyond the tolerance: "
                f"{_listed(self._sensitive)}"
            )
        silent = {name for name in names if not any(_tells(found.outputs.get(name)) for found in sets)}
        if silent and not problem and len(silent) == len(names) and self._options.inputs is None and self.reference:
            problem = f"no output of {self._against} holds a number on any generated input: give some with --inputs"
            notes.append(problem)
        elif silent:
            notes.append(
                f"without a number in every set, so that only dtype and shape were compared: {_listed(silent)} "
                "(--inputs takes inputs that tell more)"
            )
        notes += [self._fewer] if self._fewer else []
        if self._scatters:
            notes.append("ONNX Runtime has no scatter of this kind on the CPU: NumPy ran the scatters")
        drawn = seeds.random_operators(self.candidate)
        if drawn:
            notes.append(f"random operators ({', '.join(drawn)}) ran with the same seeds on both sides")
        if self._cut is not None:
            notes.append(self._cut.detail())
        result.not_compared = sorted({*self._unstable, *(self._cut.lost if self._cut is not None else [])})
        if self._unstable:
            notes.append(
                f"not compared, as {self._against} itself gives another result in each run: {_listed(self._unstable)}"
            )
        none = bool(self._real_outputs) and self._real_outputs <= set(result.not_compared)
        result.status = "failed" if problem else "in part" if none else "confirmed"
        result.detail = "; ".join(notes)
        return result

    # --- the reference

    def _sets(self) -> tuple[list[InputSet], str]:
        """The sets to compare on, with the reference's outputs, and why there are none."""
        if self.reference is None:
            return self._recorded, f"{self._against} hold no set"
        result = self._result
        sets, reason = self._try_sets(self.reference)
        if not sets and self._unsupported and _has_scatter(self.reference):
            result.skipped, self._scatters = [], True
            sets, reason = self._try_sets(self.reference)
            if not sets:
                self._scatters = False
        if not sets and not self._optimise:
            # Some exports run only once their constants have been folded: shapes declared in branches are wrong.
            skipped, self._optimise, result.skipped = result.skipped, True, []
            try:
                sets = self._reference_sets(self.reference)
            except ReferenceRefusal:
                result.skipped = skipped
        return sets, reason

    def _try_sets(self, model: onnx.ModelProto) -> tuple[list[InputSet], str]:
        self._unsupported = False
        try:
            sets = self._reference_sets(model)
        except ReferenceRefusal as refusal:
            self._unsupported = refusal.unsupported
            reason = f"{self._against} could not be run: {refusal}{self._library_hint(model)}"
            if refusal.unsupported:
                reason += " (ONNX Runtime, on the CPU, is what runs it here: no other inputs help)"
                reason += self._rewrites_hint()
            return [], reason
        return sets, "" if sets else self._no_set(self._result.skipped)

    def _rewrites_hint(self) -> str:
        """What can be confirmed where the whole model cannot."""
        return "; --verify rewrites checks each rewrite alone" if self._can_check_rewrites else ""

    def _no_set(self, skipped: Sequence[str]) -> str:
        """Why there is no set, and what could be tried."""
        why = f": {skipped[0].partition(': ')[2]}" if skipped else ""
        if self._options.inputs is not None:
            return f"{self._against} runs with none of the inputs that were given{why}"
        assert self.reference is not None
        inputs = graph_inputs(self.reference.graph)
        strange = [i.name for i in inputs if i.dtype is None]
        if strange:
            return (
                f"{self._against} cannot be run: no input for {strange[0]!r} can be made or given, as it holds no "
                f"tensors{self._rewrites_hint()}"
            )
        tries = ["real inputs with --inputs"]
        dynamic = [i.name for i in inputs if i.shape is None or not all(isinstance(d, int) for d in i.shape)]
        whole = [i.name for i in inputs if i.dtype is not None and i.dtype.kind in "iu"]
        if self._short_of_memory:
            smaller = f", or smaller sizes with --input-shape {dynamic[0]}:..." if dynamic else ""
            return f"{self._against} does not run within the memory limit{why}; raise --memory-limit{smaller}"
        tries += [f"--input-shape {dynamic[0]}:..."] if dynamic else []
        tries += [f"--input-range {whole[0]}:LO:HI"] if whole else []
        return f"no inputs were found that {self._against} runs with{why}; give {', or '.join(tries)}"

    def _library_hint(self, model: onnx.ModelProto) -> str:
        """What to do about operators that nothing here knows."""
        unknown = [] if self._options.custom_ops else list(unknown_nodes(model))
        if not unknown:
            return ""
        unlike = self.reference is not None and self._cut is None
        why = ", as the models are compared around such nodes only where both have the same" if unlike else ""
        return f"; --custom-ops takes the library that has {unknown[0].partition(' ')[0]}{why}"

    def _reference_session(self, *, optimise: bool | None = None) -> ReferenceSession:
        assert self.reference is not None
        return ReferenceSession(
            self.reference,
            base_dir=self._base_dir,
            optimise=self._optimise if optimise is None else optimise,
            custom_ops=self._options.custom_ops,
            memory=self._memory,
            scatters=self._scatters,
        )

    def _reference_sets(self, model: onnx.ModelProto) -> list[InputSet]:
        self._memory.held = 0
        session = self._reference_session()
        fresh = seeds.has_random(model)
        sets: list[InputSet] = []
        for found in self._search(session, model):
            before = self._memory.held
            self._memory.hold(*found.outputs.values())
            try:
                if fresh:
                    # Generators go on from run to run: only the first runs of two sessions are alike.
                    found.outputs = self._reference_session().run(found.feeds)
                    session = self._reference_session()
                again = session.run(found.feeds)
            except ReferenceRefusal as refusal:
                self._result.skipped.append(f"{found.describe()}: {refusal}")
                self._memory.held = before
                continue
            # Exact: the same code ran on the same values. But sums may be split over threads in any way.
            agrees = self._compare(found.outputs, again)
            del again
            strange = {name for name, difference in agrees.items() if difference.problem}
            if found.special:
                # Not all that a model does with NaN repeats: what does not, says nothing here.
                found.outputs = {name: value for name, value in found.outputs.items() if name not in strange}
                if not found.outputs:
                    continue
            else:
                self._unstable |= strange
            sets.append(found)
            self._tick(len(sets))
        return sets

    def _search(self, session: ReferenceSession, model: onnx.ModelProto) -> Iterator[InputSet]:
        options = self._options
        if options.inputs is not None:
            for feeds in options.inputs:
                try:
                    feeds, outputs = self._run_given(session, model, feeds)
                except ReferenceRefusal as refusal:
                    if refusal.loading or refusal.unsupported:
                        raise
                    self._result.skipped.append(f"{describe(feeds)}: {refusal}")
                    continue
                yield InputSet(feeds, outputs)
            return
        search = InputSearch(
            session,
            model,
            count=options.sets,
            seed=options.seed,
            input_shapes=options.input_shapes,
            sizes=self.pairing.sizes if self.pairing is not None else None,
            ranges=options.input_ranges,
            special=not self._optimise,
            empty=takes_empty(self.candidate),
            memory=self._memory,
        )
        sizes = set()
        for found in search:
            sizes.add(tuple(found.sizes.get(s, 0) for s in search.symbols))
            yield found
        self._fewer = search.fewer
        self._short_of_memory = search.short_of_memory
        self._result.skipped.extend(_skipped_lines(search.refused, search.symbols, sizes, self._against))

    def _run_given(
        self, session: ReferenceSession, model: onnx.ModelProto, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a set that the user gave, with generated values for what comes out of nodes that are not run."""
        if self._cut is None or not self._cut.made:
            return dict(feeds), session.run(feeds)
        search = InputSearch(session, model, count=1, seed=self._options.seed, values=feeds, memory=self._memory)
        for found in search:
            return found.feeds, found.outputs
        raise ReferenceRefusal(next(iter(search.refused.values()), "no values were found for what is not run"))

    # --- the candidate

    def _compare_all(self, sets: Sequence[InputSet], plain: Found, optimised: Found) -> str:
        """The first problem, or "". Fills in all differences up to it."""
        done = 0
        runners = list(self._runners(self.candidate))
        total = len(sets) + sum(1 for how, _ in runners for found in sets if not (found.special and how))
        for how, make in runners:
            try:
                run = make()
            except ReferenceRefusal as refusal:
                return f"{self._subject} does not load{how}: {refusal}{self._library_hint(self.candidate)}"
            for expected in sets:
                if expected.special and how:
                    continue
                try:
                    actual = run(expected.feeds)
                except ReferenceRefusal as refusal:
                    self.telling = expected
                    return f"{self._subject} does not run{how} on {expected.describe()}: {refusal}"
                wanted = {n: v for n, v in expected.outputs.items() if n in plain and n not in self._sensitive}
                found = self._compare(wanted, actual)
                del actual  # or the next run has it beside its own
                for name, difference in found.items():
                    (optimised if how else plain)[name].append(difference)
                wrong = {name: d for name, d in found.items() if d.problem}
                if wrong and how and len(runners) > 1:
                    # Equal without optimisations: is it they that change the result, in the reference too?
                    self._sensitive |= self._changed_by_optimisation(expected, wrong)
                    wrong = {name: d for name, d in wrong.items() if name not in self._sensitive}
                if wrong:
                    self.telling = expected
                    name, difference = max(wrong.items(), key=lambda item: item[1].max_abs)
                    return f"output {name!r} {difference.problem}{how}, on {expected.describe()}"
                done += 1
                if self._progress is not None:
                    self._progress(len(sets) + done, total)
        return ""

    def _changed_by_optimisation(self, expected: InputSet, names: Iterable[str]) -> set[str]:
        """The outputs of the reference that ONNX Runtime's optimisations alone take beyond the tolerance."""
        if self.reference is None:
            return set()
        try:
            optimised = self._reference_session(optimise=True).run(expected.feeds)
        except ReferenceRefusal:
            return set()
        found = self._compare({name: expected.outputs[name] for name in names}, optimised)
        return {name for name, difference in found.items() if difference.problem}

    def _runners(self, model: onnx.ModelProto) -> Iterator[tuple[str, Callable[[], Runner]]]:
        fresh = seeds.has_random(model)
        folder, libraries = self._candidate_dir, self._options.custom_ops
        if uses_kernels(model) or (self._scatters and _has_scatter(model)):

            def interpreted() -> Runner:
                session = ReferenceSession(
                    model, base_dir=folder, optimise=self._optimise, custom_ops=libraries, scatters=self._scatters
                )
                return self._paired(session.run)

            yield "", _maker(interpreted, fresh)
            return

        def plain() -> Runner:
            return self._paired(OrtModel(model, base_dir=folder, custom_ops=libraries).run)

        def optimised() -> Runner:
            return self._paired(OrtModel(model, base_dir=folder, optimise=True, custom_ops=libraries).run)

        if not self._optimise:
            yield "", _maker(plain, fresh)
        yield _OPTIMISED, _maker(optimised, fresh)

    def _paired(self, run: Runner) -> Runner:
        """The candidate under the reference's names, within the memory limit."""
        pairing = self.pairing
        run = bounded(run, self._memory)
        if pairing is None:
            return run

        def renamed(feeds: Mapping[str, Any]) -> dict[str, Any]:
            results = run({pairing.inputs[name]: value for name, value in feeds.items() if name in pairing.inputs})
            return {name: results[other] for name, other in pairing.outputs.items() if other in results}

        return renamed

    # --- figures

    def _compare(self, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> dict[str, Difference]:
        options = self._options
        return compare.outputs(
            expected,
            actual,
            rtol=options.rtol,
            atol=options.atol,
            depths=self._depths,
            elsewhere=self.reference is None,
        )

    def _deepest(self) -> dict[str, int]:
        """The depth of every output, the larger of the two models'."""
        found = depths(self.reference) if self.reference is not None else {}
        theirs = depths(self.candidate)
        pairs = self.pairing.outputs.items() if self.pairing is not None else [(name, name) for name in theirs]
        return {name: max(found.get(name, 0), theirs.get(other, 0)) for name, other in pairs}

    def _tick(self, sets: int) -> None:
        if self._progress is not None:
            planned = len(self._options.inputs) if self._options.inputs is not None else self._options.sets
            self._progress(sets, max(planned, sets) * 3)


def _merged(differences: Found, dtypes: Mapping[str, str]) -> list[OutputComparison]:
    return [compare.merge(name, dtypes[name], found) for name, found in differences.items()]


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


def _has_scatter(model: onnx.ModelProto) -> bool:
    return any(is_scatter(node) for node in all_nodes(model))


def _weight_bytes(model: onnx.ModelProto) -> int:
    return sum(tensor_bytes(tensor) or 0 for tensor in model.graph.initializer)


def _listed(names: set[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(sorted(names)[:_MOST_NAMES]) + more


def _tells(value: Any) -> bool:
    """Whether an output holds anything that another model could give otherwise: an element that is not NaN."""
    if isinstance(value, list):
        return any(_tells(element) for element in value)
    if value is None or not value.size:
        return False
    return value.dtype.kind in "OSUbiu" or not bool(np.isnan(value).all())


def _dtype(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {_dtype(value[0])}" if value else "sequence"
    return "optional" if value is None else str(value.dtype)
