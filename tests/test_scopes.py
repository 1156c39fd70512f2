"""Index writes in bodies and local functions, at awkward places and under awkward names; what a run leaves as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from aten_op_cases import ALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_put_cases import cases
from onnx import TensorProto, helper, numpy_helper, parser

import graphfix

MODELS = Path(__file__).parent.parent / "models"
X = np.arange(12, dtype=np.float32).reshape(4, 3)
NO = "no = Constant<value = bool {0}>()"


def put(output: str, data: str, index: str, values: str, name: str = "") -> str:
    label = f"[{name}] " if name else ""
    return f'{label}{output} = org.pytorch.aten.ATen<operator = "index_put">({data}, {index}, {values}, no)'


def parse(text: str, opset: int = 13, more: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "org.pytorch.aten": 1{more}]> {text}')


def fix(model: onnx.ModelProto, **options) -> graphfix.FixResult:
    return graphfix.fix(model, verify="none", simplify=False, **options)


def run(model: onnx.ModelProto, **feeds) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of every node, of bodies and functions too."""
    found: list[str] = []

    def visit(nodes) -> None:
        for node in nodes:
            found.append(f"{node.domain}::{node.op_type}")
            for attribute in node.attribute:
                for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    visit(graph.node)

    visit(model.graph.node)
    for function in model.functions:
        visit(function.node)
    return found


def is_standard(model: onnx.ModelProto) -> bool:
    return not any(o.startswith("org.pytorch.aten") or o.endswith("::ATen") for o in operators(model))


def body(node: onnx.NodeProto, attribute: str) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == attribute)


# ---- bodies


def test_if_with_outer_names() -> None:
    """Data, index and accumulate come from outside; the write is the body's output itself."""
    model = parse(f"""g (float[N, 3] x, int64[K] i, float[3] v, bool c) => (float[N, 3] z) {{
        {NO}
        w = Mul(v, v)
        [choose] y = If(c) <
            then_branch = yes () => (float[N, 3] a) {{ {put("a", "x", "i", "w", "inside")} }},
            else_branch = other () => (float[N, 3] b) {{ [kept] d = Neg(x) [kept2] b = Add(d, w) }}
        >
        z = Neg(y)
    }}""")
    before = body(model.graph.node[2], "else_branch").SerializeToString()
    result = fix(model)
    assert [(r.scope, r.node, r.output) for r in result.report.replacements] == [("choose.then_branch", "inside", "a")]
    assert is_standard(result.model)
    onnx.checker.check_model(result.model, full_check=True)
    node = next(n for n in result.model.graph.node if n.name == "choose")
    assert body(node, "else_branch").SerializeToString() == before
    feeds = {"x": X, "i": np.array([1, -1]), "v": np.array([2, 3, 4], np.float32)}
    want = X.copy()
    want[[1, -1]] = [4, 9, 16]
    np.testing.assert_array_equal(run(result.model, **feeds, c=np.array(True))[0], -want)
    np.testing.assert_array_equal(run(result.model, **feeds, c=np.array(False))[0], X - [4, 9, 16])


def test_loop_that_writes_at_its_counter() -> None:
    """``for k in range(n): out[k] = out[k - 1] + x`` with the output carried from step to step."""
    model = parse(f"""g (int64 n, float[D] x, float[T, D] start) => (float[T, D] out, float[n, D] steps) {{
        {NO}
        go = Constant<value = bool {{1}}>()
        one = Constant<value = int64 {{1}}>()
        front = Constant<value = int64[1] {{0}}>()
        [loop] out, steps = Loop(n, go, start) <body = step (int64 k, bool on, float[T, D] old)
        => (bool on_out, float[T, D] new, float[D] row) {{
            [keep] on_out = Identity(on)
            before = Sub(k, one)
            last = Gather<axis = 0>(old, before)
            row = Add(last, x)
            at = Unsqueeze(k, front)
            {put("new", "old", "at", "row")}
        }}>
    }}""")
    result = fix(model)
    assert [(r.scope, r.node, r.output) for r in result.report.replacements] == [("loop.body", "", "new")]
    assert is_standard(result.model)
    onnx.checker.check_model(result.model, full_check=True)
    start = np.zeros((4, 2), np.float32)
    start[3] = 10
    out, steps = run(result.model, n=np.array(3), x=np.array([1, 2], np.float32), start=start)
    # Step 0 reads the last row (index -1).
    np.testing.assert_array_equal(out, [[11, 12], [12, 14], [13, 16], [10, 10]])
    np.testing.assert_array_equal(steps, out[:3])


