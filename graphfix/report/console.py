"""What a person sees: the stages on stderr while they run, the summary on stdout at the end.

A terminal gets colour, a spinner and a bar; anything else gets plain lines. Nothing here may end a run: a reader that
went away, or an encoding that lacks a character, costs the text and no more.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Protocol, cast

from graphfix.report import Finding, Left, Replacement, Report, RewriteChecks, Verification
from graphfix.report.tables import OUTPUT_TITLES, output_rows

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

MAX_ROWS = 12
LABEL = 10
PLAIN_INTERVAL = 5.0


class Event(Protocol):
    """What the pipeline tells: see graphfix.pipeline.Event."""

    @property
    def stage(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...


class Stream:
    """A text stream that never raises on output: see the module."""

    def __init__(self, stream: IO[str] | None):
        self._stream = stream

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed
            return False

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except (OSError, ValueError):
                self._drop()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._drop()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        # The interpreter flushes the standard streams once more as it exits; it must not meet the broken pipe again.
        try:
            if stream is not None:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
        except (OSError, ValueError):
            pass


def printable(text: str) -> str:
    """The text on one line, with control characters (names in a model may hold any) written as escapes."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in joined)


def printable_piece(text: str) -> str:
    """As `printable`, with the spaces kept."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` columns (3 or more), with its middle left out when it is longer."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    tail_width = (width - 2) // 2
    tail = text[len(text) - tail_width :]
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    head = set_cell_size(text, width - 2 - cell_len(tail)).rstrip()
    return f"{head}..{tail}"


def bytes_text(size: int) -> str:
    """A size for people: 272 B, 1.3 KiB, 12.0 MiB."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def agreement(verification: Verification) -> str:
    """One line that says how two models compare, in words that are no stronger than the facts."""
    if not verification.sets or not verification.agrees:
        what = "differs from" if verification.sets else "could not be compared with"
        return f"{what} {verification.against}: {printable(verification.detail)}"
    if verification.status == "in part":
        return _in_part(verification)
    return f"{_likeness(verification)} on {_sets(verification)}{_reservations(verification)}"


def _in_part(verification: Verification) -> str:
    """What was compared when no output of the model was."""
    number = len(verification.not_run)
    upto = f"up to {number} node{'s' if number != 1 else ''} that cannot be run here, on {_sets(verification)}"
    lost = printable(", ".join(verification.not_compared))
    return f"compared in part: {_likeness(verification)} {upto}; no output of the model was compared ({lost})"


def _likeness(verification: Verification) -> str:
    """How close the outputs are: equal only if every value is."""
    loose = [o for o in verification.outputs if not o.exact]
    if not loose:
        return f"equal to {verification.against}"
    worst = max(loose, key=lambda o: o.max_abs)
    rtol, atol = max(o.rtol for o in loose), max(o.atol for o in loose)
    return (
        f"agrees with {verification.against} within rtol {rtol:.2g} and atol {atol:.2g} "
        f"(largest difference {worst.max_abs:.2g} in {printable(worst.name)})"
    )


def _sets(verification: Verification) -> str:
    number = len(verification.sets)
    return f"{number} input set" + ("s" if number != 1 else "")


def _reservations(verification: Verification) -> str:
    """What the words "equal" and "agrees" do not cover, as a clause."""
    told = ""
    if all(o.exact for o in verification.outputs) and any(not o.exact for o in verification.optimised):
        told += " (within tolerance with ONNX Runtime's optimisations)"
    if verification.not_compared:
        told += f", without {printable(', '.join(verification.not_compared))}, which could not be compared"
    if verification.not_run:
        number = len(verification.not_run)
        told += f", without {number} node{'s' if number != 1 else ''} that cannot be run here"
    return told


