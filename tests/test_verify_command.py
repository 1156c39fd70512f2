"""`graphfix verify` and graphfix.verify: any two models, recorded outputs, layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import graphfix
from graphfix import cli
from graphfix.report import OutputComparison, Verification
from graphfix.report.console import agreement
from graphfix.verification.layers import first_difference
from graphfix.verification.pairing import pair

X = np.float32([[1, -2, 3], [4, 5, -6]])


def model(text: str, opset: int = 13) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "my": 1]> {text}')


ONE = model("g(float[N, 3] x) => (float[N, 3] y) { a = Neg(x) b = Relu(a) y = Abs(b) }")
SAME = model("g(float[N, 3] x) => (float[N, 3] y) { c = Neg(x) y = Relu(c) }")
CLOSE = model("""g(float[N, 3] x) => (float[N, 3] y) {
    one = Constant<value = float {1.000001}>() a = Neg(x) b = Relu(a) y = Mul(b, one) }""")
OTHER = model("""g(float[N, 3] x) => (float[N, 3] y) {
    one = Constant<value = float {1}>() a = Neg(x) d = Add(a, one) b = Relu(d) y = Abs(b) }""")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, made in [("one", ONE), ("same", SAME), ("close", CLOSE), ("other", OTHER)]:
        onnx.save(made, tmp_path / f"{name}.onnx")
    return tmp_path


def run(*arguments: object) -> int:
    return cli.run(["verify", *map(str, arguments)])


# --- the command


def test_equal_models(files: Path, capfd) -> None:
    assert run(files / "one.onnx", files / "same.onnx") == 0
    out = " ".join(capfd.readouterr().out.split())
    assert out.startswith("equal to ") and "one.onnx on 6 input sets" in out


def test_models_within_the_tolerance(files: Path, capfd) -> None:
    assert run(files / "one.onnx", files / "close.onnx") == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "agrees with" in out and "within rtol 1e-05 and atol 1e-05" in out and "equal" not in out


def test_different_models(files: Path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(files / "one.onnx", files / "other.onnx") == 1
    out = capfd.readouterr().out
    joined = " ".join(out.split())
    assert "differs from" in joined and "output 'y' differs in" in joined
    header = next(line for line in out.splitlines() if "max abs" in line)
    assert all(title in header for title in ("dtype", "max rel", "ULP", "differ", "max at"))
    assert run(files / "one.onnx", files / "other.onnx", "--atol", "2") == 0
    assert run(files / "one.onnx", files / "other.onnx", "-q") == 1


def test_layers_name_the_first_difference(files: Path, capfd) -> None:
    assert run(files / "one.onnx", files / "other.onnx", "--layers") == 1
    rows = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    (a,) = [row for row in rows if row.startswith("a Neg float32")]
    (b,) = [row for row in rows if row.startswith("b Relu float32")]
    assert a.endswith("equal") and b.endswith("differs first")


def test_recorded_outputs(files: Path, capfd) -> None:
    expected = np.abs(np.maximum(-X, 0))
    np.savez(files / "in.npz", x=X)
    for name, array, code in [("y", expected, 0), ("arr_0", expected, 0), ("y", expected + 1, 1)]:
        np.savez(files / "out.npz", **{name: array})
        assert run(files / "one.onnx", "--inputs", files / "in.npz", "--expected", files / "out.npz") == code
        out = capfd.readouterr().out
        assert ("equal to the recorded outputs on 1 input set" in out) == (code == 0)
        assert ("taken in their order" in out) == (name == "arr_0")


def test_recorded_outputs_with_their_inputs(files: Path, capfd) -> None:
    arrays = {}
    for number in range(11):
        arrays |= {f"{number}/in/x": X + number, f"{number}/out/strange": np.maximum(-X - number, 0)}
    np.savez(files / "both.npz", **arrays)
    assert run(files / "one.onnx", "--expected", files / "both.npz") == 0
    assert "on 11 input sets" in capfd.readouterr().out


def test_the_json_report(files: Path, capfd) -> None:
    report = files / "r.json"
    assert run(files / "one.onnx", files / "other.onnx", "--report", report, "--layers") == 1
    content = json.loads(report.read_text())
    assert content["exit_code"] == 1 and content["error"] is None and content["format"] == 1
    assert content["verification"]["status"] == "failed"
    (output,) = content["verification"]["outputs"]
    assert {"max_abs", "max_rel", "max_ulp", "differing", "elements", "largest_at"} <= output.keys()
    assert [layer["name"] for layer in content["verification"]["layers"] if layer["first"]] == ["b"]
    assert run(files / "one.onnx", files / "gone.onnx", "--report", report) == 2
    content = json.loads(report.read_text())
    assert content["exit_code"] == 2 and content["error"]["type"] == "InputError" and content["verification"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one.onnx"], "give REFERENCE and CANDIDATE: 1 model was given"),
        (["one.onnx", "one.onnx", "one.onnx"], "3 models were given"),
        (["one.onnx", "one.onnx", "--expected", "x.npz"], "give CANDIDATE alone with --expected"),
        (["one.onnx", "--expected", "gone.npz"], "no such file"),
        (["one.onnx", "gone.onnx"], "gone.onnx"),
        (["one.onnx", "junk.onnx"], "junk.onnx"),
        (["one.onnx", "same.onnx", "--input-shape", "q:1"], "no such input"),
        (["one.onnx", "same.onnx", "--input-range", "x:2:1"], "is no range"),
        (["one.onnx", "same.onnx", "--input-range", "x:1:2", "--input-range", "x:1:2"], "given twice"),
        (["one.onnx", "same.onnx", "--custom-ops", "gone.so"], "no such file"),
        (["one.onnx", "same.onnx", "--custom-ops", "junk.onnx"], "does not load as a library of custom operators"),
        (["one.onnx", "same.onnx", "--report", "one.onnx"], "that is the model"),
        (["one.onnx", "two_inputs.onnx"], "the reference has 1 input (x), the candidate 2 (x, z)"),
        (["one.onnx", "double.onnx"], "input 'x' is float32 in the reference and float64 in the candidate"),
        (["one.onnx", "wide.onnx"], "has shape [N, 3] in the reference and [N, 4] in the candidate"),
    ],
)
def test_bad_usage(files: Path, arguments: list[str], message: str, capfd) -> None:
    (files / "junk.onnx").write_bytes(b"\xff" * 50)
    onnx.save(model("g(float[N, 3] x, float[3] z) => (float[N, 3] y) { y = Add(x, z) }"), files / "two_inputs.onnx")
    onnx.save(model("g(double[N, 3] x) => (double[N, 3] y) { y = Neg(x) }"), files / "double.onnx")
    onnx.save(model("g(float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }"), files / "wide.onnx")
    paths = [str(files / a) if a.endswith((".onnx", ".npz", ".so")) else a for a in arguments]
    content = (files / "one.onnx").read_bytes()
    assert run(*paths) == 2
    captured = capfd.readouterr()
    *before_it, line = captured.err.splitlines()
    assert line.startswith("graphfix: error: ") and message in line
    assert before_it in ([], ["load       reading the models"])
    assert (files / "one.onnx").read_bytes() == content


# --- the function


def test_the_function() -> None:
    assert graphfix.verify(ONE, SAME).agrees
    result = graphfix.verify(ONE, OTHER, seed=5)
    assert not result.agrees and result.against == "the reference"


def test_ranges_and_seeds_are_used() -> None:
    relu, neg = (
        model("g(float[N] x) => (float[N] y) { y = Relu(x) }"),
        model("g(float[N] x) => (float[N] y) { y = Identity(x) }"),
    )
    assert not graphfix.verify(relu, neg).agrees
    assert graphfix.verify(relu, neg, input_ranges={"x": (0, 5)}).agrees
    ids = model("g(int64[N] i) => (int64[N] y) { y = Identity(i) }")
    low = model("""g(int64[N] i) => (int64[N] y) { a = Min(i, top) y = Max(a, bottom)
        top = Constant<value = int64 {9}>() bottom = Constant<value = int64 {7}>() }""")
    assert graphfix.verify(ids, low, input_ranges={"i": (7, 9)}).agrees
    assert not graphfix.verify(ids, low, input_ranges={"i": (7, 10)}).agrees


@pytest.mark.parametrize(
    ("ranges", "message"),
    [({"i": (0.5, 2)}, "whole numbers"), ({"i": (0, 2**63)}, "whole numbers"), ({"i": (0, 1, 2)}, "no range")],
)
def test_refused_ranges(ranges, message: str) -> None:
    ids = model("g(int64[N] i) => (int64[N] y) { y = Identity(i) }")
    with pytest.raises(graphfix.UsageError, match=message):
        graphfix.verify(ids, ids, input_ranges=ranges)


def test_recorded_outputs_in_memory() -> None:
    assert graphfix.verify(None, ONE, inputs={"x": X}, expected={"y": np.maximum(-X, 0)}).agrees
    sets = graphfix.verify(None, ONE, inputs=[{"x": X}, {"x": -X}], expected=[{"y": np.maximum(s, 0)} for s in (-X, X)])
    assert sets.agrees and len(sets.sets) == 2
    wide = graphfix.verify(None, ONE, inputs={"x": X}, expected={"y": np.maximum(-X, 0).astype(np.float64)})
    assert not wide.agrees and "has dtype float32, not float64" in wide.detail


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to compare with"),
        ({"expected": {"y": X}}, "need the inputs"),
        ({"expected": [{"y": X}] * 2, "inputs": {"x": X}}, "1 input sets, but 2 sets"),
        ({"expected": {"y": X, "z": X}, "inputs": {"x": X}}, "no output 'z'"),
        ({"expected": {}, "inputs": {"x": X}}, "holds no recorded outputs"),
        ({"expected": {"y": X}, "inputs": {"x": X}, "layers": True}, "layers cannot be used"),
        ({"expected": {"y": X}, "inputs": {"x": X}, "input_shapes": {"x": (1, 3)}}, "input shapes cannot be used"),
    ],
)
def test_recorded_outputs_that_make_no_sense(options, message: str) -> None:
    with pytest.raises(graphfix.UsageError, match=message):
        graphfix.verify(None, ONE, **options)


def test_only_some_outputs_were_recorded() -> None:
    two = model("g(float[N, 3] x) => (float[N, 3] y, float[N, 3] z) { y = Neg(x) z = Abs(x) }")
    result = graphfix.verify(None, two, inputs={"x": X}, expected={"z": np.abs(X)})
    assert result.agrees and [o.name for o in result.outputs] == ["z"]
    assert result.notes == ["not compared, as they were not recorded: y"]


# --- pairing


def test_names_that_differ_are_paired_by_order() -> None:
    renamed = model("g(float[M, 3] input) => (float[M, 3] 7) { t = Neg(input) 7 = Relu(t) }".replace("7", "o7"))
    result = graphfix.verify(ONE, renamed)
    assert result.agrees and len(result.notes) == 2
    assert "x with input" in result.notes[0] and "y with o7" in result.notes[1]
    swapped = model("g(float[N] b, float[N] a) => (float[N] y) { y = Sub(a, b) }")
    plain = model("g(float[N] a, float[N] b) => (float[N] y) { y = Sub(a, b) }")
    assert graphfix.verify(plain, swapped).agrees


def test_sizes_that_the_candidate_fixes_are_kept_to() -> None:
    fixed = model("g(float[7, 3] x) => (float[7, 3] y) { c = Neg(x) y = Relu(c) }")
    result = graphfix.verify(ONE, fixed)
    assert result.agrees and set(result.sets) == {"x 7x3", "x 7x3 with NaN and infinities"}
    assert "N = 7" in result.notes[0]


def test_an_input_that_is_not_read_may_be_missing() -> None:
    idle = model("g(float[N, 3] x, float[N] unused) => (float[N, 3] y) { c = Neg(x) y = Relu(c) }")
    found = pair(idle, ONE)
    assert found.inputs == {"x": "x"} and "'unused' is not read" in found.notes[0]
    assert graphfix.verify(idle, ONE).agrees
    with pytest.raises(graphfix.UsageError, match="cannot be compared"):
        graphfix.verify(ONE, idle)


# --- layers


def test_the_first_difference_of_two_models() -> None:
    assert first_difference(ONE, SAME, {"x": X}) is None
    found = first_difference(ONE, OTHER, {"x": X})
    assert found is not None and found[0] == "b" and found[1].problem
    shorter = model("g(float[N, 3] x) => (float[N, 3] y) { a = Transpose(x) b = Relu(a) y = Transpose(b) }")
    found = first_difference(ONE, shorter, {"x": X})
    assert found is not None and found[0] == "a" and "has shape [3, 2], not [2, 3]" in found[1].problem


def test_layers_of_a_model_with_aten_nodes_and_bodies() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
        g(float[N, 3] x, int64[1] i, bool c) => (float[N, 3] y) {{
        no = Constant<value = bool {{0}}>() v = Constant<value = float {{7}}>() a = {first}(x)
        p = org.pytorch.aten.ATen<operator = "index_put">(a, i, v, no)
        q = If(c) < then_branch = t () => (float[N, 3] r) {{ r = Neg(p) }},
                    else_branch = e () => (float[N, 3] s) {{ s = Abs(p) }} >
        y = Relu(q) }}"""
    one, other = (parser.parse_model(text.format(first=op)) for op in ("Neg", "Abs"))
    feeds = {"x": X, "i": np.int64([1]), "c": np.bool_(True)}
    assert first_difference(one, one, feeds) is None
    found = first_difference(one, other, feeds)
    assert found is not None and found[0] == "a"