def test_scan() -> None:
    model = parse(f"""g (float[3] start, float[T, 3] rows, int64[T, 1] places) => (float[3] last, float[T, 3] all) {{
        {NO}
        five = Constant<value = float {{5}}>()
        last, all = Scan<num_scan_inputs = 2, body = step (float[3] old, float[3] row, int64[1] at)
        => (float[3] new, float[3] copy) {{
            sum = Add(old, row)
            {put("new", "sum", "at", "five")}
            copy = Identity(new)
        }}>(start, rows, places)
    }}""")
    result = fix(model)
    assert is_standard(result.model)
    rows, places = np.ones((3, 3), np.float32), np.array([[0], [-1], [0]])
    last, every = run(result.model, start=np.zeros(3, np.float32), rows=rows, places=places)
    np.testing.assert_array_equal(every, [[5, 1, 1], [6, 2, 5], [5, 3, 6]])
    np.testing.assert_array_equal(last, every[-1])


def test_nested_bodies() -> None:
    """A write two bodies deep, with its data one body out, its index two out, and a mask of its own."""
    model = parse(f"""g (int64 n, float[N, 3] x, int64[K] i) => (float[N, 3] out) {{
        {NO}
        go = Constant<value = bool {{1}}>()
        nine = Constant<value = float {{9}}>()
        zero = Constant<value = float {{0}}>()
        first = Constant<value = int64 {{0}}>()
        [loop] out = Loop(n, go, x) <body = step (int64 k, bool on, float[N, 3] old) => (bool on2, float[N, 3] new) {{
            on2 = Identity(on)
            is_first = Equal(k, first)
            [choose] new = If(is_first) <
                then_branch = yes () => (float[N, 3] a) {{ {put("a", "old", "i", "nine")} }},
                else_branch = other () => (float[N, 3] b) {{
                    mask = Less(old, nine)
                    {put("b", "old", "mask", "zero")}
                }}
            >
        }}>
    }}""")
    result = fix(model)
    assert [r.scope for r in result.report.replacements] == [
        "loop.body/choose.then_branch",
        "loop.body/choose.else_branch",
    ]
    assert is_standard(result.model)
    want = X.copy()
    want[[0, -2]] = 9
    np.testing.assert_array_equal(run(result.model, n=np.array(1), x=X, i=np.array([0, -2]))[0], want)
    want[want < 9] = 0
    np.testing.assert_array_equal(run(result.model, n=np.array(2), x=X, i=np.array([0, -2]))[0], want)


# ---- local functions

WRITER = f"""<domain: "local", opset_import: ["": 13, "org.pytorch.aten": 1]>
write (data, places, value) => (out) {{
    {NO}
    [twice] double = Add(value, value)
    {put("out", "data", "places", "double", "inside")}
}}"""


