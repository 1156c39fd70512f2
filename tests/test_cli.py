"""The command line: exit codes, one-line errors, the JSON report, and what an interruption leaves behind."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from fake_engine import FakeEngine, engine, left, report

import graphfix
from graphfix import cli
from graphfix.report import Verification

__all__ = ["engine"]  # a fixture

SCRIPT = Path(sys.executable).parent / "graphfix"


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """The installed command, in a process group of its own."""
    return subprocess.Popen(
        [str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )


def error_line(capfd: pytest.CaptureFixture[str]) -> str:
    """The one error line, which comes last on stderr; nothing may be on stdout."""
    captured = capfd.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[-1].startswith("graphfix: ")
    assert not any(line.startswith("graphfix: ") for line in lines[:-1])
    assert "Traceback" not in captured.err
    return lines[-1]


# ------------------------------------------------------------------------------------------------------- exit codes


def test_success_is_0(engine: FakeEngine, models: Path, capfd) -> None:
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 0
    captured = capfd.readouterr()
    assert (models / "out.onnx").exists()
    assert "confirmed: equal to the input model on 2 input sets" in captured.out
    assert [line.split()[0] for line in captured.err.splitlines()] == ["load", "passes", "verify", "save"]


def test_quiet_prints_nothing(engine: FakeEngine, models: Path, capfd) -> None:
    engine.report = report(warnings=["a warning"])
    assert run(models / "mask_rows.onnx", models / "out.onnx", "-q") == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("asked", "strict", "code"), [(True, False, 3), (True, True, 3), (False, False, 0), (False, True, 3)]
)
def test_nodes_left(engine: FakeEngine, models: Path, asked: bool, strict: bool, code: int, capfd) -> None:
    engine.report = report(left=[left(asked=asked)])
    flags = ["--strict"] if strict else []
    assert run(models / "mask_rows.onnx", models / "out.onnx", *flags) == code
    assert (models / "out.onnx").exists()
    assert "more than the budget" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (graphfix.InputError, 2),
        (graphfix.UsageError, 2),
        (graphfix.LossyExportError, 1),
        (graphfix.UnsupportedError, 1),
        (graphfix.NotConfirmedError, 1),
    ],
)
def test_errors_have_their_exit_codes(engine: FakeEngine, models: Path, kind, code: int, capfd) -> None:
    def fail(options, progress) -> None:
        raise kind("node a\n  and b") from ValueError("the cause")

    engine.act = fail
    assert run(models / "mask_rows.onnx", models / "out.onnx") == code
    assert error_line(capfd) == "graphfix: error: node a and b"
    assert not (models / "out.onnx").exists()
    assert run(models / "mask_rows.onnx", models / "out.onnx", "-v") == code
    assert "  caused by ValueError: the cause" in capfd.readouterr().err.splitlines()


def test_a_bug_is_one_line_and_verbose_tells_where(engine: FakeEngine, models: Path, capfd) -> None:
    def fail(options, progress) -> None:
        raise TypeError("oh no")

    engine.act = fail
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 1
    expected = "graphfix: internal error: TypeError: oh no (this is a bug; run with -v for the traceback)"
    assert error_line(capfd) == expected
    assert run(models / "mask_rows.onnx", models / "out.onnx", "-v") == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/scratch/x"), "No space left on device: /scratch/x"),
        (MemoryError(), "out of memory"),
    ],
)
def test_a_machine_that_runs_out(engine: FakeEngine, models: Path, error, message: str, capfd) -> None:
    def fail(options, progress) -> None:
        raise error

    engine.act = fail
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 1
    assert message in error_line(capfd)


# -------------------------------------------------------------------------------------------------- bad input, usage


def empty(folder: Path) -> Path:
    (folder / "empty.onnx").touch()
    return folder / "empty.onnx"


def text(folder: Path) -> Path:
    (folder / "text.onnx").write_text("this is not a model\n")
    return folder / "text.onnx"


def truncated(folder: Path) -> Path:
    whole = (folder / "mask_rows.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    return folder / "truncated.onnx"


BAD_INPUTS = {
    "no such file": lambda folder: folder / "nosuch.onnx",
    "folder": lambda folder: folder,
    "empty": empty,
    "text": text,
    "truncated": truncated,
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(engine: FakeEngine, models: Path, name: str, capfd) -> None:
    source = BAD_INPUTS[name](models)
    assert run(source, models / "out.onnx") == 2
    line = error_line(capfd)
    assert line.startswith(f"graphfix: error: {source}: ")
    assert not (models / "out.onnx").exists()


def test_no_output_folder(engine: FakeEngine, models: Path, capfd) -> None:
    assert run(models / "mask_rows.onnx", models / "nosuch" / "out.onnx") == 2
    assert "nosuch" in error_line(capfd)
    assert not (models / "nosuch").exists()
    assert engine.options is None, "the work began"


def test_output_is_a_folder(engine: FakeEngine, models: Path, capfd) -> None:
    assert run(models / "mask_rows.onnx", models) == 2
    assert "is a folder" in error_line(capfd)


BAD_USAGE = {
    "no such option": (["--nonsense"], "no such option"),
    "unknown pass": (["--only", "no-such-pass"], "there is no pass 'no-such-pass'"),
    "unknown pass to skip": (["--skip", "GF999"], "there is no pass 'GF999'"),
    "near pass": (["--only", "atenindexput"], "did you mean aten-index-put"),
    "shape without name": (["--input-shape", "1,2,3"], "NAME:1,3,224,224"),
    "shape of nothing": (["--input-shape", ":1,2"], "NAME:1,3,224,224"),
    "negative shape": (["--input-shape", "x:-1,2"], "NAME:1,3,224,224"),
    "shape of no input": (["--input-shape", "y:1,2,8"], "no such input"),
    "shape of other rank": (["--input-shape", "x:1,2"], "does not fit [batch, time, 8]"),
    "shape against a fixed dim": (["--input-shape", "x:1,2,9"], "does not fit [batch, time, 8]"),
    "shape given twice": (["--input-shape", "x:1,2,8", "--input-shape", "x:1,3,8"], "twice"),
    "opset": (["--opset", "eleven"], "neither a number nor 'keep'"),
    "opset 0": (["--opset", "0"], "opset is 0"),
    "opset 999": (["--opset", "999"], "opset is 999"),
    "budget": (["--budget", "12 apples"], "is no size"),
    "rtol": (["--rtol", "-1"], "zero or more"),
    "atol": (["--atol", "nan"], "zero or more"),
    "verify": (["--verify", "maybe"], "--verify"),
    "quiet and verbose": (["-q", "-v"], "exclude each other"),
    "no npz": (["--inputs", "nosuch.npz"], "nosuch.npz: no such file"),
    "report in no folder": (["--report", "nosuch/r.json"], "there is no folder nosuch"),
    "report on a folder": (["--report", "."], "is a folder"),
    "failed model on the input": (["--keep-failed", "mask_rows.onnx"], "is the input or the output"),
    "failed model on the output": (["--keep-failed", "./out.onnx"], "is the input or the output"),
    "report on the input": (["--report", "mask_rows.onnx"], "that is the model"),
    "report on the output": (["--report", "./out.onnx"], "that is the model"),
}


@pytest.mark.parametrize("name", BAD_USAGE)
def test_bad_usage(engine: FakeEngine, models: Path, name: str, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    arguments, message = BAD_USAGE[name]
    before = sorted(os.listdir())
    assert run("mask_rows.onnx", "out.onnx", *arguments) == 2
    assert message in error_line(capfd)
    assert engine.options is None, "the work began"
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("paths", [("mask_rows.onnx", "-"), ("-", "out.onnx")])
def test_standard_streams_hold_no_models(engine: FakeEngine, models: Path, paths, capfd, monkeypatch) -> None:
    monkeypatch.chdir(models)
    before = sorted(os.listdir())
    assert run(*paths) == 2
    assert "a file called - is ./-" in error_line(capfd)
    assert sorted(os.listdir()) == before


def test_missing_arguments(capfd) -> None:
    assert run("only_one.onnx") == 2
    assert "missing argument 'OUT'" in error_line(capfd)
    assert run() == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.startswith("Usage: graphfix [OPTIONS] IN OUT")


def test_options_arrive(engine: FakeEngine, models: Path, capfd) -> None:
    arguments = ["--only", "GF101", "--skip", "ATEN-INDEX-PUT", "--opset", "13", "--input-shape", "x:2, 3,8"]
    arguments += ["--rtol", "0.5", "--atol", "0", "--no-simplify", "--verify", "none", "--budget", "1.5M", "--strict"]
    arguments += ["--inputs", str(models / "mask_rows.npz"), "--repair", "gf302", "--repair", "Lost-Accumulate"]
    arguments += ["--input-range", "x:-1:2.5", "--seed", "7", "--memory-limit", "2G", "--target", "TFLite"]
    assert run(models / "mask_rows.onnx", models / "out.onnx", *arguments) == 0
    options = vars(engine.options)
    assert options.pop("target").name == "onnx2tf"
    sets = options.pop("inputs")
    assert options == {
        "only": ("aten-index-put",),
        "skip": ("aten-index-put",),
        "opset": 13,
        "input_shapes": {"x": (2, 3, 8)},
        "rtol": 0.5,
        "atol": 0.0,
        "simplify": False,
        "verify": "none",
        "budget": 3 << 19,
        "strict": True,
        "repair": ("repair-mask-alignment", "repair-lost-accumulate"),
        "input_ranges": {"x": (-1, 2.5)},
        "seed": 7,
        "custom_ops": (),
        "memory_limit": 2 << 30,
        "confirm": None,
    }
    assert [{name: array.shape for name, array in arrays.items()} for arrays in sets] == [
        {"x": (2, 6, 8), "padding": (2, 6)},
        {"x": (1, 1, 8), "padding": (1, 1)},
        {"x": (5, 3, 8), "padding": (5, 3)},
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("100", 100), ("4k", 4096), ("256M", 256 << 20), ("2GiB", 2 << 30), ("1.5KB", 1536)]
)
def test_budget(text: str, size: int) -> None:
    assert cli.Bytes().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "shape"), [("x:1,2", ("x", (1, 2))), ("a:0:3", ("a:0", (3,))), ("s:", ("s", ())), ("n:0", ("n", (0,)))]
)
def test_input_shape(text: str, shape: tuple[str, tuple[int, ...]]) -> None:
    assert cli.NamedShape().convert(text, None, None) == shape


@pytest.mark.parametrize(
    ("text", "found"), [("x:1:2", ("x", (1, 2))), ("a:0:-3:.5", ("a:0", (-3, 0.5))), ("n:-1:-1", ("n", (-1, -1)))]
)
def test_input_range(text: str, found: tuple[str, tuple[float, float]]) -> None:
    assert cli.NamedRange().convert(text, None, None) == found


@pytest.mark.parametrize("text", ["x", "x:1", ":1:2", "x:1:", "x:a:b"])
def test_input_range_of_another_form(models: Path, text: str, capfd) -> None:
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--input-range", text) == 2
    assert "does not have the form NAME:LO:HI" in error_line(capfd)


# -------------------------------------------------------------------------------------------------------- the report


def test_report_of_a_run(engine: FakeEngine, models: Path, capfd) -> None:
    path = models / "report.json"
    engine.report = report(left=[left()], verification=Verification("not run"))
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--report", path) == 3
    content = json.loads(path.read_text())
    assert content["format"] == 1
    assert content["exit_code"] == 3
    assert content["error"] is None
    assert content["input"] == str(models / "mask_rows.onnx")
    assert content["output"] == str(models / "out.onnx")
    assert content["replacements"][0]["emitted"] == {"Unsqueeze": 1, "Where": 1}
    assert content["left"][0]["asked"] is True
    assert list(content["stages"]) == ["load", "save"]
    assert sorted(p.name for p in models.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("kind", [graphfix.NotConfirmedError, RuntimeError])
def test_report_of_a_failure(engine: FakeEngine, models: Path, kind, capfd) -> None:
    def fail(options, progress) -> None:
        raise kind("output y differs")

    engine.act = fail
    path = models / "report.json"
    path.write_text("old")
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--report", path) == 1
    content = json.loads(path.read_text())
    assert content["error"] == {"type": kind.__name__, "message": "output y differs"}
    assert content["exit_code"] == 1
    assert content["input"] == str(models / "mask_rows.onnx")
    assert content["output"] == ""


def test_report_keeps_what_the_engine_found_before_it_failed(engine: FakeEngine, models: Path, capfd) -> None:
    def fail(options, progress) -> None:
        error = graphfix.NotConfirmedError("output y differs")
        error.report = report(warnings=["found before"])  # type: ignore[attr-defined]
        raise error

    engine.act = fail
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--report", models / "report.json") == 1
    content = json.loads((models / "report.json").read_text())
    assert content["warnings"] == ["found before"]
    assert content["error"]["type"] == "NotConfirmedError"


def test_report_that_cannot_be_written_after_all(
    engine: FakeEngine, models: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "_write_whole", full)
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--report", models / "r.json") == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert "out.onnx is written, but the report cannot be written to" in line
    assert "No space left" in line


def test_report_to_a_pipe(engine: FakeEngine, models: Path, capfd) -> None:
    read, write = os.pipe()
    with open(read) as reader:
        assert run(models / "mask_rows.onnx", models / "out.onnx", "-q", "--report", f"/dev/fd/{write}") == 0
        os.close(write)
        assert json.loads(reader.read())["exit_code"] == 0


# -------------------------------------------------------------------------------------------------- other commands


def test_help_and_version(capfd) -> None:
    assert run("--help") == 0
    assert "graphfix explain" in capfd.readouterr().out
    assert run("--version") == 0
    assert capfd.readouterr().out == f"graphfix {graphfix.__version__}\n"
    assert run("passes", "--help") == 0
    assert run("explain", "-h") == 0


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from graphfix import cli; cli.run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "onnx", "onnxruntime", "onnxsim", "onnx_graphsurgeon", "torch", "rich"}
    assert heavy.isdisjoint(json.loads(done.stderr.replace("'", '"')))


def test_passes_lists_every_pass(capfd) -> None:
    assert run("passes") == 0
    lines = capfd.readouterr().out.splitlines()
    passes = graphfix.load_passes()
    assert [line.split()[:2] for line in lines] == [[p.code, p.name] for p in passes]
    assert "aten-index-put" in {p.name for p in passes}


@pytest.mark.parametrize("word", ["GF101", "gf101", "aten-index-put"])
def test_explain_a_pass(word: str, capfd) -> None:
    assert run("explain", word) == 0
    out = capfd.readouterr().out
    assert out.startswith("GF101 aten-index-put (exact)")
    assert "Replace ATen index_put" in out


@pytest.mark.parametrize("word", ["GF901", "GF902", "GF903", "GF904", "not-confirmed"])
def test_explain_a_verification_code(word: str, capfd) -> None:
    assert run("explain", word) == 0
    assert "input model" in capfd.readouterr().out or word == "GF904"


def test_explain_unknown(capfd) -> None:
    assert run("explain", "GF10") == 2
    assert "did you mean" in error_line(capfd)
    assert run("explain", "zzz") == 2
    assert "there is no pass or code 'zzz'" in error_line(capfd)


def test_models_called_like_commands(engine: FakeEngine, models: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    for name in ("passes", "explain"):
        os.link("mask_rows.onnx", name)
        assert run(f"./{name}", "out.onnx") == 0
    capfd.readouterr()
    assert run("passes", "out.onnx") == 2
    assert "a model file of that name is ./passes" in error_line(capfd)


# ------------------------------------------------------------------------------------- interruptions, broken pipes


def leftovers(folder: Path, before: set[str]) -> set[str]:
    return {p.name for p in folder.iterdir()} - before


def test_interruption_tells_the_truth(engine: FakeEngine, models: Path, capfd) -> None:
    def interrupted(options, progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    before = {p.name for p in models.iterdir()}
    engine.act = interrupted
    report_path = models / "report.json"
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--report", report_path) == 130
    assert error_line(capfd) == "graphfix: interrupted, nothing written"
    assert leftovers(models, before) == set()

    def late(options, progress) -> None:
        (models / "out.onnx").write_bytes(b"as if it were saved")
        interrupted(options, progress)

    engine.act = late
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 130
    assert error_line(capfd) == f"graphfix: interrupted, after {models / 'out.onnx'} was written"


def test_termination_cleans_up_too(engine: FakeEngine, models: Path, capfd) -> None:
    def terminated(options, progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    engine.act = terminated
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 128 + signal.SIGTERM
    assert error_line(capfd) == "graphfix: interrupted, nothing written"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_impatient_interruptions_do_not_break_the_clean_up(engine: FakeEngine, models: Path, capfd) -> None:
    cleaned = []

    def interrupted(options, progress) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            cleaned.append(True)

    engine.act = interrupted
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 130
    assert cleaned == [True]


@pytest.mark.parametrize("then", ["fails", "goes on"])
def test_an_interruption_that_a_library_swallows(engine: FakeEngine, models: Path, then: str, capfd) -> None:
    def interrupted(options, progress) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            if then == "fails":
                raise ImportError("an extension module could not be initialised") from None

    before = {p.name for p in models.iterdir()}
    engine.act = interrupted
    assert run(models / "mask_rows.onnx", models / "out.onnx") == 130
    assert error_line(capfd) == "graphfix: interrupted, nothing written"
    assert leftovers(models, before) == set()


def test_an_interruption_where_none_can_be_raised(monkeypatch) -> None:
    """In a weak reference's callback, as those of the import system: Python would print a traceback and go on."""

    class Anything:
        pass

    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", before := printed.append)
    interruption = cli._Interruption()
    with interruption:
        anything = Anything()
        watch = weakref.ref(anything, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del anything
        assert watch() is None
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    assert printed == []
    assert sys.unraisablehook is before


@pytest.mark.slow
def test_ctrl_c_at_any_moment(models: Path, tmp_path: Path) -> None:
    """The real command, interrupted at random moments: no traceback once it works, no partial output, no leftovers."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = models / "truncate_half.onnx"
    before = {p.name for p in models.iterdir()}
    environment = {**os.environ, "TMPDIR": str(scratch)}

    began = time.monotonic()
    assert start(source, models / "whole.onnx", env=environment).wait(60) == 0
    duration = time.monotonic() - began
    whole = (models / "whole.onnx").read_bytes()
    (models / "whole.onnx").unlink()

    generator = random.Random(5)
    for _ in range(8):
        process = start(source, models / "out.onnx", env=environment)
        assert process.stderr is not None
        first = process.stderr.readline()  # from here on, the command is in charge of the signal
        time.sleep(generator.uniform(0, duration))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the children, too
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, 130), first + errors
        assert "Traceback" not in errors
        assert leftovers(scratch, {".ses"}) == set()  # onnxruntime leaves .ses there whenever it is imported
        written = leftovers(models, before)
        if process.returncode == 130 and "nothing written" in errors:
            assert written == set()
        else:
            assert written == {"out.onnx"}
            assert (models / "out.onnx").read_bytes() == whole
            (models / "out.onnx").unlink()


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_broken_pipes_do_not_stop_the_work(models: Path, closed: str) -> None:
    read, write = os.pipe()
    os.close(read)
    streams = {name: write for name in ("stdout", "stderr") if closed in (name, "both")}
    arguments = [str(SCRIPT), str(models / "mask_rows.onnx"), str(models / "out.onnx")]
    done = subprocess.run(arguments, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}, timeout=60)
    os.close(write)
    assert done.returncode == 0
    assert (models / "out.onnx").exists()
    assert b"Traceback" not in (done.stderr or b"") and b"Exception ignored" not in (done.stderr or b"")


def test_closed_streams(models: Path) -> None:
    command = f"exec {SCRIPT} {models / 'mask_rows.onnx'} {models / 'out.onnx'} >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", command], timeout=60).returncode == 0
    assert graphfix.fix(models / "out.onnx").report.replacements == []


def test_words_of_bad_values(models: Path, tmp_path: Path, capfd) -> None:
    source = models / "mask_rows.onnx"
    assert run(source, tmp_path / "out.onnx", "--seed", "abc") == 2
    assert "'abc' is not a number" in error_line(capfd)
    assert run(source, tmp_path / "out.onnx", "--custom-ops", tmp_path) == 2
    assert "is a folder; give the shared library" in error_line(capfd)
    assert run("", tmp_path / "out.onnx") == 2
    assert "the name of the model is empty" in error_line(capfd)
    assert run(source, "") == 2
    assert "the name of the output is empty" in error_line(capfd)
