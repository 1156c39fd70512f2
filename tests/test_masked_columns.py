"""Reads and writes that pair a mask of one axis with whole axes and single columns, held against NumPy.

``x[:, mask] = f(x[:, mask], w[mask])``, ``x[mask, :, 1] = v``: no NonZero may be left, whatever f makes of the
positions where the mask does not hold, and whether the mask is shorter than the axis, as long, or longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from engine import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import graphfix

SETTINGS = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck), print_blob=True)
GONE = {"ATen", "ScatterND", "ScatterElements", "NonZero", "GatherND"}


class Graph:
    """Collects nodes and constants."""

    def __init__(self, opset: int = 13) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def __call__(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def model(self, result: str, feeds: dict[str, np.ndarray], sizes: dict[str, list[Any]]) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes[name])
            for name, array in feeds.items()
        ]
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(feeds["x"].dtype), None)
        graph = helper.make_graph(self.nodes, "g", inputs, [output], self.constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("org.pytorch.aten", 1)]
        return helper.make_model(graph, ir_version=8, opset_imports=imports)


@dataclass
class Case:
    """``x[key]`` with one entry for each leading axis: "mask" (once), a column, or None for the whole axis."""

    x: np.ndarray
    mask: np.ndarray
    key: list[Any]
    weights: np.ndarray
    dynamic: bool
    form: str
    read_by: str
    narrow: bool
    opset: int

    @property
    def axis(self) -> int:
        return self.key.index("mask")

    def places(self) -> tuple[np.ndarray, ...]:
        """What NumPy is given: one index for each entry, in dims of their own."""
        entries = [
            np.flatnonzero(self.mask) if k == "mask" else np.arange(n) if k is None else np.array([k])
            for k, n in zip(self.key, self.x.shape, strict=False)
        ]
        return np.ix_(*entries)

    def sizes(self) -> dict[str, list[Any]]:
        if not self.dynamic:
            return {"x": list(self.x.shape), "m": list(self.mask.shape), "w": list(self.weights.shape)}
        shape: list[Any] = [f"d{i}" for i in range(self.x.ndim)]
        length = shape[self.axis] if self.mask.size == self.x.shape[self.axis] else "length"
        return {"x": shape, "m": [length], "w": [length]}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    axes = draw(st.integers(1, rank))
    at = draw(st.integers(0, axes - 1))
    key: list[Any] = [None if draw(st.booleans()) else draw(st.integers(-n, n - 1)) for n in shape[:axes]]
    key[at] = "mask"
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    length = draw(st.sampled_from([shape[at], shape[at], shape[at] + 2, max(shape[at] - 1, 1)]))
    mask = rng.integers(0, 2, length).astype(bool)
    mask[shape[at] :] = False  # beyond the axis it would be an index out of range
    x = rng.standard_normal(shape).astype(np.float32)
    x.reshape(-1)[rng.integers(0, x.size)] = rng.choice([np.nan, np.inf, -1.0, 0.0])
    weights = rng.choice(np.array([0.0, -2.0, np.nan, np.inf, 3.0], np.float32), length)
    form = draw(st.sampled_from(["one value", "a row", "packed", "divided", "root", "affine"]))
    return Case(
        x,
        mask,
        key,
        weights,
        draw(st.booleans()),
        form,
        draw(st.sampled_from(["Gather", "GatherND"])),
        draw(st.booleans()),
        draw(st.sampled_from([11, 13, 17])),
    )


def index_of(graph: Graph, case: Case) -> tuple[str, str]:
    """The index tensor and its grid's shape, one dim for each entry (``narrow``: for each that is not a column)."""
    opset = graph.opset
    own = [i for i, k in enumerate(case.key) if not (case.narrow and isinstance(k, int))]
    columns = []
    for i, entry in enumerate(case.key):
        layout = [1] * len(own)
        if i in own:
            layout[own.index(i)] = -1
        if entry == "mask":
            column = graph("Transpose", graph("NonZero", "m"), perm=[1, 0])
        elif entry is None:
            size = graph("Gather", graph("Shape", "x"), graph.constant(np.int64(i)), axis=0)
            column = graph("Range", graph.constant(np.int64(0)), size, graph.constant(np.int64(1)))
        else:
            column = graph.constant(np.array([entry]))
        columns.append(graph("Reshape", column, graph.constant(np.array(layout, np.int64))))
    total = columns[0]
    for column in columns[1:]:
        total = graph("Add", total, column)
    grid = graph("Shape", total)
    parts = []
    for column in columns:
        wide = graph("Expand", column, grid)
        if opset < 13:
            parts.append(graph("Unsqueeze", wide, axes=[len(own)]))
        else:
            parts.append(graph("Unsqueeze", wide, graph.constant(np.array([-1]))))
    return graph("Concat", *parts, axis=-1), grid


