"""Read back what exporters make of masks: reads by ``Transpose(NonZero(mask))``, and masks expanded to more axes."""

from __future__ import annotations

from graphfix import aten
from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.masks import MASKS
from graphfix.symbolic import ONE


def read_by_mask(node: Node, facts: Facts) -> tuple[Value, Value] | None:
    """(x, mask) of a node that reads ``x[mask]``."""
    if aten.is_aten(node.op, node.domain) and aten.operator_name(node.op, node.attrs) == "index":
        indices = list_items(node.inputs[1:])
        if len(indices) == 1 and indices[0] is not None and indices[0].dtype in MASKS:
            return node.inputs[0], indices[0]
        return None
    if node.is_op("GatherND") and not node.attrs.get("batch_dims"):
        mask = mask_of_indices(node.inputs[1])
        return (node.inputs[0], mask) if mask is not None else None
    return None


def mask_of_indices(index: Value) -> Value | None:
    """The mask whose ``Transpose(NonZero(mask))`` an index tensor is."""
    node = index.inputs[0] if index.inputs else None
    if node is None or not node.is_op("Transpose") or list(node.attrs.get("perm", [1, 0])) != [1, 0]:
        return None
    source = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
    return source.inputs[0] if source is not None and source.is_op("NonZero") else None


def decided_by(mask: Value, facts: Facts) -> Value:
    """The mask that was expanded to more axes than it decides about, as exporters expand it to all of the data's.

    Looks through Expand (and the cut to the data's sizes that reading an index adds) to what has trailing axes of size
    1 inserted. The mask itself when it was not expanded.
    """
    while mask.inputs:
        node = mask.inputs[0]
        cut = node.is_op("Slice") and Builder.is_own(node)
        if not (node.is_op("Expand", "Identity") or cut):
            break
        mask = node.inputs[0]
    while mask.inputs and mask.inputs[0].is_op("Unsqueeze", "Reshape", "Identity"):
        source = mask.inputs[0].inputs[0]
        before, after = facts.shape(source), facts.shape(mask)
        if (
            before is None
            or after is None
            or after[: len(before)] != before
            or any(d != ONE for d in after[len(before) :])
        ):
            break
        mask = source
    return mask


def list_items(inputs: list[Value]) -> list[Value | None]:
    """Index tensors of an ATen node: given flat, or as one list value."""
    if len(inputs) == 1 and inputs[0].inputs:
        maker = inputs[0].inputs[0]
        if maker.op in ("SequenceConstruct", "ListConstruct"):
            inputs = list(maker.inputs)
    return [i if i.name and not _is_none(i) else None for i in inputs]


def _is_none(value: Value) -> bool:
    return bool(value.inputs) and value.inputs[0].op == "Constant" and value.inputs[0].domain == "prim"
