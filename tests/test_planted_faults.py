"""Every planted fault is found, and the rewrite that it was planted in is named."""

from __future__ import annotations

import numpy as np
import pytest
from engine import run
from onnx import parser
from onnx.reference import ReferenceEvaluator
from planted_faults import NODES, WRITES, planted

import graphfix

NAN, INF, TINY = np.nan, np.inf, np.float32(1e-40)
ODD = np.array([NAN, INF, -INF, -0.0, TINY, -TINY, 3e38, -7.25], np.float32)


def _floats(*shape, seed=0):
    """Normal numbers with odd ones among them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 3, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.4, rng.choice(ODD, shape), values).astype(np.float32)


def _sums(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)


# Two writes each, so that the wrong one could be blamed. ``wrong`` names the one that faults are planted in.
MODELS = {
    "mask": (
        """g (float[N,5] x, bool[N] m, float v) => (float[N,5] y) {
        s = Shape(x)  at = NonZero(m)  rows = Transpose<perm=[1,0]>(at)
        n = Shape(at)  one = Constant<value_ints=[1]>()  two = Constant<value_ints=[2]>()
        k = Slice(n, one, two)  w = Slice(s, one, two)  ks = Concat<axis=0>(k, w)
        values = Expand(v, ks)  wrong = ScatterND(x, rows, values)
        i = Constant<value = int64[1,1] {0}>()  row = Slice(x, one, two)  other = ScatterND(wrong, i, row)
        y = Identity(other) }""",
        {"x": _floats(6, 5), "m": np.array([0, 1, 0, 1, 1, 0], bool), "v": np.array(8, np.float32)},
    ),
    "packed mask": (
        """g (float[4,5] x, bool[4,5] m, float[K] v) => (float[4,5] y) {
        at = NonZero(m)  places = Transpose<perm=[1,0]>(at)  wrong = ScatterND(x, places, v)
        i = Constant<value = int64[1,1] {3}>()  row = Constant<value = float[1,5] {1, 2, 3, 4, 5}>()
        y = ScatterND(wrong, i, row) }""",
        {"x": _floats(4, 5), "m": np.arange(20).reshape(4, 5) % 3 == 0, "v": _floats(7, seed=1)},
    ),
    "rows": (
        """g (float[N,5] x, int64[3,1] i, float[3,5] v) => (float[N,5] y) {
        first = Constant<value = int64[1,1] {1}>()  row = Constant<value = float[1,5] {1, 2, 3, 4, 5}>()
        other = ScatterND(x, first, row)  wrong = ScatterND(other, i, v)  y = Identity(wrong) }""",
        {"x": _floats(7, 5), "i": np.array([[2], [-1], [2]]), "v": _floats(3, 5, seed=1)},
    ),
    "pairs": (
        """g (float[5,5,3] x, int64[4,2] i, float[4,3] v) => (float[5,5,3] y) {
        first = Constant<value = int64[1,2] {1, 1}>()  row = Constant<value = float[1,3] {1, 2, 3}>()
        wrong = ScatterND(x, i, v)  y = ScatterND(wrong, first, row) }""",
        {"x": _floats(5, 5, 3), "i": np.array([[2, 0], [4, -3], [2, 0], [-5, 4]]), "v": _floats(4, 3, seed=1)},
    ),
    "constant rows": (
        """g (float[6,4] x, float[2,4] v) => (float[6,4] y) {
        i = Constant<value = int64[2,1] {4, 1}>()  j = Constant<value = int64[1,1] {2}>()
        wrong = ScatterND(x, i, v)  row = Constant<value = float[1,4] {1, 2, 3, 4}>()
        y = ScatterND(wrong, j, row) }""",
        {"x": _floats(6, 4), "v": _floats(2, 4, seed=1)},
    ),
    "square values": (
        """g (float[6,3] x, int64[3,1] i, float[3,3] v) => (float[6,3] y) {
        wrong = ScatterND(x, i, v)  first = Constant<value = int64[1,1] {1}>()
        row = Constant<value = float[1,3] {1, 2, 3}>()  y = ScatterND(wrong, first, row) }""",
        {"x": _floats(6, 3), "i": np.array([[5], [0], [-4]]), "v": _floats(3, 3, seed=2)},
    ),
    "fill": (
        """g (float[5,5] x, int64[3,1] i) => (float[5,5] y) {
        shape = Constant<value = int64[2] {3, 5}>()  v = ConstantOfShape<value = float[1] {7}>(shape)
        wrong = ScatterND(x, i, v)  first = Constant<value = int64[1,1] {1}>()
        row = Constant<value = float[1,5] {1, 2, 3, 4, 5}>()  y = ScatterND(wrong, first, row) }""",
        {"x": _floats(5, 5), "i": np.array([[3], [0], [-1]])},
    ),
    "slice": (
        """g (float[6,4] x, float[2,4] v) => (float[6,4] y) {
        i = Constant<value = int64[2,1] {2, 3}>()  wrong = ScatterND(x, i, v)
        j = Constant<value = int64[1,1] {5}>()  row = Constant<value = float[1,4] {1, 2, 3, 4}>()
        y = ScatterND(wrong, j, row) }""",
        {"x": _floats(6, 4), "v": _floats(2, 4, seed=1)},
    ),
    "slice to a bound": (
        """g (float[6,4] x, int64[1] n) => (float[6,4] y) {
        zero = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
        six = Constant<value = int64 {6}>()  start = Constant<value = int64 {0}>()  step = Constant<value = int64 {1}>()
        all = Range(start, six, step)  some = Slice(all, zero, n, zero, one)
        last = Constant<value_ints=[-1]>()  i = Unsqueeze(some, last)  k = Shape(some)
        four = Constant<value_ints=[4]>()  ks = Concat<axis=0>(k, four)  v = Constant<value = float {9}>()
        values = Expand(v, ks)  wrong = ScatterND(x, i, values)
        first = Constant<value = int64[1,1] {5}>()  row = Constant<value = float[1,4] {1, 2, 3, 4}>()
        y = ScatterND(wrong, first, row) }""",
        {"x": _floats(6, 4), "n": np.array([3])},
    ),
    "sum of rows": (
        """g (float[N,3] x, int64[4,1] i, float[4,3] v) => (float[N,3] y) {
        wrong = ScatterND<reduction="add">(x, i, v)  first = Constant<value = int64[1,1] {1}>()
        row = Constant<value = float[1,3] {1, 2, 3}>()  y = ScatterND(wrong, first, row) }""",
        {"x": _sums(6, 3), "i": np.array([[5], [0], [-1], [2]]), "v": _sums(4, 3, seed=2)},
    ),
    "largest": (
        """g (float[6] x, int64[4] i, float[4] v) => (float[6] y) {
        wrong = ScatterElements<reduction="max">(x, i, v)  first = Constant<value = int64[1] {1}>()
        one = Constant<value = float[1] {1}>()  y = ScatterElements(wrong, first, one) }""",
        {"x": _floats(6), "i": np.array([5, 0, -1, 2]), "v": np.array([1, -2, 30, 4], np.float32)},
    ),
    "product": (
        """g (float[6] x, int64[4] i, float[4] v) => (float[6] y) {
        wrong = ScatterElements<reduction="mul">(x, i, v)  first = Constant<value = int64[1] {1}>()
        one = Constant<value = float[1] {1}>()  y = ScatterElements(wrong, first, one) }""",
        {"x": _sums(6), "i": np.array([5, 0, -1, 2]), "v": np.array([1, -2, 30, 4], np.float32)},
    ),
    "along an axis": (
        """g (float[4,4] x, int64[4,4] i, float[4,4] v) => (float[4,4] y) {
        wrong = ScatterElements<axis=1>(x, i, v)  first = Constant<value = int64[1,1] {1}>()
        row = Constant<value = float[1,4] {1, 2, 3, 4}>()  y = ScatterND(wrong, first, row) }""",
        {
            "x": _floats(4, 4),
            "i": np.array([[0, 1, 1, 3], [-1, 0, 2, 2], [3, 2, 1, 0], [0, 0, 0, 0]]),
            "v": _floats(4, 4, seed=3),
        },
    ),
    "integers": (
        """g (int64[6] x, int64[2] i, int64[2] v) => (int64[6] y) {
        wrong = ScatterElements(x, i, v)  first = Constant<value = int64[1] {1}>()
        one = Constant<value = int64[1] {1000}>()  y = ScatterElements(wrong, first, one) }""",
        {"x": np.arange(6) * 1000, "i": np.array([-1, 0]), "v": np.array([2**40, -5])},
    ),
}  # fmt: skip

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def _model(text):
    model = parser.parse_model(HEADER + text)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def _answer(key, model, feeds):
    """By onnx's reference evaluator; of a product by hand: the evaluator of onnx 1.21 does not multiply."""
    if key != "product":
        return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    expected = feeds["x"].copy()
    for place, value in zip(feeds["i"], feeds["v"], strict=True):
        expected[place] *= value
    expected[1] = 1
    return expected


