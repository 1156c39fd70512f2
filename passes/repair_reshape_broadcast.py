"""Values that an exporter reshapes or cuts where they have to be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.mask_reading import decided_by, mask_of_indices
from graphfix.pass_base import Fault, Repair, Rewrite, Site
from graphfix.symbolic import ONE, Expr, product


@dataclass(frozen=True)
class _Written:
    """What a ScatterND has to write: ``values``, repeated to what the index selects.

    With ``packed`` the index is all axes of a mask and takes one element for each True: the values are repeated to all
    of the data and read by the same index.
    """

    scatter: Node
    values: Value
    packed: bool


class RepairReshapeBroadcast(Repair):
    """Repeat the values of ``x[index] = row`` and ``x[mask] = row`` for each index.

    Why: torch.onnx (TorchScript) reshapes the values to the shape that the index selects, which fails when they are
    fewer; for a mask it flattens them and takes as many as the mask needs. Such a model runs only for one index, where
    both readings are the same.

    Before: ``ScatterND(x, indices, Reshape(row, shape))``, ``ScatterND(x, NonZero(mask), Slice(Reshape(row), 0:n))``
    After: ``ScatterND(x, indices, Expand(row, shape))``, ``ScatterND(x, at, GatherND(Expand(row, Shape(x)), at))`` and
    what becomes of it.
    """

    code = "GF303"
    name = "repair-reshape-broadcast"

    def match(self, node: Node, site: Site) -> Fault | None:
        if not node.is_op("ScatterND") or len(node.inputs) != 3:
            return None
        data, index, updates = node.inputs
        data_shape, index_shape = site.facts.shape(data), site.facts.shape(index)
        if data_shape is None or not index_shape or index_shape[-1].constant is None:
            return None
        mask = mask_of_indices(index)
        if mask is not None and site.facts.rank(mask) == len(data_shape):
            return self._packed(node, mask, data_shape, site.facts)
        maker = updates.inputs[0] if updates.inputs else None
        if maker is None or not maker.is_op("Reshape", "Flatten"):
            return None
        values = maker.inputs[0]
        shape = site.facts.shape(values)
        selected = (*index_shape[:-1], *data_shape[index_shape[-1].constant :])
        if shape is None or not _broadcasts(shape, selected) or product(shape) == product(selected):
            return None
        reason = f"{maker.op} cannot make {_text(selected)} of values {_text(shape)}, which have to be repeated"
        return Fault(reason, _Written(node, values, packed=False), runs=False)

    @staticmethod
    def _packed(node: Node, mask: Value, data_shape: tuple[Expr, ...], facts: Facts) -> Fault | None:
        cut = node.inputs[2].inputs[0] if node.inputs[2].inputs else None
        cuts = facts.slices(cut) if cut is not None and cut.is_op("Slice") else None
        if cut is None or cuts is None or set(cuts) != {0}:
            return None
        start, stop, step = cuts[0]
        if start != 0 or step != 1 or not isinstance(stop, Value):
            return None
        values = cut.inputs[0]
        if values.inputs and values.inputs[0].is_op("Reshape", "Flatten") and facts.rank(values) == 1:
            values = values.inputs[0].inputs[0]
        shape, row = facts.shape(values), data_shape[facts.rank(decided_by(mask, facts)) or len(data_shape) :]
        if shape is None or not _broadcasts(shape, row):
            return None
        reason = f"the mask selects rows {_text(row)} and the values {_text(shape)} are one row, not one for each True"
        return Fault(reason, _Written(node, values, packed=True), runs=False)

    def rewrite(self, match: _Written, builder: Builder, site: Site) -> Rewrite:
        data, index, _ = match.scatter.inputs
        shape, index_shape = builder.dims(data), builder.dims(index)
        rank = len(shape)
        if match.packed:
            whole = [builder.size(data, i) for i in range(rank)]
            everywhere = builder.expand(_cut_to(match.values, rank, builder), whole, shape)
            updates = builder.emit("GatherND", [everywhere, index], None, data.dtype, index_shape[:-1])
        else:
            width = index_shape[-1].constant
            assert width is not None
            grid = len(index_shape) - 1
            sizes = [builder.size(index, i) for i in range(grid)] + [builder.size(data, i) for i in range(width, rank)]
            selected = (*index_shape[:-1], *shape[width:])
            updates = builder.expand(_cut_to(match.values, len(selected), builder), sizes, selected)
        attrs = dict(match.scatter.attrs)
        written = builder.emit("ScatterND", [data, index, updates], attrs, data.dtype, shape)
        return Rewrite(written, "repeated values")


def _broadcasts(shape: tuple[Expr, ...], target: tuple[Expr, ...]) -> bool:
    """Whether a shape certainly broadcasts to another; leading axes of size 1 do not count."""
    extra = max(len(shape) - len(target), 0)
    if any(d != ONE for d in shape[:extra]):
        return False
    shape = shape[extra:]
    return all(s in (ONE, t) for s, t in zip(shape, target[len(target) - len(shape) :], strict=True))


def _cut_to(values: Value, rank: int, builder: Builder) -> Value:
    """Values without the leading axes of size 1 that they have beyond a rank."""
    return builder.drop_axes(values, range(builder.rank(values) - rank))


def _text(shape: tuple[Expr, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
