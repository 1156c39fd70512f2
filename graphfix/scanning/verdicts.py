"""What the exporters make of each form: the table that benchmarks/exporter_verdicts.py measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

EXPORTERS = ("torchscript", "dynamo")
VERDICTS = ("right", "fragile", "unusable", "wrong", "export error")
_SEVERITY = {
    verdict: number for number, verdict in enumerate(("right", "fragile", "export error", "unusable", "wrong"))
}


@dataclass(frozen=True)
class Verdict:
    """What one exporter makes of a form, under a condition ("" for always)."""

    verdict: str
    why: str
    condition: str = ""


@dataclass(frozen=True)
class Case:
    """A measured case of a code: lines of PyTorch, what each exporter makes of them, and of the lines instead."""

    code: str
    condition: str
    when: Mapping[str, str]
    source: str
    inputs: str
    verdicts: Mapping[str, Verdict]
    instead: str
    instead_verdicts: Mapping[str, Verdict]


@cache
def table() -> tuple[Case, ...]:
    """All measured cases."""
    return tuple(_case(row) for row in _content()["cases"])


@cache
def measured_with() -> Mapping[str, str]:
    """The versions that the table was measured with: torch, onnxscript, onnxruntime, onnx, python."""
    return dict(_content()["measured_with"])


def cases(code: str, facts: Mapping[str, str]) -> list[Case]:
    """The cases of a code that these facts do not rule out; all of them when none is left."""
    of_code = [case for case in table() if case.code == code]
    left = [case for case in of_code if all(facts.get(key, value) == value for key, value in case.when.items())]
    return left or of_code


def verdicts(found: list[Case], exporter: str) -> list[Verdict]:
    """The different verdicts of cases, the worst first; conditions only where the cases differ."""
    by_verdict: dict[str, list[tuple[Case, Verdict]]] = {}
    for case in found:
        verdict = case.verdicts[exporter]
        by_verdict.setdefault(verdict.verdict, []).append((case, verdict))
    told = []
    for name in sorted(by_verdict, key=severity, reverse=True):
        group = by_verdict[name]
        conditions = dict.fromkeys(case.condition or "it is as usual" for case, _ in group)
        reasons = dict.fromkeys(each.why for _, each in group)
        condition = "" if len(by_verdict) == 1 else "; ".join(conditions)
        told.append(Verdict(name, next(iter(reasons)), condition))
    return told


def severity(verdict: str) -> int:
    """0 for right, more the worse it is."""
    return VERDICTS.index(verdict)


@cache
def _content() -> dict:
    return json.loads((files("graphfix.scanning") / "verdicts.json").read_text(encoding="utf-8"))


def _case(row: dict) -> Case:
    instead = row["instead"] or {}
    return Case(
        row["code"],
        row["condition"],
        row["when"],
        row["source"],
        row["inputs"],
        {exporter: Verdict(**row[exporter]) for exporter in EXPORTERS},
        instead.get("source", ""),
        {exporter: Verdict(**instead[exporter]) for exporter in EXPORTERS if exporter in instead},
    )