def _is_wrong(model, expected, feeds):
    """Whether a model gives another answer than the reference evaluator gave for the input model, or none at all."""
    try:
        actual = run(model, feeds)
    except Exception:
        return True
    try:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=0)
    except AssertionError:
        return True
    return False


def _planted_and_wrong(name, monkeypatch):
    """The models that the fault makes give wrong answers, each with the error that graphfix raised (or None)."""
    for key, (text, feeds) in MODELS.items():
        model = _model(text)
        expected = _answer(key, model, feeds)
        with planted(monkeypatch, name, "wrong") as applied:
            broken = graphfix.fix(model, simplify=False, verify="none").model
        if not applied or not _is_wrong(broken, expected, feeds):
            continue
        with planted(monkeypatch, name, "wrong"):
            try:
                graphfix.fix(model, simplify=False)
            except graphfix.NotConfirmedError as error:
                yield key, error
            else:
                yield key, None


@pytest.mark.parametrize("text", MODELS, ids=str)
def test_the_models_are_confirmed_as_they_are(text):
    source, feeds = MODELS[text]
    model = _model(source)
    result = graphfix.fix(model)
    assert any(r.node == "wrong" for r in result.report.replacements)
    assert result.report.rewrites.checked >= 2 and not result.report.rewrites.unchecked
    assert not _is_wrong(result.model, _answer(text, model, feeds), feeds)


def test_there_are_forty():
    assert len(WRITES) + len(NODES) >= 40


@pytest.mark.parametrize("name", [*WRITES, *NODES])
def test_a_planted_fault_is_found_and_named(name, monkeypatch):
    found = dict(_planted_and_wrong(name, monkeypatch))
    assert found, "the fault makes no model wrong: it tests nothing"
    assert [key for key, error in found.items() if error is None] == []
    assert [f"{key}: {error}" for key, error in found.items() if "'wrong'" not in str(error)] == []
