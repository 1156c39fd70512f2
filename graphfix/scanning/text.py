"""A scan as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphfix.scanning.report import Finding, ScanReport
from graphfix.scanning.verdicts import measured_with, severity

NAMES = {"torchscript": "TorchScript", "dynamo": "dynamo"}
Line = list[tuple[str, str]]  # pieces of text with their styles
_STYLES = {"right": "green", "fragile": "yellow", "export error": "red", "unusable": "red", "wrong": "bold red"}


SHORT = 45  # longer reasons are told on request


def verdict_lines(finding: Finding) -> list[str]:
    """For each exporter, what it makes of the write."""
    return ["".join(text for text, _ in line) for line in _verdicts(finding, verbose=False)]


def _verdicts(finding: Finding, *, verbose: bool) -> Iterator[Line]:
    for exporter, name in NAMES.items():
        line: Line = [(f"{name}: ", "")]
        found = finding.verdicts[exporter]
        for number, each in enumerate(found):
            why = f" ({each.why})" if each.why and (verbose or len(each.why) <= SHORT) else ""
            last = number == len(found) - 1
            condition = "" if not each.condition else " otherwise" if last and not verbose else f" if {each.condition}"
            line += [("; " if number else "", ""), (each.verdict, _STYLES[each.verdict]), (f"{why}{condition}", "")]
        yield line


def lines(report: ScanReport, *, verbose: bool = False) -> Iterator[Line]:
    """The report, line by line."""
    told: set[str] = set()
    for finding in report.findings:
        place = f"{finding.path}:{finding.line}:{finding.column}: "
        style = "bold red" if severity(finding.worst) > 1 else "bold yellow" if severity(finding.worst) else "bold"
        first: Line = [(place, "bold"), (finding.code, style), (f" {finding.source}", "")]
        if finding.function:
            first.append((f"  in {finding.function}", "dim"))
        yield first
        if finding.assumptions:
            yield [("    if " + ", and ".join(finding.assumptions), "dim")]
        for line in _verdicts(finding, verbose=verbose):
            yield [("    ", ""), *line]
        if finding.instead and (verbose or finding.code not in told):
            shown = finding.instead if verbose else finding.instead[:1]
            for each in shown:
                before = "; ".join(line.strip() for line in each.before.splitlines()).replace(":;", ":")
                yield [(f"    instead of {before}:", "")]
                yield from ([(f"        {text}", "cyan")] for text in each.after.splitlines())
        told.add(finding.code)
    for each_file in report.unreadable:
        at = f":{each_file.line}" if each_file.line else ""
        yield [(f"{each_file.path}{at}: ", "bold"), ("not scanned", "bold red"), (f": {each_file.reason}", "")]
    yield from _summary(report)


def _summary(report: ScanReport) -> Iterator[Line]:
    number = len(report.findings)
    in_files = len({finding.path for finding in report.findings})
    scanned = f"{report.files} file{'s' if report.files != 1 else ''}"
    ignored = f", {report.ignored} ignored by comment" if report.ignored else ""
    if not number:
        yield [(f"no index writes found in {scanned}{ignored}", "bold")]
        return
    sure = sum(finding.certainty == "sure" for finding in report.findings)
    codes = Counter(finding.code for finding in report.findings)
    yield [
        (
            f"{number} index write{'s' if number != 1 else ''} in {in_files} of {scanned}: "
            f"{sure} sure, {number - sure} maybe{ignored}",
            "bold",
        )
    ]
    yield [(", ".join(f"{count} {code}" for code, count in codes.most_common()), "")]
    more = codes.most_common(1)[0][0]
    yield [(f"measured with torch {measured_with()['torch']}; graphfix explain {more} tells more", "dim")]
