"""Chains of writes into slices of one tensor."""

from __future__ import annotations

from dataclasses import dataclass

from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.lowering.span import concat_part
from graphfix.pass_base import Pass, Rewrite, Site


@dataclass(frozen=True)
class _Part:
    """A slice of what an earlier write put together."""

    data: Value
    axis: int
    start: int
    stop: int | None


class SpanChain(Pass):
    """Merge the Slice and Concat nodes that chained writes into one tensor leave.

    Why: decode heads and unrolled loops write one slice after the other and read in between
    (``y[..., 0:2] = ...; y[..., 2:4] = f(y[..., 2:4])``). One Concat at the end does what one for each write does.
    Before: ``Slice(Concat(a, Slice(y, 2:)), 2:4)``
    After: ``Slice(y, 2:4)``; only Concat nodes that graphfix made are looked through.
    """

    code = "GF122"
    name = "span-chain"
    asked = False
    silent = True

    def match(self, node: Node, site: Site) -> _Part | list[Value] | None:
        if node.is_op("Slice"):
            return self._slice(node, site)
        if node.is_op("Concat") and Builder.is_own(node):
            return self._nested(node, site)
        return None

    @staticmethod
    def _slice(node: Node, site: Site) -> _Part | None:
        data = node.inputs[0]
        maker = data.inputs[0] if data.inputs else None
        if maker is None or not maker.is_op("Concat") or not Builder.is_own(maker):
            return None
        cuts = site.facts.slices(node)
        rank = site.facts.rank(data)
        if cuts is None or rank is None or set(cuts) != {maker.attrs["axis"] % rank}:
            return None
        ((axis, (start, stop, step)),) = cuts.items()
        start = 0 if start is None else start
        if step != 1 or not isinstance(start, int) or not isinstance(stop, int | None) or min(start, stop or 0) < 0:
            return None
        return _Part(data, axis, start, stop) if concat_part(data, axis, start, stop, site.facts) is not None else None

    @staticmethod
    def _nested(node: Node, site: Site) -> list[Value] | None:
        axis = node.attrs["axis"]
        flat: list[Value] = []
        for value in node.inputs:
            maker = value.inputs[0] if value.inputs else None
            inner = (
                maker is not None and maker.is_op("Concat") and Builder.is_own(maker) and maker.attrs["axis"] == axis
            )
            alone = len(value.outputs) == 1 and value not in site.scope.model.outputs
            flat += list(maker.inputs) if maker is not None and inner and alone else [value]
        return flat if len(flat) > len(node.inputs) else None

    def rewrite(self, match: _Part | list[Value], builder: Builder, site: Site) -> Rewrite:
        if isinstance(match, list):
            return Rewrite(builder.concat(match, builder.anchor.attrs["axis"]), "concat")
        pieces = concat_part(match.data, match.axis, match.start, match.stop, site.facts)
        assert pieces is not None
        parts = [builder.slice(piece, match.axis, first, last) for piece, first, last in pieces]
        return Rewrite(builder.concat(parts, match.axis), "slice")
