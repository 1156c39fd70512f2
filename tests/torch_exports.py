"""Many writes in one model, and whether an exported model answers as PyTorch does."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import numpy as np
import onnx
import torch
from engine import run_all
from torch_writes import WRITES, Write

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
