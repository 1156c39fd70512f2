"""The ATen operators beside index_put, over random arguments, element types, opsets and sizes, held against NumPy and
PyTorch. Zeros are compared without their signs: ONNX Runtime's Where returns +0.0 for a chosen -0.0."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from aten_op_cases import ALL, Case, SliceCase
from hypothesis import HealthCheck, given, settings

import graphfix

SETTINGS = settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck), print_blob=True)
TOLERANCE = {2: 2e-2, 4: 1e-5, 8: 1e-12}


def run(model, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in feeds.items() if k in known})[0]


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


@pytest.mark.parametrize("cases", ALL.values(), ids=ALL)
def test_like_numpy(cases) -> None:
    @SETTINGS
    @given(cases)
    def hold(case) -> None:
        check(case, case.answer())

    hold()


@pytest.mark.torch
@pytest.mark.parametrize("cases", [v for k, v in ALL.items() if k != "slices"], ids=[k for k in ALL if k != "slices"])
def test_like_torch(cases) -> None:
    import torch

    @SETTINGS
    @given(cases)
    def hold(case: Case) -> None:
        check(case, case.torch_answer(torch))

    hold()
