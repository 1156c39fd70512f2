"""ATen slice_scatter."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.facts import INT64_MAX, Bound
from graphfix.graph import Node, Value
from graphfix.index_write import Full, IndexWrite, Reduction, Span
from graphfix.pass_base import IndexWritePass, Refusal, Site


class AtenSliceScatter(AtenPass, IndexWritePass):
    """Replace ATen slice_scatter nodes, ``x[:, start:end:step] = src``, by standard operators.

    Why: torch.export turns a write into a slice into slice_scatter, which its ONNX exporter expresses by Range and
    ScatterND. `graphfix export` keeps the write as an ATen node instead.
    Before: ``ATen(x, src, dim, start, end, step) operator="slice_scatter"``
    After: Slice and Concat; a constant map and Gather for steps.
    """

    code = "GF110"
    name = "aten-slice-scatter"
    aten_operator = "slice_scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, source = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "src")
        rank = site.facts.rank(data)
        if rank is None or site.facts.rank(source) != rank:
            return Refusal("the rank of the data is unknown, or the source has another one")
        axis = dim_argument(call, rank, site.facts)
        step = int(scalar_argument(call, "step", site.facts, 1))
        if step < 1:
            return Refusal(f"slice_scatter has the step {step}")
        span = Span(_bound(call, "start", site), _bound(call, "end", site), step)
        return IndexWrite(data, (*[Full()] * axis, span), source, Reduction.NONE, node.outputs[0])


def _bound(call: AtenCall[Value], name: str, site: Site) -> Bound:
    """A number where it is known, else the tensor; None for an open end."""
    tensor = call.arguments.get(name)
    known = call.scalars.get(name) if tensor is None else site.facts.scalar(tensor)
    if known is None:
        return tensor
    return None if known >= INT64_MAX else int(known)
