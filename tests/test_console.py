"""What a person sees: the words of the summary, plain output without a terminal, long and hostile names."""

from __future__ import annotations

import io
import re

import pytest
from fake_engine import Event, left, replacement, report

from graphfix.explain import VERIFICATION
from graphfix.report import OutputComparison, Report, Verification
from graphfix.report.console import (
    Console,
    Stream,
    _PlainProgress,
    bytes_text,
    confirmation,
    confirmation_code,
    printable,
    shorten,
)

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def summary(found: Report, capsys: pytest.CaptureFixture[str], *, verify: bool = True, **options: bool) -> str:
    Console(**options).summary(found, verify=verify)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not ANSI.search(captured.out)
    return captured.out


def test_summary_tells_what_was_replaced_by_what_and_where(capsys) -> None:
    lines = [line.split() for line in summary(report(output="fixed.onnx"), capsys).splitlines()]
    assert lines == [
        ["replaced", "1", "node"],
        ["node", "output", "was", "now"],
        ["write_0", "y0", "aten::index_put", "mask_where:", "Unsqueeze,", "Where"],
        ["size", "3", "->", "2", "nodes,", "272", "B", "->", "1.4", "KiB"],
        ["written", "fixed.onnx"],
        ["confirmed:", "equal", "to", "the", "input", "model", "on", "2", "input", "sets"],
    ]


def test_summary_of_all_else(capsys) -> None:
    found = report(
        opset_before=9,
        opset_after=11,
        opset_reason="Range needs it",
        left=[left(), left(1, asked=False, operator="ScatterND", reason="kept")],
        notes=["a note"],
        warnings=["a warning"],
    )
    out = " ".join(summary(found, capsys).split())
    assert "left 2 nodes aten::index_put kept_0 -> k0: the largest new intermediate" in out
    assert "ScatterND kept_1 -> k1: kept (kept, the model runs with it)" in out
    assert "opset 9 -> 11 (Range needs it)" in out
    assert "note a note" in out
    assert "warning a warning" in out


def test_what_took_a_nodes_place(capsys) -> None:
    few = replacement(emitted={"Slice": 2, "Concat": 1})
    many = replacement(1, lowering="points_runtime", emitted={"Equal": 1, "Where": 3, "Gather": 1, "Concat": 1})
    found = report(replacements=[few, many])
    out = summary(found, capsys)
    assert "mask_where: 2 Slice, Concat\n" in out
    assert "points_runtime: 6 nodes\n" in out
    assert "points_runtime: Equal, 3 Where, Gather, Concat " in summary(found, capsys, verbose=True)


def test_many_rows_are_grouped_and_verbose_shows_all(capsys) -> None:
    found = report(
        replacements=[replacement(i) for i in range(20)]
        + [replacement(99, operator="aten::masked_scatter", lowering="mask_packed")],
        left=[left(i) for i in range(15)],
    )
    out = summary(found, capsys)
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert rows[0] == "replaced 21 nodes"
    assert "20 x aten::index_put mask_where write_0 -> y0, ..." in rows
    assert "1 x aten::masked_scatter mask_packed write_99 -> y99" in rows
    assert "and 14 more" in out
    everything = summary(found, capsys, verbose=True)
    assert all(f"write_{i} " in everything for i in range(20))
    assert all(f"kept_{i} " in everything for i in range(15))


