"""ATen slice_scatter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.builder import BOOL, INT64, Builder
from graphfix.facts import INT64_MAX, Bound
from graphfix.graph import Node, Value
from graphfix.index_write import AxisIndex, Full, IndexWrite, Points, Reduction, Span
from graphfix.pass_base import Refusal, Rewrite, Site, lower


@dataclass(frozen=True)
class SliceWrite:
    """``data[:, ..., start:stop:step] = source`` with the slice on ``axis``."""

    data: Value
    source: Value
    axis: int
    start: Bound
    stop: Bound
    step: int
    output: Value


class AtenSliceScatter(AtenPass):
    """Replace ATen slice_scatter nodes, ``x[:, start:end:step] = src``, by standard operators.

    Why: torch.export turns a write into a slice into slice_scatter, which its ONNX exporter expresses by Range and
    ScatterND. `graphfix.export` keeps the write as an ATen node instead.
    Before: ``ATen(x, src, dim, start, end, step) operator="slice_scatter"``
    After: Slice and Concat. With a step: Concat of x and src, and Gather by a map, constant where sizes are.
    """

    code = "GF110"
    name = "aten-slice-scatter"
    aten_operator = "slice_scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, source = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "src")
        rank = site.facts.rank(data)
        if not rank or site.facts.rank(source) != rank:
            return Refusal("the rank of the data is unknown, or the source has another one")
        axis = dim_argument(call, rank, site.facts)
        step = int(scalar_argument(call, "step", site.facts, 1))
        if step < 1:
            return Refusal(f"slice_scatter has the step {step}")
        start, stop = _bound(call, "start", site), _bound(call, "end", site)
        return SliceWrite(data, source, axis, start, stop, step, node.outputs[0])

    def rewrite(self, match: SliceWrite, builder: Builder, site: Site) -> Rewrite | Refusal:
        index: AxisIndex = Span(match.start, match.stop)
        if match.step > 1:
            extent = builder.dims(match.data)[match.axis].constant
            if extent is None or not isinstance(match.start, int | None) or not isinstance(match.stop, int | None):
                return Rewrite(_by_source_map(match, builder), "span_runtime")
            index = Points(builder.constant(np.arange(extent)[match.start : match.stop : match.step]))
        place: tuple[AxisIndex, ...] = (*[Full()] * match.axis, index)
        return lower(IndexWrite(match.data, place, match.source, Reduction.NONE, match.output), builder, site)


def _bound(call: AtenCall[Value], name: str, site: Site) -> Bound:
    """A number where it is known, else the tensor; None for an open end."""
    tensor = call.arguments.get(name)
    known = call.scalars.get(name) if tensor is None else site.facts.scalar(tensor)
    if known is None:
        return tensor
    return None if known >= INT64_MAX else int(known)


def _by_source_map(match: SliceWrite, builder: Builder) -> Value:
    """Gather from data and source put together: position p of the slice takes (p - start) / step of the source."""
    data, axis = match.data, match.axis
    positions = builder.iota(data, [axis])
    size = builder.size(data, axis)
    length = builder.constant([size]) if isinstance(size, int) else size
    start = _edge(match.start, length, builder)
    away = positions if start is None else builder.binary("Sub", positions, start)
    step = builder.constant([match.step])
    turn = builder.binary("Div", away, step)
    hit = builder.equal(builder.binary("Mul", turn, step), away)
    if start is not None:
        hit = builder.binary("And", hit, builder.binary("Greater", away, builder.constant([-1]), BOOL))
    stop = _edge(match.stop, length, builder)
    if stop is not None:
        hit = builder.binary("And", hit, builder.binary("Greater", stop, positions, BOOL))
    source_map = builder.where(hit, builder.binary("Add", turn, length), positions)
    return builder.gather(builder.concat([data, builder.cast(match.source, data.dtype)], axis), source_map, axis)


def _edge(bound: Bound, length: Value, builder: Builder) -> Value | None:
    """A bound as a position from the start, one element; None for an open end. Beyond the data it selects nothing."""
    if bound in (None, 0):
        return builder.constant([0]) if bound == 0 else None
    edge = builder.constant([bound]) if isinstance(bound, int) else builder.as_vector(builder.cast(bound, INT64))
    if builder.facts.nonnegative(edge):
        return edge
    from_end = builder.binary("Add", edge, length)
    zero = builder.constant([0])
    clamped = builder.where(builder.binary("Less", from_end, zero, BOOL), zero, from_end)
    return builder.where(builder.binary("Less", edge, zero, BOOL), clamped, edge)
