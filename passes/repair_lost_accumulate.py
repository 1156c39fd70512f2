"""Sums that an exporter turned into plain writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Constant, Node, Value
from graphfix.index_reading import read_index
from graphfix.index_write import Along, IndexWrite, Reduction
from graphfix.lowering.keep import REDUCED_TYPES
from graphfix.mask_reading import mask_of_indices
from graphfix.pass_base import Fault, Refusal, Repair, Rewrite, Site, lower
from graphfix.symbolic import ONE

_SCATTERS = ("ScatterND", "ScatterElements", "Scatter")


@dataclass(frozen=True)
class _Sum:
    """``data`` plus what ``scatter`` writes into zeros."""

    data: Value
    scatter: Node


class RepairLostAccumulate(Repair):
    """Add up values that meet at one index, where the exporter lets the last one win.

    Why: torch.onnx (TorchScript) writes ``index_put_(..., accumulate=True)``, ``index_add_`` and, below opset 16,
    ``scatter_add_`` as a scatter into zeros and an Add. Where an index occurs twice, all values but the last are lost.
    With unique indices the graph is right, and a graph does not tell what its indices will be: this is repaired only
    with ``--repair lost-accumulate``. Indices that can be seen to be unique are no fault.

    Before: ``Add(x, ScatterND(zeros, indices, v))``, ``Add(x, ScatterElements(zeros, indices, v))``
    After: ``ScatterND(x, indices, v) reduction="add"`` and what becomes of it; below opset 16 a portable form at once.
    """

    code = "GF301"
    name = "repair-lost-accumulate"

    def match(self, node: Node, site: Site) -> Fault | Refusal | None:
        if not node.is_op("Add") or len(node.inputs) != 2:
            return None
        for data, written in (node.inputs, node.inputs[::-1]):
            scatter = written.inputs[0] if written.inputs else None
            if scatter is None or not scatter.is_op(*_SCATTERS) or len(scatter.inputs) != 3:
                continue
            alone = len(written.outputs) == 1 and written not in site.scope.model.outputs
            if not alone or (scatter.attrs.get("reduction") or b"none") != b"none":
                continue
            zeros, index, _ = scatter.inputs
            shape = site.facts.shape(zeros)
            if shape is None or shape != site.facts.shape(data) or not _is_zero(zeros, site.facts):
                continue
            if _is_unique(scatter, index, site.facts):
                continue
            reason = (
                f"of values that meet at one index only the last is added ({scatter.op} into zeros, then Add), where "
                "index_put(accumulate=True), index_add and scatter_add, which are exported so, add all of them"
            )
            return Fault(reason, _Sum(data, scatter), runs=True)
        return None

    def rewrite(self, match: _Sum, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, scatter = match.data, match.scatter
        _, index, updates = scatter.inputs
        axis = scatter.attrs.get("axis", 0) % max(builder.rank(data), 1)
        if builder.opset >= 16 and data.dtype in REDUCED_TYPES:
            attrs = {"reduction": "add"} if scatter.op == "ScatterND" else {"reduction": "add", "axis": axis}
            summed = builder.emit(scatter.op, [data, index, updates], attrs, data.dtype, builder.dims(data))
            return Rewrite(summed, "reduction=add")
        output = builder.anchor.outputs[0]
        if scatter.op != "ScatterND":
            return lower(IndexWrite(data, (Along(axis, index),), updates, Reduction.ADD, output), builder, site)
        width = builder.dims(index)[-1].constant if builder.facts.shape(index) else None
        if width is None or not 0 < width <= builder.rank(data):
            return Refusal("the width of the indices is unknown or larger than the data has axes")
        place = read_index(index, data, width, site.facts, builder)
        return lower(IndexWrite(data, place, updates, Reduction.ADD, output), builder, site)


def _is_zero(tensor: Value, facts: Facts) -> bool:
    """Whether a tensor holds nothing but zeros, constants of any size included."""
    fill = facts.uniform(tensor)
    if fill is not None:
        return bool(fill == 0)
    proto = tensor.proto if isinstance(tensor, Constant) else None
    if tensor.inputs and tensor.inputs[0].is_op("Constant"):
        proto = tensor.inputs[0].attrs.get("value")
    if not isinstance(proto, TensorProto) or proto.data_location == TensorProto.EXTERNAL or not proto.raw_data:
        return False
    return not np.frombuffer(proto.raw_data, np.uint8).any()


def _is_unique(scatter: Node, index: Value, facts: Facts) -> bool:
    """Whether it can be seen that no position is written twice."""
    known, shape = facts.const(index), facts.shape(index)
    if shape is None:
        return False
    if scatter.op == "ScatterND":
        if mask_of_indices(index) is not None or all(d == ONE for d in shape[:-1]):
            return True
        if known is not None:
            rows = _wrapped(known, facts.shape(scatter.inputs[0]) or ()).reshape(-1, known.shape[-1])
            return len(np.unique(rows, axis=0)) == len(rows)
        return shape[-1] == ONE and _is_distinct(index, None, facts)
    rank = facts.rank(scatter.inputs[0]) or 1
    axis = scatter.attrs.get("axis", 0) % rank
    if axis >= len(shape) or shape[axis] == ONE:
        return axis < len(shape)
    if known is not None:
        extent = (facts.shape(scatter.inputs[0]) or ())[axis : axis + 1]
        along = np.sort(_wrapped(known[..., None], extent)[..., 0], axis)
        return not (np.diff(along, axis=axis) == 0).any()
    return _is_distinct(index, axis, facts)


def _wrapped(index: np.ndarray, sizes: tuple) -> np.ndarray:
    """Indices of shape [..., axes] with negative ones counted from the end, as far as sizes are known."""
    known = [s.constant or 0 for s in sizes[: index.shape[-1]]]
    return np.where(index < 0, index + np.array(known, np.int64), index)


def _is_distinct(index: Value, axis: int | None, facts: Facts) -> bool:
    """Whether an index is ``arange`` or the positions of a TopK, along the axis (None: along its only long one)."""
    while True:
        ramp = facts.ramp(index)
        if ramp is not None:
            return axis in (None, ramp.axis)
        node = index.inputs[0] if index.inputs else None
        if node is None:
            return False
        if node.is_op("TopK"):
            rank = facts.rank(index)
            along = node.attrs.get("axis", -1)
            return rank is not None and (rank == 1 if axis is None else along % rank == axis)
        same_layout = node.is_op("Cast", "Identity") or (axis is None and node.is_op("Unsqueeze", "Squeeze", "Reshape"))
        if not same_layout:
            return False
        index = node.inputs[0]
