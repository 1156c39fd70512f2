"""Replace index writes in ONNX models by portable standard operators, and confirm the result.

``graphfix.fix(model_or_path, output)`` does what the command ``graphfix IN OUT`` does, and
``graphfix.verify(reference, candidate)`` what ``graphfix verify REFERENCE CANDIDATE`` does. The heavy modules (onnx,
onnxruntime) are imported when a function is first used, so that ``import graphfix`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphfix.errors import (
    GraphfixError,
    InputError,
    LossyExportError,
    NotConfirmedError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from graphfix.api import FixResult, fix, load_passes, verify
    from graphfix.scanning import ScanReport, scan

    __version__: str

__all__ = [
    "FixResult",
    "GraphfixError",
    "InputError",
    "LossyExportError",
    "NotConfirmedError",
    "ScanReport",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "fix",
    "load_passes",
    "scan",
    "verify",
]

_LAZY = ("FixResult", "fix", "load_passes", "verify")


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