def test_function_called_once() -> None:
    model = parse(
        f"""g (float[N, 3] x, int64[K] i, float[3] v) => (float[N, 3] y) {{
            [call] y = local.write(x, i, v)
        }} {WRITER}""",
        more=', "local": 1',
    )
    result = fix(model)
    assert [(r.scope, r.node) for r in result.report.replacements] == [("local::write", "inside")]
    assert is_standard(result.model)
    onnx.checker.check_model(result.model, full_check=True)
    (function,) = result.model.functions
    assert [(o.domain, o.version) for o in function.opset_import] == [("", 13)]
    kept = {n.name: n.SerializeToString() for n in function.node}
    assert kept["twice"] == model.functions[0].node[1].SerializeToString()
    assert result.model.graph.node[0].SerializeToString() == model.graph.node[0].SerializeToString()
    want = X.copy()
    want[[-1, 0]] = [2, 4, 6]
    got = run(result.model, x=X, i=np.array([-1, 0]), v=np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(got[0], want)


@pytest.mark.parametrize("columns", ["3", "M"], ids=["same shapes", "different shapes"])
def test_function_called_twice(columns: str) -> None:
    model = parse(
        f"""g (float[N, 3] x, float[N, {columns}] x2, int64[K] i, float v) => (float[N, 3] y, float[N, {columns}] y2) {{
            y = local.write(x, i, v)
            y2 = local.write(x2, i, v)
        }} {WRITER}""",
        more=', "local": 1',
    )
    result = fix(model)
    assert is_standard(result.model)
    width = 3 if columns == "3" else 5
    x2 = np.ones((4, width), np.float32)
    got = run(result.model, x=X, x2=x2, i=np.array([2]), v=np.array(4, np.float32))
    for data, written in ((X, got[0]), (x2, got[1])):
        want = data.copy()
        want[2] = 8
        np.testing.assert_array_equal(written, want)


def test_functions_in_functions_and_bodies() -> None:
    model = parse(
        f"""g (float[N, 3] x, int64[K] i, float v, bool c) => (float[N, 3] y) {{
            y = If(c) <
                then_branch = yes () => (float[N, 3] a) {{ a = local.outer(x, i, v) }},
                else_branch = other () => (float[N, 3] b) {{ b = Identity(x) }}
            >
        }}
        <domain: "local", opset_import: ["": 13, "local": 1]>
        outer (data, places, value) => (out) {{ negative = Neg(data) out = local.write(negative, places, value) }}
        {WRITER}""",
        more=', "local": 1',
    )
    result = fix(model)
    assert [r.scope for r in result.report.replacements] == ["local::write"]
    assert is_standard(result.model)
    want = -X
    want[1] = 10
    got = run(result.model, x=X, i=np.array([1]), v=np.array(5, np.float32), c=np.array(True))
    np.testing.assert_array_equal(got[0], want)


def test_function_nobody_calls() -> None:
    """Nothing is known of its arguments: there is no guessing."""
    model = parse(f"g (float[N] x) => (float[N] y) {{ y = Neg(x) }} {WRITER}", more=', "local": 1')
    with pytest.raises(
        graphfix.UnsupportedError, match=r"aten::index_put node 'inside' \(output 'out' in local::write\)"
    ):
        fix(model)


# ---- places and names


def test_output_of_the_graph_with_consumers() -> None:
    model = parse(f"""g (float[N, 3] x, int64[K] i, float v) => (float[N, 3] y, float[N, 3] a, float[N, 3] b) {{
        {NO}
        {put("y", "x", "i", "v")}
        a = Neg(y)
        b = Add(y, a)
    }}""")
    result = fix(model)
    assert [n.SerializeToString() for n in result.model.graph.node[-2:]] == [
        n.SerializeToString() for n in model.graph.node[-2:]
    ]
    y, a, b = run(result.model, x=X, i=np.array([0]), v=np.array(5, np.float32))
    want = X.copy()
    want[0] = 5
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(a, -want)
    np.testing.assert_array_equal(b, np.zeros_like(X))


def test_the_values_are_an_output_of_the_graph() -> None:
    """Replaced whole: the write's result is a tensor that keeps its own name as well."""
    model = parse(f"""g (float[4, 3] x, float[4, 3] v) => (float[4, 3] w, float[4, 3] y) {{
        {NO}
        i = Constant<value = int64[4] {{0, 1, 2, 3}}>()
        w = Neg(v)
        {put("y", "x", "i", "w")}
    }}""")
    result = fix(model)
    w, y = run(result.model, x=X, v=X + 1)
    np.testing.assert_array_equal(w, -(X + 1))
    np.testing.assert_array_equal(y, -(X + 1))


def test_the_data_is_written_unchanged() -> None:
    """An index that selects nothing: the output is the input, still under both names."""
    model = parse(f"""g (float[4, 3] x, float v) => (float[4, 3] y) {{
        {NO}
        i = Constant<value = int64[0] {{}}>()
        {put("y", "x", "i", "v")}
    }}""")
    result = fix(model)
    assert is_standard(result.model)
    np.testing.assert_array_equal(run(result.model, x=X, v=np.array(1, np.float32))[0], X)


def test_hostile_names() -> None:
    """Tensors called as the new nodes would be, and nodes called as tensors."""
    inputs = [
        helper.make_tensor_value_info("y/graphfix/aten-index-put/0", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("y/graphfix/aten-index-put/c0", TensorProto.INT64, ["K"]),
        helper.make_tensor_value_info("y/graphfix/aten-index-put/1_1", TensorProto.FLOAT, []),
    ]
    x, i, v = (info.name for info in inputs)
    nodes = [
        helper.make_node("ATen", [x, i, v, "no"], ["y"], name=x, operator="index_put"),
        helper.make_node("Neg", ["y"], ["y/graphfix/aten-index-put/1"], name="y"),
        helper.make_node("ATen", ["y/graphfix/aten-index-put/1", i, v, "no"], ["z"], name="y", operator="index_put"),
        helper.make_node("Identity", ["z"], ["é /\\\"'{}%s"], name="z"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("é /\\\"'{}%s", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.array(False), "no")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    result = fix(model)
    onnx.checker.check_model(result.model, full_check=True)
    made = [name for n in result.model.graph.node for name in n.output] + [i.name for i in result.model.graph.input]
    made += [t.name for t in result.model.graph.initializer]
    assert len(made) == len(set(made))
    new = [n.name for n in result.model.graph.node if n.metadata_props]
    assert len(new) == len(set(new))
    want = X.copy()
    want[2] = 5
    want = -want
    want[2] = 5
    got = run(result.model, **{x: X, i: np.array([2]), v: np.array(5, np.float32)})
    np.testing.assert_array_equal(got[0], want)


def test_long_chain() -> None:
    """Thirty writes one after the other: constant indices, indices known at run time, masks of what was written."""
    lines = []
    want = np.arange(40, dtype=np.float32).reshape(8, 5)
    feeds = {"t0": want.copy(), "i": np.array([2, -1])}
    for k in range(30):
        if k % 3 == 0:
            lines.append(f"i{k} = Constant<value = int64[2] {{{k % 8}, {(k + 3) % 8}}}>()")
            want[[k % 8, (k + 3) % 8]] = k
        elif k % 3 == 1:
            lines.append(f"i{k} = Neg(i)")
            want[[-2, 1]] = k
        else:
            lines.append(f"limit{k} = Constant<value = float {{{k - 5}}}>() i{k} = Less(t{k}, limit{k})")
            want[want < k - 5] = k
        lines.append(f"v{k} = Constant<value = float {{{k}}}>()")
        lines.append(put(f"t{k + 1}", f"t{k}", f"i{k}", f"v{k}"))
    model = parse(f"g (float[N, 5] t0, int64[2] i) => (float[N, 5] t30) {{ {NO} {' '.join(lines)} }}")
    result = fix(model)
    assert len(result.report.replacements) == 30
    assert is_standard(result.model)
    np.testing.assert_array_equal(run(result.model, **feeds)[0], want)


# ---- what a run leaves as it is

RUNS = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck), print_blob=True)


def assert_stable(model: onnx.ModelProto) -> None:
    """Two runs make the same bytes, and a run on what they make changes nothing."""
    first, second = (fix(model).model.SerializeToString() for _ in range(2))
    assert first == second
    again = fix(onnx.load_from_string(first))
    assert not again.report.changed
    assert again.model.SerializeToString() == first


@RUNS
@given(cases())
def test_index_put_is_final(case) -> None:
    assert_stable(case.model())


@RUNS
@given(st.one_of(*ALL.values()))
def test_other_operators_are_final(case) -> None:
    assert_stable(case.model())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in MODELS.glob("*.onnx") if p.stem != "lossy"))
