"""The ATen kernels against PyTorch where it is installed, and against NumPy or hand arithmetic where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphfix.aten import AtenCall
from graphfix.reference import ReferenceRefusal
from graphfix.reference.kernels import KERNELS, dynamic_slice, run_call, select
from graphfix.reference.readings import ReadingError, broadcasts_to, read_mask_shape, read_values_shape

try:
    import torch
except ImportError:
    torch = None

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def call(operator, *indices, **arguments):
    tensors = {k: np.asarray(v) for k, v in arguments.items() if v is not None}
    return AtenCall(operator, "", tensors, {}, tuple(indices))


def put(data, indices, values, accumulate=False, ranks=()):
    return run_call(call("index_put", *indices, self=data, values=values, accumulate=accumulate), ranks)


# --- index_put and index, all forms


@st.composite
def index_cases(draw):
    """Data shape, indices (None, integers, masks, mixed), and the shape of values."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    masked = draw(st.booleans())
    block = draw(st.lists(st.integers(0, 3), max_size=2)) if not masked else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    indices, axis, trues = [], 0, draw(st.integers(0, 3))
    while axis < len(shape) and draw(st.integers(0, 4)):
        kind = draw(st.sampled_from(["none", "integers", "mask" if masked else "integers"]))
        if kind == "none":
            indices.append(None)
            axis += 1
        elif kind == "mask":
            covered = draw(st.integers(1, len(shape) - axis))
            size = int(np.prod(shape[axis : axis + covered]))
            assume(size >= trues)
            mask = np.zeros(size, bool)
            mask[rng.permutation(size)[:trues]] = True
            mask = mask.reshape(shape[axis : axis + covered])
            indices.append(mask.astype(np.uint8) if draw(st.booleans()) else mask)
            axis += covered
        else:
            own = [trues] if masked else [n if draw(st.booleans()) else min(n, 1) for n in block]
            own = own[draw(st.integers(0, len(own))) :] if not masked else own
            dtype = draw(st.sampled_from([np.int64, np.int32]))
            indices.append(rng.integers(-shape[axis], shape[axis], own).astype(dtype))
            axis += 1
    try:
        np.broadcast_shapes(*[i.shape for i in indices if i is not None and i.dtype.kind == "i"])
    except ValueError:
        assume(False)
    return tuple(shape), indices, rng


def numpy_indices(indices):
    return tuple(
        slice(None) if i is None else i.astype(bool) if i.dtype == np.uint8 else i.astype(i.dtype) for i in indices
    )


DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]


@settings(max_examples=250, deadline=None)
@given(index_cases(), st.sampled_from(DTYPES), st.booleans(), st.data())
def test_index_put_and_index(case, dtype, accumulate, data):
    shape, indices, rng = case
    x = rng.integers(0, 5, shape).astype(dtype)
    selected = x[numpy_indices(indices)]
    keep = data.draw(st.integers(0, selected.ndim))
    values_shape = [n if data.draw(st.booleans()) else 1 for n in selected.shape[keep:]]
    values = rng.integers(0, 5, values_shape).astype(dtype)

    # Spread out first: some versions of NumPy add values of a lower rank than the index only in part.
    spread = np.broadcast_to(values, selected.shape)
    want = x.copy()
    if accumulate and dtype == np.bool_:
        np.logical_or.at(want, numpy_indices(indices), spread)
    elif accumulate:
        np.add.at(want, numpy_indices(indices), spread)
    else:
        want[numpy_indices(indices)] = values
    got = put(x, indices, values, accumulate)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want)

    read = run_call(call("index", *(indices or [None]), self=x))
    np.testing.assert_array_equal(read, selected)

    if torch is not None and any(i is not None for i in indices) and not (accumulate and dtype == np.float16):
        # PyTorch warns about uint8 masks now; as bool they mean the same.
        tensors = [
            None if i is None else torch.from_numpy(i.astype(bool) if i.dtype == np.uint8 else i) for i in indices
        ]
        told = torch.ops.aten.index_put(torch.from_numpy(x), tensors, torch.from_numpy(values), accumulate)
        np.testing.assert_array_equal(got, told.numpy())
        np.testing.assert_array_equal(read, torch.ops.aten.index(torch.from_numpy(x), tensors).numpy())


def test_last_of_equal_indices_wins():
    got = put(np.zeros(3), [np.array([2, 0, -1, 0, 2])], np.arange(1.0, 6.0))
    np.testing.assert_array_equal(got, [4, 0, 5])


