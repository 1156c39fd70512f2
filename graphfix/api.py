"""The public functions: ``fix``, ``verify``, ``load_passes``. Nothing here prints; what happened is in the report."""

from __future__ import annotations

import importlib.metadata
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graphfix.errors import InputError, NotConfirmedError, UsageError
from graphfix.user_inputs import check_ranges, check_sets, check_shapes, model_inputs, suggest

if TYPE_CHECKING:
    import onnx

    from graphfix.pipeline import Confirm, Event
    from graphfix.report import Report, Verification
    from graphfix.user_inputs import Arrays

ENTRY_POINTS = "graphfix.passes"


@dataclass
class FixResult:
    """A fixed and confirmed model.

    ``ok`` is False when nodes remain that were asked to go (with ``strict``, kept scatters too), or that the target is
    known to refuse or to run wrongly: the model is right, but some engine will not run it. ``report.left`` and
    ``report.findings`` name them.
    """

    model: onnx.ModelProto
    report: Report
    ok: bool


def fix(
    model_or_path: str | os.PathLike[str] | bytes | onnx.ModelProto,
    output: str | os.PathLike[str] | None = None,
    *,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    opset: int | Literal["keep"] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    simplify: bool = True,
    verify: Literal["all", "rewrites", "model", "none"] = "all",
    budget: int | None = None,
    strict: bool = False,
    target: str | None = None,
    repair: str | Iterable[str] = (),
    keep_failed: str | os.PathLike[str] | None = None,
    input_ranges: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    custom_ops: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    memory_limit: int | None = None,
    progress: Callable[[Event], None] | None = None,
) -> FixResult:
    """Replace what engines refuse in a model by standard operators, confirm the result and write it.

    ``model_or_path`` is a path, the bytes of a file, or a ModelProto (which is not changed). ``output`` is written
    whole or not at all, and may be the input's own path; without it nothing is written.

    ``only`` and ``skip`` hold pass names or codes. ``opset`` is the opset to convert to; "keep" forbids any change,
    None changes it only when the rewrites need it. ``input_shapes`` fixes the shapes used in the check. ``inputs`` is
    what to check with: one dict of arrays by input name, a list of them, or the path of an ``.npz`` file with arrays
    named ``<input>``, or ``<set>/<input>`` (also ``<set>/in/<input>``) for several sets. ``rtol`` and ``atol``
    replace the tolerances of the output's dtype. ``budget`` is the largest new intermediate, in bytes, that a
    rewrite may make. ``target`` names the engine that the model is for (`graphfix targets` lists them): without
    ``opset`` the result gets one that it takes, and ``report.findings`` says what it is known to refuse or to run
    wrongly. ``repair`` names exporters' faults to repair where the model runs with them, so that its results
    change: "lost-accumulate", "mask-alignment", "mask-column", "reshape-broadcast" (see `graphfix explain GF301` and
    on), or "all".
    ``input_ranges`` limits the values of generated inputs: ``(low, high)``, both allowed; ``seed`` draws other values.
    ``custom_ops`` are libraries of custom operators for ONNX Runtime. ``memory_limit`` is how many bytes a run of the
    check may take.
    ``verify`` says how to confirm the result: "rewrites" checks every rewrite alone against what it replaced, "model"
    runs the whole model and compares its outputs with the input model's, "all" does both, "none" neither.
    ``keep_failed`` is where a model that is not confirmed is written, for study.
    ``progress`` is called with an Event as stages begin and go on.

    Raises a subclass of GraphfixError when there is nothing to return: InputError and UsageError for bad input and
    options, LossyExportError, UnsupportedError, and NotConfirmedError when the result does not agree with the input.
    """
    return run_fix(
        model_or_path,
        output,
        None,
        progress,
        only=only,
        skip=skip,
        opset=opset,
        input_shapes=input_shapes,
        inputs=inputs,
        rtol=rtol,
        atol=atol,
        simplify=simplify,
        verify=verify,
        budget=budget,
        strict=strict,
        target=target,
        repair=repair,
        keep_failed=keep_failed,
        input_ranges=input_ranges,
        seed=seed,
        custom_ops=custom_ops,
        memory_limit=memory_limit,
    )


