"""``y[mask] = f(x[mask])`` with an f that works row by row: compute f on all rows, and let one Where take what counts.

Spline flows and other decoders pick the rows inside a mask, run dozens or hundreds of nodes on them, and write the
result back by the same mask. Reading by a mask needs NonZero, whose size depends on the data. When every node in
between makes row i of its result from row i of its inputs alone, the nodes can as well run on all rows, flattened to
one axis, and what the rows outside of the mask come to does not matter. Nothing may fail on them: indices are clamped,
and integers are not divided.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from graphfix.builder import BOOL, FLOATS, INT64, WHERE_TYPES, Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_write import IndexWrite, Mask
from graphfix.lowering.combine import combine
from graphfix.mask_reading import read_by_mask
from graphfix.masks import same_mask
from graphfix.packed_values import LIFTED
from graphfix.symbolic import ONE, Expr, product

_MOST_NODES = 4000
_ROW_REDUCTIONS = frozenset(
    {
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    }
)


class _Kind(enum.Enum):
    """What a tensor of the region is."""

    ROWS = "one row for each position of the mask, along axis 0"
    SHAPE = "the shape of rows: only element 0 depends on how many there are"
    COUNT = "how many rows there are"
    PLAIN = "no different for other numbers of rows"


@dataclass
class RowRegion:
    """A masked write whose values are computed row by row from reads by the same mask.

    ``order`` are the nodes in between, producers first; ``reads`` maps each tensor read by the mask to where it was
    read from.
    """

    write: IndexWrite
    mask: Value
    order: list[Node] = field(default_factory=list)
    reads: dict[Value, Value] = field(default_factory=dict)

    def emit(self, builder: Builder) -> Value:
        """Emit the region on all rows and the Where; returns the written tensor."""
        data, mask = self.write.data, builder.cast(self.mask, BOOL)
        rank, width = builder.rank(data), builder.rank(mask)
        lifted = builder.scope.lifted.setdefault(self.mask, {})
        for packed, whole in self.reads.items():
            if packed not in lifted:
                lifted[packed] = builder.merge_axes(whole, 0, width)
        for node in self.order:
            if all(o in lifted for o in node.outputs if o.name):
                continue
            inputs = [lifted.get(i, i) if i.name else None for i in node.inputs]
            if node.op == "GatherElements":
                inputs[1] = _clamped(inputs[0], inputs[1], node, builder)
            for old, new in zip(node.outputs, builder.copy(node, inputs), strict=True):
                lifted[old] = new
        result = lifted[self.write.values]
        shape = builder.dims(data)
        sizes = [builder.size(data, i) for i in range(width)]
        builder.facts.set_shape(result, (product(shape[:width]), *shape[width:]))
        result = builder.cast(builder.split_axis(result, 0, sizes, shape[:width]), data.dtype or 0)
        mask = builder.insert_axes(mask, range(width, rank))
        return builder.where(mask, combine(self.write.reduction, data, result, builder), data)


def _clamped(data: Value | None, index: Value | None, node: Node, builder: Builder) -> Value:
    """Indices kept within an axis: those of rows that count are there already."""
    assert data is not None and index is not None
    axis = node.attrs.get("axis", 0)
    rank = len(builder.facts.shape(node.inputs[0]) or ())
    shape = builder.emit("Shape", [data], None, INT64, (Expr.of(rank),))
    size = builder.slice(shape, 0, axis % rank, axis % rank + 1)
    index = builder.cast(index, INT64)
    last = builder.binary("Sub", size, builder.constant(1))
    first = builder.binary("Sub", builder.constant(0), size)
    over = builder.emit("Greater", [index, last], None, BOOL)
    index = builder.emit("Where", [over, last, index], None, INT64)
    under = builder.emit("Less", [index, first], None, BOOL)
    return builder.emit("Where", [under, first, index], None, INT64)


def find_row_region(write: IndexWrite, facts: Facts) -> RowRegion | None:
    """The region of a masked write, or None when its values are not computed row by row from reads by its mask."""
    if len(write.index) != 1 or not isinstance(write.index[0], Mask) or write.data.dtype not in WHERE_TYPES:
        return None
    mask = write.index[0].tensor
    mask_shape, data_shape = facts.shape(mask), facts.shape(write.data)
    value_shape = facts.shape(write.values)
    if mask_shape is None or data_shape is None or value_shape is None:
        return None
    if len(value_shape) != 1 + len(data_shape) - len(mask_shape) or mask_shape != data_shape[: len(mask_shape)]:
        return None
    region = RowRegion(write, mask)
    finder = _Finder(region, len(mask_shape), facts)
    return region if finder.kind(write.values) is _Kind.ROWS and region.reads else None


class _Finder:
    """Walks from the values back to the reads, and says of each tensor on the way what it is (None: not liftable)."""

    def __init__(self, region: RowRegion, width: int, facts: Facts):
        self.region = region
        self.width = width
        self.facts = facts
        self.known: dict[Value, _Kind | None] = {}
        self.downstream = _downstream_of_reads(region, facts)

    def kind(self, tensor: Value) -> _Kind | None:
        if tensor not in self.downstream:
            return _Kind.PLAIN
        if tensor in self.known:
            return self.known[tensor]
        self.known[tensor] = None
        node = tensor.inputs[0]
        if len(self.region.order) > _MOST_NODES:
            return None
        source = read_by_mask(node, self.facts)
        if source is not None and same_mask(source[1], self.region.mask, self.facts):
            whole_shape, mask_shape = self.facts.shape(source[0]), self.facts.shape(self.region.mask)
            if whole_shape is None or mask_shape is None or whole_shape[: self.width] != mask_shape:
                return None
            self.region.reads[tensor] = source[0]
            self.known[tensor] = _Kind.ROWS
            return _Kind.ROWS
        found = self._kind_of_node(node)
        if found is not None:
            if node not in self.region.order:
                self.region.order.append(node)
            for output in node.outputs:
                self.known[output] = found
        return found

    def _kind_of_node(self, node: Node) -> _Kind | None:
        if not node.standard or node.has_references:
            return None
        kinds: list[_Kind] = []
        for given in node.inputs:
            kind = self.kind(given) if given.name else _Kind.PLAIN
            if kind is None:
                return None
            kinds.append(kind)
        if all(k is _Kind.PLAIN for k in kinds):
            return _Kind.PLAIN
        handler = getattr(self, f"_{node.op.lower()}", None)
        if handler is not None:
            return handler(node, kinds)
        if node.op in LIFTED:
            return self._elementwise(node, kinds)
        if node.op in _ROW_REDUCTIONS:
            return self._reduction(node, kinds)
        return None

    # ---- elementwise and along other axes than the rows ------------------------------------------------------------

    def _rank(self, tensor: Value) -> int | None:
        return self.facts.rank(tensor)

    def _elementwise(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        if node.op in ("Div", "Pow") and node.inputs[0].dtype not in FLOATS:
            return None
        if any(k in (_Kind.SHAPE, _Kind.COUNT) for k in kinds):
            return None
        ranks = [self._rank(i) for i in node.inputs if i.name]
        if any(r is None for r in ranks):
            return None
        rank = max(r for r in ranks if r is not None)
        for given, kind in zip(node.inputs, kinds, strict=True):
            if not given.name:
                continue
            shape = self.facts.shape(given) or ()
            if kind is _Kind.ROWS and len(shape) != rank:
                return None
            if kind is _Kind.PLAIN and len(shape) == rank and shape[0] != ONE:
                return None
        return _Kind.ROWS

    def _only_rows(self, node: Node, kinds: list[_Kind], axis: int | None) -> _Kind | None:
        """Rows in, rows out, when the first input alone holds rows and the operator works along another axis."""
        rank = self._rank(node.inputs[0])
        if kinds[0] is not _Kind.ROWS or any(k is not _Kind.PLAIN for k in kinds[1:]) or rank is None or axis is None:
            return None
        return _Kind.ROWS if axis % rank != 0 else None

    def _softmax(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        # Below opset 13 the default axis is 1, and axis a flattens what is before and after it: rows stay apart.
        return self._only_rows(node, kinds, node.attrs.get("axis", -1 if self._opset(node) >= 13 else 1))

    _logsoftmax = _softmax

    def _cumsum(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        axis = self.facts.scalar(node.inputs[1])
        return self._only_rows(node, kinds, axis)

    def _reduction(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        axes, rank = self.facts.axes(node), self._rank(node.inputs[0])
        if kinds[0] is not _Kind.ROWS or any(k is not _Kind.PLAIN for k in kinds[1:]) or not axes or not rank:
            return None
        return _Kind.ROWS if all(a % rank != 0 for a in axes) else None

    def _split(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        return self._only_rows(node, kinds, node.attrs.get("axis", 0))

    def _transpose(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        perm = node.attrs.get("perm")
        return _Kind.ROWS if kinds == [_Kind.ROWS] and perm and perm[0] == 0 else None

    def _pad(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        rank = self._rank(node.inputs[0])
        pads = node.attrs.get("pads")
        if pads is None and node.arg(1) is not None:
            given = self.facts.const(node.inputs[1])
            pads = None if given is None else given.reshape(-1).tolist()
        given_axes = node.arg(3) is not None
        if given_axes or kinds[0] is not _Kind.ROWS or pads is None or rank is None or len(pads) != 2 * rank:
            return None
        rest_plain = all(k is _Kind.PLAIN for k in kinds[1:])
        return _Kind.ROWS if rest_plain and pads[0] == 0 and pads[rank] == 0 else None

    def _matmul(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        fits = (self._rank(node.inputs[0]) or 0) >= 2 and self._rank(node.inputs[1]) == 2
        return _Kind.ROWS if kinds == [_Kind.ROWS, _Kind.PLAIN] and fits else None

    def _gatherelements(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        rank = self._rank(node.inputs[0])
        if kinds != [_Kind.ROWS, _Kind.ROWS] or not rank:
            return None
        return _Kind.ROWS if node.attrs.get("axis", 0) % rank != 0 else None

    def _concat(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        if all(k is _Kind.ROWS for k in kinds):
            rank = self._rank(node.inputs[0])
            return _Kind.ROWS if rank and node.attrs["axis"] % rank != 0 else None
        # A shape put together: the number of rows may only come first.
        first, rest = kinds[0], kinds[1:]
        if first in (_Kind.COUNT, _Kind.SHAPE) and all(k is _Kind.PLAIN for k in rest):
            return _Kind.SHAPE
        return None

    # ---- shapes of rows --------------------------------------------------------------------------------------------

    def _shape(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        if kinds != [_Kind.ROWS]:
            return None
        start, end = node.attrs.get("start", 0), node.attrs.get("end")
        if start > 0:
            return _Kind.PLAIN
        return _Kind.SHAPE if start == 0 and end is None else None

    def _gather(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        data, index = kinds
        if index is not _Kind.PLAIN:
            return None
        axis = node.attrs.get("axis", 0)
        if data is _Kind.ROWS:
            return self._only_rows(node, kinds, axis)
        positions, shape = self.facts.const(node.inputs[1]), self.facts.shape(node.inputs[0])
        if data is not _Kind.SHAPE or positions is None or shape is None or shape[0].constant is None:
            return None
        wanted = [int(p) % shape[0].constant for p in positions.reshape(-1)]
        if 0 not in wanted:
            return _Kind.PLAIN
        return _Kind.COUNT if wanted == [0] else _Kind.SHAPE if wanted[0] == 0 and 0 not in wanted[1:] else None

    def _slice(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        cuts, rank = self.facts.slices(node), self._rank(node.inputs[0])
        if cuts is None or rank is None or any(k is not _Kind.PLAIN for k in kinds[1:]):
            return None
        if kinds[0] is _Kind.ROWS:
            return _Kind.ROWS if 0 not in cuts else None
        if kinds[0] is not _Kind.SHAPE:
            return None
        start, stop, step = cuts.get(0, (0, None, 1))
        if step != 1 or not isinstance(start, int) or not isinstance(stop, int | None):
            return None
        length = self.facts.shape(node.inputs[0])
        count = length[0].constant if length is not None else None
        if count is None:
            return None
        taken = range(count)[start:stop]
        if 0 not in taken:
            return _Kind.PLAIN
        return _Kind.COUNT if len(taken) == 1 else _Kind.SHAPE

    def _unsqueeze(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        axes, rank = self.facts.axes(node), self._rank(node.inputs[0])
        if axes is None or rank is None or any(k is not _Kind.PLAIN for k in kinds[1:]):
            return None
        if kinds[0] is _Kind.COUNT:
            return _Kind.COUNT
        fits = kinds[0] is _Kind.ROWS and all(a % (rank + len(axes)) != 0 for a in axes)
        return _Kind.ROWS if fits else None

    def _squeeze(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        axes, rank = self.facts.axes(node), self._rank(node.inputs[0])
        if axes is None or not rank or any(k is not _Kind.PLAIN for k in kinds[1:]):
            return None
        if kinds[0] is _Kind.COUNT:
            return _Kind.COUNT
        return _Kind.ROWS if kinds[0] is _Kind.ROWS and all(a % rank != 0 for a in axes) else None

    def _cast(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        return kinds[0]

    _identity = _cast

    def _expand(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        data, target = kinds
        rank, length = self._rank(node.inputs[0]), self.facts.shape(node.inputs[1])
        if rank is None or length is None or length[0].constant is None:
            return None
        if data is _Kind.ROWS:
            # To the shape of rows, or to sizes of further axes alone.
            if target is _Kind.SHAPE:
                return _Kind.ROWS if length[0].constant == rank else None
            wanted = self.facts.ints(node.inputs[1])
            plain = target is _Kind.PLAIN and wanted is not None and (len(wanted) < rank or wanted[0] == ONE)
            return _Kind.ROWS if plain else None
        if data is _Kind.PLAIN and target is _Kind.SHAPE:
            shape = self.facts.shape(node.inputs[0]) or ()
            repeated = rank < length[0].constant or (rank == length[0].constant and shape[0] == ONE)
            return _Kind.ROWS if repeated else None
        return None

    def _reshape(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        data, target = kinds
        before, after = self.facts.shape(node.inputs[0]), self.facts.shape(node.outputs[0])
        if data is _Kind.COUNT and target is _Kind.PLAIN:
            return _Kind.COUNT
        if data is not _Kind.ROWS or before is None or after is None or not before or not after:
            return None
        # Rows stay rows when the other axes hold as much before as after.
        if before[0] != after[0] or product(before[1:]) != product(after[1:]):
            return None
        wanted = self.facts.const(node.inputs[1])
        if target is _Kind.PLAIN:
            return _Kind.ROWS if wanted is not None and wanted.size and int(wanted.reshape(-1)[0]) in (0, -1) else None
        return _Kind.ROWS if target is _Kind.SHAPE else None

    def _constantofshape(self, node: Node, kinds: list[_Kind]) -> _Kind | None:
        return _Kind.ROWS if kinds == [_Kind.SHAPE] or self._is_count_vector(node.inputs[0], kinds) else None

    def _is_count_vector(self, tensor: Value, kinds: list[_Kind]) -> bool:
        return kinds == [_Kind.COUNT] and self._rank(tensor) == 1

    def _opset(self, node: Node) -> int:
        return self.facts.opset_of(node)


def _downstream_of_reads(region: RowRegion, facts: Facts) -> set[Value]:
    """Every tensor that depends on a read by the region's mask."""
    reads: list[Value] = []
    seen_nodes: set[Node] = set()
    queue: list[Value] = [region.write.values]
    while queue and len(seen_nodes) < _MOST_NODES:
        tensor = queue.pop()
        for node in tensor.inputs:
            if node in seen_nodes:
                continue
            seen_nodes.add(node)
            source = read_by_mask(node, facts)
            if source is not None and same_mask(source[1], region.mask, facts):
                reads.append(tensor)
                continue
            queue += [i for i in node.inputs if i.inputs]
    found: set[Value] = set(reads)
    frontier = list(reads)
    while frontier:
        tensor = frontier.pop()
        for node in tensor.outputs:
            for output in node.outputs:
                if output not in found and node in seen_nodes:
                    found.add(output)
                    frontier.append(output)
    return found
