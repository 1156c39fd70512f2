"""What an index selects: which parts become slices, batches, sets of points and masks, and where the values belong."""

from __future__ import annotations

import pytest
from graph_view import View

from graphfix.index_write import Full, IndexWrite, Mask, Points, Reduction, Span
from graphfix.selection import Group, PairedMask, PointSet, Selection, Unresolvable, resolve
from graphfix.symbolic import ONE, Expr

N, T, K, M = (Expr.dim(name) for name in "NTKM")
THREE, FOUR = Expr.of(3), Expr.of(4)


def select(text: str, *index: str, values: str = "v", data: str = "x", nodes: str = "") -> tuple[View, Selection]:
    """Resolve ``data[index] = values``. An index is ``:``, the name of a mask (in which case it starts with m) or of an
    index tensor."""
    view = View(f"g ({text}) => (float[?] unused) {{ {nodes} unused = Identity(v) }}")
    forms = tuple(Full() if i == ":" else Mask(view[i]) if i[0] == "m" else Points(view[i]) for i in index)
    return view, resolve(IndexWrite(view[data], forms, view[values], Reduction.NONE, view["unused"]), view.facts)


def ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>()"


RANGE_N = """zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() shape = Shape(x)
    n = Gather<axis = 0>(shape, zero) all = Range(zero, n, one)"""


# ---- one index


def test_nothing_is_indexed() -> None:
    _, found = select("float[N, T] x, float v", ":")
    assert found.groups == (Group((0,), Full(), (0,), N), Group((1,), Full(), (1,), T))
    assert (found.shape, found.dims, found.uniform) == ((N, T), (), True)


@pytest.mark.parametrize(
    ("size", "values", "expected"),
    [
        ("N", (1, 2, 3), Span(1, 4)),
        ("N", (0,), Span(0, 1)),
        ("N", (-3, -2), Span(-3, -1)),
        ("N", (-2, -1), Span(-2, None)),
        ("5", (3, 4), Span(3, 5)),
        ("5", (-2, -1), Span(3, 5)),
        ("5", (2, -2), Span(2, 4)),
        ("3", (0, 1, 2), Full()),
        ("3", (0, 1, -1), Full()),
        ("N", (0, 2), None),
        ("N", (2, 1), None),
        ("N", (1, 1), None),
        ("N", (-1, 0), None),
        ("4", (4,), None),
        ("N", (), Span(0, 0)),
    ],
    ids=str,
)
def test_constant_indices(size: str, values: tuple[int, ...], expected: Span | Full | None) -> None:
    view, found = select(f"float[{size}, T] x, float v", "i", nodes=ints("i", *values))
    extent = N if size == "N" else Expr.of(int(size))
    (group, rest) = found.groups
    assert group.index == (PointSet((0,), (view["i"],)) if expected is None else expected)
    assert group.length == (extent if isinstance(expected, Full) else Expr.of(len(values)))
    assert rest == Group((1,), Full(), (1,), T)


def test_ranges() -> None:
    text = f"{RANGE_N} {ints('v0', 0)} {ints('v1', 1)} cut = Slice(all, v1, stop, v0) {ints('column', -1, 1)}"
    view, found = select("float[N, 3] x, int64[1] stop, float v", "all", nodes=text)
    assert found.groups[0].index == Full()
    view, found = select("float[N, 3] x, int64[1] stop, float v", "cut", nodes=text)
    assert found.groups[0].index == Span(1, view["stop"])
    view, found = select("float[N, 3] x, int64[1] stop, float v", ":", "all", nodes=text)
    assert found.groups[1].index == Span(0, view["n"])  # it counts to another axis's size


def test_last_positions() -> None:
    """``x[:, x.shape[1] - 1]``, as computed by a model."""
    text = f"""{ints("zero", 0)} {ints("at", 1)} {ints("two", 2)} shape = Shape(x) size = Gather<axis = 0>(shape, at)
        last = Sub(size, at) before = Sub(size, two) beyond = Sub(size, zero)"""
    arguments = "float[N, T] x, float v"
    assert select(arguments, ":", "last", nodes=text)[1].groups[1].index == Span(-1, None)
    # Of another axis, out of range, and one that wraps below 0 when the axis has one element.
    for index in (("last",), (":", "beyond"), (":", "before")):
        assert isinstance(select(arguments, *index, nodes=text)[1].groups[len(index) - 1].index, PointSet)


