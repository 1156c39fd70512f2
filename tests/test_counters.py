"""Writes at a counter and at ranges with bounds that are known only at run time, held against NumPy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from engine import run
from onnx import TensorProto, parser

import graphfix

GONE = {"ATen", "ScatterND", "ScatterElements", "NonZero", "GatherND"}


def ops(graph: onnx.GraphProto) -> Counter:
    """How often each operator occurs, bodies included."""
    found = Counter(n.op_type for n in graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += ops(attribute.g)
    return found


NEXT = {
    "integers": "next = Add(at, one)",
    "floats": """real = Cast<to = 1>(at) unit = Constant<value = float {1.0}>() more = Add(real, unit)
        next = Cast<to = 7>(more)""",
}
WRITE = """part = Slice(x, start, stop, one_axis, one_axis) shape = Shape(part)
    batch = Slice(shape, zero, one_axis, zero) size = Slice(shape, two, three, zero) repeats = Concat<axis = 0>(batch,
    one_axis, size) first = Squeeze(start) last = Squeeze(stop) all = Range(first, last, one)
    column = Reshape(all, middle) index = Tile(column, repeats) wide = Unsqueeze(v, one_axis)
    values = Expand(wide, shape) y = ScatterElements<axis = 1>(x, index, values)"""
CONSTANTS = """one = Constant<value = int64 {1}>() one_axis = Constant<value = int64[1] {1}>()
    zero = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {2}>()
    three = Constant<value = int64[1] {3}>() middle = Constant<value = int64[3] {1, -1, 1}>()"""


@pytest.mark.parametrize("count", NEXT)
@pytest.mark.parametrize("rows", ["4", "N"])
def test_a_counter(count: str, rows: str) -> None:
    """``x[:, i : min(i + 1, 6)] = v`` as Paddle writes set_value: one comparison, no last-wins bookkeeping."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[{rows}, 6, 3] x, int64 at, float[{rows}, 3] v) => (float[{rows}, 6, 3] y) {{ {CONSTANTS}
        {NEXT[count]} sizes = Shape(x) limit = Slice(sizes, one_axis, two, zero)
        start = Reshape(at, one_axis) after = Reshape(next, one_axis) stop = Min(limit, after) {WRITE} }}""")
    done = graphfix.fix(model, simplify=False, verify="none")
    found = ops(done.model.graph)
    assert not GONE & set(found)
    assert not {"ReduceMax", "Gather", "Tile"} & set(found)
    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((4, 6, 3)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    for at in (0, 3, 5, 6, 9):
        answer = x.copy()
        if at < 6:
            answer[:, at] = v
        feeds = {"x": x, "at": np.array(at), "v": v}
        np.testing.assert_array_equal(run(done.model, feeds), answer)


@pytest.mark.parametrize("stop", ["Min(limit, far)", "Min(other, after)", "Identity(after)"])
def test_what_is_no_counter(stop: str) -> None:
    """Two positions, another limit than the axis's size, and a float count without a limit."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[N, 6, 3] x, int64 at, float[N, 3] v) => (float[N, 6, 3] y) {{ {CONSTANTS}
        {NEXT["floats"]} sizes = Shape(x) limit = Slice(sizes, one_axis, two, zero)
        other = Slice(sizes, two, three, zero) start = Reshape(at, one_axis) after = Reshape(next, one_axis)
        far = Add(after, one_axis) stop = {stop} {WRITE} }}""")
    done = graphfix.fix(model, simplify=False, verify="none")
    assert not GONE & set(ops(done.model.graph))
    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((2, 6, 3)).astype(np.float32), rng.standard_normal((2, 3)).astype(np.float32)
    for at in (0, 2, 4, 5):
        last = {"Min(limit, far)": min(6, at + 2), "Min(other, after)": min(3, at + 1)}.get(stop, at + 1)
        answer = x.copy()
        answer[:, at:last] = v[:, None]
        np.testing.assert_array_equal(run(done.model, {"x": x, "at": np.array(at), "v": v}), answer)


def test_a_counter_in_a_type_that_ends_early() -> None:
    """int8(130) is -126: the stop lies before the start, and nothing is written."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[1, 300, 1] x, int64 at, float[1, 1] v) => (float[1, 300, 1] y) {{ {CONSTANTS}
        real = Cast<to = {TensorProto.INT8}>(at) unit = Cast<to = {TensorProto.INT8}>(one) more = Add(real, unit)
        next = Cast<to = 7>(more) sizes = Shape(x) limit = Slice(sizes, one_axis, two, zero)
        start = Reshape(at, one_axis) after = Reshape(next, one_axis) stop = Min(limit, after) {WRITE} }}""")
    done = graphfix.fix(model, simplify=False, verify="none")
    x = np.zeros((1, 300, 1), np.float32)
    answer = x.copy()
    answer[:, 7] = 1
    feeds = {"x": x, "v": np.ones((1, 1), np.float32)}
    np.testing.assert_array_equal(run(done.model, {**feeds, "at": np.array(7)}), answer)
    np.testing.assert_array_equal(run(done.model, {**feeds, "at": np.array(130)}), x)


def test_a_counter_in_a_loop() -> None:
    """``for i in range(8): x[:, i : min(i + 1, 6)] = i + 1``: the last two write nothing."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[N, 6, 3] given) => (float[N, 6, 3] result) {{
        trips = Constant<value = int64 {{8}}>() go = Constant<value = bool {{1}}>()
        result = Loop(trips, go, given) <body = body (int64 at, bool again, float[N, 6, 3] x)
            => (bool on, float[N, 6, 3] y) {{
            {CONSTANTS} {NEXT["floats"]} sizes = Shape(x) limit = Slice(sizes, one_axis, two, zero)
            on = Identity(again) nothing = Constant<value = float {{0}}>() column_one = Gather<axis = 1>(x, one)
            blank = Mul(column_one, nothing) v = Add(blank, more)
            start = Reshape(at, one_axis) after = Reshape(next, one_axis) stop = Min(limit, after) {WRITE} }}> }}""")
    done = graphfix.fix(model, simplify=False, verify="none")
    assert not GONE & set(ops(done.model.graph))
    given = np.ones((2, 6, 3), np.float32)
    answer = np.repeat(np.arange(1, 7, dtype=np.float32)[None, :, None], 2, 0).repeat(3, 2)
    np.testing.assert_array_equal(run(done.model, {"given": given}), answer)


@pytest.mark.parametrize("dtype", ["float", "bool"])
def test_a_range_between_sizes(dtype: str) -> None:
    """``x[len(a):len(b)] = v`` by an index Range: a slice by computed bounds, empty when b is the shorter."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13]>
        g ({dtype}[T, 2] x, float[A] a, float[B] b, {dtype}[K, 2] v) => ({dtype}[T, 2] y) {{
        zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>()
        last = Constant<value = int64[1] {{-1}}>() sa = Shape(a) sb = Shape(b) start = Gather(sa, zero)
        stop = Gather(sb, zero) at = Range(start, stop, one) index = Unsqueeze(at, last)
        y = ScatterND(x, index, v) }}""")
    done = graphfix.fix(model, simplify=False, verify="none")
    assert [r.lowering for r in done.report.replacements] == ["span_runtime"]
    x = np.arange(12).reshape(6, 2).astype(np.float32 if dtype == "float" else bool)
    for start, stop in ((0, 6), (1, 4), (5, 6), (3, 3), (4, 2), (6, 6)):
        count = max(stop - start, 0)
        v = (-np.arange(2 * count)).reshape(count, 2).astype(x.dtype)
        answer = x.copy()
        answer[start:stop] = v
        feeds = {"x": x, "a": np.zeros(start, np.float32), "b": np.zeros(stop, np.float32), "v": v}
        np.testing.assert_array_equal(run(done.model, feeds), answer)