def run_fix(
    model_or_path: str | os.PathLike[str] | bytes | onnx.ModelProto,
    output: str | os.PathLike[str] | None,
    confirm: Confirm | None,
    progress: Callable[[Event], None] | None,
    *,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    opset: int | Literal["keep"] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    simplify: bool = True,
    verify: Literal["all", "rewrites", "model", "none"] = "all",
    budget: int | None = None,
    strict: bool = False,
    target: str | None = None,
    repair: str | Iterable[str] = (),
    keep_failed: str | os.PathLike[str] | None = None,
    input_ranges: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    custom_ops: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    memory_limit: int | None = None,
) -> FixResult:
    """What `fix` does; with ``confirm`` the result is compared by that, and not with the input model."""
    from graphfix import model_io, pipeline
    from graphfix.targets import find_target

    def tell(stage: str, message: str, done: int = 0, total: int = 0) -> None:
        if progress is not None:
            progress(pipeline.Event(stage, message, done, total))

    chosen, skipped, repairs = _pass_names(only, "only"), _pass_names(skip, "skip"), _repair_names(repair)
    both = next((name for name in repairs if name in skipped), None)
    if both is not None and repair != "all":
        raise UsageError(f"{both} is to be skipped and to be repaired: leave out one of the two")
    _check_opset(opset)
    engine = None if target is None else find_target(target)
    _check_numbers(rtol=rtol, atol=atol, budget=budget, seed=seed, memory_limit=memory_limit)
    libraries = custom_op_libraries(custom_ops)
    if verify not in ("all", "rewrites", "model", "none"):
        raise UsageError(f"verify is {verify!r}: choose 'all', 'rewrites', 'model' or 'none'")
    for path in (output, keep_failed):
        if path is not None:
            model_io.check_writable(path)
    if keep_failed is not None:
        models = [path for path in (model_or_path, output) if isinstance(path, (str, os.PathLike))]
        if os.path.realpath(keep_failed) in [os.path.realpath(path) for path in models]:
            raise UsageError(f"keep_failed {os.fspath(keep_failed)}: is the input or the output; choose another path")

    source = os.fspath(model_or_path) if isinstance(model_or_path, (str, os.PathLike)) else ""
    tell("load", f"reading {source or 'the model'}")
    start = time.perf_counter()
    loaded = model_io.load(model_or_path)
    for path in (output, keep_failed):
        if path is not None:
            model_io.check_writable(path, loaded)
    declared = model_inputs(loaded.model)
    options = pipeline.Options(
        only=chosen,
        skip=skipped,
        opset=opset,
        input_shapes=check_shapes(input_shapes, declared),
        inputs=check_sets(inputs, declared),
        rtol=rtol,
        atol=atol,
        simplify=simplify,
        verify=verify,
        budget=budget,
        strict=strict,
        repair=repairs,
        input_ranges=check_ranges(input_ranges, declared),
        seed=_whole(seed),
        custom_ops=libraries,
        memory_limit=memory_limit,
        confirm=confirm,
        target=engine,
    )
    load_seconds = time.perf_counter() - start
    tell("load", f"read {source or 'the model'}: {len(loaded.model.graph.node)} nodes", 1, 1)
    try:
        model, report = pipeline.run(loaded, options, progress)
    except NotConfirmedError as error:
        if keep_failed is None or error.model is None:
            raise
        model_io.save(error.model, keep_failed, base_dir=loaded.base_dir)
        kept = NotConfirmedError(f"{error} (the model that failed is {os.fspath(keep_failed)}, for study)")
        kept.report, kept.model = error.report, error.model
        raise kept from error
    report.input = report.input or source
    report.notes = [note for note in loaded.notes if note not in report.notes] + report.notes
    report.stages = {"load": load_seconds, **report.stages}
    if output is not None:
        report.output = os.fspath(output)
        tell("save", f"writing {report.output}")
        start = time.perf_counter()
        model_io.save(model, output, base_dir=loaded.base_dir)
        report.stages["save"] = time.perf_counter() - start
        tell("save", f"wrote {report.output}", 1, 1)
    blocked = any(finding.blocks for finding in report.findings)
    return FixResult(model, report, ok=not blocked and not any(left.asked or strict for left in report.left))


