"""Types and shapes of a whole model, through ATen nodes and removed operators too.

onnx's shape inference stops at an operator that it has no schema for. It runs here on a light copy of the model,
without weights, in which such nodes are stood in for by standard ones whose result has the same type and shape.
Declared shapes of outputs and value_info are not trusted unless the caller says so: exporters write wrong ones (sizes
of the traced example, even wrong ranks).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

from graphfix import aten
from graphfix.graph import STANDARD_DOMAINS, attributes_of, opset_of, tensor_type
from graphfix.protobuf import nodes_within

STUB_DOMAIN = "graphfix.stub"
_SMALL = 1024  # elements: constants up to this size may hold shapes or indices

# PyTorch's ScalarType codes (c10/core/ScalarType.h).
SCALAR_TYPES: dict[int, int] = {
    0: TensorProto.UINT8,
    1: TensorProto.INT8,
    2: TensorProto.INT16,
    3: TensorProto.INT32,
    4: TensorProto.INT64,
    5: TensorProto.FLOAT16,
    6: TensorProto.FLOAT,
    7: TensorProto.DOUBLE,
    11: TensorProto.BOOL,
    15: TensorProto.BFLOAT16,
}

# ATen operators whose result has the type and shape of their first argument.
LIKE_SELF = frozenset(
    [
        "index_put",
        "index_fill",
        "index_copy",
        "index_add",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "select_scatter",
        "slice_scatter",
        "diagonal_scatter",
    ]
)

# ATen operators whose result has the type of their first argument and the shape that it and the mask broadcast to.
MASKED = frozenset(["masked_fill", "masked_scatter"])


def infer(model: onnx.ModelProto, declared: bool = False) -> onnx.ModelProto:
    """A copy of the model without weights, with the types of all values that could be inferred as value_info.

    With ``declared``, the ranks and the numbers of the main graph's value_info are right, and are built upon.

    Graphs, nodes, bodies and functions are in the same order as in the model. Graph outputs and value_info have only
    what was inferred; the element type of an output stays as declared.
    """
    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    # onnx infers nothing at all for a model in which any node's domain is not imported.
    imported = {o.domain for o in model.opset_import}
    missing = {STUB_DOMAIN, *(node.domain for node in nodes_within(model.graph.node))} - imported - {"ai.onnx"}
    light.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(missing) if domain)
    opset = opset_of(model)
    light.graph.CopyFrom(_light_graph(model.graph, opset, trusted=False))
    if declared:
        _add_declared(light.graph, model.graph)
    for function in model.functions:
        copy = light.functions.add()
        copy.CopyFrom(function)
        for node in copy.node:
            _stand_in(node, opset_of(function), {})
    inferred = _infer_once(light)
    while _type_remaining(model.graph, inferred.graph):
        inferred = _infer_once(inferred)
    _type_functions(model, inferred)
    return inferred


def _add_declared(light: onnx.GraphProto, graph: onnx.GraphProto) -> None:
    """Add what a graph declares of its inner values; sizes by name are for inference to find."""
    known = {v.name for v in light.value_info} | {t.name for t in graph.initializer}
    for value in graph.value_info:
        if value.name not in known and value.type.HasField("tensor_type"):
            copy = light.value_info.add()
            copy.CopyFrom(value)
            for dim in copy.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")


def _infer_once(light: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # types that contradict each other; what is known is still worth having
        return light


def _light_graph(graph: onnx.GraphProto, opset: int, trusted: bool) -> onnx.GraphProto:
    """A graph without weights; ``trusted`` keeps the declared ranks and numbers of its outputs' shapes."""
    light = onnx.GraphProto()
    light.name = graph.name or "graph"
    light.input.extend(graph.input)
    for value in light.input:
        if value.type.HasField("tensor_type"):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("dim_value")
                if trusted:
                    dim.ClearField("dim_param")
    inputs = {i.name for i in graph.input}
    for output in graph.output:
        copy = light.output.add()
        copy.CopyFrom(output)
        if copy.type.HasField("tensor_type") and not trusted:
            copy.type.tensor_type.ClearField("shape")
        elif copy.type.HasField("tensor_type"):
            for dim in copy.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")  # what a loop carries may grow
    constants: dict[str, TensorProto] = {}
    for tensor in graph.initializer:
        if tensor.name in inputs:
            continue
        if tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= _SMALL:
            light.initializer.add().CopyFrom(tensor)
            constants[tensor.name] = tensor
        else:
            light.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for sparse in graph.sparse_initializer:
        info = helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, sparse.dims)
        light.value_info.append(info)
    unknown_makers = set()
    for node in graph.node:
        copy_node = light.node.add()
        tensor = _constant_of(node)
        if tensor is not None and (math.prod(tensor.dims) > _SMALL or tensor.data_location == TensorProto.EXTERNAL):
            copy_node.op_type, copy_node.domain = "Constant", STUB_DOMAIN
            copy_node.output.extend(node.output)
            light.value_info.append(helper.make_tensor_value_info(node.output[0], tensor.data_type, tensor.dims))
            continue
        if tensor is not None:
            constants[node.output[0]] = tensor
        _copy_node(node, copy_node, opset)
        _stand_in(copy_node, opset, constants)
        if not _is_standard(node):
            unknown_makers.update(node.output)
    # The only source there is for what a custom operator makes.
    light.value_info.extend(v for v in graph.value_info if v.name in unknown_makers)
    return light


