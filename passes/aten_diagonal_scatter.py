"""ATen diagonal_scatter."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import AxisIndex, Full, IndexWrite, Points, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower


class AtenDiagonalScatter(AtenPass):
    """Replace ATen diagonal_scatter nodes, ``torch.diagonal(x, offset, dim1, dim2).copy_(src)``, by standard operators.

    Why: torch.export turns writes into a diagonal into diagonal_scatter, for which its ONNX exporter has no form.
    Before: ``ATen(x, src, offset, dim1, dim2) operator="diagonal_scatter"``
    After: as for ``x[i, i + offset] = src`` with i counting from 0.
    """

    code = "GF112"
    name = "aten-diagonal-scatter"
    aten_operator = "diagonal_scatter"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        data, source = tensor_or_scalar(call, "self"), tensor_or_scalar(call, "src")
        rank = site.facts.rank(data)
        if rank is None or rank < 2 or site.facts.rank(source) != rank - 1:
            return Refusal("the rank of the data is unknown, or the source has not one axis less")
        first, second = (dim_argument(call, rank, site.facts, name) for name in ("dim1", "dim2"))
        if first == second:
            return Refusal("both axes of the diagonal are the same")
        return data, source, first, second, int(scalar_argument(call, "offset", site.facts)), node.outputs[0]

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, source, first, second, offset, output = match
        last = builder.rank(source) - 1
        along = builder.iota(source, [last])
        index: list[AxisIndex] = [Full()] * (max(first, second) + 1)
        for axis, distance in ((first, max(-offset, 0)), (second, max(offset, 0))):
            index[axis] = Points(builder.arithmetic("Add", along, builder.constant(distance)) if distance else along)
        # The selection has the diagonal in the place of two neighbouring axes, and in front for two that are apart.
        place = min(first, second) if abs(first - second) == 1 else 0
        others = list(range(last))
        source = builder.transpose(source, [*others[:place], last, *others[place:]])
        return lower(IndexWrite(data, tuple(index), source, Reduction.NONE, output), builder, site)
