"""The removed experimental operator DynamicSlice."""

from __future__ import annotations

from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.pass_base import Pass, Refusal, Rewrite, Site


class DynamicSlice(Pass):
    """Replace DynamicSlice nodes by Slice with computed bounds.

    Why: DynamicSlice was an experimental operator that ONNX removed in 2019; the exporters of torch 1.8 to 1.11 still
    write it at opset 9 for slices with computed bounds. No engine runs it.
    Before: ``DynamicSlice(x, starts, ends, axes)``
    After: ``Slice(x, starts, ends, axes)``; the model is raised to opset 10 or more.
    """

    code = "GF204"
    name = "dynamic-slice"

    def match(self, node: Node, site: Site) -> Node | Refusal | None:
        if not node.is_op("DynamicSlice"):
            return None
        if node.arg(0) is None or node.arg(1) is None or node.arg(2) is None:
            return Refusal("DynamicSlice lacks its data, starts or ends")
        return node

    def rewrite(self, match: Node, builder: Builder, site: Site) -> Rewrite | Refusal:
        builder.require(10, "Slice with computed bounds")
        data = match.inputs[0]
        given = [match.arg(i) for i in range(min(len(match.inputs), 4))]
        shape = site.facts.shape(match.outputs[0])
        return Rewrite(builder.emit("Slice", given, None, data.dtype, shape), "slice")
