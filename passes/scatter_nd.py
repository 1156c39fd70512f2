"""Standard ScatterND nodes."""

from __future__ import annotations

from dataclasses import replace

from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_reading import read_write
from graphfix.index_write import Full, IndexWrite, Mask, Points, Reduction, Span
from graphfix.mask_reading import decided_by, mask_of_indices
from graphfix.packed_values import find_packed_values
from graphfix.pass_base import Pass, Refusal, Rewrite, Site, lower
from graphfix.symbolic import Expr


class ScatterND(Pass):
    """Replace ScatterND nodes by portable operators.

    Why: engines refuse ScatterND, ignore its reduction, or compute it wrongly; the NonZero that feeds it for masks has
    a size that depends on the data.
    Before: ``ScatterND(x, Transpose(NonZero(mask)), v)``, ``ScatterND(x, indices, v)``
    After: Where for masks; for other indices what index_put would become. Kept when that would cost too much.
    """

    code = "GF120"
    name = "scatter-nd"
    asked = False

    def match(self, node: Node, site: Site):
        if not node.is_op("ScatterND") or len(node.inputs) != 3:
            return None
        data, index, _ = node.inputs
        shape, index_shape = site.facts.shape(data), site.facts.shape(index)
        if shape is None or index_shape is None or not index_shape or index_shape[-1].constant is None:
            return Refusal("the rank of the data or the width of the indices is unknown")
        if not 0 < index_shape[-1].constant <= len(shape):
            return Refusal("the indices are wider than the data has axes")
        reduction = Reduction((node.attrs.get("reduction") or b"none").decode())
        return node, reduction, index_shape[-1].constant

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        node, reduction, width = match
        data, index, updates = node.inputs
        place, updates = read_write(index, updates, data, width, site.facts, builder)
        if len(place) == 1 and isinstance(place[0], Mask):
            write = masked_write(node, place[0], updates, reduction, site)
        else:
            write = IndexWrite(data, place, updates, reduction, node.outputs[0])
        order = _turned_for_the_write(node, write, site)
        if order is None:
            return portable(lower(write, builder, site), builder)
        result = portable(lower(_untransposed(write, order, builder), builder, site), builder)
        if isinstance(result, Refusal) or result.kept is not None:
            return result
        return replace(result, result=builder.transpose(result.result, order))

    def operator(self, node: Node) -> str:
        return "ScatterND"


def _turned_for_the_write(node: Node, write: IndexWrite, site: Site) -> list[int] | None:
    """The order of the Transpose in front of a write to the first axis, when another one behind it turns the axes back.

    So does torch.onnx (dynamo) write ``x[:, :, i] = v``: ScatterND knows leading axes only.
    """
    order = site.facts.permutation(write.data)
    if order is None or len(write.index) != 1 or not isinstance(write.index[0], Points | Span):
        return None
    entry, output = write.index[0], node.outputs[0]
    if isinstance(entry, Points) and site.facts.rank(entry.tensor) != 1:
        return None
    if site.facts.uniform(write.values) is None and site.facts.rank(write.values) != len(order):
        return None
    back = [order.index(axis) for axis in range(len(order))]
    readers = [site.facts.permutation(reader.outputs[0]) for reader in output.outputs]
    alone = output not in site.scope.model.outputs
    return order if alone and readers and all(reader == back for reader in readers) else None


def _untransposed(write: IndexWrite, order: list[int], builder: Builder) -> IndexWrite:
    """The same write into what was transposed."""
    back = [order.index(axis) for axis in range(len(order))]
    rank = builder.facts.rank(write.values)
    values = builder.transpose(write.values, back) if rank == len(order) else write.values
    index = (*[Full()] * order[0], *write.index)
    return replace(write, data=write.data.inputs[0].inputs[0], index=index, values=values)


def masked_write(node: Node, mask: Mask, updates: Value, reduction: Reduction, site: Site) -> IndexWrite:
    """A write by a mask, with the mask and the values as they were before exporters expanded and flattened them.

    They expand the mask to all of data's axes and flatten the values: the rows that the narrow mask picks, in order.
    """
    data, output = node.inputs[0], node.outputs[0]
    updates = _without_take(updates, site)
    wide = IndexWrite(data, (mask,), updates, reduction, output)
    facts = site.facts
    shape, data_shape = facts.shape(mask.tensor), facts.shape(data)
    root = decided_by(mask.tensor, facts)
    narrow = facts.shape(root)
    if shape is None or narrow is None or data_shape is None or not narrow:
        return wide
    axes = len(narrow)
    rows = _rows(updates, data_shape[axes : len(shape)], site)
    if rows is None:
        return wide
    write = IndexWrite(data, (Mask(root),), rows, reduction, output)
    # Sizes that are not known to be equal: when the values are read by the narrow mask itself, there is one row for
    # each position of it, and a scatter with as many indices has a mask that was not repeated (or one that is empty).
    same_sizes = narrow == shape[:axes] == data_shape[:axes]
    return write if same_sizes or find_packed_values(rows, 0, root, facts) is not None else wide


def _rows(updates: Value, row: tuple[Expr, ...], site: Site) -> Value | None:
    """Flattened values as rows of a shape, when that is what was flattened."""
    node = updates.inputs[0] if updates.inputs else None
    if node is not None and node.is_op("Reshape", "Flatten") and site.facts.rank(updates) == 1:
        shape = site.facts.shape(node.inputs[0])
        if shape is not None and len(shape) == 1 + len(row) and shape[1:] == row:
            return node.inputs[0]
    return updates if not row else None


def portable(rewrite: Rewrite | Refusal, builder: Builder) -> Rewrite | Refusal:
    """A node that is a scatter already does not become another one: it is kept as it is.

    But for a ``reduction="none"`` that is written out: it says what leaving it out says, and some engines refuse the
    attribute (TensorRT 10) or compute something else for it (MNN).
    """
    reason = rewrite.kept if isinstance(rewrite, Rewrite) else rewrite.reason
    if isinstance(rewrite, Rewrite) and reason is None:
        return rewrite
    node, old = builder.anchor, builder.anchor.outputs[0]
    if node.attrs.get("reduction") != b"none":
        return Refusal(reason or "")
    attrs = {name: value for name, value in node.attrs.items() if name != "reduction"}
    plain = builder.emit(node.op, list(node.inputs), attrs, old.dtype, builder.facts.shape(old))
    return Rewrite(plain, "without reduction=none", reason)


def _without_take(updates: Value, site: Site) -> Value:
    """Updates without a Slice from 0 that only takes as many rows as the mask has."""
    node = updates.inputs[0] if updates.inputs else None
    if node is None or not node.is_op("Slice"):
        return updates
    cuts = site.facts.slices(node)
    if cuts is None or set(cuts) != {0}:
        return updates
    start, stop, step = cuts[0]
    counted = isinstance(stop, Value) and _is_count(stop)
    return node.inputs[0] if start == 0 and step == 1 and counted else updates


def _is_count(tensor: Value) -> bool:
    """Whether a tensor is the size of a NonZero result."""
    while tensor.inputs:
        node = tensor.inputs[0]
        if node.is_op("Unsqueeze", "Squeeze", "Reshape", "Cast", "Gather", "Identity"):
            tensor = node.inputs[0]
        elif node.is_op("Shape"):
            return mask_of_indices(node.inputs[0]) is not None
        else:
            return False
    return False
