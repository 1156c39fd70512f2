"""Repairs of exporters' faults: real exports against PyTorch's answers, and random graphs against NumPy's indexing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import graphfix
from graphfix.pass_base import Repair, Safety
from graphfix.reference.session import ReferenceSession

DATA = Path(__file__).parent / "data" / "torchscript"
SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), print_blob=True)
Arrays = dict[str, np.ndarray]

# The real exports: what is repaired in each, unasked and only when asked for.
UNASKED = {
    "index_rows_broadcast.ts17": "reshape-broadcast",
    "mask_bool_rows.ts17": "mask-alignment",
    "mask_rows_broadcast.ts11": "reshape-broadcast",
    "mask_rows_column.ts17": "reshape-broadcast",
    "mask_scalar_dim0.ts17": "mask-alignment",
    "mask_scalar_prefix.ts11": "mask-alignment",
    "mask_then_index_values.ts11": "mask-column",
}
ASKED = {
    "accumulate_duplicates.ts17": "lost-accumulate",
    "index_add_duplicates.ts11": "lost-accumulate",
    "mask_scalar_square.ts17": "mask-alignment",
    "mask_slice_index.ts17": "mask-column",
    "mask_then_index.ts17": "mask-column",
    "scatter_add.ts11": "lost-accumulate",
}


def run(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    return session.run(None, {k: np.asarray(v) for k, v in feeds.items() if k in known})


def answers(name: str) -> list[tuple[Arrays, list[np.ndarray]]]:
    stored = np.load(DATA / f"{name}.npz")
    sets: dict[str, tuple[Arrays, list[np.ndarray]]] = {}
    for key in stored.files:
        number, side, tensor = key.split("/")
        feeds, wanted = sets.setdefault(number, ({}, []))
        if side == "in":
            feeds[tensor] = stored[key]
        else:
            wanted.append(stored[key])
    return list(sets.values())


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    return np.allclose(got, want, rtol=1e-5, atol=1e-5) if want.dtype.kind == "f" else np.array_equal(got, want)


def agrees(model: onnx.ModelProto, name: str) -> bool:
    return all(same(g, w) for feeds, wanted in answers(name) for g, w in zip(run(model, feeds), wanted, strict=True))


def model_of(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from ONNX's text form; ``constants`` become initializers."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    return model


def graph_model(
    nodes: list[onnx.NodeProto],
    feeds: Arrays,
    constants: Arrays,
    output: np.ndarray,
    opset: int,
    dims: dict[str, list[Any]] | None = None,
) -> onnx.ModelProto:
    """A model around nodes that make ``out``; ``dims`` are the declared sizes where they are not those of the feeds."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), (dims or {}).get(n, list(v.shape)))
        for n, v in feeds.items()
    ]
    made = helper.make_tensor_value_info("out", helper.np_dtype_to_tensor_dtype(output.dtype), [None] * output.ndim)
    initializers = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [made], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def fixed(model: onnx.ModelProto, **options: Any) -> graphfix.FixResult:
    return graphfix.fix(model, **{"simplify": False, "verify": "none", **options})


# ---- real exports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "repair"), UNASKED.items())
def test_repaired_unasked(name: str, repair: str) -> None:
    result = graphfix.fix(DATA / f"{name}.onnx")
    assert agrees(result.model, name)
    report = result.report
    assert f"repair-{repair}" in {r.pass_name for r in report.replacements}
    assert report.verification.status == "confirmed"
    assert report.verification.against == "the input model as repaired"
    (warning,) = report.warnings
    assert warning.startswith(f"exporter fault repaired, the model fails with it: repair-{repair} at ")
    assert not any("suspected" in note for note in report.notes)


@pytest.mark.parametrize("name", UNASKED)
def test_what_is_repaired_unasked_does_not_run(name: str) -> None:
    model = onnx.load(DATA / f"{name}.onnx")
    with pytest.raises(Exception, match=r"Where|Reshape|ScatterND|NOT_IMPLEMENTED|broadcast"):
        for feeds, _ in answers(name):
            run(model, feeds)


