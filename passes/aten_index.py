"""ATen index: reading by index tensors."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass
from graphfix.builder import BOOL, INT64, Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Full, Mask, Points
from graphfix.lowering.positions import linear_positions
from graphfix.mask_reading import list_items
from graphfix.masks import count_of
from graphfix.pass_base import Refusal, Rewrite, Site
from graphfix.passes.aten_index_put import read_indices
from graphfix.symbolic import Expr


class AtenIndex(AtenPass):
    """Replace ATen index nodes, ``x[i, j]`` and ``x[mask]``, by Gather.

    Why: the exporters of torch 1.8 to 1.11 write reads by index tensors as ATen nodes, the indices as a list
    (SequenceConstruct, or prim::ListConstruct below opset 11). No engine runs them.
    Before: ``ATen(x, SequenceConstruct(i, j)) operator="index"``
    After: ``Gather`` along one axis, or along several axes flattened into one. A read by a mask whose result is not
    written back by the same mask has a size that depends on the data, and needs NonZero: it is reported.
    """

    code = "GF202"
    name = "aten-index"
    aten_operator = "index"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data = call.arguments["self"]
        shape = site.facts.shape(data)
        index = read_indices(list_items(list(node.inputs[1:])), data, site)
        if isinstance(index, Refusal):
            return index
        if shape is None or any(site.facts.rank(i.tensor) is None for i in index if not isinstance(i, Full)):
            return Refusal("the rank of the data or of an index is unknown")
        if any(isinstance(i, Mask) and not site.facts.rank(i.tensor) for i in index):
            return Refusal("a mask without axes adds an axis of size 0 or 1")
        width = sum(site.facts.rank(i.tensor) or 0 if isinstance(i, Mask) else 1 for i in index)
        if width > len(shape):
            return Refusal(f"the index covers {width} axes, but the data has {len(shape)}")
        return data, index

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, index = match
        axes: list[int] = []
        tensors: list[Value] = []
        axis, separated, masked = 0, False, False
        for item in index:
            if isinstance(item, Full):
                axis += 1
                continue
            separated = separated or bool(axes and axes[-1] != axis - 1)
            if isinstance(item, Points):
                axes.append(axis)
                tensors.append(item.tensor)
                axis += 1
            else:
                columns = _mask_columns(item.tensor, builder)
                axes += range(axis, axis + len(columns))
                tensors += columns
                axis += len(columns)
                masked = True
        if not axes:
            return Rewrite(data, "identity")
        result = _gather(data, axes, tensors, separated, builder)
        kept = "the number of rows that a mask selects depends on the data" if masked else None
        return Rewrite(result, "nonzero" if masked else "gather", kept)


def _mask_columns(mask: Value, builder: Builder) -> list[Value]:
    """The positions where a mask holds, as one index vector for each of its axes."""
    mask = builder.cast(mask, BOOL)
    rank, count = builder.rank(mask), count_of(mask)
    if not rank:
        return []
    found = builder.emit("NonZero", [mask], None, INT64, (Expr.of(rank), count))
    columns = []
    for i in range(rank):
        row = builder.emit("Gather", [found, builder.constant(i)], {"axis": 0}, INT64, (count,))
        columns.append(row)
    return columns


def _gather(data: Value, axes: list[int], tensors: list[Value], separated: bool, builder: Builder) -> Value:
    """``data`` read at index tensors that broadcast together; separated ones move to the front, as in PyTorch."""
    order = [*axes, *(a for a in range(builder.rank(data)) if a not in axes)] if separated else None
    total = linear_positions(builder, data, axes, tensors)
    if order is not None:
        data = builder.transpose(data, order)
    first = 0 if separated else axes[0]
    return builder.gather(builder.merge_axes(data, first, len(axes)), total, first)
