"""Custom operators: their libraries reach every session; without one, models are compared up to the boundary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import graphfix
from graphfix import cli
from graphfix.verification import VerifyOptions, check_model
from graphfix.verification.boundary import cut, unknown_nodes

NO = "no = Constant<value = bool {0}>()"


def model(text: str, opset: int = 13) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "my": 1, "org.pytorch.aten": 1]> {text}')


def around(before: str = "a = Neg(x)", after: str = "y = Abs(c)") -> onnx.ModelProto:
    return model(f"g(float[N, 3] x) => (float[N, 3] y) <float[N, 3] c> {{ {before} c = my.Op(a) {after} }}")


# --- the boundary


def test_compared_up_to_the_node_and_behind_it() -> None:
    result = graphfix.verify(around(), around("b = Identity(x) a = Neg(b)"))
    assert result.agrees and result.not_run == ["my::Op (output 'c')"]
    assert "1 node of domain my was not run: compared up to it and behind it" in result.detail
    assert [o.name for o in result.outputs] == ["y", "a"]
    assert result.sets[0] == "x 5x3, c 5x3"


@pytest.mark.parametrize(
    ("before", "after", "name"), [("a = Abs(x)", "y = Abs(c)", "a"), ("a = Neg(x)", "y = Neg(c)", "y")]
)
def test_faults_on_both_sides_of_it_are_found(before: str, after: str, name: str) -> None:
    result = graphfix.verify(around(), around(before, after))
    assert not result.agrees and f"output {name!r} differs" in result.detail


def test_tensors_of_other_names() -> None:
    renamed = model("g(float[N, 3] x) => (float[N, 3] y) <float[N, 3] q> { p = Neg(x) q = my.Op(p) y = Abs(q) }")
    result = graphfix.verify(around(), renamed)
    assert result.agrees and [o.name for o in result.outputs] == ["y", "a"]
    wrong = model("g(float[N, 3] x) => (float[N, 3] y) <float[N, 3] q> { p = Abs(x) q = my.Op(p) y = Abs(q) }")
    assert not graphfix.verify(around(), wrong).agrees


AROUND = """g(float[4] a, float[4] b) => (float[4] n, float[4] z) <float[4] y, float[4] w = W> {
    n = Neg(a) o = Abs(a) k = Constant<value = float[4] {1, 2, 3, 4}>() y = my.Op<by = 1, t = float[2] {1, 2}>(INPUTS)
    z = Relu(y) }"""


def with_inputs(inputs: str, weight: str = "1, 2, 3, 4") -> onnx.ModelProto:
    return model(AROUND.replace("INPUTS", inputs).replace("W", "{" + weight + "}"))


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [("a, b", "b, a", "a"), ("a, b", "a, a", "b"), ("n", "o", "n"), ("a, k", "a, w", ""), ("w, n", "a, n", "w")],
)
def test_what_goes_into_it_is_compared(ours: str, theirs: str, name: str) -> None:
    """Inputs of the model that are swapped, a tensor that is an output too, constants in place of each other."""
    assert graphfix.verify(with_inputs(ours), with_inputs(ours)).agrees
    result = graphfix.verify(with_inputs(ours), with_inputs(theirs))
    assert result.agrees == (not name)  # k and w hold the same numbers
    assert not name or f"output '{name}/graphfix/boundary' differs" in result.detail


def test_its_weights_are_compared() -> None:
    result = graphfix.verify(with_inputs("a, w"), with_inputs("a, w", "1, 2, 3, 9"))
    assert not result.agrees and "output 'w/graphfix/boundary' differs in 1 of 4 elements" in result.detail
    raw = with_inputs("a, w")
    raw.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "w"))
    assert graphfix.verify(with_inputs("a, w"), raw).agrees and graphfix.verify(raw, raw).agrees


@pytest.mark.parametrize(("old", "new"), [("by = 1", "by = 2"), ("{1, 2}>(", "{1, 3}>("), ("my.Op", "my.Other")])
def test_other_operators_are_not_taken_for_it(old: str, new: str) -> None:
    other = model(AROUND.replace("INPUTS", "a, b").replace("W", "{1, 2, 3, 4}").replace(old, new))
    result = graphfix.verify(with_inputs("a, b"), other)
    assert not result.agrees and "only where both have the same" in result.detail


def test_other_places_of_its_inputs() -> None:
    one, other = with_inputs("a, b"), with_inputs("a, b")
    next(n for n in other.graph.node if n.domain).input[:] = ["a", "", "b"]
    assert not graphfix.verify(one, other).agrees
    assert graphfix.verify(other, other).agrees


def test_nodes_that_leave_their_first_output_out() -> None:
    """An RNN beside it does so, too: it stays."""
    both = model("""g(float[3, 1, 2] x) => (float[1, 1, 2] h, float[3, 1, 2] z)
        <float[1, 2, 2] w = {0.5, 0.25, 1, 2}, float[1, 2, 2] r = {0, 1, 0, 0}, float[3, 1, 2] y> {
        p, h = RNN<hidden_size = 2>(x, w, r) q, y = my.Op(x) z = Relu(y) }""")
    for node in both.graph.node[:2]:
        node.output[0] = ""
    result = graphfix.verify(both, both)
    assert result.agrees and [o.name for o in result.outputs] == ["h", "z"]


def test_nothing_is_known_of_what_it_makes() -> None:
    text = "g(float[N, 3] x) => (float y, float[N, 3] z) {{ z = {op}(x) a = Neg(x) c = my.Op(a) y = ReduceSum(c) }}"
    result = graphfix.verify(model(text.format(op="Abs")), model(text.format(op="Abs")))
    assert result.agrees and "not behind c, as the type is not known" in result.detail
    assert result.not_compared == ["y"] and [o.name for o in result.outputs] == ["z", "a"]
    assert not graphfix.verify(model(text.format(op="Abs")), model(text.format(op="Neg"))).agrees


def test_nothing_can_be_compared() -> None:
    only = model("g(float[N, 3] x) => (float y) { c = my.Op(x) y = ReduceSum(c) }")
    result = graphfix.verify(only, only)
    assert not result.agrees and result.detail.startswith("nothing can be compared: ")


def test_nodes_in_bodies_and_functions() -> None:
    text = """g(float[N, 3] x, bool k) => (float[N, 3] y, float[N, 3] w) <float[N, 3] c, float[N, 3] d> {{ a = {op}(x)
        c = If(k) < then_branch = t () => (float[N, 3] r) {{ r = my.Op(a) }},
                    else_branch = e () => (float[N, 3] s) {{ s = Abs(a) }} >
        d = my.F(c) y = Relu(c) w = Relu(d) }}
        <domain: "my", opset_import: ["": 13, "my": 1]> F (i) => (o) {{ j = my.Other(i) o = Neg(j) }}"""
    one, other = model(text.format(op="Neg")), model(text.format(op="Abs"))
    result = graphfix.verify(one, one)
    assert result.agrees and result.not_run == ["my::Op in If (output 'c')", "my::Other in F (output 'd')"]
    assert not graphfix.verify(one, other).agrees


def test_a_constant_that_goes_into_it() -> None:
    def constant(value: float, folded: bool) -> onnx.ModelProto:
        made = model("g(float[3] x) => (float[3] y) <float[3] c> { a = Neg(w) c = my.Op(a, x) y = Abs(c) }")
        w = np.full(3, value, np.float32)
        if folded:
            del made.graph.node[0]
            made.graph.initializer.append(numpy_helper.from_array(-w, "a"))
        else:
            made.graph.initializer.append(numpy_helper.from_array(w, "w"))
        return made

    assert graphfix.verify(constant(1, False), constant(1, True)).agrees
    assert not graphfix.verify(constant(1, False), constant(2, True)).agrees


def test_inputs_that_are_given_are_completed() -> None:
    sets = [{"x": np.ones((2, 3), np.float32)}, {"x": np.ones((4, 3), np.float32)}]
    result = graphfix.verify(around(), around(), inputs=sets)
    assert result.agrees and result.sets == ["x 2x3, c 2x3", "x 4x3, c 4x3"]


def test_layers_are_compared_without_it() -> None:
    result = graphfix.verify(around(), around("a = Abs(x)"), layers=True)
    assert [layer.name for layer in result.layers] == ["a", "y"] and result.layers[0].first


def test_other_nodes_on_each_side() -> None:
    plain = model("g(float[N, 3] x) => (float[N, 3] y) { y = Abs(x) }")
    assert cut(around(), plain) is None and cut(plain, plain) is None
    assert list(unknown_nodes(around())) == ["my::Op (output 'c')"] and not unknown_nodes(plain)
    result = graphfix.verify(around(), plain)
    assert not result.agrees and "could not be run" in result.detail
    assert "--custom-ops takes the library that has my::Op" in result.detail and "--inputs" not in result.detail
    result = graphfix.verify(plain, around())
    assert "does not load" in result.detail and "--custom-ops takes" in result.detail


def test_aten_nodes_beside_it() -> None:
    aten = model(f"""g(float[N, 3] x, int64[2] i) => (float[N, 3] y) <float[N, 3] c> {{ {NO}
        v = Constant<value = float {{7}}>() a = org.pytorch.aten.ATen<operator = "index_fill", dim = 1>(x, i, v)
        c = my.Op(a) y = Neg(c) }}""")
    result = check_model(aten, aten)
    assert result.status == "confirmed" and len(result.not_run) == 1


def test_a_fixed_model_is_not_called_confirmed_as_a_whole(tmp_path: Path, capfd) -> None:
    text = f"""g(float[N, 3] x, bool[N, 3] m) => (float[N, 3] y) <float[N, 3] c> {{ {NO}
        v = Constant<value = float {{7}}>() p = org.pytorch.aten.ATen<operator = "index_put">(x, m, v, no)
        c = my.Op(p) y = Neg(c) }}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    assert cli.run([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "without 1 node that cannot be run here" in out and "was not run: compared up to it and behind it" in out
    fixed = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in fixed.graph.node if n.domain == "my"] == ["Op"]


# --- libraries


class Libraries:
    """Stands in for SessionOptions.register_custom_ops_library, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registered: list[str] = []
        self.sessions = 0
        library = self
        create = onnxruntime.InferenceSession

        class Options(onnxruntime.SessionOptions):
            def register_custom_ops_library(self, path: str) -> None:
                library.registered.append(path)

        def session(*arguments, **options):
            library.sessions += 1
            return create(*arguments, **options)

        monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
        monkeypatch.setattr(onnxruntime, "InferenceSession", session)


def test_libraries_reach_every_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "ops.so"
    library.touch()
    aten = model(f"""g(float[N, 3] x, int64[2] i) => (float[N, 3] y) {{ {NO} a = Abs(x)
        v = Constant<value = float {{7}}>() b = org.pytorch.aten.ATen<operator = "index_fill", dim = 1>(a, i, v)
        y = Neg(b) }}""")
    plain = model("g(float[N, 3] x, int64[2] i) => (float[N, 3] y) { y = Abs(x) }")
    for one, other in [(aten, plain), (plain, aten)]:
        found = Libraries(monkeypatch)
        graphfix.verify(one, other, custom_ops=[library], layers=True)
        assert found.sessions > 2
        assert found.registered == [str(library)] * (found.sessions + 1)  # once when it is checked


def test_libraries_are_given_to_the_fix(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "ops.so"
    library.touch()
    found = Libraries(monkeypatch)
    assert graphfix.fix(models / "mask_rows.onnx", custom_ops=library, verify="model").ok
    assert found.sessions and len(found.registered) == found.sessions + 1


def test_a_library_that_does_not_have_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    Libraries(monkeypatch)
    result = check_model(around(), around(), options=VerifyOptions(custom_ops=("ops.so",)))
    assert result.status == "failed" and "could not be run" in result.detail and "--custom-ops" not in result.detail


def test_libraries_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "ops.so").write_bytes(b"no library")
    for path, message in [("gone.so", "no such file"), ("ops.so", "does not load as a library")]:
        with pytest.raises(graphfix.InputError, match=message) as caught:
            graphfix.verify(around(), around(), custom_ops=tmp_path / path)
        assert "\n" not in str(caught.value)


def test_no_output_compared_is_no_confirmation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"g(float[N, 4] x, bool[N, 4] m) => (float[N, 4] y) {{ {NO} z = Constant<value = float {{0}}>() "
        'a = org.pytorch.aten.ATen<operator = "index_put">(x, m, z, no) y = my.Op(a) }'
    )
    onnx.save(model(text), tmp_path / "in.onnx")
    result = graphfix.fix(tmp_path / "in.onnx")
    verification = result.report.verification
    assert result.ok and verification.status == "in part" and verification.not_compared == ["y"]
    assert "compared up to it only" in verification.detail and "behind" not in verification.detail
    assert cli.run([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "confirmed" not in out and "no output of the model was compared (y)" in out
    assert cli.run(["verify", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == 0
    assert "compared in part: equal to" in capsys.readouterr().out
    wrong = model(text.replace("(x, m, z, no)", "(x, m, z, yes)").replace(NO, "yes = Constant<value = bool {1}>()"))
    assert graphfix.verify(model(text), wrong).status == "failed"
