"""Walks over a model as it is in the file: bodies, the nodes in them, and the names that nodes read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto


def attribute_bodies(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def bodies(node: NodeProto) -> list[GraphProto]:
    """The bodies of a control flow node."""
    return [body for attribute in node.attribute for body in attribute_bodies(attribute)]


def graphs_within(graph: GraphProto | FunctionProto) -> Iterator[GraphProto | FunctionProto]:
    """A graph or local function, and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs_within(body)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes and all nodes in their bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from nodes_within(body.node)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of a model: of its graph, all bodies and local functions."""
    yield from nodes_within(model.graph.node)
    for function in model.functions:
        yield from nodes_within(function.node)


def used_names(node: NodeProto) -> Iterator[str]:
    """What a node reads: its inputs, and what its bodies capture from the graphs around them."""
    yield from (name for name in node.input if name)
    for graph in bodies(node):
        own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
        own |= {s.values.name for s in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        for inner in graph.node:
            yield from (name for name in used_names(inner) if name not in own)
        yield from (o.name for o in graph.output if o.name not in own)


def tensor_of(kind: TypeProto) -> tuple[TypeProto.Tensor | None, bool]:
    """The tensor that a type is or holds, in an optional or a sequence of tensors, and whether it is a sequence.

    None for maps, sparse tensors, and sequences of what is no tensor.
    """
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    is_list = kind.HasField("sequence_type")
    if is_list:
        kind = kind.sequence_type.elem_type
    return (kind.tensor_type if kind.HasField("tensor_type") else None), is_list
