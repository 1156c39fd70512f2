"""Walks over bodies and functions: every node once, and the names that leave a body."""

from __future__ import annotations

from onnx import GraphProto, parser

from graphfix.protobuf import all_nodes, bodies, graphs_within, nodes_within, used_names

MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["": 16, "my": 1]>
    g (float[2] x, bool k) => (float[2] y) {
    a = Neg(x)
    y = If(k) <
        then_branch = t () => (float[2] b) { c = Abs(a) b = If(k) <
            then_branch = u () => (float[2] d) { d = Sin(c) },
            else_branch = v () => (float[2] e) { e = my.F(x) }> },
        else_branch = w () => (float[2] a) { }> }
    <domain: "my", opset_import: ["": 16]> F (i) => (o) { o = Cos(i) }""")


def test_every_node_once() -> None:
    assert [n.op_type for n in all_nodes(MODEL)] == ["Neg", "If", "Abs", "If", "Sin", "F", "Cos"]
    assert [n.op_type for n in nodes_within(MODEL.graph.node)] == ["Neg", "If", "Abs", "If", "Sin", "F"]


def test_every_graph_once() -> None:
    assert [g.name for g in graphs_within(MODEL.graph)] == ["g", "t", "u", "v", "w"]
    assert [g.name for g in graphs_within(MODEL.functions[0])] == ["F"]
    assert [g.name for g in bodies(MODEL.graph.node[1])] == ["t", "w"]


def test_names_that_bodies_capture() -> None:
    node = MODEL.graph.node[1]
    assert set(used_names(node)) == {"k", "a", "x"}  # not c, which the body makes itself
    assert [list(used_names(n)) for n in MODEL.graph.node[:1]] == [["x"]]


def test_attributes_with_several_graphs() -> None:
    node = MODEL.graph.node[0].__class__(op_type="Many")
    node.attribute.add(name="graphs").graphs.extend([GraphProto(name="p"), GraphProto(name="q")])
    assert [g.name for g in bodies(node)] == ["p", "q"]
