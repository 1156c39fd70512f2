"""The command ``graphfix scan``: find index writes in Python source."""

from __future__ import annotations

import click

from graphfix.cli import _console, _failed, _write_whole
from graphfix.errors import InputError

EPILOG = """\b
Examples:
  graphfix scan model.py
  graphfix scan src/ --sure                    only what is surely a tensor
  graphfix scan src/ --format sarif -o scan.sarif
  graphfix explain GS101                       what was measured, and what to write instead

\b
A comment `# graphfix: ignore[GS101]` on a line of the statement silences it.

\b
Exit codes:
  0  no index writes
  1  index writes
  2  bad usage, or a file that cannot be read
"""


@click.command(
    "graphfix scan",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("paths", metavar="FILE_OR_FOLDER...", nargs=-1, required=True)
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@click.option("--sure", is_flag=True, help="Only what is surely a write into a tensor.")
@click.option("--select", multiple=True, metavar="CODE", help="Only this form, as GS101 or GS1. May be repeated.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Not this form. May be repeated.")
@click.option("-v", "--verbose", is_flag=True, help="Show all ways to write it instead, at each place.")
def scan_command(
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    sure: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    verbose: bool,
) -> int:
    """Find the index writes in Python source, and say for each what PyTorch's two ONNX exporters make of it and what to
    write instead. Nothing is run or imported.

    A write is listed as "sure", or as "maybe" with what it rests on ("if x is a tensor").
    """
    from graphfix.scanning import scan
    from graphfix.scanning.codes import CODES

    for option, given in (("--select", select), ("--ignore", ignore)):
        for code in given:
            if not any(known.startswith(code.upper()) for known in CODES):
                raise click.UsageError(f"{option} {code}: there is no such code; known: {', '.join(CODES)}")
    console = _console(verbose=verbose)
    try:
        report = scan(paths)
        chosen, unwanted = tuple(map(str.upper, select)) or ("GS",), tuple(map(str.upper, ignore))
        report.findings = [
            finding
            for finding in report.findings
            if finding.code.startswith(chosen)
            and not finding.code.startswith(unwanted)
            and (finding.certainty == "sure" or not sure)
        ]
        if form != "text":
            text = report.to_json() if form == "json" else report.to_sarif()
        else:
            from graphfix.scanning.text import lines

            shown = list(lines(report, verbose=verbose))
            if output is None:
                console.styled(shown)
                return report.exit_code
            text = "".join("".join(piece for piece, _ in line) + "\n" for line in shown)
        if output is None:
            console.text(text.rstrip("\n"))
        else:
            try:
                _write_whole(output, text)
            except OSError as error:
                raise InputError(f"cannot be written to {output}: {error.strerror or error}") from error
    except Exception as error:
        return _failed(console, error)
    return report.exit_code
