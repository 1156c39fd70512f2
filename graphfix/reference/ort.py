"""One standard ONNX model in ONNX Runtime on the CPU, with what NumPy and ONNX Runtime do not share hidden."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graphfix.reference.refusal import ReferenceRefusal

Value = Any  # an array, a list of arrays (a sequence), or None (an empty optional)

_BFLOAT16 = onnx.TensorProto.BFLOAT16
# What a message holds besides its meaning: an error code, a C++ place and signature, a failed condition.
_NOISE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |(?:/\S*|\b\w+)\.(?:cc|h|cpp):\d+ (?:[^(]*\(.*?\)(?: const)? |\w+ )|"
    r"(?<=[ :])\S.{0,80} was false\. "
)
_RUNNING = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: ")
_BOUNDS = re.compile(r"inclusive range \[(-?\d+),(-?\d+)\]")
_UNSUPPORTED = re.compile(r"data type is not supported|Could not find an implementation for")
_MAX_IR = re.compile(r"max supported IR version: (\d+)")
_SUFFIX = "/graphfix_float32"


class OrtModel:
    """A model of standard operators as an inference session on the CPU.

    Outputs of the graph may lack their type. External data is read from ``base_dir``. ``custom_ops`` are paths of
    libraries of custom operators. Raises ReferenceRefusal, with ONNX Runtime's message in one line, when the model does
    not load or run.

    bfloat16 cannot cross into NumPy: such inputs and outputs travel as float32, which holds every bfloat16 exactly.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        base_dir: Path | None = None,
        optimise: bool = False,
        custom_ops: Sequence[str] = (),
    ) -> None:
        self._narrow_inputs = {i.name for i in model.graph.input if _elem_type(i) == _BFLOAT16}
        self._narrow_outputs: set[str] = set()
        if self._narrow_inputs:
            model = _with_wide_inputs(model, self._narrow_inputs)
        self._session = _create(model, base_dir, optimise, custom_ops)
        narrow = {o.name for o in self._session.get_outputs() if o.type == "tensor(bfloat16)"}
        if narrow:
            self._narrow_outputs = narrow
            self._session = _create(_with_wide_outputs(model, narrow), base_dir, optimise, custom_ops)
        self.outputs = [o.name.removesuffix(_SUFFIX) for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """All outputs by name."""
        ready = {
            **{
                n: v if isinstance(v, list) else np.asarray(v) for n, v in feeds.items() if n not in self._narrow_inputs
            },
            **{n + _SUFFIX: np.asarray(feeds[n], np.float32) for n in self._narrow_inputs if n in feeds},
        }
        # ONNX Runtime has many exception classes and no documented common base, and PyBind raises plain ones.
        try:
            results = self._session.run(None, ready)
        except Exception as error:
            raise refusal_of(error) from None
        values = dict(zip(self.outputs, results, strict=True))
        for name in self._narrow_outputs:
            values[name] = values[name].astype(onnx.helper.tensor_dtype_to_np_dtype(_BFLOAT16))
        return values


def refusal_of(error: Exception) -> ReferenceRefusal:
    """ONNX Runtime's message in one line, without its error code and source places, and what can be read from it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    running, bounds = _RUNNING.search(message), _BOUNDS.search(message)
    if running is not None:
        name = f" {running[2]!r}" if running[2] else ""
        message = _RUNNING.sub(f"{running[1]} node{name}: ".replace("\\", r"\\"), message)
    return ReferenceRefusal(
        _NOISE.sub("", message),
        node=running[2] if running is not None else "",
        unsupported=_UNSUPPORTED.search(message) is not None,
        index_range=(int(bounds[1]), int(bounds[2]) + 1) if bounds is not None else None,
    )


@functools.cache
def known_operators() -> frozenset[tuple[str, str]] | None:
    """``(domain, operator)`` of all that ONNX Runtime has a schema for; None when it does not tell."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:
        return None
    return frozenset((schema.domain, schema.name) for schema in get_all_operator_schema())


def _create(model: onnx.ModelProto, base_dir: Path | None, optimise: bool, custom_ops: Sequence[str]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for library in custom_ops:
        options.register_custom_ops_library(library)
    # Weights that stay as they are can stay in a mapped file: with this, a session of a 1 GB model takes no memory and
    # no time. What is lost is some speed in later runs.
    options.add_session_config_entry("session.disable_prepacking", "1")
    # A partitioned model has many sessions; idle threads of all of them must not spin.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if base_dir is not None:
        folder = str(base_dir.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    for _ in range(2):
        try:
            data = model.SerializeToString()
            return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            supported = _MAX_IR.search(str(error))
            if not supported or int(supported[1]) >= model.ir_version:
                refusal = refusal_of(error)
                refusal.loading = True
                raise refusal from None
            model = _copy(model)
            model.ir_version = int(supported[1])
    raise ReferenceRefusal(f"ONNX Runtime does not load IR version {model.ir_version}")


def _with_wide_inputs(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    model = _copy(model)
    casts = []
    for value in model.graph.input:
        if value.name in names:
            casts.append(onnx.helper.make_node("Cast", [value.name + _SUFFIX], [value.name], to=_BFLOAT16))
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            value.name += _SUFFIX
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _with_wide_outputs(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    model = _copy(model)
    for value in model.graph.output:
        if value.name in names:
            wide = value.name + _SUFFIX
            model.graph.node.append(onnx.helper.make_node("Cast", [value.name], [wide], to=onnx.TensorProto.FLOAT))
            value.CopyFrom(onnx.ValueInfoProto(name=wide))
    return model


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _elem_type(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0