def confirmation(verification: Verification) -> str:
    """One line that says how the result was confirmed, in words that are no stronger than the facts."""
    if verification.status == "confirmed":
        sets, but = _sets(verification), _reservations(verification)
        if all(output.exact for output in verification.outputs):
            return f"confirmed: equal to {verification.against} on {sets}{but}"
        worst = max((o for o in verification.outputs if not o.exact), key=lambda o: o.max_abs)
        return (
            f"confirmed: within tolerance of {verification.against} on {sets} "
            f"(largest difference {worst.max_abs:.2g} in {printable(worst.name)}){but}"
        )
    if verification.status == "in part":
        return _in_part(verification)
    if verification.status == "rewrites only":
        return "confirmed: each rewrite alone agrees with what it replaced; the whole model was not run"
    if verification.status == "failed":
        return "not confirmed" + (f": {printable(verification.detail)}" if verification.detail else "")
    return "not checked"


def confirmation_code(verification: Verification) -> str:
    """The code under which ``graphfix explain`` tells what the words of `confirmation` mean."""
    if verification.status == "confirmed":
        return "GF901" if all(output.exact for output in verification.outputs) else "GF902"
    return {"failed": "GF903", "rewrites only": "GF905", "in part": "GF906"}.get(verification.status, "GF904")


class Console:
    """Prints on the standard streams. ``quiet`` leaves only errors, ``verbose`` adds detail and shortens nothing."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False):
        self.quiet = quiet
        self.verbose = verbose
        self._out = Stream(sys.stdout)
        self._err = Stream(sys.stderr)

    def text(self, text: str) -> None:
        """Plain text on stdout, whole and unshortened."""
        self._out.write(text + "\n")
        self._out.flush()

    def styled(self, lines: Iterable[Sequence[tuple[str, str]]]) -> None:
        """Lines of styled pieces of text on stdout, whole and unshortened."""
        from rich.text import Text

        console = _rich(self._out)
        for line in lines:
            pieces = [(printable_piece(text), style) for text, style in line]
            console.print(Text.assemble(*pieces), soft_wrap=True)
        self._out.flush()

    def error(self, message: str, details: Iterable[str] = (), *, kind: str = "error: ") -> None:
        """One line on stderr, and with ``verbose`` the details below it."""
        self._err.write(f"graphfix: {kind}{printable(message)}\n")
        if self.verbose:
            for detail in details:
                self._err.write(f"  {detail}\n")
        self._err.flush()

    def progress(self) -> Progress:
        """A context manager to give to the pipeline as its callback."""
        if self.quiet:
            return Progress()
        rich = _rich(self._err)
        if rich.is_terminal and not rich.is_dumb_terminal:
            return _LiveProgress(rich)
        return _PlainProgress(self._err, every=self.verbose)

    def summary(self, report: Report, *, verify: bool = True) -> None:
        """The end of a run that succeeded. ``verify`` is False when the user asked for no check."""
        if self.quiet:
            return
        _Summary(_rich(self._out), report, verbose=self.verbose, verify=verify).print()
        self._out.flush()

    def comparison(self, verification: Verification) -> None:
        """The result of a comparison of any two models."""
        if self.quiet:
            return
        report = Report(verification=verification)
        _Summary(_rich(self._out), report, verbose=self.verbose, verify=True).print_comparison()
        self._out.flush()


class Progress:
    """Takes events; this one shows nothing."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        pass


class _PlainProgress(Progress):
    """One line as a stage begins, and one now and then when it takes long."""

    def __init__(self, stream: Stream, *, every: bool, clock: Callable[[], float] = time.monotonic):
        self._stream = stream
        self._every = every
        self._clock = clock
        self._last = ("", "")
        self._printed_at = 0.0

    def __call__(self, event: Event) -> None:
        now = self._clock()
        stage, message = self._last
        new_message = event.message != message and self._every
        long_since = now - self._printed_at >= PLAIN_INTERVAL and (event.total > 1 or event.message != message)
        if event.stage != stage or new_message or long_since:
            count = f" ({event.done} of {event.total})" if event.total > 1 and event.done else ""
            self._stream.write(f"{event.stage:{LABEL}} {printable(event.message)}{count}\n")
            self._stream.flush()
            self._last = (event.stage, event.message)
            self._printed_at = now


