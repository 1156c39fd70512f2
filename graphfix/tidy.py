"""What a changed model no longer needs, and engines stumble over."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphfix import aten
from graphfix.protobuf import all_nodes, graphs_within

_MOST_SIZES = 64  # a target shape is a short vector: anything longer is not looked into


def drop_unused_domains(model: onnx.ModelProto) -> None:
    """Drop the opset imports of ATen and prim nodes that are gone: engines refuse domains that they do not know."""
    used = {node.domain for node in all_nodes(model)}
    holders: list[Any] = [model, *model.functions]
    for holder in holders:
        kept = [o for o in holder.opset_import if o.domain not in (aten.ATEN_DOMAIN, "prim") or o.domain in used]
        if len(kept) != len(holder.opset_import):
            del holder.opset_import[:]
            holder.opset_import.extend(kept)


def drop_needless_allowzero(model: onnx.ModelProto) -> None:
    """Drop Reshape's ``allowzero`` where the target shape is a constant without a 0.

    The attribute only says what a 0 in the target shape means (ONNX operator text, Reshape-14). PyTorch's exporter
    writes it everywhere, and nncase aborts on it.
    """
    # Constants are looked up in the graph of the node alone: names of other graphs may be hidden there.
    replaceable = {i.name for i in model.graph.input}
    held = {t.name: _small(t) for t in model.graph.initializer if t.name not in replaceable}
    scopes: list[Any] = [*graphs_within(model.graph), *(g for f in model.functions for g in graphs_within(f))]
    for scope in scopes:
        constants = {n.output[0]: _value(n) for n in scope.node if n.op_type == "Constant" and not n.domain}
        if scope is scopes[0]:
            constants |= held
        for node in scope.node:
            if node.op_type != "Reshape" or node.domain or len(node.input) < 2:
                continue
            target = constants.get(node.input[1])
            if target is not None and target.all():
                _drop_attribute(node, "allowzero")


def drop_allowzero(model: onnx.ModelProto) -> bool:
    """Drop every ``allowzero`` of Reshape: right unless a size is 0. The result tells whether there was one."""
    found = False
    for node in all_nodes(model):
        if node.op_type == "Reshape" and not node.domain:
            found |= _drop_attribute(node, "allowzero")
    return found


def _drop_attribute(node: onnx.NodeProto, name: str) -> bool:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    if len(kept) == len(node.attribute):
        return False
    del node.attribute[:]
    node.attribute.extend(kept)
    return True


def _value(node: onnx.NodeProto) -> np.ndarray[Any, Any] | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            return _small(attribute.t)
        if attribute.name == "value_ints":
            return np.asarray(attribute.ints)
    return None


def _small(tensor: onnx.TensorProto) -> np.ndarray[Any, Any] | None:
    held = tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.data_type == onnx.TensorProto.INT64
    return numpy_helper.to_array(tensor) if held and len(tensor.dims) == 1 and tensor.dims[0] <= _MOST_SIZES else None
