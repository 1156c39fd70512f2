"""Translations for torch.onnx that keep an operator as an ATen node with all its operands.

torch.onnx's own translations of index writes lose what the write was: slices become Range and ScatterND, masks NonZero,
and forms such as ``x[:, mask] = v`` and ``x[i, :, j] = v`` are not translated at all. An ATen node says what PyTorch
says, and the passes of graphfix read it. The nodes have the form that `graphfix.aten.read_call` knows: tensors and
numbers as inputs in the order of the operator's parameters, texts as attributes of the parameter's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from onnxscript import evaluator, ir
from onnxscript import opset18 as op

from graphfix.aten import ATEN_DOMAIN
from graphfix.torch_export.arrays import to_numpy
from graphfix.torch_export.forms import LIKE_DATA, WRITES

Translation = Callable[..., Any]


def write_translations() -> dict[Any, Translation]:
    """The translation of every overload of every index write, and of reads by index tensors."""
    table: dict[Any, Translation] = {}
    for name, parameters in WRITES.items():
        for overload in _overloads(name):
            table[overload] = _keep(overload, name.removeprefix("_unsafe_"), parameters)
    for overload in _overloads("put"):
        table[overload] = _put
    for overload in _overloads("index_reduce"):
        table[overload] = _index_reduce
    table[torch.ops.aten.scalar_tensor.default] = _scalar_tensor
    for overload in _overloads("diagonal"):
        table[overload] = _diagonal
    for overload in (*_overloads("as_strided_scatter"), torch.ops.prims.as_strided_scatter.default):
        table[overload] = _as_strided_scatter(overload)
    return table


def any_translation(overload: Any) -> Translation:
    """The translation of an operator that torch.onnx has none for, by its schema."""
    schema = overload._schema
    name = schema.name.removeprefix("aten::")
    return _keep(overload, name, tuple(a.name for a in schema.arguments), outputs=max(1, len(schema.returns)))


def _overloads(name: str) -> list[Any]:
    """The overloads of an operator that torch.export may leave in a graph: those on tensors that write no ``out``."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return []
    found = [getattr(packet, o) for o in packet.overloads()]
    return [o for o in found if str(o._schema.arguments[0].type) == "Tensor" and not _is_excluded(o)]


def _is_excluded(overload: Any) -> bool:
    name = overload._overloadname
    return name == "out" or name.endswith(("_out", "hacked_twin"))


def _keep(overload: Any, operator: str, parameters: Sequence[str], outputs: int = 1) -> Translation:
    schema = [(a.name, a.default_value if a.has_default_value() else None) for a in overload._schema.arguments]
    label = overload._overloadname if overload._overloadname != "default" else ""

    def translate(*args: Any, **kwargs: Any) -> Any:
        given: dict[str, Any] = dict(schema)
        given.update(zip((name for name, _ in schema), args, strict=False))
        given.update({name: value for name, value in kwargs.items() if name in given})
        # An element-wise scatter has its number under another name.
        if operator == "scatter" and "src" not in given:
            given["src"] = given.pop("value")
        return _node(operator, label, {name: given[name] for name in parameters if name in given}, outputs)

    translate.__name__ = operator
    return translate


def _node(operator: str, overload: str, arguments: dict[str, Any], outputs: int = 1) -> Any:
    recorder = _recorder()
    data = next((v for v in arguments.values() if isinstance(v, ir.Value)), None)
    inputs: list[ir.Value | None] = []
    attributes = [ir.AttrString("operator", operator), ir.AttrString("overload_name", overload)]
    for name, value in arguments.items():
        if isinstance(value, str):
            attributes.append(ir.AttrString(name, value))
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            inputs.append(_operand(item, data if name in LIKE_DATA else None))
    node = ir.Node(ATEN_DOMAIN, "ATen", inputs, attributes, num_outputs=outputs, version=1)
    recorder.nodes.append(node)
    return node.outputs[0] if outputs == 1 else list(node.outputs)


