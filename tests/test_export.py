"""Export from PyTorch: what is written by index arrives whole, at every size, and every answer is PyTorch's."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import require

import graphfix

torch = require("torch")
pytestmark = pytest.mark.torch

from engine import run_all  # noqa: E402
from torch_writes import SIZES, WRITES, Write  # noqa: E402

UNWANTED = ("ATen", "ScatterND", "ScatterElements", "NonZero")
GROUP = 10  # writes in one model: an export takes as long for ten as for one
GROUPS = [WRITES[k : k + GROUP] for k in range(0, len(WRITES), GROUP)]


class Together(torch.nn.Module):
    """Several functions in one model, each on its own arguments."""

    def __init__(self, writes: list[Write]) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, args):
        return [write.function(*some) for write, some in zip(self.writes, args, strict=True)]


def expected(writes: list[Write], args: Any) -> list[np.ndarray]:
    results = [w.function(*copy.deepcopy(a)) for w, a in zip(writes, args, strict=True)]
    return [t.numpy() for r in results for t in (r if isinstance(r, tuple) else (r,))]


def hold(model: onnx.ModelProto, writes: list[Write], sizes: dict[str, int], seed: int) -> None:
    """The model gives PyTorch's answers on arguments of these sizes."""
    args = [write.make(sizes, seed) for write in writes]
    flat = [tensor.numpy() for tensor in itertools.chain(*args)]
    got = run_all(model, dict(zip((i.name for i in model.graph.input), flat, strict=True)))
    for answer, result in zip(expected(writes, args), got.values(), strict=True):
        assert result.dtype == answer.dtype
        tolerance = 2e-3 if answer.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(result, answer, rtol=tolerance, atol=tolerance)


def unwanted(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node if n.op_type in UNWANTED)


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_writes_of_any_size(group: int) -> None:
    writes = GROUPS[group]
    dims = ([tuple(d or None for d in write.dims()) for write in writes],)
    result = graphfix.export(
        Together(writes), ([write.make(SIZES[0]) for write in writes],), dynamic_shapes=dims, verify="model"
    )
    assert result.report.verification.against == "PyTorch"
    assert sum(unwanted(result.model).values()) == len([w for w in writes if w.kept]) == len(result.report.left)
    for number, sizes in enumerate(SIZES):
        hold(result.model, writes, sizes, number)


@pytest.mark.parametrize(("opset", "part"), [(11, 0), (13, 1), (16, 2), (21, 3)])
def test_writes_of_fixed_size_at_other_opsets(opset: int, part: int) -> None:
    writes = WRITES[part::4]
    args = ([write.make(SIZES[0]) for write in writes],)
    result = graphfix.export(Together(writes), args, opset=opset, verify="model")
    assert [o.version for o in result.model.opset_import if o.domain == ""] == [opset]
    assert not unwanted(result.model)
    hold(result.model, writes, SIZES[0], 0)
