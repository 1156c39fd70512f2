"""The reference session: models with ATen nodes in chains, bodies, functions and lists. Expected values by NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from graphfix.reference import ReferenceRefusal, ReferenceSession

X = np.arange(12, dtype=np.float32).reshape(4, 3)
BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
ATEN = '"org.pytorch.aten": 1'


def model(text, opset=13, more=""):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, {ATEN}{more}]> {text}')


def segments(session_model):
    """How many standard segments the main graph has."""
    from graphfix.reference.program import Context, Program, Segment

    program = Program(session_model.graph, Context(session_model, None))
    return sum(isinstance(step, Segment) for step in program.steps)


def put(output, data, index, values, accumulate="no"):
    return f'{output} = org.pytorch.aten.ATen<operator = "index_put">({data}, {index}, {values}, {accumulate})'


NO = "no = Constant<value = bool {0}>()"


def test_a_model_without_aten_nodes():
    session = ReferenceSession(model("g(float[N, 3] x) => (float[N, 3] y) {y = Add(x, x)}"))
    assert session.inputs == [("x", np.dtype(np.float32), ("N", 3), False)]
    np.testing.assert_array_equal(session.run({"x": X})["y"], X + X)


def test_chain_of_writes_in_few_segments():
    m = model(f"""g(float[N, 3] x, int64[K] i, float[K, 3] v) => (float[N, 3] y, float[N, 3] b) {{
        {NO}
        two = Constant<value = float {{2.0}}>()
        a = Mul(x, two)
        w = Mul(v, two)
        {put("b", "a", "i", "w")}
        c = Neg(b)
        unused = Neg(c)
        {put("d", "c", "i", "v")}
        y = Add(d, two)
    }}""")
    assert segments(m) == 3
    feeds = {"x": X, "i": np.array([1, -1]), "v": np.ones((2, 3), np.float32)}
    b = X * 2
    b[[1, -1]] = 2
    d = -b
    d[[1, -1]] = 1
    for _ in range(2):
        got = ReferenceSession(m).run(feeds)
        assert list(got) == ["y", "b"]
        np.testing.assert_array_equal(got["y"], d + 2)
        np.testing.assert_array_equal(got["b"], b)
    assert feeds["x"] is X and X[0, 1] == 1


def test_old_domain_empty_names_and_bytes_accumulate():
    node = helper.make_node("ATen", ["x", "", "i", "v", "yes"], ["y"], operator="index_put")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [None]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])],
        [numpy_helper.from_array(np.float64(1), "v"), numpy_helper.from_array(np.int64(1), "yes")],
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=6)
    want = X.copy()
    want[:, 1] += 2
    got = ReferenceSession(m).run({"x": X, "i": np.array([1, -2])})["y"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_flattened_mask_is_read_by_its_reshape():
    # The length of the mask equals axis 0 for T = 1: only the Reshape tells that it covers two axes.
    text = f"""g(float[B, T, 2] x, bool[B, T] m) => (float[B, T, 2] y) {{
        {NO}
        v = Constant<value = float[1, 2] {{5.0, 6.0}}>()
        shape = Constant<value = int64[1] {{-1}}>()
        flat = Reshape(m, shape)
        mask = Cast<to = 9>(flat)
        {put("y", "x", "mask", "v")}
    }}"""
    for size in (1, 3):
        x = np.arange(8.0 * size, dtype=np.float32).reshape(4, size, 2)
        m = np.arange(4 * size).reshape(4, size) % 2 == 0
        want = x.copy()
        want[m] = [5, 6]
        np.testing.assert_array_equal(ReferenceSession(model(text)).run({"x": x, "m": m})["y"], want)


def test_lists_of_indices():
    for maker, more, opset in [
        ("SequenceConstruct", "", 11),
        ("prim.ListConstruct", ', "prim": 1', 9),
    ]:
        text = f"""g(float[N, 3] x, int64[K] i, int64[K] j) => (float[K] y) {{
            k = Identity(i)
            list = {maker}(k, j)
            z = org.pytorch.aten.ATen<operator = "index">(x, list)
            y = Neg(z)
        }}"""
        got = ReferenceSession(model(text, opset, more)).run({"x": X, "i": np.array([1, 3]), "j": np.array([-1, 0])})
        np.testing.assert_array_equal(got["y"], -X[[1, 3], [-1, 0]])


def test_sequences_cross_between_segments():
    text = f"""g(float[N, 3] x, int64[K] i, float v) => (float[M, 3] y) {{
        {NO}
        a = Neg(x)
        s = SequenceConstruct(a, x)
        {put("b", "a", "i", "v")}
        c = ConcatFromSequence<axis = 0>(s)
        y = Concat<axis = 0>(c, b)
    }}"""
    got = ReferenceSession(model(text)).run({"x": X, "i": np.array([0]), "v": np.float32(9)})["y"]
    b = -X
    b[0] = 9
    np.testing.assert_array_equal(got, np.concatenate([-X, X, b]))


def test_string_constants_and_arange():
    device = onnx.NodeProto(op_type="Constant", output=["device"])
    device.attribute.append(helper.make_attribute("value", "cpu"))
    m = model(
        "g(float[N, 3] x) => (int64[N] y) {s = Shape(x) zero = Constant<value = int64 {0}>() n = Gather(s, zero)}"
    )
    m.graph.node.extend([device, helper.make_node("ATen", ["n", "", "", "device", ""], ["r"], operator="arange")])
    m.graph.node.append(helper.make_node("Neg", ["r"], ["y"]))
    np.testing.assert_array_equal(ReferenceSession(m).run({"x": X})["y"], [0, -1, -2, -3])


def test_string_reduction():
    reduce = helper.make_node("Constant", [], ["how"], value=helper.make_tensor("t", TensorProto.STRING, [], [b"amax"]))
    m = model("g(float[4] x, int64[2] i, float[2] v) => (float[4] y) {dim = Constant<value = int64 {0}>()}", 17)
    m.graph.node.append(reduce)
    m.graph.node.append(
        helper.make_node(
            "ATen", ["x", "dim", "i", "v", "how"], ["y"], operator="scatter_reduce", domain="org.pytorch.aten"
        )
    )
    feeds = {"x": np.zeros(4, np.float32), "i": np.array([1, 1]), "v": np.array([3, 2], np.float32)}
    np.testing.assert_array_equal(ReferenceSession(m).run(feeds)["y"], [0, 3, 0, 0])


def test_dynamic_slice_at_opset_9():
    m = model(
        """g(float[N, 3] x, int64[1] n) => (float[M, 3] y) {
        end = Constant<value = int64[1] {9223372036854775807}>()
        s = DynamicSlice(x, n, end)
        y = Neg(s)
    }""",
        9,
    )
    np.testing.assert_array_equal(ReferenceSession(m).run({"x": X, "n": np.array([2])})["y"], -X[2:])


def test_if_with_a_write_in_one_branch():
    text = f"""g(float[N, 3] x, int64[K] i, bool c) => (float[N, 3] y) {{
        {NO}
        v = Constant<value = float {{7.0}}>()
        a = Neg(x)
        b = If(c) <
            then_branch = t () => (float[N, 3] r) {{ w = Add(v, v) {put("u", "a", "i", "w")} r = Neg(u) }},
            else_branch = e () => (float[N, 3] q) {{ q = Identity(a) }}
        >
        y = Add(b, v)
    }}"""
    session = ReferenceSession(model(text))
    written = -X
    written[[0, 2]] = 14
    feeds = {"x": X, "i": np.array([0, 2])}
    np.testing.assert_array_equal(session.run({**feeds, "c": np.array(True)})["y"], -written + 7)
    np.testing.assert_array_equal(session.run({**feeds, "c": np.array(False)})["y"], -X + 7)


LOOP = f"""g(float[N, 3] x, int64 trips, bool go) => (float[N, 3] y, float[T, 3] rows) {{
    {NO}
    one = Constant<value = int64[1] {{1}}>()
    limit = Constant<value = float {{50.0}}>()
    y, rows = Loop(trips, go, x) <
        body = b (int64 k, bool c, float[N, 3] a) => (bool more, float[N, 3] d, float[3] row) {{
            at = Reshape(k, one)
            v = Cast<to = 1>(k)
            {put("d", "a", "at", "v")}
            row = Gather(d, k)
            total = ReduceSum<keepdims = 0>(d)
            more = Greater(total, limit)
        }}
    >
}}"""


def test_loop_with_a_write():
    session = ReferenceSession(model(LOOP))

    def expected(trips):
        d, rows = X.copy(), []
        for k in range(trips):
            d[k] = k
            rows.append(d[k].copy())
            if not d.sum() > 50:
                break
        return d, np.array(rows, np.float32).reshape(-1, 3)

    for trips in (0, 1, 2, 4):
        got = session.run({"x": X, "trips": np.array(trips), "go": np.array(True)})
        for have, want in zip(got.values(), expected(trips), strict=True):
            np.testing.assert_array_equal(have, want)
    stopped = session.run({"x": X, "trips": np.array(3), "go": np.array(False)})
    np.testing.assert_array_equal(stopped["y"], X)
    assert stopped["rows"].shape == (0, 3)


def test_scan_with_a_write():
    text = f"""g(float[3] s, float[N, T] x) => (float[3] last, float[3, T] all) {{
        {NO}
        first = Constant<value = int64[1] {{0}}>()
        last, all = Scan<
            num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], scan_input_directions = [1],
            body = b (float[3] a, float[N] e) => (float[3] d, float[3] o) {{
                v = ReduceSum<keepdims = 0>(e)
                {put("p", "a", "first", "v")}
                d = Add(p, p)
                o = Identity(p)
            }}
        >(s, x)
    }}"""
    a, outs = np.ones(3, np.float32), []
    for k in (2, 1, 0):
        p = a.copy()
        p[0] = X[:, k].sum()
        outs.append(p)
        a = p + p
    got = ReferenceSession(model(text)).run({"s": np.ones(3, np.float32), "x": X})
    np.testing.assert_array_equal(got["last"], a)
    np.testing.assert_array_equal(got["all"], np.stack(outs, 1))


def test_nested_bodies_see_the_values_around_them():
    text = f"""g(float[N, 3] x, int64 trips, bool c) => (float[N, 3] y) {{
        {NO}
        i = Constant<value = int64[1] {{1}}>()
        go = Constant<value = bool {{1}}>()
        v = Constant<value = float {{1.0}}>()
        n = Neg(x)
        y = Loop(trips, go, n) <
            body = b (int64 k, bool m, float[N, 3] a) => (bool more, float[N, 3] d) {{
                more = Identity(m)
                w = Mul(v, v)
                d = If(c) <
                    then_branch = t () => (float[N, 3] r) {{
                        z = Add(a, x)
                        {put("r", "z", "i", "w")}
                    }},
                    else_branch = e () => (float[N, 3] q) {{ q = Add(a, w) }}
                >
            }}
        >
    }}"""
    want = -X
    for _ in range(3):
        want = want + X
        want[1] = 1
    got = ReferenceSession(model(text)).run({"x": X, "trips": np.array(3), "c": np.array(True)})
    np.testing.assert_array_equal(got["y"], want)


def test_local_functions_are_inlined():
    m = model(
        """g(float[N, 3] x, int64[K] i) => (float[N, 3] y) {
            v = Constant<value = float {3.0}>()
            a = my.twice(x)
            b = my.outer(a, i, v)
            y = my.twice(b)
        }
        <domain: "my", opset_import: ["": 13]> twice(a) => (o) {o = Add(a, a)}
        <domain: "my", opset_import: ["": 13, "my": 1]> outer(a, b, c) => (o) {t = my.put(a, b, c) o = Neg(t)}
        <domain: "my", opset_import: ["": 13, "org.pytorch.aten": 1]> put(a, b, c) => (o) {
            no = Constant<value = bool {0}>()
            o = org.pytorch.aten.ATen<operator = "index_put">(a, b, c, no)
        }""",
        more=', "my": 1',
    )
    before = m.SerializeToString()
    want = X * 2
    want[[0, 3]] = 3
    np.testing.assert_array_equal(ReferenceSession(m).run({"x": X, "i": np.array([0, 3])})["y"], -want * 2)
    assert m.SerializeToString() == before


@pytest.mark.parametrize("kind", ["plain", "aten"])
def test_bfloat16(kind):
    write = put("b", "a", "i", "v") if kind == "aten" else "b = Identity(a)"
    m = model(
        f"g(bfloat16[N] x, int64[1] i, bfloat16 v) => (bfloat16[N] y) {{{NO} a = Identity(x) {write} y = Identity(b)}}"
    )
    x = np.array([1, 2.5, np.nan], BFLOAT16)
    got = ReferenceSession(m).run({"x": x, "i": np.array([1]), "v": BFLOAT16.type(7)})["y"]
    assert got.dtype == BFLOAT16
    np.testing.assert_array_equal(got.astype(float), [1, 7 if kind == "aten" else 2.5, np.nan])


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "uint8", "int16", "int32", "int64", "bool"])
def test_dtypes(dtype):
    m = model(
        f"g({dtype}[N] x, int32[K] i, {dtype}[K] v) => ({dtype}[N] y){{{NO} a = Identity(x) {put('y', 'a', 'i', 'v')}}}"
    )
    kind = {"double": "float64"}.get(dtype, dtype)
    x, v = np.zeros(4, kind), np.ones(2, kind)
    got = ReferenceSession(m).run({"x": x, "i": np.array([0, -1], np.int32), "v": v})["y"]
    assert got.dtype == kind
    np.testing.assert_array_equal(got, np.array([1, 0, 0, 1], kind))


@pytest.mark.parametrize("kind", ["plain", "aten"])
def test_external_data(tmp_path, kind):
    write = put("b", "a", "i", "v") if kind == "aten" else "b = Identity(a)"
    m = model(f"g(int64[1] i, float v) => (float[4, 3] y) {{{NO} a = Neg(w) {write} y = Add(b, w)}}")
    m.graph.initializer.append(numpy_helper.from_array(X, "w"))
    onnx.save(m, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    got = ReferenceSession(light, base_dir=tmp_path).run({"i": np.array([1]), "v": np.float32(5)})["y"]
    want = np.zeros_like(X)
    if kind == "aten":
        want[1] = X[1] + 5
    np.testing.assert_array_equal(got, want)


def test_initializers_that_are_also_inputs_need_not_be_given():
    m = model(
        f"g(float[N] x, int64[1] i) => (float[N] y) {{{NO} a = Neg(x) v = ReduceMax(x) {put('y', 'a', 'i', 'v')}}}"
    )
    m.graph.initializer.append(numpy_helper.from_array(np.array([2]), "i"))
    session = ReferenceSession(m)
    assert [i.name for i in session.inputs] == ["x"]
    np.testing.assert_array_equal(session.run({"x": np.array([5, 6, 7], np.float32)})["y"], [-5, -6, 7])
    with pytest.raises(ReferenceRefusal, match="index 2 is out of range"):
        session.run({"x": np.array([5], np.float32)})


def test_sizes_may_change_from_run_to_run():
    m = model(
        f"g(float[N] x, int64[K] i, float[K] v) => (float[N] y){{{NO} a = Neg(x) {put('b', 'a', 'i', 'v')} y = Neg(b)}}"
    )
    session = ReferenceSession(m)
    for n in (1, 5):
        got = session.run({"x": np.ones(n, np.float32), "i": np.arange(n), "v": np.zeros(n, np.float32)})["y"]
        np.testing.assert_array_equal(got, np.zeros(n))
    assert session.shapes["a"] == (5,) and session.shapes["x"] == (5,)


def test_zero_sized_data():
    m = model(
        "g(float[N, 2] x, int64[K] i, float[K, 2] v) => (float[N, 2] y)"
        f"{{{NO} a = Neg(x) {put('b', 'a', 'i', 'v')} y = Neg(b)}}"
    )
    empty = np.zeros((0, 2), np.float32)
    assert ReferenceSession(m).run({"x": empty, "i": np.zeros(0, np.int64), "v": empty})["y"].shape == (0, 2)


# --- refusals


WRITE = f"g(float[N, 3] x, int64[K] i, float v) => (float[N, 3] y) {{{NO} {put('y', 'x', 'i', 'v')}}}"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"x": X.astype(np.float64)}, "input 'x' has dtype float64, not float32"),
        ({"x": X[0]}, "input 'x' has shape [3], not [N, 3]"),
        ({"x": X[:, :2]}, "has shape [4, 2], not [N, 3]"),
        ({"z": X}, "no input 'z'"),
        ({"i": np.array([4])}, "aten::index_put (output 'y'): index 4 is out of range for axis 0 of size 4"),
    ],
)
def test_refused_inputs(change, part):
    feeds = {"x": X, "i": np.array([0]), "v": np.float32(1), **change}
    with pytest.raises(ReferenceRefusal) as caught:
        ReferenceSession(model(WRITE)).run(feeds)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_input():
    with pytest.raises(ReferenceRefusal, match="input 'v' is missing"):
        ReferenceSession(model(WRITE)).run({"x": X, "i": np.array([0])})


def test_refusal_names_the_tensor():
    m = model(
        f"g(float[N, 3] x, int64[K] k, float v) => (float[N, 3] y) {{{NO} i = Identity(k) {put('y', 'x', 'i', 'v')}}}"
    )
    with pytest.raises(ReferenceRefusal) as caught:
        ReferenceSession(m).run({"x": X, "k": np.array([9]), "v": np.float32(1)})
    assert caught.value.tensor == "i" and caught.value.index_range == (-4, 4)


def test_runtime_errors_of_onnxruntime_are_refusals():
    m = model("g(float[N] x, int64[K] i) => (float[K] y) {y = Gather(x, i)}")
    m.graph.node[0].name = "look"
    with pytest.raises(ReferenceRefusal) as caught:
        ReferenceSession(m).run({"x": X[0], "i": np.array([7])})
    assert str(caught.value).startswith("Gather node 'look': indices element out of data bounds, idx=7")
    assert caught.value.index_range == (-3, 3) and caught.value.node == "look"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("y = Nonesuch(x)", "Nonesuch"),
        ('z = Neg(x) z2 = Nonesuch(z) y = org.pytorch.aten.ATen<operator = "index">(z2, x)', "Nonesuch"),
        ('y = org.pytorch.aten.ATen<operator = "erfc">(x)', "erfc"),
        ("y = org.pytorch.aten.adaptive_avg_pool2d(x)", "adaptive_avg_pool2d"),
        ('y = org.pytorch.aten.ATen<operator = "Placeholder", name = "index_put">(x)', "Placeholder"),
        ('y = org.pytorch.aten.ATen<operator = "index_put">(x, x)', "needs data, indices"),
    ],
)
def test_refused_models(text, part):
    with pytest.raises(ReferenceRefusal, match=part) as caught:
        ReferenceSession(model(f"g(float[N] x) => (float[N] y) {{{text}}}"))
    assert "\n" not in str(caught.value)


def test_a_cycle_is_refused():
    m = model(f"g(float[N] x, int64[1] i) => (float[N] y) {{{NO} a = Add(x, y) {put('y', 'a', 'i', 'x')}}}")
    with pytest.raises(ReferenceRefusal, match="cycle"):
        ReferenceSession(m)


def test_a_newer_ir_version_is_no_obstacle():
    m = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    m.ir_version = 99
    np.testing.assert_array_equal(ReferenceSession(m).run({"x": X[0]})["y"], -X[0])
    assert m.ir_version == 99
