"""Symbolic integers and what is read from a graph about shapes, constants, shape vectors and index values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_view import View
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from graphfix.facts import Ramp
from graphfix.symbolic import ONE, Expr, broadcast_dim, product

N, M, T = Expr.dim("N"), Expr.dim("M"), Expr.dim("T")
V = Expr.value("v")
ZERO = Expr.of(0)


# ---- symbols


def test_arithmetic() -> None:
    assert (N + 1) * (N - 1) == N * N - 1
    assert N + M == M + N
    assert N * 2 - N - N == ZERO
    assert (N + 1) * 0 == ZERO
    assert product([N, Expr.of(4), M]) == M * N * 4
    assert product([]) == ONE
    assert Expr.value("N") != N


def test_constants() -> None:
    assert [Expr.of(n).constant for n in (-2, 0, 7)] == [-2, 0, 7]
    assert (N - N + 3).constant == 3
    assert N.constant is None
    assert (N + 3).constant is None


def test_signs() -> None:
    assert (N * 2 + M * N).nonnegative
    assert not (N * 2 + M * N).positive
    assert (N + 1).positive
    assert not (N - 1).nonnegative
    assert not V.nonnegative
    assert not (V * V).nonnegative  # true, but nobody needs it
    assert ZERO.nonnegative
    assert not ZERO.positive


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["", "N", "M", "NN", "NM"])), max_size=5), st.data())
def test_expressions_are_numbers(terms, data) -> None:
    """Whatever the sizes are: + and * are those of the numbers, and signs hold."""
    sizes = {"N": data.draw(st.integers(0, 5)), "M": data.draw(st.integers(0, 5))}
    expression, number = ZERO, 0
    for coefficient, names in terms:
        expression = expression + product([Expr.dim(n) for n in names]) * coefficient
        number += coefficient * int(np.prod([sizes[n] for n in names]))
    value = sum(c * int(np.prod([sizes[u.removeprefix("dim:")] for u in m])) for m, c in expression.terms)
    assert value == number
    assert expression.constant in (None, number)
    assert number >= 0 or not expression.nonnegative
    assert number >= 1 or not expression.positive
    assert (expression * expression - expression * 2 + 1) == (expression - 1) * (expression - 1)


def test_estimates() -> None:
    assert (N * 3 + 2).estimate(10) == 32
    assert (N * M).estimate(10) == 100
    assert (N * M * T).estimate(100, 10) == 100 * 10 * 10
    assert (N * -1).estimate(10) == 0


def test_text() -> None:
    assert str(N * M * 2 + 3) == "3+2*M*N"
    assert str(ZERO) == "0"


def test_broadcast_dims() -> None:
    three = Expr.of(3)
    assert broadcast_dim(N, N) == N
    assert broadcast_dim(N, ONE) == broadcast_dim(ONE, N) == N
    assert broadcast_dim(N, three) == broadcast_dim(three, N) == three  # N has to be 3, or 1
    assert broadcast_dim(N, ZERO) == ZERO
    assert broadcast_dim(N, M) is None


# ---- shape vectors


def test_sizes_through_chains() -> None:
    """The chains that exporters write between a Shape and its use."""
    view = View("""g (float[N, T, 4] x, int64[2] given, int64 one) => (int64[1] end) {
        shape = Shape(x)
        i0 = Constant<value = int64 {0}>()
        i1 = Constant<value = int64 {1}>()
        i2 = Constant<value = int64 {-1}>()
        front = Constant<value = int64[1] {0}>()
        n = Gather<axis = 0>(shape, i0)
        t = Gather<axis = 0>(shape, i1)
        c = Gather<axis = 0>(shape, i2)
        n32 = Cast<to = 6>(n)
        nt = Mul(n, t)
        two = Constant<value = int64 {2}>()
        half = Div(t, two)
        less = Sub(nt, i1)
        n1 = Unsqueeze(n, front)
        c1 = Unsqueeze(c, front)
        both = Concat<axis = 0>(n1, c1)
        from1 = Constant<value = int64[1] {1}>()
        last = Constant<value = int64[1] {9223372036854775807}>()
        tail = Slice(shape, from1, last)
        total = Size(x)
        all = ReduceProd<keepdims = 0>(tail)
        mixed = Add(given, one)
        end = Identity(n1)
    }""")
    expected = {
        "shape": (N, T, Expr.of(4)),
        "n32": (N,),
        "c": (Expr.of(4),),
        "nt": (N * T,),
        "less": (N * T - 1,),
        "both": (N, Expr.of(4)),
        "tail": (T, Expr.of(4)),
        "total": (N * T * 4,),
        "all": (T * 4,),
        "end": (N,),
    }
    assert {name: view.facts.ints(view[name]) for name in expected} == expected
    (half,) = view.facts.ints(view["half"])
    assert half.nonnegative
    assert half.constant is None
    a, b = view.facts.ints(view["mixed"])  # of unknown numbers all that is known is that they are two
    assert a != b
    assert not a.nonnegative
    assert view.facts.const(view["c"]) == 4
    assert view.facts.const(view["n"]) is None


def test_sizes_of_expand() -> None:
    """Where(Equal(target, -1), ones, target), as for ``x.expand(-1, n)``: a size is never -1."""
    view = View("""g (float[N, T] x, int64[2] given) => (int64[2] right) {
        shape = Shape(x)
        minus = Constant<value = int64[2] {-1, -1}>()
        ones = Constant<value = int64[2] {1, 1}>()
        same = Equal(shape, minus)
        right = Where(same, ones, shape)
        odd = Equal(given, minus)
        unknown = Where(odd, ones, given)
    }""")
    assert view.facts.ints(view["right"]) == (N, T)
    assert view.facts.ints(view["unknown"]) not in ((ONE, ONE), view.facts.ints(view["given"]))


def test_no_division_of_what_may_be_negative() -> None:
    view = View("""g (int64[1] v, float[N] x) => (int64[1] q) {
        two = Constant<value = int64[1] {2}>()
        q = Div(v, two)
        s = Shape(x)
        one = Constant<value = int64[1] {1}>()
        less = Sub(s, one)
        p = Div(less, two)
        zero = Constant<value = int64[1] {0}>()
        r = Div(s, zero)
    }""")
    for name in "qpr":
        (quotient,) = view.facts.ints(view[name])
        assert not quotient.nonnegative


# ---- shapes


def test_shapes() -> None:
    view = View("""g (float[N, T, 4] x, float[M] w, int64[2] target) => (float[?] end) {
        flat = Constant<value = int64[2] {-1, 4}>()
        rows = Reshape(x, flat)
        zero = Constant<value = int64[3] {0, 0, -1}>()
        copied = Reshape(x, zero)
        all = Constant<value = int64[1] {-1}>()
        vector = Reshape(x, all)
        opened = Unsqueeze(w, all)
        turned = Transpose(x)
        wide = Concat<axis = 1>(x, x)
        shape = Shape(w)
        ramp = ConstantOfShape(shape)
        free = Reshape(x, target)
        sum = Add(opened, w)
        end = Identity(vector)
    }""")
    expected = {
        "rows": (N * T, Expr.of(4)),
        "copied": (N, T, Expr.of(4)),
        "vector": (N * T * 4,),
        "opened": (M, ONE),
        "turned": (Expr.of(4), T, N),
        "wide": (N, T * 2, Expr.of(4)),
        "ramp": (M,),
        "sum": (M, M),
        "end": (N * T * 4,),
    }
    assert {name: view.facts.shape(view[name]) for name in expected} == expected
    free = view.facts.shape(view["free"])
    assert len(free) == 2
    assert not set(free) & {N, T}


def test_unknown_sizes_are_not_equal() -> None:
    view = View("g (float[?, ?] x, float[?, ?] y) => (float[?, ?] z) { z = Add(x, y) }")
    sizes = [*view.facts.shape(view["x"]), *view.facts.shape(view["y"])]
    assert len(set(sizes)) == 4
    assert not set(view.facts.shape(view["z"])) & set(sizes)


@pytest.mark.parametrize("operator", ["index_put", "scatter_add"])
def test_shapes_through_aten_nodes(operator: str) -> None:
    view = View(f"""g (float[N, 3] x, int64[K] i, float v, bool no) => (float[?, ?] z) {{
        y = org.pytorch.aten.ATen<operator = "{operator}">(x, i, v, no)
        z = Neg(y)
    }}""")
    assert view.facts.shape(view["z"]) == (N, Expr.of(3))
    assert view["y"].dtype == onnx.TensorProto.FLOAT


@pytest.mark.parametrize("operator", ["masked_fill", "masked_scatter"])
def test_masks_broadcast(operator: str) -> None:
    """``x.masked_fill(mask, 0)`` is as large as what x and the mask broadcast to."""
    view = View(f"""g (float[N, 1] x, bool[M, 1, 3] m, float v) => (float[?, ?, ?] z) {{
        y = org.pytorch.aten.ATen<operator = "{operator}">(x, m, v)
        z = Neg(y)
    }}""")
    assert view.facts.shape(view["z"]) == (M, N, Expr.of(3))


# ---- constants


def test_constants_are_computed() -> None:
    view = View("""g (float[N, 3] x) => (int64[3] end) {
        a = Constant<value = int64[3] {1, 2, 3}>()
        b = Constant<value_ints: ints = [4]>()
        sum = Add(a, b)
        shape = Shape(x)
        one = Constant<value = int64 {1}>()
        three = Gather<axis = 0>(shape, one)
        mask = Equal(sum, three)
        found = NonZero(mask)
        zero = Constant<value = int64 {0}>()
        range = Range(zero, three, one)
        end = Mul(range, three)
        text = Constant<value_string: string = "abc">()
    }""")
    facts = view.facts
    np.testing.assert_array_equal(facts.const(view["sum"]), [5, 6, 7])
    np.testing.assert_array_equal(facts.const(view["end"]), [0, 3, 6])
    np.testing.assert_array_equal(facts.const(view["found"]), np.zeros((1, 0)))
    assert facts.scalar(view["three"]) == 3
    assert facts.scalar(view["end"]) is None
    assert facts.const(view["shape"]) is None
    assert facts.const(view["text"]) is None


def test_strings_and_large_tensors() -> None:
    text = onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [], [b"amax"])
    large = numpy_helper.from_array(np.zeros(1 << 20 | 1, np.int64), "large")
    view = View("g (float[N] x) => (float[N] y) { y = Neg(x) }", add=[text, large])
    assert view.facts.scalar(view["text"]) == "amax"
    assert view.facts.const(view["large"]) is None


def test_inputs_with_defaults_are_no_constants() -> None:
    view = View("g (int64[2] i, float[N] x) => (float[N] y) <int64[2] i = {1, 2}, int64[2] j = {3, 4}> { y = Neg(x) }")
    assert view.facts.const(view["i"]) is None
    np.testing.assert_array_equal(view.facts.const(view["j"]), [3, 4])


# ---- index values

RAMPS = """g (float[N, T] x, int64[1] stop, int64 count) => (int64[?] end) {
    shape = Shape(x)
    zero = Constant<value = int64 {0}>()
    one = Constant<value = int64 {1}>()
    two = Constant<value = int64 {2}>()
    n = Gather<axis = 0>(shape, zero)
    whole = Range(zero, n, one)
    from2 = Range(two, n, two)
    v0 = Constant<value = int64[1] {0}>()
    v1 = Constant<value = int64[1] {1}>()
    v2 = Constant<value = int64[1] {2}>()
    minus = Constant<value = int64[1] {-1}>()
    back = Constant<value = int64[1] {-3}>()
    most = Constant<value = int64[1] {9223372036854775807}>()
    most32 = Constant<value = int64[1] {2147483647}>()
    cut = Slice(whole, v1, minus, v0)
    open = Slice(whole, back, most, v0)
    open32 = Slice(whole, v2, most32, v0)
    runtime = Slice(whole, v0, stop)
    every2 = Slice(whole, v0, most, v0, v2)
    reversed = Slice(whole, minus, most, v0, minus)
    twice = Slice(cut, v1, most, v0)
    column = Constant<value = int64[3] {1, -1, 1}>()
    moved = Reshape(cut, column)
    narrow = Cast<to = 6>(whole)
    opened = Unsqueeze(narrow, v0)
    minus1 = Constant<value = int64 {-1}>()
    negative = Range(minus1, n, one)
    down = Range(n, zero, minus1)
    unknown = Range(zero, count, one)
    rest = Range(count, n, one)
    shifted = Add(whole, one)
    floats = Cast<to = 1>(whole)
    end = Identity(cut)
}"""


def test_ramps() -> None:
    view = View(RAMPS)
    expected = {
        "whole": Ramp(N, 0, None, 1, 0),
        "from2": Ramp(N, 2, None, 2, 0),
        "cut": Ramp(N, 1, -1, 1, 0),
        "open": Ramp(N, -3, None, 1, 0),
        "open32": Ramp(N, 2, None, 1, 0),
        "runtime": Ramp(N, 0, view["stop"], 1, 0),
        "every2": Ramp(N, 0, None, 2, 0),
        "moved": Ramp(N, 1, -1, 1, 1),
        "narrow": Ramp(N, 0, None, 1, 0),
        "opened": Ramp(N, 0, None, 1, 1),
        "end": Ramp(N, 1, -1, 1, 0),
    }
    assert {name: view.facts.ramp(view[name]) for name in expected} == expected
    assert [name for name, ramp in expected.items() if ramp.whole] == ["whole", "narrow", "opened"]
    for name in ("reversed", "twice", "negative", "down", "rest", "shifted", "floats", "unknown", "shape"):
        assert view.facts.ramp(view[name]) is None, name


def test_lengths_of_ramps() -> None:
    view = View(RAMPS)
    assert view.facts.shape(view["whole"]) == (N,)
    assert view.facts.shape(view["moved"])[::2] == (ONE, ONE)
    for name in ("cut", "runtime", "from2"):  # these depend on N in ways that symbols do not tell
        assert not set(view.facts.shape(view[name])) & {N, ONE}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("n, none, none, none, none", Ramp(N, 0, None, 1, 0)),
        ("two, n, none, none, none, none", Ramp(N, 2, None, 1, 0)),
        ("two, n, two, none, none, none, none", Ramp(N, 2, None, 2, 0)),
        ("n, two", None),  # from n to 2
    ],
)
def test_ramps_of_aten_arange(arguments: str, expected: Ramp | None) -> None:
    view = View(f"""g (float[N] x) => (int64[?] end) {{
        shape = Shape(x)
        zero = Constant<value = int64 {{0}}>()
        two = Constant<value = int64 {{2}}>()
        n = Gather<axis = 0>(shape, zero)
        end = org.pytorch.aten.ATen<operator = "arange">({arguments})
    }}""")
    assert view.facts.ramp(view["end"]) == expected


def test_what_cannot_be_negative() -> None:
    view = View("""g (float[N, 3] x, int64[K] i, uint8[K] u, bool[K] m) => (int64[?] end) {
        shape = Shape(x)
        found = NonZero(x)
        absolute = Abs(i)
        one = Constant<value = int64[1] {1}>()
        best, where = TopK(x, one)
        largest = ArgMax(x)
        bytes = Cast<to = 7>(u)
        flags = Cast<to = 7>(m)
        zero = Constant<value = int64 {0}>()
        row = Gather(found, zero)
        more = Add(row, one)
        clipped = Max(i, one)
        less = Sub(shape, one)
        copy = Identity(i)
        smaller = Min(i, one)
        minus = Constant<value = int64[1] {-1}>()
        product = Mul(absolute, minus)
        whole = Cast<to = 7>(x)
        end = Identity(more)
    }""")
    for name in ("shape", "found", "absolute", "where", "largest", "bytes", "flags", "row", "more", "clipped", "end"):
        assert view.facts.nonnegative(view[name]), name
    for name in ("i", "less", "copy", "smaller", "minus", "product", "whole"):
        assert not view.facts.nonnegative(view[name]), name
