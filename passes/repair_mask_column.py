"""Masks beside other indices, whose positions an exporter counts once too often."""

from __future__ import annotations

from dataclasses import dataclass

from graphfix.builder import INT64, Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.masks import MASKS
from graphfix.pass_base import Fault, Repair, Rewrite, Site
from graphfix.symbolic import ONE, Expr

_COLUMN_PARTS = ("Expand", "Unsqueeze", "Concat", "Cast", "Identity")


@dataclass(frozen=True)
class _Positions:
    """The positions of a mask of rank 1, to be given ``rank`` dimensions, all but one of size 1: the first, or with
    ``last`` (the other indices being single ones) the last, which is a mask's place to lowerings."""

    mask: Value
    rank: int
    last: bool


class RepairMaskColumn(Repair):
    """Take the positions of a mask, and not their column numbers as well, in ``x[mask, 0] = value``.

    Why: torch.onnx (TorchScript) reshapes the mask to a column so that it broadcasts with the other indices, and then
    takes NonZero of the column: the positions and a row of zeros. All of it is used as the index of the first axis, so
    that ``x[0, 0]`` is written too whenever the mask holds anywhere. Other values than a single one do not fit, and the
    model fails; with a single value it runs, and this is repaired only with ``--repair mask-column``.

    Before: ``NonZero(Reshape(mask, [-1, 1]))``
    After: ``Reshape(NonZero(mask), [-1, 1])``
    """

    code = "GF305"
    name = "repair-mask-column"

    def match(self, node: Node, site: Site) -> Fault | None:
        if not node.is_op("NonZero") or not node.inputs[0].inputs or not node.inputs[0].inputs[0].is_op("Reshape"):
            return None
        column = node.inputs[0]
        mask, target = column.inputs[0].inputs
        shape = site.facts.const(target)
        if site.facts.rank(mask) != 1 or column.dtype not in MASKS or shape is None or len(shape) < 2:
            return None
        if any(d != 1 for d in shape[1:]):
            return None
        writes = _writes(node.outputs[0])
        if not writes:
            return None
        others = _others(node.outputs[0], site.facts)
        rows = Expr.of(len(shape))
        runs = all(len(o) < 2 or o[-2] in (ONE, rows) for o in others)
        runs = runs and all(_is_single(w.inputs[2], site.facts) for w in writes)
        last = bool(others) and all(d == ONE for o in others for d in o)
        reason = (
            f"all {len(shape)} rows of NonZero are taken for positions of the mask, which only the first one holds, so "
            "that position 0 is written, too"
        )
        return Fault(reason, _Positions(mask, len(shape), last), runs)

    def rewrite(self, match: _Positions, builder: Builder, site: Site) -> Rewrite:
        count = Expr.dim(f"true({match.mask.name})")
        found = builder.emit("NonZero", [match.mask], None, INT64, (ONE, count))
        ones = match.rank - 1
        target = [*[1] * ones, -1] if match.last else [-1, *[1] * ones]
        shape = [count if size == -1 else ONE for size in target]
        return Rewrite(builder.emit("Reshape", [found, builder.constant(target)], None, INT64, shape), "positions")


def _writes(positions: Value) -> list[Node]:
    """The ScatterND nodes whose index the positions are a column of, whole; none when they have another use."""
    found: list[Node] = []
    queue = [positions]
    while queue:
        tensor = queue.pop()
        for reader in tensor.outputs:
            if reader.is_op("ScatterND") and tensor is reader.inputs[1]:
                found.append(reader)
            elif reader.is_op(*_COLUMN_PARTS) and tensor in reader.inputs:
                queue.append(reader.outputs[0])
            elif not (reader.is_op("Shape", "GatherND") or (reader.is_op("Add") and _only_measured(reader.outputs[0]))):
                return []
    return found


def _only_measured(tensor: Value) -> bool:
    """Whether only the shape of a sum (which tells what the indices broadcast to) is used."""
    return all(
        reader.is_op("Shape") or (reader.is_op("Add") and _only_measured(reader.outputs[0]))
        for reader in tensor.outputs
    )


def _others(positions: Value, facts: Facts) -> list[tuple[Expr, ...]]:
    """The shapes of the other indices: exporters add all of them up to find the shape that they broadcast to."""
    found: list[tuple[Expr, ...]] = []
    for reader in positions.outputs:
        if reader.is_op("Add"):
            shapes = [facts.shape(other) for other in reader.inputs if other is not positions]
            found += [shape for shape in shapes if shape is not None]
            found += _others(reader.outputs[0], facts)
    return found


def _is_single(values: Value, facts: Facts) -> bool:
    """Whether all that is written is one value."""
    if facts.uniform(values) is not None:
        return True
    while values.inputs and values.inputs[0].is_op("Expand", "Identity"):
        values = values.inputs[0].inputs[0]
    shape = facts.shape(values)
    return shape is not None and all(d == ONE for d in shape)
