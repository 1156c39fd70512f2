"""Where on bool data."""

from __future__ import annotations

from graphfix.builder import BOOL, Builder
from graphfix.graph import Node
from graphfix.pass_base import Pass, Refusal, Rewrite, Site


class RepairWhereBool(Pass):
    """Express Where on bool data by And, Or and Not.

    Why: ``m[mask] = True`` on a bool tensor is exported as Where on bool data. That is valid ONNX, but ONNX Runtime's
    CPU provider has no kernel for it and does not load the model.

    Before: ``Where(mask, a, b)`` with bool a and b
    After: ``Or(And(mask, a), And(Not(mask), b))``, less where a or b is constant. No result changes.
    """

    code = "GF304"
    name = "repair-where-bool"
    asked = False

    def match(self, node: Node, site: Site) -> Node | Refusal | None:
        if not node.is_op("Where") or len(node.inputs) != 3:
            return None
        if BOOL not in (node.outputs[0].dtype, node.inputs[1].dtype, node.inputs[2].dtype):
            return None
        if any(site.facts.shape(t) is None for t in node.inputs):
            return Refusal("the rank of the mask or of the data is unknown")
        return node

    def rewrite(self, match: Node, builder: Builder, site: Site) -> Rewrite:
        return Rewrite(builder.where(*match.inputs), "logic")
