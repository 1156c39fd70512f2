"""The whole export: capture, fix, confirm against PyTorch, record, save. The work behind ``graphfix.export``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphfix import model_io
from graphfix.api import FixResult, run_fix
from graphfix.errors import GraphfixError, NotConfirmedError
from graphfix.pipeline import Event
from graphfix.torch_export import locate, metadata
from graphfix.torch_export.capture import OPSET, Captured, capture
from graphfix.torch_export.confirm import Confirmation
from graphfix.torch_export.session import TorchSession
from graphfix.torch_export.subject import subject

if TYPE_CHECKING:
    from graphfix.report import Report


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
    progress: Callable[[Event], None] | None,
    options: Mapping[str, Any],
) -> FixResult:
    """See `graphfix.export`. ``options`` are those of `graphfix.fix`."""
    tell = progress or (lambda event: None)
    given = subject(module, args, kwargs)
    tell(Event("export", f"exporting {given.name}"))
    start = time.perf_counter()
    captured = capture(given, dynamic_shapes=dynamic_shapes, input_names=input_names, output_names=output_names)
    seconds = time.perf_counter() - start
    tell(Event("export", f"exported {given.name}: {len(captured.model.graph.node)} nodes", 1, 1))

    session = TorchSession(given, captured)
    confirm = Confirmation(session, captured.model, given.name)
    try:
        wanted = OPSET if opset is None and options.get("target") is None else opset
        result = run_fix(captured.model, None, confirm, progress, opset=wanted, **options)
    except NotConfirmedError as error:
        raise _explained(error, captured, confirm) from error
    except GraphfixError as error:
        _describe(error.report, given.name, captured)
        raise
    report = result.report
    _describe(report, given.name, captured)
    report.stages = {"export": seconds, **{k: v for k, v in report.stages.items() if k != "load"}}
    metadata.record(result.model, report, captured.route, {"opset": opset, "dynamic_shapes": dynamic_shapes, **options})
    if output is not None:
        report.output = os.fspath(output)
        tell(Event("save", f"writing {report.output}"))
        model_io.save(result.model, output, base_dir=None)
        tell(Event("save", f"wrote {report.output}", 1, 1))
    return result


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
