"""From a loaded model to a fixed and confirmed one: passes to a fixpoint, opset, simplification, confirmation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal, Protocol

import onnx

from graphfix import aten, model_io, opset, shapes, simplify, tidy
from graphfix.api import load_passes
from graphfix.builder import Builder, OpsetTooLow
from graphfix.errors import GraphfixError, LossyExportError, NotConfirmedError, UnsupportedError, UsageError
from graphfix.facts import Facts
from graphfix.graph import Model, Node, Scope, attributes_of, count_nodes, walk
from graphfix.lowering.base import Context
from graphfix.lowering.keep import Scatter
from graphfix.pass_base import Fault, Pass, Refusal, Repair, Rewrite, Safety, Site
from graphfix.protobuf import all_nodes
from graphfix.report import Finding, Left, Replacement, Report, Verification
from graphfix.sources import written_at
from graphfix.targets import Target
from graphfix.targets.check import Checker
from graphfix.verification.excerpt import Excerpt, Inseparable, excerpt

if TYPE_CHECKING:
    from numpy import ndarray

    from graphfix.verification import Progress, VerifyOptions

MOST_ROUNDS = 20
MOST_NOTES = 12
REMOVED_OPERATORS = ("ATen", "DynamicSlice")
_LEAST_OF_PASSES = 11  # below, most forms of the passes do not exist


@dataclass(frozen=True)
class Event:
    """Progress: a stage begins (``done`` 0), goes on, or ends. ``total`` is 0 when there is nothing to count."""

    stage: str
    message: str
    done: int = 0
    total: int = 0


class Confirm(Protocol):
    """A check of the whole model against something else than the input model, which ``against`` names."""

    against: str

    def __call__(
        self, candidate: onnx.ModelProto, options: VerifyOptions, progress: Progress | None = None
    ) -> Verification: ...


@dataclass(frozen=True)
class Options:
    """What `graphfix.fix` was asked for; see there. ``confirm`` takes the place of the comparison with the input model,
    and then all else is done even when nothing was replaced."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    opset: int | Literal["keep"] | None = None
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: list[dict[str, ndarray]] | None = None
    rtol: float | None = None
    atol: float | None = None
    simplify: bool = True
    verify: Literal["all", "rewrites", "model", "none"] = "all"
    budget: int | None = None
    strict: bool = False
    repair: tuple[str, ...] = ()
    input_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    custom_ops: tuple[str, ...] = ()
    memory_limit: int | None = None
    confirm: Confirm | None = None
    target: Target | None = None


def run(
    loaded: model_io.LoadedModel, options: Options, progress: Callable[[Event], None] | None = None
) -> tuple[onnx.ModelProto, Report]:
    """Fix a model. Returns the fixed model (the loaded one when there is nothing to do) and the report.

    The loaded model is not changed. Raises LossyExportError, UnsupportedError, UsageError and NotConfirmedError.
    """
    process = _Run(loaded, options, progress)
    try:
        return process.run()
    except GraphfixError as error:
        error.report = process.report
        raise


@dataclass(frozen=True)
class _Fallback:
    """The model before it was first simplified, with what had been refused, replaced and rewritten by then."""

    model: onnx.ModelProto
    refused: dict[tuple[str, str], Left]
    replacements: int
    applied: int