def _is_standard(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS or node.domain.startswith("ai.onnx")


def _copy_node(node: onnx.NodeProto, copy: onnx.NodeProto, opset: int) -> None:
    copy.op_type, copy.domain, copy.name = node.op_type, node.domain, node.name
    copy.input.extend(node.input)
    copy.output.extend(node.output)
    for attribute in node.attribute:
        target = copy.attribute.add()
        if attribute.type == AttributeProto.GRAPH:
            target.name, target.type = attribute.name, attribute.type
            # The shapes of what a loop carries come from its body's declared outputs; a branch's are inferred.
            target.g.CopyFrom(_light_graph(attribute.g, opset, trusted=node.op_type != "If"))
        elif attribute.type == AttributeProto.GRAPHS:
            target.name, target.type = attribute.name, attribute.type
            target.graphs.extend(_light_graph(g, opset, trusted=True) for g in attribute.graphs)
        else:
            target.CopyFrom(attribute)


def _constant_of(node: onnx.NodeProto) -> TensorProto | None:
    if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
                return attribute.t
    return None


def _stand_in(node: onnx.NodeProto, opset: int, constants: dict[str, TensorProto]) -> None:
    """Turn a node without a schema into one whose result has the same type and shape, where a standard one exists."""
    if node.op_type == "DynamicSlice" and node.domain in STANDARD_DOMAINS:
        # Tile by counts that are not constant: the same type and rank, all sizes unknown.
        node.op_type, data = "Tile", node.input[0]
        del node.input[:], node.attribute[:]
        node.input.extend([data, f"{node.output[0]}/repeats"])
        return
    if not aten.is_aten(node.op_type, node.domain):
        return
    operator = aten.operator_name(node.op_type, attributes_of(node))
    if operator in MASKED and len(node.input) > 1 and opset >= 9:
        data, mask = node.input[:2]
        del node.input[:], node.attribute[:]
        node.op_type, node.domain = "Where", ""
        node.input.extend([mask, data, data])
    elif operator in LIKE_SELF and node.input and opset >= 9:
        # A scatter has the type and shape of its first input, and no values that inference could carry on.
        data = node.input[0]
        del node.input[:], node.attribute[:]
        node.op_type, node.domain = ("ScatterElements" if opset >= 11 else "Scatter"), ""
        node.input.extend([data, f"{node.output[0]}/indices", data])


def _type_remaining(graph: onnx.GraphProto, light: onnx.GraphProto) -> bool:
    """Type what `_stand_in` could not, from the types of its inputs. Returns whether anything new is known."""
    progress = False
    for scope, typed, known in _scopes(graph, light, {}):
        for node in scope.node:
            if not aten.is_aten(node.op_type, node.domain) or not node.output or node.output[0] in known:
                continue
            found = _aten_type(node, known)
            if found is not None:
                typed.value_info.append(onnx.ValueInfoProto(name=node.output[0], type=found))
                progress = True
    return progress


def _scopes(graph: Any, light: Any, outer: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Every graph with its light copy, and the types (or producers of lists, or constants) visible in it by name."""
    known: dict[str, Any] = dict(outer)
    for value in (*light.input, *light.value_info, *light.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            known[value.name] = value.type
    for tensor in light.initializer:
        known[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        known[f"{tensor.name}/constant"] = tensor
    for node in graph.node:
        tensor = _constant_of(node)
        if tensor is not None:
            known[f"{node.output[0]}/constant"] = tensor
        if node.op_type in ("SequenceConstruct", "ListConstruct"):
            known[f"{node.output[0]}/list"] = list(node.input)
    yield graph, light, known
    for node, typed in zip(graph.node, light.node, strict=True):
        bodies = {a.name: a for a in typed.attribute}
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _scopes(attribute.g, bodies[attribute.name].g, known)
            for body, typed_body in zip(
                attribute.graphs, bodies[attribute.name].graphs if bodies else (), strict=False
            ):
                yield from _scopes(body, typed_body, known)


def _aten_type(node: onnx.NodeProto, known: dict[str, Any]) -> onnx.TypeProto | None:
    attributes = attributes_of(node)
    try:
        call = aten.read_call(node.op_type, attributes, [n or None for n in node.input])
    except aten.AtenFormError:
        return None
    if call.operator == "arange":
        dtype = _scalar(known, call.arguments.get("dtype"))
        if dtype is None and "dtype" not in call.scalars:
            names = [call.arguments[p] for p in ("start", "end", "step") if p in call.arguments]
            if any(name not in known for name in names):
                return None
            integral = {known[n].tensor_type.elem_type for n in names} <= {TensorProto.INT32, TensorProto.INT64}
            kind: int = TensorProto.INT64 if integral else TensorProto.FLOAT
        else:
            kind = SCALAR_TYPES.get(int(call.scalars.get("dtype", dtype) or 0), 0)
        return helper.make_tensor_type_proto(kind, [None]) if kind else None
    data = known.get(call.arguments.get("self", ""))
    if data is None:
        return None
    element, shape = tensor_type(data)
    if element is None:
        return None
    if call.operator in LIKE_SELF:
        return data
    if call.operator in MASKED:
        return helper.make_tensor_type_proto(element, None)
    if call.operator == "gather":
        index = known.get(call.arguments.get("index", ""))
        return helper.make_tensor_type_proto(element, tensor_type(index)[1]) if index is not None else None
    if call.operator != "index" or shape is None:
        return None
    names = list(call.indices)
    if len(names) == 1 and f"{names[0]}/list" in known:
        names = known[f"{names[0]}/list"]
    grid, covered = 0, 0
    for name in names:
        if not name:
            covered += 1
            continue
        if name not in known:
            return None
        index_kind, index_shape = tensor_type(known[name])
        if index_shape is None:
            return None
        is_mask = index_kind in (TensorProto.BOOL, TensorProto.UINT8)
        grid = max(grid, 1 if is_mask else len(index_shape))
        covered += len(index_shape) if is_mask else 1
    rank = grid + names.count("") + names.count(None) + len(shape) - covered
    return helper.make_tensor_type_proto(element, [None] * rank) if covered <= len(shape) else None


def _scalar(known: dict[str, Any], name: str | None) -> int | None:
    tensor = known.get(f"{name}/constant")
    return None if tensor is None else int(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])


def _type_functions(model: onnx.ModelProto, inferred: onnx.ModelProto) -> None:
    """Give local functions' bodies the types that they have at all their call sites alike."""
    calls: dict[tuple[str, str], list[list[onnx.TypeProto | None]]] = {}

    def collect(graph: onnx.GraphProto, types: onnx.GraphProto) -> None:
        for scope, _, known in _scopes(graph, types, {}):
            for node in scope.node:
                calls.setdefault((node.domain, node.op_type), []).append([known.get(n) for n in node.input])

    collect(model.graph, inferred.graph)
    for position in _callers_first(model.functions):
        function, typed = model.functions[position], inferred.functions[position]
        sites = calls.get((function.domain, function.name))
        if not sites:
            continue
        graph = onnx.GraphProto(name=function.name)
        graph.node.extend(function.node)
        for argument, name in enumerate(function.input):
            types = [site[argument] if argument < len(site) else None for site in sites]
            common = _common_type(types)
            if common is not None:
                graph.input.append(onnx.ValueInfoProto(name=name, type=common))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        body = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
        body.opset_import.extend(function.opset_import)
        result = infer(body).graph
        if hasattr(typed, "value_info"):
            del typed.value_info[:]
            typed.value_info.extend(
                (*result.input, *result.value_info, *(o for o in result.output if o.HasField("type")))
            )
        collect(graph, result)


def _callers_first(functions: Sequence[onnx.FunctionProto]) -> list[int]:
    """The order in which each function comes after all those that call it."""
    place = {(f.domain, f.name): i for i, f in enumerate(functions)}
    order: list[int] = []

    def visit(position: int) -> None:
        if position in seen:
            return
        seen.add(position)
        graph = onnx.GraphProto(node=functions[position].node)
        for scope, _, _ in _scopes(graph, graph, {}):
            for node in scope.node:
                if (node.domain, node.op_type) in place:
                    visit(place[node.domain, node.op_type])
        order.insert(0, position)

    seen: set[int] = set()
    for position in range(len(functions)):
        visit(position)
    return order


def _common_type(types: list[onnx.TypeProto | None]) -> onnx.TypeProto | None:
    if any(t is None for t in types):
        return None
    kinds = [tensor_type(t) for t in types if t is not None]
    element = kinds[0][0]
    if element is None or any(k[0] != element for k in kinds):
        return None
    shapes = [k[1] for k in kinds]
    if any(s is None for s in shapes) or len({len(s) for s in shapes if s is not None}) != 1:
        return helper.make_tensor_type_proto(element, None)
    common = [dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True)]  # type: ignore[arg-type]
    return helper.make_tensor_type_proto(element, common)


def annotate(model: onnx.ModelProto) -> None:
    """Write the inferred types of intermediate values into the main graph's value_info, where it has none.

    Only fully known shapes; and sizes that are named in what is there lose their names, but for what custom operators
    make: a named size of an inner value contradicts the inputs once a user fixes these (tract refuses such a file).
    """
    inferred = infer(model).graph
    graph = model.graph
    known = {v.name for v in (*graph.input, *graph.output, *graph.value_info)} | {t.name for t in graph.initializer}
    new = {name for node in graph.node for name in node.output} - known
    unknown_to_engines = {name for node in graph.node if not _is_standard(node) for name in node.output}
    for value in graph.value_info:
        if value.name not in unknown_to_engines and value.type.HasField("tensor_type"):
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
    for value in inferred.value_info:
        shape = tensor_type(value.type)[1]
        if value.name in new and shape is not None and all(isinstance(size, int) for size in shape):
            graph.value_info.add().CopyFrom(value)
