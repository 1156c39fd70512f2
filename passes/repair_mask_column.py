"""Masks beside other indices, whose positions an exporter counts once too often."""

from __future__ import annotations

from dataclasses import dataclass

from graphfix.builder import INT64, Builder
from graphfix.facts import MASKS, Facts
from graphfix.graph import Node, Value
from graphfix.pass_base import Fault, Repair, Rewrite, Site
from graphfix.symbolic import ONE, Expr

_COLUMN_PARTS = ("Expand", "Unsqueeze", "Concat", "Cast", "Identity")


@dataclass(frozen=True)
class _Positions:
    """The positions of a mask of rank 1, to be given ``rank`` dimensions, all but the first of size 1."""

    mask: Value
    rank: int


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
        runs = _fits(node.outputs[0], len(shape), site.facts) and all(_is_single(w.inputs[2], site.facts) for w in writes)
        reason = (
            f"all {len(shape)} rows of NonZero are taken for positions of the mask, which only the first one holds, so "
            "that position 0 is written, too"
        )
        return Fault(reason, _Positions(mask, len(shape)), runs)

    def rewrite(self, match: _Positions, builder: Builder, site: Site) -> Rewrite:
        count = Expr.dim(f"true({match.mask.name})")
        found = builder.emit("NonZero", [match.mask], None, INT64, (ONE, count))
        row = builder.merge_axes(found, 0, 2)
        return Rewrite(builder.insert_axes(row, range(1, match.rank)), "positions")


def _writes(positions: Value) -> list[Node]:
    """The ScatterND nodes whose index the positions are a column of, whole; none when anything else is done with them."""
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
        reader.is_op("Shape") or (reader.is_op("Add") and _only_measured(reader.outputs[0])) for reader in tensor.outputs
    )


def _fits(positions: Value, rows: int, facts: Facts) -> bool:
    """Whether positions of shape [rows, n] broadcast with the other indices as they are."""
    for reader in positions.outputs:
        if not reader.is_op("Add"):
            continue
        for other in reader.inputs:
            shape = facts.shape(other) if other is not positions else None
            if shape is not None and len(shape) > 1 and shape[-2] not in (ONE, Expr.of(rows)):
                return False
    return True


def _is_single(values: Value, facts: Facts) -> bool:
    """Whether all that is written is one value."""
    if facts.uniform(values) is not None:
        return True
    while values.inputs and values.inputs[0].is_op("Expand", "Identity"):
        values = values.inputs[0].inputs[0]
    shape = facts.shape(values)
    return shape is not None and all(d == ONE for d in shape)
