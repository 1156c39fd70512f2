"""What graphfix raises. Every message is one line: what, where, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from graphfix.report import Report


class GraphfixError(Exception):
    """Base of all errors that graphfix raises on purpose.

    ``exit_code`` is the command's exit code; ``report`` holds what a run had found before it failed.
    """

    exit_code = 1
    report: Report | None = None


class InputError(GraphfixError):
    """The input cannot be read or is not a valid ONNX model, or the output cannot be written."""

    exit_code = 2


class UsageError(GraphfixError):
    """An option makes no sense for this model: unknown pass, unknown input name, impossible opset."""

    exit_code = 2


class LossyExportError(GraphfixError):
    """The exporter dropped the operands of an index write (ATen ``Placeholder``): nothing can bring them back."""


class UnsupportedError(GraphfixError):
    """The model holds something that graphfix has to replace and cannot: it says which node and why."""


class ExportError(GraphfixError):
    """PyTorch cannot export the module: it says which line of the source is in the way, and what to write instead."""


class NotConfirmedError(GraphfixError):
    """The fixed model could not be shown to agree with the input model. Nothing is written.

    ``model`` is the fixed model, for study (`graphfix.fix` writes it on request).
    """

    model: onnx.ModelProto | None = None