def read_of(graph: Graph, case: Case, index: str, grid: str) -> str:
    """``x[key]`` in the shape of the updates."""
    if case.read_by == "GatherND":
        return graph("GatherND", "x", index)
    read = "x"
    for i, entry in enumerate(case.key):
        if entry == "mask":
            at = graph("Transpose", graph("NonZero", "m"), perm=[1, 0])
            if graph.opset < 13:
                at = graph("Squeeze", at, axes=[1])
            else:
                at = graph("Squeeze", at, graph.constant(np.array([1])))
            read = graph("Gather", read, at, axis=i)
        elif entry is not None:
            read = graph("Gather", read, graph.constant(np.array([entry])), axis=i)
    if not case.narrow or not any(isinstance(k, int) for k in case.key):
        return read
    columns = [i for i, k in enumerate(case.key) if isinstance(k, int)]
    if graph.opset < 13:
        return graph("Squeeze", read, axes=columns)
    return graph("Squeeze", read, graph.constant(np.array(columns)))


def build(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """The model, what it is fed, and what NumPy says."""
    graph = Graph(case.opset)
    feeds = {"x": case.x, "m": case.mask, "w": case.weights}
    sizes = case.sizes()
    index, grid = index_of(graph, case)
    places = case.places()
    answer, old = case.x.copy(), case.x[places]
    entries = len(case.key)
    # Where the updates have an axis for an entry; columns have none when narrow.
    shown = [i for i, k in enumerate(case.key) if not (case.narrow and isinstance(k, int))]
    updates_shape = [old.shape[i] for i in shown] + list(old.shape[entries:])
    rest = case.x.shape[entries:]
    if case.form in ("one value", "a row"):
        tail = graph("Slice", graph("Shape", "x"), *(graph.constant(np.array([n])) for n in (entries, 99, 0)))
        wanted = graph("Concat", grid, tail, axis=0)
    if case.form == "one value":
        updates, new = graph("Expand", graph.constant(np.float32(7)), wanted), np.float32(7)
    elif case.form == "a row":
        row = np.arange(int(np.prod(rest)), dtype=np.float32).reshape(rest)
        updates, new = graph("Expand", graph.constant(row), wanted), row
    elif case.form == "packed":
        feeds["v"] = np.arange(old.size, dtype=np.float32).reshape(updates_shape)
        sizes["v"] = [f"v{i}" for i in range(len(updates_shape))] if case.dynamic else list(updates_shape)
        updates, new = "v", feeds["v"].reshape(old.shape)
    else:
        read = read_of(graph, case, index, grid)
        with np.errstate(all="ignore"):
            if case.form == "divided":
                at = graph("Transpose", graph("NonZero", "m"), perm=[1, 0])
                picked = graph("Gather", "w", at, axis=0)  # [K, 1]
                layout = [1] * len(updates_shape)
                layout[shown.index(case.axis)] = -1
                picked = graph("Reshape", picked, graph.constant(np.array(layout)))
                updates = graph("Div", read, picked)
                spread = [1] * old.ndim
                spread[case.axis] = -1
                new = old / case.weights[case.mask].reshape(spread)
            elif case.form == "root":
                updates, new = graph("Sqrt", read), np.sqrt(old)
            else:
                double = graph("Mul", read, graph.constant(np.float32(2)))
                updates, new = graph("Add", double, graph.constant(np.float32(0.5))), old * 2 + np.float32(0.5)
    answer[places] = new
    return graph.model(graph("ScatterND", "x", index, updates), feeds, sizes), feeds, answer


@SETTINGS
@given(cases())
def test_like_numpy(case: Case) -> None:
    model, feeds, answer = build(case)
    done = graphfix.fix(model, verify="none", simplify=False)
    np.testing.assert_allclose(run(done.model, feeds), answer, rtol=1e-6)
    assert not GONE & {n.op_type for n in done.model.graph.node}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("window", [2, 5, 9])
def test_positions_that_an_exporter_broadcast_with_a_whole_axis(batch: int, window: int) -> None:
    """``x[:, at] = x[:, at] / w[at]`` with ``at = mask.nonzero()`` of shape [K, 1], as exporters write it.

    The grid of positions is Range of shape [N, 1] plus ``at``: it fits where N or K is 1. The mask is as long as the
    window, or as the signal where that is shorter; the window is zero outside of it.
    """
    graph = Graph(17)
    length = graph("Slice", graph("Shape", "x"), *(graph.constant(np.array([n])) for n in (1, 2, 0)))
    zero = graph.constant(np.array([0]))
    w = graph("Slice", "w", zero, length, zero)
    at = graph("Transpose", graph("NonZero", graph("Greater", w, graph.constant(np.float32(0)))), perm=[1, 0])
    quotient = graph("Div", graph("Gather", "x", at, axis=1), graph("Gather", w, at, axis=0))
    size = graph("Gather", graph("Shape", "x"), graph.constant(np.int64(0)), axis=0)
    ramp = graph("Range", graph.constant(np.int64(0)), size, graph.constant(np.int64(1)))
    rows = graph("Reshape", ramp, graph.constant(np.array([-1, 1])))
    grid = graph("Shape", graph("Add", rows, at))
    last = graph.constant(np.array([-1]))
    index = graph("Concat", *(graph("Unsqueeze", graph("Expand", c, grid), last) for c in (rows, at)), axis=-1)
    y = graph("ScatterND", "x", index, graph("Reshape", quotient, grid))
    rng = np.random.default_rng(window)
    x = rng.standard_normal((batch, 5)).astype(np.float32)
    weights = np.zeros(window, np.float32)
    weights[1 if batch > 1 else slice(1, 4)] = 0.5
    model = graph.model(y, {"x": x, "w": weights}, {"x": ["N", "T"], "w": ["window"]})
    done = graphfix.fix(model, verify="none", simplify=False)
    assert not GONE & {n.op_type for n in done.model.graph.node}
    held = np.flatnonzero(weights[:5])
    answer = x.copy()
    answer[:, held] = x[:, held] / weights[held]
    np.testing.assert_array_equal(run(done.model, {"x": x, "w": weights}), answer)


@pytest.mark.parametrize("key", [("m", 1), ("m", None, 1), (None, "m"), (1, "m"), (1, None, "m"), (None, "m", -1)])
@pytest.mark.parametrize("opset", [11, 13])
def test_aten_reads_and_writes(key: tuple[Any, ...], opset: int) -> None:
    """``x[key] = x[key] * 2 + 1`` as ATen nodes; separated indices move to the front in both."""
    graph = Graph(opset)
    names = ["" if k is None else k if k == "m" else graph.constant(np.int64(k)) for k in key]
    read = graph("ATen", "x", *names, domain="org.pytorch.aten", operator="index")
    two, one = graph.constant(np.float32(2)), graph.constant(np.float32(1))
    values = graph("Add", graph("Mul", read, two), one)
    no = graph.constant(np.array(False))
    y = graph("ATen", "x", *names, values, no, domain="org.pytorch.aten", operator="index_put")
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    for held in (0, 1, 2):
        size = x.shape[key.index("m")]
        mask = np.arange(size) % 2 < held
        model = graph.model(y, {"x": x, "m": mask}, {"x": ["A", "B", "C"], "m": ["ABC"[key.index("m")]]})
        graph.nodes.pop()
        done = graphfix.fix(model, verify="none", simplify=False)
        assert not GONE & {n.op_type for n in done.model.graph.node}
        place = tuple(slice(None) if k is None else mask if k == "m" else k for k in key)
        answer = x.copy()
        answer[place] = x[place] * 2 + 1
        np.testing.assert_allclose(run(done.model, {"x": x, "m": mask}), answer, rtol=1e-6)


@pytest.mark.parametrize("form", ["one value", "packed", "read"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mask_of_two_axes_and_a_column(form: str, dynamic: bool) -> None:
    """``x[mask, -1] = v`` and ``x[mask, -1] = 1 / x[mask, -1] + s`` for a mask over the first two axes."""
    graph = Graph(13)
    at = graph("Transpose", graph("NonZero", "m"), perm=[1, 0])
    count = graph("Slice", graph("Shape", at), graph.constant(np.array([0])), graph.constant(np.array([1])))
    size = graph("Concat", count, graph.constant(np.array([1])), axis=0)
    index = graph("Concat", at, graph("Expand", graph.constant(np.array([[-1]])), size), axis=1)
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    x[0, 0, -1], x[1, 1, -1] = 0.0, np.nan
    for chance in (0.0, 0.5, 1.0):
        mask = np.random.default_rng(1).random((3, 4)) < chance
        feeds, answer = {"x": x, "m": mask}, x.copy()
        shape: list[Any] = ["A", "B", 5] if dynamic else [3, 4, 5]
        sizes: dict[str, list[Any]] = {"x": shape, "m": shape[:2]}
        nodes = list(graph.nodes)
        if form == "one value":
            y = graph("ScatterND", "x", index, graph("Expand", graph.constant(np.float32(3)), count))
            answer[mask, -1] = 3
        elif form == "packed":
            feeds["v"] = np.arange(mask.sum(), dtype=np.float32)
            sizes["v"] = ["K"]
            y = graph("ScatterND", "x", index, "v")
            answer[mask, -1] = feeds["v"]
        else:
            inverse = graph("Reciprocal", graph("GatherND", "x", index))
            y = graph("ScatterND", "x", index, graph("Add", inverse, graph.constant(np.array([0.5], np.float32))))
            with np.errstate(divide="ignore"):
                answer[mask, -1] = 1 / x[mask, -1] + np.float32(0.5)
        done = graphfix.fix(graph.model(y, feeds, sizes), verify="none", simplify=False)
        assert not GONE & {n.op_type for n in done.model.graph.node}
        np.testing.assert_allclose(run(done.model, feeds), answer, rtol=1e-6)
        graph.nodes = nodes


READS = {
    "flat": ("float[A, B] x", "flat_x = Reshape(x, minus) read = GatherND(flat_x, flat_at)"),
    "by two axes": ("float[A, B] x", "read = GatherND(x, at)"),
    "rows at the flat positions": ("float[A, B, C] x", "read = GatherND(x, flat_at)"),
}
WRITES = {
    "flat": ("float[M] y", "z = ScatterND(y, flat_at, v)"),
    "by two axes": ("float[A, B] y", "z = ScatterND(y, at, v)"),
    "rows at both axes": ("float[A, B, B, C] y", "z = ScatterND(y, at, v)"),
}


ROW_WISE = "low = ReduceMin<axes = [-1], keepdims = 1>(read) v = Sub(read, low)"


@pytest.mark.parametrize(
    ("read", "write", "step"),
    [
        ("by two axes", "flat", "v = Neg(read)"),
        ("flat", "by two axes", "v = Neg(read)"),
        ("rows at the flat positions", "rows at both axes", "v = Neg(read)"),
        ("rows at the flat positions", "rows at both axes", ROW_WISE),
    ],
)
def test_a_flattened_mask_is_another(read: str, write: str, step: str) -> None:
    """``y[mask.flatten()] = -x[mask]``: position n of the flattened mask is not row n of x."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13]>
        g (bool[A, B] m, {READS[read][0]}, {WRITES[write][0]}) => (z) {{
        minus = Constant<value = int64[1] {{-1}}>() flat_m = Reshape(m, minus)
        p = NonZero(m) at = Transpose<perm = [1, 0]>(p) q = NonZero(flat_m) flat_at = Transpose<perm = [1, 0]>(q)
        {READS[read][1]} {step} {WRITES[write][1]} }}""")
    done = graphfix.fix(model)
    assert done.ok and done.report.replacements
    rng = np.random.default_rng(0)
    m = np.zeros((3, 3), bool)
    m[0, 1] = m[0, 2] = True
    rows = read == "rows at the flat positions"
    x = rng.standard_normal((3, 3, 2) if rows else (3, 3)).astype(np.float32)
    y = {"flat": np.ones(9, np.float32), "by two axes": np.ones((3, 3), np.float32)}.get(write)
    y = np.ones((3, 3, 3, 2), np.float32) if y is None else y
    taken = x[[1, 2]] if rows else x[m]
    v = taken - taken.min(-1, keepdims=True) if step == ROW_WISE else -taken
    answer = y.copy()
    answer[m.reshape(-1) if write == "flat" else m] = v
    np.testing.assert_array_equal(run(done.model, {"m": m, "x": x, "y": y}), answer)