def test_duplicates_over_several_axes_in_row_major_order():
    rows, columns = np.array([[0], [0]]), np.array([1, 1])
    got = put(np.zeros((2, 2)), [rows, columns], np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(got, [[0, 4], [0, 0]])


def test_bfloat16_write_and_accumulate():
    x = np.array([1, 2, 3], BFLOAT16)
    np.testing.assert_array_equal(put(x, [np.array([1, 1])], np.array([5, 7], BFLOAT16)), np.array([1, 7, 3], BFLOAT16))
    summed = put(x, [np.array([1, 1])], np.array([5, 7], BFLOAT16), True)
    assert summed.dtype == BFLOAT16
    np.testing.assert_array_equal(summed, np.array([1, 14, 3], BFLOAT16))


def test_bool_accumulate_is_or_and_int8_wraps():
    np.testing.assert_array_equal(
        put(np.array([False, True]), [np.array([0, 0])], np.array([True, False]), True), [True, True]
    )
    np.testing.assert_array_equal(put(np.array([100], np.int8), [np.array([0])], np.int8(100), True), [-56])


def test_nan_and_inf_move_unchanged():
    x = np.array([np.nan, np.inf, 1.0], np.float32)
    np.testing.assert_array_equal(put(x, [np.array([2])], np.float32(-np.inf)), [np.nan, np.inf, -np.inf])


def test_values_of_another_dtype_are_cast():
    got = put(np.zeros(2, np.float32), [np.array([0])], np.float64(1e40))
    assert got.dtype == np.float32 and np.isinf(got[0])
    np.testing.assert_array_equal(put(np.zeros(2, np.int64), [np.array([1])], np.float64(2.0)), [0, 2])


def test_zero_size_data_and_empty_index():
    empty = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(put(empty, [np.array([], np.int64)], np.float32(1)), empty)
    np.testing.assert_array_equal(put(np.ones((2, 3)), [np.array([], np.int64)], np.float64(9)), np.ones((2, 3)))
    # PyTorch does not look at indices when nothing is selected.
    np.testing.assert_array_equal(put(np.zeros((2, 0)), [np.array([7])], np.zeros((1, 0))), np.zeros((2, 0)))


def test_inputs_are_not_changed():
    x, i, v = np.zeros(3), np.array([-1]), np.array([5.0])
    put(x, [i], v)
    assert x.tolist() == [0, 0, 0] and i.tolist() == [-1]


@pytest.mark.parametrize(
    ("indices", "values", "part"),
    [
        ([np.array([3])], np.ones(1), "index 3 is out of range for axis 0 of size 3"),
        ([np.array([-4])], np.ones(1), "index -4 is out of range"),
        ([np.array([True, False])], np.ones(1), "mask of shape [2] does not fit"),
        ([np.array([0, 1])], np.ones(3), "values of shape [3] do not fit the selection of shape [2]"),
        ([np.array([0]), np.array([0])], np.ones(1), "2 indices for data of shape [3]"),
        ([np.array([0.0])], np.ones(1), "dtype float64"),
        ([np.array(True)], np.ones(3), "rank 0"),
    ],
)
def test_index_put_refuses(indices, values, part):
    with pytest.raises(ReferenceRefusal) as caught:
        put(np.zeros(3), indices, values)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_refusals_say_what_would_fit():
    with pytest.raises(ReferenceRefusal) as caught:
        put(np.zeros((3, 2)), [None, np.array([5])], np.ones(1))
    assert caught.value.index_range == (-2, 2) and caught.value.argument == "indices:1"
    with pytest.raises(ReferenceRefusal) as caught:
        put(np.zeros((3, 2)), [np.array([True, True, True])], np.ones((2, 2)))
    assert caught.value.needs_true == 2 and caught.value.argument == "indices:0"
    with pytest.raises(ReferenceRefusal) as caught:
        put(np.zeros((3, 2)), [np.array([True, True, True]), np.array([0, 1])], np.ones(2))
    assert caught.value.needs_true == 2


# --- readings


def test_read_values():
    assert broadcasts_to((1, 3), (2, 3)) and not broadcasts_to((1, 2, 3), (2, 3)) and broadcasts_to((), (0,))
    assert read_values_shape((3,), (2, 3)) == (3,)
    assert read_values_shape((4, 6), (4, 6, 1)) == (4, 6, 1)
    assert read_values_shape((6, 1), (2, 3)) == (2, 3)
    assert read_values_shape((6, 1), (6, 3), masked=True) == (6, 1)
    with pytest.raises(ReadingError):
        read_values_shape((4,), (4, 6, 1))
    with pytest.raises(ReadingError):
        read_values_shape((6, 1), (2, 3), masked=True)


def test_read_mask():
    assert read_mask_shape((4,), (4, 6, 5)) == (4,)
    assert read_mask_shape((24,), (4, 6, 5)) == (4, 6)
    assert read_mask_shape((30,), (4, 6, 5), axis=1) == (6, 5)
    assert read_mask_shape((4, 6), (4, 6, 5)) == (4, 6)
    # A length that fits axis 0 is read so, unless the graph shows what was flattened.
    assert read_mask_shape((4,), (4, 1, 5)) == (4,)
    assert read_mask_shape((4,), (4, 1, 5), reshaped_rank=2) == (4, 1)
    assert read_mask_shape((24,), (4, 6, 1), reshaped_rank=3) == (4, 6, 1)
    for mask, data, rank in [
        ((24,), (4, 6, 1), None),
        ((7,), (4, 6), None),
        ((6, 4), (4, 6), None),
        ((24,), (4, 5), 2),
    ]:
        with pytest.raises(ReadingError):
            read_mask_shape(mask, data, reshaped_rank=rank)


def test_flattened_mask_and_values():
    x = np.zeros((2, 3, 2))
    mask = np.array([[True, False, True], [False, False, True]])
    want = x.copy()
    want[mask] = 7
    np.testing.assert_array_equal(put(x, [mask.reshape(-1)], np.float64(7)), want)
    np.testing.assert_array_equal(put(x, [mask.reshape(-1)], np.float64(7), ranks=[2]), want)
    values = np.arange(6.0).reshape(2, 3)
    index = [np.array([0, 1]).reshape(2, 1, 1), np.arange(3).reshape(3, 1), np.array([0])]
    np.testing.assert_array_equal(put(x, index, values)[..., 0], values)


def test_select_keeps_or_moves_the_index_dims():
    shape, index = (2, 3, 4), np.array([[0, 1]])
    assert select(shape, [None, index]).shape == (2, 1, 2, 4)
    assert select(shape, [index, None, index]).shape == (1, 2, 3)
    assert select(shape, [None]).shape == shape


# --- the other operators: expected values by hand


def test_arange():
    def run(**arguments):
        return run_call(call("arange", **arguments))

    assert run(end=3).tolist() == [0, 1, 2] and run(end=3).dtype == np.int64
    assert run(end=3, dtype=6).dtype == np.float32
    assert run(start=5, end=1, step=-2).tolist() == [5, 3]
    assert run(end=1.0, step=0.25).tolist() == [0, 0.25, 0.5, 0.75] and run(end=1.0).dtype == np.float32
    assert run(end=0).shape == (0,)
    assert run(end=3, dtype=15).dtype == BFLOAT16
    assert run(start=0.5, end=3.5, dtype=4).tolist() == [0, 1, 2]
    for bad in ({"end": 3, "step": 0}, {"start": 5, "end": 1}, {"end": 1, "dtype": 99}, {"end": [1, 2]}):
        with pytest.raises(ReferenceRefusal):
            run(**bad)


def test_index_along_an_axis():
    x = np.zeros((2, 3), np.float32)
    filled = run_call(call("index_fill", self=x, dim=1, index=[-1, 0], value=5.0))
    np.testing.assert_array_equal(filled, [[5, 0, 5], [5, 0, 5]])
    source = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    copied = run_call(call("index_copy", self=x, dim=0, index=[1, 1], source=source))
    np.testing.assert_array_equal(copied, [[0, 0, 0], [4, 5, 6]])
    added = run_call(call("index_add", self=x, dim=-2, index=[1, 1], source=source, alpha=2))
    np.testing.assert_array_equal(added, [[0, 0, 0], [10, 14, 18]])
    for operator in ("index_copy", "index_add"):
        with pytest.raises(ReferenceRefusal):
            run_call(call(operator, self=x, dim=0, index=[-1, 0], source=source))
        with pytest.raises(ReferenceRefusal, match="source has shape"):
            run_call(call(operator, self=x, dim=0, index=[0], source=source))
    with pytest.raises(ReferenceRefusal, match="dim 2"):
        run_call(call("index_fill", self=x, dim=2, index=[0], value=1))


def test_masks():
    x = np.array([[1, 2], [3, 4]], np.int32)
    mask = np.array([True, False])
    np.testing.assert_array_equal(run_call(call("masked_fill", self=x, mask=mask, value=9.7)), [[9, 2], [9, 4]])
    spread = run_call(call("masked_fill", self=np.zeros(2), mask=np.array([[True, False]] * 2), value=1))
    np.testing.assert_array_equal(spread, [[1, 0], [1, 0]])
    scattered = run_call(call("masked_scatter", self=x, mask=mask, source=[[7, 8, 9]]))
    np.testing.assert_array_equal(scattered, [[7, 2], [8, 4]])
    with pytest.raises(ReferenceRefusal, match="1 elements for 2 trues"):
        run_call(call("masked_scatter", self=x, mask=mask, source=[7]))
    with pytest.raises(ReferenceRefusal, match="broadcast"):
        run_call(call("masked_fill", self=x, mask=np.ones(3, bool), value=1))


def test_gather_and_scatter():
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    index = np.array([[2, 0], [1, 1]])
    np.testing.assert_array_equal(run_call(call("gather", self=x, dim=1, index=index)), [[2, 0], [4, 4]])
    source = np.array([[10, 20, 30], [40, 50, 60]], np.float32)
    scattered = run_call(call("scatter", self=x, dim=1, index=index, src=source))
    np.testing.assert_array_equal(scattered, [[20, 1, 10], [3, 50, 5]])
    np.testing.assert_array_equal(
        run_call(call("scatter", self=x, dim=1, index=index, src=9.0)), [[9, 1, 9], [3, 9, 5]]
    )
    added = run_call(call("scatter_add", self=x, dim=1, index=index, src=source))
    np.testing.assert_array_equal(added, [[20, 1, 12], [3, 94, 5]])
    for operator in ("gather", "scatter", "scatter_add"):
        with pytest.raises(ReferenceRefusal) as caught:
            run_call(call(operator, self=x, dim=1, index=-index - 1, src=source))
        assert caught.value.index_range == (0, 3)
    with pytest.raises(ReferenceRefusal, match="smaller than index"):
        run_call(call("scatter", self=x, dim=1, index=index, src=source[:, :1]))


@pytest.mark.parametrize(
    ("reduce", "include", "want"),
    [
        ("sum", True, [1 + 2 + 3, 1 - 5, 1]),
        ("sum", False, [5, -5, 1]),
        ("prod", True, [6, -5, 1]),
        ("mean", True, [2, -2, 1]),
        ("mean", False, [2.5, -5, 1]),
        ("amax", True, [3, 1, 1]),
        ("amax", False, [3, -5, 1]),
        ("amin", True, [1, -5, 1]),
        ("amin", False, [2, -5, 1]),
    ],
)
def test_scatter_reduce(reduce, include, want):
    arguments = {"self": np.ones(3), "dim": 0, "index": [0, 0, 1], "src": [2.0, 3.0, -5.0], "include_self": include}
    got = run_call(AtenCall("scatter_reduce", "", {k: np.asarray(v) for k, v in arguments.items()}, {"reduce": reduce}))
    np.testing.assert_allclose(got, want)


def test_text_arguments_come_in_any_form():
    arguments = {"self": np.ones(2), "dim": np.asarray(0), "index": np.array([0]), "src": np.array([4.0])}
    for reduce in (b"multiply", "multiply", np.asarray(b"multiply", object), np.asarray(["multiply"], object)):
        got = run_call(AtenCall("scatter", "", {**arguments, "reduce": reduce}, {}))
        np.testing.assert_array_equal(got, [4, 1])
    with pytest.raises(ReferenceRefusal, match="unknown reduction"):
        run_call(AtenCall("scatter", "", arguments, {"reduce": "median"}))


def test_dynamic_slice():
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(dynamic_slice(x, np.array([1]), np.array([2**63 - 1])), x[1:])
    np.testing.assert_array_equal(dynamic_slice(x, np.array([-2]), np.array([-1]), np.array([1])), x[:, -2:-1])
    np.testing.assert_array_equal(dynamic_slice(x, np.array([9]), np.array([10])), x[:0])
    with pytest.raises(ReferenceRefusal):
        dynamic_slice(x, np.array([0]), np.array([1]), np.array([2]))


def test_unknown_operator():
    with pytest.raises(ReferenceRefusal, match="no kernel for aten::erfc"):
        run_call(call("erfc", self=1.0))


# --- the other operators against PyTorch


@st.composite
def scatter_cases(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    own = [draw(st.integers(0, n)) for n in shape]
    own[dim] = draw(st.integers(0, 5))
    source = [n + draw(st.integers(0, 1)) for n in own]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.int64]))
    index = rng.integers(0, shape[dim], own)
    return rng.integers(-5, 5, shape).astype(dtype), dim, index, rng.integers(-5, 5, source).astype(dtype)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The reduce argument")
