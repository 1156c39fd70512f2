"""ATen arange."""

from __future__ import annotations

from onnx import TensorProto

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, scalar_argument
from graphfix.builder import FLOATS, INT64, Builder
from graphfix.facts import INTEGERS
from graphfix.graph import Node, Value
from graphfix.pass_base import Refusal, Rewrite, Site
from graphfix.shapes import SCALAR_TYPES
from graphfix.symbolic import Expr


class AtenArange(AtenPass):
    """Replace ATen arange nodes by Range, or by a constant where the bounds are known.

    Why: below opset 11 there is no Range; the exporters of torch 1.8 to 1.11 write an ATen node that no engine runs.
    Before: ``ATen(end, dtype, layout, device, pin_memory) operator="arange"``
    After: ``Range(0, end, 1)``; the model is raised to opset 11 for it when the end is not known.
    """

    code = "GF201"
    name = "aten-arange"
    aten_operator = "arange"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        code = scalar_argument(call, "dtype", site.facts)
        bounds = [call.scalars.get(p, call.arguments.get(p)) for p in ("start", "end", "step")]
        if bounds[1] is None:
            return Refusal("arange lacks its end")
        integral = all(b is None or (isinstance(b, int) or getattr(b, "dtype", None) in INTEGERS) for b in bounds)
        dtype = SCALAR_TYPES.get(code) if code is not None else INT64 if integral else TensorProto.FLOAT
        if dtype is None:
            return Refusal(f"arange has no element type {code}")
        if dtype not in FLOATS and not integral:
            return Refusal("an integer arange with bounds that are not integers")
        return node, bounds, dtype

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        node, bounds, dtype = match
        value = site.facts.const(node.outputs[0])
        if value is not None and value.size <= 65536:
            return Rewrite(builder.constant(value, dtype), "constant")
        builder.require(11, "Range")
        # Range takes the wide types; PyTorch too computes narrow ones wide.
        wide = dtype if dtype in (INT64, TensorProto.FLOAT, TensorProto.DOUBLE) else INT64
        wide = TensorProto.FLOAT if dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16) else wide
        ends = []
        for bound, default in zip(bounds, (0, None, 1), strict=True):
            if bound is None or isinstance(bound, int | float):
                ends.append(builder.constant(default if bound is None else bound, wide))
                continue
            bound = builder.cast(bound, wide)
            ends.append(bound if builder.facts.rank(bound) == 0 else builder.reshape(bound, [], []))
        shape = site.facts.shape(node.outputs[0]) or (Expr.dim(f"{node.label}[0]"),)
        return Rewrite(builder.cast(builder.emit("Range", ends, None, wide, shape), dtype), "range")