@pytest.mark.parametrize(("name", "repair"), ASKED.items())
def test_a_suspicion_is_only_reported(name: str, repair: str) -> None:
    result = graphfix.fix(DATA / f"{name}.onnx", strict=True)
    report = result.report
    assert not agrees(result.model, name)
    for feeds, _ in answers(name):
        assert same(run(result.model, feeds)[0], run(onnx.load(DATA / f"{name}.onnx"), feeds)[0])
    (note,) = [n for n in report.notes if "suspected exporter fault" in n]
    assert f"--repair {repair}" in note
    assert "(output '" in note
    assert not report.warnings
    assert report.verification.against == "the input model"
    assert not any(r.code.startswith("GF3") for r in report.replacements)


@pytest.mark.parametrize(("name", "repair"), ASKED.items())
@pytest.mark.parametrize("how", ["name", "pass", "code", "all"])
def test_repaired_when_asked(name: str, repair: str, how: str) -> None:
    known = next(p for p in graphfix.load_passes() if p.name == f"repair-{repair}")
    asked = {"name": repair.upper(), "pass": known.name, "code": [known.code], "all": "all"}[how]
    result = graphfix.fix(DATA / f"{name}.onnx", repair=asked)
    report = result.report
    assert agrees(result.model, name)
    assert result.ok
    (warning,) = report.warnings
    assert warning.startswith(f"results are meant to change: {known.name} at ")
    assert report.verification.status == "confirmed"
    assert report.verification.against == "the input model as repaired"
    assert not any("suspected" in note for note in report.notes)


def test_two_faults_of_one_write() -> None:
    """One row, added several times: the graph cannot run, and when it does, it loses values."""
    path = DATA / "accumulate_row.ts11.onnx"
    only_run = graphfix.fix(path)
    assert not agrees(only_run.model, "accumulate_row.ts11")
    assert any("--repair lost-accumulate" in note for note in only_run.report.notes)
    assert agrees(graphfix.fix(path, repair="all").model, "accumulate_row.ts11")


def test_bool_where_is_exact_and_held_against_the_input_model() -> None:
    result = graphfix.fix(DATA / "mask_bool_data.ts17.onnx")
    assert agrees(result.model, "mask_bool_data.ts17")
    assert result.report.verification.against == "the input model"
    assert [n.op_type for n in result.model.graph.node] == ["Or"]
    assert not result.report.warnings


@pytest.mark.parametrize("name", [*UNASKED, *ASKED, "mask_bool_data.ts17"])
def test_its_own_output_is_left_alone(name: str) -> None:
    once = graphfix.fix(DATA / f"{name}.onnx", repair="all")
    again = graphfix.fix(once.model, repair="all")
    assert again.model.SerializeToString() == once.model.SerializeToString()
    assert not any("fault" in line for line in (*again.report.notes, *again.report.warnings))


# ---- lost accumulate -----------------------------------------------------------------------------------------------


