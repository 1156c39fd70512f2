"""Which lowering a write gets: the cheapest of those that are exact for it and within the budget.

A scatter stays one when matrix products would take many times as long, as in graph networks on large graphs. Who needs
the portable form there asks for it with a budget of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphfix.builder import Builder
from graphfix.graph import Value
from graphfix.index_write import Full, Reduction, Span
from graphfix.lowering.accumulate import OneHotAdd, Reduce
from graphfix.lowering.base import Context, Cost, Lowering
from graphfix.lowering.keep import Scatter, scatter_opset
from graphfix.lowering.mask import MaskPacked, MaskWhere
from graphfix.lowering.mask_region import MaskRegion
from graphfix.lowering.points import PointsBatch, PointsConstant, PointsRuntime
from graphfix.lowering.points_matmul import PointsMatmul
from graphfix.lowering.replace import Replace
from graphfix.lowering.span import SpanMask, SpanRuntime, SpanSlices, peel
from graphfix.selection import Selection

LOWERINGS: tuple[Lowering, ...] = (
    Replace(),
    SpanSlices(),
    SpanMask(),
    SpanRuntime(),
    MaskWhere(),
    MaskRegion(),
    MaskPacked(),
    PointsConstant(),
    PointsBatch(),
    PointsRuntime(),
    PointsMatmul(),
    Reduce(),
    OneHotAdd(),
)


# A scatter is kept for its cost when a form takes more multiply-adds than this (a millisecond or so), and this many
# times the scatter's work.
MOST_PRODUCTS = 1 << 26
MOST_WORK = 4


@dataclass(frozen=True)
class Plan:
    """How a write will be expressed. ``kept`` says why it stays a scatter, when it does."""

    name: str
    cost: Cost
    lowering: Lowering
    peeled: bool = False
    kept: str | None = None

    def emit(self, selection: Selection, builder: Builder) -> Value:
        if not self.peeled:
            return self.lowering.emit(selection, builder)
        return peel(selection, builder, self.lowering.emit)


def choose(selection: Selection, context: Context) -> Plan | str:
    """The plan for a write, or the reasons why there is none."""
    spans = [g for g in selection.groups if isinstance(g.index, Span)]
    mixed = bool(spans) and bool(selection.varying)
    inner = _without_spans(selection) if mixed else selection
    limit = context.limit(selection)
    reasons: list[str] = []
    plans: list[Plan] = []
    for lowering in LOWERINGS:
        reason = lowering.supports(inner, context)
        if reason is not None:
            reasons.append(f"{lowering.name}: {reason}")
            continue
        name = f"span+{lowering.name}" if mixed else lowering.name
        plans.append(Plan(name, lowering.cost(inner, context), lowering, mixed))
    affordable = [p for p in plans if p.cost.largest <= limit]
    usable = [p for p in affordable if p.name not in context.avoid]
    scatter = Scatter()
    reason = scatter.supports(inner, context)
    if affordable:
        cheapest = min(usable or affordable, key=lambda p: p.cost.work)
        if usable and Scatter.name in context.avoid:
            return cheapest
        why = None if reason is not None else _slow(cheapest, scatter.cost(inner, context), inner.reduction, context)
        return cheapest if why is None else Plan(scatter.name, scatter.cost(inner, context), scatter, mixed, why)
    best = min(plans, key=lambda p: p.cost.largest, default=None)
    if reason is not None:
        # Over the budget, but the only form there is.
        return best if best is not None else "; ".join([*reasons, f"{scatter.name}: {reason}"])
    why = "no portable form applies"
    if best is not None:
        needed, allowed = size_text(best.cost.largest), size_text(limit)
        why = f"{best.name} would need an intermediate of {needed}, the budget is {allowed}"
    return Plan(scatter.name, scatter.cost(inner, context), scatter, mixed, why)


def _slow(plan: Plan, scatter: Cost, reduction: Reduction, context: Context) -> str | None:
    """Why a plan takes too much longer than a scatter, or None when it does not."""
    if context.budget is not None or plan.cost.products <= MOST_PRODUCTS or plan.cost.work <= MOST_WORK * scatter.work:
        return None
    if context.opset is not None and context.opset < scatter_opset(reduction):
        return None
    millions = plan.cost.products // 1_000_000
    return (
        f"{plan.name} would take {millions} million multiply-adds, where a scatter moves {size_text(scatter.moved)}; "
        f"--budget {-(-plan.cost.largest >> 20)}M replaces it all the same"
    )


def _without_spans(selection: Selection) -> Selection:
    """The write that is left once every slice is cut out, with the sizes of the whole data: an upper bound."""
    groups = tuple(replace(g, index=Full()) if isinstance(g.index, Span) else g for g in selection.groups)
    return replace(selection, groups=groups)


def size_text(size: int) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GB"
