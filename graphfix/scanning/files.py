"""Find Python files, read them, and turn their index writes into findings."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphfix.errors import InputError
from graphfix.scanning.codes import CODES
from graphfix.scanning.report import Finding, Rewriting, ScanReport, Unreadable
from graphfix.scanning.verdicts import EXPORTERS, cases, severity, verdicts
from graphfix.scanning.writes import Write, find_writes

_IGNORE = re.compile(r"#\s*graphfix:\s*ignore(?![\w-])(?:\s*\[([^\]]*)\])?", re.IGNORECASE)
_SKIPPED = frozenset({"__pycache__", "node_modules"})


def scan_paths(paths: Iterable[str | os.PathLike[str]]) -> ScanReport:
    """Scan files, and all Python files in folders. Raises InputError for a path that is not there."""
    report = ScanReport()
    seen: set[str] = set()
    for path in python_files(paths):
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            report.files += 1
            _scan_file(path, report)
    return report


def python_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """The files to scan, in order. Hidden folders and virtual environments in a folder are left out."""
    given = [os.fspath(path) for path in paths]
    for path in given:
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file or folder")
        if path.endswith((".onnx", ".ipynb", ".pt", ".pt2", ".pth")):
            raise InputError(f"{path}: no Python source; give .py files, or folders that hold some")
    for path in given:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                name
                for name in folders
                if name not in _SKIPPED
                and not name.startswith(".")
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            )
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith((".py", ".pyi")))


def _scan_file(path: str, report: ScanReport) -> None:
    try:
        content = Path(path).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the code that is scanned
            tree = ast.parse(content, path)
        text = _decoded(content)
        writes = find_writes(tree, text)
    except OSError as error:
        report.unreadable.append(Unreadable(path, 0, error.strerror or str(error)))
        return
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = f"syntax error: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        report.unreadable.append(Unreadable(path, getattr(error, "lineno", 0) or 0, " ".join(reason.split())))
        return
    except ValueError as error:
        report.unreadable.append(Unreadable(path, 0, f"no Python source: {error}"))
        return
    except (RecursionError, MemoryError):
        report.unreadable.append(Unreadable(path, 0, "expressions are nested too deeply"))
        return
    if not writes:
        return
    lines = text.splitlines(keepends=True) if "\f" not in text and "\x0b" not in text else _lines(text)
    ignored = _ignored(text)
    for write in writes:
        finding = _finding(path, write, lines)
        if _is_ignored(write, finding.code, ignored):
            report.ignored += 1
        else:
            report.findings.append(finding)


def _decoded(content: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _lines(text: str) -> list[str]:
    """Lines as Python counts them: form feeds and the like end none."""
    return [line + "\n" for line in text.split("\n")]


def _finding(path: str, write: Write, lines: list[str]) -> Finding:
    node = write.node
    line, end_line = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    statement = write.statement if not hasattr(write.statement, "body") else node
    first = lines[statement.lineno - 1] if statement.lineno <= len(lines) else ""  # type: ignore[attr-defined]
    source = first.split("#")[0].strip() if "'" not in first and '"' not in first else first.strip()
    if (statement.end_lineno or 0) > statement.lineno:  # type: ignore[attr-defined]
        source += " ..."
    code = CODES[write.form.code]
    found = cases(code.code, write.form.facts)
    worst_first = sorted(found, key=lambda case: max(severity(v.verdict) for v in case.verdicts.values()), reverse=True)
    return Finding(
        path=path,
        line=line,
        column=_column(lines, line, node.col_offset),  # type: ignore[attr-defined]
        end_line=end_line,
        end_column=_column(lines, end_line, node.end_col_offset or 0),  # type: ignore[attr-defined]
        code=code.code,
        name=code.name,
        title=code.title,
        certainty="sure" if write.sure else "maybe",
        assumptions=(*([] if write.sure else [f"{write.target} is a tensor"]), *write.form.guesses),
        function=write.function,
        target=write.target,
        source=source if len(source) <= 100 else source[:97] + "...",
        verdicts={exporter: tuple(verdicts(found, exporter)) for exporter in EXPORTERS},
        instead=tuple(dict.fromkeys(Rewriting(case.source, case.instead) for case in worst_first if case.instead)),
    )


def _column(lines: list[str], line: int, offset: int) -> int:
    """The column in characters, from 1, of an offset in bytes of UTF-8."""
    text = lines[line - 1] if line <= len(lines) else ""
    return len(text.encode("utf-8")[:offset].decode("utf-8", "replace")) + 1


def _ignored(text: str) -> dict[int, set[str] | None]:
    """Lines with a comment ``# graphfix: ignore[GS101]``; None stands for all codes."""
    if "graphfix:" not in text:
        return {}
    found: dict[int, set[str] | None] = {}
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # of what ast.parse takes all the same
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                named = match[1]
                found[token.start[0]] = None if named is None else {c.strip().upper() for c in named.split(",")}
    return found


def _is_ignored(write: Write, code: str, ignored: dict[int, set[str] | None]) -> bool:
    statement = write.statement if not hasattr(write.statement, "body") else write.node
    last = max(getattr(statement, "end_lineno", 0) or 0, getattr(write.node, "end_lineno", 0) or 0)
    for line in range(statement.lineno, last + 1):  # type: ignore[attr-defined]
        if line in ignored:
            codes = ignored[line]
            if codes is None or code in codes:
                return True
    return False
