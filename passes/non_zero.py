"""NonZero nodes that no other pass could do without."""

from __future__ import annotations

from graphfix.builder import Builder
from graphfix.graph import Node
from graphfix.pass_base import Pass, Refusal, Rewrite, Site


class NonZero(Pass):
    """Report the NonZero nodes that remain.

    Why: the size of NonZero's result depends on the data; several engines refuse it, others leave their fast path.
    Where a mask is read and written back, the write's pass makes NonZero unnecessary. Where the rows that a mask picks
    leave the model, or go into something that does not work row by row, their number is part of the result: only the
    model's author can change that.
    Before: ``GatherND(x, Transpose(NonZero(mask)))`` as an output of the model
    After: the same, with a line in the report
    """

    code = "GF123"
    name = "non-zero"
    asked = False

    def match(self, node: Node, site: Site) -> Refusal | None:
        if not node.is_op("NonZero") or Builder.is_own(node):
            return None
        return Refusal("the number of positions where a mask holds depends on the data, and is used as such")

    def rewrite(self, match: None, builder: Builder, site: Site) -> Rewrite | Refusal:
        raise AssertionError("NonZero is never rewritten")