def _operand(value: Any, like: ir.Value | None) -> ir.Value | None:
    """An argument as a graph value; with the element type of ``like``, where that is given and known."""
    wanted = like.dtype if like is not None else None
    if value is None:
        return None
    if isinstance(value, ir.Value):
        if wanted is None or value.dtype in (None, wanted):
            return value
        return op.Cast(value, to=int(wanted))
    return _constant(value, wanted)


def _constant(value: Any, dtype: ir.DataType | None) -> ir.Value:
    """A scalar Constant. A number is rounded to the element type as PyTorch does."""
    if dtype is None or dtype in _OTHER_TYPES:
        array = np.asarray(value, None if dtype is None else dtype.numpy())
    else:
        array = to_numpy(torch.tensor(value, dtype=_TORCH_TYPES[dtype]))
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
    _recorder().nodes.append(node)
    return node.outputs[0]


_TORCH_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
}
_OTHER_TYPES = frozenset(d for d in ir.DataType if d not in _TORCH_TYPES)


def _recorder() -> Any:
    """What collects the nodes of the operator that is being translated."""
    recorder = evaluator.default()
    if not hasattr(recorder, "nodes"):
        raise RuntimeError("this version of torch.onnx does not collect nodes in onnxscript's evaluator")
    return recorder


def _put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """``x.put(index, source)``: index_put on the flattened data."""
    flat = op.Reshape(self, op.Constant(value_ints=[-1]))
    flat.dtype = self.dtype
    arguments = {"self": flat, "indices": [index], "values": source, "accumulate": accumulate}
    return op.Reshape(_node("index_put", "", arguments), op.Shape(self))


def _index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    """``x.index_reduce(dim, index, source, reduce)``: scatter_reduce with the index repeated over the other axes."""
    rank = len(source.shape)
    column = op.Reshape(index, op.Constant(value_ints=[-1 if axis == dim % rank else 1 for axis in range(rank)]))
    reductions = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}
    arguments = {
        "self": self,
        "dim": dim,
        "index": op.Expand(column, op.Shape(source)),
        "src": source,
        "reduce": reductions[reduce],
        "include_self": include_self,
    }
    return _node("scatter_reduce", "two", arguments)


def _diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """``x.diagonal(offset, dim1, dim2)`` as a read by indices: torch.onnx multiplies by a mask; NaN stays."""
    rank = len(self.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    front = op.Transpose(self, perm=[first, second, *others])
    front.dtype = self.dtype
    above, left = max(-offset, 0), max(offset, 0)
    sizes = op.Sub(op.Shape(front, start=0, end=2), op.Constant(value_ints=[above, left]))
    size = op.Max(op.ReduceMin(sizes, keepdims=0), op.Constant(value_int=0))
    along = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    rows, columns = (op.Add(along, op.Constant(value_int=distance)) for distance in (above, left))
    read = _node("index", "", {"self": front, "indices": [rows, columns]})
    return op.Transpose(read, perm=[*range(1, rank - 1), 0])


def _as_strided_scatter(overload: Any) -> Translation:
    otherwise = any_translation(overload)

    def as_strided_scatter(self: Any, src: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
        """``x.as_strided_scatter(src, size, stride, offset)``, all constant: index_put on the flattened data."""
        offset = 0 if storage_offset is None else storage_offset
        if not all(isinstance(n, int) for n in (*size, *stride, offset)):
            return otherwise(self, src, size, stride, storage_offset)
        positions = np.asarray(offset)
        for count, step in zip(size, stride, strict=True):
            positions = positions[..., None] + np.arange(count) * step
        where = op.Constant(value=ir.tensor(positions.reshape(-1)))
        return _put(self, where, op.Reshape(src, op.Constant(value_ints=[-1])))

    return as_strided_scatter


def _scalar_tensor(value: Any, dtype: int = -1, **_: Any) -> Any:
    """A number as a tensor; torch.onnx makes numbers float32 on the way to float64."""
    wanted = ir.DataType(dtype) if dtype is not None and dtype != -1 else ir.DataType.FLOAT
    return op.Cast(value, to=int(wanted)) if isinstance(value, ir.Value) else _constant(value, wanted)