def test_runtime_indices() -> None:
    view, found = select("float[N, T] x, int64[K, 3] i, float v", ":", "i")
    assert found.groups[1] == Group((1,), PointSet((1,), (view["i"],)), (1, 2), K * 3)
    assert found.shape == (N, K, THREE)
    assert (found.grid_at, found.grid_rank) == (1, 2)


def test_a_single_position() -> None:
    view, found = select("float[N, T] x, int64 i, float v", ":", "i")
    assert found.groups[1] == Group((1,), PointSet((1,), (view["i"],)), (), ONE)
    assert found.shape == (N,)


# ---- several indices


def test_points() -> None:
    view, found = select("float[N, T, 4] x, int64[K] i, int64[K] j, float v", "i", "j")
    assert found.groups == (
        Group((0, 1), PointSet((0, 1), (view["i"], view["j"])), (0,), K),
        Group((2,), Full(), (1,), FOUR),
    )
    assert found.shape == (K, FOUR)


def test_outer_product() -> None:
    view, found = select("float[N, T] x, int64[K, 1] i, int64[M] j, float v", "i", "j")
    assert found.groups == (
        Group((0,), PointSet((0,), (view["i"],)), (0,), K),
        Group((1,), PointSet((1,), (view["j"],)), (1,), M),
    )
    assert found.shape == (K, M)


def test_separated_indices_come_first() -> None:
    view, found = select("float[N, T, 4] x, int64[K] i, int64[K] j, float v", "i", ":", "j")
    assert found.shape == (K, T)
    assert found.grid_at == 0
    assert found.groups == (
        Group((0, 2), PointSet((0, 2), (view["i"], view["j"])), (0,), K),
        Group((1,), Full(), (1,), T),
    )
    _, found = select("float[N, T, 4] x, int64[K] i, int64[K] j, float v", ":", "i", "j")
    assert found.shape == (N, K)
    assert found.grid_at == 1


def test_batch() -> None:
    """``x[arange(N), i]``: one position for each row."""
    view, found = select("float[N, T] x, int64[N] i, float v", "all", "i", nodes=RANGE_N)
    assert found.groups == (Group((0, 1), PointSet((0, 1), (view["all"], view["i"]), ((0, 0),)), (0,), N),)
    view, found = select("float[T, N, 3] x, int64[N] i, float v", "i", "all", nodes=RANGE_N.replace("zero)", "one)", 1))
    (group, _) = found.groups
    assert group == Group((1, 0), PointSet((1, 0), (view["all"], view["i"]), ((1, 0),)), (0,), N)


def test_batch_of_several() -> None:
    """``x[arange(N)[:, None], i]`` with i of shape [N, K]."""
    text = f"{RANGE_N} {ints('shape2', -1, 1)} column = Reshape(all, shape2)"
    view, found = select("float[N, T] x, int64[N, K] i, float v", "column", "i", nodes=text)
    assert found.groups == (Group((0, 1), PointSet((0, 1), (view["column"], view["i"]), ((0, 0),)), (0, 1), N * K),)


def test_constant_batch() -> None:
    view, found = select("float[3, T] x, int64[3] i, float v", "all", "i", nodes=ints("all", 0, 1, 2))
    assert found.groups[0].index == PointSet((0, 1), (view["all"], view["i"]), ((0, 0),))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("float[N, T] x, int64[K] i, float v", RANGE_N),  # K may be 1
        ("float[T, N] x, int64[N] i, float v", RANGE_N.replace("zero)", "one)", 1)),  # counts to the other axis's size
        ("float[3, T] x, int64[3] i, float v", ints("all", 0, 2, 1)),
        ("float[4, T] x, int64[3] i, float v", ints("all", 0, 1, 2)),
    ],
    ids=["sizes not proved", "other axis", "not in order", "not all"],
)
def test_no_batch(text: str, nodes: str) -> None:
    view, found = select(text, "all", "i", nodes=nodes)
    assert found.groups[0].index == PointSet((0, 1), (view["all"], view["i"]))


def test_a_range_beside_a_single_index_is_a_whole_axis() -> None:
    """``x[arange(N), 3]``"""
    _, found = select("float[N, T] x, float v", "all", "at", nodes=f"{RANGE_N} at = Constant<value = int64 {{3}}>()")
    assert found.groups == (Group((0,), Full(), (0,), N), Group((1,), Span(3, 4), (), ONE))


# ---- masks


