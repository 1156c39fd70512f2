"""Opset conversion: every operator's change, run in ONNX Runtime before and after, and nothing else touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from graphfix import opset
from graphfix.errors import UnsupportedError, UsageError

onnxruntime.set_default_logger_severity(4)
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


IMAGE = normal(2, 3, 6, 7)


@dataclass(frozen=True)
class Case:
    """A one-node model: ``inputs`` are fed, ``constants`` are initializers by input position."""

    op: str
    opset: int
    inputs: tuple = ()
    constants: dict[int, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    tolerance: float = 0.0

    def __str__(self) -> str:
        shapes = "x".join(str(list(i.shape)) for i in self.inputs)
        constants = {p: None if v is None else v.tolist() for p, v in self.constants.items()}
        return f"{self.op}{self.opset}{shapes}{constants or ''}{self.attributes or ''}".replace(" ", "")

    def model(self, *, dynamic: bool = False) -> tuple[ModelProto, dict[str, np.ndarray]]:
        count = max([len(self.inputs), *(p + 1 for p in self.constants)])
        names, feeds, graph = [], {}, onnx.GraphProto(name="g")
        free = iter(self.inputs)
        for position in range(count):
            if position in self.constants:
                value = self.constants[position]
                names.append("" if value is None else f"c{position}")
                if value is not None:
                    graph.initializer.append(numpy_helper.from_array(value, names[-1]))
                continue
            value = next(free)
            names.append(f"x{position}")
            feeds[names[-1]] = value
            shape = [f"d{position}_{i}" for i in range(value.ndim)] if dynamic else value.shape
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(helper.make_tensor_value_info(names[-1], kind, shape))
        names += [f"x{count + i}" for i, _ in enumerate(free)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="n")
        for key, value in self.attributes.items():
            kind = onnx.AttributeProto.INTS if value == [] else None
            node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
        graph.node.append(node)
        graph.output.extend(onnx.ValueInfoProto(name=o) for o in outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8), feeds


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, 11)  # what the oldest supported ONNX Runtime reads
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def check(case: Case, target: int, *, dynamic: bool = False) -> ModelProto:
    model, feeds = case.model(dynamic=dynamic)
    expected = run(model, feeds)
    opset.convert(model, target)
    assert opset.opset_version(model) == target
    assert [o.name for o in model.graph.output] == [f"y{i}" for i in range(case.outputs)]
    assert any(n.name == "n" for n in model.graph.node)
    read = {name for node in model.graph.node for name in node.input}
    assert all(t.name in read for t in model.graph.initializer)
    for one, other in zip(expected, run(model, feeds), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if case.tolerance:
            np.testing.assert_allclose(other, one, rtol=case.tolerance, atol=case.tolerance)
        else:
            np.testing.assert_array_equal(other, one)
    return model


SPECIAL = np.array([[1.5, -2, np.inf, -np.inf, np.nan, 0]], np.float32)
SCALES = np.array([1, 1, 2, 2.5], np.float32)
EMPTY = np.zeros(0, np.float32)
STATISTICS = tuple(np.abs(normal(3)) for _ in range(4))
LSTM_SHAPES = (normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4))

UP = [
    (Case("BatchNormalization", 7, (IMAGE, *STATISTICS), attributes={"epsilon": 1e-3}), (9, 14, 21)),
    (Case("BatchNormalization", 8, (IMAGE, *STATISTICS), attributes={"spatial": 1}), (9,)),
    (Case("Upsample", 7, (IMAGE,), attributes={"scales": [1.0, 1.0, 2.0, 3.0]}), (9, 10, 11, 13, 18)),
    (Case("Upsample", 9, (IMAGE,), {1: SCALES}, {"mode": "nearest"}), (10, 11, 13, 21)),
    (Case("Upsample", 9, (IMAGE,), {1: SCALES}, {"mode": "linear"}, tolerance=1e-6), (10, 11, 13, 21)),
    (Case("Resize", 10, (IMAGE,), {1: np.array([1, 1, 0.6, 0.7], np.float32)}), (11, 13, 18, 19)),
    (Case("Resize", 10, (IMAGE,), {1: np.array([1, 1, 2, 0.5], np.float32)}), (11, 19)),
    (Case("Resize", 10, (IMAGE,), {1: np.array([1, 1, 0.6, 1.7], np.float32)}, {"mode": "linear"}), (11, 19)),
    (Case("Resize", 11, (IMAGE,), {1: EMPTY, 2: EMPTY, 3: np.array([2, 3, 9, 4])}), (13, 18, 19)),
    (Case("Resize", 11, (IMAGE,), {1: EMPTY, 2: SCALES}, {"mode": "cubic"}, tolerance=1e-5), (13, 18, 19)),
    (Case("Slice", 9, (IMAGE,), {}, {"starts": [1, -3], "ends": [3, 2**31 - 1], "axes": [1, 3]}), (10, 11, 13)),
    (Case("Slice", 9, (IMAGE,), {}, {"starts": [1], "ends": [2]}), (10, 13)),
    (Case("TopK", 9, (IMAGE,), {}, {"k": 2, "axis": 1}, 2), (10, 11, 24)),
    (Case("Clip", 9, (SPECIAL,)), (11, 12, 13)),
    (Case("Clip", 9, (SPECIAL,), {}, {"min": 0.0}), (11, 13)),
    (Case("Clip", 9, (SPECIAL,), {}, {"max": 1.0}), (11, 13)),
    (Case("Clip", 9, (SPECIAL,), {}, {"min": 0.0, "max": 6.0}), (11, 13)),
    (Case("Clip", 9, (SPECIAL.astype(np.float16),), {}, {"min": 0.0, "max": 6.0}), (11, 13)),
    (Case("Pad", 9, (IMAGE,), {}, {"pads": [0, 1, 2, 0, 0, 1, 0, 3]}), (11, 13, 18, 19, 21)),
    (Case("Pad", 9, (IMAGE,), {}, {"pads": [0, 0, -1, 0, 0, 0, 0, 3], "value": 2.5}), (11, 13, 18)),
    (Case("Pad", 9, (IMAGE,), {}, {"pads": [0, 0, 2, 1, 0, 0, 1, 2], "mode": "reflect"}), (11, 13, 18)),
    (Case("Pad", 10, (IMAGE,), {}, {"pads": [0, 0, 2, 1, 0, 0, 1, 2], "mode": "edge"}), (11, 18)),
    (Case("Scatter", 9, (IMAGE, np.array([[[[1, -2]]]]), normal(1, 1, 1, 2)), {}, {"axis": 2}), (11, 13, 16, 18)),
    (Case("Dropout", 7, (IMAGE,), {}, {"ratio": 0.25}), (10, 12, 13, 22)),
    (Case("ReduceSum", 9, (IMAGE,), {}, {"axes": [1, 3], "keepdims": 0}, tolerance=1e-6), (11, 13)),
    (Case("ReduceSum", 11, (IMAGE,), {}, {"keepdims": 0}, tolerance=1e-6), (13,)),
    (Case("ReduceSum", 11, (IMAGE,), {}, {"axes": [], "keepdims": 1}, tolerance=1e-6), (13,)),
    *[
        (Case(op, 11, (np.abs(IMAGE),), {}, {"axes": [-1, 1], "keepdims": 0}, tolerance=1e-5), (13, 18, 20))
        for op in opset._REDUCTIONS
    ],
    (Case("ReduceMax", 13, (IMAGE,), {}, {}), (18, 20)),
    (Case("Squeeze", 11, (normal(1, 3, 1),), {}, {"axes": [-1]}), (13, 21)),
    (Case("Squeeze", 9, (normal(1, 3, 1),)), (11, 13)),
    (Case("Unsqueeze", 9, (IMAGE,), {}, {"axes": [0, 2]}), (11, 13, 21)),
    (Case("Split", 9, (IMAGE,), {}, {"axis": 3, "split": [3, 4]}, 2), (11, 13, 18)),
    (Case("Split", 9, (IMAGE,), {}, {"axis": 2}, 3), (11, 13, 18)),
    *[
        (Case(op, 11, (normal(*shape),), {}, {} if axis is None else {"axis": axis}, tolerance=1e-6), (13, 18))
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for shape, axis in (
            ((3, 4), None),
            ((2, 3, 4), None),
            ((2, 3, 4), 2),
            ((2, 3, 4), -1),
            ((2, 3, 4), -2),
            ((2, 3, 4), 0),
            ((2, 3, 1, 1), 1),
            ((2, 1, 4, 1), 1),
            ((4,), 0),
        )
    ],
    (Case("Softmax", 9, (normal(2, 3, 4),), {}, {"axis": 1}, tolerance=1e-6), (11, 13)),
    (
        Case(
            "RoiAlign",
            10,
            (normal(1, 2, 8, 8), np.array([[0, 0, 5, 5], [1, 1, 7.5, 6]], np.float32), np.zeros(2, np.int64)),
            {},
            {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.9},
            tolerance=1e-6,
        ),
        (16,),
    ),
    *[
        (
            Case("GridSample", 16, (normal(1, 2, 5, 5), normal(1, 3, 3, 2)), {}, {"mode": mode}, tolerance=1e-6),
            (20, 22),
        )
        for mode in ("bilinear", "nearest", "bicubic")
    ],
    (Case("DFT", 17, (normal(1, 6, 2),), {}, {"axis": 1}, tolerance=1e-5), (20,)),
    (
        Case("GroupNormalization", 18, (normal(2, 6, 3, 3), normal(2), normal(2)), {}, {"num_groups": 2}, 1, 1e-5),
        (21,),
    ),
    *[
        (
            Case(
                "AveragePool",
                10,
                (IMAGE,),
                {},
                {
                    "kernel_shape": [3, 2],
                    "strides": [2, 2],
                    "pads": [1, 1, 1, 1],
                    "ceil_mode": ceil,
                    "count_include_pad": pad,
                },
                tolerance=1e-6,
            ),
            (11, 19, 22),
        )
        for ceil in (0, 1)
        for pad in (0, 1)
    ],
    (
        Case("MaxPool", 8, (IMAGE,), {}, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 2),
        (10, 11, 12, 22),
    ),
    (Case("MaxPool", 10, (IMAGE,), {}, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}), (11, 12, 22)),
    (Case("Conv", 9, (IMAGE, normal(4, 3, 3, 3), normal(4)), {}, {"pads": [1, 1, 1, 1]}, tolerance=1e-5), (11, 22)),
    (Case("ConvTranspose", 9, (IMAGE, normal(3, 2, 3, 3)), {}, {"strides": [2, 2]}, tolerance=1e-5), (11, 22)),
    (Case("Gemm", 9, (normal(2, 3), normal(4, 3), normal(4)), {}, {"transB": 1}, tolerance=1e-5), (11, 13)),
    (Case("OneHot", 9, (np.array([0, -1, 5]),), {1: np.array(4), 2: np.array([0, 1], np.float32)}), (11,)),
    (Case("Gather", 9, (IMAGE, np.array([1, -1])), {}, {"axis": 1}), (11, 13)),
    (Case("ArgMax", 9, (IMAGE,), {}, {"axis": 1}), (11, 12, 13)),
    (Case("LSTM", 9, LSTM_SHAPES, {}, {"hidden_size": 4}, 3, 1e-5), (14, 22)),
    (Case("GRU", 9, (LSTM_SHAPES[0], normal(1, 12, 3), normal(1, 12, 4)), {}, {"hidden_size": 4}, 2, 1e-5), (14, 22)),
    (Case("DepthToSpace", 9, (normal(1, 8, 2, 3),), {}, {"blocksize": 2}), (11, 13)),
    (Case("Reshape", 9, (IMAGE,), {1: np.array([0, -1])}), (13, 14, 21)),
    (Case("Equal", 7, (np.array([1, 2]), np.array([1, 3]))), (11, 13, 19)),
    (Case("Cast", 9, (SPECIAL[:, :2],), {}, {"to": TensorProto.INT64}), (13, 19, 24)),
    (Case("Pow", 7, (np.abs(IMAGE), normal(1)), tolerance=1e-5), (12, 13, 15)),
    (Case("Mod", 10, (np.array([5, -5]), np.array([3, 3]))), (13,)),
    (Case("QuantizeLinear", 10, (IMAGE,), {1: np.float32(0.1).reshape(()), 2: np.array(3, np.uint8)}), (13, 19, 21)),
    (Case("DequantizeLinear", 10, (np.arange(6, dtype=np.uint8),), {1: np.array(0.1, np.float32)}), (13, 19, 21)),
    (Case("Shape", 9, (IMAGE,)), (13, 15, 21)),
    (Case("LpPool", 11, (IMAGE,), {}, {"kernel_shape": [2, 2]}, tolerance=1e-5), (18, 22)),
    (Case("InstanceNormalization", 9, (IMAGE, normal(3), normal(3)), tolerance=1e-5), (22,)),
    (Case("Max", 8, (normal(3, 1), normal(4))), (12, 13)),
    (Case("NonZero", 9, (SPECIAL[:, :2],)), (13,)),
]


def runs_since_1_29(case: Case, target: int) -> bool:
    """Opset 24, and two attributes that the older ONNX Runtime gets wrong."""
    counts_padding = case.attributes.get("ceil_mode") == case.attributes.get("count_include_pad") == 1
    return target >= 24 or counts_padding or "noop_with_empty_axes" in case.attributes


def expand(table: list[tuple[Case, tuple[int, ...]]]) -> list[Any]:
    return [
        pytest.param(c, t, marks=[pytest.mark.onnxruntime_1_29] if runs_since_1_29(c, t) else [])
        for c, targets in table
        for t in targets
    ]


@pytest.mark.parametrize(("case", "target"), expand(UP), ids=str)
def test_up(case: Case, target: int) -> None:
    check(case, target)


@pytest.mark.parametrize(
    "case",
    [c for c, _ in UP if c.op in ("Softmax", "LogSoftmax", "Hardmax", "Split", "Slice", "Pad", "Clip", "Upsample")],
    ids=str,
)
def test_up_with_dynamic_shapes(case: Case) -> None:
    check(case, 13, dynamic=True)


DOWN = [
    (Case("Clip", 13, (SPECIAL,), {1: np.float32(0).reshape(()), 2: np.float32(6).reshape(())}), (12, 11, 10, 9)),
    (Case("Clip", 13, (SPECIAL,), {1: None, 2: np.float32(6).reshape(())}), (11, 10, 9)),
    (Case("Clip", 13, (np.arange(-4, 9),), {1: np.array(0), 2: np.array(5)}), (12, 11)),
    (Case("Clip", 13, (np.arange(-4, 9),), {1: np.array(2)}), (11,)),
    (Case("Max", 13, (np.array([1, 5, 3]), np.array([[2], [4]]), np.array(3))), (11,)),
    (Case("Min", 13, (np.array([1, 5, 3]), np.array([2, 2, 9]))), (11,)),
    (
        Case("Pad", 19, (IMAGE,), {1: np.array([0, 1, 2, 0, 0, 1, 0, 3]), 2: np.array(2.5, np.float32)}),
        (18, 13, 11, 10),
    ),
    (Case("Pad", 18, (IMAGE,), {1: np.array([2, 0, 1, 3]), 2: None, 3: np.array([-2, 3])}), (17, 13, 11, 9)),
    (Case("ReduceSum", 13, (IMAGE,), {1: np.array([1, -1])}, {"keepdims": 0}, tolerance=1e-6), (12, 11, 10)),
    (Case("ReduceSum", 13, (IMAGE,), tolerance=1e-6), (11,)),
    (Case("ReduceSum", 13, (IMAGE,), {}, {"noop_with_empty_axes": 1}), (11,)),
    *[
        (Case(op, 18, (np.abs(IMAGE),), {1: np.array([1, -1])}, {"keepdims": 0}, tolerance=1e-5), (17, 13, 11, 10))
        for op in opset._REDUCTIONS
    ],
    (Case("Squeeze", 21, (normal(1, 3, 1),), {1: np.array([-1])}), (13, 11, 10)),
    (Case("Unsqueeze", 21, (IMAGE,), {1: np.array([0, -1])}), (13, 11, 10)),
    (Case("Split", 18, (IMAGE,), {1: np.array([3, 4])}, {"axis": -1}, 2), (13, 11, 10)),
    (Case("Split", 18, (IMAGE,), {}, {"axis": 3, "num_outputs": 2}, 2), (13, 11)),
    (Case("Split", 18, (IMAGE,), {}, {"axis": 2, "num_outputs": 3}, 3), (13, 11)),
    *[
        (Case(op, 13, (normal(*shape),), {}, {} if axis is None else {"axis": axis}, tolerance=1e-6), (12, 11, 10))
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for shape, axis in (((2, 3, 4), None), ((2, 3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), -2), ((2, 3, 1, 1), 1))
    ],
    (Case("GridSample", 20, (normal(1, 2, 5, 5), normal(1, 3, 3, 2)), {}, {"mode": "cubic"}, tolerance=1e-6), (16,)),
    (Case("GridSample", 22, (normal(1, 2, 5, 5), normal(1, 3, 3, 2)), tolerance=1e-6), (16,)),
    (Case("DFT", 20, (normal(1, 6, 2),), {1: None, 2: np.array(1)}, tolerance=1e-5), (17,)),
    (Case("Resize", 19, (IMAGE,), {1: None, 2: SCALES}, {"mode": "cubic"}, tolerance=1e-5), (18, 13, 11)),
    (Case("Resize", 19, (IMAGE,), {1: None, 2: None, 3: np.array([2, 3, 9, 4])}), (18, 13, 11)),
    (Case("Resize", 18, (IMAGE,), {1: None, 2: SCALES[2:]}, {"axes": [2, 3]}), (17, 13, 11)),
    (Case("Resize", 18, (IMAGE,), {1: None, 2: None, 3: np.array([9, 4])}, {"axes": [2, 3]}), (17, 13, 11)),
    (
        Case(
            "Resize",
            13,
            (IMAGE,),
            {1: None, 2: SCALES},
            {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        (11, 10, 9),
    ),
    (
        Case(
            "Resize",
            13,
            (IMAGE,),
            {1: None, 2: SCALES},
            {"coordinate_transformation_mode": "asymmetric", "mode": "linear"},
            tolerance=1e-6,
        ),
        (11, 10, 9),
    ),
    (Case("TopK", 11, (IMAGE,), {1: np.array([2])}, {"axis": 1}, 2), (10, 9)),
    (Case("Slice", 13, (IMAGE,), {1: np.array([1]), 2: np.array([2**62]), 3: np.array([-1])}), (11, 10, 9)),
    (Case("Dropout", 13, (IMAGE,), {1: np.array(0.25, np.float32)}), (12, 11, 10, 9)),
    (Case("BatchNormalization", 15, (IMAGE, *STATISTICS), {}, {"training_mode": 0}, tolerance=1e-6), (14, 13, 9)),
    (Case("Reshape", 14, (IMAGE,), {1: np.array([0, -1])}, {"allowzero": 0}), (13,)),
    (Case("Reshape", 14, (IMAGE,), {1: np.array([2, -1])}, {"allowzero": 1}), (13, 9)),
    (Case("Shape", 15, (IMAGE,), {}, {"start": 1}), (14, 13)),
    (Case("Shape", 15, (IMAGE,), {}, {"start": -3, "end": -1}), (13, 11)),
    (Case("Constant", 13, (), {}, {"value_ints": [1, 2]}), (11, 9)),
    (Case("Constant", 13, (), {}, {"value_float": 2.5}), (12, 11)),
    (Case("Gemm", 11, (normal(2, 3), normal(3, 4)), tolerance=1e-6), (9,)),
    (Case("ScatterElements", 18, (normal(3, 4), np.array([[1, 2]]), normal(1, 2)), {}, {"axis": -1}), (13, 11, 10)),
    (Case("GreaterOrEqual", 16, (SPECIAL, SPECIAL[:, ::-1].copy())), (11,)),
    (Case("LessOrEqual", 12, (np.array([1, 2, 3]), np.array(2))), (11, 9)),
    (Case("Celu", 12, (SPECIAL,), {}, {"alpha": 0.7}, tolerance=1e-6), (11,)),
    (Case("Trilu", 14, (normal(2, 3, 4),), {}, {"upper": 0}), (13, 12, 11)),
    (Case("Trilu", 14, (normal(4, 3), np.array(-1))), (13,)),
    (Case("HardSwish", 14, (IMAGE,), tolerance=1e-6), (13, 11)),
    (Case("CastLike", 15, (np.array([1.7, -2.2], np.float32), np.array([1]))), (13,)),
    (Case("LayerNormalization", 17, (normal(2, 3, 4), normal(4), normal(4)), tolerance=1e-5), (16, 13, 11, 9)),
    (Case("LayerNormalization", 17, (normal(2, 3, 4), normal(3, 4)), {}, {"axis": 1}, 3, 1e-5), (13,)),
    (
        Case("LayerNormalization", 17, (normal(2, 4, dtype="float16"), normal(4, dtype="float16")), tolerance=1e-2),
        (13,),
    ),
    (Case("Mish", 18, (IMAGE,), tolerance=1e-5), (17, 11)),
    (Case("Gelu", 20, (IMAGE,), tolerance=1e-5), (18, 13, 11)),
    (Case("Gelu", 20, (IMAGE,), {}, {"approximate": "tanh"}, tolerance=1e-5), (13,)),
    (
        Case("GroupNormalization", 21, (normal(2, 6, 3, 3), normal(6), normal(6)), {}, {"num_groups": 2}, 1, 1e-5),
        (20, 17, 13, 11),
    ),
    (Case("AveragePool", 19, (IMAGE,), {}, {"kernel_shape": [2, 2], "dilations": [1, 1]}, tolerance=1e-6), (11, 10)),
    (Case("Cast", 19, (SPECIAL[:, :2],), {}, {"to": TensorProto.INT64, "saturate": 1}), (13, 9)),
    (
        Case(
            "QuantizeLinear",
            21,
            (IMAGE,),
            {1: np.array(0.1, np.float32), 2: np.array(3, np.int8)},
            {"axis": 1, "output_dtype": TensorProto.INT8},
        ),
        (19, 13, 10),
    ),
    (Case("QuantizeLinear", 21, (IMAGE,), {1: np.array(0.1, np.float32)}, {"output_dtype": TensorProto.INT8}), (13,)),
    (Case("LSTM", 14, LSTM_SHAPES, {}, {"hidden_size": 4, "layout": 0}, 3, 1e-5), (13, 11)),
    (Case("ArgMax", 13, (IMAGE,), {}, {"axis": -1, "select_last_index": 0}), (12, 11, 10)),
    (Case("Concat", 13, (IMAGE, IMAGE), {}, {"axis": -1}), (11, 10)),
    (Case("Relu", 14, (IMAGE,)), (13, 11)),
]


@pytest.mark.parametrize(("case", "target"), expand(DOWN), ids=str)
def test_down(case: Case, target: int) -> None:
    check(case, target)


@pytest.mark.parametrize(
    ("case", "target", "reason"),
    [
        (Case("Relu", 14, (np.array([1, -2]),)), 13, "int64"),
        (Case("Equal", 11, (IMAGE, IMAGE)), 10, "float"),
        (Case("Clip", 12, (SPECIAL, np.array(0, np.float32))), 10, "its minimum is not constant"),
        (Case("Reshape", 14, (normal(0, 3),), {1: np.array([3, 0])}, {"allowzero": 1}), 13, "allowzero"),
        (Case("Einsum", 12, (normal(3, 3),), {}, {"equation": "ij->ji"}), 11, "came with opset 12"),
        (Case("ScatterElements", 16, (normal(3), np.array([0]), normal(1)), {}, {"reduction": "add"}), 13, "reduction"),
        (Case("TopK", 11, (IMAGE,), {1: np.array([2])}, {"largest": 0}, 2), 10, "largest=0"),
        (Case("Resize", 19, (IMAGE,), {1: None, 2: SCALES}, {"antialias": 1, "mode": "linear"}), 13, "antialias=1"),
        (Case("Resize", 10, (IMAGE,), {1: np.array([1, 1, 2.3, 0.7], np.float32)}), 11, "round differently"),
        (Case("BatchNormalization", 8, (IMAGE, *STATISTICS), {}, {"spatial": 0}), 9, "spatial=0"),
        (Case("BatchNormalization", 9, (IMAGE, *STATISTICS), {}, {}, 5), 14, "training mode"),
        (Case("Dropout", 10, (IMAGE,), {}, {}, 2), 12, "mask"),
        (Case("Erf", 9, (np.array([1, 2]),)), 13, "int64"),
        (Case("MaxPool", 10, (IMAGE,), {}, {"kernel_shape": [2, 2], "ceil_mode": 1}), 8, "came with|no equivalent"),
        (Case("GridSample", 20, (normal(1, 2, 3, 3, 3), normal(1, 2, 2, 2, 3))), 16, "4 dims"),
        (Case("Unsqueeze", 13, (IMAGE, np.array([0]))), 11, "its axes is not constant"),
    ],
    ids=str,
)
def test_refuses_what_has_no_equivalent(case: Case, target: int, reason: str) -> None:
    model, _ = case.model()
    before = model.SerializeToString()
    with pytest.raises(UnsupportedError, match=reason) as caught:
        opset.convert(model, target)
    message = str(caught.value)
    assert message.startswith(f"cannot convert node 'n' ({case.op}) from opset {case.opset} to {target}: ")
    assert "\n" not in message
    assert model.SerializeToString() == before


def test_refuses_an_opset_that_does_not_exist() -> None:
    model, _ = UP[0][0].model()
    for target in (0, 999):
        with pytest.raises(UsageError, match=f"no opset {target}"):
            opset.convert(model, target)


def test_softmax_stays_one_node_where_it_can() -> None:
    for shape, axis, want in (((2, 3), 1, -1), ((2, 3, 1, 1), 1, 1), ((2, 1, 4), 1, -1)):
        model = check(Case("Softmax", 11, (normal(*shape),), {}, {"axis": axis}, tolerance=1e-6), 13)
        assert [(n.op_type, n.attribute[0].i) for n in model.graph.node] == [("Softmax", want)]


# ------------------------------------------------------------------------------------------------ whole models


def test_nothing_else_changes() -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 9, "my.domain" : 3], producer_name: "me", model_version: 7,
         doc_string: "about", metadata_props: ["k": "v"]>
        g (float[N, 4] x) => (float[N, 4] y) {
            [u] a = Clip <min: float = 0.0> (x)
            b = my.domain.Thing <axes: ints = [1]> (a)
            c = ATen <operator = "index_put"> (b, a, a)
            [e] y = Relu(c)
        }
        """
    )
    model.graph.doc_string = "graph"
    model.graph.metadata_props.add(key="g", value="h")
    clip = model.graph.node[0]
    clip.doc_string = "clip"
    clip.metadata_props.add(key="a", value="b")
    expected = ModelProto()
    expected.CopyFrom(model)
    opset.convert(model, 11)
    bound = model.graph.initializer[0]
    assert (bound.name, numpy_helper.to_array(bound).tolist()) == ("u/graphfix/opset/0", 0.0)
    expected.opset_import[0].version = 11
    expected.graph.initializer.append(bound)
    expected.graph.node[0].input.append(bound.name)
    del expected.graph.node[0].attribute[:]
    assert model == expected