class _Run:
    def __init__(
        self, loaded: model_io.LoadedModel, options: Options, progress: Callable[[Event], None] | None
    ) -> None:
        self.loaded = loaded
        self.options = options
        self.tell = progress or (lambda event: None)
        self.report = Report(versions=_versions())
        self.repairs, self.passes = _selected(options)
        self.refused: dict[tuple[str, str], Left] = {}
        self.kept_as: dict[tuple[str, str], tuple[str, str]] = {}  # a scatter's output: that of the write it stands for
        self.suspected: dict[tuple[str, str, str], str] = {}
        self.reference = loaded.model
        self.model = loaded.model
        self.fallback: _Fallback | None = None
        self.applied: list[str] = []  # every rewrite, in order: what it did and where
        self.most: int | None = None  # stop after so many rewrites
        self.checker: Checker | None = None  # of what the target runs, in the view that a pass is at work on
        self.excerpts: list[tuple[str, Excerpt | str]] = []

    def run(self) -> tuple[onnx.ModelProto, Report]:
        report, original = self.report, self.loaded.model
        report.opset_before = report.opset_after = opset.opset_version(original)
        report.nodes_before = report.nodes_after = count_nodes(original)
        report.size_before = report.size_after = model_io.model_size(original)
        refuse_lossy(original)
        self.model = onnx.ModelProto()
        self.model.CopyFrom(original)
        self.lower_opset()
        with self.stage("passes", "replacing index writes"):
            self.run_repairs()
            self.run_passes(self.passes)
            self.refuse_remaining()
        if self.options.simplify and self.refused and _loadable(self.model):
            self.run_passes_simplified()
        if isinstance(self.options.opset, int):
            if self.options.opset != opset.opset_version(self.model):
                opset.convert(self.model, self.options.opset)
            report.opset_reason = "requested" if self.options.opset != report.opset_before else ""
        elif self.options.opset is None and self.options.target is not None:
            self.fit_opset(self.options.target)
        report.opset_after = opset.opset_version(self.model)
        if not report.changed and self.options.confirm is None:
            self.model = original
            report.notes.append("nothing to replace: the output is the input, unchanged")
            report.left = self.left()
            self.hold_against_target()
            return self.model, report
        tidy.drop_unused_domains(self.model)
        tidy.drop_needless_allowzero(self.model)
        with self.stage("shapes", "inferring shapes"):
            shapes.annotate(self.model)
        if self.options.simplify:
            with self.stage("simplify", "simplifying with onnxsim"):
                self.simplify()
        report.left = self.left()
        report.nodes_after = count_nodes(self.model)
        report.size_after = model_io.model_size(self.model)
        try:
            self.confirm()
        except NotConfirmedError as error:
            error.model = self.model
            raise
        self.hold_against_target()
        return self.model, report

    # ---- the target ------------------------------------------------------------------------------------------------

    def lower_opset(self) -> None:
        """Convert to a lower opset that is wanted before the passes run, so that they write in its forms.

        Where that is not possible now, it is tried when they have run, and has to be possible then.
        """
        has, wanted, target = opset.opset_version(self.model), self.options.opset, self.options.target
        if wanted is None and target is not None:
            wanted = target.nearest_opset(has)
        if isinstance(wanted, int) and _LEAST_OF_PASSES <= wanted < has:
            with suppress(UnsupportedError):
                opset.convert(self.model, wanted)

    def fit_opset(self, target: Target) -> None:
        """Convert to the nearest opset that the target takes. Where a node has no form there, all stays as it is."""
        has, before = opset.opset_version(self.model), self.report.opset_before
        wanted = target.nearest_opset(has)
        try:
            if wanted != has:
                opset.convert(self.model, wanted)
        except UnsupportedError as reason:
            self.report.warnings.append(f"not converted to opset {wanted} for {target.label}: {reason}")
            return
        if wanted != before and wanted in (target.highest, target.lowest):
            most = "highest" if wanted < before else "lowest"
            self.report.opset_reason = f"the {most} that {target.label} takes"

    def hold_against_target(self) -> None:
        """Report what the target is known to refuse or to run wrongly in the result."""
        target = self.options.target
        if target is None:
            return
        self.report.target = target.label
        has = opset.opset_version(self.model)
        if target.nearest_opset(has) != has:
            takes = f"up to {target.highest}" if target.highest and has > target.highest else f"from {target.lowest} on"
            reason = f"it takes opsets {takes}, the model has {has}"
            self.report.findings.append(Finding("opset", "", "", "", "", reason, target.opset_source, blocks=True))
        view = self.view()
        self.report.findings += Checker(target, view, Facts(view)).model()

    # ---- passes ----------------------------------------------------------------------------------------------------

    @property
    def against(self) -> str:
        """What the fixed model is compared with."""
        if self.options.confirm is not None:
            return self.options.confirm.against
        return "the input model" if self.reference is self.loaded.model else "the input model as repaired"

    def run_repairs(self) -> None:
        """Undo exporters' faults. The model that was given plus these repairs is what the result must agree with."""
        self.run_passes(self.repairs)
        if self.report.replacements:
            self.reference = onnx.ModelProto()
            self.reference.CopyFrom(self.model)
        notes = list(self.suspected.values())
        self.report.notes += notes[:MOST_NOTES]
        if len(notes) > MOST_NOTES:
            self.report.notes.append(f"suspected exporter fault: {len(notes) - MOST_NOTES} more nodes like these")

    def run_passes(self, passes: Sequence[Pass]) -> None:
        may_raise = self.options.opset != "keep" and (self.options.opset is not None or not _loadable(self.model))
        for _ in range(MOST_ROUNDS):
            changed = False
            view = self.view()
            for rewrite in passes:
                try:
                    self.run_pass(rewrite, view, may_raise)
                except OpsetTooLow as low:
                    view.write_back()
                    self.raise_opset(low)
                    view, changed = self.view(), True
                    break
                if view.changed:
                    view.write_back()
                    view, changed = self.view(), True
            if not changed:
                return

    def run_passes_simplified(self) -> None:
        """Try what was left once more on the simplified model, in which more is constant; keep that if it helps."""
        with self.stage("simplify", "simplifying with onnxsim"):
            outcome = simplify.simplify(self.model, base_dir=self.loaded.base_dir)
        if outcome.model is None:
            return
        plain, refused, replaced = self.model, dict(self.refused), len(self.report.replacements)
        applied = len(self.applied)
        self.model = outcome.model
        with self.stage("passes", "replacing index writes"):
            self.run_passes(self.passes)
        if len(self.report.replacements) == replaced:
            self.model, self.refused = plain, refused
            return
        self.fallback = _Fallback(plain, refused, replaced, applied)

    def left(self) -> list[Left]:
        """What was refused or kept and is still there."""
        outputs = {(path, output) for path, node in walk(self.model) for output in node.output}
        return [left for key, left in self.refused.items() if key in outputs]

    def view(self) -> Model:
        # A model that was just exported says what PyTorch knows of its shapes.
        return Model(self.model, shapes.infer(self.model, declared=self.options.confirm is not None))

    def run_pass(self, rewrite: Pass, view: Model, may_raise: bool) -> None:
        facts, target = Facts(view), self.options.target
        self.checker = None if target is None else Checker(target, view, facts)
        for scope in view.scopes:
            site = Site(scope, facts, Context(facts, self.options.budget, scope.opset))
            for node in list(scope.nodes):
                if not scope.is_removed(node):
                    self.run_on(rewrite, node, site, may_raise)

    def run_on(self, rewrite: Pass, node: Node, site: Site, may_raise: bool) -> None:
        if self.most is not None and len(self.applied) >= self.most and rewrite.safety is Safety.EXACT:
            return
        match = rewrite.match(node, site)
        if match is None:
            return
        if site.scope.is_function and site.scope.opset != opset.opset_version(self.model):
            # Engines inline functions and read their nodes by the model's opset.
            theirs, ours = site.scope.opset, opset.opset_version(self.model)
            self.refuse(rewrite, node, site.scope, f"the function imports opset {theirs}, the model opset {ours}")
            return
        if node.has_references:
            self.refuse(rewrite, node, site.scope, "an attribute is given by the function's caller")
            return
        if isinstance(match, Refusal):
            self.refuse(rewrite, node, site.scope, match.reason)
            return
        fault = match if isinstance(match, Fault) else None
        if fault is not None:
            if fault.runs and rewrite.name not in self.options.repair:
                self.suspect(rewrite, node, site.scope, fault)
                return
            match = fault.match
        place = _place(rewrite, node, site.scope)
        label, output, operator = node.name, node.outputs[0].name, rewrite.operator(node)
        try:
            builder, result = self.written(rewrite, node, match, site)
        except OpsetTooLow as low:
            if may_raise:
                raise
            self.refuse(rewrite, node, site.scope, f"{low}; the model has {site.scope.opset} (see --opset)")
            return
        if isinstance(result, Refusal):
            self.refuse(rewrite, node, site.scope, result.reason)
            return
        if fault is None:
            self.applied.append(f"{rewrite.code} {rewrite.name} at {place}, as {result.lowering}")
            self.cut_out(result, builder)
        builder.finish(result.result)
        self.record(rewrite, label, output, operator, site.scope, builder, result)
        if fault is not None:
            meant = "results are meant to change" if fault.runs else "exporter fault repaired, the model fails with it"
            self.report.warnings.append(f"{meant}: {rewrite.name} at {place}: {fault.reason}")

    def written(self, rewrite: Pass, node: Node, match: Any, site: Site) -> tuple[Builder, Rewrite | Refusal]:
        """What a pass puts in a node's place. Forms that the target would not run give way to ones that it does.

        Of a refusal, and when OpsetTooLow is raised, nothing is left in the graph.
        """
        builder, result = _emitted(rewrite, node, match, self.suited(node, site))
        avoid = frozenset[str]()
        while isinstance(result, Rewrite) and result.lowering not in avoid:
            read = [n for n in builder.nodes if any(o is result.result or o.outputs for o in n.outputs)]
            if self.is_run(read, site.scope):
                return builder, result
            avoid |= {result.lowering}
            builder.abort()
            try:
                builder, result = _emitted(rewrite, node, match, _avoiding(avoid, site))
            except OpsetTooLow:
                break
        else:
            if isinstance(result, Rewrite) or not avoid:
                return builder, result
        # Nothing that the target runs: then what is the best for others.
        return _emitted(rewrite, node, match, site)

    def suited(self, node: Node, site: Site) -> Site:
        """The site, where a scatter that the target does not run is not to be kept."""
        if node.is_op("ScatterND", "ScatterElements") and not self.is_run([node], site.scope):
            return _avoiding(frozenset([Scatter.name]), site)
        return site

    def is_run(self, nodes: Sequence[Node], scope: Scope) -> bool:
        """Whether nothing is known against nodes, or there is no target."""
        return self.checker is None or not any(finding.blocks for finding in self.checker.nodes(nodes, scope))

    def cut_out(self, result: Rewrite, builder: Builder) -> None:
        """Keep what is replaced and what replaces it, to compare the two alone."""
        if self.options.verify in ("all", "rewrites"):
            try:
                self.excerpts.append((self.applied[-1], excerpt(builder, result.result)))
            except Inseparable as reason:
                self.excerpts.append((self.applied[-1], str(reason)))

    def record(
        self, rewrite: Pass, label: str, output: str, operator: str, scope: Scope, builder: Builder, result: Rewrite
    ) -> None:
        if rewrite.silent:
            return
        key = self.kept_as.pop((scope.path, output), (scope.path, output))
        self.refused.pop(key, None)
        self.report.replacements.append(
            Replacement(
                rewrite.code, rewrite.name, label, output, operator, scope.path, result.lowering, builder.counts()
            )
        )
        if result.kept is not None:
            self.refused[key] = Left(rewrite.code, label, output, operator, scope.path, result.kept, asked=False)
            for node in builder.nodes:
                if node.is_op("ScatterND", "ScatterElements"):
                    self.kept_as[scope.path, node.outputs[0].name] = key

    def refuse(self, rewrite: Pass, node: Node, scope: Scope, reason: str) -> None:
        output = next((o.name for o in node.outputs if o.name), "")
        asked = rewrite.asked or rewrite.name in self.options.repair
        left = Left(rewrite.code, node.name, output, rewrite.operator(node), scope.path, reason, asked)
        key = self.kept_as.get((scope.path, output), (scope.path, output))
        known = self.refused.get(key)
        # What an ATen node was kept as (a scatter with a reason) is said once, in the words of the first pass.
        if known is None or known.asked:
            self.refused[key] = left

    def suspect(self, rewrite: Pass, node: Node, scope: Scope, fault: Fault) -> None:
        """Report a fault that is not repaired, once."""
        key = (rewrite.code, scope.path, next((o.name for o in node.outputs if o.name), ""))
        self.suspected[key] = (
            f"suspected exporter fault at {_place(rewrite, node, scope)}: {fault.reason}; "
            f"to repair it: --repair {rewrite.name.removeprefix('repair-')}"
        )

    def raise_opset(self, low: OpsetTooLow) -> None:
        wanted = self.options.opset if isinstance(self.options.opset, int) else 0
        opset.convert(self.model, max(low.needed, wanted))
        if not wanted:
            self.report.opset_reason = str(low)

    def refuse_remaining(self) -> None:
        """Raise UnsupportedError for nodes that no engine runs and no pass could replace, unless it was left out."""
        remaining: list[str] = []
        for path, node in walk(self.model):
            if not _is_unloadable(node):
                continue
            operator = _operator_of(node)
            output = next(iter(node.output), "")
            left = self.refused.get((path, output))
            if left is None:
                owner = _owner(operator)
                if owner is not None and owner not in {type(p) for p in self.passes}:
                    reason = f"the pass {owner.name} was left out"
                    self.refused[path, output] = Left(owner.code, node.name, output, operator, path, reason, asked=True)
                    continue
                reason = "graphfix has no pass for this operator"
            else:
                reason = left.reason
            line = written_at(node)
            source = f", written at {line}" if line else ""
            remaining.append(f"{operator} node {_where(node, path)}{source}: {reason}")
        if remaining:
            more = f" (and {len(remaining) - 1} more)" if len(remaining) > 1 else ""
            raise UnsupportedError(f"cannot replace {remaining[0]}{more}; nothing was written")

    # ---- after the passes ------------------------------------------------------------------------------------------

    def simplify(self) -> None:
        if not _loadable(self.model):
            self.report.warnings.append("not simplified: nodes remain that onnxsim cannot read")
            return
        outcome = simplify.simplify(self.model, base_dir=self.loaded.base_dir)
        if outcome.model is None:
            self.report.warnings.append(f"not simplified: {outcome.reason}")
            return
        if self.fallback is None:
            replaced = len(self.report.replacements)
            self.fallback = _Fallback(self.model, dict(self.refused), replaced, len(self.applied))
        self.model = outcome.model
        tidy.drop_needless_allowzero(self.model)

    # ---- confirmation ----------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Check what was asked for. Raises NotConfirmedError, which names the step at fault where one can be found."""
        if self.options.verify in ("all", "rewrites"):
            with self.stage("rewrites", "checking each rewrite alone"):
                self.confirm_rewrites()
        if self.options.verify in ("all", "model"):
            with self.stage("verify", f"comparing with {self.against}"):
                self.confirm_model()
        elif self.options.verify == "rewrites":
            self.report.verification = Verification("rewrites only", self.against)

    def confirm_rewrites(self) -> None:
        from graphfix.verification.rewrites import check_rewrite

        found = self.report.rewrites
        for done, (label, one) in enumerate(self.excerpts):
            self.tell(Event("rewrites", "checking each rewrite alone", done, len(self.excerpts)))
            if isinstance(one, str):
                found.unchecked.append(f"{label}: {one}")
                continue
            check = check_rewrite(one, base_dir=self.loaded.base_dir)
            if check.problem:
                self.report.verification = Verification("failed", "what it replaced", detail=check.problem)
                raise NotConfirmedError(
                    f"the fixed model is not confirmed, nothing was written: the rewrite {label}, is not equal to what "
                    f"it replaced: {check.problem}; --skip leaves that pass out"
                )
            if check.unchecked:
                found.unchecked.append(f"{label}: {check.unchecked}")
                continue
            found.checked += 1
            found.exact += check.exact
            found.sets += check.sets
        self.excerpts.clear()
        if found.unchecked and self.options.verify == "rewrites":
            more = f" (and {len(found.unchecked) - 1} more)" if len(found.unchecked) > 1 else ""
            raise NotConfirmedError(
                "the fixed model is not confirmed, nothing was written: a rewrite cannot be checked alone: "
                f"{found.unchecked[0]}{more}; check the whole model (--verify all)"
            )

    def confirm_model(self) -> None:
        verification, fallback = self.check(self.model, locate=True), self.fallback
        if not verification.agrees and fallback is not None:
            retry = self.check(fallback.model)
            if retry.agrees:
                self.report.warnings.append(
                    f"not simplified: the result of onnxsim was not equal ({verification.detail}); "
                    "the model is confirmed without it"
                )
                self.model, verification = fallback.model, retry
                del self.report.replacements[fallback.replacements :]
                self.report.left = list(fallback.refused.values())
                self.report.nodes_after = count_nodes(self.model)
                self.report.size_after = model_io.model_size(self.model)
        self.report.verification = verification
        if not verification.agrees:
            first, culprit = verification.first_difference, self.at_fault() if verification.sets else ""
            raise NotConfirmedError(
                f"the fixed model is not confirmed, nothing was written: {verification.detail}"
                + (f"; the first tensor that differs is {first!r}" if first else "")
                + (f"; the step at fault is {culprit}" if culprit else "")
            )

    def at_fault(self) -> str:
        """The step that makes the model differ, found by halving the rewrites that were applied; "" for none alone."""
        self.tell(Event("verify", "looking for the step at fault"))
        right, wrong = 0, self.fallback.applied if self.fallback is not None else len(self.applied)
        if self.check(self.partly(wrong)).agrees:
            return "the change of opset" if self.report.opset_before != self.report.opset_after else ""
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self.check(self.partly(middle)).agrees:
                right = middle
            else:
                wrong = middle
        return f"the rewrite {self.applied[right]}" if wrong else ""

    def partly(self, rewrites: int) -> onnx.ModelProto:
        """The input model with its repairs and the first so many of the rewrites."""
        process = _Run(self.loaded, replace(self.options, verify="none"), None)
        process.most = rewrites
        process.model = onnx.ModelProto()
        process.model.CopyFrom(self.loaded.model)
        process.run_repairs()
        process.run_passes(process.passes)
        return process.model

    def check(self, candidate: onnx.ModelProto, *, locate: bool = False) -> Verification:
        from graphfix.verification import VerifyOptions, check_model

        options = VerifyOptions(
            inputs=self.options.inputs,
            input_shapes=self.options.input_shapes,
            rtol=self.options.rtol,
            atol=self.options.atol,
            against=self.against,
            input_ranges=self.options.input_ranges,
            seed=self.options.seed,
            custom_ops=self.options.custom_ops,
            memory_limit=self.options.memory_limit,
        )

        def count(done: int, total: int) -> None:
            self.tell(Event("verify", f"comparing with {self.against}", done, total))

        if self.options.confirm is not None:
            return self.options.confirm(candidate, options, count)
        return check_model(
            self.reference, candidate, base_dir=self.loaded.base_dir, options=options, locate=locate, progress=count
        )

    @contextmanager
    def stage(self, name: str, message: str) -> Iterator[None]:
        self.tell(Event(name, message))
        start = time.perf_counter()
        yield
        self.report.stages[name] = self.report.stages.get(name, 0.0) + time.perf_counter() - start
        self.tell(Event(name, message, 1, 1))


