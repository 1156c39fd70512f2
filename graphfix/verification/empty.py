"""Which models may be run with a dim of size 0.

ONNX Runtime's kernels for recurrent layers, convolutions and others end the process there (a division by zero, or an
exception in a thread of its own), so that it may be tried only where every operator is known to answer or to refuse.
"""

from __future__ import annotations

import onnx

from graphfix.protobuf import all_nodes
from graphfix.reference.program import needs_kernel

# Run in ONNX Runtime 1.32 and 1.29 with shapes [0, 4], [3, 0] and [0, 0]. (TopK ends the process in 1.29.)
_SAFE = frozenset(
    (
        "Abs",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "BatchNormalization",
        "Cast",
        "Ceil",
        "Clip",
        "Compress",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Cos",
        "CumSum",
        "Div",
        "Dropout",
        "DynamicSlice",
        "Einsum",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gelu",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "If",
        "IsInf",
        "IsNaN",
        "LayerNormalization",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "LogSoftmax",
        "Loop",
        "MatMul",
        "Max",
        "Mean",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "PRelu",
        "Pad",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "Reshape",
        "Round",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "SequenceAt",
        "SequenceConstruct",
        "Shape",
        "Sigmoid",
        "Sign",
        "Sin",
        "Size",
        "Slice",
        "Softmax",
        "Softplus",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "Tile",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "Where",
        "Xor",
    )
)


def takes_empty(model: onnx.ModelProto) -> bool:
    """Whether every operator of a model is known to survive a dim of size 0."""
    functions = {(f.domain, f.name) for f in model.functions}
    return all(
        needs_kernel(node)
        or (node.domain, node.op_type) in functions
        or (node.domain in ("", "ai.onnx") and node.op_type in _SAFE)
        for node in all_nodes(model)
    )
