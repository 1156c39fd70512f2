"""graphfix.fix and load_passes as a program uses them."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from conftest import ROOT
from fake_engine import FakeEngine, engine, left, report

import graphfix
from graphfix import InputError, UsageError, api

__all__ = ["engine"]  # a fixture


def test_import_is_light() -> None:
    code = "import graphfix, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "onnx", "onnxruntime", "click", "rich"):
        assert f"'{heavy}'" not in done.stdout


def test_the_public_names() -> None:
    for name in graphfix.__all__:
        assert getattr(graphfix, name) is not None
        assert name in dir(graphfix)
    assert graphfix.__version__ == importlib.metadata.version("graphfix")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = graphfix.nonsense


def test_sources(engine: FakeEngine, models: Path) -> None:
    path = models / "mask_rows.onnx"
    data = path.read_bytes()
    model = onnx.load(path)
    for source, name in [(path, str(path)), (str(path), str(path)), (data, ""), (model, "")]:
        result = graphfix.fix(source)
        assert isinstance(result, graphfix.FixResult)
        assert result.ok is True
        assert result.report.input == name
        assert result.report.output == ""
        assert result.model.SerializeToString() == data
        assert list(result.report.stages) == ["load"]
    assert model.SerializeToString() == data
    assert sorted(p.name for p in models.iterdir() if p.suffix == ".onnx") == sorted(
        p.name for p in (Path(__file__).parent.parent / "models").glob("*.onnx")
    )


def test_output_in_place(engine: FakeEngine, models: Path) -> None:
    path = models / "mask_rows.onnx"
    data = path.read_bytes()
    assert graphfix.fix(path, path).report.output == str(path)
    assert path.read_bytes() == data


def test_nothing_is_written_when_the_engine_refuses(engine: FakeEngine, models: Path) -> None:
    def fail(options, progress) -> None:
        raise graphfix.NotConfirmedError("no")

    engine.act = fail
    path = models / "mask_rows.onnx"
    before = path.read_bytes()
    with pytest.raises(graphfix.GraphfixError):
        graphfix.fix(path, path)
    assert path.read_bytes() == before


def test_ok(engine: FakeEngine, models: Path) -> None:
    engine.report = report(left=[left(asked=False)])
    assert graphfix.fix(models / "mask_rows.onnx").ok is True
    assert graphfix.fix(models / "mask_rows.onnx", strict=True).ok is False
    engine.report = report(left=[left(asked=True)])
    assert graphfix.fix(models / "mask_rows.onnx").ok is False


def test_progress(engine: FakeEngine, models: Path, capfd) -> None:
    events = []
    graphfix.fix(models / "mask_rows.onnx", models / "out.onnx", progress=events.append)
    stages = list(dict.fromkeys(event.stage for event in events))
    assert stages == ["load", "passes", "verify", "save"]
    assert capfd.readouterr() == ("", "")


def test_one_pass_as_text(engine: FakeEngine, models: Path) -> None:
    graphfix.fix(models / "mask_rows.onnx", only="GF101", skip=["gf101", "aten-index-put"])
    assert engine.options.only == ("aten-index-put",)
    assert engine.options.skip == ("aten-index-put",)


@pytest.mark.parametrize(
    "options",
    [
        {"only": "nonsense"},
        {"opset": "11"},
        {"opset": True},
        {"opset": -3},
        {"verify": "some"},
        {"rtol": float("nan")},
        {"atol": -1.0},
        {"budget": -1},
        {"budget": "64M"},
    ],
    ids=str,
)
def test_refused_options(engine: FakeEngine, models: Path, options) -> None:
    with pytest.raises(graphfix.UsageError):
        graphfix.fix(models / "mask_rows.onnx", **options)


class Third:
    """A pass of somebody else."""

    code = "XY101"
    name = "third"
    safety = "EXACT"


def entry_points(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [importlib.metadata.EntryPoint(f"e{i}", v, api.ENTRY_POINTS) for i, v in enumerate(values)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == api.ENTRY_POINTS else [])


def test_third_party_passes_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    own = graphfix.load_passes()
    entry_points(monkeypatch, "test_api:Third")
    assert graphfix.load_passes() == (*own, Third)
    assert len({p.code for p in own}) == len({p.name for p in own}) == len(own)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["no_such_module:Pass"], "does not load"),
        (["test_api:nothing_there"], "does not load"),
        (["test_api:Path"], "does not load"),
        (["test_api:Third", "test_api:Third"], "is called XY101, as is a pass of test_api:Third"),
    ],
)
def test_broken_third_party_passes(monkeypatch: pytest.MonkeyPatch, values: list[str], message: str) -> None:
    entry_points(monkeypatch, *values)
    with pytest.raises(graphfix.UsageError, match=message):
        graphfix.load_passes()


@pytest.mark.parametrize("given", [None, 123, onnx.GraphProto(), ""])
def test_what_is_no_model_is_bad_usage(given) -> None:
    with pytest.raises(UsageError, match=r"is of the type|is empty") as caught:
        graphfix.fix(given)
    assert "\n" not in str(caught.value)


def test_what_is_no_output_is_bad_usage() -> None:
    m = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g(float[N] x) => (float[N] y) { y = Neg(x) }')
    for given in (3, ""):
        with pytest.raises(UsageError, match="the output"):
            graphfix.fix(m, given)


def test_a_model_without_outputs_is_refused() -> None:
    m = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g(float[N] x) => (float[N] y) { y = Neg(x) }')
    del m.graph.output[:]
    with pytest.raises(InputError, match="the model has no outputs"):
        graphfix.fix(m)


def test_sources_without_their_passes_say_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "graphfix", tmp_path / "graphfix", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import graphfix; graphfix.load_passes()"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert f"Python takes graphfix from {tmp_path / 'graphfix'}" in done.stderr.splitlines()[-1]
