"""The command line: parse, call the API, print. Heavy modules are imported only once the work starts."""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from graphfix.errors import GraphfixError, InputError, NotConfirmedError, UsageError

if TYPE_CHECKING:
    from graphfix.report import Report
    from graphfix.report.console import Console, Event

EPILOG = """\b
Examples:
  graphfix model.onnx fixed.onnx
  graphfix model.onnx model.onnx --opset 11     in place, for an old engine
  graphfix model.onnx fixed.onnx --input-shape image:1,3,224,224
  graphfix model.onnx fixed.onnx --inputs real.npz --report report.json
  graphfix export model.pt2 model.onnx          export from PyTorch, without loss
  graphfix verify model.onnx other.onnx         compare any two models
  graphfix scan src/                            find index writes in Python source
  graphfix passes                               list the passes
  graphfix targets                              list the engines for --target
  graphfix explain aten-index-put               what a pass does, and why
  graphfix explain model.onnx                   what made an exported model

\b
Exit codes:
  0  written, and confirmed unless it was not checked
  1  not confirmed, or it cannot be done; nothing written
  2  bad usage, or an input or output that cannot be read or written
  3  as 0, but nodes remain that were asked to go, or that the target is known to refuse or to run wrongly
"""

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Bytes(click.ParamType):
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", value.strip().casefold())
        if match is None:
            self.fail(f"{value!r} is no size; write 64M, 1.5G or a number of bytes", param, ctx)
        return int(float(match[1]) * UNITS[match[2]])


class Whole(click.ParamType):
    """A whole number, zero or more."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not value.isdecimal() or not value.isascii():
            self.fail(f"{value!r} is not a number (0 or more)", param, ctx)
        return int(value)


class Opset(click.ParamType):
    """An opset number or "keep"."""

    name = "opset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or value == "keep":
            return value
        if not value.isdecimal() or not value.isascii():
            self.fail(f"{value!r} is neither a number nor 'keep'", param, ctx)
        return int(value)


class NamedShape(click.ParamType):
    """NAME:1,3,224,224. The name may hold colons, the shape may be empty (a scalar)."""

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        name, colon, sizes = value.rpartition(":")
        parts = [part.strip() for part in sizes.split(",")] if sizes.strip() else []
        if not colon or not name or not all(part.isdecimal() and part.isascii() for part in parts):
            self.fail(f"{value!r} does not have the form NAME:1,3,224,224", param, ctx)
        return name, tuple(int(part) for part in parts)


class NamedRange(click.ParamType):
    """NAME:LO:HI, both ends inclusive. The name may hold colons."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[float, float]]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(.+):([^:]+):([^:]+)", value)
        try:
            name, low, high = match[1], _number(match[2]), _number(match[3])  # type: ignore[index]
        except (TypeError, ValueError):
            self.fail(f"{value!r} does not have the form NAME:LO:HI", param, ctx)
        return name, (low, high)


def _number(text: str) -> float:
    """An int when it is written as one."""
    return int(text) if re.fullmatch(r"\s*[-+]?\d+\s*", text) else float(text)