@st.composite
def sums(draw: st.DrawFn) -> tuple[onnx.ModelProto, Arrays, np.ndarray]:
    """Add(x, Scatter(zeros, i, v)) and what PyTorch would make of it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "int64", "int32"]))
    opset = draw(st.sampled_from([11, 13, 16, 18, 21]))
    elements = draw(st.booleans())
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    x = (rng.normal(size=shape) * 8).astype(dtype)
    count = draw(st.integers(0, 5))
    zeros = draw(st.sampled_from(["constant", "shape", "expand"]))
    if elements:
        axis = draw(st.integers(0, len(shape) - 1))
        taken = [count if a == axis else draw(st.integers(1, n)) for a, n in enumerate(shape)]
        index = rng.integers(0, shape[axis], taken)
        v = (rng.normal(size=taken) * 8).astype(dtype)
        want = x.copy()
        at = list(np.indices(taken))
        at[axis] = index
        np.add.at(want, tuple(at), v)
        scatter = helper.make_node("ScatterElements", ["zeros", "i", "v"], ["written"], axis=axis)
    else:
        width = draw(st.integers(1, len(shape)))
        index = np.stack([rng.integers(0, n, count) for n in shape[:width]], -1)
        v = (rng.normal(size=(count, *shape[width:])) * 8).astype(dtype)
        want = x.copy()
        np.add.at(want, tuple(index.T), v)
        scatter = helper.make_node("ScatterND", ["zeros", "i", "v"], ["written"])
    zero = np.zeros(1, dtype)
    constants: Arrays = {}
    nodes: list[onnx.NodeProto] = []
    if zeros == "constant":
        constants["zeros"] = np.zeros(shape, dtype)
    else:
        nodes.append(helper.make_node("Shape", ["x"], ["size"]))
        if zeros == "shape":
            value = numpy_helper.from_array(zero)
            nodes.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"], value=value))
        else:
            constants["zero"] = zero
            nodes.append(helper.make_node("Expand", ["zero", "size"], ["zeros"]))
    terms = ["x", "written"] if draw(st.booleans()) else ["written", "x"]
    nodes += [scatter, helper.make_node("Add", terms, ["out"])]
    feeds = {"x": x, "i": index.astype(np.int64), "v": v}
    return graph_model(nodes, feeds, constants, x, opset), feeds, want


@SETTINGS
@given(sums())
def test_sums_like_numpy(case: tuple[onnx.ModelProto, Arrays, np.ndarray]) -> None:
    model, feeds, want = case
    result = fixed(model, repair="lost-accumulate")
    (got,) = run(result.model, feeds)
    assert got.dtype == want.dtype
    if want.dtype.kind == "f":
        tolerance = {2: 5e-2, 4: 1e-5, 8: 1e-12}[want.dtype.itemsize]
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


SUM = """<ir_version: 8, opset_import: ["": 17]>
g (float[6, 4] x, int64[3, 1] i, float[3, 4] v{more}) => (float[6, 4] out{outputs})
{{
{body}
}}"""
ADD = "written = ScatterND(zeros, i, v)\nout = Add(x, written)"


def suspicions(model: onnx.ModelProto, **options: Any) -> list[str]:
    return [note for note in fixed(model, **options).report.notes if "suspected exporter fault" in note]


def sum_model(body: str = ADD, more: str = "", outputs: str = "", **constants: np.ndarray) -> onnx.ModelProto:
    return model_of(SUM.format(body=body, more=more, outputs=outputs), **constants)


ZEROS = np.zeros((6, 4), np.float32)


def test_a_sum_is_suspected() -> None:
    assert len(suspicions(sum_model(zeros=ZEROS))) == 1


def test_large_zeros_are_zeros() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2048, 1024] x, int64[3, 1] i, float[3, 1024] v) => (float[2048, 1024] out)
    { written = ScatterND(zeros, i, v)
      out = Add(x, written) }"""
    assert len(suspicions(model_of(text, zeros=np.zeros((2048, 1024), np.float32)))) == 1


ONE_OFF = ZEROS.copy()
ONE_OFF[5, 3] = 1e-30


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(sum_model(zeros=ONE_OFF), id="not zeros"),
        pytest.param(sum_model(outputs=", float[6, 4] written", zeros=ZEROS), id="written is an output"),
        pytest.param(sum_model(f"{ADD}\nother = Neg(written)", "", ", float[6, 4] other", zeros=ZEROS), id="also read"),
        pytest.param(sum_model(ADD.replace("(zeros", '<reduction = "add">(zeros'), zeros=ZEROS), id="adds already"),
        pytest.param(sum_model(ADD.replace("x, w", "row, w"), ", float[4] row", zeros=ZEROS), id="another shape"),
        pytest.param(
            sum_model(ADD.replace("i, v", "j, v"), zeros=ZEROS, j=np.array([[2], [0], [5]])), id="unique constants"
        ),
        pytest.param(
            sum_model(f"best, at = TopK<axis = 0>(s, k)\nj = Unsqueeze(at, last)\n{ADD.replace('i, v', 'j, v')}",
                      ", float[6] s", zeros=ZEROS, k=np.array([3]), last=np.array([1])),
            id="top k",
        ),
    ],
)  # fmt: skip
def test_what_is_no_lost_sum(model: onnx.ModelProto) -> None:
    assert suspicions(model) == []
    once, asked = fixed(model), fixed(model, repair="all")
    assert asked.model.SerializeToString() == once.model.SerializeToString()


