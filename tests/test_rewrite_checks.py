"""Checking every rewrite alone: no false alarm, and the step at fault is named."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_put_cases import Case, cases
from onnx import parser
from onnx.reference import ReferenceEvaluator
from planted_faults import planted

import graphfix
from graphfix import cli, pipeline, simplify
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.scatter import scatter_elements, scatter_nd

SETTINGS = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck), print_blob=True)

TWO_WRITES = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N,3] x, int64[2,1] i, float[2,3] v, bool[N] m) => (float[N,3] y) {
    first = ScatterND(x, i, v)
    at = NonZero(m)  rows = Transpose<perm=[1,0]>(at)  zero = Constant<value = float {0}>()
    counts = Shape(at)  one = Constant<value_ints=[1]>()  two = Constant<value_ints=[2]>()
    three = Constant<value_ints=[3]>()
    k = Slice(counts, one, two)  ks = Concat<axis=0>(k, three)  zeros = Expand(zero, ks)
    second = ScatterND(first, rows, zeros)
    w = Constant<value = float[3] {1, 2, 3}>()
    y = Mul(second, w) }"""  # fmt: skip


def _two_writes():
    model = parser.parse_model(TWO_WRITES)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


# ---- no false alarms -------------------------------------------------------------------------------------------------


@SETTINGS
@given(cases(most_rank=4))
def test_right_rewrites_pass(case: Case):
    try:
        result = graphfix.fix(case.model(), verify="rewrites", simplify=False)
    except graphfix.NotConfirmedError as error:
        assert "cannot be checked alone" in str(error)  # sizes that fit a mask's count are not always found
    else:
        assert result.report.rewrites.checked and not result.report.rewrites.unchecked


def test_what_is_said():
    result = graphfix.fix(_two_writes(), simplify=False)
    found = result.report.rewrites
    assert (found.checked, found.exact, found.unchecked) == (2, 2, [])
    assert result.report.verification.status == "confirmed"
    alone = graphfix.fix(_two_writes(), simplify=False, verify="rewrites").report
    assert (alone.verification.status, alone.verification.sets) == ("rewrites only", [])
    model_only = graphfix.fix(_two_writes(), simplify=False, verify="model").report
    assert (model_only.rewrites.checked, model_only.verification.status) == (0, "confirmed")
    neither = graphfix.fix(_two_writes(), simplify=False, verify="none").report
    assert (neither.rewrites.checked, neither.verification.status) == (0, "not run")


REDUCED = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[6] x, int64[4] i, float[4] v) => (float[6] y) { y = ScatterElements<reduction="add">(x, i, v) }"""
NOTHING = """<ir_version: 8, opset_import: ["" : 18]> g (float[6] x) => (float[6] y) { y = Neg(x) }"""


@pytest.mark.parametrize(
    ("text", "verify", "claims", "silent_on"),
    [
        (TWO_WRITES, "all", ["equal to the input model on", "2 checked alone on"], ["not checked", "tolerance"]),
        (TWO_WRITES, "model", ["equal to the input model on"], ["checked alone"]),
        (TWO_WRITES, "rewrites", ["each rewrite alone", "the whole model was not run"], ["the input model"]),
        (TWO_WRITES, "none", ["not checked (--verify none)"], ["equal", "confirmed", "checked alone"]),
        (REDUCED, "model", ["the input model on"], ["checked alone"]),
        (NOTHING, "all", ["not checked: nothing was changed"], ["confirmed", "equal", "checked alone"]),
    ],
)
def test_every_word_of_the_summary_is_true(text, verify, claims, silent_on, tmp_path, capfd):
    """What was not compared is not called equal, and nothing here was compared with PyTorch."""
    onnx.save(parser.parse_model(text), tmp_path / "in.onnx")
    arguments = [str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--no-simplify", "--verify", verify]
    assert cli.run(arguments) == 0
    words = " ".join(capfd.readouterr().out.split())
    assert [claim for claim in claims if claim not in words] == []
    assert [claim for claim in [*silent_on, "PyTorch"] if claim in words] == []


def test_a_rounded_result_is_not_called_equal(tmp_path, capfd):
    onnx.save(parser.parse_model(REDUCED), tmp_path / "in.onnx")
    assert cli.run([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--no-simplify"]) == 0
    words = " ".join(capfd.readouterr().out.split())
    report = graphfix.fix(tmp_path / "in.onnx", simplify=False).report
    assert ("but for rounding" in words) == (report.rewrites.exact < report.rewrites.checked)
    assert ("equal to the input model" in words) == all(o.exact for o in report.verification.outputs)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_only_sums_are_let_round(reduction: str):
    """A one-hot product that only finds positions moves the values as they are, and is held to that."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 16]>
        g (float[A,B] x, int64[K,2] at, float[K] v) => (float[A,B] y) {{
        y = ScatterND<reduction = "{reduction}">(x, at, v) }}""")
    result = graphfix.fix(model, simplify=False).report
    (replaced,) = result.replacements
    assert "MatMul" in replaced.emitted or reduction == "add"
    assert result.rewrites.checked == 1 and (result.rewrites.exact == 1 or reduction == "add")


def test_facts_about_inputs_hold_at_the_cut():
    """Indices from TopK are unique and in range, a negated mask has no place in common with the other."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[B,9] score, bool[B,9] m, float[B,9] a) => (float[B,9] y) {
        k = Constant<value_ints=[4]>()  values, at = TopK(score, k)
        marked = ScatterElements<axis=1>(score, at, values)
        other = Not(m)  nz = NonZero(other)  places = Transpose<perm=[1,0]>(nz)
        read = GatherND(a, places)  double = Add(read, read)
        y = ScatterND(marked, places, double) }""")
    found = graphfix.fix(model, verify="rewrites", simplify=False).report
    assert found.rewrites.checked == 2 and found.rewrites.exact == 2


@pytest.mark.parametrize("dtype", ["float", "double", "int64"])
@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_products_in_any_order(op, dtype):
    """Products of large and tiny numbers overflow in one order and vanish in another: that is no difference."""
    index = "int64[k,1] i" if op == "ScatterND" else "int64[k,4] i"
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g ({dtype}[N,4] x, {index}, {dtype}[k,4] v) => ({dtype}[N,4] y) {{ y = {op}<reduction="mul">(x, i, v) }}""")
    report = graphfix.fix(model, simplify=False).report
    if report.replacements:
        assert report.verification.status == "confirmed" and report.rewrites.checked == 1
    else:
        assert dtype == "int64" and report.left  # integer products have no exact form


