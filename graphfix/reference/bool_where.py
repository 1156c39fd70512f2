"""Where on bool data, which ONNX Runtime has no kernel for on the CPU, through uint8: for the reference only."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from graphfix import shapes
from graphfix.graph import Model, Scope
from graphfix.protobuf import all_nodes


def without_bool_where(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every Where on bool data between casts to uint8 and back; the same object when it has none.

    Only what a Where is known to hold is looked at: one in a local function that is called with several types stays.
    """
    if not any(node.op_type == "Where" for node in all_nodes(model)):
        return model
    view = Model(model, shapes.infer(model))
    if not any(_bool_wheres(scope) for scope in view.scopes):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    view = Model(copy, shapes.infer(copy))
    for scope in reversed(view.scopes):  # bodies before the graphs that hold them
        found = _bool_wheres(scope)
        if found:
            _widen(scope, found)
    return copy


def _bool_wheres(scope: Scope) -> set[str]:
    """The outputs of the scope's Where nodes on bool data."""
    return {
        node.outputs[0].name
        for node in scope.nodes
        if node.is_op("Where") and TensorProto.BOOL in (node.outputs[0].dtype, *(i.dtype for i in node.inputs[1:]))
    }


def _widen(scope: Scope, outputs: set[str]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in scope.proto.node:
        if node.output[0] not in outputs:
            nodes.append(node)
            continue
        wide = [scope.model.fresh(f"{node.output[0]}/uint8") for _ in range(3)]
        for name, source in zip(wide, node.input[1:], strict=False):
            nodes.append(onnx.helper.make_node("Cast", [source], [name], to=TensorProto.UINT8))
        chosen = onnx.NodeProto()
        chosen.CopyFrom(node)
        chosen.input[1:] = wide[:2]
        chosen.output[0] = wide[2]
        nodes += [chosen, onnx.helper.make_node("Cast", [wide[2]], [node.output[0]], to=TensorProto.BOOL)]
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del scope.proto.node[:]
    scope.proto.node.extend(kept)