@settings(max_examples=150, deadline=None)
@given(scatter_cases(), st.sampled_from(["sum", "prod", "mean", "amax", "amin"]), st.booleans())
def test_scatter_family_as_pytorch(case, reduce, include):
    x, dim, index, source = case
    tx, ti, ts = (torch.from_numpy(v) for v in (x, index, source))

    def check(operator, want, **extra):
        given = {"self": x, "dim": np.asarray(dim), "index": index, **{k: np.asarray(v) for k, v in extra.items()}}
        texts = {"reduce": extra["reduce"]} if "reduce" in extra else {}
        arguments = {k: v for k, v in given.items() if k != "reduce"}
        np.testing.assert_allclose(KERNELS[operator](AtenCall(operator, "", arguments, texts)), want.numpy(), rtol=1e-6)

    check("scatter", tx.scatter(dim, ti, ts), src=source)
    check("scatter", tx.scatter(dim, ti, 3), src=np.asarray(3))
    check("scatter_add", tx.scatter_add(dim, ti, ts), src=source)
    check("scatter", tx.scatter(dim, ti, ts, reduce="multiply"), src=source, reduce="multiply")
    want = tx.scatter_reduce(dim, ti, ts, reduce, include_self=include)
    check("scatter_reduce", want, src=source, reduce=reduce, include_self=include)
    if all(n <= m for axis, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if axis != dim % x.ndim):
        check("gather", tx.gather(dim, ti))


