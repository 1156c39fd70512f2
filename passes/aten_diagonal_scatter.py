"""ATen diagonal_scatter."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, scalar_argument, tensor_or_scalar
from graphfix.builder import BOOL, Builder
from graphfix.graph import Node, Value
from graphfix.pass_base import Refusal, Rewrite, Site
from graphfix.symbolic import ONE


class AtenDiagonalScatter(AtenPass):
    """Replace ATen diagonal_scatter nodes, ``torch.diagonal(x, offset, dim1, dim2).copy_(src)``, by standard operators.

    Why: torch.export turns writes into a diagonal into diagonal_scatter, for which its ONNX exporter has no form.
    Before: ``ATen(x, src, offset, dim1, dim2) operator="diagonal_scatter"``
    After: Equal of the positions along both axes, and Where; Gather lays the source along the rows.
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
        return data, source, first, second, int(scalar_argument(call, "offset", site.facts))

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, source, first, second, offset = match
        above, left = max(-offset, 0), max(offset, 0)
        rank, last = builder.rank(data), builder.rank(source) - 1
        rows, columns = builder.iota(data, [first]), builder.iota(data, [second])
        at = _minus(rows, above, builder)  # the element of the diagonal in each row
        there = builder.binary("Greater", at, builder.constant(-1), BOOL)
        met = builder.equal(
            builder.insert_axes(at, [k for k in range(rank) if k != first]),
            builder.insert_axes(_minus(columns, left, builder), [k for k in range(rank) if k != second]),
        )
        met = builder.binary("And", met, builder.insert_axes(there, [k for k in range(rank) if k != first]), BOOL)
        # One more element at the end is for the rows that the diagonal does not cross; it is never written.
        others = [builder.size(source, k) for k in range(last)]
        nothing = builder.filled(0, data.dtype, [*others, 1], [*builder.dims(source)[:last], ONE])
        padded = builder.concat([builder.cast(source, data.dtype), nothing], last)
        size = builder.size(source, last)
        end = builder.constant([size]) if isinstance(size, int) else size
        inside = builder.binary("And", there, builder.binary("Greater", end, at, BOOL), BOOL)
        values = builder.gather(padded, builder.where(inside, at, end), last)
        # The axes of the values are those of the data without the columns, and the rows at the end.
        axes = [k for k in range(rank) if k not in (first, second)] + [first]
        order = [axes.index(k) for k in range(rank) if k != second]
        values = builder.insert_axes(builder.transpose(values, order), [second])
        return Rewrite(builder.where(met, values, data), "diagonal")


def _minus(positions: Value, distance: int, builder: Builder) -> Value:
    return builder.binary("Sub", positions, builder.constant(distance)) if distance else positions