def test_the_same_opset_changes_nothing_at_all() -> None:
    model, _ = UP[0][0].model()
    model.ir_version = 3
    before = model.SerializeToString()
    opset.convert(model, 7)
    assert model.SerializeToString() == before


def test_new_names_never_collide() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 9]> g (float[2] x) => (y, z) {'
        "y = Clip <min: float = 0.0> (x)  z = Clip <max: float = 1.0> (x)}"
    )
    model.graph.node[1].name = "y"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "y/graphfix/opset/0"))
    opset.convert(model, 11)
    names = [t.name for t in model.graph.initializer]
    assert len(names) == len(set(names)) == 3
    assert [v.tolist() for v in run(model, {"x": np.array([-1, 3], np.float32)})] == [[0, 3], [-1, 1]]


def test_ir_version_rises_only_as_far_as_needed() -> None:
    for ir, target, want in ((3, 11, 6), (8, 11, 8), (4, 21, 10), (3, 9, 4)):
        model, _ = Case("Relu", 8, (IMAGE,)).model()
        model.ir_version = ir
        opset.convert(model, target)
        assert model.ir_version == want


def test_ir_3_initializers_that_are_inputs_are_constants() -> None:
    model = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 9]> g (float[1, 1, 2, 2] x, float[4] s) => (y) {y = Upsample(x, s)}'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s"))
    opset.convert(model, 11)
    assert [i.name for i in model.graph.input] == ["x", "s"]
    assert run(model, {"x": np.zeros((1, 1, 2, 2), np.float32)})[0].shape == (1, 1, 4, 4)


