"""Which form a write gets, and what happens to one whose every form costs too much."""

from __future__ import annotations

import numpy as np
import pytest
from aten_op_cases import ALL, Case
from engine import run
from graph_view import View
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from index_put_cases import cases
from onnx import numpy_helper, parser

import graphfix
from graphfix.index_write import Full, IndexWrite, Mask, Points, Reduction, Span
from graphfix.lowering.base import Context
from graphfix.lowering.choose import Plan, choose, size_text
from graphfix.selection import resolve

NODES = """zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() shape = Shape(x)
    n = Gather<axis = 0>(shape, zero) all = Range(zero, n, one)
    some = Constant<value = int64[3] {0, 4, 2}>() same = Constant<value = int64[3] {1, 1, 0}>()"""


def plan(
    text: str,
    *index: object,
    reduction: Reduction = Reduction.NONE,
    budget: int | None = None,
    opset: int | None = None,
    values: str = "v",
) -> Plan | str:
    """The plan for ``x[index] = v``; an index is a slice, or the name of a mask (starting with m) or index tensor."""
    view = View(f"g ({text}) => (float[?] unused) {{ {NODES} unused = Identity(x) }}")
    forms = []
    for item in index:
        if isinstance(item, slice):
            bounds = [view[b] if isinstance(b, str) else b for b in (item.start, item.stop)]
            forms.append(Full() if item == slice(None) else Span(*bounds))
        else:
            forms.append(Mask(view[item]) if item[0] == "m" else Points(view[item]))
    write = IndexWrite(view["x"], tuple(forms), view[values], reduction, view["unused"])
    return choose(resolve(write, view.facts), Context(view.facts, budget, opset))


@pytest.mark.parametrize(
    ("text", "index", "form"),
    [
        ("float[N, T] x, float v", (slice(None),), "replace"),
        ("float[N, T] x, float[N, T] v", (slice(None), slice(None)), "replace"),
        ("float[N, T] x, float v", (slice(None), slice(2, 4)), "span"),
        ("float[N, T] x, float v", (slice(1, -1), slice(-2, None)), "span"),
        ("float[N, T] x, float v, int64[1] b", (slice(None), slice("b", None)), "span_where"),
        ("float[N, T] x, float[N, 1] v, int64[1] b", (slice(None), slice("b", None)), "span_where"),
        ("float[N, T] x, float[M] v, int64[1] b", (slice(None), slice("b", None)), "span_runtime"),
        ("float[N, T, 4] x, bool[N, T] m, float v", ("m",), "mask_where"),
        ("float[N, T, 4] x, bool[N, T] m, float[4] v", ("m",), "mask_where"),
        ("float[N, T, 4] x, bool[T] m, float[N, 1, 4] v", (slice(None), "m"), "mask_where"),
        ("float[N, T, 4] x, bool[N, T] m, float[K, 4] v", ("m",), "mask_packed"),
        ("float[5, T] x, float[3, T] v", ("some",), "points_constant"),
        ("float[5, T] x, float v", ("some",), "points_constant"),
        ("float[N, T] x, float[3, T] v", ("some",), "points_runtime"),
        ("float[N, T] x, int64[K] i, float[K, T] v", ("i",), "points_runtime"),
        ("float[N, T] x, int64[K] i, float v", (slice(None), "i"), "points_runtime"),
        ("float[N, T] x, int64[K] i, int64[M, 1] j, float[M, K] v", ("j", "i"), "points_runtime"),
        ("float[N, T] x, bool[N] m, int64[1] i, float v", ("m", "i"), "points_runtime"),
        ("float[N, T] x, int64[N] i, float[N] v", ("all", "i"), "points_batch"),
        ("float[256, 256] x, int64[512] i, int64[512] j, float[512] v", ("i", "j"), "points_matmul"),
        ("float[N, T] x, int64[K] i, float[K] v", (slice(0, 2), "i"), "span+points_runtime"),
        ("float[N, T] x, bool[N] m, float v", ("m", slice(None, 2)), "span+mask_where"),
    ],
    ids=str,
)
def test_forms(text: str, index: tuple[object, ...], form: str) -> None:
    found = plan(text, *index)
    assert isinstance(found, Plan)
    assert found.name == form
    assert found.kept is None


