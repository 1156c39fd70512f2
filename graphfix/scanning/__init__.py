"""Find index writes in Python source, and say what PyTorch's ONNX exporters make of each.

The scan reads source and runs none of it: it needs neither PyTorch nor the packages that the source imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from graphfix.scanning.report import Finding, ScanReport, Unreadable

__all__ = ["Finding", "ScanReport", "Unreadable", "scan"]


def scan(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> ScanReport:
    """Find the index writes in Python files, and in all Python files of folders.

    Files that cannot be parsed are listed in ``unreadable``. Raises InputError for a path that is not there.
    """
    from graphfix.scanning.files import scan_paths

    return scan_paths([paths] if isinstance(paths, (str, os.PathLike)) else paths)