BODIES = """
<ir_version: 8, opset_import: ["" : 11, "my.domain" : 1]>
g (bool c, float[2, 1, 3] x, int64 trip) => (y, z, w)
<int64[1] one = {1}>
{
    y = If(c) <
        then_branch = p () => (u) { u = Squeeze <axes: ints = [1]> (x) },
        else_branch = q () => (v) { s = Neg(x)  v = Squeeze <axes: ints = [1]> (s) }
    >
    z = Loop(trip, c, x) <
        body = b (int64 i, bool k, float[2, 1, 3] t) => (k2, t2) {
            k2 = Identity(k)
            e = ReduceSum <axes: ints = [2]> (t)
            t2 = Add(e, x)
        }
    >
    w = my.domain.f(x)
}
<domain: "my.domain", opset_import: ["" : 11]>
f (a) => (r) { r = ReduceSum <axes: ints = [0], keepdims: int = 0> (a) }
"""


@pytest.mark.parametrize("target", [13, 18, 21])
def test_subgraphs_and_functions(target: int) -> None:
    model = parser.parse_model(BODIES)
    for choice in (True, False):
        feeds = {"c": np.array(choice), "x": normal(2, 1, 3), "trip": np.array(3)}
        before = parser.parse_model(BODIES)
        expected = run(before, feeds)
        model = parser.parse_model(BODIES)
        opset.convert(model, target)
        assert model.functions[0].opset_import[0].version == target
        assert [n.op_type for n in model.functions[0].node] == ["Constant", "ReduceSum"]
        for one, other in zip(expected, run(model, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
        opset.convert(model, 11)
        assert [n.op_type for n in model.functions[0].node] == ["ReduceSum"]
        assert not model.graph.node[0].attribute[0].g.initializer
        for one, other in zip(expected, run(model, feeds), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_function_has_an_opset_of_its_own() -> None:
    model = parser.parse_model(BODIES)
    model.functions[0].opset_import[0].version = 13
    model.functions[0].node[0].attribute.pop(0)
    model.functions[0].node[0].input.append("k")
    model.functions[0].node.insert(0, helper.make_node("Constant", [], ["k"], value_ints=[0]))
    opset.convert(model, 11)
    feeds = {"c": np.array(True), "x": normal(2, 1, 3), "trip": np.array(0)}
    np.testing.assert_array_equal(run(model, feeds)[2], run(parser.parse_model(BODIES), feeds)[2])


def test_attributes_of_functions_are_refused_not_guessed() -> None:
    text = BODIES.replace("my.domain.f(x)", "my.domain.f <ax: ints = [0]> (x)")
    text = text.replace("f (a)", "f <ax> (a)").replace("axes: ints = [0], keepdims: int = 0", "axes: ints = @ax")
    model = parser.parse_model(text)
    with pytest.raises(UnsupportedError, match="attribute of the local function"):
        opset.convert(model, 13)


def test_a_constant_shared_by_nodes_stays_while_it_is_read() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[1, 3] x) => (y, z) <int64[1] k = {0}> { y = Squeeze(x, k)  z = Unsqueeze(x, k) }
    """
    model = parser.parse_model(text)
    opset.convert(model, 11)
    assert not model.graph.initializer
    model = parser.parse_model(text.replace("z = Unsqueeze(x, k)", "z = Gather(x, k)"))
    opset.convert(model, 11)
    assert [t.name for t in model.graph.initializer] == ["k"]


def test_old_broadcasting() -> None:
    model = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> g (float[2, 3, 4] x, float[3] b) => (float[2, 3, 4] y) '
        "{ [n] y = Add <broadcast: int = 1, axis: int = 1> (x, b) }"
    )
    x, b = normal(2, 3, 4), normal(3)
    opset.convert(model, 11)
    np.testing.assert_array_equal(run(model, {"x": x, "b": b})[0], x + b[:, None])
    assert [n.name for n in model.graph.node][-1] == "n"


def test_steps_without_a_rule_go_through_onnx() -> None:
    model = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> g (float[2, 3] x, float[3, 4] w, float[4] b) => (float[2, 4] y) '
        "{ [m] p = Gemm <broadcast: int = 1> (x, w, b)  [n] y = Dropout <is_test: int = 1, ratio: float = 0.5> (p) }"
    )
    x, w, b = normal(2, 3), normal(3, 4), normal(4)
    opset.convert(model, 11)
    assert [(n.op_type, n.name) for n in model.graph.node] == [("Gemm", "m"), ("Dropout", "n")]
    np.testing.assert_allclose(run(model, {"x": x, "w": w, "b": b})[0], x @ w + b, rtol=1e-5, atol=1e-6)


def test_a_small_network_of_opset_9_runs_the_same_at_all_opsets() -> None:
    text = """
    <ir_version: 6, opset_import: ["" : 9]>
    g (float[B, 3, 8, 8] x) => (float[B, 5] y, float[B, 4, 16, 16] u)
    {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        n = BatchNormalization <epsilon: float = 0.001> (c, s, s, s, s)
        r = Clip <min: float = 0.0, max: float = 6.0> (n)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        d = Pad <mode = "constant", pads = [0, 0, 1, 1, 0, 0, 1, 1], value: float = 0.0> (p)
        t = Slice <axes = [2, 3], starts = [1, 1], ends = [5, 5]> (d)
        u = Upsample <mode = "nearest"> (t, k)
        a = AveragePool <kernel_shape = [4, 4], count_include_pad: int = 1> (t)
        f = Flatten <axis: int = 1> (a)
        q = Gemm <transB: int = 1> (f, m, v)
        y = Softmax <axis: int = 1> (q)
    }
    """
    model = parser.parse_model(text)
    for name, value in (
        ("w", normal(4, 3, 3, 3)),
        ("s", np.abs(normal(4))),
        ("k", np.array([1, 1, 4, 4], np.float32)),
        ("m", normal(5, 4)),
        ("v", normal(5)),
    ):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    x = normal(2, 3, 8, 8)
    expected = run(model, {"x": x})
    for target in (10, 11, 13, 15, 16, 17, 18, 21, 17, 13, 11, 9):  # up, and back down, one after the other
        opset.convert(model, target)
        for one, other in zip(expected, run(model, {"x": x}), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in parser.parse_model(text).graph.node]