@pytest.mark.parametrize("columns", ["80", "60"])
def test_long_names_are_shortened_in_the_middle(capsys, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "/model/backbone/" + "stage/" * 20 + "ATen_7"
    found = report(
        replacements=[replacement(node=name, output=name + "_out", scope="If_3.then_branch")],
        left=[left(node=name, output=name)],
        warnings=["word " * 60],
    )
    out = summary(found, capsys)
    assert all(len(line) <= int(columns) for line in out.splitlines())
    node, output = out.splitlines()[2].split()[:2]
    assert re.fullmatch(r"If_3.*\.\..*_7", node)
    assert re.fullmatch(r"/mod.*\.\..*out", output)
    assert name in summary(found, capsys, verbose=True)


def test_hostile_names_are_escaped(capsys) -> None:
    found = report(replacements=[replacement(node="a\x1b[31mb\nc", output="[red]d[/red]\u202e")])
    out = summary(found, capsys)
    assert r"a\x1b[31mb c" in out
    assert r"[red]d[/red]\u202e" in out


@pytest.mark.parametrize(
    ("verification", "words"),
    [
        (Verification("confirmed", sets=["a"]), "confirmed: equal to the input model on 1 input set"),
        (Verification("confirmed", sets=["a", "b"]), "confirmed: equal to the input model on 2 input sets"),
        (
            Verification(
                "confirmed",
                sets=["a", "b", "c"],
                outputs=[
                    OutputComparison("p", "float32", 0.0, 0.0, True),
                    OutputComparison("q", "float32", 1.25e-7, 1e-6, False),
                    OutputComparison("r", "float32", 1e-9, 1e-8, False),
                ],
            ),
            "confirmed: within tolerance of the input model on 3 input sets (largest difference 1.2e-07 in q)",
        ),
        (Verification("failed", detail="output y differs"), "not confirmed: output y differs"),
        (Verification("not run"), "not checked"),
    ],
)
def test_words_of_confirmation(verification: Verification, words: str) -> None:
    assert confirmation(verification) == words


def test_every_outcome_has_a_code() -> None:
    inexact = [OutputComparison("q", "float32", 1.25e-7, 1e-6, False)]
    outcomes = [
        Verification("confirmed"),
        Verification("confirmed", outputs=inexact),
        Verification("failed"),
        Verification("not run"),
        Verification("rewrites only"),
        Verification("in part"),
    ]
    codes = ["GF901", "GF902", "GF903", "GF904", "GF905", "GF906"]
    assert [confirmation_code(v) for v in outcomes] == list(VERIFICATION) == codes


def test_nothing_checked(capsys) -> None:
    found = report(verification=Verification("not run"))
    assert summary(found, capsys, verify=False).endswith("not checked (--verify none)\n")
    found = report(replacements=[], verification=Verification("not run"))
    out = summary(found, capsys)
    assert out.startswith("replaced   nothing\n")
    assert out.endswith("not checked: nothing was changed\n")


def test_skipped_sets_are_told(capsys) -> None:
    checked = Verification("confirmed", sets=["x [1, 8]"], skipped=["x [2, 8]: index out of range"])
    assert "1 more input set was tried" in summary(report(verification=checked), capsys)
    assert "x [2, 8]: index out of range" in summary(report(verification=checked), capsys, verbose=True)


def test_plain_progress_is_one_line_a_stage() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = _PlainProgress(Stream(stream), every=False, clock=lambda: now[0])
    for event, seconds in [
        (Event("load", "reading"), 0.1),
        (Event("passes", "one"), 0.1),
        (Event("passes", "two"), 0.1),
        (Event("verify", "comparing", 0, 4), 3),
        (Event("verify", "comparing", 1, 4), 3),
        (Event("verify", "comparing", 2, 4), 3),
        (Event("verify", "comparing", 3, 4), 3),
    ]:
        progress(event)
        now[0] += seconds
    assert stream.getvalue().splitlines() == [
        "load       reading",
        "passes     one",
        "verify     comparing",
        "verify     comparing (2 of 4)",
    ]


def test_a_terminal_gets_one_lasting_line_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Console().progress() as progress:
        progress(Event("load", "reading"))
        progress(Event("passes", "replacing [bold]nodes[/bold] " + "x" * 200))
        progress(Event("verify", "comparing", 1, 2))
        progress(Event("verify", "compared", 2, 2))
    shown = terminal.getvalue()
    assert ANSI.search(shown)
    lasting = [line for line in ANSI.sub("", shown.replace("\r", "\n")).split("\n") if line.strip()]
    for text in ("load       reading", "verify     compared"):
        assert any(line.startswith(text) for line in lasting)
    assert "[bold]nodes[/bold]" in ANSI.sub("", shown)
    assert "2/2" in ANSI.sub("", shown)


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    Console().summary(report())
    colours = [code for code in re.findall(r"\x1b\[([0-9;]*)m", terminal.getvalue()) if re.search(r"\b[349]\d", code)]
    assert colours == []


def test_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Console().progress() as progress:
        progress(Event("load", "reading"))
    assert terminal.getvalue() == "load       reading\n"


def test_an_encoding_without_the_character() -> None:
    raw = io.BytesIO()
    ascii_stream = io.TextIOWrapper(raw, encoding="ascii")
    Stream(ascii_stream).write("größer\udcff\n")
    ascii_stream.flush()
    assert raw.getvalue() == rb"gr\xf6\xdfer\udcff" + b"\n"


def test_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    console = Console()
    console.error("nobody hears it")
    console.summary(report())
    with console.progress() as progress:
        progress(Event("load", "reading"))


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3072.0 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("abcdefgh", 8, "abcdefgh"),
        ("abcdefghij", 8, "abc..hij"),
        ("abcdefghij", 7, "abc..ij"),
        ("abcdefghij", 3, "a.."),
        ("日本語日本語", 8, "日本..語"),
    ],
)
def test_shorten(text: str, width: int, short: str) -> None:
    assert shorten(text, width) == short


def test_printable() -> None:
    assert printable("a\tb\n  c\x07é") == r"a b c\x07é"
