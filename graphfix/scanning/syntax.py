"""Walks over syntax trees, faster than those of `ast` as they visit less."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
# A line on which a write can begin or end: `] =`, `] +=`, `x[0], y =`, `) =`, `y +=`, `.add_(`, `.scatter`.
_CANDIDATE = re.compile(
    r"\][\s)\\]*(?://|\*\*|<<|>>|[-+*/%&|^@])?=(?!=)|\]\s*[,:].*[^=!<>]=(?!=)|^\s*[)\]]\s*=(?!=)"
    r"|(?:<<|>>|[-+*/%&|^@])=|\.\w+_\(|__setitem__|masked_|index_|scatter"
)


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that can hold nodes worth a visit."""
    skipped = ("ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment", "level", "module", "lineno")
    return () if kind is ast.Constant else tuple(name for name in kind._fields if name not in skipped)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a chain of names, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


_ALL: dict[type[ast.AST], tuple[str, ...]] = {}  # filled as kinds are met
_STOPPING: dict[type[ast.AST], tuple[str, ...]] = dict.fromkeys(SCOPES, ())


def nodes(roots: Iterable[ast.AST], *, within: bool = False) -> Iterator[ast.AST]:
    """All nodes below and with these, but contexts and operators; ``within``: not those in functions and classes."""
    pending: list[ast.AST] = list(roots)
    fields = _STOPPING if within else _ALL
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.AST):  # a name, or None in the place of a default
            continue
        yield node
        kind = node.__class__
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = _fields(kind)
        for name in names:
            value = getattr(node, name, None)
            if value.__class__ is list:
                pending += value
            elif value is not None:
                pending.append(value)


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements of a block, in order, those of blocks, functions and classes in it included."""
    for node in body:
        yield node
        for name in _BLOCKS:
            inner = getattr(node, name, None)
            if inner.__class__ is list:
                yield from statements(inner)


class Candidates:
    """The lines of a file on which a write by index may stand: a test of text, to leave out most functions."""

    def __init__(self, text: str) -> None:
        self._lines = [number for number, line in enumerate(text.split("\n"), 1) if _CANDIDATE.search(line)]

    def within(self, node: ast.AST) -> bool:
        """Whether one of the lines belongs to this function or class."""
        at = bisect_left(self._lines, getattr(node, "lineno", 0))
        return at < len(self._lines) and self._lines[at] <= (getattr(node, "end_lineno", 0) or 0)