@pytest.mark.parametrize(
    ("text", "index", "form"),
    [
        ("float[N, T] x, float[N, T] v", (slice(None),), "replace"),
        ("float[N, T] x, float v", (slice(None), slice(2, 4)), "span"),
        ("float[N, T] x, bool[N] m, float v", ("m",), "mask_where"),
        ("float[N, T] x, bool[N] m, float[K, T] v", ("m",), "mask_packed"),
        ("float[50, T] x, float[3, T] v", ("some",), "points_constant"),
        ("float[5, 8] x, float[3, 8] v", ("same",), "reduce"),
        ("float[10, 8] x, int64[5] i, float[5, 8] v", ("i",), "reduce"),
        ("float[5000, 64] x, int64[50] i, float[50, 64] v", ("i",), "one_hot_add"),
        ("float[N, 64] x, int64[K] i, float[K, 64] v", ("i",), "one_hot_add"),
        ("float[N, 512] x, int64[K] i, float v", ("i",), "one_hot_add"),
        ("float[N, T] x, int64[N] i, float[N] v", ("all", "i"), "points_batch"),
    ],
    ids=str,
)
def test_forms_of_sums(text: str, index: tuple[object, ...], form: str) -> None:
    found = plan(text, *index, reduction=Reduction.ADD)
    assert isinstance(found, Plan)
    assert found.name == form
    assert found.kept is None


# ---- the cost of matrix products


def test_products_that_take_many_times_as_long_as_a_scatter() -> None:
    # Not known to be finite: three products of 5000 * 2000 * 64 multiply-adds each. A scatter reads and writes
    # 5000 * 64 and 2000 * 64 floats.
    text = "float[5000, 64] x, int64[2000] i, float[2000, 64] v"
    kept = plan(text, "i", reduction=Reduction.ADD)
    assert isinstance(kept, Plan)
    assert kept.name == "scatter_nd"
    assert kept.kept == (
        "one_hot_add would take 1920 million multiply-adds, where a scatter moves 3 MB; "
        "--budget 39M replaces it all the same"
    )
    lowered = plan(text, "i", reduction=Reduction.ADD, budget=39 << 20)
    assert isinstance(lowered, Plan)
    assert (lowered.name, lowered.kept) == ("one_hot_add", None)


def test_sums_are_not_kept_where_a_scatter_has_no_reduction() -> None:
    text = "float[5000, 64] x, int64[2000] i, float[2000, 64] v"
    before, since = (plan(text, "i", reduction=Reduction.ADD, opset=n) for n in (15, 16))
    assert isinstance(before, Plan)
    assert isinstance(since, Plan)
    assert (before.name, since.name) == ("one_hot_add", "scatter_nd")


def test_one_value_for_all_needs_one_column_only() -> None:
    # 4096 * 2048 multiply-adds, however wide the rows are.
    found = plan("float[4096, 512] x, int64[2048] i", "i", reduction=Reduction.ADD, values="one")
    assert isinstance(found, Plan)
    assert (found.name, found.cost.products) == ("one_hot_add", 4096 * 2048)


# ---- the budget


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30, 7 << 40)] == [
        "0 B",
        "1023 B",
        "1 KB",
        "5 MB",
        "3 GB",
        "7168 GB",
    ]


def test_the_budget_is_the_larger_of_64_mb_and_16_times_what_is_there() -> None:
    # 4096 positions and indices are 64 MB of comparisons.
    assert plan("float[4096] x, int64[4096] i, float[4096] v", "i").kept is None
    assert plan("float[4096] x, int64[4097] i, float[4097] v", "i").kept is not None
    # Rows of 512 floats: 4096 * (4096 + 4097) * 512 * 4 / 4096 bytes are enough.
    assert plan("float[4096, 512] x, int64[4097] i, float[4097, 512] v", "i").kept is None


def test_a_budget_of_ones_own() -> None:
    text = "float[100, 8] x, int64[50] i, float[50, 8] v"
    assert plan(text, "i", budget=20_000).kept is None
    # 100 * 50 comparisons of 4 bytes
    kept = plan(text, "i", budget=19_999)
    assert kept.name == "scatter_nd"
    assert kept.kept == "points_runtime would need an intermediate of 19 KB, the budget is 19 KB"