def export(
    module: Any,
    args: Any = (),
    output: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset: int | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    verify: bool | Literal["all", "rewrites", "model", "none"] = True,
    route: Literal["auto", "torch.export", "torchscript"] = "auto",
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None = None,
    input_ranges: Mapping[str, Sequence[float]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    simplify: bool = True,
    budget: int | None = None,
    strict: bool = False,
    target: str | None = None,
    keep_failed: str | os.PathLike[str] | None = None,
    seed: int = 0,
    memory_limit: int | None = None,
    progress: Callable[[Event], None] | None = None,
) -> FixResult:
    """Export a PyTorch module to ONNX without losing what it writes by index, and confirm the result against PyTorch.

    ``module`` is an ``nn.Module``, a function of tensors or a ``torch.export.ExportedProgram``; ``args`` and ``kwargs``
    are example arguments (not needed for a program that holds its own). The module is exported in evaluation mode,
    without gradients, from a copy: yours stays as it is, and so do the random generators.

    ``dynamic_shapes`` is as for ``torch.export.export``; a dim may also be given by its name: ``{"x": {0: "batch"}}``,
    equal names are one size. ``opset`` is that of the result (18 if not given). ``input_names`` and ``output_names``
    name the model's inputs and outputs. ``route`` is how the module is captured: "torch.export" (PyTorch 2.6 and newer,
    with onnxscript), "torchscript" (1.13 and newer), or "auto", the first that works. ``verify`` is as for `fix` (True
    is "all", False "none"), but the whole model is compared with the module itself, in PyTorch: on the example
    arguments, on other sizes of the dynamic dims, and on values that `fix` would try. The other options are those of
    `fix`.

    While it exports, PyTorch's warnings, logs and prints are held back in the whole process.
    The model's ``metadata_props`` hold what made it, under ``graphfix.*``; ``graphfix explain FILE.onnx`` prints it.

    Raises a subclass of GraphfixError when there is nothing to return: ExportError when PyTorch cannot export the
    module, with the line in the way; UnsupportedError for an operator that ONNX has no form for; NotConfirmedError when
    the model does not give PyTorch's answers, with the module and the line where they part; UsageError for bad options,
    and when PyTorch is not installed.
    """
    require_torch()
    from graphfix import model_io
    from graphfix.torch_export.run import run_export

    if route not in ("auto", "torch.export", "torchscript"):
        raise UsageError(f"route is {route!r}: choose 'auto', 'torch.export' or 'torchscript'")
    if opset is not None:
        _check_opset(opset)
    for path in (output, keep_failed):
        if path is not None:
            model_io.check_writable(path)
    if isinstance(verify, bool):
        verify = "all" if verify else "none"
    return run_export(
        module,
        args,
        output,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        opset=opset,
        input_names=input_names,
        output_names=output_names,
        route=route,
        progress=progress,
        options={
            "only": only,
            "skip": skip,
            "input_shapes": input_shapes,
            "inputs": inputs,
            "input_ranges": input_ranges,
            "rtol": rtol,
            "atol": atol,
            "simplify": simplify,
            "verify": verify,
            "budget": budget,
            "strict": strict,
            "target": target,
            "keep_failed": keep_failed,
            "seed": seed,
            "memory_limit": memory_limit,
        },
    )


def require_torch() -> None:
    """Raise UsageError when what an export needs is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("export needs torch: pip install 'graphfix[torch]'")


def verify(
    reference: str | os.PathLike[str] | bytes | onnx.ModelProto | None,
    candidate: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    inputs: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_ranges: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    custom_ops: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    expected: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None = None,
    layers: bool = False,
    memory_limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Compare any two models: run both on the same inputs and compare every output.

    The models are paths, bytes of files, or ModelProtos (which are not changed). Inputs and outputs are paired by name,
    and those whose names differ by their order; ``notes`` of the result say so. ``inputs`` and ``input_shapes`` are as
    for `fix`, by the reference's names. ``input_ranges`` limits generated values: ``(low, high)``, both allowed.
    ``seed`` draws other values. ``rtol`` and ``atol`` replace the tolerances of the output's dtype and depth.
    ``custom_ops`` are libraries of custom operators for ONNX Runtime, which both models may use.

    With ``expected``, outputs that were recorded take the place of the reference, which must be None: a dict of arrays
    by output name, a list of them, or an ``.npz`` file with arrays ``<output>``, or ``<set>/out/<output>`` for several
    sets. The file may hold the inputs too (``<set>/in/<input>``); else give ``inputs``, as many sets.

    ``layers`` compares the intermediate tensors that both models have by name, too. ``memory_limit`` is how many bytes
    a run may take. ``progress`` is called with the runs done and all runs.

    The result's ``agrees`` says whether the models agree. Raises InputError for files that cannot be read, and
    UsageError for options that make no sense and for models whose inputs or outputs cannot be paired.
    """
    from graphfix.verification import VerifyOptions
    from graphfix.verification.models import compare_models, compare_recorded

    _check_numbers(rtol=rtol, atol=atol, seed=seed, memory_limit=memory_limit)
    options = VerifyOptions(
        rtol=rtol, atol=atol, seed=_whole(seed), custom_ops=custom_op_libraries(custom_ops), memory_limit=memory_limit
    )
    if expected is None:
        if reference is None:
            raise UsageError("there is nothing to compare with: give a reference model or expected outputs")
        return compare_models(
            reference,
            candidate,
            options,
            inputs=inputs,
            input_shapes=input_shapes,
            input_ranges=input_ranges,
            layers=layers,
            progress=progress,
        )
    given = {"a reference model": reference, "input shapes": input_shapes, "input ranges": input_ranges}
    needless = next((what for what, value in given.items() if value), "layers" if layers else None)
    if needless is not None:
        raise UsageError(f"recorded outputs take the place of the reference: {needless} cannot be used with them")
    return compare_recorded(expected, candidate, options, inputs=inputs, progress=progress)


def load_passes() -> tuple[type[Any], ...]:
    """Every pass in the order in which they run: graphfix's own, then those of the entry-point group graphfix.passes.

    Raises UsageError for an installed third-party pass that does not load or takes another pass's code or name, and
    where Python found graphfix without its passes.
    """
    try:
        from graphfix.passes import PASSES
    except ModuleNotFoundError as error:
        if error.name != "graphfix.passes":
            raise
        raise UsageError(
            f"Python takes graphfix from {os.path.dirname(__file__)}, a folder of its sources, where the passes are "
            "not in place: run from another folder, or install with pip install -e ."
        ) from error

    passes: list[type[Any]] = list(PASSES)
    owner = {key: "graphfix" for known in passes for key in (known.code, known.name)}
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        try:
            found = entry.load()
            keys = (str(found.code), str(found.name))
        except Exception as error:
            raise UsageError(
                f"the third-party pass {entry.name} ({entry.value}) does not load: {error}; repair or uninstall it"
            ) from error
        for key in keys:
            if key in owner:
                raise UsageError(
                    f"the third-party pass {entry.name} ({entry.value}) is called {key}, as is a pass of {owner[key]}; "
                    "uninstall one of them"
                )
            owner[key] = entry.value
        passes.append(found)
    return tuple(passes)


def find_pass(text: str, passes: Iterable[type[Any]]) -> type[Any] | None:
    """The pass of this code or name, in any case, or None."""
    wanted = text.strip().casefold()
    return next((p for p in passes if wanted in (p.code.casefold(), p.name.casefold())), None)


def _pass_names(given: str | Iterable[str], option: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    passes = load_passes() if names else ()
    found = []
    for name in names:
        known = find_pass(name, passes)
        if known is None:
            near = suggest(name, [word for p in passes for word in (p.name, p.code)])
            raise UsageError(f"{option}: there is no pass {name!r}; {near} (`graphfix passes` lists them)")
        found.append(known.name)
    return tuple(dict.fromkeys(found))


def _repair_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """The names of the passes that change results, as asked for: by name, with or without "repair-", code, or "all"."""
    from graphfix.pass_base import Safety

    names = (given,) if isinstance(given, str) else tuple(given)
    repairs = [p for p in load_passes() if p.safety is Safety.CHANGES_RESULT] if names else []
    found: list[str] = []
    for name in names:
        if name.strip().casefold() == "all":
            found += [p.name for p in repairs]
            continue
        known = find_pass(name, repairs) or find_pass(f"repair-{name.strip()}", repairs)
        if known is None:
            near = suggest(name, [*(p.name.removeprefix("repair-") for p in repairs), "all"])
            raise UsageError(f"repair: there is no repair {name!r}; {near}")
        found.append(known.name)
    return tuple(dict.fromkeys(found))


def custom_op_libraries(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Absolute paths of libraries of custom operators.

    Raises InputError for one that is not there or that ONNX Runtime does not load.
    """
    paths = [os.fspath(p) for p in ([given] if isinstance(given, (str, os.PathLike)) else given)]
    if not paths:
        return ()
    import onnxruntime

    from graphfix.reference.ort import refusal_of

    for path in paths:
        if os.path.isdir(path):
            raise InputError(f"{path}: is a folder; give the shared library of the custom operators in it")
        if not os.path.isfile(path):
            raise InputError(f"{path}: no such file; give the shared library of the custom operators")
        try:
            onnxruntime.SessionOptions().register_custom_ops_library(os.path.abspath(path))
        except Exception as error:
            reason = refusal_of(error)
            raise InputError(f"{path}: does not load as a library of custom operators: {reason}") from error
    return tuple(os.path.abspath(path) for path in paths)


def _whole(seed: Any) -> int:
    if seed != int(seed):
        raise UsageError(f"seed is {seed!r}: give a whole number")
    return int(seed)


def _check_opset(opset: Any) -> None:
    if opset is None or opset == "keep":
        return
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not 1 <= opset <= newest:
        raise UsageError(f"opset is {opset!r}: give a number from 1 to {newest}, or 'keep'")


def _check_numbers(**numbers: Any) -> None:
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise UsageError(f"{name} is {value!r}: give a number that is zero or more")
