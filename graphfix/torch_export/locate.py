"""Where an exported model leaves PyTorch: the operator, the module it stands in and the line in the user's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import getitem
from typing import Any

import onnx
import torch

from graphfix.errors import NotConfirmedError
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import ReferenceSession
from graphfix.sources import in_stack, written_at
from graphfix.torch_export.arrays import to_numpy, to_torch
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.confirm import Confirmation
from graphfix.torch_export.subject import quiet
from graphfix.verification import compare


def place_of_difference(captured: Captured, confirm: Confirmation, error: NotConfirmedError) -> str:
    """What differs first, in words; "" when nothing can be told.

    The operators of the exported program run one by one in PyTorch, and each result is held against the tensor of the
    same name in the lossless model.
    """
    replaced = re.search(r"\(output '([^']+)'", str(error))
    if captured.program is None:
        return _traced(captured, replaced[1]) if replaced is not None else ""
    nodes = {node.name: node for node in captured.program.graph.nodes}
    if confirm.telling is not None:
        found = _first_difference(captured, confirm.telling.feeds)
        if found is not None:
            node = nodes[found]
            return f"PyTorch and the exporter's translation differ first at {describe(node)}{_why(node)}"
    if replaced is not None and replaced[1] in nodes:
        return f"it stands for {describe(nodes[replaced[1]])}"
    return ""


def _traced(captured: Captured, output: str) -> str:
    """The module and the line of a node that TorchScript made: the path of the module is in the node's name."""
    node = next((node for node in captured.model.graph.node if output in node.output), None)
    line = written_at(node) if node is not None else ""
    if node is None or not line:
        return ""
    path = node.name.strip("/").split("/")[1:-1]
    return f"it stands for {'.'.join(path) or 'the module'} at {line}"


def _why(node: torch.fx.Node) -> str:
    """What makes an operator give other results, when that is in its nature: ": it draws random numbers, ..."."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return ""
    return ": it draws random numbers, which no model draws alike; give them as an argument, or keep them in a buffer"


def describe(node: torch.fx.Node) -> str:
    """The operator, its module and its line: ``aten.index_put in layers.0 at model.py:12, x[i] = v``."""
    if node.target is getitem:
        node = node.all_input_nodes[0]
    operator = str(node.target).removesuffix(".default")
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    module = f" in {paths[-1]}" if paths else ""
    line = in_stack(node.meta.get("stack_trace") or "")
    return f"{operator}{module}" + (f" at {line}" if line else "")


def _first_difference(captured: Captured, feeds: Mapping[str, Any]) -> str | None:
    """The first node of the program whose result is not that of the model."""
    made = {name for node in captured.model.graph.node for name in node.output if name}
    order = [n.name for n in captured.program.graph.nodes if n.op == "call_function" and n.name in made]
    try:
        with quiet():
            expected = _recorded(captured, feeds)
        actual = ReferenceSession(_with_outputs(captured.model, order)).run(feeds)
    except (ReferenceRefusal, RuntimeError, ValueError, TypeError):
        return None
    for name in order:
        if name in expected and compare.compare(expected[name], actual[name], depth=100).problem:
            return name
    return None


def _recorded(captured: Captured, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The result of every operator of the program that is a tensor."""
    program, values = captured.program, {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                values[n.name] = to_numpy(result)
            return result

    users = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    given = {users[n].arg.name: to_torch(feeds[name]) for n, name in captured.inputs.items()}
    state = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    arguments = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            arguments.append(state[spec.target].detach().clone())
        else:
            arguments.append(given.get(getattr(spec.arg, "name", ""), getattr(spec.arg, "value", None)))
    Recorder(program.graph_module).run(*arguments)
    return values


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy of the model with the named tensors as its outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {v.name: v for v in (*copy.graph.value_info, *copy.graph.output)}
    outputs = [known.get(name, onnx.ValueInfoProto(name=name)) for name in names]
    kept = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in outputs]
    del copy.graph.output[:]
    copy.graph.output.extend(kept)
    return copy
