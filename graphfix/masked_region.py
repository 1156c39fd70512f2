"""``y[mask] = f(x[mask])`` with an elementwise f: compute f on everything, and let one Where take what the mask says.

What f makes of the rows outside the mask (NaN, Inf) does not matter, as the Where drops it. Only operators that cannot
fail on such rows are lifted: integer division is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphfix import aten
from graphfix.builder import BOOL, FLOATS, WHERE_TYPES, Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_write import IndexWrite, Mask
from graphfix.lowering.combine import combine
from graphfix.masks import MASKS, same_mask
from graphfix.symbolic import ONE, Expr

LIFTED = frozenset(
    [
        "Abs",
        "Acos",
        "Add",
        "And",
        "Asin",
        "Atan",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Cosh",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Tan",
        "Tanh",
        "Where",
        "Xor",
    ]
)
_REPEATING = ("Expand", "Identity")  # on packed rows of the same rank: broadcasting does it on whole tensors
_MOST_NODES = 512


@dataclass(frozen=True)
class Region:
    """An index write by a mask whose values are an elementwise function of reads by the same mask.

    ``order`` are the nodes between reads and write, producers first. ``reads`` maps each tensor that was read by the
    mask to the whole tensor it was read from.
    """

    write: IndexWrite
    mask: Value
    order: tuple[Node, ...]
    reads: dict[Value, Value]

    def emit(self, builder: Builder) -> Value:
        """Emit the nodes on whole tensors and the Where; returns the written tensor."""
        whole: dict[Value, Value] = dict(self.reads)
        for node in self.order:
            if node.is_op(*_REPEATING):
                whole[node.outputs[0]] = whole[node.inputs[0]]
                continue
            inputs = [whole.get(i, i) if i.name else None for i in node.inputs]
            shape = builder.broadcast_shape(*(i for i in inputs if i is not None))
            whole[node.outputs[0]] = builder.emit(node.op, inputs, dict(node.attrs), node.outputs[0].dtype, shape)
        data = self.write.data
        assert data.dtype is not None
        values = builder.cast(whole[self.write.values], data.dtype)
        mask = builder.cast(self.mask, BOOL)
        rank = builder.rank(data)
        width, sizes = builder.rank(mask), builder.dims(mask)
        mask = builder.insert_axes(mask, range(width, rank))
        result = builder.where(mask, combine(self.write.reduction, data, values, builder), data)
        for axis, extent in enumerate(builder.dims(data)[:width]):
            if sizes[axis] != extent:
                # A mask that is larger than the data there holds in none of what is cut off.
                result = builder.slice(result, axis, 0, builder.size(data, axis), length=extent)
        builder.facts.set_shape(result, builder.dims(data))
        return result


def find_region(write: IndexWrite, facts: Facts) -> Region | None:
    """The region of a masked write, or None when its values are not an elementwise function of reads by its mask."""
    if len(write.index) != 1 or not isinstance(write.index[0], Mask) or write.data.dtype not in WHERE_TYPES:
        return None
    mask = write.index[0].tensor
    mask_shape, data_shape = facts.shape(mask), facts.shape(write.data)
    if mask_shape is None or data_shape is None:
        return None
    order: list[Node] = []
    reads: dict[Value, Value] = {}
    if not _walk(write.values, mask, len(mask_shape), facts, order, reads, set()) or not reads:
        return None
    width = len(data_shape) - len(mask_shape)
    if any((facts.rank(t) or 0) - len(mask_shape) != width for t in reads.values()):
        return None
    if write.values not in reads and all(n.outputs[0] is not write.values for n in order):
        return None
    return Region(write, mask, tuple(order), reads)


def _walk(
    tensor: Value,
    mask: Value,
    mask_rank: int,
    facts: Facts,
    order: list[Node],
    reads: dict[Value, Value],
    seen: set[Value],
) -> bool:
    """Whether a packed tensor can be computed on all rows; collects what that takes."""
    if tensor in seen:
        return True
    if len(order) > _MOST_NODES or not tensor.inputs:
        return False
    seen.add(tensor)
    node = tensor.inputs[0]
    source = read_by_mask(node, facts)
    if source is not None:
        whole, by = source
        whole_shape = facts.shape(whole)
        if not same_mask(by, mask) or whole_shape is None or whole_shape[:mask_rank] != facts.shape(mask):
            return False
        reads[tensor] = whole
        return True
    if node.is_op(*_REPEATING):
        same_rank = facts.rank(node.inputs[0]) is not None and facts.rank(node.inputs[0]) == facts.rank(tensor)
        if not same_rank or not _walk(node.inputs[0], mask, mask_rank, facts, order, reads, seen):
            return False
        order.append(node)
        return True
    if not node.standard or node.has_references or node.op not in LIFTED or len(node.outputs) != 1:
        return False
    if node.op in ("Div", "Pow") and tensor.dtype not in FLOATS:
        return False
    rank = facts.rank(tensor)
    if rank is None:
        return False
    lifted = 0
    for given in node.inputs:
        if not given.name:
            continue
        given_shape = facts.shape(given)
        if given_shape is not None and _is_row_constant(given_shape, rank):
            continue
        if facts.rank(given) != rank or not _walk(given, mask, mask_rank, facts, order, reads, seen):
            return False
        lifted += 1
    if not lifted:
        return False
    order.append(node)
    return True


def _is_row_constant(shape: tuple[Expr, ...], rank: int) -> bool:
    """Whether a tensor is the same for every row of a packed tensor: it has no row axis at all."""
    return len(shape) < rank or (not shape) or (len(shape) == 1 and shape[0] == ONE and rank == 1)


def read_by_mask(node: Node, facts: Facts) -> tuple[Value, Value] | None:
    """(x, mask) of a node that reads ``x[mask]``."""
    if aten.is_aten(node.op, node.domain) and aten.operator_name(node.op, node.attrs) == "index":
        indices = list_items(node.inputs[1:])
        if len(indices) == 1 and indices[0] is not None and indices[0].dtype in MASKS:
            return node.inputs[0], indices[0]
        return None
    if node.is_op("GatherND") and not node.attrs.get("batch_dims"):
        mask = mask_of_indices(node.inputs[1])
        return (node.inputs[0], mask) if mask is not None else None
    return None


def mask_of_indices(index: Value) -> Value | None:
    """The mask whose ``Transpose(NonZero(mask))`` an index tensor is."""
    node = index.inputs[0] if index.inputs else None
    if node is None or not node.is_op("Transpose") or list(node.attrs.get("perm", [1, 0])) != [1, 0]:
        return None
    source = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
    return source.inputs[0] if source is not None and source.is_op("NonZero") else None


def decided_by(mask: Value, facts: Facts) -> Value:
    """The mask that was expanded to more axes than it decides about, as exporters expand it to all of the data's.

    Looks through Expand (and the cut to the data's sizes that reading an index adds) to what has trailing axes of size
    1 inserted. The mask itself when it was not expanded.
    """
    while mask.inputs:
        node = mask.inputs[0]
        cut = node.is_op("Slice") and Builder.is_own(node)
        if not (node.is_op("Expand", "Identity") or cut):
            break
        mask = node.inputs[0]
    while mask.inputs and mask.inputs[0].is_op("Unsqueeze", "Reshape", "Identity"):
        source = mask.inputs[0].inputs[0]
        before, after = facts.shape(source), facts.shape(mask)
        if (
            before is None
            or after is None
            or after[: len(before)] != before
            or any(d != ONE for d in after[len(before) :])
        ):
            break
        mask = source
    return mask


def list_items(inputs: list[Value]) -> list[Value | None]:
    """Index tensors of an ATen node: given flat, or as one list value."""
    if len(inputs) == 1 and inputs[0].inputs:
        maker = inputs[0].inputs[0]
        if maker.op in ("SequenceConstruct", "ListConstruct"):
            inputs = list(maker.inputs)
    return [i if i.name and not _is_none(i) else None for i in inputs]


def _is_none(value: Value) -> bool:
    return bool(value.inputs) and value.inputs[0].op == "Constant" and value.inputs[0].domain == "prim"
