"""The command ``graphfix verify``: compare any two models."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import TYPE_CHECKING, Any

import click

from graphfix.cli import (
    Bytes,
    NamedRange,
    NamedShape,
    Whole,
    _check_report_path,
    _console,
    _failed,
    _Interruption,
    _one_line,
    _write_whole,
    once,
)
from graphfix.errors import GraphfixError, InputError

if TYPE_CHECKING:
    from graphfix.report import Verification

EPILOG = """\b
Examples:
  graphfix verify model.onnx simplified.onnx
  graphfix verify model.onnx int8.onnx --rtol 0.05 --atol 0.1 --inputs real.npz
  graphfix verify model.onnx other.onnx --layers
  graphfix verify model.onnx --inputs in.npz --expected out.npz

\b
Exit codes:
  0  they agree
  1  they differ, or one of them could not be run
  2  bad usage, a file that cannot be read, or models whose inputs or outputs are not alike
"""


@click.command(
    "graphfix verify",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("models", metavar="[REFERENCE] CANDIDATE", nargs=-1, required=True)
@click.option(
    "--expected",
    metavar="OUT.npz",
    help="Recorded outputs in the place of REFERENCE: arrays <output>, or <set>/out/<output>.",
)
@click.option("--inputs", metavar="FILE.npz", help="Compare on these inputs: arrays <input> or <set>/<input>.")
@click.option(
    "--input-shape",
    "input_shapes",
    type=NamedShape(),
    multiple=True,
    metavar="NAME:SHAPE",
    help="Compare at this shape, as in image:1,3,224,224. May be repeated.",
)
@click.option(
    "--input-range",
    "input_ranges",
    type=NamedRange(),
    multiple=True,
    metavar="NAME:LO:HI",
    help="Compare on values from LO to HI, both included, as in tokens:0:29999. May be repeated.",
)
@click.option("--seed", type=Whole(), default=0, metavar="N", help="Compare on other random values.")
@click.option("--rtol", type=float, metavar="X", help="Relative tolerance.")
@click.option("--atol", type=float, metavar="X", help="Absolute tolerance.")
@click.option(
    "--custom-ops", multiple=True, metavar="LIB.so", help="Library of custom operators for ONNX Runtime. Repeatable."
)
@click.option("--memory-limit", type=Bytes(), metavar="BYTES", help="Most memory that a run may take, as in 4G.")
@click.option("--layers", is_flag=True, help="Compare the intermediate tensors that both models have, too.")
@click.option("--report", metavar="FILE.json", help="Write the comparison as JSON; also when the models differ.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors; the exit code tells the result.")
@click.option("-v", "--verbose", is_flag=True, help="Print more: the figures of every output, the input sets.")
def verify_command(models: tuple[str, ...], report: str | None, quiet: bool, verbose: bool, **options: Any) -> int:
    """Run the ONNX models REFERENCE and CANDIDATE on the same inputs, and compare all outputs.

    Inputs and outputs are paired by name, or by order where the names differ. With --expected, recorded outputs take
    the place of REFERENCE.
    """
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    wanted = 2 if options["expected"] is None else 1
    if len(models) != wanted:
        what = "REFERENCE and CANDIDATE" if wanted == 2 else "CANDIDATE alone with --expected"
        raise click.UsageError(f"give {what}: {len(models)} model{'s were' if len(models) != 1 else ' was'} given")
    options["input_shapes"] = once("--input-shape", options["input_shapes"])
    options["input_ranges"] = once("--input-range", options["input_ranges"])
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of the libraries below: nothing that the user could act on
    reference, candidate = (None, models[0]) if wanted == 1 else models
    return _Run(reference, candidate, report, options, quiet=quiet, verbose=verbose).run()


class _Run:
    """One `graphfix verify`."""

    def __init__(
        self,
        reference: str | None,
        candidate: str,
        report_path: str | None,
        options: dict[str, Any],
        *,
        quiet: bool,
        verbose: bool,
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self.report_path = report_path
        self.options = options
        self.console = _console(quiet=quiet, verbose=verbose)
        self.interruption = _Interruption()

    def run(self) -> int:
        """Do it, and return the exit code."""
        with self.interruption:
            try:
                return self._run()
            except KeyboardInterrupt:
                self.console.error("interrupted", kind="")
                return 128 + self.interruption.signal

    def _run(self) -> int:
        try:
            if self.report_path is not None:
                _check_report_path(self.report_path, self.candidate, self.reference or self.candidate)
            result = self._compare()
        except Exception as error:
            self.interruption.check()
            code = _failed(self.console, error)
            if not isinstance(error, GraphfixError) or self._may_write():
                self._write_report(None, code, error)
            return code
        code = 0 if result.agrees else 1
        written = self._write_report(result, code, None)
        self.console.comparison(result)
        return code if written else InputError.exit_code

    def _compare(self) -> Verification:
        from graphfix.api import verify
        from graphfix.pipeline import Event

        against = self.reference or "the recorded outputs"
        with self.console.progress() as show:

            def progress(done: int, total: int) -> None:
                self.interruption.check()
                show(Event("verify", f"comparing with {against}", done, total))

            show(Event("load", "reading the models"))
            return verify(self.reference, self.candidate, progress=progress, **self.options)

    def _may_write(self) -> bool:
        """Whether the report's path is fit for a report."""
        try:
            if self.report_path is not None:
                _check_report_path(self.report_path, self.candidate, self.reference or self.candidate)
        except GraphfixError:
            return False
        return True

    def _write_report(self, result: Verification | None, code: int, error: Exception | None) -> bool:
        """Write the JSON report. Returns whether that went well."""
        if self.report_path is None:
            return True
        from graphfix.report import as_json

        content = {
            "format": 1,
            "reference": self.reference,
            "candidate": self.candidate,
            "expected": self.options["expected"],
            "verification": None if result is None else dataclasses.asdict(result),
            "exit_code": code,
            "error": None if error is None else {"type": type(error).__name__, "message": _one_line(error)},
        }
        try:
            _write_whole(self.report_path, as_json(content))
        except OSError as problem:
            self.console.error(f"the report cannot be written to {self.report_path}: {problem.strerror or problem}")
            return False
        return True
