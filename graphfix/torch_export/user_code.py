"""The line of the user's code that runs at this moment."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from graphfix.errors import ExportError
from graphfix.sources import place

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_STANDARD = sysconfig.get_paths()["stdlib"]


def is_user_code(file: str) -> bool:
    """Whether a file is neither PyTorch's, nor Python's, nor of this package."""
    if file.startswith((_TORCH, _HERE, "<")):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file


def user_line() -> tuple[str, int]:
    """The innermost line of the user's code."""
    frame = sys._getframe()
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def where() -> str:
    """The line as a place in the source."""
    file, line = user_line()
    return place(file, line, linecache.getline(file, line))


@contextmanager
def located() -> Iterator[None]:
    """Puts the user's line before the message of an ExportError that has none."""
    try:
        yield
    except ExportError as error:
        if ".py:" in str(error):
            raise
        raise ExportError(f"{where()}: {error}") from error
