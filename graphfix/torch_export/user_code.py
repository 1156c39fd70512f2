"""The line of the user's code that runs at this moment."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from graphfix.errors import ExportError
from graphfix.sources import place

_TORCH = str(Path(torch.__file__).parent) + os.sep  # and not torchvision
_HERE = str(Path(__file__).parent) + os.sep
_TRACED = f"{_HERE}tracing.py"  # whose code calls the module
_TYPED = ("<stdin>", "<ipython-input", "<python-input")  # files of what is typed in
_TELLING = frozenset(["print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log", "write"])
_DISPATCHER = torch.overrides.__file__
_STANDARD = sysconfig.get_paths()["stdlib"]


def is_user_code(file: str) -> bool:
    """Whether a file is neither PyTorch's, nor Python's, nor of this package."""
    if file.startswith(_TYPED):
        return True
    if file.startswith((_TORCH, _HERE, "<")):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file


def user_line() -> tuple[str, int]:
    """The innermost line of the user's code; ("", 0) when a module is none of it."""
    frame = sys._getframe()
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if frame.f_code.co_filename == _TRACED:
            return "", 0
        frame = frame.f_back  # type: ignore[assignment]
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def in_assertion() -> bool:
    """Whether the line that runs, the user's or PyTorch's, only checks something."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith((_HERE, _DISPATCHER)):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and is_assertion(frame.f_code.co_filename, frame.f_lineno)


def is_assertion(file: str, line: int) -> bool:
    """Whether a line belongs to an assert, or to the condition of an if that does nothing but raise."""
    return any(first <= line <= last for first, last in _assertions(file))


def in_message() -> bool:
    """Whether the user's line only tells something: by print(), a logger, a warning, or in raising."""
    file, line = user_line()
    return is_assertion(file, line) or any(first <= line <= last for first, last in _messages(file))


def _parsed(file: str) -> ast.Module:
    """The code of a file; of one that cannot be read, none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _messages(file: str) -> list[tuple[int, int]]:
    """The first and last lines of the statements of a file that only tell something."""
    found = []
    for node in ast.walk(_parsed(file)):
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        if isinstance(node, ast.Raise) or name in _TELLING:
            assert isinstance(node, ast.stmt)
            found.append((node.lineno, node.end_lineno or node.lineno))
    return found


@functools.lru_cache(maxsize=64)
def _assertions(file: str) -> list[tuple[int, int]]:
    """The first and last lines of the assertions of a file: those that hold nothing else whose result is used."""
    tree = _parsed(file)
    starts = Counter(node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt))
    found: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            checked: ast.Assert | ast.expr = node
            raises: list[ast.stmt] = []
        elif isinstance(node, ast.If) and not node.orelse and all(isinstance(one, ast.Raise) for one in node.body):
            checked, raises = node.test, node.body
        else:
            continue
        first, last = checked.lineno, checked.end_lineno or checked.lineno
        others = sum(starts[line] for line in range(first, last + 1)) - sum(one.lineno <= last for one in raises)
        if others == 1 and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(checked)):
            found.append((first, last))
    return found


def where() -> str:
    """The line as a place in the source."""
    file, line = user_line()
    if not file:
        return "the module"
    return place(file, line, linecache.getline(file, line))


@contextmanager
def located() -> Iterator[None]:
    """Puts the user's line before the message of an ExportError that has none."""
    try:
        yield
    except ExportError as error:
        if ".py:" in str(error) or str(error).startswith(where()):
            raise
        raise ExportError(f"{where()}: {error}") from error
