"""The ways from PyTorch to a lossless model: torch.export, and TorchScript for what that cannot take."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from graphfix import tidy
from graphfix.errors import UsageError
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.subject import Subject

OPSET = 18  # of a model when none is asked for
TORCH_EXPORT = "torch.export"
TORCHSCRIPT = "torchscript"
_ALLOWZERO = 14  # the opset from which Reshape can make sizes of 0
_OLDEST = (2, 6)  # whose torch.onnx takes translations of one's own for exported programs


def routes(wanted: str, subject: Subject) -> list[str]:
    """The routes to try, in order; "auto" means all that this version of PyTorch has.

    Raises UsageError for a route that is not to be had.
    """
    missing = lacking()
    if wanted == "auto":
        if subject.program is not None:
            wanted = TORCH_EXPORT
        else:
            return [TORCHSCRIPT] if missing else [TORCH_EXPORT, TORCHSCRIPT]
    if wanted == TORCH_EXPORT and missing:
        raise UsageError(f"the route torch.export {missing}")
    if wanted == TORCHSCRIPT and subject.program is not None:
        raise UsageError("an exported program cannot go by TorchScript: give the module")
    return [wanted]


def capture(route: str, subject: Subject, *, lowest_opset: int = OPSET, **options: Any) -> Captured:
    """A lossless model by one route, to be converted to ``lowest_opset`` or a higher one.

    Raises ExportError, with the user's source line, when it cannot be.
    """
    if route == TORCHSCRIPT:
        from graphfix.torch_export import tracing

        found = tracing.capture(subject, **options)
    else:
        from graphfix.torch_export import capture as program

        found = program.capture(subject, **options)
    tidy.drop_needless_allowzero(found.model)
    if lowest_opset < _ALLOWZERO and tidy.drop_allowzero(found.model):
        found.notes.append(f"Reshape cannot make sizes of 0 below opset {_ALLOWZERO}: the model is for sizes from 1 on")
    return found


def lacking() -> str:
    """What the route by torch.export lacks here; "" when there is nothing."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        return f"needs PyTorch 2.6 or newer, and this is {torch.__version__}"
    if find_spec("onnxscript") is None:
        return "needs onnxscript: pip install 'graphfix[torch]'"
    return ""
