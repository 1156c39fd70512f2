"""The result of a scan: findings, files that could not be read, and their form as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from graphfix.scanning.verdicts import EXPORTERS, Verdict, measured_with, severity


@dataclass(frozen=True)
class Rewriting:
    """Another way to write it: an example, before and after, in which the exporters are right."""

    before: str
    after: str


@dataclass(frozen=True)
class Finding:
    """An index write.

    ``line`` and ``column`` begin at 1, columns count characters. ``certainty`` is "sure" or "maybe"; ``assumptions``
    says what the finding rests on ("x is a tensor", "m is a mask"). ``verdicts`` has for each exporter what it makes of
    such a write, the worst first, each with the condition under which it does so.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    name: str
    title: str
    certainty: str
    assumptions: tuple[str, ...]
    function: str
    target: str
    source: str
    verdicts: dict[str, tuple[Verdict, ...]]
    instead: tuple[Rewriting, ...]

    @property
    def worst(self) -> str:
        """The worst verdict of any exporter: right, fragile, export error, unusable or wrong."""
        return max((self.verdicts[exporter][0].verdict for exporter in EXPORTERS), key=severity)


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be scanned."""

    path: str
    line: int
    reason: str


@dataclass
class ScanReport:
    """What a scan of Python files found."""

    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    ignored: int = 0

    @property
    def exit_code(self) -> int:
        """1 when there are findings, else 2 when a file could not be read, else 0."""
        return 1 if self.findings else 2 if self.unreadable else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "format": 1,
            "files": self.files,
            "ignored": self.ignored,
            "measured_with": dict(measured_with()),
            "findings": [{**dataclasses.asdict(finding), "worst": finding.worst} for finding in self.findings],
            "unreadable": [dataclasses.asdict(each) for each in self.unreadable],
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_sarif(self) -> str:
        """The report as SARIF 2.1.0, for code hosts and editors."""
        from graphfix.scanning.sarif import as_sarif

        return json.dumps(as_sarif(self), indent=2) + "\n"
