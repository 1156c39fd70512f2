"""onnxsim at arm's length: what it may change, what comes back as it was, and that no failure of it is ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from graphfix import simplify as module
from graphfix.simplify import simplify

# Folds to: y = Relu(x) + 3, w beside it. Both weights are too big to be shown to onnxsim.
MODEL = """
<ir_version: 8, opset_import: ["" : 13, "my.domain" : 2], producer_name: "me", producer_version: "1", domain: "d",
 model_version: 5, doc_string: "about", metadata_props: ["k": "v"]>
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 5000] w, float[N, 4] u, float[N, 4] z)
<float[1] one = {1.0}, float[1] two = {2.0}>
{
    [relu] r = Relu(x)
    [sum] three = Add(one, two)
    [same] s = Identity(r)
    [add] y = Add(s, three)
    [first] p = MatMul(x, big)
    [second] q = MatMul(x, big)
    [both] w = Sub(p, q)
    [custom] u = my.domain.Thing <axes: ints = [1]> (s, three)
    [branch] z = If(c) <
        then_branch = a () => (float[N, 4] a1) { [inner] a1 = Neg(s) },
        else_branch = b () => (float[N, 4] b1) { b1 = Abs(x) }
    >
}
"""


def example() -> ModelProto:
    model = parser.parse_model(MODEL)
    big = np.arange(20000, dtype=np.float32).reshape(4, 5000)
    model.graph.initializer.append(numpy_helper.from_array(big, "big"))
    model.graph.doc_string = "graph"
    model.graph.metadata_props.add(key="g", value="h")
    model.graph.quantization_annotation.add(tensor_name="y")
    model.graph.node[0].doc_string = "a relu"
    model.graph.node[0].metadata_props.add(key="n", value="m")
    model.graph.node[8].attribute[0].g.node[0].doc_string = "inside"
    return model


def fed(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.fixture(scope="module")
def simplified() -> ModelProto:
    outcome = simplify(example(), base_dir=None)
    assert outcome.model is not None, outcome.reason
    return outcome.model


def test_folds_and_removes(simplified: ModelProto) -> None:
    types = [n.op_type for n in simplified.graph.node]
    assert "Identity" not in types
    assert types.count("Add") == 1
    by_name = {n.name: n for n in simplified.graph.node}
    assert {"relu", "add", "custom", "branch", "both"} <= by_name.keys()
    assert by_name["custom"].input[0] == "r"
    three = by_name["custom"].input[1]
    constants = {t.name: t for t in simplified.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in simplified.graph.node if n.op_type == "Constant"}
    assert numpy_helper.to_array(constants[three]).tolist() == [3.0]


def test_everything_else_is_as_it_was(simplified: ModelProto) -> None:
    before, after = example(), simplified
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(before, field) == getattr(after, field)
    for field in ("opset_import", "metadata_props", "functions"):
        assert list(getattr(before, field)) == list(getattr(after, field))
    for field in ("input", "output", "metadata_props", "quantization_annotation"):
        assert list(getattr(before.graph, field)) == list(getattr(after.graph, field))
    assert (after.graph.name, after.graph.doc_string) == ("g", "graph")
    own = {t.name: t for t in before.graph.initializer}
    assert after.graph.initializer[-1] == own["big"] or own["big"] in after.graph.initializer
    names = [n.name for n in before.graph.node]
    for node in after.graph.node:
        if node.name in names and node.op_type not in ("Add", "If"):
            original = before.graph.node[names.index(node.name)]
            assert node.doc_string == original.doc_string
            assert list(node.metadata_props) == list(original.metadata_props)
            assert list(node.attribute) == list(original.attribute)
            assert list(node.output) == list(original.output)
    branch = next(n for n in after.graph.node if n.op_type == "If")
    assert branch.attribute[0].g.node[0].doc_string == "inside"
    assert branch.attribute[1].g.node[0].name == ""


def test_the_argument_is_not_changed_and_the_result_is_deterministic_and_final(simplified: ModelProto) -> None:
    model = example()
    again = simplify(model, base_dir=None).model
    assert model == example()
    assert again is not None
    assert again.SerializeToString() == simplified.SerializeToString()
    twice = simplify(simplified, base_dir=None).model
    assert twice is not None
    assert twice.SerializeToString() == simplified.SerializeToString()


def test_the_result_runs_the_same() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[N, 4] x) => (float[N, K] y, int64[2] s)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus = {-1}, float[1] half = {0.5}>
    {
        s = Shape(x)
        n = Gather(s, zero)
        t = Concat <axis: int = 0> (n, minus)
        a = Reshape(x, t)
        b = Add(half, half)
        c = Mul(a, b)
        d = Transpose <perm: ints = [1, 0]> (c)
        e = Transpose <perm: ints = [1, 0]> (d)
        y = Add(e, b)
    }
    """
    model = parser.parse_model(text)
    outcome = simplify(model, base_dir=None)
    assert outcome.model is not None, outcome.reason
    assert len(outcome.model.graph.node) < len(model.graph.node)
    for rows in (1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        expected = [x + 1, np.array([rows, 4])]
        for one, other in zip(expected, fed(outcome.model, {"x": x}), strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_are_not_fused_into_others() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) { c = Conv(x, k)  y = BatchNormalization(c, s, b, m, v) }
    """
    model = parser.parse_model(text)
    for name, shape in (("k", (1, 1, 1, 1)), ("s", 1), ("b", 1), ("m", 1), ("v", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, 2, np.float32), name))
    assert simplify(model, base_dir=None).model == model


def test_old_models_keep_their_inputs() -> None:
    """Below IR 4 an initializer is an input as well, and a constant; from there on it may be overridden."""
    text = """
    <ir_version: 3, opset_import: ["" : 9]>
    g (float[2] x, float[2] k, float[2] j) => (float[2] y) { s = Add(k, j)  y = Add(x, s) }
    """
    model = parser.parse_model(text)
    for name in ("k", "j"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), name))
    old = simplify(model, base_dir=None).model
    assert old is not None
    assert [i.name for i in old.graph.input] == ["x", "k", "j"]
    assert [n.op_type for n in old.graph.node] == ["Constant", "Add"]
    model.ir_version = 8
    assert simplify(model, base_dir=None).model == model


def test_constants_that_would_make_the_file_bigger_stay_unfolded() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[300, 300] x) => (float[300, 300] y) <float[1] one = {1.0}, int64[2] shape = {300, 300}>
    { e = Expand(one, shape)  y = Add(x, e) }
    """
    model = parser.parse_model(text)
    outcome = simplify(model, base_dir=None)
    assert (outcome.model or model).ByteSize() < model.ByteSize() + 2000


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    model = example()
    big = model.graph.initializer[-1]
    big.ClearField("raw_data")
    big.data_location = TensorProto.EXTERNAL
    big.external_data.add(key="location", value="absent.bin")
    small = model.graph.initializer[0]
    (tmp_path / "small.bin").write_bytes(np.array([1.0], np.float32).tobytes())
    small.ClearField("float_data")
    small.data_location = TensorProto.EXTERNAL
    small.external_data.add(key="location", value="small.bin")
    before = ModelProto()
    before.CopyFrom(model)
    outcome = simplify(model, base_dir=tmp_path)
    assert outcome.model is not None, outcome.reason
    assert before.graph.initializer[-1] in outcome.model.graph.initializer
    assert "Identity" not in [n.op_type for n in outcome.model.graph.node]


@pytest.mark.parametrize("operator", ["ATen", "DynamicSlice"])
def test_is_not_run_on_what_it_cannot_read(operator: str, monkeypatch) -> None:
    monkeypatch.setattr(module, "_run_child", lambda *_: pytest.fail("was run"))
    model = example()
    model.graph.node[0].op_type = operator
    outcome = simplify(model, base_dir=None)
    assert outcome.model is None
    assert outcome.reason.startswith("onnxsim was not run: ")


# ------------------------------------------------------------------------------------- an onnxsim that misbehaves


@pytest.fixture
def fake(tmp_path: Path, monkeypatch):
    """Puts a module named onnxsim before the real one: the child takes over the import path."""

    def install(body: str) -> None:
        code = "import os, sys, time, onnx\ndef simplify(model, **_):\n" + textwrap.indent(
            textwrap.dedent(body), "    "
        )
        (tmp_path / "onnxsim.py").write_text(code + "\n    return model, True\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield install
    assert os.listdir(scratch) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "onnxsim crashed (SIGSEGV)"),
        ("os.abort()", "onnxsim crashed (SIGABRT)"),
        ("raise ValueError('no such thing')", "onnxsim failed: ValueError: no such thing"),
        ("os._exit(0)", "onnxsim ended without a result"),
        ("open('out.onnx', 'wb').write(b'\\xff' * 99)\nos._exit(0)", "onnxsim made a file that is not a model"),
        ("x = bytearray(16 << 30)", "onnxsim failed: MemoryError"),
        ("model.graph.output[0].name = 'v'", "onnxsim changed the outputs"),
        ("del model.graph.input[0]", "onnxsim changed the inputs"),
        (
            "model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1",
            "onnxsim changed the type or shape of the input 'x'",
        ),
        ("model.opset_import[0].version = 14", "onnxsim changed the opset"),
        ("model.graph.node[7].attribute[0].ints[0] = 0", "onnxsim changed custom or random operators"),
        ("model.graph.node[0].op_type = 'Sigmoid'", "onnxsim brought in operators: Sigmoid"),
        ("model.graph.node[0].input[0] = 'gone'", "onnxsim broke the graph: "),
        (
            "t = model.graph.initializer[0]\nt.dims[0] = 40000\nt.ClearField('float_data')\nt.raw_data = bytes(160000)",
            "onnxsim made the model 156 KiB bigger by folding constants",
        ),
    ],
)
def test_failures_are_reasons(fake, body: str, reason: str) -> None:
    fake(body)
    outcome = simplify(example(), base_dir=None)
    assert outcome.model is None
    assert outcome.reason.startswith(reason)
    assert "\n" not in outcome.reason