def test_mask() -> None:
    view, found = select("float[N, T, 4] x, bool[N, T] m, float[K, 4] v", "m")
    count = found.shape[0]
    assert found.groups == (Group((0, 1), Mask(view["m"]), (0,), count), Group((2,), Full(), (1,), FOUR))
    assert found.dims == (0, 1)
    assert found.values_vary_along(found.groups[0])
    assert count not in (N, T, K)
    _, found = select("float[N, T, 4] x, bool[N, T] m, float[4] v", "m")
    assert found.dims == (1,)
    assert not found.values_vary_along(found.groups[0])


def test_mask_beside_a_single_index() -> None:
    view, found = select("float[N, T] x, bool[N] m, int64[1] i, float v", "m", "i")
    assert [g.index for g in found.groups] == [Mask(view["m"]), PointSet((1,), (view["i"],))]


def test_mask_paired_with_indices() -> None:
    with pytest.raises(PairedMask):
        select("float[N, T] x, bool[N] m, int64[K] i, float v", "m", "i")


# ---- values


@pytest.mark.parametrize(
    ("values", "dims"),
    [
        ("float v", ()),
        ("float[1] v", (None,)),
        ("float[4] v", (2,)),
        ("float[K, 4] v", (1, 2)),
        ("float[N, K, 4] v", (0, 1, 2)),
        ("float[N, 1, 4] v", (0, None, 2)),
        ("float[1, 1, K, 1] v", (None, None, 1, None)),
        ("float[1, 1, 1, 1, 4] v", (None, None, None, None, 2)),
    ],
)
def test_values_broadcast(values: str, dims: tuple[int | None, ...]) -> None:
    _, found = select(f"float[N, T, 4] x, int64[K] i, {values}", ":", "i")
    assert found.dims == dims
    assert found.uniform == (set(dims) <= {None})


def test_values_without_the_axes_of_size_1() -> None:
    """``x[..., 0] = v`` as torch 1.10 writes it: the selection is [N, T, 1], v is [N, T]."""
    _, found = select("float[N, T, 4] x, float[N, T] v", ":", ":", "i", nodes=ints("i", 0))
    assert found.shape == (N, T, ONE)
    assert found.dims == (0, 1)


def test_flattened_values() -> None:
    view, found = select("float[N, 4] x, int64[K, 3] i, float[M] v", "i", values="w", nodes=FLAT)
    assert found.dims == (0, 1, 2)
    assert found.reshaped(view.facts)
    _, found = select("float[N, 4] x, int64[K, 3] i, float[4] v", "i")
    assert not found.reshaped(view.facts)


FLAT = """picked = Gather<axis = 0>(x, i) all = Constant<value = int64[1] {-1}>() w = Reshape(picked, all)"""


def test_expands_are_dropped() -> None:
    nodes = "shape = Shape(x) wide = Expand(v, shape) wider = Expand(wide, shape)"
    view, found = select("float[N, T] x, float[T] v", ":", values="wider", nodes=nodes)
    assert found.values is view["v"]
    assert found.dims == (1,)
    view, found = select("float[N, T] x, float[1, 1] v", ":", values="wide", nodes=nodes)
    assert found.values is view["v"]
    assert found.uniform


# ---- what cannot be taken apart


@pytest.mark.parametrize(
    ("text", "index", "reason"),
    [
        ("float[N] x, int64[K] i, float v", ("i", "i"), "covers more axes than the 1"),
        ("float[N] x, bool[N, T] m, float v", ("m",), "covers more axes than the 1"),
        ("float[N] x, bool m, float v", ("m",), "mask without axes"),
        ("float[N, T] x, int64[2] i, float[3, T] v", ("i",), r"values and selection do not fit: \[3, T\] and \[2, T\]"),
    ],
)
def test_reasons(text: str, index: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Unresolvable, match=reason):
        select(text, *index)


def test_unknown_ranks() -> None:
    nodes = "free = Reshape(v, k)"
    for data, index, values, reason in [
        ("free", "i", "v", "rank of the data"),
        ("x", "j", "v", "rank of an index"),
        ("x", "i", "free", "rank of the values"),
        ("x", "m", "v", "rank of a mask"),
    ]:
        text = f"{nodes} j = Cast<to = 7>(free) m = Cast<to = 9>(free)"
        with pytest.raises(Unresolvable, match=reason):
            select("float[N] x, int64[K] i, float[M] v, int64[R] k", index, values=values, data=data, nodes=text)
