"""ATen index_copy."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, dim_argument, tensor_or_scalar
from graphfix.builder import Builder
from graphfix.graph import Node, Value
from graphfix.index_write import Full, IndexWrite, Points, Reduction
from graphfix.pass_base import Refusal, Rewrite, Site, lower
from graphfix.symbolic import ONE


class AtenIndexCopy(AtenPass):
    """Replace ATen index_copy nodes, ``x.index_copy(dim, index, source)``, by standard operators.

    Why: no engine runs ATen nodes.
    Before: ``ATen(x, index, source) dim=1 operator="index_copy"``
    After: the same forms as for ``x[:, index] = source``; of equal indices the last wins, as in PyTorch on CPU.
    """

    code = "GF103"
    name = "aten-index-copy"
    aten_operator = "index_copy"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        return read_rows(call, node, site)

    def rewrite(self, match, builder: Builder, site: Site) -> Rewrite | Refusal:
        data, axis, index, source, output, _ = match
        return lower(write_rows(data, axis, index, source, Reduction.NONE, output, builder), builder, site)


def read_rows(call: AtenCall[Value], node: Node, site: Site):
    """The arguments of index_copy and index_add: (data, axis, index, source, output, call)."""
    data, index, source = (tensor_or_scalar(call, p) for p in ("self", "index", "source"))
    rank = site.facts.rank(data)
    if rank is None or site.facts.rank(index) is None:
        return Refusal("the rank of the data or of the index is unknown")
    return data, dim_argument(call, rank, site.facts), index, source, node.outputs[0], call


def write_rows(
    data: Value, axis: int, index: Value, source: Value, reduction: Reduction, output: Value, builder: Builder
) -> IndexWrite:
    """A write of whole rows of ``source`` along one axis; a 0-d index stands for one row."""
    if not builder.rank(index):
        index = builder.reshape(index, [1], [ONE])
    return IndexWrite(data, (*[Full()] * axis, Points(index)), source, reduction, output)