@pytest.mark.parametrize("j", [[[2], [0], [2]], [[2], [0], [-4]]], ids=str)
def test_equal_constant_indices_are_suspected(j: list[list[int]]) -> None:
    assert len(suspicions(sum_model(ADD.replace("i, v", "j, v"), zeros=ZEROS, j=np.array(j)))) == 1


# ---- mask alignment ------------------------------------------------------------------------------------------------


@st.composite
def masked(draw: st.DrawFn) -> tuple[onnx.ModelProto, Arrays, np.ndarray, bool]:
    """Where(mask, c, x) with a mask over leading axes, and whether it can run as it is."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(["float32", "float16", "int64", "bool", "uint8", "int16"]))
    shape = draw(st.lists(st.integers(0, 4), min_size=2, max_size=4))
    rank = draw(st.integers(1, len(shape) - 1))
    x = (rng.normal(size=shape) * 8).astype(dtype)
    mask = rng.random(shape[:rank]) < 0.5
    c = np.asarray(3).astype(dtype)
    want = x.copy()
    want[mask] = c
    inverted = draw(st.booleans())
    nodes = [helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.BOOL)]
    if inverted:
        nodes += [helper.make_node("Not", ["m"], ["n"]), helper.make_node("Where", ["n", "x", "c"], ["out"])]
    else:
        nodes.append(helper.make_node("Where", ["m", "c", "x"], ["out"]))
    named = draw(st.booleans())
    dims = {"x": [f"d{i}" for i in range(len(shape))], "mask": [f"d{i}" for i in range(rank)]} if named else None
    model = graph_model(nodes, {"x": x, "mask": mask}, {"c": c}, x, draw(st.sampled_from([9, 11, 13, 17, 21])), dims)
    fits = all(m in (1, d) or d == 1 for m, d in zip(shape[:rank], shape[len(shape) - rank :], strict=True))
    # Of one axis of a free size it cannot be said that it does not broadcast.
    return model, {"x": x, "mask": mask}, want, "maybe" if named and rank == 1 else "no" if named or not fits else "yes"


@SETTINGS
@given(masked())
def test_masks_like_numpy(case: tuple[onnx.ModelProto, Arrays, np.ndarray, str]) -> None:
    model, feeds, want, runs = case
    # ONNX Runtime has no Where for these, and one that needs no repair stays.
    assume(runs != "yes" or feeds["x"].dtype.name not in ("bool", "int16"))
    asked = fixed(model, repair="mask-alignment")
    np.testing.assert_array_equal(run(asked.model, feeds)[0], want)
    unasked = fixed(model)
    if runs == "no":
        assert unasked.model.SerializeToString() == asked.model.SerializeToString()
    elif runs == "maybe":
        assert "repair-mask-alignment" not in {r.pass_name for r in unasked.report.replacements}
    else:
        np.testing.assert_array_equal(run(unasked.model, feeds)[0], run(model, feeds)[0])


@pytest.mark.parametrize(
    ("mask", "data", "value", "expected"),
    [
        ("B", "B, 6, 5", "", "repaired"),
        ("B, T", "B, T, C", "", "repaired"),
        ("B, T", "B, T, T", "", "suspected"),  # a batch of one would broadcast
        ("B, T", "B, T, C", "B, T, C", "repaired"),
        ("5", "5, 5", "", "suspected"),
        ("B", "B, B", "", "suspected"),
        ("5", "5, 5", "5, 5", "nothing"),  # torch.where broadcasts from the right; x[mask] = value has one value
        ("1", "1, 5", "", "nothing"),  # both readings are the same
        ("T", "B, T", "", "nothing"),
        ("6", "B, 6", "", "nothing"),
        ("", "B, 6", "", "nothing"),
        ("4", "3, 6", "", "nothing"),  # no reading makes it run
    ],
)
def test_which_masks_are_laid_along_the_first_axes(mask: str, data: str, value: str, expected: str) -> None:
    mask, value = (f"[{sizes}]" if sizes else "" for sizes in (mask, value))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (bool{mask} mask, float[{data}] x, float{value} c) => (float[{data}] out) {{ out = Where(mask, c, x) }}"""
    result = fixed(onnx.parser.parse_model(text))
    repaired = [r.pass_name for r in result.report.replacements]
    suspected = any("--repair mask-alignment" in note for note in result.report.notes)
    found = "repaired" if repaired == ["repair-mask-alignment"] else "suspected" if suspected else "nothing"
    assert found == expected