def test_counters_in_floats_hold_at_the_cut():
    """What a rewrite knows of a bound that is computed in floats is so in the check as well."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4,9] x, float f, float[4] v) => (float[4,9] y) {
        one = Constant<value = float {1}>()  next = Add(f, one)  stop = Cast<to=7>(next)  start = Cast<to=7>(f)
        nine = Constant<value = int64 {9}>()  end = Min(stop, nine)  step = Constant<value = int64 {1}>()
        places = Range(start, end, step)  row = Constant<value_ints=[1,-1]>()  r = Reshape(places, row)
        many = Constant<value_ints=[4,1]>()  i = Tile(r, many)  last = Constant<value_ints=[1]>()
        k = Shape(i)  u = Unsqueeze(v, last)  values = Expand(u, k)  y = ScatterElements<axis=1>(x, i, values) }""")
    found = graphfix.fix(model, verify="rewrites", simplify=False, input_ranges={"f": (0, 8)}).report
    assert found.rewrites.checked == 1


LARGE_MASK = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[4,256,100,100] x, bool[4,256,100,100] m) => (float[4,256,100,100] y) {
    at = NonZero(m)  rows = Transpose<perm=[1,0]>(at)  read = GatherND(x, rows)  two = Constant<value = float {2}>()
    double = Mul(read, two)  y = ScatterND(x, rows, double) }"""
LARGE_ROWS = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[1200,300] x, int64[3,1] i, float[3,300] v) => (float[1200,300] y) { y = ScatterND(x, i, v) }"""


@pytest.mark.parametrize("text", [LARGE_MASK, LARGE_ROWS])
def test_large_fixed_sizes(text, monkeypatch):
    """Smaller where the nodes do not hold the sizes (a Where), at the full size on few sets where they do."""
    found = graphfix.fix(parser.parse_model(text), simplify=False, verify="rewrites").report.rewrites
    assert found.checked == 1 and (found.sets > 5) == (text is LARGE_MASK)
    model = parser.parse_model(text)
    model.graph.node[-1].name = "wrong"
    with planted(monkeypatch, "signs_lost", "wrong"), pytest.raises(graphfix.NotConfirmedError, match="'wrong'"):
        graphfix.fix(model, simplify=False, verify="rewrites")


def test_a_rewrite_that_cannot_be_cut_out_is_reported():
    """Nothing tells the sizes that make the values fit: the model runs only for one of them."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[6,3] x, int64[40,1] i, float[n,m] v, int64[2] s) => (float[6,3] y) {
        u = Reshape(v, s)  y = ScatterND(x, i, u) }""")
    report = graphfix.fix(model, verify="none", simplify=False).report
    assert report.replacements
    found = graphfix.fix(
        model,
        simplify=False,
        inputs={
            "x": np.zeros((6, 3), np.float32),
            "i": np.zeros((40, 1), np.int64),
            "v": np.ones((30, 4), np.float32),
            "s": np.array([40, 3]),
        },
    ).report
    assert len(found.rewrites.unchecked) + found.rewrites.checked == 1


# ---- the step at fault -----------------------------------------------------------------------------------------------


FAULTS = ["write_lost", "signs_lost", "last_element_dropped", "rows_in_reverse"]


