"""ATen masked_fill."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, tensor_or_scalar
from graphfix.builder import BOOL, WHERE_TYPES, Builder
from graphfix.graph import Node, Value
from graphfix.pass_base import Refusal, Rewrite, Site


class AtenMaskedFill(AtenPass):
    """Replace ATen masked_fill nodes by Where.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, mask, value) operator="masked_fill"``
    After: ``Where(mask, value, x)``: here the mask broadcasts with x from the right, unlike in ``x[mask] = value``.
    """

    code = "GF105"
    name = "aten-masked-fill"
    aten_operator = "masked_fill"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, mask = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "mask")
        value = call.scalars.get("value", call.arguments.get("value"))
        if value is None or data.dtype not in WHERE_TYPES:
            return Refusal("masked_fill lacks its value, or there is no Where for the element type of its data")
        if site.facts.rank(data) is None or site.facts.rank(mask) is None:
            return Refusal("the rank of the data or of the mask is unknown")
        return data, mask, value

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, mask, value = match
        if isinstance(value, int | float):
            value = builder.constant(value, data.dtype)
        elif builder.facts.rank(value) != 0:
            if builder.facts.scalar(value) is None:
                return Refusal("the value of masked_fill is not a scalar")
            value = builder.reshape(value, [], [])
        value = builder.cast(value, data.dtype)
        return Rewrite(builder.where(builder.cast(mask, BOOL), value, data), "mask_where")