def test_layers_of_unknown_types_and_sequences() -> None:
    text = """g(float[N, 3] x) => (float y) {{ s = SplitToSequence<axis = 1>(x) k = Constant<value = int64 {{{at}}}>()
        a = SequenceAt(s, k) n = NonZero(a) r = ReduceSum<keepdims = 0>(a) y = Abs(r) }}"""
    one, other = model(text.format(at=0)), model(text.format(at=1))
    found = first_difference(one, other, {"x": X})
    assert found is not None and found[0] == "a"


# --- words


@pytest.mark.parametrize(
    ("verification", "words"),
    [
        (Verification("confirmed", "a.onnx", sets=["x"]), "equal to a.onnx on 1 input set"),
        (
            Verification("confirmed", "a.onnx", ["x"], optimised=[OutputComparison("y", "float32", 1e-7, 1e-7, False)]),
            "equal to a.onnx on 1 input set (within tolerance with ONNX Runtime's optimisations)",
        ),
        (
            Verification(
                "confirmed",
                "a.onnx",
                ["x", "z"],
                outputs=[OutputComparison("y", "float32", 1e-7, 1e-7, False, rtol=1e-5, atol=2e-5)],
                not_run=["my::Op"],
            ),
            "agrees with a.onnx within rtol 1e-05 and atol 2e-05 (largest difference 1e-07 in y) on 2 input sets, "
            "without 1 node that cannot be run here",
        ),
        (
            Verification("confirmed", "a.onnx", ["x"], not_compared=["y"]),
            "equal to a.onnx on 1 input set, without y, which could not be compared",
        ),
        (Verification("failed", "a.onnx", ["x"], detail="output y differs"), "differs from a.onnx: output y differs"),
        (Verification("failed", "a.onnx", detail="no input"), "could not be compared with a.onnx: no input"),
    ],
)
def test_words_of_agreement(verification: Verification, words: str) -> None:
    assert agreement(verification) == words


def test_the_hint_at_a_file_called_verify_needs_one(files: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    assert run("one.onnx") == 2
    assert "./verify" not in capfd.readouterr().err
    (files / "verify").write_bytes((files / "one.onnx").read_bytes())
    assert run("one.onnx") == 2
    assert "a model file of that name is ./verify" in capfd.readouterr().err


def test_titles_stay_whole_and_another_dtype_has_no_figures(files: Path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "<ir_version: 8, opset_import: ['': 13]> g(float[N, 3] x) => (KIND[N, 3] y) { y = Cast<to = CODE>(x) }"
    for name, kind, code in (("float", "float", "1"), ("wide", "double", "11")):
        made = text.replace("KIND", kind).replace("CODE", code).replace("'", '"')
        onnx.save(onnx.parser.parse_model(made), files / f"{name}_out.onnx")
    assert run(files / "float_out.onnx", files / "wide_out.onnx", "--layers") == 1
    out = capfd.readouterr().out
    assert "max at" in out and "inf" not in out
    assert "has dtype float64, not float32" in next(line for line in out.splitlines() if line.strip().startswith("y "))
