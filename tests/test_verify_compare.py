"""Comparing two outputs: tolerances by dtype and depth, and the figures of the report."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser

from graphfix.verification.compare import compare, merge, ulps
from graphfix.verification.tolerance import BASE, depths, tolerance

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def test_compare_floats():
    e = np.array([1.0, np.nan, np.inf, 0.0], np.float32)
    assert compare(e, e.copy()).exact
    near = compare(e, e + np.float32([1e-6, 0, 0, 0]))
    assert not near.exact and not near.problem and 0 < near.max_abs < 2e-6
    for wrong in ([1.01, np.nan, np.inf, 0], [1, 0, np.inf, 0], [1, np.nan, -np.inf, 0], [1, np.nan, 3e38, 0]):
        assert compare(e, np.array(wrong, np.float32)).problem
    assert compare(e, np.array([1.01, np.nan, np.inf, 0], np.float32), rtol=0.1).problem == ""
    assert compare(np.float32(0), np.float32(0.5)).max_rel == 0 and compare(np.float32(0), np.float32(0.5)).problem
    assert compare(np.zeros((0, 2)), np.zeros((0, 2))).exact


def test_compare_uses_the_tolerance_of_the_dtype():
    for dtype, inside, outside in [
        (np.float64, 1e-13, 6e-8),
        (np.float32, 1e-6, 4.9e-4),
        (np.float16, 5e-3, 0.5),
        (BFLOAT16, 1e-2, 0.5),
    ]:
        one = np.array([1.0], dtype)
        assert not compare(one, np.array([1.0 + inside], dtype)).problem
        assert compare(one, np.array([1.0 + outside], dtype)).problem


def test_compare_integers_bools_and_strings_exactly():
    assert compare(np.array([2**63 - 1]), np.array([2**63 - 2])).problem
    big = compare(np.array([2**63 - 1]), np.array([-(2**63)]))
    assert big.max_abs == 2.0**64 and big.problem
    assert compare(np.array([1], np.uint8), np.array([255], np.uint8)).max_abs == 254
    assert compare(np.array([True]), np.array([False])).problem and compare(np.array([True]), np.array([True])).exact
    assert compare(np.array(["a"], object), np.array(["b"], object)).problem
    assert compare(np.array([5]), np.array([6]), atol=10).problem


def test_compare_sequences():
    a, b = np.ones(2, np.float32), np.zeros(2, np.float32)
    assert compare([a, b], [a, b]).exact
    assert "element 1" in compare([a, b], [a, a]).problem
    assert compare([a], [a, b]).problem and compare([a], a).problem


# --- tolerances


def test_the_tolerance_grows_with_the_root_of_the_depth_up_to_ten_times():
    for depth, growth in [(0, 1), (1, 1), (4, 2), (25, 5), (100, 10), (10_000, 10)]:
        found = tolerance("float32", depth)
        assert math.isclose(found.relative, growth * 1e-5) and math.isclose(found.absolute, growth * 1e-5)
    assert tolerance("float32", 100, rtol=0.5, atol=0.25) == (0.5, 0.25, False)
    assert tolerance("float8_e5m2", 100) == tolerance("float8_e5m2", 1)


def test_a_narrowed_dtype_is_found_behind_any_depth():
    # Rounding to float32 or float16 and back changes a value by up to half a unit in the last place.
    for wide, narrow in [(np.float64, np.float32), (np.float32, np.float16)]:
        values = np.linspace(1, 2, 1001).astype(wide)
        for depth in (1, 1000):
            assert compare(values, values.astype(narrow).astype(wide), depth=depth).problem


def test_tiny_outputs_are_compared_as_strictly_as_others():
    values = np.float32([1e-9, -3e-9, 0])
    assert compare(values, values * np.float32(1.5)).problem
    assert compare(values, values * np.float32(1.5), atol=1e-5).problem == ""  # as it was asked for
    assert compare(values, values + np.float32([0, 0, 1e-14])).problem == ""
    assert compare(np.zeros(3), np.full(3, 1e-300)).problem


def test_infinities_do_not_widen_the_tolerance():
    values = np.float32([np.inf, -np.inf, np.nan, 1e-6])
    assert compare(values, np.float32([np.inf, -np.inf, np.nan, 2e-6])).problem


def test_depths_count_the_longest_path():
    m = parser.parse_model("""<ir_version: 8, opset_import: ["": 13, "my": 1]> g(float[N, 4] x, bool c) =>
        (float[N, 4] deep, float[N, 4] flat, float[N, 4] branched, float[N, 4] called) {
        a = MatMul(x, x) b = Relu(a) d = Softmax(b) deep = Add(d, x) flat = Neg(x)
        branched = If(c) < then_branch = t () => (float[N, 4] r) { p = MatMul(a, a) r = MatMul(p, p) },
                           else_branch = e () => (float[N, 4] q) { q = Neg(x) } >
        called = my.F(a) }
        <domain: "my", opset_import: ["": 13]> F (i) => (o) { j = ReduceSum(i) o = Add(i, j) }""")
    assert depths(m) == {"deep": 2, "flat": 0, "branched": 3, "called": 2}


# --- figures


def test_the_figures_of_a_comparison():
    e = np.float32([[1, 2, 0], [np.nan, 4, -0.0]])
    a = np.float32([[1, np.nextafter(np.float32(2), np.float32(3)), 0], [np.nan, 5, -0.0]])
    found = compare(e, a)
    assert (found.max_abs, found.max_rel, found.at) == (1, 0.25, (1, 1))
    assert (found.differing, found.size) == (2, 6)
    assert found.max_ulp == 2**21  # from 4 to 5 are a quarter of the 2 ** 23 floats between 4 and 8
    line = merge("y", "float32", [found, compare(e, e.copy())])
    assert (line.differing, line.elements, line.share, line.largest_at) == (2, 12, 2 / 12, (1, 1))
    assert line.problem == found.problem and "most at [1, 1]: 5, not 4" in line.problem


def test_zeros_of_both_signs_are_equal():
    assert compare(np.float32([0.0, 1]), np.float32([-0.0, 1])).exact
    found = compare(np.float32([0.0, 1]), np.float32([-0.0, 2]))
    assert (found.differing, found.at, found.max_abs) == (1, (1,), 1)


def test_values_that_print_alike_are_told_apart():
    step = np.nextafter(np.float32(1), np.float32(2))
    assert ": 1.00000012, not 1" in compare(np.float32(1), step, rtol=0, atol=0).problem
    assert ": 1.0000000001, not 1" in compare(np.float64(1), np.float64(1.0000000001)).problem


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BFLOAT16, ml_dtypes.float8_e4m3fn])
@given(st.floats(-100, 100))
def test_one_step_is_one_ulp(dtype, value):
    x = np.array([value], dtype)
    bits = x.view(f"i{x.dtype.itemsize}")
    if bits[0] in (0, np.iinfo(bits.dtype).min):
        return
    assert ulps(x, (bits + 1).view(dtype))[0] == 1 and ulps(x, x)[0] == 0


def test_ulps_across_zero_and_over_the_whole_range():
    tiny = np.float64(5e-324)
    assert ulps(np.array([-tiny]), np.array([tiny]))[0] == 2
    assert ulps(np.array([-0.0]), np.array([0.0]))[0] == 0
    top = np.finfo(np.float64).max
    assert ulps(np.array([-top]), np.array([top]))[0] == pytest.approx(2.0**64, rel=0.01)


def test_large_arrays_are_compared_in_parts():
    e = np.zeros((3, 700_000), np.float32)
    a = e.copy()
    e[0, 5] = a[0, 5] = 1
    a[2, 123_456] = 7
    found = compare(e, a)
    assert found.at == (2, 123_456) and found.differing == 1 and found.size == 2_100_000 and found.max_abs == 7


def test_four_bit_integers_are_exact():
    assert compare(np.array([4], ml_dtypes.int4), np.array([5], ml_dtypes.int4)).problem
    assert set(BASE) >= {"float16", "bfloat16", "float32", "float64"}


@given(st.sampled_from(["int64", "uint64", "int8", "uint8", "int32", "bool"]), st.data())
def test_integers_differ_by_what_python_says(dtype, data):
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    numbers = st.lists(st.integers(int(low), int(high)), min_size=1, max_size=6)
    one = data.draw(numbers)
    other = [data.draw(st.sampled_from([n, int(low), int(high), 0])) for n in one]
    found = compare(np.array(one, dtype), np.array(other, dtype))
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    assert found.max_abs == float(max(gaps)) and found.differing == sum(1 for gap in gaps if gap)
    ratios = [gap / abs(n) for gap, n in zip(gaps, one, strict=True) if gap and n]
    assert found.max_rel == pytest.approx(max(ratios, default=0.0), rel=1e-12)
    assert found.at == ((gaps.index(max(gaps)),) if any(gaps) else None)


def test_sums_that_other_kernels_made_may_differ_in_proportion_to_the_whole() -> None:
    expected = np.array([300.0, -400.0, 0.01], np.float32)
    near = expected + np.array([0, 0, 1e-3], np.float32)
    far = expected + np.array([0, 0, 1e-1], np.float32)
    assert compare(expected, near).problem
    assert not compare(expected, near, elsewhere=True).problem
    assert compare(expected, far, elsewhere=True).problem
    assert compare(expected, near, elsewhere=True, depth=0).problem  # nothing is added up