def _avoiding(lowerings: frozenset[str], site: Site) -> Site:
    return replace(site, context=replace(site.context, avoid=lowerings))


def _emitted(rewrite: Pass, node: Node, match: Any, site: Site) -> tuple[Builder, Rewrite | Refusal]:
    builder = Builder(site.scope, node, site.facts, rewrite.name, rewrite.code)
    try:
        result = rewrite.rewrite(match, builder, site)
    except OpsetTooLow:
        builder.abort()
        raise
    if isinstance(result, Refusal):
        builder.abort()
    return builder, result


def refuse_lossy(model: onnx.ModelProto) -> None:
    """Raise LossyExportError when the exporter dropped the operands of a node (ATen ``Placeholder``)."""
    lossy = [
        (path, node)
        for path, node in walk(model)
        if aten.is_placeholder(node.op_type, node.domain, attributes_of(node))
    ]
    if not lossy:
        return
    path, node = lossy[0]
    operator = aten.operator_name(node.op_type, attributes_of(node))
    line = written_at(node)
    source = f", written at {line}" if line else ""
    more = f" ({len(lossy)} such nodes)" if len(lossy) > 1 else ""
    raise LossyExportError(
        f"the exporter dropped the indices and values of aten::{operator} at node {_where(node, path)}{source}{more}: "
        "nothing can bring them back; export again without ONNX_ATEN_FALLBACK (opset 11 or newer, "
        "operator_export_type=ONNX), or with torch.onnx.export(..., dynamo=True)"
    )


