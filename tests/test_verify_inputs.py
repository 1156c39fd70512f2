"""Input sets that models accept, found from the graph, from runs and from refusals."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from realistic_models import MODELS, build

from graphfix.errors import UsageError
from graphfix.reference import ReferenceSession
from graphfix.user_inputs import check_sets, model_inputs
from graphfix.verification import VerifyOptions, check_model
from graphfix.verification import sizes as sizing
from graphfix.verification.empty import takes_empty
from graphfix.verification.inputs import InputSearch, floats, integers, mask, within
from graphfix.verification.roles import usual_range
from graphfix.verification.uses import Use, Uses

NO = "no = Constant<value = bool {0}>()"


def model(text, opset=13):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "org.pytorch.aten": 1]> {text}')


def search(m, *, special=False, empty=False, **options):
    return InputSearch(ReferenceSession(m), m, special=special, empty=empty, **options)


def put(output, data, *indices, values="v"):
    return f'{output} = org.pytorch.aten.ATen<operator = "index_put">({data}, {", ".join(indices)}, {values}, no)'


# --- values


def test_integers_stay_in_range_and_differ_by_flavour():
    rng = np.random.default_rng(0)
    for flavour in range(4):
        made = integers(rng, (40,), flavour, -5, 5)
        assert made.min() >= -5 and made.max() < 5
    assert integers(rng, (40,), 0, -5, 5).min() >= 0
    negative = integers(rng, (40,), 1, -5, 5)
    assert negative.min() < 0 and len(set(negative.tolist())) < 40
    assert set(integers(rng, (40,), 2, -5, 5).tolist()) == {-5, 0, 4}
    assert sorted(integers(rng, (5,), 3, -5, 5).tolist()) == [0, 1, 2, 3, 4]
    assert integers(rng, (0, 3), 1, 0, 1).shape == (0, 3)


def test_masks_and_floats():
    rng = np.random.default_rng(0)
    assert not mask(rng, (3, 2), 1).any() and mask(rng, (3, 2), 2).all()
    assert mask(rng, (3, 4), 1, trues=5).sum() == 5 and mask(rng, (2,), 0, trues=9).sum() == 2
    assert mask(rng, (), 2).shape == ()
    for flavour in range(4):
        assert np.isfinite(floats(rng, (50,), flavour)).all()


# --- uses


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        ("y = Gather(x, i)", (-6, 6)),
        ("y = Gather<axis = 1>(x, i)", (-4, 4)),
        ("j = Add(i, two) y = Gather(x, j)", (-8, 4)),
        ("j = Sub(i, two) y = Gather(x, j)", (-4, 8)),
        ("j = Mul(i, two) y = Gather(x, j)", (-3, 3)),
        ("k = Cast<to = 6>(i) j = Reshape(k, minus) y = GatherElements(x, j)", (-6, 6)),
        ("y = GatherND(x, i)", (-4, 4)),
        ("y = Slice(x, zero, i, zero)", (0, 7)),
        ("y = Expand(two, i)", (1, 4)),
        ("j = Div(i, two) y = Gather(x, j)", (-12, 11)),
        ("j = CumSum(i, zero) y = Gather(x, j)", (0, 2)),
        ("j = ReduceSum(i, zero) y = Gather(big, j)", (0, 10)),
        ("j = Add(i, hidden) y = Gather(x, j)", (-6, 3)),
        ("y = Div(two, i)", (1, 9)),
        ("y = TopK<axis = 1>(x, i)", (1, 5)),
        ("y = LSTM(x, v, v, v, i)", (1, 7)),
        ("y = ReverseSequence<time_axis = 1>(x, i)", (1, 5)),
        ("y = NonMaxSuppression(x, x, i)", (1, 6)),
        ("y = RoiAlign(x, v, i)", (0, 6)),
        # Compared with a counter, with one of a dim that is read from a shape, and with a constant.
        ("r = Range(two, four, two) e = Unsqueeze(i, zero) y = Less(r, e)", (1, 5)),
        ("r = Range(two, four, two) y = Equal(i, r)", (0, 4)),
        ("s = Shape(x) n = Gather(s, one) r = Range(two, n, two) y = GreaterOrEqual(i, r)", (1, 5)),
        ("s = Shape(x) n = Gather(s, one) y = Less(i, n)", (1, 5)),
        ("y = Equal(i, two)", (1, 4)),
        ('y = org.pytorch.aten.ATen<operator = "index_fill", dim = 1>(x, i, two)', (-4, 4)),
        ('y = org.pytorch.aten.ATen<operator = "gather", dim = 0>(x, i)', (0, 6)),
        (f"{NO} " + put("y", "x", "zero", "i"), (-4, 4)),
        (f"{NO} " + put("y", "x", "i"), (-6, 6)),
        (f"{NO} " + put("y", "x", "zero", values="i"), None),
        ("y = Neg(i)", None),
    ],
)
def test_uses_limit_inputs(body, limits):
    m = model(f"""g(float[6, 4] x, int64[K] i) => (float y) {{
        two = Constant<value = int64 {{2}}>() zero = Constant<value = int64[1] {{0}}>()
        one = Constant<value = int64 {{1}}>() four = Constant<value = int64 {{4}}>() hidden = Neg(i)
        minus = Constant<value = int64[1] {{-1}}>() v = Identity(two) {body} }}""")
    uses = Uses(m.graph).of("i", {})
    found = [use.limits({"x": (6, 4), "big": (333,)}) for use in uses]
    assert found == ([limits] if limits is not None else [])


def test_uses_reach_into_bodies_and_lists():
    m = model("""g(float[6, 4] x, int64[K] i, bool c) => (float y) {
        y = If(c) <
            then_branch = t () => (float r) { r = Gather(x, i) },
            else_branch = e () => (float q) { s = SequenceConstruct(i)
                q = org.pytorch.aten.ATen<operator = "index">(x, s) }
        > }""")
    found = [use.limits({"x": (6, 4)}) for use in Uses(m.graph).of("i", {})]
    assert sorted(set(found)) == [(-6, 6)]


def test_unknown_shapes_give_no_limits():
    assert Use("x", (0,)).limits({}) is None
    assert Use("x", (1,)).limits({"x": (3, None)}) is None
    assert Use("x", (-1,)).limits({"x": (3, 2)}) == (0, 2)


def test_sources():
    m = model("g(float[N] x, int64[K] i, bool[N] b) => (float y) {j = Neg(i) w = Where(b, x, x) y = Gather(w, j)}")
    uses = Uses(m.graph)
    assert uses.sources("j", ["x", "i", "b"]) == ["i"]
    assert uses.sources("y", ["x", "i", "b"]) == ["b", "x", "i"]  # by distance, then by the order of inputs


@pytest.mark.parametrize(
    ("body", "free"),
    [
        ("y = Neg(i)", True),
        ("f = Cast<to = 1>(i) y = Softmax(f)", True),
        ("e = Equal(i, i) y = Where(e, i, i)", True),
        ("s = Shape(i) y = Expand(x, s)", True),
        ("f = Cast<to = 1>(i) g = Exp(f) h = Cast<to = 7>(g) y = Gather(x, h)", False),
        ("n = Neg(i) y = Range(n, n, n)", False),
        ("y = Div(x, i)", False),
        ("y = my.Op(i)", False),
        ("e = Equal(i, i) y = If(e) <then_branch = t () => (float r) { r = Neg(x) },"
         " else_branch = e () => (float q) { q = Abs(x) }>", False),
    ],
)  # fmt: skip
def test_integers_that_decide_nothing(body, free):
    m = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13, "my": 1]> g(float[6] x, int64[K] i) => (float y) {{ {body} }}'
    )
    assert Uses(m.graph).is_free("i") is free


@pytest.mark.parametrize(
    ("name", "kind", "limits"),
    [
        ("attention_mask", "i", (0, 2)),
        ("src_key_padding_mask", "f", (0, 2)),
        ("token_type_ids", "i", (0, 2)),
        ("segment_ids", "u", (0, 2)),
        ("input_lengths", "i", (1, 8)),
        ("x_len", "i", (1, 8)),
        ("seq_len", "i", (1, 8)),
        ("position_ids", "i", (0, 7)),
        ("model.pos", "i", (0, 7)),
        ("labels", "i", (0, 2)),
        ("input_ids", "i", (0, 9)),
        ("lengths", "f", None),
        ("image", "i", None),
        ("silence", "i", None),
        ("composite", "i", None),
    ],
)
def test_usual_names(name, kind, limits):
    assert usual_range(name, kind, {name: (3,), "x": (3, 7, 2), "z": (2, 9)}) == limits


# --- realistic models


@pytest.mark.parametrize("name", MODELS)
def test_no_input_of_a_realistic_model_is_refused(name):
    m = build(name)
    for seed in range(3):
        s = search(m, seed=seed)
        assert len(list(s)) == 4 and s.refusals == 0 and s.refused == {}


def test_what_masks_lengths_and_positions_hold():
    for name, entry, low, high in [
        ("bert", "attention_mask", 0, 1),
        ("bert", "token_type_ids", -2, 1),
        ("last_token", "attention_mask", 0, 1),
        ("lengths_mask", "feature_lengths", 1, 24),
        ("lstm_lengths", "lengths", 1, 24),
        ("vits", "input_lengths", 1, 24),
    ]:
        values = np.concatenate([s.feeds[entry].reshape(-1) for s in search(build(name))])
        assert low <= values.min() and values.max() <= high
        assert len(set(values.tolist())) > 1


# --- sizes


def test_assignments_are_distinct_and_start_with_distinct_sizes():
    made = list(sizing.assignments(["B", "T"], {"B": [4], "T": [6]}, [9]))
    assert made[0]["B"] != made[0]["T"] and made[1] == {"B": 4, "T": 6}
    assert {"B": 1, "T": 1} in made
    assert len({tuple(m.items()) for m in made}) == len(made)
    assert list(sizing.assignments([], {}, [])) == [{}]
    # A size that a fixed dim has is no good first choice.
    assert next(sizing.assignments(["B"], {}, [], {3, 5})) == {"B": 4}


def test_declared_outputs_tell_sizes():
    m = model("g(float[B, T, 5] x, int64[N] i) => (float[4, 6, 5] y, int64[B] z) {y = Identity(x) z = Neg(i)}")
    assert sizing.declared_sizes(ReferenceSession(m).inputs, m.graph)["B"] == [4]
    assert sizing.declared_sizes(ReferenceSession(m).inputs, m.graph)["T"] == [6]


def test_input_shapes_settle_symbols():
    inputs = ReferenceSession(model("g(float[B, 3] x, float[B] z) => (float[B] y) {y = Neg(z) t = Neg(x)}")).inputs
    assert sizing.free_symbols(inputs, {"x": (7, 3)}) == ([], {"B": 7})
    for wrong, part in [
        ({"q": (1,)}, "no such input"),
        ({"x": (1,)}, "rank 2"),
        ({"x": (2, 4)}, "fixed to 3"),
        ({"x": (2, 3), "z": (5,)}, "elsewhere"),
    ]:
        with pytest.raises(UsageError, match=part):
            sizing.free_symbols(inputs, wrong)


# --- searches


def test_dynamic_dims_get_several_sizes_and_ties_hold():
    m = model("g(float[B, T] x, float[B, T] z, float[C] w) => (float[B, T] y) {a = Add(x, z) b = Neg(w) y = Neg(a)}")
    found = list(search(m))
    assert len(found) == 4 and len({s.feeds["x"].shape for s in found}) == 4
    assert all(s.feeds["x"].shape == s.feeds["z"].shape for s in found)
    assert "x" in found[0].describe() and found[0].describe().startswith("x 3x5, z 3x5")


def test_indices_are_negative_repeated_and_at_the_boundary():
    m = model(f"g(float[N, 4] x, int64[K] i, float v) => (float[N, 4] y) {{{NO} e = Neg(x) {put('y', 'e', 'i')}}}")
    found = list(search(m, count=4))
    assert len(found) == 4
    values = np.concatenate([s.feeds["i"] / s.feeds["x"].shape[0] for s in found])
    assert values.min() < 0
    assert any(len(set(s.feeds["i"].tolist())) < s.feeds["i"].size for s in found)
    for s in found:
        n = s.feeds["x"].shape[0]
        assert s.feeds["i"].min() >= -n and s.feeds["i"].max() < n


def test_masks_are_false_and_true_where_the_model_takes_it():
    m = model(f"g(float[6, 4] x, bool[6] i, float v) => (float[6, 4] y) {{{NO} {put('y', 'x', 'i')}}}")
    counts = [int(s.feeds["i"].sum()) for s in search(m)]
    assert 0 in counts and 6 in counts


def test_packed_values_fix_the_count_of_trues():
    m = model(
        "g(float[6, 4] x, bool[6, 4] i, float[9] v) => (float[6, 4] y)"
        f"{{{NO} b = Not(i) j = Not(b) {put('y', 'x', 'j')}}}"
    )
    found = list(search(m))
    assert len(found) == 4 and all(s.feeds["i"].sum() == 9 for s in found)


def test_sizes_baked_into_the_graph_are_found():
    m = model("""g(float[B, T, 5] x) => (float[4, 6, 5] y) {
        s = Constant<value = int64[3] {4, 6, 5}>() y = Reshape(x, s) }""")
    found = list(search(m))
    assert found and all(s.feeds["x"].size == 120 for s in found)
    s = search(m)
    list(s)
    assert s.refused and all("cannot be reshaped" in reason for reason in s.refused.values())


def test_unnamed_dims_that_must_agree():
    m = model(
        "g(float[N, ?] x, float[?, M] z) => (float y) {y = MatMul(x, z)}".replace("?", "P").replace("P] x", "Q] x")
    )
    found = list(search(m))
    assert len({s.feeds["x"].shape for s in found}) >= 2
    assert all(s.feeds["x"].shape[1] == s.feeds["z"].shape[0] for s in found)


def test_indices_from_refusals():
    # The walk stops at Neg: only the refusal tells the range.
    m = model("""g(float[3] x, int64[K] i) => (float[K] y) {
        n = Neg(i) j = Neg(n) y = Gather(x, j) }""")
    found = list(search(m))
    assert found and all(s.feeds["i"].min() >= -3 and s.feeds["i"].max() < 3 for s in found)


def test_lengths_that_fit_by_luck():
    m = model("""g(float[6, 2] x, int64[1] n, int64[1] k) => (float y) {
        big = Constant<value = int64[1] {9}>() zero = Constant<value = int64[1] {0}>()
        two = Constant<value = int64[2] {4, 2}>() three = Constant<value = int64[2] {1, 2}>()
        a = Slice(x, n, big, zero) b = Reshape(a, two)
        c = Slice(x, k, big, zero) d = Reshape(c, three) y = Add(b, d) }""")
    found = list(search(m))
    assert len(found) == 4 and all(s.feeds["n"].tolist() == [2] and s.feeds["k"].tolist() == [5] for s in found)


def test_sizes_of_one_stand_beside_others():
    made = [tuple(m.values()) for m in sizing.assignments(["A", "B", "C"], {}, [])][:4]
    for axis in range(3):
        assert any(sizes[axis] == 1 < max(sizes) for sizes in made)
        assert any(sizes[axis] > 10 for sizes in made)


def test_a_size_of_zero_is_tried_and_left_where_it_is_refused():
    m = model(
        "g(float[B, T] x) => (float[B] y) { a = Constant<value = int64[1] {1}>() y = ReduceSum<keepdims = 0>(x, a) }"
    )
    found = list(search(m, empty=True))
    assert {s.feeds["x"].shape for s in found if s.feeds["x"].size == 0} == {(0, 5), (3, 0)}
    refuses = model("g(float[B, T] x, int64[K] i) => (float[K, T] y) { y = Gather(x, i) }")
    s = search(refuses, empty=True)
    shapes = {(f.feeds["x"].shape, f.feeds["i"].shape) for f in s if 0 in f.feeds["x"].shape + f.feeds["i"].shape}
    assert shapes == {((3, 0), (4,)), ((3, 5), (0,))} and s.refusals == 0 and not s.refused


def test_dims_of_one_size_are_zero_together():
    # The mask selects rows: a mask of another length is refused, but for one that broadcasts.
    m = model("""g(float[B, 3] x, bool[D] m) => (float[B, 3] y, float[B, 3] w) { n = NonZero(m) t = Transpose(n)
        g = GatherND(x, t) y = ScatterND(x, t, g) s = Cast<to = 1>(m) o = Constant<value = int64[1] {1}>()
        u = Unsqueeze(s, o) w = Add(x, u) }""")
    shapes = {(s.feeds["x"].shape[0], s.feeds["m"].shape[0]) for s in search(m, empty=True)}
    assert (0, 0) in shapes and not {(b, d) for b, d in shapes if d == 0 < b}


def test_no_nan_where_a_scatter_takes_the_largest():
    m = model(
        """g(float[N, 3] x, int64[K, 3] i, float[K, 3] u) => (float[N, 3] y) {
        y = ScatterElements<axis = 0, reduction = "max">(x, i, u) }""",
        18,
    )
    (special,) = [s for s in search(m, special=True) if s.special]
    assert special.special == "infinities" and not np.isnan(special.feeds["u"]).any()


def test_a_size_of_zero_is_not_tried_where_it_may_end_the_process():
    assert not takes_empty(build("lstm_lengths")) and takes_empty(build("bert"))
    assert all(0 not in s.feeds["x"].shape for s in search(build("lstm_lengths"), empty=True))
    divides = model("""g(float[B, T] x) => (int64[2] y) { s = Shape(x) i = Constant<value = int64 {0}>()
        n = Gather(s, i) y = Div(s, n) }""")
    assert all(0 not in s.feeds["x"].shape for s in search(divides, empty=True))


def test_one_set_holds_nan_and_infinities():
    m = model(
        "g(float[B, 3] x, int64[B] i, float[1] z) => (float[B, 3] y) { f = Cast<to = 1>(i) w = Mul(x, z) y = Exp(w) }"
    )
    *plain, special = search(m, special=True)
    assert all(np.isfinite(s.feeds["x"]).all() and not s.special for s in plain)
    assert special.special and special.describe().endswith("with NaN and infinities")
    values = special.feeds["x"]
    assert np.isnan(values).any() or np.isinf(values).any()
    assert any(np.array_equal(special.feeds["i"], s.feeds["i"]) for s in plain)
    scales = model("g(float[2] x, float[3, 4] roi) => (float[2] y) { y = Neg(x) z = Neg(roi) }")
    assert list(search(scales, special=True, ranges={"x": (0, 1)}))[-1].feeds["x"].max() <= 1
    assert not any(s.special for s in search(model("g(int64[B] i) => (int64[B] y) { y = Neg(i) }"), special=True))


def test_integers_that_decide_nothing_take_the_whole_range():
    for dtype in (np.int64, np.int8, np.uint8):
        name = np.dtype(dtype).name
        found = list(search(model(f"g({name}[40] x) => ({name}[40] y) {{ y = Identity(x) }}")))
        values = np.concatenate([s.feeds["x"] for s in found])
        assert values.min() == np.iinfo(dtype).min and values.max() == np.iinfo(dtype).max


def test_values_next_to_a_constant_that_they_are_compared_with():
    m = model("g(int64[50] i) => (bool[50] y) { c = Constant<value = int64 {16000}>() y = Equal(i, c) }")
    for s in search(m):
        assert s.outputs["y"].any() and not s.outputs["y"].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.bool_])
def test_ranges_hold_both_ends(dtype):
    low, high = (0, 1) if dtype is np.bool_ else (3, 6)
    for flavour in range(4):
        values = within(np.random.default_rng(flavour), (200,), flavour, np.dtype(dtype), low, high)
        assert values.dtype == dtype and values.min() >= low and values.max() <= high
    values = within(np.random.default_rng(0), (200,), 2, np.dtype(dtype), low, high)
    assert values.min() == low and values.max() == high


def test_a_model_that_does_not_load_is_not_tried_again():
    m = model("g(float[N] x) => (float[N] y) { n = NonZero(x) s = Softmax(n) y = Cast<to = 1>(s) }")
    from graphfix.reference import ReferenceRefusal

    with pytest.raises(ReferenceRefusal):
        list(search(m))


def test_input_shapes_are_used():
    m = model("g(float[B, 3] x) => (float[B, 3] y) {y = Neg(x)}")
    assert {s.feeds["x"].shape for s in search(m, input_shapes={"x": (11, 3)})} == {(11, 3)}


def test_inputs_without_rank_are_explained():
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    s = search(m)
    assert not list(s) and "no declared rank" in next(iter(s.refused.values()))
    assert len(list(search(m, input_shapes={"x": (2, 2)}))) == 4


def test_all_dtypes_and_no_inputs():
    for dtype in ("float16", "bfloat16", "double", "uint8", "int8", "bool", "string"):
        found = list(search(model(f"g({dtype}[N] x) => ({dtype}[N] y) {{y = Identity(x)}}")))
        assert len(found) == 4 and found[0].feeds["x"].dtype == found[0].outputs["y"].dtype
    m = model("g() => (float y) {y = Neg(w)}")
    m.graph.initializer.append(numpy_helper.from_array(np.float32(2), "w"))
    found = list(search(m))
    assert found and found[0].feeds == {} and found[0].describe() == "no inputs"


def test_the_same_seed_gives_the_same_sets():
    m = model("g(float[B, 3] x) => (float[B, 3] y) {y = Neg(x)}")
    first, second, other = (list(search(m, seed=s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first[0].feeds["x"], second[0].feeds["x"])
    assert not np.array_equal(first[0].feeds["x"], other[0].feeds["x"])


@pytest.mark.parametrize(
    "declared, body",
    [
        ("seq(float[N, 4])", "x = SequenceAt(xs, i)"),
        ("optional(float[N, 4])", "x = OptionalGetElement(xs)"),
        ("optional(seq(float[N, 4]))", "s = OptionalGetElement(xs) x = SequenceAt(s, i)"),
    ],
)
def test_sequences_and_optionals_are_generated(declared, body):
    start = f"g({declared} xs, bool[N, 4] m) => (float[N, 4] y) {{ i = Constant<value = int64 {{1}}>() {body} "
    plain = model(start + "n = Neg(x) y = Where(m, n, x) }", 17)
    aten = model(
        start + 'n = Neg(x) p = ATen<operator = "index">(n, m) f = Constant<value = bool {0}>() '
        'y = ATen<operator = "index_put">(x, m, p, f) }',
        17,
    )
    wrong = model(start + "y = Where(m, x, x) }", 17)
    for reference in (plain, aten):
        result = check_model(reference, plain)
        assert result.status == "confirmed" and len(result.sets) > 2, result.detail
        assert check_model(reference, wrong).status == "failed"


def test_a_given_sequence_may_be_one_array_of_its_elements():
    m = model("g(seq(float[2]) xs) => (float[2] y) { i = Constant<value = int64 {2}>() y = SequenceAt(xs, i) }", 17)
    stacked = np.arange(6, dtype=np.float32).reshape(3, 2)
    (feeds,) = check_sets({"xs": stacked}, model_inputs(m)) or []
    assert [list(element) for element in feeds["xs"]] == [[0, 1], [2, 3], [4, 5]]
    assert check_model(m, m, options=VerifyOptions(inputs=[feeds])).sets == ["xs [2, 2, 2]"]
    with pytest.raises(UsageError, match="'xs' is float64, but the model takes float32"):
        check_sets({"xs": [np.zeros(2)]}, model_inputs(m))


def test_an_input_that_holds_no_tensors_is_named():
    m = model("g(float[N] x) => (float[N] y) { y = Neg(x) }", 17)
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    m.graph.input.append(helper.make_value_info("table", kind))
    detail = check_model(m, m).detail
    assert "'table' can be made or given, as it holds no tensors; --verify rewrites" in detail
