"""How much two runs of the same computation may differ: by the dtype of an output and by the depth that it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx

from graphfix.protobuf import bodies, used_names

# What one sum, product of matrices or transcendental function may lose when it is computed in another order or by
# another kernel, relative to the element and to the largest element. Several units in the last place of each dtype, and
# well below what rounding to the next narrower dtype loses (5e-4 for float16, 6e-8 for float32), so that a narrowed
# dtype is found. torch.testing.assert_close, which compares one operator, has 1.3e-6 for float32 and 1.6e-2 for
# bfloat16.
BASE: dict[str, float] = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 5e-3,
    "bfloat16": 1.6e-2,
}
_COARSE = 0.25  # the 8-bit and smaller floats: one step of the coarsest
_MOST_GROWTH = 10.0

# Operators that add up many products or many elements: where rounding depends on the order.
_ACCUMULATING = frozenset(
    (
        "Attention",
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "CumProd",
        "CumSum",
        "DFT",
        "DeformConv",
        "Det",
        "Einsum",
        "GRU",
        "Gemm",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GroupNormalization",
        "InstanceNormalization",
        "LRN",
        "LSTM",
        "LayerNormalization",
        "LogSoftmax",
        "LpNormalization",
        "LpPool",
        "MatMul",
        "MeanVarianceNormalization",
        "QLinearConv",
        "QLinearMatMul",
        "RMSNormalization",
        "RNN",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Resize",
        "STFT",
        "ScatterElements",
        "ScatterND",
        "Softmax",
        "Upsample",
    )
)


class Tolerance(NamedTuple):
    """An element may differ by ``absolute + relative * abs(expected)``.

    When ``scaled``, the absolute part is multiplied by the largest finite magnitude of the expected output, if that is
    below one: outputs that are tiny throughout are compared as strictly as others. And by their root mean square, if
    that is above one, where other kernels have made the expected output (PyTorch's): they add up in another order.
    """

    relative: float
    absolute: float
    scaled: bool = True


def tolerance(dtype: str, depth: int = 1, *, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The tolerance of a float dtype behind ``depth`` accumulating operators; ``rtol`` and ``atol`` replace it.

    Both parts start with `BASE` and grow with the square root of the depth, up to 10 times: rounding errors of a chain
    add up like random ones, so that the square root of the constant in the worst-case bound is what is met in practice
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.8). An absolute tolerance that is given
    is not scaled.
    """
    growth = min(math.sqrt(max(depth, 1)), _MOST_GROWTH)
    default = BASE.get(dtype, _COARSE) * (growth if dtype in BASE else 1.0)
    return Tolerance(
        default if rtol is None else rtol,
        default if atol is None else atol,
        scaled=atol is None,
    )


def depths(model: onnx.ModelProto) -> dict[str, int]:
    """For every output of the main graph, the accumulating operators on the longest path that leads to it.

    A node with bodies counts as the deepest of them (a loop as one turn), a call of a local function as its body.
    """
    functions = {(f.domain, f.name): f for f in model.functions}
    known: dict[tuple[str, str], int] = {}

    def of_call(key: tuple[str, str]) -> int:
        if key not in known:
            known[key] = 0  # ends a recursion, which ONNX forbids
            function = functions[key]
            known[key] = _deepest(of_nodes(function.node), function.output)
        return known[key]

    def of_node(node: onnx.NodeProto) -> int:
        if (node.domain, node.op_type) in functions:
            return of_call((node.domain, node.op_type))
        inside = [_deepest(of_nodes(body.node), [o.name for o in body.output]) for body in bodies(node)]
        return max(inside, default=0) + int(node.op_type in _ACCUMULATING)

    def of_nodes(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in nodes:
            depth = of_node(node) + max((found.get(name, 0) for name in used_names(node)), default=0)
            found.update((name, depth) for name in node.output if name)
        return found

    found = of_nodes(model.graph.node)
    return {output.name: found.get(output.name, 0) for output in model.graph.output}


def _deepest(found: Mapping[str, int], names: Iterable[str]) -> int:
    return max((found.get(name, 0) for name in names), default=0)
