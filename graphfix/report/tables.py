"""The tables of a comparison: titles and rows of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from graphfix.report import OutputComparison

OUTPUT_TITLES = ("output", "dtype", "max abs", "max rel", "ULP", "differ", "max at", "")


def output_rows(outputs: Iterable[OutputComparison], *, how: str = "") -> list[list[str]]:
    """A row for every output, under OUTPUT_TITLES. ``how`` is put behind its name."""
    return [[output.name + how, output.dtype, *_figures(output)] for output in outputs]


def _figures(output: OutputComparison) -> list[str]:
    if output.problem and not output.differing:  # of another dtype, shape or length: there are no figures
        return ["", "", "", "", "", output.problem]
    return [
        number(output.max_abs),
        number(output.max_rel),
        number(output.max_ulp),
        percent(output.share),
        place(output.largest_at),
        "differs" if output.problem else "equal" if output.exact else "close",
    ]


def number(value: float) -> str:
    """A figure in few digits; whole numbers in full up to a million."""
    if math.isinf(value):
        return "inf"
    return str(int(value)) if value == int(value) and value < 1e6 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share as a percentage that says 0 and 100 only when it is that."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return "<0.01%" if share < 1e-4 else ">99.99%" if share > 0.9999 else f"{share:.2%}"


def place(at: Sequence[int] | None) -> str:
    """An index: [0, 3]."""
    return "" if at is None else f"[{', '.join(map(str, at))}]"


def plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of plain text."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [titles, *rows]]