def once(option: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The values of an option that is given once for every name."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{option} is given twice for {twice!r}")
    return dict(pairs)


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# What the commands that write a model share.
tolerance_options = _together(
    click.option("--rtol", type=float, metavar="X", help="Relative tolerance of the check."),
    click.option("--atol", type=float, metavar="X", help="Absolute tolerance of the check."),
    click.option("--no-simplify", is_flag=True, help="Do not run onnxsim on the result."),
)
outcome_options = _together(
    click.option(
        "--target",
        metavar="NAME",
        help="Engine that the result is for: gives it an opset that this takes, and tells what it refuses "
        "(`graphfix targets` lists them).",
    ),
    click.option(
        "--budget", type=Bytes(), metavar="BYTES", help="Largest new intermediate that a rewrite may make, as in 256M."
    ),
    click.option("--keep-failed", metavar="FILE", help="Where to write a model that is not confirmed, for study."),
    click.option("--report", metavar="FILE.json", help="Write what was done as JSON; also when it fails."),
    click.option("--strict", is_flag=True, help="Exit with 3 for nodes that were kept on purpose, too."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors."),
    click.option("-v", "--verbose", is_flag=True, help="Print more: every node, the input sets, causes of errors."),
)


@click.command(
    "graphfix", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.argument("source", metavar="IN")
@click.argument("output", metavar="OUT")
@click.option("--only", multiple=True, metavar="PASS", help="Run only this pass (name or code). May be repeated.")
@click.option("--skip", multiple=True, metavar="PASS", help="Do not run this pass. May be repeated.")
@click.option(
    "--repair",
    multiple=True,
    metavar="NAME|all",
    help="Repair this fault of the exporter, which changes results: lost-accumulate, mask-alignment, mask-column, "
    "reshape-broadcast. May be repeated.",
)
@click.option("--opset", type=Opset(), metavar="N|keep", help="Convert to opset N, or forbid any change of opset.")
@click.option(
    "--input-shape",
    "input_shapes",
    type=NamedShape(),
    multiple=True,
    metavar="NAME:SHAPE",
    help="Check with this shape, as in image:1,3,224,224. May be repeated.",
)
@click.option("--inputs", metavar="FILE.npz", help="Check with these inputs: arrays <input> or <set>/<input>.")
@click.option(
    "--input-range",
    "input_ranges",
    type=NamedRange(),
    multiple=True,
    metavar="NAME:LO:HI",
    help="Check with values from LO to HI, both included, as in tokens:0:29999. May be repeated.",
)
@click.option("--seed", type=Whole(), default=0, metavar="N", help="Check with other random values.")
@click.option(
    "--custom-ops",
    multiple=True,
    metavar="LIB.so",
    help="Library of custom operators for ONNX Runtime, to check with. May be repeated.",
)
@click.option("--memory-limit", type=Bytes(), metavar="BYTES", help="Most memory that a run of the check may take.")
@tolerance_options
@click.option(
    "--verify",
    type=click.Choice(["all", "rewrites", "model", "none"]),
    default="all",
    show_default=True,
    help="How to confirm the result: each rewrite alone, the whole model, both, or not at all.",
)
@outcome_options
@click.version_option(package_name="graphfix", prog_name="graphfix", message="%(prog)s %(version)s")
def fix_command(**options: Any) -> int:
    """Replace index writes that engines refuse in the ONNX model IN (ATen nodes of PyTorch exports and the like) by
    standard operators, confirm that the result gives the same answers, and write it to OUT.

    OUT may be IN: it is replaced whole or not at all. A model called passes, explain, export, scan, targets or verify
    is ./passes and so on.
    """
    if options["quiet"] and options["verbose"]:
        raise click.UsageError("--quiet and --verbose exclude each other")
    if "-" in (options["source"], options["output"]):
        raise click.UsageError("models are read and written as files only: a file called - is ./-")
    options["input_shapes"] = once("--input-shape", options["input_shapes"])
    options["input_ranges"] = once("--input-range", options["input_ranges"])
    return _Run(**options).run()


@click.command("passes", context_settings={"help_option_names": ["-h", "--help"]})
def passes_command() -> int:
    """List the passes: code, name, how safe it is, what it does."""
    from graphfix.api import load_passes
    from graphfix.explain import pass_table

    _console().text(pass_table(load_passes()))
    return 0


@click.command("targets", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[NAME]", required=False)
def targets_command(name: str | None) -> int:
    """List the engines for --target: name, version, opsets, number of rules; or the rules of one, and their sources."""
    from graphfix.targets.listing import target_rules, target_table

    _console().text(target_table() if name is None else target_rules(name))
    return 0


@click.command("explain", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("code", metavar="CODE|FILE.onnx")
def explain_command(code: str) -> int:
    """Explain a pass, by code or name, a verification code (GF9xx), or a form of write that a scan found (GS101); or
    print what made an exported FILE.onnx."""
    from graphfix.explain import explain

    _console().text(explain(code))
    return 0


COMMANDS = {"passes": passes_command, "targets": targets_command, "explain": explain_command}
# Commands of modules that import this one.
LATE = {
    "verify": ("graphfix.cli_verify", "verify_command"),
    "scan": ("graphfix.cli_scan", "scan_command"),
    "export": ("graphfix.cli_export", "export_command"),
}
WORDS = (*COMMANDS, *LATE)


def main() -> None:
    """The command ``graphfix``."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: without this, the output could become the file that libraries print warnings to
            os.open(os.devnull, os.O_RDWR)
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what there was to do is done, and the exit code is known
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Errors are one line on stderr."""
    arguments = list(arguments)
    command: click.Command = fix_command
    name = "graphfix"
    if arguments and arguments[0] in LATE:
        module, attribute = LATE[arguments[0]]
        command, name = getattr(importlib.import_module(module), attribute), f"graphfix {arguments[0]}"
        arguments = arguments[1:]
    elif arguments and arguments[0] in COMMANDS:
        command, name = COMMANDS[arguments[0]], f"graphfix {arguments[0]}"
        arguments = arguments[1:]
    elif not arguments:
        click.echo(fix_command.get_help(fix_command.make_context(name, [], resilient_parsing=True)), err=True)
        return UsageError.exit_code
    try:
        with command.make_context(name, arguments) as context:
            return int(command.invoke(context))
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        word = name.split()[-1]
        hint = f"; a model file of that name is ./{word}" if word in WORDS and os.path.isfile(word) else ""
        _console().error(f"{message[:1].lower()}{message[1:]}{hint} (see {name} --help)")
        return UsageError.exit_code
    except KeyboardInterrupt:
        _console().error("interrupted, nothing written", kind="")
        return 130
    except Exception as error:
        return _failed(_console(), error)


class _Run:
    """One `graphfix IN OUT`."""

    def __init__(self, *, source: str, output: str, report: str | None, quiet: bool, verbose: bool, **options: Any):
        self.source = source
        self.output = output
        self.report_path = report
        self.console = _console(quiet=quiet, verbose=verbose)
        self.options = options
        self.before = _stamp(output)
        self.interruption = _Interruption()

    def run(self) -> int:
        """Do it, and return the exit code."""
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # of the libraries below: nothing that the user could act on
        with self.interruption:
            try:
                return self._run()
            except KeyboardInterrupt:
                done = "nothing written" if _stamp(self.output) == self.before else f"after {self.output} was written"
                self.console.error(f"interrupted, {done}", kind="")
                return 128 + self.interruption.signal

    def _run(self) -> int:
        try:
            if self.report_path is not None:
                _check_report_path(self.report_path, self.source, self.output)
        except GraphfixError as error:
            return _failed(self.console, error)
        try:
            report, ok = self._fix()
        except Exception as error:
            self.interruption.check()
            code = _failed(self.console, error)
            partial = getattr(error, "report", None)
            self._write_report(partial, code, error)
            return code
        code = 0 if ok else 3
        written = self._write_report(report, code, None)
        self.console.summary(report, verify=self.options["verify"] != "none")
        return code if written else InputError.exit_code

    def _fix(self) -> tuple[Report, bool]:
        from graphfix.api import fix

        options = self.options
        with self.console.progress() as show:

            def progress(event: Event) -> None:
                self.interruption.check()
                show(event)

            result = fix(
                self.source,
                self.output,
                only=options["only"],
                skip=options["skip"],
                opset=options["opset"],
                input_shapes=options["input_shapes"],
                inputs=options["inputs"],
                rtol=options["rtol"],
                atol=options["atol"],
                simplify=not options["no_simplify"],
                verify=options["verify"],
                budget=options["budget"],
                strict=options["strict"],
                target=options["target"],
                repair=options["repair"],
                input_ranges=options["input_ranges"],
                seed=options["seed"],
                custom_ops=options["custom_ops"],
                memory_limit=options["memory_limit"],
                keep_failed=options["keep_failed"],
                progress=progress,
            )
        return result.report, result.ok

    def _write_report(self, report: Report | None, code: int, error: Exception | None) -> bool:
        """Write the JSON report, with the error of a run that failed. Returns whether that went well."""
        if self.report_path is None:
            return True
        from graphfix.report import Report

        report = report or Report()
        report.input = report.input or self.source
        content = json.loads(report.to_json())
        content["exit_code"] = code
        content["error"] = None if error is None else {"type": type(error).__name__, "message": _one_line(error)}
        try:
            _write_whole(self.report_path, json.dumps(content, indent=2) + "\n")
        except OSError as problem:
            done = f"{self.output} is written, but the report" if error is None else "the report"
            self.console.error(f"{done} cannot be written to {self.report_path}: {problem.strerror or problem}")
            return False
        return True


class _Interruption:
    """Ctrl-C, and a request to end, raise KeyboardInterrupt once; what follows at once must not break the clean-up.

    Libraries may lose the exception (an extension module that was being imported raises ImportError in its place), so
    `check` raises it again.
    """

    def __init__(self) -> None:
        self.signal = int(signal.SIGINT)
        self.requested = False
        self._raised_at = float("-inf")
        self._previous: dict[int, Any] = {}
        self._unraisable = sys.unraisablehook

    def check(self) -> None:
        """Raise KeyboardInterrupt when there was an interruption."""
        if self.requested:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # An ignored signal stays ignored: that is how nohup and background jobs of a shell start us.
            if number is None or signal.getsignal(number) in (signal.SIG_IGN, None):
                continue
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the program that runs us has the signals
                break

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._unraisable

    def _lost(self, lost: Any) -> None:
        """An exception where none can be raised (a callback of the import system, say). `check` raises ours again."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._unraisable(lost)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        now = time.monotonic()
        if now - self._raised_at > 1.0:
            self._raised_at = now
            self.signal = number
            raise KeyboardInterrupt


def _console(*, quiet: bool = False, verbose: bool = False) -> Console:
    from graphfix.report.console import Console

    return Console(quiet=quiet, verbose=verbose)


def _failed(console: Console, error: Exception) -> int:
    """Tell an error, and return its exit code."""
    if isinstance(error, GraphfixError):
        more = ["graphfix explain GF903 tells what may help"] if isinstance(error, NotConfirmedError) else []
        console.error(_one_line(error), _causes(error) + more)
        return error.exit_code
    trace = "".join(traceback.format_exception(error)).rstrip().splitlines()
    if isinstance(error, MemoryError):
        console.error("out of memory, nothing written; a smaller --budget or --verify none needs less", trace)
    elif isinstance(error, OSError) and error.errno is not None:
        where = f": {error.filename}" if error.filename else ""
        console.error(f"{error.strerror or type(error).__name__}{where}; nothing written", trace)
    else:
        hint = "this is a bug" if console.verbose else "this is a bug; run with -v for the traceback"
        console.error(f"{type(error).__name__}: {_one_line(error)} ({hint})", trace, kind="internal error: ")
    return 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _causes(error: BaseException) -> list[str]:
    causes = []
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        causes.append(f"caused by {type(cause).__name__}: {_one_line(cause)}")
        cause = cause.__cause__ or cause.__context__
    return causes


def _stamp(path: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced; None when there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_report_path(path: str, source: str, output: str) -> None:
    """Raises before the work starts when the report could not be written after it."""
    folder = Path(path).parent
    real = os.path.realpath(path)
    if real in (os.path.realpath(source), os.path.realpath(output)):
        raise UsageError(f"--report {path}: that is the model; give the report a path of its own")
    if not folder.is_dir():
        raise UsageError(f"--report {path}: there is no folder {folder}; create it first")
    if os.path.isdir(path):
        raise UsageError(f"--report {path}: is a folder; give the path of a file")
    if not os.access(path if _special(path) else folder, os.W_OK):
        raise UsageError(f"--report {path}: no permission to write there")


def _special(path: str) -> bool:
    """Whether the path is there and no regular file, as /dev/stdout and named pipes."""
    return os.path.exists(path) and not os.path.isfile(path)


def _write_whole(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    if _special(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    target = os.path.realpath(path)
    temporary = f"{os.path.dirname(target)}/.graphfix-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        if os.path.exists(target):
            os.chmod(temporary, os.stat(target).st_mode & 0o777)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