CANVAS = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
g (float[64, 214272] canvas, int64[40000] at, float[64, 40000] pillars) => (float[64, 214272] y) <bool no = {0}> {
    [scatter] y = org.pytorch.aten.ATen<operator = "index_put">(canvas, none, at, pillars, no)
}"""


@pytest.mark.parametrize("count", ["40000", "K"])
def test_points_on_a_canvas(count: str) -> None:
    """As in point cloud detectors: 214272 positions by 40000 indices of 4 bytes are 31 GB, 16 times the canvas and
    the pillars is 993 MB. The node becomes a standard scatter, and the report says why."""
    model = parser.parse_model(CANVAS.replace("40000", count))
    model.graph.node[0].input[1] = ""
    result = graphfix.fix(model, verify="none", simplify=False)
    assert [(r.code, r.node, r.lowering) for r in result.report.replacements] == [("GF101", "scatter", "scatter_nd")]
    (left,) = result.report.left
    assert (left.code, left.node, left.output, left.operator) == ("GF101", "scatter", "y", "aten::index_put")
    if count == "40000":
        assert left.reason == "points_runtime would need an intermediate of 31 GB, the budget is 993 MB"
    assert not left.asked
    assert result.ok
    assert not graphfix.fix(model, verify="none", simplify=False, strict=True).ok
    scatter = next(n for n in result.model.graph.node if n.op_type == "ScatterND")
    assert not scatter.attribute
    canvas = np.zeros((64, 214272), np.float32)
    at = np.array([5, -1, 5])
    pillars = np.arange(192, dtype=np.float32).reshape(64, 3)
    if count == "K":
        got = run(result.model, {"canvas": canvas, "at": at, "pillars": pillars})
        canvas[:, -1], canvas[:, 5] = pillars[:, 1], pillars[:, 2]
        np.testing.assert_array_equal(got, canvas)


def test_a_dense_scatter_along_an_axis() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
    g (float[4, 50000] x, int64[4, 50000] i, float[4, 50000] v) => (float[4, 50000] y) <int64 dim = {1}> {
        y = org.pytorch.aten.ATen<operator = "scatter">(x, dim, i, v)
    }"""
    result = graphfix.fix(parser.parse_model(text), verify="none", simplify=False)
    (left,) = result.report.left
    assert left.reason == "comparing every position with every index takes 37 GB, the budget is 64 MB"
    assert not left.asked
    assert [n.op_type for n in result.model.graph.node] == ["ScatterElements"]


def test_a_constant_index_along_an_axis_costs_nothing() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
    g (float[4, 50000] x, float[4, 50000] v) => (float[4, 50000] y) <int64 dim = {1}> {
        y = org.pytorch.aten.ATen<operator = "scatter">(x, dim, i, v)
    }"""
    model = parser.parse_model(text)
    index = np.random.default_rng(0).integers(0, 50000, (4, 50000))
    model.graph.initializer.append(numpy_helper.from_array(index, "i"))
    result = graphfix.fix(model, verify="none", simplify=False)
    assert not result.report.left
    assert [n.op_type for n in result.model.graph.node] == ["Concat", "GatherElements"]


# ---- kept scatters are right as well


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.one_of(cases(), ALL["rows"], ALL["masks"], ALL["elements"]))
def test_with_no_budget_at_all(case) -> None:
    if isinstance(case, Case) and str(case.arguments.get("reduce", "")).startswith("am"):
        # The standard does not say what ScatterElements makes of NaN there.
        assume(all(not np.isnan(a).any() for a in case.tensors().values() if a.dtype.kind == "f"))
    answer = case.answer()
    got = run(graphfix.fix(case.model(), verify="none", simplify=False, budget=0).model, case.feeds())
    assert got.dtype == answer.dtype
    tolerance = 2e-2 if answer.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(got, answer, rtol=tolerance, atol=tolerance)


def test_transposes_around_a_write_go() -> None:
    """What the exporter turned for ScatterND's sake is written as it is."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4,6,5] x, float[4,6,2] v) => (float[4,6,5] y)
        <int64[2,1] i = {1, 2}> {
        t = Transpose<perm=[2,0,1]>(x)  u = Transpose<perm=[2,0,1]>(v)
        s = ScatterND(t, i, u)  y = Transpose<perm=[1,2,0]>(s) }""")
    fixed = graphfix.fix(model).model
    assert {n.op_type for n in fixed.graph.node} == {"Slice", "Concat"}
    x, v = np.arange(120, dtype=np.float32).reshape(4, 6, 5), -np.ones((4, 6, 2), np.float32)
    expected = x.copy()
    expected[:, :, 1:3] = v
    np.testing.assert_array_equal(run(fixed, {"x": x, "v": v}), expected)
