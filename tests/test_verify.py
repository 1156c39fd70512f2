"""The check of a whole model: it confirms what is equal and finds what is not."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from graphfix.errors import UsageError
from graphfix.verification import VerifyOptions, check_model

NO = "no = Constant<value = bool {0}>()"


def model(text, opset=13):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "org.pytorch.aten": 1, "my": 1]> {text}')


MASKED = model(f"""g(float[N, 3] x, bool[N, 3] m) => (float[N, 3] y) {{{NO}
    v = Constant<value = float {{7.0}}>()
    y = org.pytorch.aten.ATen<operator = "index_put">(x, m, v, no) }}""")
WHERE = (
    "g(float[N, 3] x, bool[N, 3] m) => (float[N, 3] y) {{v = Constant<value = float {{{value}}}>() y = Where(m, v, x)}}"
)


# --- whole models


def test_equal_models_are_confirmed():
    seen = []
    result = check_model(
        MASKED, model(WHERE.format(value="7.0")), progress=lambda done, total: seen.append((done, total))
    )
    assert result.status == "confirmed" and result.detail == "" and result.skipped == []
    assert result.sets[0] == "x 5x3, m 5x3" and len(set(result.sets)) == len(result.sets) == 6
    assert result.sets[4:] == ["x 0x3, m 0x3", "x 16x3, m 16x3 with NaN and infinities"]
    (output,) = result.outputs
    assert (output.name, output.dtype, output.max_abs, output.exact) == ("y", "float32", 0.0, True)
    assert [done for done, _ in seen] == list(range(1, 18)) and seen[-1] == (17, 17)  # NaN: not with optimisations


def test_a_wrong_value_is_found():
    result = check_model(MASKED, model(WHERE.format(value="7.5")))
    assert result.status == "failed"
    assert "output 'y' differs in" in result.detail and "7.5, not 7" in result.detail and "x 5x3" in result.detail
    assert result.outputs[0].max_abs == 0.5


def test_a_difference_that_only_false_masks_show():
    any_true = model("""g(float[N, 3] x, bool[N, 3] m) => (float[N, 3] y) {
        v = Constant<value = float {7.0}>() f = Cast<to = 1>(m) t = ReduceMax(f) z = Sub(t, t) o = Sub(t, one)
        one = Constant<value = float {1.0}>() w = Where(m, v, x) y = Add(w, o) }""")
    any_true.graph.node.insert(0, any_true.graph.node.pop(5))
    result = check_model(MASKED, any_true)
    assert result.status == "failed" and "differs" in result.detail


def test_negative_indices_are_tried():
    m = model(f"""g(float[5] x, int64[2] i) => (float[5] y) {{{NO} v = Constant<value = float {{7.0}}>()
        y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no) }}""")
    forgets_negative = model("""g(float[5] x, int64[2] i) => (float[5] y) {
        v = Constant<value = float {7.0}>() zero = Constant<value = int64 {0}>() five = Constant<value = int64 {5}>()
        one = Constant<value = int64 {1}>() r = Range(zero, five, one) a0 = Constant<value = int64[1] {0}>()
        a1 = Constant<value = int64[1] {1}>() c = Unsqueeze(r, a1) d = Unsqueeze(i, a0) e = Equal(c, d)
        f = Cast<to = 1>(e) h = ReduceMax<axes = [1], keepdims = 0>(f) k = Cast<to = 9>(h) y = Where(k, v, x) }""")
    assert check_model(m, forgets_negative).status == "failed"


def test_shapes_and_dtypes_must_be_equal():
    m = model("g(float[N, 3] x) => (float[N, 3] y) {y = Neg(x)}")
    wide = model("g(float[N, 3] x) => (double[N, 3] y) {z = Neg(x) y = Cast<to = 11>(z)}")
    assert "has dtype float64, not float32" in check_model(m, wide).detail
    turned = model("g(float[N, 3] x) => (float[3, N] y) {z = Neg(x) y = Transpose(z)}")
    assert "has shape [3, 5], not [5, 3]" in check_model(m, turned).detail


def test_tolerance_may_be_given():
    m = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    off = model("g(float[N] x) => (float[N] y) {c = Constant<value = float {0.001}>() z = Neg(x) y = Add(z, c)}")
    assert check_model(m, off).status == "failed"
    result = check_model(m, off, options=VerifyOptions(atol=0.01))
    assert result.status == "confirmed" and not result.outputs[0].exact
    assert math.isclose(result.outputs[0].max_abs, 0.001, rel_tol=0.01)


def test_given_inputs_are_used():
    m = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    relu = model("g(float[N] x) => (float[N] y) {z = Relu(x) y = Neg(z)}")
    positive = [{"x": np.ones(2, np.float32)}, {"x": np.ones(5, np.float32)}]
    result = check_model(m, relu, options=VerifyOptions(inputs=positive))
    assert result.status == "confirmed" and result.sets == ["x 2", "x 5"]
    assert check_model(m, relu).status == "failed"
    wrong = [{"x": np.ones((2, 2), np.float32)}]
    result = check_model(m, m, options=VerifyOptions(inputs=wrong))
    assert result.status == "failed" and "shape [2, 2]" in result.detail and len(result.skipped) == 1


def test_input_shapes_are_used():
    m = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    sets = check_model(m, m, options=VerifyOptions(input_shapes={"x": (9,)})).sets
    assert set(sets) == {"x 9", "x 9 with NaN and infinities"}
    with pytest.raises(UsageError, match="no such input"):
        check_model(m, m, options=VerifyOptions(input_shapes={"q": (9,)}))


def test_sizes_that_the_reference_refuses_are_reported():
    m = model("g(float[N] x) => (float[2, 3] y) {s = Constant<value = int64[2] {2, 3}>() y = Reshape(x, s)}")
    result = check_model(m, m)
    assert result.status == "confirmed" and set(result.sets) == {"x 6", "x 6 with NaN and infinities"}
    assert result.skipped[0].startswith("all sizes but N=6") and "cannot be reshaped" in result.skipped[1]


def test_nothing_runs():
    m = model("g(float[5] x) => (float[2, 3] y) {s = Constant<value = int64[2] {2, 3}>() y = Reshape(x, s)}")
    result = check_model(m, m)
    assert result.status == "failed" and result.sets == []
    assert "cannot be reshaped" in result.detail and "--inputs" in result.detail


def test_unknown_operators():
    good = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    custom = model("g(float[N] x) => (float[N] y) {y = my.Op(x)}")
    result = check_model(custom, good)
    assert result.status == "failed" and result.detail.startswith("the input model could not be run: ")
    assert "Op" in result.detail
    result = check_model(good, custom)
    assert result.status == "failed" and result.detail.startswith("the fixed model does not load: ")


def test_a_candidate_that_does_not_run():
    good = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    breaks = model("g(float[N] x) => (float[N] y) {s = Constant<value = int64[1] {77}>() z = Reshape(x, s) y = Neg(z)}")
    result = check_model(good, breaks)
    assert result.status == "failed" and "does not run on x 3: Reshape node: " in result.detail


def test_a_candidate_that_keeps_aten_nodes():
    result = check_model(MASKED, MASKED)
    assert result.status == "confirmed" and len(result.sets) == 6


def test_nan_and_infinity_agree():
    m = model("g(float[N] x) => (float[N] y, float[N] z) {y = Sqrt(x) zero = Sub(x, x) z = Div(x, zero)}")
    assert check_model(m, m).status == "confirmed"


@pytest.mark.parametrize("seeded", ["", "seed = 3.0, "])
def test_random_operators_get_the_same_seed(seeded):
    text = f"""g(float[N, 2] x) => (float[N, 2] y) {{
        r = RandomNormalLike<{seeded}mean = 1.0>(x) {{0}} y = Add(z, r) }}"""
    m, same = model(text.replace("{0}", "z = Neg(x)")), model(text.replace("{0}", "n = Neg(x) z = Identity(n)"))
    before = m.SerializeToString()
    assert check_model(m, same).status == "confirmed"
    assert m.SerializeToString() == before
    other = model(text.replace("{0}", "z = Abs(x)"))
    assert check_model(m, other).status == "failed"


def test_outputs_that_differ_from_run_to_run_are_not_compared(monkeypatch):
    from graphfix.reference import session

    m = model("g(float[N] x) => (float[N] y, float[N] z) {y = Neg(x) z = Abs(x)}")
    plain_run, count = session.ReferenceSession.run, iter(range(1000))

    def unsteady(self, feeds):
        return {**plain_run(self, feeds), "z": np.float32([next(count)])}

    monkeypatch.setattr(session.ReferenceSession, "run", unsteady)
    result = check_model(m, m)
    assert result.status == "confirmed" and [o.name for o in result.outputs] == ["y"]
    assert result.detail.endswith("another result in each run: z")


def test_external_data(tmp_path):
    m = model("g(float[N, 3] x) => (float[N, 3] y) {a = Neg(x) y = Add(a, w)}")
    m.graph.initializer.append(numpy_helper.from_array(np.ones((1, 3), np.float32), "w"))
    onnx.save(m, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert check_model(light, light, base_dir=tmp_path).status == "confirmed"


def test_a_model_that_runs_only_with_folded_constants():
    # The branch that is taken declares another shape than it has: ONNX Runtime runs it only once If is folded away.
    m = model("""g(float[2, 3] x) => (float[2, 3] y) {
        c = Constant<value = bool {1}>() n = Neg(x)
        y = If(c) <
            then_branch = t () => (float[6] r) { r = Identity(n) },
            else_branch = e () => (float[6] q) { s = Constant<value = int64[1] {6}>() q = Reshape(n, s) }
        > }""")
    plain = model("g(float[2, 3] x) => (float[2, 3] y) {y = Neg(x)}")
    assert check_model(m, plain).status == "confirmed"


# --- NaN, hints, random operators, memory


def test_nan_that_leaks_through_a_multiplication():
    # x * (1 - m) + 7 * m is Where(m, 7, x) for all numbers, but not for NaN and infinities.
    leaks = model("""g(float[N, 3] x, bool[N, 3] m) => (float[N, 3] y) { f = Cast<to = 1>(m)
        one = Constant<value = float {1.0}>() v = Constant<value = float {7.0}>()
        g = Sub(one, f) a = Mul(x, g) b = Mul(f, v) y = Add(a, b) }""")
    result = check_model(MASKED, leaks)
    assert result.status == "failed" and "with NaN and infinities" in result.detail


def test_what_could_be_tried_is_said_where_inputs_may_help():
    m = model("""g(float[N] x, int64[1] n) => (float[2, 3] y) {
        s = Constant<value = int64[2] {2, 3}>() a = Slice(x, n, n) y = Reshape(a, s) }""")
    result = check_model(m, m)
    assert result.status == "failed" and result.sets == []
    assert result.detail.endswith("give real inputs with --inputs, or --input-shape x:..., or --input-range n:LO:HI")
    given = check_model(m, m, options=VerifyOptions(inputs=[{"x": np.ones(2, np.float32), "n": np.int64([0])}]))
    assert "none of the inputs that were given" in given.detail and "--input" not in given.detail


@pytest.mark.parametrize(
    "node",
    [
        "r = RandomNormalLike(x)",
        "r = RandomUniformLike(x)",
        "s = Softmax(x) m = Multinomial<sample_size = 4>(s) c = Cast<to = 1>(m) r = Slice(c, zero, two, one)",
        "p = Sigmoid(x) r = Bernoulli(p)",
        "half = Constant<value = float {0.5}>() train = Constant<value = bool {1}>() r = Dropout(x, half, train)",
        """t = Constant<value = bool {1}>() r = If(t) <
                   then_branch = a () => (float[N, 2] q) { q = RandomNormalLike(x) },
                   else_branch = b () => (float[N, 2] w) { w = Neg(x) } >""",
        "r = my.Draw(x)",
    ],
)
def test_random_operators_repeat(node):
    text = f"""g(float[N, 2] x) => (float[N, 2] y) {{ zero = Constant<value = int64[1] {{0}}>()
        one = Constant<value = int64[1] {{1}}>() two = Constant<value = int64[1] {{2}}>() {node} y = Add(CHANGED, r) }}
        <domain: "my", opset_import: ["": 15]> Draw (i) => (o) {{ o = RandomUniformLike(i) }}"""
    m = model(text.replace("CHANGED", "x"), 15)
    same = model(text.replace("CHANGED", "z").replace("y = Add", "n = Neg(x) z = Neg(n) y = Add"), 15)
    other = model(text.replace("CHANGED", "z").replace("y = Add", "z = Abs(x) y = Add"), 15)
    assert check_model(m, same).status == "confirmed"
    result = check_model(m, other)
    assert result.status == "failed" and "differs in" in result.detail


def test_an_input_that_asks_for_too_much_memory_is_refused(tmp_path):
    from graphfix.reference.memory import available

    if available() is None:
        pytest.skip("this system does not tell how much memory there is")
    m = model("g(int64[2] s) => (float y) { z = ConstantOfShape(s) y = ReduceSum<keepdims = 0>(z) }")
    sets = [{"s": np.int64([200_000, 50_000])}, {"s": np.int64([4, 5])}]
    result = check_model(m, m, options=VerifyOptions(inputs=sets, memory_limit=1 << 30))
    assert result.status == "confirmed" and result.sets == ["s 2"]
    assert "asks for more memory than the limit of 1 GiB (--memory-limit): " in result.skipped[0]
    # One that asks for more than there is, by default.
    result = check_model(m, m, options=VerifyOptions(inputs=[{"s": np.int64([2_000_000, 5_000_000])}]))
    assert result.status == "failed" and "more memory than the limit of" in result.detail


def test_the_memory_limit_ends_with_the_run():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    m = model("g(float[N] x) => (float[N] y) {y = Neg(x)}")
    assert check_model(m, m, options=VerifyOptions(memory_limit=1 << 30)).status == "confirmed"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    "last", ["n = Sqrt(c) y = Mul(n, t)", "y = Slice(t, z, z)", "e = Slice(t, z, z) y = Cast<to = 7>(e)"]
)
def test_outputs_that_tell_nothing_are_named(last: str) -> None:
    """NaN equals NaN, and nothing equals nothing: such an output would agree with any."""
    dtype = "int64" if "Cast" in last else "float"
    text = f"""<ir_version: 8, opset_import: ["": 16]>
        g (float[4] x) => ({dtype}[n] y, float[4] other) <float[1] c = {{-1}}, int64[1] z = {{0}}> {{
        t = OP(x) {last} other = Neg(x) }}"""
    one, two = (onnx.parser.parse_model(text.replace("OP", op)) for op in ("Sin", "Cos"))
    found = check_model(one, two)
    assert found.status == "confirmed" and "only dtype and shape were compared: y " in found.detail


def test_the_first_tensor_is_sought_with_the_tolerance_that_was_asked_for() -> None:
    text = """<ir_version: 8, opset_import: ["": 16]>
        g (float[4] x) => (float[4] y) <float o = {OFFSET}> { t = Add(x, o) u = Neg(t) y = Abs(u) }"""
    one, two = (onnx.parser.parse_model(text.replace("OFFSET", offset)) for offset in ("1", "1.000003"))
    assert check_model(one, two).status == "confirmed"
    strict = check_model(one, two, options=VerifyOptions(rtol=1e-9, atol=1e-9), locate=True)
    assert (strict.status, strict.first_difference) == ("failed", "t")


def test_outputs_that_tell_nothing_confirm_nothing():
    """NaN equals NaN: the logarithm and the square root of what is negative agree, and say nothing."""
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y)
        { a = Abs(x) one = Constant<value = float {1}>() b = Add(a, one) c = Neg(b) y = %s(c) }"""
    one, other = (onnx.parser.parse_model(text % operator) for operator in ("Log", "Sqrt"))
    result = check_model(one, other)
    assert result.status == "failed" and "holds a number on any generated input" in result.detail
    given = VerifyOptions(inputs=[{"x": np.ones(4, np.float32)}])
    assert check_model(one, one, options=given).status == "confirmed"


