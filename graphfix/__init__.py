"""Replace index writes in ONNX models by portable standard operators, and confirm the result.

``graphfix.fix(model_or_path, output)`` does what the command ``graphfix IN OUT`` does,
``graphfix.verify(reference, candidate)`` what ``graphfix verify REFERENCE CANDIDATE`` does, and
``graphfix.export(module, args, output)`` exports a PyTorch module without losing an index write. The heavy modules
(onnx, onnxruntime, torch) are imported when a function is first used, so that ``import graphfix`` costs next to
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphfix.errors import (
    ExportError,
    GraphfixError,
    InputError,
    LossyExportError,
    NotConfirmedError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from graphfix.api import FixResult, export, fix, load_passes, verify
    from graphfix.scanning import ScanReport, scan

    __version__: str

__all__ = [
    "ExportError",
    "FixResult",
    "GraphfixError",
    "InputError",
    "LossyExportError",
    "NotConfirmedError",
    "ScanReport",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "export",
    "fix",
    "load_passes",
    "scan",
    "verify",
]

_LAZY = ("FixResult", "export", "fix", "load_passes", "verify")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from graphfix import api

        return getattr(api, name)
    if name in ("ScanReport", "scan"):
        from importlib import import_module

        return getattr(import_module("graphfix.scanning"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("graphfix")
    raise AttributeError(f"module 'graphfix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