@pytest.mark.parametrize(
    ("fault", "node"),
    [
        *((fault, node) for fault in FAULTS for node in ("first", "second")),
        ("values_negated", "first"),  # the second writes zeros, which have no sign
    ],
)
@pytest.mark.parametrize("verify", ["model", "rewrites", "all"])
def test_the_rewrite_at_fault_is_named(fault, node, verify, monkeypatch):
    model = _two_writes()
    if fault == "rows_in_reverse":  # needs a fixed size
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "N":
                    dim.dim_value = 6
    with planted(monkeypatch, fault, node), pytest.raises(graphfix.NotConfirmedError) as caught:
        graphfix.fix(model, verify=verify, simplify=False)
    other = {"first": "second", "second": "first"}[node]
    assert f"'{node}'" in str(caught.value)
    assert f"'{other}'" not in str(caught.value)


def test_a_wrong_simplification_is_left_out(monkeypatch):
    def wrong(model, **options):
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        product = next(n for n in broken.graph.node if n.op_type == "Mul")
        product.op_type = "Add"
        return simplify.SimplifyOutcome(broken, "")

    monkeypatch.setattr(pipeline.simplify, "simplify", wrong)
    result = graphfix.fix(_two_writes())
    assert any("not simplified: the result of onnxsim was not equal" in w for w in result.report.warnings)
    assert result.report.verification.status == "confirmed"
    assert [n.op_type for n in result.model.graph.node].count("Mul") >= 1
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(5, 3)).astype(np.float32),
        "i": np.array([[1], [-1]]),
        "v": rng.normal(size=(2, 3)).astype(np.float32),
        "m": np.array([0, 1, 0, 0, 1], bool),
    }
    expected = feeds["x"].copy()
    expected[[1, -1]] = feeds["v"]
    expected[feeds["m"]] = 0
    expected *= np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(ReferenceEvaluator(result.model).run(None, feeds)[0], expected)


def test_the_model_that_failed_may_be_kept(tmp_path, monkeypatch):
    target, kept = tmp_path / "fixed.onnx", tmp_path / "failed.onnx"
    with planted(monkeypatch, "write_lost", "second"), pytest.raises(graphfix.NotConfirmedError) as caught:
        graphfix.fix(_two_writes(), target, keep_failed=kept)
    assert not target.exists()
    assert str(kept) in str(caught.value) and caught.value.report is not None
    onnx.checker.check_model(onnx.load(kept))


# ---- the reference's scatters ----------------------------------------------------------------------------------------


@st.composite
def scatters(draw):
    shape = tuple(draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3))))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    reduction = draw(st.sampled_from(["none", "none", "add", "mul", "max", "min"]))
    data = rng.integers(-4, 5, shape).astype(draw(st.sampled_from(["float32", "int64", "float64"])))
    return data, rng, reduction


@SETTINGS
@given(scatters(), st.integers(0, 5), st.booleans())
def test_scatter_nd_like_onnx(case, count, negative):
    data, rng, reduction = case
    width = int(rng.integers(1, data.ndim + 1))
    columns = [rng.integers(-n if negative else 0, n, count) for n in data.shape[:width]]
    indices = np.stack(columns, axis=-1)
    updates = rng.integers(-4, 5, (count, *data.shape[width:])).astype(data.dtype)
    expected = data.copy()
    for row, update in zip(indices, updates, strict=True):
        old = expected[tuple(row)]
        change = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
        expected[tuple(row)] = update if change is None else change(old, update)
    np.testing.assert_array_equal(scatter_nd(data, indices, updates, reduction), expected)


@SETTINGS
@given(scatters(), st.booleans())
def test_scatter_elements_like_onnx(case, negative):
    data, rng, reduction = case
    axis = int(rng.integers(-data.ndim, data.ndim))
    shape = tuple(int(rng.integers(0, n + 1)) for n in data.shape)
    low = -data.shape[axis] if negative else 0
    indices = rng.integers(low, data.shape[axis], shape)
    updates = rng.integers(-4, 5, shape).astype(data.dtype)
    expected = data.copy()
    for place in np.ndindex(shape):
        target = list(place)
        target[axis] = indices[place]
        change = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
        old, update = expected[tuple(target)], updates[place]
        expected[tuple(target)] = update if change is None else change(old, update)
    np.testing.assert_array_equal(scatter_elements(data, indices, updates, axis, reduction), expected)


def test_scatter_keeps_nan_and_refuses_what_does_not_fit():
    data = np.array([np.nan, 1, 2], np.float32)
    at = np.array([0, 1, 2])
    new = np.array([5, np.nan, 7], np.float32)
    np.testing.assert_array_equal(scatter_elements(data, at, new, 0, "max"), np.array([np.nan, np.nan, 7], np.float32))
    with pytest.raises(ReferenceRefusal, match="index 3 is out of range") as caught:
        scatter_elements(data, at + 1, new)
    assert caught.value.index_range == (-3, 3)
    for wrong in (at[:, None], np.zeros((3, 2), np.int64)):
        with pytest.raises(ReferenceRefusal):
            scatter_elements(data, wrong, new)
    with pytest.raises(ReferenceRefusal):
        scatter_nd(data, np.zeros((2, 2), np.int64), new[:2])
