"""What a pass is.

One file, one pass, one class. A pass finds nodes (`match`, which changes nothing) and says what takes their place
(`rewrite`). It holds no state: all it may know is in the `Site` it is given.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from graphfix.builder import Builder
from graphfix.counters import at_counter
from graphfix.facts import Facts
from graphfix.graph import Node, Scope, Value
from graphfix.index_write import Along, IndexWrite, Mask
from graphfix.lowering.along import lower_along
from graphfix.lowering.base import Context
from graphfix.lowering.choose import choose
from graphfix.lowering.mask_region import MaskRegion
from graphfix.lowering.paired_mask import unpack
from graphfix.row_region import find_row_region
from graphfix.selection import Group, PairedMask, Unresolvable, resolve
from graphfix.symbolic import product


class Safety(enum.Enum):
    """EXACT passes keep every result. CHANGES_RESULT passes repair an exporter's fault: unasked only where the model
    cannot run as it is."""

    EXACT = "exact"
    CHANGES_RESULT = "changes result"


@dataclass(frozen=True)
class Site:
    """Where a pass is at work: the scope of the node, facts about its tensors, and the limits of the run."""

    scope: Scope
    facts: Facts
    context: Context


@dataclass(frozen=True)
class Refusal:
    """The node is one the pass is for, but it cannot be rewritten; ``reason`` goes to the report."""

    reason: str


@dataclass(frozen=True)
class Fault:
    """What a `Repair` found: a node that hardly does what the author of the model wrote.

    ``reason`` says what is wrong, for the report; ``match`` is what `rewrite` needs. ``runs`` is False only when the
    graph cannot run as it is (but for sizes that happen to coincide) and one reading of the node makes it run.
    """

    reason: str
    match: Any
    runs: bool


@dataclass(frozen=True)
class Rewrite:
    """What takes the node's place: ``result`` becomes its first output. ``lowering`` names the form for the report,
    ``kept`` says why it is not a portable one, if so."""

    result: Value
    lowering: str
    kept: str | None = None


class Pass(ABC):
    """A rewrite of one kind of node. ``code`` is stable (``GF101``), ``name`` is what users type."""

    code: ClassVar[str]
    name: ClassVar[str]
    safety: ClassVar[Safety] = Safety.EXACT
    asked: ClassVar[bool] = True  # nodes that stay are a failure to report, not only a remark
    silent: ClassVar[bool] = False  # tidies what other passes made: not a replacement to report

    @abstractmethod
    def match(self, node: Node, site: Site) -> Any | Refusal | None:
        """None when the node is not one of this pass; a Refusal when it is but must stay; else what `rewrite` needs."""

    @abstractmethod
    def rewrite(self, match: Any, builder: Builder, site: Site) -> Rewrite | Refusal:
        """Emit what takes the node's place."""

    def operator(self, node: Node) -> str:
        """What to call the node in the report."""
        return node.op


class Repair(Pass):
    """A pass that undoes a fault of an exporter, so that the graph computes something else than before.

    Repairs run before all other passes, on the model as it was given. What `match` finds is always reported. It is
    repaired unasked when the graph cannot run as it is; a fault in a graph that runs is a suspicion, repaired only when
    the pass was asked for (by its name without ``repair-``).
    """

    safety = Safety.CHANGES_RESULT
    asked = False

    @abstractmethod
    def match(self, node: Node, site: Site) -> Fault | Refusal | None: ...


class IndexWritePass(Pass):
    """A pass whose match is an IndexWrite: all of them share their lowerings."""

    @abstractmethod
    def match(self, node: Node, site: Site) -> IndexWrite | Refusal | None: ...

    def rewrite(self, match: IndexWrite, builder: Builder, site: Site) -> Rewrite | Refusal:
        return lower(match, builder, site)


def lower(write: IndexWrite, builder: Builder, site: Site) -> Rewrite | Refusal:
    """Lower an index write by the cheapest form that is exact for it and within the budget."""
    if write.data.dtype is None:
        return Refusal("the element type of the data is unknown")
    if len(write.index) == 1 and isinstance(write.index[0], Along):
        written = lower_along(write, builder, site.context)
        return Refusal(written) if isinstance(written, str) else Rewrite(*written)
    try:
        selection = resolve(at_counter(write, site.facts, builder), site.facts)
    except PairedMask:
        unpacked, restore = unpack(write, builder)
        result = lower(unpacked, builder, site)
        return result if isinstance(result, Refusal) else replace(result, result=restore(result.result))
    except Unresolvable as reason:
        region = find_row_region(write, site.facts)
        return Refusal(str(reason)) if region is None else Rewrite(region.emit(builder), "mask_where")
    if any(g.length.constant == 0 or _is_never(g, site.facts) for g in selection.groups):
        return Rewrite(write.data, "nothing is written")
    if MaskRegion().supports(selection, site.context) is not None:
        region = find_row_region(write, site.facts)
        if region is not None:
            return Rewrite(region.emit(builder), "mask_where")
    plan = choose(selection, site.context)
    if isinstance(plan, str):
        return Refusal(plan)
    return Rewrite(plan.emit(selection, builder), plan.name, plan.kept)


def _is_never(group: Group, facts: Facts) -> bool:
    """Whether a group is a constant mask that holds nowhere."""
    if not isinstance(group.index, Mask):
        return False
    mask, shape = facts.const(group.index.tensor), facts.shape(group.index.tensor)
    return (mask is not None and not mask.any()) or (shape is not None and product(shape).constant == 0)