@pytest.mark.parametrize("dims", ["3000, 3000", "N, 3000"])
def test_inputs_that_would_take_too_much_memory_are_not_made(dims):
    m = model(f"g(float[{dims}] x) => (float[{dims}] y) {{y = Neg(x)}}")
    limit = 4 << 20  # one input of 3000 x 3000 takes 34 MiB
    result = check_model(m, m, options=VerifyOptions(memory_limit=limit, input_shapes={"x": (3000, 3000)}))
    assert result.status == "failed" and not result.sets
    assert "the largest of them 'x' of shape [3000, 3000], would take 0.0335 GiB, more than" in result.detail
    assert "raise --memory-limit" in result.detail and "--inputs" not in result.detail


def test_fewer_sets_are_made_where_more_would_not_leave_memory_for_the_runs():
    m = model("g(float[1000, 1000] x) => (float[1000, 1000] y) {y = Neg(x)}")
    result = check_model(m, m, options=VerifyOptions(memory_limit=64 << 20))
    # Each set takes 8 MB, and a quarter of 67 MB may be filled.
    assert result.status == "confirmed" and result.sets == ["x 1000x1000"] * 2
    assert "2 input sets only, as more would not fit into memory (--memory-limit)" in result.detail


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduction", ["add", "max"])
def test_numpy_runs_the_scatters_that_onnx_runtime_has_no_code_for(dtype, reduction):
    start = f"g({dtype}[N, 4] x, int64[1, 1] i, {dtype}[1, 4] v) => ({dtype}[N, 4] y) {{ "
    m = model(start + f'y = ScatterND<reduction = "{reduction}">(x, i, v) }}', 18)
    # One index: the row it names, by a Where over the rows.
    written = "Add(x, v)" if reduction == "add" else "Max(x, v)"
    cast = {"Max(x, v)": "xf = Cast<to = 1>(x) vf = Cast<to = 1>(v) m = Max(xf, vf)"}.get(written, "")
    cast = cast or "xf = Cast<to = 1>(x) vf = Cast<to = 1>(v) m = Add(xf, vf)"
    code = 10 if dtype == "float16" else 16
    rows = (
        "zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() s = Shape<start = 0, end = 1>(x) "
        "n = Squeeze(s) r = Range(zero, n, one) axis = Constant<value = int64[1] {1}>() column = Unsqueeze(r, axis) "
        "below = Less(i, zero) moved = Add(i, n) j = Where(below, moved, i) hit = Equal(column, j) "
    )
    same = model(f"{start} {rows} {cast} w = Where(hit, m, xf) y = Cast<to = {code}>(w) }}", 18)
    wrong = model(f"{start} {rows} {cast} w = Where(hit, vf, xf) y = Cast<to = {code}>(w) }}", 18)
    result = check_model(m, same)
    assert result.status == "confirmed" and len(result.sets) > 3, result.detail
    assert "NumPy ran the scatters" in result.detail
    assert check_model(m, wrong).status == "failed"
    assert check_model(m, m).status == "confirmed"  # a kept scatter runs in the same way


def test_an_operator_without_code_for_its_dtype_is_no_matter_of_inputs():
    m = model("g(bfloat16[N, 4] x) => (bfloat16[N, 4] y) { y = Neg(x) }", 17)
    detail = check_model(m, m).detail
    assert "could not be run" in detail and "no other inputs help" in detail and "--verify rewrites" in detail
    assert "--inputs" not in detail


def test_the_seeds_of_random_operators_are_told():
    m = model("g(float[N, 4] x) => (float[N, 4] y) { r = RandomNormalLike(x) y = Add(x, r) }", 15)
    detail = check_model(m, m).detail
    assert "random operators (RandomNormalLike) ran with the same seeds on both sides" in detail
