"""ATen masked_scatter."""

from __future__ import annotations

from dataclasses import replace

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, tensor_or_scalar
from graphfix.builder import BOOL, Builder
from graphfix.graph import Node, Value
from graphfix.index_write import IndexWrite, Mask, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower
from graphfix.symbolic import ONE


class AtenMaskedScatter(AtenPass):
    """Replace ATen masked_scatter nodes by a running count of the mask and one Gather.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, mask, source) operator="masked_scatter"``
    After: CumSum of the mask says which element of the source each True takes; Gather from both, no NonZero.
    """

    code = "GF106"
    name = "aten-masked-scatter"
    aten_operator = "masked_scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, mask, source = (tensor_or_scalar(call, p) for p in ("self", "mask", "source"))
        if any(site.facts.rank(t) is None for t in (data, mask, source)):
            return Refusal("the rank of the data, the mask or the source is unknown")
        return data, mask, source, node.outputs[0]

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, mask, source, output = match
        mask = builder.cast(mask, BOOL)
        # Expand broadcasts both ways; it does nothing for a mask that is known to be no larger than the data.
        shape = builder.broadcast_shape(data, mask)
        data = builder.expand(data, [builder.size(mask, i) for i in range(builder.rank(mask))], shape)
        mask = builder.expand(mask, [builder.size(data, i) for i in range(builder.rank(data))], shape)
        source = builder.merge_axes(source, 0, builder.rank(source))
        if shape:
            return lower(IndexWrite(data, (Mask(mask),), source, Reduction.NONE, output), builder, site)
        data, mask = builder.reshape(data, [1], [ONE]), builder.reshape(mask, [1], [ONE])
        row = lower(IndexWrite(data, (Mask(mask),), source, Reduction.NONE, output), builder, site)
        return row if isinstance(row, Refusal) else replace(row, result=builder.reshape(row.result, [], []))