# ---- values that have to be repeated ---------------------------------------------------------------------------------


@st.composite
def rows(draw: st.DrawFn) -> tuple[onnx.ModelProto, Arrays, np.ndarray]:
    """x[i] = v and x[mask] = v as torch writes them, with v broadcast to what is selected."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    opset = draw(st.sampled_from([11, 13, 17]))
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    x = rng.normal(size=shape).astype(np.float32)
    named = draw(st.booleans())
    constants: Arrays = {"all": np.array([-1]), "zero": np.array([0]), "first": np.array(0)}
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        index = rng.integers(0, shape[0], (count, 1))
        selected = [count, *shape[1:]]
        v = _row(draw, rng, selected)
        constants["target"] = np.array(selected)
        nodes = [
            helper.make_node("Reshape", ["v", "target"], ["r"]),
            helper.make_node("ScatterND", ["x", "i", "r"], ["out"]),
        ]
        want = x.copy()
        want[index[:, 0]] = v
        feeds = {"x": x, "i": index, "v": v}
        return graph_model(nodes, feeds, constants, x, opset), feeds, want
    rank = draw(st.integers(1, len(shape)))
    mask = rng.random(shape[:rank]) < 0.5
    v = _row(draw, rng, [1, *shape[rank:]])
    wide = np.arange(rank, len(shape))
    if rank == len(shape):
        nodes = [helper.make_node("Identity", ["mask"], ["column"])]
    elif opset < 13:
        nodes = [helper.make_node("Unsqueeze", ["mask"], ["column"], axes=wide.tolist())]
    else:
        constants["axes"] = wide
        nodes = [helper.make_node("Unsqueeze", ["mask", "axes"], ["column"])]
    nodes += [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Expand", ["column", "size"], ["wide"]),
        helper.make_node("NonZero", ["wide"], ["found"]),
        helper.make_node("Transpose", ["found"], ["at"], perm=[1, 0]),
        helper.make_node("Reshape", ["v", "all"], ["flat"]),
        helper.make_node("Shape", ["at"], ["extent"]),
        helper.make_node("Gather", ["extent", "zero"], ["count"], axis=0),
        helper.make_node("Slice", ["flat", "zero", "count", "zero"], ["taken"]),
        helper.make_node("ScatterND", ["x", "at", "taken"], ["out"]),
    ]
    want = x.copy()
    want[mask] = v
    feeds = {"x": x, "mask": mask, "v": v}
    dims = {"x": [f"d{i}" for i in range(len(shape))], "mask": [f"d{i}" for i in range(rank)]} if named else None
    if dims is not None:
        known = dict(zip(shape[::-1], dims["x"][::-1], strict=True))
        if len(set(shape)) < len(shape) or v.ndim > len(shape) - rank:
            dims = None
        else:
            dims["v"] = [1 if n == 1 else known[n] for n in v.shape]
    return graph_model(nodes, feeds, constants, x, opset, dims), feeds, want


def _row(draw: st.DrawFn, rng: np.random.Generator, selected: list[int]) -> np.ndarray:
    shape = [n if draw(st.booleans()) else 1 for n in selected]
    shape[0] = 1
    for _ in range(draw(st.integers(0, len(shape) - 1))):
        shape = shape[1:] if shape[0] == 1 else shape
    return rng.normal(size=shape).astype(np.float32)


@SETTINGS
@given(rows())
def test_rows_like_numpy(case: tuple[onnx.ModelProto, Arrays, np.ndarray]) -> None:
    model, feeds, want = case
    np.testing.assert_array_equal(run(fixed(model).model, feeds)[0], want)


def test_packed_values_are_no_row() -> None:
    """As many rows as data has columns: still one for each True."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[B, 4] x, bool[B, 4] mask, float[4] v) => (float[B, 4] out)
    { found = NonZero(mask)
      at = Transpose<perm = [1, 0]>(found)
      extent = Shape(at)
      count = Gather(extent, zero)
      taken = Slice(v, zero, count, zero)
      out = ScatterND(x, at, taken) }"""
    model = model_of(text, zero=np.array([0]))
    result = fixed(model, repair="all")
    assert not any(r.code.startswith("GF3") for r in result.report.replacements)
    x, mask = np.zeros((2, 4), np.float32), np.array([[1, 0, 0, 1], [0, 1, 0, 1]], bool)
    want = x.copy()
    want[mask] = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(run(result.model, {"x": x, "mask": mask, "v": want[mask]})[0], want)


# ---- bool data -------------------------------------------------------------------------------------------------------


@st.composite
def choices(draw: st.DrawFn) -> tuple[onnx.ModelProto, Arrays, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    feeds: Arrays = {}
    constants: Arrays = {}
    sides: Arrays = {}
    for name in ("m", "a", "b"):
        own = [n if draw(st.booleans()) else 1 for n in shape][draw(st.integers(0, len(shape))) :]
        sides[name] = rng.random(own) < 0.5
        given_as = draw(st.sampled_from(["input", "constant"])) if name != "m" else "input"
        (feeds if given_as == "input" else constants)[name] = sides[name]
    want = np.where(sides["m"], sides["a"], sides["b"])
    node = helper.make_node("Where", ["m", "a", "b"], ["out"])
    return graph_model([node], feeds, constants, want, draw(st.sampled_from([9, 11, 17]))), feeds, want


@SETTINGS
@given(choices())
def test_bool_where_like_numpy(case: tuple[onnx.ModelProto, Arrays, np.ndarray]) -> None:
    model, feeds, want = case
    result = fixed(model)
    assert all(n.op_type != "Where" for n in result.model.graph.node)
    (got,) = run(result.model, feeds)
    assert got.dtype == bool
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(ReferenceSession(model).run(feeds)["out"], want)


BOOL_BODY = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (bool[4] m, bool[4] a, bool[4] b, bool p) => (bool[4] out)
{
  chosen = own.pick(m, a, b)
  out = If (p) <then_branch = t () => (bool[4] y) { y = Where(chosen, a, b) },
                else_branch = e () => (bool[4] z) { z = Identity(chosen) }>
}
<domain: "own", opset_import: ["": 17]>
pick (m, a, b) => (y) { y = Where(m, a, b) }"""