@pytest.mark.torch
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 4), st.integers(0, 2**32 - 1), st.data())
def test_index_along_an_axis_as_pytorch(shape, count, seed, data):
    rng = np.random.default_rng(seed)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, index = rng.standard_normal(shape).astype(np.float32), rng.integers(0, shape[dim], count)
    source_shape = list(shape)
    source_shape[dim] = count
    source = rng.standard_normal(source_shape).astype(np.float32)
    tx, ti, ts = (torch.from_numpy(v) for v in (x, index, source))
    along = {"self": x, "dim": dim, "index": index}
    np.testing.assert_array_equal(run_call(call("index_fill", **along, value=2)), tx.index_fill(dim, ti, 2).numpy())
    np.testing.assert_array_equal(
        run_call(call("index_copy", **along, source=source)), tx.index_copy(dim, ti, ts).numpy()
    )
    np.testing.assert_allclose(
        run_call(call("index_add", **along, source=source, alpha=0.5)),
        tx.index_add(dim, ti, ts, alpha=0.5).numpy(),
        rtol=1e-6,
    )
    mask = rng.random(shape) < 0.5
    np.testing.assert_array_equal(
        run_call(call("masked_scatter", self=x, mask=mask, source=x[::-1])),
        tx.masked_scatter(torch.from_numpy(mask), torch.from_numpy(x[::-1].copy())).numpy(),
    )


@pytest.mark.torch
@pytest.mark.parametrize("operator", ["scatter_add", "scatter_reduce"])
def test_bool_reductions_as_pytorch(operator):
    x, index, source = np.zeros(3, bool), np.array([0, 0, 1]), np.array([True, True, False])
    tx, ti, ts = torch.from_numpy(x), torch.from_numpy(index), torch.from_numpy(source)
    want = tx.scatter_add(0, ti, ts) if operator == "scatter_add" else tx.scatter_reduce(0, ti, ts, "amax")
    arguments = {"self": x, "dim": np.asarray(0), "index": index, "src": source}
    got = run_call(AtenCall(operator, "", arguments, {"reduce": "amax"} if operator == "scatter_reduce" else {}))
    np.testing.assert_array_equal(got, want.numpy())
