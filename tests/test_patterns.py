"""The index patterns that people report, one test each, named by their number in the list of patterns.

Models are written as exporters write them; expected values come from NumPy.

Left out, as graphfix has no such feature: 45, 46 and the target parts of 20 and 39 (no form is made for one engine);
the int32 clamp of 11; the remarks "uniqueness unproven" of 21 and "nondeterministic" of 22 (what is checked is that the
last write wins). Tested elsewhere:
- 23: test_verify.py, test_outputs_that_differ_from_run_to_run_are_not_compared;
- 74, 75, 77, 78, 85, 88: test_scopes.py (outputs with consumers, bodies, functions, hostile names, opsets, own output);
- 79, 81, 82: test_nothing_lost.py (fields and dims, tied weights and initializers that are inputs, external data);
- 83: test_simplify.py, test_constants_that_would_make_the_file_bigger_stay_unfolded;
- 87: test_verify_inputs.py (indices in range, sizes of dynamic dims) and test_user_inputs.py (files).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import graphfix
from graphfix.errors import LossyExportError, UnsupportedError

Arrays = dict[str, np.ndarray]
GONE = {"ATen", "ScatterND", "ScatterElements", "Scatter", "NonZero", "GatherND"}
ATEN = "org.pytorch.aten"
LARGEST = 9223372036854775807
ALL = slice(None)
ATEN_OPSETS = pytest.mark.parametrize("opset", [9, 11])
SCATTER_OPSETS = pytest.mark.parametrize("opset", [11, 13, 17])


class Graph:
    """Collects nodes as an exporter writes them: Constant nodes, Shape chains, generated names."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        name = out or f"/{op}_{len(self.nodes)}_output_0"
        self.nodes.append(helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def const(self, value: Any) -> str:
        return self("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def unsqueeze(self, x: str, axis: int) -> str:
        if self.opset < 13:
            return self("Unsqueeze", x, axes=[axis])
        return self("Unsqueeze", x, self.const(np.array([axis])))

    def slice(self, x: str, axis: int, part: slice) -> str:
        step = part.step or 1
        start = part.start if part.start is not None else (0 if step > 0 else -1)
        stop = part.stop if part.stop is not None else (LARGEST if step > 0 else -LARGEST)
        return self("Slice", x, *(self.const(np.array([n])) for n in (start, stop, axis, step)))

    def size(self, x: str, axis: int) -> str:
        return self("Cast", self("Gather", self("Shape", x), self.const(axis), axis=0), to=TensorProto.INT64)

    def positions(self, mask: str) -> str:
        """The index that stands for a mask."""
        return self("Transpose", self("NonZero", mask), perm=[1, 0])

    def put(self, x: str, key: list[Any], values: str, out: str | None = None, **attributes: Any) -> str:
        """``x[key] = values`` as the TorchScript exporter writes it; the key holds slices, ints and names of vectors.

        Each item of the key runs along a dim of its own of the grid of indices. The values are expanded to the shape
        of ``x[key]`` and reshaped to the grid.
        """
        columns, read, dropped = [], x, 0
        for axis, item in enumerate(key):
            if isinstance(item, slice):
                column = self("Range", self.const(0), self.size(x, axis), self.const(1))
                if item != ALL:
                    column, read = self.slice(column, 0, item), self.slice(read, axis - dropped, item)
            elif isinstance(item, int):
                column = self.const(np.array([item]))
                read = self("Gather", read, self.const(item), axis=axis - dropped)
                dropped += 1
            else:
                column = item
                read = self("Gather", read, item, axis=axis - dropped)
            layout = [1] * len(key)
            layout[axis] = -1
            columns.append(self("Reshape", column, self.const(np.array(layout))))
        total = columns[0]
        for column in columns[1:]:
            total = self("Add", total, column)
        grid = self("Shape", total)
        parts = []
        for column in columns:
            ones = self(
                "ConstantOfShape", self("Shape", grid), value=helper.make_tensor("v", TensorProto.INT64, [1], [1])
            )
            unknown = self("Equal", grid, self("Mul", ones, self.const(-1)))
            parts.append(self.unsqueeze(self("Expand", column, self("Where", unknown, ones, grid)), -1))
        index = self("Concat", *parts, axis=-1)
        rest = self.slice(self("Shape", x), 0, slice(len(key), None))
        values = self("Expand", values, self("Shape", read))
        values = self("Reshape", values, self("Concat", grid, rest, axis=0))
        return self("ScatterND", x, index, values, out=out, **attributes)

    def aten(self, operator: str, *inputs: str, out: str | None = None, domain: str = ATEN, **attributes: Any) -> str:
        return self("ATen", *inputs, out=out, domain=domain, operator=operator, **attributes)

    def index_put(
        self, x: str, index: list[str], values: str, out: str | None = None, accumulate: bool = False, **more
    ):
        return self.aten("index_put", x, *index, values, self.const(accumulate), out=out, **more)

    def model(self, inputs: str, outputs: str) -> onnx.ModelProto:
        """The model with inputs and outputs as in ONNX's text form, sizes and all."""
        domains = {"": self.opset, **{n.domain: 1 for n in self.nodes if n.domain}}
        imports = ", ".join(f'"{domain}": {version}' for domain, version in domains.items())
        text = f"<ir_version: 8, opset_import: [{imports}]> g ({inputs}) => ({outputs})"
        model = parser.parse_model(text + " { nothing = Constant<value_int = 0>() }")
        del model.graph.node[:]
        model.graph.node.extend(self.nodes)
        return model


def fixed(model: onnx.ModelProto, **options: Any) -> graphfix.FixResult:
    result = graphfix.fix(model, **{"verify": "none", "simplify": False, **options})
    onnx.checker.check_model(result.model, full_check=True)
    return result


def portable(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The fixed model, in which nothing is left of what was to go."""
    result = fixed(model, **options)
    assert not result.report.left
    assert not GONE & ops(result.model)
    assert list(result.model.graph.input) == list(model.graph.input)
    assert list(result.model.graph.output) == list(model.graph.output)
    return result.model


def ops(model: onnx.ModelProto) -> set[str]:
    return {n.op_type for n in model.graph.node}


def run(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def gives(model: onnx.ModelProto, feeds: Arrays, *wanted: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> None:
    for got, want in zip(run(model, feeds), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def bools(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 2, shape).astype(bool)


def last_wins(x: np.ndarray, index: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``x[index] = v`` along the first axis, one write after the other."""
    out = x.copy()
    for n, i in enumerate(index.tolist()):
        out[i] = v[n]
    return out


# ---- P1: constant slices, strides, single columns


def yolo(opset: int, inputs: str, y: str) -> onnx.ModelProto:
    g = Graph(opset)
    two, half = g.const(np.float32(2)), g.const(np.float32(0.5))
    xy = g("Add", g("Sub", g("Mul", g.slice("y", 4, slice(0, 2)), two), half), "grid")
    z = g.put("y", [ALL, ALL, ALL, ALL, slice(0, 2)], g("Mul", xy, "stride"))
    wh = g("Pow", g("Mul", g.slice(z, 4, slice(2, 4)), two), two)
    g.put(z, [ALL, ALL, ALL, ALL, slice(2, 4)], g("Mul", wh, "anchors"), out="z")
    return g.model(inputs, y.replace("y", "z"))


def yolo_case(batch: int, height: int, width: int) -> tuple[Arrays, np.ndarray]:
    feeds = {
        "y": floats(batch, 3, height, width, 85),
        "grid": floats(height, width, 2),
        "stride": np.array(8, np.float32),
        "anchors": floats(1, 3, 1, 1, 2),
    }
    z = feeds["y"].copy()
    z[..., 0:2] = (z[..., 0:2] * np.float32(2) - np.float32(0.5) + feeds["grid"]) * feeds["stride"]
    z[..., 2:4] = (z[..., 2:4] * np.float32(2)) ** 2 * feeds["anchors"]
    return feeds, z


@SCATTER_OPSETS
def test_p1_yolo_decode(opset: int) -> None:
    y = "float[1, 3, 20, 20, 85] y"
    model = portable(yolo(opset, f"{y}, float[20, 20, 2] grid, float stride, float[1, 3, 1, 1, 2] anchors", y))
    assert {"Slice", "Concat"} <= ops(model)
    assert "Where" not in ops(model)
    concats = [n for n in model.graph.node if n.op_type == "Concat" and "/graphfix/" in n.name]
    assert any(n.attribute[0].i in (4, -1) for n in concats)
    feeds, z = yolo_case(1, 20, 20)
    gives(model, feeds, z)


def test_p2_yolo_decode_of_any_size() -> None:
    y = "float[N, 3, H, W, 85] y"
    model = portable(yolo(13, f"{y}, float[H, W, 2] grid, float stride, float[1, 3, 1, 1, 2] anchors", y))
    for sizes in ((1, 2, 3), (2, 5, 4), (3, 1, 1)):
        feeds, z = yolo_case(*sizes)
        gives(model, feeds, z)


def test_p3_strided_increments() -> None:
    g = Graph(11)
    k = "k"
    for start, values in ((0, "xs"), (1, "ys")):
        part = slice(start, None, 2)
        k = g.put(k, [ALL, ALL, part], g("Add", g.slice(k, 2, part), values), out="out" if start else None)
    io = "float[1, 100, 34] k, float[1, 100, 1] xs, float[1, 100, 1] ys"
    source = g.model(io, "float[1, 100, 34] out")
    assert sum(n.op_type == "ScatterND" for n in source.graph.node) == 2
    feeds = {"k": floats(1, 100, 34), "xs": floats(1, 100, 1), "ys": floats(1, 100, 1, seed=1)}
    wanted = feeds["k"].copy()
    wanted[..., ::2] += feeds["xs"]
    wanted[..., 1::2] += feeds["ys"]
    gives(portable(source), feeds, wanted)


@SCATTER_OPSETS
def test_p5_a_row(opset: int) -> None:
    g = Graph(opset)
    g.put("t", [0], "v", out="y")
    model = portable(g.model("float[B, C] t, float[C] v", "float[B, C] y"))
    for batch, columns in ((1, 3), (4, 1), (3, 5)):
        t, v = floats(batch, columns), floats(columns)
        wanted = t.copy()
        wanted[0] = v
        gives(model, {"t": t, "v": v}, wanted)


def test_p6_one_column_incremented() -> None:
    g = Graph(11)
    column = g("Gather", "x", g.const(0), axis=2)
    g.put("x", [ALL, ALL, 0], g("Add", column, g.const(np.float32(0.1))), out="y")
    model = portable(g.model("float[1, S, 2] x", "float[1, S, 2] y"))
    for length in (1, 4, 9):
        x = floats(1, length, 2)
        wanted = x.copy()
        wanted[..., 0] += np.float32(0.1)
        gives(model, {"x": x}, wanted)


@SCATTER_OPSETS
@pytest.mark.parametrize("x", ["float[4, 6, 5, 8] ", "float[A, B, C, D] "], ids=["static", "dynamic"])
def test_p10_slice_and_step(opset: int, x: str) -> None:
    g = Graph(opset)
    g.put("x", [ALL, slice(1, 3), ALL, slice(None, None, 2)], "v", out="y")
    model = portable(g.model(f"{x} x, float[2, 1, 4] v", f"{x} y"))
    data, v = floats(4, 6, 5, 8), floats(2, 1, 4)
    wanted = data.copy()
    wanted[:, 1:3, :, ::2] = v
    gives(model, {"x": data, "v": v}, wanted)
    if "A" in x:
        wanted = np.concatenate([wanted, wanted])[:, :5, :, :7]
        gives(model, {"x": np.concatenate([data, data])[:, :5, :, :7], "v": v}, wanted)


@pytest.mark.parametrize("part", [slice(None, None, -1), slice(None, None, -2), slice(-2, None, -1), slice(1, None, 3)])
def test_p11_negative_steps_and_the_largest_ends(part: slice) -> None:
    """PyTorch writes no negative steps, but a flipped index is one."""
    g = Graph(13)
    g.put("x", [part], "v", out="y")
    model = portable(g.model("float[N, 3] x, float[K, 3] v", "float[N, 3] y"))
    for length in (3, 6, 7):
        x = floats(length, 3)
        v = floats(*x[part].shape, seed=1)
        wanted = x.copy()
        wanted[part] = v
        gives(model, {"x": x, "v": v}, wanted)


# ---- P2: accumulate, duplicates

DUPLICATES = np.array([0, 4, 2, 2, 4])


@ATEN_OPSETS
@pytest.mark.parametrize("domain", ["", ATEN])
def test_p13_aten_accumulate(opset: int, domain: str) -> None:
    g = Graph(opset)
    g.index_put("x", ["i"], "v", out="y", accumulate=True, domain=domain)
    model = portable(g.model("float[5, 3] x, int64[5] i, float[5, 3] v", "float[5, 3] y"))
    feeds = {"x": floats(5, 3), "i": DUPLICATES, "v": floats(5, 3, seed=1)}
    wanted = feeds["x"].copy()
    np.add.at(wanted, DUPLICATES, feeds["v"])
    gives(model, feeds, wanted, rtol=1e-5, atol=1e-6)


def zeros_like(g: Graph, x: str) -> str:
    return g("ConstantOfShape", g("Shape", x), value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0]))


def lost_accumulate(model: onnx.ModelProto, feeds: Arrays) -> None:
    """Without --repair, as the graph has it; with it, what the author meant. ``feeds`` holds x, i and v."""
    x, i, v = feeds["x"], feeds["i"], feeds["v"]
    plain = fixed(model)
    gives(plain.model, feeds, x + last_wins(np.zeros_like(x), i, v))
    assert not GONE & ops(plain.model)
    (note,) = [n for n in plain.report.notes if "suspected exporter fault" in n]
    assert "--repair lost-accumulate" in note
    repaired = fixed(model, repair="lost-accumulate")
    wanted = x.copy()
    np.add.at(wanted, i, v)
    gives(repaired.model, feeds, wanted, rtol=1e-5, atol=1e-6)
    assert any("results are meant to change" in w for w in repaired.report.warnings)


@pytest.mark.parametrize("opset", [11, 13, 15])
def test_p14_accumulate_lost_in_a_scatter_nd(opset: int) -> None:
    g = Graph(opset)
    g("Add", "x", g("ScatterND", zeros_like(g, "x"), g.unsqueeze("i", -1), "v"), out="y")
    model = g.model("float[5, 3] x, int64[5] i, float[5, 3] v", "float[5, 3] y")
    lost_accumulate(model, {"x": floats(5, 3), "i": DUPLICATES, "v": floats(5, 3, seed=1)})


@pytest.mark.parametrize("opset", [11, 13, 15])
def test_p15_index_add_lost_in_scatter_elements(opset: int) -> None:
    g = Graph(opset)
    g("Add", "x", g("ScatterElements", zeros_like(g, "x"), "i", "v", axis=0), out="y")
    model = g.model("float[2] x, int64[K] i, float[K] v", "float[2] y")
    lost_accumulate(model, {"x": floats(2), "i": np.array([1, 1, 0, 1]), "v": floats(4)})


@pytest.mark.parametrize("opset", [16, 18])
@pytest.mark.parametrize(("rows", "edges", "width"), [(1, 2, 5), (10, 1000, 4)])
def test_p16_more_indices_than_rows(opset: int, rows: int, edges: int, width: int) -> None:
    g = Graph(opset)
    g("ScatterElements", "x", "i", "v", out="y", axis=0, reduction="add")
    shape = f"[{edges}, {width}]"
    model = portable(g.model(f"float[{rows}, {width}] x, int64{shape} i, float{shape} v", f"float[{rows}, {width}] y"))
    x, v = floats(rows, width), floats(edges, width)
    i = np.random.default_rng(0).integers(0, rows, (edges, width))
    wanted = x.astype(np.float64)
    np.add.at(wanted, (i, np.arange(width)), v)
    gives(model, {"x": x, "i": i, "v": v}, wanted.astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [16, 18])
def test_p18_scatter_reduce_without_self(opset: int) -> None:
    """It becomes the right thing, not a scatter without reduction."""
    g = Graph(opset)
    reduce = g("Constant", value=helper.make_tensor("r", TensorProto.STRING, [], [b"amax"]))
    g.aten("scatter_reduce", "x", g.const(0), "i", "v", reduce, g.const(False), out="y", overload_name="two")
    model = fixed(g.model("float[N, 3] x, int64[K, 3] i, float[K, 3] v", "float[N, 3] y")).model
    assert "ATen" not in ops(model)
    for rows, count in ((4, 6), (2, 1), (5, 9)):
        x, v = floats(rows, 3) + np.float32(5), floats(count, 3)
        i = np.random.default_rng(rows).integers(0, rows, (count, 3))
        wanted = x.copy()
        for row, column in np.ndindex(rows, 3):
            met = v[:, column][i[:, column] == row]
            wanted[row, column] = met.max() if met.size else x[row, column]
        gives(model, {"x": x, "i": i, "v": v}, wanted)


@pytest.mark.parametrize("opset", [16, 18])
@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("budget", [None, 0], ids=["lowered", "kept"])
def test_p19_reduction_none_written_out(opset: int, op: str, budget: int | None) -> None:
    """Gone with the node, or dropped from the node that is kept."""
    g = Graph(opset)
    if op == "ScatterND":
        g(op, "x", g.unsqueeze("i", -1), "v", out="y", reduction="none")
    else:
        g(op, "x", "i", "v", out="y", reduction="none")
    result = fixed(g.model("float[5] x, int64[4] i, float[4] v", "float[5] y"), budget=budget)
    feeds = {"x": floats(5), "i": np.array([3, 0, 3, -1]), "v": floats(4)}
    gives(result.model, feeds, last_wins(feeds["x"], feeds["i"], feeds["v"]))
    scatters = [n for n in result.model.graph.node if n.op_type == op]
    assert len(scatters) == (budget is not None)
    assert len(result.report.left) == len(scatters)
    assert not any(a.name == "reduction" for n in scatters for a in n.attribute)


@pytest.mark.parametrize(("reduction", "combine"), [("max", np.maximum), ("min", np.minimum), ("mul", np.multiply)])
def test_p20_other_reductions(reduction: str, combine: np.ufunc) -> None:
    """No need to keep them: a Reduce does it."""
    g = Graph(18)
    g("ScatterND", "x", g.unsqueeze("i", -1), "v", out="y", reduction=reduction)
    model = portable(g.model("float[5, 2] x, int64[4] i, float[4, 2] v", "float[5, 2] y"))
    feeds = {"x": floats(5, 2), "i": np.array([3, 0, 3, -1]), "v": floats(4, 2)}
    wanted = feeds["x"].copy()
    combine.at(wanted, feeds["i"], feeds["v"])
    gives(model, feeds, wanted, rtol=1e-6)


@SCATTER_OPSETS
def test_p21_runtime_duplicates(opset: int) -> None:
    g = Graph(opset)
    g("ScatterND", "x", g.unsqueeze("i", -1), "v", out="y")
    model = portable(g.model("float[M, 2] x, int64[N] i, float[N, 2] v", "float[M, 2] y"))
    for rows, i in ((3, [0, 1, 1, 1, 2]), (1, [0, 0]), (4, [3, -1, 3, -4, 0, 0])):
        x, v = floats(rows, 2), floats(len(i), 2)
        gives(model, {"x": x, "i": np.array(i), "v": v}, last_wins(x, np.array(i), v))


@SCATTER_OPSETS
def test_p22_constant_duplicates(opset: int) -> None:
    g = Graph(opset)
    i = np.array([0, 1, 1, 1, 2])
    g("ScatterND", "x", g.const(i[:, None]), "v", out="y")
    model = portable(g.model("float[M] x, float[5] v", "float[M] y"))
    for rows in (3, 5):
        x, v = floats(rows), floats(5)
        gives(model, {"x": x, "v": v}, last_wins(x, i, v))


# ---- P3: NonZero, reads whose size depends on the data


@pytest.mark.parametrize("form", ["aten", "standard"])
def test_p24_a_read_that_is_an_output(form: str) -> None:
    """``y = x[mask]`` stays a read by NonZero, and the report says why; the write beside it is replaced."""
    g = Graph(11)
    if form == "aten":
        g.aten("index", "x", g("SequenceConstruct", "m"), out="y")
    else:
        g("GatherND", "x", g.positions("m"), out="y")
    g("ScatterND", "x", g.positions("m"), "v", out="z")
    result = fixed(g.model("float[1, 3, 4, 4] x, bool[1, 3, 4, 4] m, float[K] v", "float[K] y, float[1, 3, 4, 4] z"))
    x, m = floats(1, 3, 4, 4), bools(1, 3, 4, 4)
    v = floats(int(m.sum()))
    z = x.copy()
    z[m] = v
    gives(result.model, {"x": x, "m": m, "v": v}, x[m], z)
    assert not {"ATen", "ScatterND"} & ops(result.model)
    assert len(result.report.left) == 1
    assert "depends on the data" in result.report.left[0].reason


@SCATTER_OPSETS
def test_p26_read_and_write_by_the_same_mask(opset: int) -> None:
    g = Graph(opset)
    index = g.positions("m")
    rows = g("Add", g("Mul", g("GatherND", "x", index), g.const(np.float32(2))), g.const(np.float32(1)))
    g("ScatterND", "x", index, rows, out="y")
    model = portable(g.model("float[M, C] x, bool[M] m", "float[M, C] y"))
    assert "Where" in ops(model)
    for rows_, columns in ((1, 3), (5, 1), (7, 4)):
        for m in (bools(rows_), np.zeros(rows_, bool), np.ones(rows_, bool)):
            x = floats(rows_, columns)
            wanted = x.copy()
            wanted[m] = x[m] * np.float32(2) + np.float32(1)
            gives(model, {"x": x, "m": m}, wanted)


def test_p27_positions_of_a_mask() -> None:
    """``mask.nonzero()[:, 0]`` that is returned stays, and is named in the report."""
    g = Graph(13)
    column = g.slice(g.positions("m"), 1, slice(0, 1))
    g("Squeeze", column, g.const(np.array([1])), out="rows")
    g("ScatterND", "x", g.positions("m"), "v", out="y")
    result = fixed(g.model("bool[A, B] m, float[A, B] x, float[K] v", "int64[K] rows, float[A, B] y"))
    m, x = bools(4, 3), floats(4, 3)
    v = floats(int(m.sum()))
    y = x.copy()
    y[m] = v
    gives(result.model, {"m": m, "x": x, "v": v}, np.nonzero(m)[0], y)
    assert "ScatterND" not in ops(result.model)
    assert [left.operator for left in result.report.left] == ["NonZero"]


def test_p28_boxes_of_one_class() -> None:
    """Equal, NonZero, GatherND, NonMaxSuppression: no index write, so nothing is touched."""
    g = Graph(13)
    index = g.positions(g("Equal", "labels", g.const(np.int64(1))))
    boxes = g.unsqueeze(g("GatherND", "boxes", index), 0)
    scores = g.unsqueeze(g.unsqueeze(g("GatherND", "scores", index), 0), 0)
    limits = (g.const(np.int64(100)), g.const(np.float32(0.5)), g.const(np.float32(0.1)))
    g("NonMaxSuppression", boxes, scores, *limits, out="kept")
    model = g.model("float[619, 4] boxes, float[619] scores, int64[619] labels", "int64[K, 3] kept")
    result = fixed(model)
    assert result.model.SerializeToString() == model.SerializeToString()
    assert not result.report.changed


# ---- P4: boolean masks


@SCATTER_OPSETS
@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
def test_p30_a_full_mask(opset: int, constant: bool) -> None:
    g = Graph(opset)
    m = np.array([[[True, False, True], [False, False, False], [True, True, True]]])
    name = g.const(m) if constant else "m"
    index = g.positions(name)
    count = g("Gather", g("Shape", index), g.const(np.array([0])), axis=0)
    g("ScatterND", "x", index, g("Expand", g.const(np.float32(0)), count), out="y")
    model = portable(g.model("float[1, 3, 3] x" + ("" if constant else ", bool[1, 3, 3] m"), "float[1, 3, 3] y"))
    x = floats(1, 3, 3)
    x[0, 0] = [np.nan, np.inf, -np.inf]
    wanted = x.copy()
    wanted[m] = 0
    gives(model, {"x": x} if constant else {"x": x, "m": m}, wanted)
    if not constant:
        assert "Where" in ops(model)


@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p31_one_mask_after_the_other(form: str) -> None:
    """``x[x <= 1] = 0; x[x > 1] = 1``: the second mask reads what the first write made."""
    g = Graph(13)

    def fill(x: str, mask: str, value: str, out: str | None = None) -> str:
        if form == "aten":
            return g.index_put(x, [mask], value, out=out)
        index = g.positions(mask)
        count = g("Gather", g("Shape", index), g.const(np.array([0])), axis=0)
        return g("ScatterND", x, index, g("Expand", value, count), out=out)

    one = g.const(np.int64(1))
    y = fill("x", g("Not", g("Greater", "x", one)), g.const(np.int64(0)))
    fill(y, g("Greater", y, one), one, out="y")
    model = portable(g.model("int64[N] x", "int64[N] y"))
    for length in (1, 5, 8):
        x = np.random.default_rng(length).integers(-3, 5, length)
        wanted = x.copy()
        wanted[wanted <= 1] = 0
        wanted[wanted > 1] = 1
        gives(model, {"x": x}, wanted)


@SCATTER_OPSETS
@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p32_a_mask_of_rows(opset: int, form: str) -> None:
    g = Graph(opset)
    if form == "aten":
        g.index_put("x", ["m"], "v", out="y")
    else:
        index = g.positions("m")
        rest = g.slice(g("Shape", "x"), 0, slice(1, None))
        shape = g("Concat", g.slice(g("Shape", index), 0, slice(0, 1)), rest, axis=0)
        g("ScatterND", "x", index, g("Expand", "v", shape), out="y")
    model = portable(g.model("float[M, N, C] x, bool[M] m, float[C] v", "float[M, N, C] y"))
    for sizes in ((3, 3, 3), (2, 4, 1), (5, 2, 3)):
        x, m, v = floats(*sizes), bools(sizes[0]), floats(sizes[2])
        wanted = x.copy()
        wanted[m] = v
        gives(model, {"x": x, "m": m, "v": v}, wanted)


@SCATTER_OPSETS
def test_p34_rows_of_another_tensor(opset: int) -> None:
    """``x[m] = y[m]`` is one Where; ``x[m] = y[other]`` is not, though both may hold as often."""
    same, apart = Graph(opset), Graph(opset)
    index = same.positions("m")
    same("ScatterND", "x", index, same("GatherND", "y", index), out="z")
    apart("ScatterND", "x", apart.positions("m"), apart("GatherND", "y", apart.positions("o")), out="z")
    model = portable(same.model("float[M, C] x, float[M, C] y, bool[M] m", "float[M, C] z"))
    assert {"Where"} <= ops(model) <= {"Where", "Unsqueeze", "Constant"}
    other = fixed(apart.model("float[M, C] x, float[M, C] y, bool[M] m, bool[M] o", "float[M, C] z")).model
    assert "ScatterND" not in ops(other)
    for rows in (2, 6):
        x, y, m = floats(rows, 3), floats(rows, 3, seed=1), bools(rows, seed=2)
        wanted = np.where(m[:, None], y, x)
        gives(model, {"x": x, "y": y, "m": m}, wanted)
        o = np.roll(m, 1)
        wanted = x.copy()
        wanted[m] = y[o]
        gives(other, {"x": x, "y": y, "m": m, "o": o}, wanted)


@SCATTER_OPSETS
@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p35_packed_values(opset: int, form: str) -> None:
    g = Graph(opset)
    if form == "aten":
        g.index_put("x", ["m"], "v", out="y")
    else:
        g("ScatterND", "x", g.positions("m"), "v", out="y")
    model = portable(g.model("float[N] x, bool[N] m, float[K] v", "float[N] y"))
    assert "CumSum" in ops(model)
    for m in (bools(1, seed=3), bools(7), np.zeros(4, bool), np.ones(5, bool), np.arange(6) == 2):
        x, v = floats(m.size), floats(int(m.sum()), seed=1)
        wanted = x.copy()
        wanted[m] = v
        gives(model, {"x": x, "m": m, "v": v}, wanted)


@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p36_masked_scatter_takes_from_the_front(form: str) -> None:
    g = Graph(18)
    if form == "aten":
        g.aten("masked_scatter", "x", "m", "inject", out="y", overload_name="")
    else:
        index = g.positions(g("Expand", "m", g("Shape", "x")))
        flat = g("Reshape", "inject", g.const(np.array([-1])))
        count = g("Gather", g("Shape", index), g.const(np.array([0])), axis=0)
        taken = g("Slice", flat, g.const(np.array([0])), count, g.const(np.array([0])))
        g("ScatterND", "x", index, taken, out="y")
    model = portable(g.model("float[1, S, D] x, bool[1, S, 1] m, float[N, D] inject", "float[1, S, D] y"))
    for length, width, rows in ((4, 3, 4), (7, 2, 9), (5, 1, 5)):
        x, m, inject = floats(1, length, width), bools(1, length, 1), floats(rows, width, seed=1)
        wanted = x.copy()
        wanted[np.broadcast_to(m, x.shape)] = inject.reshape(-1)[: int(m.sum()) * width]
        gives(model, {"x": x, "m": m, "inject": inject}, wanted)


@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p37_a_mask_and_a_column(form: str) -> None:
    """``r[mask, 0] = R[mask]`` with another batch than at export."""
    g = Graph(11)
    if form == "aten":
        g.index_put("r", ["m", g.const(np.int64(0))], g.aten("index", "R", g("SequenceConstruct", "m")), out="y")
    else:
        index = g.positions("m")
        zero = g("Expand", g.const(np.zeros((1, 1), np.int64)), g("Shape", index))
        g("ScatterND", "r", g("Concat", index, zero, axis=-1), g("GatherND", "R", index), out="y")
    model = portable(g.model("float[B, 2] r, bool[B] m, float[B] R", "float[B, 2] y"))
    for batch in (1, 2, 5):
        for m in (bools(batch), np.zeros(batch, bool), np.ones(batch, bool)):
            r, values = floats(batch, 2), floats(batch, seed=1)
            wanted = r.copy()
            wanted[m, 0] = values[m]
            gives(model, {"r": r, "m": m, "R": values}, wanted)


def test_p38_a_mask_paired_with_indices() -> None:
    g = Graph(11)
    g.index_put("x", ["m", "j"], "v", out="y")
    model = portable(g.model("float[2, 3] x, bool[2] m, int64[2] j, float[2] v", "float[2, 3] y"))
    x, v = floats(2, 3), floats(2)
    for m in ([True, True], [False, True], [True, False]):  # a single row goes with all indices
        for j in ([2, 0], [-1, -1]):
            wanted = x.copy()
            wanted[np.array(m), np.array(j)] = v
            gives(model, {"x": x, "m": np.array(m), "j": np.array(j), "v": v}, wanted)


@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p39_bool_data(form: str) -> None:
    g = Graph(11)
    if form == "aten":
        g.index_put("x", ["i"], g.const(True), out="y")
    else:
        g("ScatterND", "x", g.unsqueeze("i", -1), g("Expand", g.const(True), g("Shape", "i")), out="y")
    model = portable(g.model("bool[100] x, int64[25] i", "bool[100] y"))
    x, i = bools(100), np.random.default_rng(1).integers(0, 60, 25)
    assert len(set(i.tolist())) < 25
    wanted = x.copy()
    wanted[i] = True
    gives(model, {"x": x, "i": i}, wanted)


@ATEN_OPSETS
def test_p40_a_mask_cast_to_integers_is_an_index(opset: int) -> None:
    """``a[nan.long()] = .5`` writes the elements 0 and 1."""
    g = Graph(opset)
    index = g("Cast", g("IsNaN", "a"), to=TensorProto.INT64)
    g.index_put("a", [index], g.const(np.float32(0.5)), out="y")
    model = portable(g.model("float[N] a", "float[N] y"))
    for a in ([1, np.nan, 3, np.nan], [1, 2, 3], [np.nan, np.nan]):
        a = np.array(a, np.float32)
        wanted = a.copy()
        wanted[np.isnan(a).astype(np.int64)] = 0.5
        gives(model, {"a": a}, wanted)


# ---- P5: dtypes

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


@pytest.mark.parametrize("form", ["index_put", "masked_fill", "scatter"])
@pytest.mark.parametrize("value", [-np.inf, -65504.0, -1e4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_p42_fills_of_small_floats(form: str, value: float, dtype: str) -> None:
    """The constant has the data's dtype; no float32 goes through a Cast that overflows."""
    g = Graph(16)
    kind = np.dtype(np.float16) if dtype == "float16" else BFLOAT16
    x, m = floats(3, 4).astype(kind), bools(3, 4)
    fill = g.const(np.array(value, kind))
    if form == "index_put":
        g.index_put("x", ["m"], fill, out="y")
    elif form == "masked_fill":
        g.aten("masked_fill", "x", "m", fill, out="y")
    else:
        index = g.positions("m")
        count = g("Gather", g("Shape", index), g.const(np.array([0])), axis=0)
        g("ScatterND", "x", index, g("Expand", fill, count), out="y")
    model = portable(g.model(f"{dtype}[N, 4] x, bool[N, 4] m", f"{dtype}[N, 4] y"))
    constants = {t.name for t in model.graph.initializer} | {
        o for n in model.graph.node if n.op_type == "Constant" for o in n.output
    }
    casts = [n for n in model.graph.node if n.op_type == "Cast"]
    assert not any(n.input[0] in constants for n in casts)
    if dtype == "float16":
        assert not any(n.attribute[0].i == TensorProto.FLOAT for n in casts)
    wanted = x.copy()
    wanted[m] = np.array(value, kind)
    if dtype == "float16":
        gives(model, {"x": x, "m": m}, wanted)
    else:  # ONNX Runtime takes no bfloat16 arrays
        (got,) = ReferenceEvaluator(model).run(None, {"x": x, "m": m})
        assert got.dtype == kind
        np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


def test_p43_a_row_that_is_masked_whole() -> None:
    """Softmax of nothing but -inf is NaN, before and after, and the check takes it for equal."""
    g = Graph(13)
    g("Softmax", g.index_put("x", ["m"], g.const(np.float32(-np.inf))), out="y", axis=-1)
    source = g.model("float[N, 4] x, bool[N, 4] m", "float[N, 4] y")
    m = np.array([[True] * 4, [True, False, False, True], [False] * 4])
    x = floats(3, 4)
    masked = np.where(m, -np.inf, x)
    with np.errstate(invalid="ignore"):
        powers = np.exp(masked - masked.max(-1, keepdims=True))
        wanted = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    assert np.isnan(wanted[0]).all() and not np.isnan(wanted[1:]).any()
    gives(portable(source), {"x": x, "m": m}, wanted, rtol=1e-6)
    result = fixed(source, verify="model", inputs={"x": x, "m": m})
    assert result.report.verification.status == "confirmed"


@pytest.mark.parametrize("opset", [11, 16])
@pytest.mark.parametrize("dtype", ["double", "int32", "uint8", "int64", "float16"])
@pytest.mark.parametrize("index", ["int64", "int32"])
def test_p44_dtypes_stay(opset: int, dtype: str, index: str) -> None:
    g = Graph(opset)
    g.index_put("x", ["i"], "v", out="y")
    model = portable(g.model(f"{dtype}[N, 2] x, {index}[K] i, {dtype}[K, 2] v", f"{dtype}[N, 2] y"))
    kind = np.dtype(np.float64 if dtype == "double" else dtype)
    for rows, i in ((3, [0, -1, 0]), (5, [4])):
        x = np.random.default_rng(0).integers(0, 99, (rows, 2)).astype(kind)
        v = np.random.default_rng(1).integers(0, 99, (len(i), 2)).astype(kind)
        gives(model, {"x": x, "i": np.array(i, index), "v": v}, last_wins(x, np.array(i), v))


# ---- P6: canvases


def test_p47_a_pillar_canvas_is_kept() -> None:
    """Comparing 214272 positions with every index is too much: kept, with the figures, and it runs for any count."""
    g = Graph(11)
    canvas = g("ConstantOfShape", g.const(np.array([64, 214272])), value=helper.make_tensor("v", 1, [1], [0]))
    g.put(canvas, [ALL, "i"], "f", out="y")
    result = fixed(g.model("int64[N] i, float[64, N] f", "float[64, 214272] y"))
    (left,) = result.report.left
    assert (left.operator, left.output, left.asked) == ("ScatterND", "y", False)
    assert "would need an intermediate of " in left.reason
    assert "GB, the budget is " in left.reason
    for i in (np.array([7]), np.array([214271, 0, 100])):
        f = floats(64, i.size)
        wanted = np.zeros((64, 214272), np.float32)
        wanted[:, i] = f
        gives(result.model, {"i": i, "f": f}, wanted)


@pytest.mark.parametrize("form", ["aten", "scatter"])
def test_p49_one_canvas_for_each_sample(form: str) -> None:
    g = Graph(11)
    canvases = []
    for sample in range(3):
        zeros = g("ConstantOfShape", g.const(np.array([4, 50])), value=helper.make_tensor("v", 1, [1], [0]))
        if form == "aten":
            y = g.index_put(zeros, ["", f"i{sample}"], f"f{sample}")
        else:
            y = g.put(zeros, [ALL, f"i{sample}"], f"f{sample}")
        canvases.append(g.unsqueeze(y, 0))
    g("Concat", *canvases, out="y", axis=0)
    inputs = ", ".join(f"int64[N{s}] i{s}, float[4, N{s}] f{s}" for s in range(3))
    model = portable(g.model(inputs, "float[3, 4, 50] y"))
    names = [n.name for n in model.graph.node if n.name]
    made = [o for n in model.graph.node for o in n.output]
    assert len(set(names)) == len(names)
    assert len(set(made)) == len(made)
    for counts in ((1, 2, 3), (5, 1, 4)):
        feeds, wanted = {}, np.zeros((3, 4, 50), np.float32)
        for sample, count in enumerate(counts):
            i = np.random.default_rng(sample).permutation(50)[:count]
            feeds |= {f"i{sample}": i, f"f{sample}": floats(4, count, seed=sample)}
            wanted[sample][:, i] = feeds[f"f{sample}"]
        gives(model, feeds, wanted)


# ---- P7: advanced indexing


@ATEN_OPSETS
@pytest.mark.parametrize("domain", ["", ATEN])
def test_p50_indices_apart(opset: int, domain: str) -> None:
    g = Graph(opset)
    g.index_put("x", ["i", "", "j"], "v", out="y", domain=domain)
    model = portable(g.model("float[4, 6, 5] x, int64[2] i, int64[2] j, float[2, 6] v", "float[4, 6, 5] y"))
    x, v = floats(4, 6, 5), floats(2, 6)
    for i, j in (([3, 0], [1, -1]), ([2, 2], [4, 4])):
        i, j = np.array(i), np.array(j)
        wanted = x.copy()
        for n in range(2):
            wanted[i[n], :, j[n]] = v[n]
        gives(model, {"x": x, "i": i, "j": j, "v": v}, wanted)


def test_p51_points_of_an_image() -> None:
    g = Graph(9)
    g.index_put("x", ["", "i", "j"], "v", out="y")
    result = fixed(g.model("float[1, H, W] x, int64[N] i, int64[N] j, float[1, N] v", "float[1, H, W] y"))
    assert not GONE & ops(result.model)
    assert not result.report.left
    for height, width, count in ((4, 6, 3), (1, 2, 2), (5, 5, 1)):
        rng = np.random.default_rng(count)
        x, v = floats(1, height, width), floats(1, count)
        flat = rng.permutation(height * width)[:count]
        i, j = flat // width, flat % width
        wanted = x.copy()
        wanted[:, i, j] = v
        gives(result.model, {"x": x, "i": i, "j": j, "v": v}, wanted)


@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
def test_p53_an_index_of_rank_2(constant: bool) -> None:
    g = Graph(11)
    i = np.array([[0], [1]])
    g.index_put("x", [g.const(i) if constant else "i"], "v", out="y")
    inputs = "float[N, 3] x, float[2, 1, 3] v" + ("" if constant else ", int64[2, 1] i")
    model = portable(g.model(inputs, "float[N, 3] y"))
    for rows in (2, 4):
        x, v = floats(rows, 3), floats(2, 1, 3)
        wanted = x.copy()
        wanted[i] = v
        gives(model, {"x": x, "v": v} if constant else {"x": x, "v": v, "i": i}, wanted)


@ATEN_OPSETS
def test_p55_a_scalar_index(opset: int) -> None:
    """The axis goes, in the read and in the values that are written."""
    g = Graph(opset)
    none = g("Constant", domain="prim") if opset < 11 else ""
    indices = [g("ListConstruct", none, none, "i", domain="prim")] if opset < 11 else ["", "", "i"]
    g.aten("index", "x", *indices, out="read")
    g.index_put("x", ["", "", "i"], "v", out="y")
    io = "float[N, 3, 4] x, int64 i, float[N, 3] v"
    model = portable(g.model(io, "float[N, 3] read, float[N, 3, 4] y"))
    for rows in (1, 3):
        for i in (0, 3, -2):
            x, v = floats(rows, 3, 4), floats(rows, 3)
            wanted = x.copy()
            wanted[:, :, i] = v
            gives(model, {"x": x, "i": np.array(i), "v": v}, x[:, :, i], wanted)


@pytest.mark.parametrize("values", ["scalar", "packed"])
def test_p56_a_mask_nothing_and_an_index(values: str) -> None:
    """``x[m, :, j] = v``: the mask and the index are apart, so the rows come first."""
    g = Graph(11)
    g.index_put("x", ["m", "", "j"], "v", out="y")
    shape = "" if values == "scalar" else "[K, 4]"
    model = portable(g.model(f"float[3, 4, 5] x, bool[3] m, int64 j, float{shape} v", "float[3, 4, 5] y"))
    x = floats(3, 4, 5)
    for m in ([True, False, True], [False] * 3, [True] * 3):
        for j in (1, -1):
            v = np.array(9, np.float32) if values == "scalar" else floats(sum(m), 4)
            wanted = x.copy()
            wanted[np.array(m), :, j] = v
            gives(model, {"x": x, "m": np.array(m), "j": np.array(j), "v": v}, wanted)


# ---- P8: the range of indices


@pytest.mark.parametrize("form", ["aten", "scatter"])
@pytest.mark.parametrize("constant", [False, True], ids=["runtime", "constant"])
def test_p57_negative_indices(form: str, constant: bool) -> None:
    g = Graph(11)
    i = np.array([-1, 0, -2])
    name = g.const(i) if constant else "i"
    if form == "aten":
        g.index_put("x", [name], "v", out="y")
    else:
        g("ScatterND", "x", g.const(i[:, None]) if constant else g.unsqueeze(name, -1), "v", out="y")
    model = portable(g.model("float[N, 2] x, float[3, 2] v" + ("" if constant else ", int64[3] i"), "float[N, 2] y"))
    for rows in (3, 5):
        x, v = floats(rows, 2), floats(3, 2)
        gives(model, {"x": x, "v": v} if constant else {"x": x, "v": v, "i": i}, last_wins(x, i, v))


def test_p58_an_index_out_of_range() -> None:
    """ONNX Runtime refuses it in a ScatterND; as README says, the fixed model writes nothing for it."""
    g = Graph(13)
    g("ScatterND", "x", g.unsqueeze("i", -1), "v", out="y")
    source = g.model("float[N] x, int64[K] i, float[K] v", "float[N] y")
    x, v = floats(4), floats(3)
    wanted = x.copy()
    wanted[1] = v[1]
    for outside in (4, 1000, -5):
        feeds = {"x": x, "i": np.array([outside, 1, outside]), "v": v}
        with pytest.raises(Exception, match=r"[Ii]nvalid ind|out of"):
            run(source, feeds)
        gives(portable(source), feeds, wanted)


# ---- P9: index operators along a dim


@ATEN_OPSETS
@pytest.mark.parametrize("domain", ["", ATEN])
def test_p59_index_fill(opset: int, domain: str) -> None:
    g = Graph(opset)
    g.aten("index_fill", "x", g.const(0), "i", g.const(np.float32(-1)), out="y", domain=domain)
    model = portable(g.model("float[3] x, int64[K] i", "float[3] y"))
    for i in ([0], [2, 0, 2], [-1, 1]):
        x = floats(3)
        wanted = x.copy()
        wanted[i] = -1
        gives(model, {"x": x, "i": np.array(i)}, wanted)


def test_p59_index_fill_as_a_scatter() -> None:
    """As torch.onnx writes it: the index expanded to the data, and ScatterElements of a constant."""
    g = Graph(11)
    count = g("Shape", "i")
    fill = g("Expand", g.const(np.float32(-1)), count)
    g("ScatterElements", "x", g("Expand", "i", count), fill, out="y", axis=0)
    model = portable(g.model("float[3] x, int64[K] i", "float[3] y"))
    for i in ([0], [2, 0, 2], [-1, 1]):
        x = floats(3)
        wanted = x.copy()
        wanted[i] = -1
        gives(model, {"x": x, "i": np.array(i)}, wanted)


@ATEN_OPSETS
@pytest.mark.parametrize("domain", ["", ATEN])
def test_p60_index_copy(opset: int, domain: str) -> None:
    g = Graph(opset)
    g.aten("index_copy", "x", g.const(-1), "i", "v", out="y", domain=domain)
    model = portable(g.model("float[N, 5] x, int64[3] i, float[N, 3] v", "float[N, 5] y"))
    for rows in (1, 4):
        x, v, i = floats(rows, 5), floats(rows, 3), np.array([4, 0, -2])
        wanted = x.copy()
        wanted[:, i] = v
        gives(model, {"x": x, "i": i, "v": v}, wanted)


# ---- P10: forms of ATen nodes


@ATEN_OPSETS
@pytest.mark.parametrize("accumulate", [np.int64(0), np.False_], ids=["torch 1.8", "torch 1.10"])
def test_p62_the_default_domain(opset: int, accumulate: Any) -> None:
    g = Graph(opset)
    g.aten("index_put", "x", "", "i", "v", g.const(accumulate), out="y", domain="")
    source = g.model("float[N, 4] x, int64[K] i, float[N, K] v", "float[N, 4] y")
    assert [o.domain for o in source.opset_import] == [""]
    model = portable(source)
    assert [o.domain for o in model.opset_import] == [""]
    for rows, i in ((2, [0, 3]), (3, [-1])):
        x, v = floats(rows, 4), floats(rows, len(i))
        wanted = x.copy()
        wanted[:, i] = v
        gives(model, {"x": x, "i": np.array(i), "v": v}, wanted)


@pytest.mark.parametrize("name", ["index_put", "index_put_"])
def test_p63_a_placeholder_has_lost_its_indices(name: str) -> None:
    g = Graph(13)
    g.aten("Placeholder", "x", out="y", overload_name="")
    g.nodes[-1].attribute.append(helper.make_attribute("name", name))
    with pytest.raises(LossyExportError) as caught:
        fixed(g.model("float[N] x", "float[N] y"))
    assert caught.value.exit_code == 1
    message = str(caught.value)
    assert "dropped the indices and values of aten::index_put" in message
    assert "output 'y'" in message
    assert "export again" in message


def test_p64_arguments_as_attributes() -> None:
    g = Graph(11)
    g.aten("index_fill", "x", "i", out="filled", dim=1, value=-2.5)
    g.aten("gather", "x", "j", out="read", dim=1)
    g.aten("index_copy", "x", "i", "v", out="copied", dim=1)
    io = "float[N, 4] x, int64[2] i, float[N, 2] v, int64[N, 3] j"
    model = portable(g.model(io, "float[N, 4] filled, float[N, 3] read, float[N, 4] copied"))
    for rows in (1, 3):
        x, v, i = floats(rows, 4), floats(rows, 2), np.array([2, -4])
        j = np.random.default_rng(rows).integers(0, 4, (rows, 3))
        filled, copied = x.copy(), x.copy()
        filled[:, i], copied[:, i] = -2.5, v
        gives(model, {"x": x, "i": i, "v": v, "j": j}, filled, np.take_along_axis(x, j, 1), copied)


# The patterns whose operators have no pass in graphfix.
WITHOUT_PASS = [
    (64, "ATen", {"operator": "cumsum", "dim": 1}),
    (64, "ATen", {"operator": "group_norm", "num_groups": 2, "eps": 1e-5}),
    (65, "adaptive_avg_pool2d", {}),
    (66, "ATen", {"operator": "embedding_bag"}),
    (67, "ATen", {"operator": "type_as"}),
    (67, "ATen", {"operator": "transpose", "dim0": 0, "dim1": 1}),
    (67, "ATen", {"operator": "layer_norm"}),
    (68, "ATen", {"operator": "roll", "shifts": [3, 3], "dims": [1, 2]}),
    (69, "ATen", {"operator": "tril", "diagonal": 1}),
    (69, "ATen", {"operator": "triu"}),
    (70, "ATen", {"operator": "repeat_interleave", "overload_name": "self_int"}),
    (70, "ATen", {"operator": "repeat_interleave", "overload_name": "Tensor"}),
    (71, "ATen", {"operator": "im2col"}),
    (71, "ATen", {"operator": "col2im"}),
    (72, "ATen", {"operator": "grid_sampler"}),
    (73, "ATen", {"operator": "no_such_operator", "overload_name": "out"}),
]


@pytest.mark.parametrize(
    ("op", "attributes"),
    [row[1:] for row in WITHOUT_PASS],
    ids=[f"p{number}-{a.get('operator', op)}-{n}" for n, (number, op, a) in enumerate(WITHOUT_PASS)],
)
@pytest.mark.parametrize("place", ["main", "body"])
def test_p65_to_p73_operators_without_a_pass_are_refused(op: str, attributes: dict[str, Any], place: str) -> None:
    """With the operator, its overload, the node, and the body it is in."""
    node = helper.make_node(op, ["x", "w"], ["y"], name="the_node", domain=ATEN, **attributes)
    g = Graph(13)
    if place == "main":
        g.nodes.append(node)
    else:
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        branches = [
            helper.make_graph([node], "then", [], [y]),
            helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "else", [], [y]),
        ]
        choose = helper.make_node("If", ["c"], ["z"], "choose", then_branch=branches[0], else_branch=branches[1])
        g.nodes.append(choose)
    model = g.model("float[N, 4, 4] x, float[4] w, bool c", "float[N, 4, 4] y" if place == "main" else "float z")
    with pytest.raises(UnsupportedError) as caught:
        graphfix.fix(model, verify="none", simplify=False)
    message = str(caught.value)
    operator = attributes.get("operator", op)
    overload = attributes.get("overload_name", "")
    assert f"aten::{operator}" + (f".{overload}" if overload else "") in message
    assert "the_node" in message
    assert "\n" not in message
    assert ("choose" in message) == (place == "body")


# ---- P11: what else is in the graph


def test_p80_dims_of_minus_one() -> None:
    """As Paddle writes dynamic dims."""
    g = Graph(11)
    g.put("x", [ALL, 0], "v", out="y")
    source = g.model("float[1, 3] x, float[1] v", "float[1, 3] y")
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    result = graphfix.fix(source, simplify=False)
    assert result.report.verification.status == "confirmed"
    assert len(set(result.report.verification.sets)) > 1
    assert not GONE & ops(result.model)
    assert [v.type.tensor_type.shape.dim[0].dim_value for v in result.model.graph.input] == [-1, -1]
    for rows in (1, 4):
        x, v = floats(rows, 3), floats(rows)
        wanted = x.copy()
        wanted[:, 0] = v
        gives(result.model, {"x": x, "v": v}, wanted)


@pytest.mark.parametrize("simplify", [False, True], ids=["plain", "simplified"])
def test_p84_quantised_neighbours(simplify: bool) -> None:
    """DequantizeLinear, ScatterND, QuantizeLinear and a contrib operator: scales and domain stay."""
    g = Graph(13)
    g("DequantizeLinear", "q", "scale", "zero", out="x")
    g.put("x", [ALL, slice(0, 2)], "v", out="w")
    g("QuantizeLinear", "w", "scale", "zero", out="y")
    g("MatMulNBits", "w", "packed", "scales", out="z", domain="com.microsoft", K=32, N=2, bits=4, block_size=32)
    source = g.model("uint8[N, 32] q, float[N, 2] v", "uint8[N, 32] y, float[N, 2] z")
    packed = np.random.default_rng(0).integers(0, 256, (2, 1, 16)).astype(np.uint8)
    scales = np.array([0.5, 0.25], np.float32)
    constants = {
        "scale": np.array(0.5, np.float32),
        "zero": np.array(128, np.uint8),
        "packed": packed,
        "scales": scales,
    }
    source.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    result = graphfix.fix(source, verify="none", simplify=simplify)
    model = result.model
    assert not GONE & ops(model)
    assert ("com.microsoft", 1) in {(o.domain, o.version) for o in model.opset_import}
    kinds = ("DequantizeLinear", "QuantizeLinear", "MatMulNBits")
    before, after = ([n.SerializeToString() for n in m.graph.node if n.op_type in kinds] for m in (source, model))
    assert sorted(after) == sorted(before)
    kept = {t.name: t.SerializeToString() for t in model.graph.initializer}
    assert {t.name: kept[t.name] for t in source.graph.initializer} == {
        t.name: t.SerializeToString() for t in source.graph.initializer
    }
    q = np.random.default_rng(1).integers(0, 256, (3, 32)).astype(np.uint8)
    v = np.array([[1.5, -2], [0.5, 63], [-64, 0]], np.float32)
    w = (q.astype(np.float32) - 128) * np.float32(0.5)
    w[:, 0:2] = v
    weights = np.stack([packed & 15, packed >> 4], -1).reshape(2, 32).astype(np.float32) - 8
    y, z = run(model, {"q": q, "v": v})
    np.testing.assert_array_equal(y, (w * 2 + 128).astype(np.uint8))
    np.testing.assert_allclose(z, w @ (weights * scales[:, None]).T, rtol=1e-4)


def test_p86_part_of_a_shape() -> None:
    """Shape with start and end, as torch.onnx writes it from opset 15 on."""
    g = Graph(15)
    last = g("Squeeze", g("Shape", "x", start=1, end=2), g.const(np.array([0])))
    columns = g("Range", g.const(0), last, g.const(1))
    row = g("Expand", g("Reshape", "r", g.const(np.array([1]))), g("Shape", columns))
    index = g("Concat", g.unsqueeze(row, -1), g.unsqueeze(columns, -1), axis=-1)
    g("ScatterND", "x", index, "v", out="y")
    model = portable(g.model("float[N, T] x, int64 r, float[T] v", "float[N, T] y"))
    for rows, columns_ in ((1, 4), (4, 1), (3, 3)):
        for r in (0, -1):
            x, v = floats(rows, columns_), floats(columns_)
            wanted = x.copy()
            wanted[r] = v
            gives(model, {"x": x, "r": np.array(r), "v": v}, wanted)


def test_p86_a_squeeze_that_asks_the_size() -> None:
    """torch.onnx writes ``squeeze(1)`` of an unknown size as an If: its rank is not known."""
    g = Graph(13)
    size = g("Gather", g("Shape", "v"), g.const(np.array([1])), axis=0)
    one = g("Equal", size, g.const(np.array([1])))
    then, other = Graph(13), Graph(13)
    then("Squeeze", "v", then.const(np.array([1])), out="squeezed")
    other("Identity", "v", out="as_it_was")
    branches = {
        "then_branch": helper.make_graph(then.nodes, "then", [], [helper.make_tensor_value_info("squeezed", 1, None)]),
        "else_branch": helper.make_graph(
            other.nodes, "else", [], [helper.make_tensor_value_info("as_it_was", 1, None)]
        ),
    }
    row = g("If", g("Squeeze", one), **branches)
    total = g("ReduceSum", row, keepdims=0)
    g.put("x", [ALL, 0], total, out="y")
    model = portable(g.model("float[N, 3] x, float[K, L] v", "float[N, 3] y"))
    assert "If" in ops(model)
    for rows, length in ((1, 1), (4, 1), (2, 3)):
        x, v = floats(rows, 3), floats(2, length)
        wanted = x.copy()
        wanted[:, 0] = v.sum()
        gives(model, {"x": x, "v": v}, wanted, rtol=1e-5)
