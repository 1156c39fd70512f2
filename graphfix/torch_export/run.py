"""The whole export: capture, fix, confirm against PyTorch, record, save. The work behind ``graphfix.export``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from graphfix import model_io
from graphfix.api import FixResult, run_fix
from graphfix.errors import ExportError, GraphfixError, NotConfirmedError, UnsupportedError, UsageError
from graphfix.lowering.choose import size_text
from graphfix.pipeline import Event
from graphfix.targets import find_target
from graphfix.torch_export import locate, metadata
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.confirm import Confirmation
from graphfix.torch_export.dim_names import check_dims
from graphfix.torch_export.routes import OPSET, TORCHSCRIPT, capture, lacking, routes
from graphfix.torch_export.session import TorchSession
from graphfix.torch_export.subject import Subject, subject

if TYPE_CHECKING:
    from graphfix.report import Report

_MOST_IN_FILE = 1_879_048_192  # bytes of weights; a file of protobuf holds 2 GiB


def run_export(
    module: Any,
    args: Any,
    output: str | os.PathLike[str] | None,
    *,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    opset: int | None,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    route: str,
    progress: Callable[[Event], None] | None,
    options: Mapping[str, Any],
) -> FixResult:
    """See `graphfix.export`. ``options`` are those of `graphfix.fix`."""
    if options.get("target") is not None:
        find_target(options["target"])
    given = subject(module, args, kwargs)
    check_dims(given, dynamic_shapes)
    how: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "input_names": input_names, "output_names": output_names}
    told = {"opset": opset, "dynamic_shapes": dynamic_shapes, **options}
    options = {**options, "opset": OPSET if opset is None and options.get("target") is None else opset}
    large = given.weight_bytes > _MOST_IN_FILE
    if large and output is None:
        raise UsageError(f"the weights take {size_text(given.weight_bytes)}, too much for one in memory: give output")
    with tempfile.TemporaryDirectory() if large else nullcontext() as temporary:
        folder = Path(temporary) if temporary is not None else None
        how["place"] = folder / Path(output).name if folder is not None and output is not None else None
        result = _by_any_route(route, given, how, progress, options, told)
        if output is not None:
            report = result.report
            report.output = os.fspath(output)
            _tell(progress, "save", f"writing {report.output}")
            model_io.save(result.model, output, base_dir=folder)
            _tell(progress, "save", f"wrote {report.output}", 1, 1)
    return result


def _by_any_route(route: str, given: Subject, *how: Any) -> FixResult:
    """The result of the first route that leads to one. Raises the error of the first route, with what others say."""
    first: GraphfixError | None = None
    for one in routes(route, given):
        try:
            result = _by_route(one, given, *how)
        except (ExportError, NotConfirmedError, UnsupportedError) as error:
            first = error if first is None else _both(first, error)
            continue
        if first is not None:
            result.report.notes.append(f"not by torch.export: {first}")
        elif route == "auto" and one == TORCHSCRIPT:
            result.report.notes.append(f"not by torch.export, which {lacking()}")
        return result
    assert first is not None
    raise first


def _by_route(
    route: str,
    given: Subject,
    how: Mapping[str, Any],
    progress: Callable[[Event], None] | None,
    options: Mapping[str, Any],
    told: Mapping[str, Any],
) -> FixResult:
    """Capture, fix and confirm; ``told`` are the options as they are recorded in the model."""
    _tell(progress, "export", f"exporting {given.name} by {route}")
    start = time.perf_counter()
    captured = capture(route, given, lowest_opset=_wanted_opset(options), **how)
    seconds = time.perf_counter() - start
    _tell(progress, "export", f"exported {given.name}: {len(captured.model.graph.node)} nodes", 1, 1)
    session = TorchSession(given, captured)
    confirm = Confirmation(session, captured.model, given.name, captured.base_dir)
    source: onnx.ModelProto | Path = captured.model
    if captured.base_dir is not None:
        source = captured.base_dir / "lossless.onnx"
        onnx.save(captured.model, source)  # without the weights
    try:
        result = run_fix(source, None, confirm, progress, **options)
    except NotConfirmedError as error:
        raise _explained(error, captured, confirm) from error
    except GraphfixError as error:
        _describe(error.report, given.name, captured)
        raise
    report = result.report
    _describe(report, given.name, captured)
    report.stages = {"export": seconds, **{k: v for k, v in report.stages.items() if k != "load"}}
    metadata.record(result.model, report, captured.route, told)
    return result


def _wanted_opset(options: Mapping[str, Any]) -> int:
    """The opset that the result is to have."""
    if options.get("opset") is None and options.get("target") is not None:
        return find_target(options["target"]).nearest_opset(OPSET)
    wanted = options.get("opset")
    return wanted if isinstance(wanted, int) else OPSET


def _tell(progress: Callable[[Event], None] | None, *event: Any) -> None:
    if progress is not None:
        progress(Event(*event))


def _both(first: GraphfixError, second: GraphfixError) -> GraphfixError:
    """The error of the first route, with what the second one says."""
    both = type(first)(f"{first}; by {TORCHSCRIPT}: {second}")
    both.report = first.report
    if isinstance(first, NotConfirmedError) and isinstance(both, NotConfirmedError):
        both.model = first.model
    return both


def _describe(report: Report | None, name: str, captured: Captured) -> None:
    if report is None:
        return
    import torch

    report.input = name
    report.versions["torch"] = torch.__version__
    report.notes = [f"exported by {captured.route}", *captured.notes, *report.notes]


def _explained(error: NotConfirmedError, captured: Captured, confirm: Confirmation) -> NotConfirmedError:
    """The error with the module and the source line at fault, where they can be found."""
    place = locate.place_of_difference(captured, confirm, error)
    told = NotConfirmedError(f"{error}; {place}" if place else str(error))
    told.report, told.model = error.report, error.model
    _describe(told.report, confirm.name, captured)
    return told