@pytest.mark.parametrize("p", [True, False])
def test_bool_where_in_bodies_and_functions(p: bool) -> None:
    model = onnx.parser.parse_model(BOOL_BODY)
    rng = np.random.default_rng(0)
    feeds = {name: rng.random(4) < 0.5 for name in "mab"} | {"p": np.array(p)}
    chosen = np.where(feeds["m"], feeds["a"], feeds["b"])
    want = np.where(chosen, feeds["a"], feeds["b"]) if p else chosen
    result = graphfix.fix(model, simplify=False)
    assert result.report.verification.against == "the input model"
    np.testing.assert_array_equal(run(result.model, feeds)[0], want)
    np.testing.assert_array_equal(ReferenceSession(model).run(feeds)["out"], want)


# ---- options and words -----------------------------------------------------------------------------------------------


def test_the_repairs() -> None:
    repairs = {p.code: p.name for p in graphfix.load_passes() if p.safety is Safety.CHANGES_RESULT}
    assert repairs == {
        "GF301": "repair-lost-accumulate",
        "GF302": "repair-mask-alignment",
        "GF303": "repair-reshape-broadcast",
        "GF305": "repair-mask-column",
    }
    assert all(issubclass(p, Repair) for p in graphfix.load_passes() if p.code in repairs)
    first = [p.code for p in graphfix.load_passes()][: len(repairs)]
    assert set(first) == set(repairs)