def test_nothing_done_is_nothing_changed(fake) -> None:
    fake("pass")
    assert simplify(example(), base_dir=None).model == example()


def test_an_unsorted_result_is_sorted(fake) -> None:
    fake("nodes = list(model.graph.node)[::-1]\ndel model.graph.node[:]\nmodel.graph.node.extend(nodes)")
    outcome = simplify(example(), base_dir=None)
    assert outcome.model is not None
    onnx.checker.check_model(outcome.model)


def test_values_of_weights_are_never_changed(fake) -> None:
    fake("model.graph.initializer[0].float_data[0] = 9.0")
    outcome = simplify(example(), base_dir=None)
    if outcome.model is not None:  # a constant of its own, that took the name of one that nothing reads any more
        assert [t.name for t in outcome.model.graph.initializer].count("one") == 1


def test_takes_no_longer_than_allowed(fake) -> None:
    fake("time.sleep(100)")
    start = time.monotonic()
    outcome = simplify(example(), base_dir=None, timeout=0.5)
    assert time.monotonic() - start < 10
    assert outcome == module.SimplifyOutcome(None, "onnxsim took longer than 0.5 s and was stopped")


def test_an_interrupt_stops_the_child(fake, tmp_path: Path, monkeypatch) -> None:
    fake(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)")
    wait = subprocess.Popen.wait

    def interrupted(self, timeout=None):
        if timeout is None:
            return wait(self)
        wait_for(tmp_path / "pid")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simplify(example(), base_dir=None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ties the child to its parent")
def test_the_child_does_not_outlive_a_killed_parent(fake, tmp_path: Path) -> None:
    fake(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)")
    (tmp_path / "m.onnx").write_bytes(example().SerializeToString())
    code = (
        f"import sys, onnx; sys.path.insert(0, {str(tmp_path)!r}); from graphfix.simplify import simplify; "
        f"simplify(onnx.load({str(tmp_path / 'm.onnx')!r}), base_dir=None)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        pid = int(wait_for(tmp_path / "pid"))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            break
        if state == "Z":  # dead, but nobody has asked for its status yet
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child is still running")


def wait_for(path: Path) -> str:
    for _ in range(600):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def test_without_an_interpreter_it_is_not_run(monkeypatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert simplify(example(), base_dir=None).reason.startswith("onnxsim was not run: there is no Python")


def test_local_functions_stay() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13, "my.domain" : 1]>
    g (float[N] x) => (float[N] y) { a = Identity(x)  y = my.domain.f(a) }
    <domain: "my.domain", opset_import: ["" : 13]>
    f (a) => (b) { b = Relu(a) }
    """
    model = parser.parse_model(text)
    outcome = simplify(model, base_dir=None)
    assert outcome.model is not None, outcome.reason
    assert list(outcome.model.functions) == list(model.functions)
    assert [(n.op_type, *n.input) for n in outcome.model.graph.node] == [("f", "x")]


def test_random_numbers_are_not_shared() -> None:
    node = [helper.make_node("RandomNormal", [], [n], shape=[3], name=n) for n in "ab"]
    graph = helper.make_graph(
        [*node, helper.make_node("Sub", ["a", "b"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    outcome = simplify(model, base_dir=None)
    if outcome.model is not None:
        assert fed(outcome.model, {})[0].any()