def _where(node: onnx.NodeProto, path: str) -> str:
    name = f"{node.name!r} " if node.name else ""
    inside = f" in {path}" if path else ""
    return f"{name}(output {next(iter(node.output), '')!r}{inside})"


def _is_unloadable(node: onnx.NodeProto) -> bool:
    return aten.is_aten(node.op_type, node.domain) or (node.op_type in REMOVED_OPERATORS and not node.domain)


def _loadable(model: onnx.ModelProto) -> bool:
    return not any(_is_unloadable(node) for node in all_nodes(model))


def _operator_of(node: onnx.NodeProto) -> str:
    if aten.is_aten(node.op_type, node.domain):
        attributes = attributes_of(node)
        overload = attributes.get("overload_name", b"")
        text = overload.decode() if isinstance(overload, bytes) else str(overload)
        name = aten.operator_name(node.op_type, attributes)
        return (name if "::" in name else f"aten::{name}") + (f".{text}" if text else "")
    return node.op_type


def _owner(operator: str) -> type[Pass] | None:
    """The pass for an operator that no engine runs."""
    name = operator.removeprefix("aten::").split(".")[0].replace("_", "-")
    wanted = f"aten-{name}" if operator.startswith("aten::") else "dynamic-slice"
    return next((p for p in load_passes() if p.name == wanted), None)


def _place(rewrite: Pass, node: Node, scope: Scope) -> str:
    return f"{rewrite.operator(node)} {_where(node.proto, scope.path)}"


def _selected(options: Options) -> tuple[list[Pass], list[Pass]]:
    """The passes that change results, and the others. The former take part when asked for, or know when they may."""
    known = load_passes()
    passes = [p for p in known if not options.only or p.name in (*options.only, *options.repair)]
    passes = [p for p in passes if p.name not in options.skip]
    if not passes:
        raise UsageError("only and skip leave no pass to run")
    changing = [p for p in passes if p.safety is Safety.CHANGES_RESULT]
    repairs = [p for p in changing if p.name in options.repair or issubclass(p, Repair)]
    return [p() for p in repairs], [p() for p in passes if p not in changing]


def _versions() -> dict[str, str]:
    found = {}
    for package in ("graphfix", "onnx", "onnx-graphsurgeon", "onnxruntime", "onnxsim", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