@pytest.mark.parametrize("repair", ["nonsense", "where-bool", ["all", "lost"], "", "repair-"])
def test_unknown_repairs(repair: Any) -> None:
    with pytest.raises(graphfix.UsageError, match="there is no repair"):
        graphfix.fix(DATA / "scatter_add.ts11.onnx", repair=repair)


def test_repaired_and_skipped() -> None:
    path = DATA / "scatter_add.ts11.onnx"
    with pytest.raises(graphfix.UsageError, match="skipped"):
        graphfix.fix(path, repair="lost-accumulate", skip="GF301")
    assert not agrees(graphfix.fix(path, repair="all", skip="GF301").model, path.stem)


def test_skip_and_only() -> None:
    model = onnx.load(DATA / "mask_scalar_dim0.ts17.onnx")
    assert fixed(model, skip="repair-mask-alignment").report.replacements == []
    assert fixed(model, only="scatter-nd").report.replacements == []
    assert len(fixed(model, only="scatter-nd", repair="mask-alignment").report.replacements) == 1
    assert len(fixed(model, only="GF302").report.replacements) == 1


def test_suspicions_of_many_nodes_are_summed_up() -> None:
    body = "".join(f"x{i + 1} = Where(mask, c, x{i})\n" for i in range(30))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[5, 5] x0, bool[5] mask, float c) => (float[5, 5] x30) {{ {body} }}"""
    notes = suspicions(onnx.parser.parse_model(text))
    assert len(notes) == 13
    assert "18 more" in notes[-1]


def test_too_old_an_opset_is_said() -> None:
    """A sum that must stay a scatter has no form below opset 16."""
    path = DATA / "scatter_add.ts11.onnx"
    result = fixed(onnx.load(path), repair="all", budget=1)
    assert not result.ok
    assert any(left.code == "GF301" and left.asked and "needs opset 16" in left.reason for left in result.report.left)


def test_command_line(tmp_path: Path) -> None:
    def graphfix_on(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "graphfix.cli", str(path), str(tmp_path / "o.onnx"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    path = DATA / "scatter_add.ts11.onnx"
    plain = graphfix_on()
    assert plain.returncode == 0
    assert "suspected exporter fault at Add '/Add' (output 'out0')" in " ".join(plain.stdout.split())
    assert "equal to the input model on" in plain.stdout
    asked = graphfix_on("--repair", "lost-accumulate", "--repair", "mask-alignment")
    assert asked.returncode == 0
    assert "results are meant to change" in asked.stdout
    assert "the input model as repaired on" in asked.stdout
    wrong = graphfix_on("--repair", "lost-acumulate")
    assert wrong.returncode == 2
    assert "did you mean lost-accumulate?" in wrong.stderr


@pytest.mark.parametrize("code", ["GF301", "GF302", "GF303", "GF304", "GF305"])
def test_explained(code: str) -> None:
    from graphfix.explain import explain

    text = explain(code)
    assert text.startswith(f"{code} repair-")
    assert all(part in text for part in ("Why:", "Before:", "After:"))