class _LiveProgress(Progress):
    """A spinner with the stage's message, a bar where there is something to count, and one lasting line a stage."""

    def __init__(self, console: RichConsole):
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        self._console = console
        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        busy = [SpinnerColumn("line"), text, TimeElapsedColumn()]
        self._busy = RichProgress(*busy, console=console, transient=True)
        self._counted = RichProgress(
            SpinnerColumn("line"), text, BarColumn(bar_width=20), MofNCompleteColumn(), console=console, transient=True
        )
        self._shown: RichProgress | None = None
        self._event: Event | None = None
        self._began = 0.0

    def __exit__(self, *error: object) -> None:
        self._finish(lasting=error[0] is None)

    def __call__(self, event: Event) -> None:
        if self._event is not None and self._event.stage != event.stage:
            self._finish(lasting=True)
        if self._event is None:
            self._began = time.monotonic()
        self._event = event
        display = self._counted if event.total > 1 else self._shown or self._busy
        if display is not self._shown:
            self._hide()
            display.start()
            self._shown = display
        description = f"{event.stage:{LABEL}} {printable(event.message)}"
        if not display.tasks:
            display.add_task(description)
        task = display.tasks[0].id
        display.update(task, description=description, completed=event.done, total=event.total or None)

    def _hide(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            for task in self._shown.task_ids:
                self._shown.remove_task(task)
            self._shown = None

    def _finish(self, *, lasting: bool) -> None:
        self._hide()
        if self._event is not None and lasting:
            from rich.text import Text

            seconds = time.monotonic() - self._began
            took = f"  {seconds:.1f} s" if seconds >= 0.1 else ""
            room = max(self._console.width - LABEL - 1 - len(took), 10)
            line = Text(f"{self._event.stage:{LABEL}} ", style="bold cyan")
            line.append(shorten(printable(self._event.message), room), style="default not bold")
            self._console.print(line.append(took, style="dim"), soft_wrap=True)
        self._event = None


class _Summary:
    """The lines at the end: what was replaced, what was left, sizes, and how the result was confirmed."""

    def __init__(self, console: RichConsole, report: Report, *, verbose: bool, verify: bool):
        self._console = console
        self._report = report
        self._verbose = verbose
        self._verify = verify

    def print(self) -> None:
        report = self._report
        self._replaced(report.replacements)
        if report.left:
            self._left(report.left)
        if report.target:
            self._target(report.target, report.findings)
        if report.opset_before != report.opset_after:
            because = f" ({report.opset_reason})" if report.opset_reason else ""
            self._entry("opset", f"{report.opset_before} -> {report.opset_after}{because}")
        self._entry(
            "size",
            f"{report.nodes_before} -> {report.nodes_after} nodes, "
            f"{bytes_text(report.size_before)} -> {bytes_text(report.size_after)}",
        )
        for note in report.notes:
            self._entry("note", note)
        for warning in report.warnings:
            self._entry("warning", warning, "yellow")
        self._rewrites(report.rewrites)
        if self._verbose:
            self._details()
        if report.output:
            self._entry("written", report.output)
        self._confirmed(report.verification)
        if self._verbose:
            self._entry("", f"(graphfix explain {confirmation_code(report.verification)} tells what that means)", "dim")

    def _replaced(self, replacements: Sequence[Replacement]) -> None:
        number = len(replacements)
        if not number:
            self._entry("replaced", "nothing")
            return
        self._entry("replaced", f"{number} node" + ("s" if number != 1 else ""))
        if number > MAX_ROWS and not self._verbose:
            groups = Counter((r.operator, r.lowering) for r in replacements)
            first = {key: r for r in reversed(replacements) for key in [(r.operator, r.lowering)]}
            rows = [
                [f"{count} x", operator, lowering, f"{_where(first[operator, lowering])}{', ...' if count > 1 else ''}"]
                for (operator, lowering), count in groups.most_common()
            ]
            self._table(["", "was", "now", "where"], rows, flexible=(3, 2, 1))
            return
        rows = []
        for r in replacements:
            now = f"{r.lowering}: {_emitted(r, self._verbose)}" if r.emitted else r.lowering
            rows.append([_node(r), r.output, r.operator, now, *([f"{r.code} {r.pass_name}"] if self._verbose else [])])
        self._table(["node", "output", "was", "now", *(["pass"] if self._verbose else [])], rows, flexible=(3, 0, 1, 2))

    def _left(self, left: Sequence[Left]) -> None:
        number = len(left)
        self._entry("left", f"{number} node" + ("s" if number != 1 else ""), "yellow")
        groups: dict[tuple[str, str, bool], list[Left]] = {}
        for entry in left:
            groups.setdefault((entry.operator, entry.reason, entry.asked), []).append(entry)
        if number <= MAX_ROWS or self._verbose:
            groups = {(e.operator, e.reason, e.asked, i): [e] for i, e in enumerate(left)}  # type: ignore[misc]
        for entries in groups.values():
            one = entries[0]
            more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
            asked = "" if one.asked else " (kept, the model runs with it)"
            where = _where(one) if self._verbose else shorten(printable(_where(one)), 40)
            self._paragraph(f"{one.operator} {where}{more}: {one.reason}{asked}")

    def _target(self, target: str, findings: Sequence[Finding]) -> None:
        blocking = [f for f in findings if f.blocks]
        others = [f for f in findings if not f.blocks]
        if not blocking:
            self._entry("target", f"{target}: nothing is known that it refuses or runs wrongly")
        else:
            places = len({(f.scope, f.node, f.output) for f in blocking})
            number = f"{places} place" + ("s" if places != 1 else "")
            self._entry("target", f"{target}: {number} that it is known to refuse or to run wrongly", "yellow")
        groups: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in (*blocking, *others):
            groups.setdefault((finding.kind, finding.operator, finding.reason), []).append(finding)
        for entries in groups.values():
            one = entries[0]
            more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
            where = ", ".join(map(_place, entries)) if self._verbose else shorten(printable(_place(one)), 40) + more
            self._paragraph(f"{one.kind}: {where}: {one.reason} ({one.source})")

    def _rewrites(self, checks: RewriteChecks) -> None:
        if not checks.checked and not checks.unchecked:
            return
        rounded = checks.checked - checks.exact
        same = "equal" if not rounded else f"{checks.exact} equal, {rounded} but for rounding"
        label = "rewrites"
        if checks.checked:
            self._entry(label, f"{checks.checked} checked alone on {checks.sets} input sets: {same}")
            label = ""
        if checks.unchecked and not self._verbose:
            self._entry(label, f"{len(checks.unchecked)} could not be checked alone (-v tells why)")
        for line in checks.unchecked if self._verbose else ():
            self._entry("", f"not checked alone: {line}")

    def _details(self) -> None:
        report = self._report
        self._checked(report.verification)
        self._outputs(report.verification)
        if report.stages:
            self._entry("seconds", ", ".join(f"{stage} {took:.2f}" for stage, took in report.stages.items()))
        if report.versions:
            self._entry("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))

    def print_comparison(self) -> None:
        """The lines of `graphfix verify`."""
        verification = self._report.verification
        for note in verification.notes:
            self._entry("note", note)
        for node in verification.not_run:
            self._entry("not run", node, "yellow")
        if verification.layers:
            self._entry("layers", f"{len(verification.layers)} tensors that both models have, in their order")
            rows = [
                [row[0], layer.operator, *row[1:-1], _first(row[-1]) if layer.first else row[-1]]
                for layer, row in zip(verification.layers, output_rows(verification.layers), strict=True)
            ]
            self._table(["tensor", "operator", *OUTPUT_TITLES[1:]], rows, flexible=(0, 7))
        if self._verbose:
            self._checked(verification)
        if self._verbose or any(o.problem for o in (*verification.outputs, *verification.optimised)):
            self._outputs(verification)
        style = {"confirmed": "bold green", "in part": "bold yellow"}.get(verification.status, "bold red")
        self._line(agreement(verification), style)
        if verification.agrees:
            self._reserve(verification)

    def _checked(self, verification: Verification) -> None:
        for number, line in enumerate(verification.sets):
            self._entry("checked" if number == 0 else "", line)
        for number, line in enumerate(verification.skipped):
            self._entry("skipped" if number == 0 else "", line)

    def _reserve(self, verification: Verification) -> None:
        """What is to be known about a comparison that found nothing."""
        if verification.detail:
            self._line(verification.detail, "")
        if verification.skipped and not self._verbose:
            number = len(verification.skipped)
            sets = f"{number} more input set" + ("s were" if number != 1 else " was")
            self._line(f"{sets} tried, but {verification.against} does not take such inputs (-v tells why)", "")

    def _outputs(self, verification: Verification) -> None:
        rows = output_rows(verification.outputs)
        rows += output_rows(verification.optimised, how=" (optimised)")
        if rows:
            self._entry("outputs", "")
            self._table(OUTPUT_TITLES, rows, flexible=(0, 6))

    def _confirmed(self, verification: Verification) -> None:
        text = confirmation(verification)
        if verification.status == "confirmed":
            self._line(text, "bold green")
            self._reserve(verification)
        elif verification.status == "in part":
            self._line(text, "bold yellow")
            self._reserve(verification)
        elif verification.status == "failed":
            self._line(text, "bold red")
        elif verification.status == "rewrites only":
            self._line(text, "bold green")
        elif not self._verify:
            self._line("not checked (--verify none)", "bold yellow")
        else:
            self._line("not checked: nothing was changed", "bold")

    def _entry(self, label: str, text: str, style: str = "") -> None:
        room = max(self._console.width - LABEL - 1, 30)
        for number, line in enumerate(_wrap(text, room)):
            self._line_of((f"{label if number == 0 else '':{LABEL}} ", "bold"), (line, style))

    def _paragraph(self, text: str) -> None:
        indent = " " * (LABEL + 1)
        for number, line in enumerate(_wrap(text, max(self._console.width - LABEL - 3, 28))):
            self._line_of((indent + ("  " if number else "") + line, ""))

    def _table(self, titles: Sequence[str], rows: Sequence[Sequence[str]], flexible: Sequence[int]) -> None:
        """Print rows under titles. When they are too wide, the widest of the ``flexible`` columns give way."""
        from rich.cells import cell_len, set_cell_size

        cells = [[printable(cell) for cell in row] for row in rows]
        widths = [max(cell_len(row[i]) for row in [list(titles), *cells]) for i in range(len(titles))]
        indent = " " * (LABEL + 1)
        room = self._console.width - len(indent) - 2 * (len(titles) - 1)
        while not self._verbose and sum(widths) > room:
            widest = max(flexible, key=lambda i: widths[i])
            if widths[widest] <= max(8, cell_len(titles[widest])):
                break
            widths[widest] -= 1
        for number, row in enumerate([list(titles), *cells]):
            fitted = [set_cell_size(shorten(c, max(w, 3)), w) for c, w in zip(row, widths, strict=True)]
            self._line_of((indent + "  ".join(fitted).rstrip(), "dim" if number == 0 else ""))

    def _line(self, text: str, style: str) -> None:
        for line in _wrap(text, max(self._console.width, 40)):
            self._line_of((line, style))

    def _line_of(self, *parts: tuple[str, str]) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(*parts), soft_wrap=True)


def _rich(stream: Stream) -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(
        file=cast("IO[str]", stream),
        highlight=False,
        markup=False,
        emoji=False,
        force_jupyter=False,
        legacy_windows=False,
    )


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False) or [""]


def _first(verdict: str) -> str:
    return "differs first" if verdict == "differs" else f"first: {verdict}"


def _node(item: Replacement | Left) -> str:
    return "/".join(part for part in (item.scope, item.node or "(unnamed)") if part)


def _where(item: Replacement | Left) -> str:
    return f"{_node(item)} -> {item.output}"


def _place(finding: Finding) -> str:
    """The node, the input, or the model that something is known against."""
    if not finding.operator:
        return "the model"
    name = f"{finding.node} -> {finding.output}" if finding.node else finding.output
    return f"{finding.operator} {name}"


def _emitted(replacement: Replacement, whole: bool) -> str:
    """The operators that took a node's place, or how many when they are of many kinds."""
    if len(replacement.emitted) > 3 and not whole:
        return f"{sum(replacement.emitted.values())} nodes"
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in replacement.emitted.items())
