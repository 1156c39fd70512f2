"""Changes to an exported program that torch.onnx needs, to translate it as PyTorch runs it."""

from __future__ import annotations

import copy
import dataclasses
import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import ConstantArgument

from graphfix.errors import ExportError
from graphfix.sources import in_stack

aten = torch.ops.aten
_LISTS_OF_VIEWS = (aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default)
_DROPOUTS = (aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program, or a copy of it where something had to be changed. What it computes is what PyTorch computes:

    - Each view that unbind or split makes is made by an operator of its own. PyTorch 2.13 fixes the dynamic sizes of
      what is written into through several views of one operator.
    - A dropout that is off gives way to its input, as PyTorch returns that very tensor: who writes into one writes
      into the other. Made functional, it becomes a copy.
    - A tensor that is taken from a number of another type (``1.0 - integers``) is cast first. PyTorch makes of it a
      subtraction whose first operand is a number, and finds no operator for that when it promotes its type.
    - Constant numbers among the results are None, as torch.onnx has no outputs for them.
    """
    _refuse_parameter_writes(program)
    nodes = program.graph.nodes
    views = _writes(program) and any(n.target in _LISTS_OF_VIEWS for n in nodes)
    dropouts = [n for n in nodes if _is_off(n)]
    promoted = any(_promotes(n) for n in nodes)
    numbers = any(is_number(spec.arg) for spec in program.graph_signature.output_specs)
    if not views and not dropouts and not promoted and not numbers:
        return program
    program = copy.deepcopy(program)
    for node in [n for n in program.graph.nodes if _promotes(n)]:
        _cast_first(node, program.graph)
    for node in [n for n in program.graph.nodes if _is_off(n)]:
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    if views:
        _separate_views(program.graph)
    if numbers:
        _drop_numbers(program)
    program.graph_module.recompile()
    return program


def _refuse_parameter_writes(program: torch.export.ExportedProgram) -> None:
    """Raise ExportError for a write into a parameter, or into ``.data`` of one, which torch.export loses.

    PyTorch 2.13 fails at the first when it makes it functional, and ends the process at the second.
    """
    signature = program.graph_signature
    kept = dict(signature.inputs_to_parameters)
    kept |= {s.arg.name: ".data" for s in signature.input_specs if isinstance(_constant(program, s), FakeTensor)}
    for node in program.graph.nodes:
        if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            continue
        source = node.args[0] if node.args else None
        while isinstance(source, torch.fx.Node) and source.op == "call_function" and _is_view(source):
            source = source.args[0]
        if isinstance(source, torch.fx.Node) and source.name in kept:
            place = in_stack(node.meta.get("stack_trace") or "")
            where = f" at {place}" if place else ""
            raise ExportError(f"the module writes into its parameter ({kept[source.name]}){where}: make a buffer of it")


def _constant(program: torch.export.ExportedProgram, spec: Any) -> Any:
    return program.constants.get(spec.target) if isinstance(spec.target, str) else None


def _is_view(node: torch.fx.Node) -> bool:
    """Whether an operator returns the memory of its first argument."""
    schema = getattr(node.target, "_schema", None)
    aliased = schema is not None and schema.returns and schema.returns[0].alias_info is not None
    return bool(aliased or node.target in (aten.detach.default, aten.alias.default)) and bool(node.args)


def is_number(argument: Any) -> bool:
    """Whether a result of a program is a constant number."""
    return isinstance(argument, ConstantArgument) and argument.value is not None


def _writes(program: torch.export.ExportedProgram) -> bool:
    return any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in program.graph.nodes)


def _is_off(node: torch.fx.Node) -> bool:
    """Whether a node is a dropout of evaluation mode whose input has to be known by name in the results."""
    if node.target not in _DROPOUTS or not isinstance(node.args[0], torch.fx.Node):
        return False
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train")
    return training is False and not any(user.op == "output" for user in node.users)


def _promotes(node: torch.fx.Node) -> bool:
    """Whether a node takes a tensor from a number, and its result has another type than the tensor."""
    if node.target is not aten.rsub.Scalar or not isinstance(node.args[0], torch.fx.Node):
        return False
    return node.meta["val"].dtype != node.args[0].meta["val"].dtype


def _cast_first(node: torch.fx.Node, graph: torch.fx.Graph) -> None:
    data, result = node.args[0], node.meta["val"]
    assert isinstance(data, torch.fx.Node)
    with graph.inserting_before(node):
        cast = graph.call_function(aten.to.dtype, (data, result.dtype))
    cast.meta = {**node.meta, "val": data.meta["val"].to(result.dtype)}
    node.args = (cast, *node.args[1:])


def _separate_views(graph: torch.fx.Graph) -> None:
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        for user in [u for u in node.users if u.target is operator.getitem]:
            arguments = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
            arguments.update(node.kwargs)
            number, dim, data = user.args[1], arguments.get("dim", 0), node.args[0]
            rest: tuple[int, ...]
            if node.target is aten.unbind.int:
                target, rest = aten.select.int, (dim, number)
            elif node.target is aten.split.Tensor and isinstance(arguments["split_size"], int):
                size = arguments["split_size"]
                target, rest = aten.slice.Tensor, (dim, number * size, (number + 1) * size)
            elif node.target is aten.split_with_sizes.default:
                sizes = arguments["split_sizes"]
                if not all(isinstance(size, int) for size in sizes):
                    continue
                target, rest = aten.slice.Tensor, (dim, sum(sizes[:number]), sum(sizes[: number + 1]))
            else:
                continue
            with graph.inserting_before(user):
                view = graph.call_function(target, (data, *rest))
            view.meta = dict(user.meta)
            user.replace_all_uses_with(view)
            graph.erase_node(user)
    for node in [n for n in graph.nodes if n.target in _LISTS_OF_VIEWS and not n.users]:
        graph.erase_node(node)


def _drop_numbers(program: torch.export.ExportedProgram) -> None:
    (output,) = [n for n in program.graph.nodes if n.op == "output"]
    results = zip(output.args[0], program.graph_signature.output_specs, strict=True)
    output.args = (tuple(None if is_number(spec.arg) else value for value, spec in results),)
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, ConstantArgument):
            spec.arg = dataclasses.replace(spec.arg, value=None)