def test_own_output_of_real_models(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    first, second, third = (tmp_path / f"{n}.onnx" for n in range(3))
    graphfix.fix(path, first, verify="none")
    graphfix.fix(path, second, verify="none")
    assert first.read_bytes() == second.read_bytes()
    graphfix.fix(first, third, verify="none")
    assert first.read_bytes() == third.read_bytes()


# ---- opset

MASKED = f"g (float[N, 3] x, bool[N] m, float v) => (float[N, 3] y) {{ {NO} {put('y', 'x', 'm', 'v')} }}"
INDEXED = f"g (float[N, 3] x, int64[K] m, float v) => (float[N, 3] y) {{ {NO} {put('y', 'x', 'm', 'v')} }}"


def opsets(result: graphfix.FixResult) -> tuple[int, int]:
    report = result.report
    assert report.opset_after == next(o.version for o in result.model.opset_import if o.domain == "")
    return report.opset_before, report.opset_after


@pytest.mark.parametrize("opset", [9, 10, 11, 16, 21])
def test_the_opset_stays_where_it_can(opset: int) -> None:
    result = fix(parse(MASKED, opset))
    assert opsets(result) == (opset, opset)
    assert result.report.opset_reason == ""


def test_the_opset_is_raised_no_further_than_needed() -> None:
    result = fix(parse(INDEXED, 9))
    assert opsets(result) == (9, 11)
    assert result.report.opset_reason == "Range needs opset 11"
    want = X.copy()
    want[[0, -1]] = 5
    got = run(result.model, x=X, m=np.array([0, -1]), v=np.array(5, np.float32))
    np.testing.assert_array_equal(got[0], want)


def test_known_sizes_need_no_range() -> None:
    result = fix(parse(INDEXED.replace("[N", "[4"), 9))
    assert opsets(result) == (9, 9)


def test_functions_are_raised_with_the_model() -> None:
    text = """g (float[N, 3] x, int64[K] i, float[3] v) => (float[N, 3] y) { y = local.write(x, i, v) }"""
    result = fix(parse(f"{text} {WRITER}".replace('"": 13', '"": 9'), 9, ', "local": 1'))
    assert opsets(result) == (9, 11)
    assert [(o.domain, o.version) for o in result.model.functions[0].opset_import] == [("", 11)]
    onnx.checker.check_model(result.model, full_check=True)
    want = X.copy()
    want[1] = [2, 4, 6]
    got = run(result.model, x=X, i=np.array([1]), v=np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(got[0], want)


def test_keep_refuses_what_needs_more() -> None:
    assert opsets(fix(parse(MASKED, 9), opset="keep")) == (9, 9)
    message = r"cannot replace aten::index_put .*'y'.*Range needs opset 11; the model has 9 \(see --opset\)"
    with pytest.raises(graphfix.UnsupportedError, match=message):
        fix(parse(INDEXED, 9), opset="keep")


@pytest.mark.parametrize(("before", "after"), [(9, 13), (13, 17), (17, 11), (13, 13)])
def test_a_number_converts(before: int, after: int) -> None:
    for text in (MASKED, INDEXED):
        result = fix(parse(text, before), opset=after)
        assert opsets(result) == (before, after)
        index = np.array([True, False, False, True]) if text == MASKED else np.array([0, 3])
        want = X.copy()
        want[[0, 3]] = 5
        np.testing.assert_array_equal(run(result.model, x=X, m=index, v=np.array(5, np.float32))[0], want)


# ---- what cannot be done

TRACE = """/opt/venv/lib/python3.11/site-packages/torch/_tensor.py(1031): __setitem__
/home/me/net.py(12): forward
/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py(1501): _slow_forward
/home/me/export.py(30): <module>
"""


@pytest.mark.parametrize("name", ["index_put", "index_put_"])
def test_lossy_placeholder(name: str, tmp_path: Path) -> None:
    model = parse(f"""g (float[N] x) => (float[N] y) {{
        a = Neg(x)
        [write] y = org.pytorch.aten.ATen<operator = "Placeholder", name = "{name}", overload_name = "">(a)
    }}""")
    model.graph.node[1].name = "/net/write"
    model.graph.node[1].doc_string = TRACE
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    with pytest.raises(graphfix.LossyExportError) as caught:
        graphfix.fix(source, target)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("aten::index_put", "'/net/write'", "'y'", "/home/me/net.py(12): forward", "export again"):
        assert part in message
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == [source]


def test_lossy_placeholders_in_bodies() -> None:
    lost = 'org.pytorch.aten.ATen<operator = "Placeholder", name = "index_put", overload_name = "">(x)'
    model = parse(f"""g (float[N] x, bool c) => (float[N] y) {{
        [choose] y = If(c) <then_branch = yes () => (float[N] a) {{ a = {lost} }},
                            else_branch = other () => (float[N] b) {{ b = {lost} }}>
    }}""")
    with pytest.raises(graphfix.LossyExportError, match=r"\(output 'a' in choose.then_branch\) \(2 such nodes\)"):
        fix(model)


def test_unknown_operator() -> None:
    model = parse(f"""g (float[N, 3] x, int64[K] i, float v) => (float[N, 3] z) {{
        {NO}
        {put("y", "x", "i", "v")}
        [strange] z = org.pytorch.aten.ATen<operator = "segment_reduce", overload_name = "lengths">(y)
    }}""")
    message = r"aten::segment_reduce\.lengths node 'strange' \(output 'z'\): graphfix has no pass for this operator"
    with pytest.raises(graphfix.UnsupportedError, match=message):
        fix(model)


def test_skipped_passes_leave_their_nodes(tmp_path: Path) -> None:
    model = parse(f"""g (float[N, 3] x, int64[K] i, float v) => (float[N, 3] z) {{
        {NO}
        {put("y", "x", "i", "v", "write")}
        z = org.pytorch.aten.ATen<operator = "index_fill", dim = 0>(y, i, v)
    }}""")
    result = fix(model, skip="aten-index-put", output=tmp_path / "out.onnx")
    assert not result.ok
    (left,) = result.report.left
    assert (left.code, left.node, left.output, left.operator) == ("GF101", "write", "y", "aten::index_put")
    assert left.asked
    assert [r.operator for r in result.report.replacements] == ["aten::index_fill"]
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node].count("ATen") == 1
