"""Standard ScatterND, ScatterElements and NonZero chains over random indices, held against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from engine import run
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from index_put_cases import DTYPES, Case, cases
from onnx import TensorProto, helper, numpy_helper

import graphfix

SETTINGS = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck), print_blob=True)
LEFT = {"ScatterND", "ScatterElements", "Scatter", "NonZero", "GatherND"}


class Graph:
    """Collects nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def unsqueeze(self, x: str, axis: int, opset: int) -> str:
        if opset < 13:
            return self.node("Unsqueeze", x, axes=[axis])
        return self.node("Unsqueeze", x, self.constant(np.array([axis])))

    def model(self, result: str, feeds: dict[str, np.ndarray], dtype: np.dtype, opset: int, dynamic: bool):
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [f"{name}_{d}" if dynamic else n for d, n in enumerate(array.shape)],
            )
            for name, array in feeds.items()
        ]
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(dtype), None)
        graph = helper.make_graph(self.nodes, "g", inputs, [output], self.constants)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def fixed(model: onnx.ModelProto) -> graphfix.FixResult:
    return graphfix.fix(model, verify="none", simplify=False)


def exporter_scatter(case: Case, opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The case as a ScatterND whose index is built from one grid for each axis, as exporters write it."""
    graph = Graph()
    feeds = {"x": case.data, **{k: v for k, v in case.feeds().items() if k.startswith("i")}}
    advanced = [i for i in case.index if i is not None]
    grid_rank = max(i.ndim for i in advanced)
    axes = len(case.index)
    full = [a for a in range(axes) if case.index[a] is None]
    rank = grid_rank + len(full)
    columns = []
    for axis, index in enumerate(case.index):
        if index is None:
            size = graph.node("Gather", graph.node("Shape", "x"), graph.constant(np.int64(axis)), axis=0)
            ramp = graph.node("Range", graph.constant(np.int64(0)), size, graph.constant(np.int64(1)))
            target = [1] * rank
            target[grid_rank + full.index(axis)] = -1
            columns.append(graph.node("Reshape", ramp, graph.constant(np.array(target))))
            continue
        name = f"i{axis}"
        if axis in case.constant:
            name = graph.constant(index.astype(np.int64))
        elif index.dtype != np.int64:
            name = graph.node("Cast", name, to=TensorProto.INT64)
        for _ in full:
            name = graph.unsqueeze(name, -1, opset)
        columns.append(name)
    total = columns[0]
    for column in columns[1:]:
        total = graph.node("Add", total, column)
    shape = graph.node("Shape", total)
    parts = [graph.unsqueeze(graph.node("Expand", c, shape), -1, opset) for c in columns]
    index = graph.node("Concat", *parts, axis=-1)
    # The updates, with the grid first and then the whole axes.
    selected = case.data[case.key()]
    values = np.broadcast_to(case.values, selected.shape)
    places = [a for a in range(axes) if case.index[a] is not None]
    together = places == list(range(places[0], places[-1] + 1))
    if together:
        before = [a for a in full if a < places[0]]
        order = [*range(len(before), len(before) + grid_rank), *range(len(before))]
        order += list(range(len(before) + grid_rank, values.ndim))
        values = values.transpose(order)
    feeds["v"] = values.copy()
    attributes = {"reduction": "add"} if case.accumulate else {}
    result = graph.node("ScatterND", "x", index, "v", **attributes)
    return graph.model(result, feeds, case.data.dtype, opset, case.dynamic), feeds


@SETTINGS
@given(cases(most_rank=4), st.sampled_from([11, 13, 16, 18]))
def test_exporter_scatter_nd(case: Case, opset: int) -> None:
    assume(all(i is None or i.dtype != bool for i in case.index))
    assume(case.data.size and all(i is None or i.size for i in case.index))
    opset = 16 if case.accumulate and opset < 16 else opset
    model, feeds = exporter_scatter(case, opset)
    result = fixed(model)
    answer = case.answer()
    got = run(result.model, feeds)
    if case.accumulate and answer.dtype.kind == "f":
        tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-12}[answer.dtype.itemsize]
        np.testing.assert_allclose(got, answer, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, answer)
    if not case.dynamic:
        assert not LEFT & {n.op_type for n in result.model.graph.node}


@st.composite
def masked(draw: st.DrawFn):
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    width = draw(st.integers(1, rank))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    mask = rng.integers(0, 2, shape[:width]).astype(bool)
    flavour = draw(st.integers(0, 4))
    mask = np.zeros_like(mask) if flavour == 0 else np.ones_like(mask) if flavour == 1 else mask
    data = rng.standard_normal(shape).astype(np.float32)
    data.reshape(-1)[rng.integers(0, data.size)] = rng.choice([np.nan, np.inf, 1.0])
    return (
        data,
        mask,
        rng.standard_normal(shape).astype(np.float32),
        draw(st.sampled_from([11, 13, 17])),
        draw(st.booleans()),
    )


@SETTINGS
@given(masked(), st.sampled_from(["packed", "read", "affine", "softmax", "narrow"]))
def test_nonzero_chains(given_case, form: str) -> None:
    """``y[m] = v`` with packed values, values read from another tensor, and values computed row by row."""
    data, mask, other, opset, dynamic = given_case
    graph = Graph()
    feeds = {"x": data, "m": mask, "o": other}
    answer = data.copy()
    if form != "narrow":
        index = graph.node("Transpose", graph.node("NonZero", "m"), perm=[1, 0])
    if form == "packed":
        feeds["v"] = other[mask]
        updates = "v"
        answer[mask] = other[mask]
    elif form == "narrow":
        # The mask expanded to all axes, and the rows flattened, as the TorchScript exporter does.
        wide = "m"
        for _ in range(data.ndim - mask.ndim):
            wide = graph.unsqueeze(wide, -1, opset)
        index = graph.node("Transpose", graph.node("NonZero", graph.node("Expand", wide, graph.node("Shape", "x"))))
        feeds["v"] = other[mask]
        updates = graph.node("Reshape", "v", graph.constant(np.array([-1])))
        answer[mask] = other[mask]
    else:
        updates = graph.node("GatherND", "o", index)
        rows = other[mask]
        if form == "affine":
            updates = graph.node("Add", graph.node("Mul", updates, graph.constant(np.float32(2))), "s")
            feeds["s"] = np.array(0.5, np.float32)
            rows = rows * 2 + np.float32(0.5)
        if form == "softmax":
            assume(mask.ndim < data.ndim)
            updates = graph.node("Softmax", updates, axis=-1 if opset >= 13 else rows.ndim - 1)
            wide_rows = rows.astype(np.float64)
            powers = np.exp(wide_rows - wide_rows.max(-1, keepdims=True)) if rows.size else wide_rows
            rows = (powers / powers.sum(-1, keepdims=True)).astype(np.float32) if rows.size else rows
        answer[mask] = rows
    result = graph.node("ScatterND", "x", index, updates)
    model = graph.model(result, feeds, data.dtype, opset, dynamic)
    if dynamic:
        shared = {i.name: i for i in model.graph.input}
        for name in ("m", "o"):
            for axis, dim in enumerate(shared[name].type.tensor_type.shape.dim):
                dim.dim_param = f"x_{axis}"
    done = fixed(model)
    np.testing.assert_allclose(run(done.model, feeds), answer, rtol=1e-6, atol=1e-7)
    assert not LEFT & {n.op_type for n in done.model.graph.node}


@st.composite
def along(draw: st.DrawFn):
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    axis = draw(st.integers(0, rank - 1))
    index_shape = tuple(
        draw(st.integers(1, 4)) if a == axis else (n if draw(st.booleans()) else draw(st.integers(1, n)))
        for a, n in enumerate(shape)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    index = rng.integers(-shape[axis] if draw(st.booleans()) else 0, shape[axis], index_shape)
    dtype = draw(st.sampled_from([d for d in DTYPES if d not in ("int8", "int16", "uint8")]))
    reduction = draw(st.sampled_from(["none", "none", "add", "mul", "min", "max"]))

    def values(size):
        array = rng.integers(-4, 5, size)
        return array.astype(bool) if dtype == "bool" else array.astype(dtype)

    return (
        values(shape),
        index,
        values(index_shape),
        axis - rank if draw(st.booleans()) else axis,
        reduction,
        draw(st.sampled_from([18, 20])),
        draw(st.booleans()),
        draw(st.integers(0, 3)) == 0,
    )


@SETTINGS
@given(along())
def test_scatter_elements(case) -> None:
    data, index, updates, axis, reduction, opset, dynamic, constant = case
    assume(reduction == "none" or data.dtype.kind in "fi")
    # Of unknown sizes it may be kept, and ONNX Runtime reduces no float16 in a scatter.
    assume(not (dynamic and reduction != "none" and data.dtype == np.float16))
    graph = Graph()
    feeds = {"x": data, "v": updates}
    if constant:
        name = graph.constant(index)
    else:
        feeds["i"] = index
        name = "i"
    result = graph.node("ScatterElements", "x", name, "v", axis=axis, reduction=reduction)
    model = graph.model(result, feeds, data.dtype, opset, dynamic)
    answer = data.copy()
    combine = {"none": None, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    for place in np.ndindex(*index.shape):
        target = list(place)
        target[axis] = index[place]
        old = answer[tuple(target)]
        answer[tuple(target)] = updates[place] if combine is None else combine(old, updates[place])
    done = fixed(model)
    np.testing.assert_allclose(run(done.model, feeds), answer, rtol=1e-5 if data.dtype != np.float16 else 1e-2)
    # Of unknown sizes it may be kept for its cost; products of integers have no exact form.
    if not dynamic and not (reduction == "mul" and data.dtype.kind == "i"):
        assert not LEFT & {n.op_type for n in done.model.graph.node}


@st.composite
def edges(draw: st.DrawFn):
    """Sums over the edges of a graph, as graph networks write them: several into zeros (or other data) by one index."""
    nodes, count, width = draw(st.integers(1, 5)), draw(st.integers(0, 6)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    index = rng.integers(-nodes if draw(st.booleans()) else 0, nodes, count)
    writes = []
    for _ in range(draw(st.integers(1, 3))):
        messages = rng.integers(-4, 5, (count, width)).astype(np.float32)
        special = draw(st.sampled_from([(1.0,), (np.nan, 1.0), (np.inf, -np.inf), (np.inf, 2.0), (-0.0, np.inf)]))
        for value in special[: messages.size]:
            messages.reshape(-1)[rng.integers(0, messages.size)] = value
        data = draw(st.sampled_from(["zeros", "ones", "given"]))
        kind = draw(st.sampled_from(["messages", "ones", "count"]))
        writes.append((messages, data, kind))
    given_data = rng.choice(np.array([-0.0, 0.0, 2.0, np.nan, np.inf], np.float32), (nodes, width))
    return index, writes, given_data, draw(st.booleans())


@SETTINGS
@given(edges())
def test_sums_over_edges(case) -> None:
    """One-hot products: exact for NaN and Inf (of both signs), and one comparison for all writes by one index."""
    index, writes, given_data, dynamic = case
    graph = Graph()
    feeds = {"x": given_data, "i": index}
    parts, answers = [], []
    size = graph.node("Shape", "x")
    for number, (messages, data, kind) in enumerate(writes):
        feeds[f"v{number}"] = messages
        fill = {"zeros": 0.0, "ones": 1.0}.get(data)
        into = "x"
        start = given_data
        if fill is not None:
            into = graph.node("ConstantOfShape", size, value=numpy_helper.from_array(np.array([fill], np.float32)))
            start = np.full_like(given_data, fill)
        column = graph.unsqueeze("i", -1, 18)
        place = graph.node("Expand", column, graph.node("Shape", f"v{number}"))
        updates, added = f"v{number}", messages
        if kind == "ones":
            one = numpy_helper.from_array(np.array([1.0], np.float32))
            updates = graph.node("ConstantOfShape", graph.node("Shape", f"v{number}"), value=one)
            added = np.ones_like(messages)
        if kind == "count":
            feeds[f"n{number}"] = np.arange(messages.size, dtype=np.int32).reshape(messages.shape)
            updates = graph.node("Cast", f"n{number}", to=TensorProto.FLOAT)
            added = feeds[f"n{number}"].astype(np.float32)
        parts.append(graph.node("ScatterElements", into, place, updates, axis=0, reduction="add"))
        total = start.astype(np.float64)
        with np.errstate(invalid="ignore"):
            np.add.at(total, index, added)
        answers.append(total)
    model = graph.model(graph.node("Concat", *parts, axis=0), feeds, np.dtype(np.float32), 18, dynamic)
    if dynamic:
        for given_input in model.graph.input:
            dims = given_input.type.tensor_type.shape.dim
            dims[0].dim_param = "nodes" if given_input.name == "x" else "edges"
            if len(dims) > 1:
                dims[1].dim_param = "width"
    done = graphfix.fix(model, verify="none", simplify=False, budget=1 << 30)
    kinds = [n.op_type for n in done.model.graph.node]
    assert not LEFT & set(kinds)
    if dynamic:
        negated = {n.output[0] for n in done.model.graph.node if n.op_type == "Neg"}  # -x == x * -1 is no NaN
        assert sum(n.op_type == "Equal" and n.input[0] not in negated for n in done.model.graph.node) == 1
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(run(done.model, feeds), np.concatenate(answers), rtol=1e-6)


@st.composite
def turned(draw: st.DrawFn):
    rank = draw(st.integers(2, 4))
    shape = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    axis = draw(st.integers(1, rank - 1))
    rest = [a for a in range(rank) if a != axis]
    order = [axis, *(draw(st.permutations(rest)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    start = draw(st.integers(0, shape[axis] - 1))
    count = draw(st.integers(1, 4))
    index = {
        "runtime": rng.integers(-shape[axis], shape[axis], count),
        "constant": rng.integers(0, shape[axis], count),
        "slice": np.arange(start, shape[axis]),
    }[kind := draw(st.sampled_from(["runtime", "constant", "slice"]))]
    fill = draw(st.booleans())
    values = rng.normal(size=tuple(len(index) if a == axis else n for a, n in enumerate(shape))).astype(np.float32)
    values = np.full_like(values, 7) if fill else values
    reduction = draw(st.sampled_from(["none", "none", "add"]))
    data = rng.normal(size=shape).astype(np.float32)
    data.reshape(-1)[rng.integers(0, data.size)] = rng.choice([np.nan, np.inf])
    return data, axis, order, index, kind, values, fill, reduction, draw(st.booleans()), draw(st.booleans())


@SETTINGS
@given(turned())
def test_writes_between_transposes(case) -> None:
    """``x[:, i] = v`` as torch.onnx (dynamo) writes it: the written axis is turned to the front, and back."""
    data, axis, order, index, kind, values, fill, reduction, other_reader, dynamic = case
    back = [order.index(a) for a in range(data.ndim)]
    graph = Graph()
    feeds = {"x": data}
    if kind == "runtime":
        feeds["i"] = index
        column = graph.unsqueeze("i", -1, 18)
    else:
        column = graph.constant(index[:, None])
    if fill:
        updates = graph.constant(values.transpose(order))
    else:
        feeds["v"] = values
        updates = graph.node("Transpose", "v", perm=order)
    turned_data = graph.node("Transpose", "x", perm=order)
    written = graph.node("ScatterND", turned_data, column, updates, reduction=reduction)
    result = graph.node("Transpose", written, perm=back)
    if other_reader:  # what is read as it is turned stays so
        result = graph.node("Add", result, graph.node("Transpose", graph.node("Neg", written), perm=back))
    model = graph.model(result, feeds, data.dtype, 18, dynamic)
    answer = data.copy()
    for place in range(len(index)):
        at = (*[slice(None)] * axis, index[place])
        new = values[(*[slice(None)] * axis, place)]
        answer[at] = answer[at] + new if reduction == "add" else new
    with np.errstate(invalid="ignore"):
        answer = answer - answer if other_reader else answer
    done = fixed(model)
    np.testing.assert_allclose(run(done.model, feeds), answer, rtol=1e-5, atol=1e-6)
    if not dynamic:
        assert not LEFT & {n.op_type for n in done.model.graph.node}
