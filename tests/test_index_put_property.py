"""ATen index_put over random ranks, indices, element types, opsets and sizes, held against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from engine import run
from hypothesis import HealthCheck, given, settings
from index_put_cases import Case, cases

import graphfix

SETTINGS = settings(deadline=None, max_examples=250, suppress_health_check=list(HealthCheck), print_blob=True)


def check(case: Case, answer: np.ndarray) -> None:
    fixed = graphfix.fix(case.model(), verify="none", simplify=False)
    assert all(n.op_type != "ATen" for n in fixed.model.graph.node)
    got = run(fixed.model, case.feeds())
    assert got.dtype == answer.dtype
    if case.accumulate and answer.dtype.kind == "f":
        tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-12}[answer.dtype.itemsize]
        np.testing.assert_allclose(got, answer, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, answer)


@SETTINGS
@given(cases())
def test_like_numpy(case: Case) -> None:
    check(case, case.answer())


@pytest.mark.torch
@SETTINGS
@given(cases())
def test_like_torch(case: Case) -> None:
    import torch

    check(case, case.torch_answer(torch))
