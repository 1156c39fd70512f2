"""A model without its weights, for shape inference again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from graphfix import shapes as inference

Shape = tuple[int | None, ...]

_SMALL = 4096  # bytes of an initializer that may hold a shape and is kept


def shell(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in which large initializers have a type and a shape, but no values."""
    found = onnx.ModelProto(ir_version=model.ir_version)
    found.opset_import.extend(model.opset_import)
    found.functions.extend(model.functions)
    graph = found.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL:
            graph.initializer.append(tensor)
        else:
            stub = graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            stub.data_location = onnx.TensorProto.EXTERNAL
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return found


def resize(empty: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the inputs of a shell these shapes."""
    for value in empty.graph.input:
        if value.name in sizes and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
            for size in sizes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
            if not sizes[value.name]:
                value.type.tensor_type.shape.SetInParent()


def types(empty: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Element type and rank of the main graph's tensors, as far as they are known."""
    return {v.name: (v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim)) for v in _values(empty)}


def shapes(empty: onnx.ModelProto) -> dict[str, Shape]:
    """The shapes of the main graph's tensors, as far as they are known."""
    found = {}
    for value in _values(empty):
        dims = value.type.tensor_type.shape.dim
        found[value.name] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
    return found


def value_infos(empty: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """What is declared or inferred of the main graph's tensors, where the rank is known."""
    return {value.name: value for value in _values(empty)}


def _values(empty: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    graph = inference.infer(empty).graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            yield value
    for tensor in empty.graph.initializer:
        yield onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
