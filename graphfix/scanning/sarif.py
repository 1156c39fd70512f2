"""A scan as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), as code hosts and editors read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graphfix.scanning.codes import CODES, Code
from graphfix.scanning.report import Finding, ScanReport, Unreadable
from graphfix.scanning.text import verdict_lines
from graphfix.scanning.verdicts import measured_with

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"right": "note", "fragile": "warning", "export error": "error", "unusable": "error", "wrong": "error"}


def as_sarif(report: ScanReport) -> dict[str, Any]:
    """The log as plain data."""
    from importlib.metadata import version

    driver = {
        "name": "graphfix",
        "semanticVersion": version("graphfix"),
        "rules": [_rule(code) for code in CODES.values()],
    }
    notifications = [_notification(each) for each in report.unreadable]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": [_result(finding) for finding in report.findings],
        "properties": {"measuredWith": dict(measured_with())},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: Code) -> dict[str, Any]:
    name = "".join(word.capitalize() for word in code.name.split("-"))
    return {
        "id": code.code,
        "name": name,
        "shortDescription": {"text": code.title},
        "fullDescription": {"text": code.text},
        "help": {"text": f"{code.text}\n\ngraphfix explain {code.code} tells what was measured."},
        "defaultConfiguration": {"level": "warning"},
    }


def level(finding: Finding) -> str:
    """error, warning or note: by the worst verdict, and note for what is not sure."""
    return _LEVELS[finding.worst] if finding.certainty == "sure" else "note"


def _result(finding: Finding) -> dict[str, Any]:
    unless = f" (if {' and '.join(finding.assumptions)})" if finding.assumptions else ""
    text = f"{finding.title}{unless}. " + " ".join(f"{line}." for line in verdict_lines(finding))
    if finding.instead:
        text += f" Instead of {_inline(finding.instead[0].before)} write {_inline(finding.instead[0].after)}."
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
        "snippet": {"text": finding.source},
    }
    location = {"physicalLocation": {"artifactLocation": {"uri": uri(finding.path)}, "region": region}}
    if finding.function:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.function, "kind": "function"}]  # type: ignore[assignment]
    return {
        "ruleId": finding.code,
        "ruleIndex": list(CODES).index(finding.code),
        "level": level(finding),
        "message": {"text": text},
        "locations": [location],
        "properties": {"certainty": finding.certainty, "worst": finding.worst},
    }


def _notification(each: Unreadable) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": uri(each.path)}}
    if each.line:
        location["region"] = {"startLine": each.line}
    return {"level": "error", "message": {"text": each.reason}, "locations": [{"physicalLocation": location}]}


def _inline(lines: str) -> str:
    return "`" + "; ".join(lines.splitlines()) + "`"


def uri(path: str) -> str:
    """A path as a URI: relative paths stay relative, with forward slashes."""
    if os.path.isabs(path):
        return Path(path).as_uri()
    return quote(Path(os.path.normpath(path)).as_posix())
