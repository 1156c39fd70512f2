"""The ATen operators beside index_put, over random arguments, element types, opsets and sizes, held against NumPy and
PyTorch. Zeros are compared without their signs: ONNX Runtime's Where returns +0.0 for a chosen -0.0."""

from __future__ import annotations

import numpy as np
import pytest
from aten_op_cases import ALL, Case, SliceCase
from engine import run
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, parser

import graphfix

SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), print_blob=True)
TOLERANCE = {2: 2e-2, 4: 1e-5, 8: 1e-12}


def check(case: Case | SliceCase, answer: np.ndarray) -> None:
    fixed = graphfix.fix(case.model(), verify="none", simplify=False).model
    assert not {n.op_type for n in fixed.graph.node} & {"ATen", "DynamicSlice", "ListConstruct"}
    got = run(fixed, case.feeds())
    assert got.dtype == answer.dtype
    if isinstance(case, Case) and not case.exact and answer.dtype.kind == "f":
        tolerance = TOLERANCE[answer.dtype.itemsize]
        np.testing.assert_allclose(got, answer, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, answer)


@pytest.mark.onnxruntime_1_29
@pytest.mark.parametrize("cases", ALL.values(), ids=ALL)
def test_like_numpy(cases) -> None:
    @SETTINGS
    @given(cases)
    def hold(case) -> None:
        check(case, case.answer())

    hold()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("cases", [v for k, v in ALL.items() if k != "slices"], ids=[k for k in ALL if k != "slices"])
def test_like_torch(cases) -> None:
    import torch

    @SETTINGS
    @given(cases)
    def hold(case: Case) -> None:
        check(case, case.torch_answer(torch))

    hold()


ELEMENT_TYPES = ["float", "double", "float16", "bfloat16", "bool"]
ELEMENT_TYPES += ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
ROWS = np.array([[1, 0, 3], [4, 5, 0], [7, 0, 9], [0, 1, 2]], np.float32)
SOURCE = np.array([[2, 0, 1], [0, 3, 1]], np.float32)
INDEX, ELEMENTS, MASK = np.array([2, 0]), np.array([[3, 0, 1], [3, 2, 1]]), ROWS > 4
# Operator: its inputs and attributes, and the result on numbers.
CALLS = {
    "index_put": ("x, i, v, no", "", lambda x, v: _with(x, INDEX, v)),
    "index_put, accumulate": ("x, i, v, yes", "", lambda x, v: _with(x, INDEX, x[INDEX] + v)),
    "index": ("x, i", "", lambda x, v: x[INDEX]),
    "index_fill": ("x, i, one", "dim = 0", lambda x, v: _with(x, INDEX, 1)),
    "index_copy": ("x, i, v", "dim = 0", lambda x, v: _with(x, INDEX, v)),
    "index_add": ("x, i, v", "dim = 0", lambda x, v: _with(x, INDEX, x[INDEX] + v)),
    "masked_fill": ("x, m, one", "", lambda x, v: _with(x, MASK, 1)),
    "masked_scatter": ("x, m, v", "", lambda x, v: _with(x, MASK, v.reshape(-1)[: MASK.sum()])),
    "gather": ("x, e", "dim = 0", lambda x, v: np.take_along_axis(x, ELEMENTS, 0)),
    "scatter": ("x, e, v", "dim = 0", lambda x, v: _element_wise(x, v, lambda old, new: new)),
    "scatter_add": ("x, e, v", "dim = 0", lambda x, v: _element_wise(x, v, lambda old, new: old + new)),
    "slice_scatter": ("x, v", "dim = 0, start = 1, end = 3, step = 1", lambda x, v: _with(x, slice(1, 3), v)),
    "slice_scatter, steps": ("x, v", "dim = 0, start = 0, end = 9, step = 2", lambda x, v: _with(x, slice(0, 9, 2), v)),
    "scatter_reduce": ("x, e, v", 'dim = 0, reduce = "amax"', lambda x, v: _element_wise(x, v, max)),
}


def _with(x: np.ndarray, where: np.ndarray, what) -> np.ndarray:
    out = x.copy()
    out[where] = what
    return out


def _element_wise(x: np.ndarray, v: np.ndarray, combine) -> np.ndarray:
    out = x.copy()
    for k, j in np.ndindex(v.shape):
        out[ELEMENTS[k, j], j] = combine(out[ELEMENTS[k, j], j], v[k, j])
    return out


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("opset", [9, 13, 18])
def test_every_element_type(call: str, opset: int) -> None:
    """Small whole numbers are the same in all of them; as bool, what is not 0 is true."""
    inputs, attributes, answer = CALLS[call]
    attributes = f'operator = "{call.split(",")[0]}"' + (f", {attributes}" if attributes else "")
    for dtype in ELEMENT_TYPES:
        if dtype == "bfloat16" and opset < 13:
            continue  # no operator takes it
        code = TensorProto.DataType.Value(dtype.upper())
        model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "org.pytorch.aten": 1]>
        g (float[N, 3] px, int64[K] i, bool[N, 3] m, int64[K, 3] e, float[K, 3] pv) => (float[?, 3] y)
        <bool no = {{0}}, bool yes = {{1}}, float one = {{1}}> {{
            x = Cast<to = {code}>(px)
            v = Cast<to = {code}>(pv)
            z = org.pytorch.aten.ATen<{attributes}>({inputs})
            y = Cast<to = 1>(z)
        }}""")
        x, v = (ROWS != 0, SOURCE != 0) if dtype == "bool" else (ROWS, SOURCE)
        result = graphfix.fix(model, verify="none", simplify=False).model
        assert "ATen" not in {n.op_type for n in result.graph.node}, dtype
        got = run(result, {"px": ROWS, "i": INDEX, "m": MASK, "e": ELEMENTS, "pv": SOURCE})
        np.testing.assert_array_equal(got, answer(x, v).astype(np.float32), err_msg=dtype)
