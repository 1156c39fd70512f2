"""What a changed model no longer needs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import graphfix

MASKED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,6] x, bool[2,6] m, float[n] v) => (float[a,b] y) <int64[2] s = {%s}>
{ p = NonZero(m) q = Transpose<perm=[1,0]>(p) w = ScatterND(x, q, v) y = Reshape<allowzero=1>(w, s) }"""


def _reshapes(model: onnx.ModelProto) -> list[dict[str, int]]:
    return [{a.name: a.i for a in n.attribute} for n in model.graph.node if n.output[0] == "y"]


@pytest.mark.parametrize(("sizes", "kept"), [("3, 4", {}), ("-1, 4", {}), ("3, 0", {"allowzero": 1})])
@pytest.mark.parametrize("simplify", [False, True])
def test_allowzero_goes_where_no_size_is_zero(sizes, kept, simplify):
    text = MASKED % sizes
    if "0" in sizes:
        text = text.replace("float[2,6]", "float[0,6]").replace("bool[2,6]", "bool[0,6]")
    result = graphfix.fix(parser.parse_model(text), simplify=simplify, verify="none")
    assert result.report.replacements
    assert _reshapes(result.model) in ([kept], [])  # a tensor without elements may have been folded


def test_allowzero_stays_where_the_sizes_are_computed():
    text = MASKED.replace("float[n] v)", "float[n] v, int64[2] s)").replace(" <int64[2] s = {%s}>", "")
    result = graphfix.fix(parser.parse_model(text), simplify=False, verify="none")
    assert _reshapes(result.model) == [{"allowzero": 1}]


def test_a_model_without_index_writes_keeps_its_allowzero():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,6] x) => (float[3,4] y) <int64[2] s = {3,4}> { y = Reshape<allowzero=1>(x, s) }""")
    assert graphfix.fix(model).model == model


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_max_keeps_nan_without_is_nan(dtype):
    """The written form of IsNaN: NaN from either side wins, infinities and -0.0 do not pass for NaN."""
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[6] x, int64[4] i, {kind}[4] v) => ({kind}[6] y)
        {{ y = ScatterElements<reduction="max">(x, i, v) }}""")
    fixed = graphfix.fix(model).model
    assert not {"IsNaN", "ScatterElements"} & {n.op_type for n in fixed.graph.node}
    feeds = {
        "x": np.array([np.nan, 1, -np.inf, np.inf, -0.0, 2], dtype),
        "i": np.array([1, 2, 3, 1]),
        "v": np.array([np.nan, -np.inf, np.inf, 5], dtype),
    }
    expected = np.array([np.nan, np.nan, -np.inf, np.inf, -0.0, 2], dtype)
    for run in (ReferenceEvaluator(fixed).run, _ort(fixed)):
        np.testing.assert_array_equal(run(None, feeds)[0], expected)


def _ort(model):
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run


def test_sizes_of_a_body_are_not_taken_from_another():
    """Two nodes of one name: what their bodies call ``s`` is not the same."""
    body = """If(k) <then_branch = t () => (float[a,b] {out}) {{ {s} = Constant<value = int64[2] {{{sizes}}}>()
        {out} = Reshape<allowzero = 1>(w, {s}) }}, else_branch = e () => (float[c,d] {out}_e) {{ {out}_e = Neg(w) }}>"""
    model = parser.parse_model(
        MASKED[: MASKED.index("bool[2,6] m")].replace("float[2,6]", "float[0,6]")
        + "bool[0,6] m, float[n] v, bool k) => (float[a,b] y, float[c,d] z)"
        + "{ p = NonZero(m) q = Transpose<perm=[1,0]>(p) w = ScatterND(x, q, v) y = "
        + body.format(out="r", s="s", sizes="3, 0")
        + " z = "
        + body.format(out="r", s="s", sizes="2, -1")
        + "}"
    )
    for node in model.graph.node:
        node.name = "branch" if node.op_type == "If" else ""
    result = graphfix.fix(model, simplify=False, verify="none")
    assert result.report.replacements
    branches = [n.attribute[0].g.node[1] for n in result.model.graph.node if n.op_type == "If"]
    assert [[a.name for a in n.attribute] for n in branches] == [["allowzero"], []]
