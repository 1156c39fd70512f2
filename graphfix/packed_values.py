"""Values that were read by a mask and computed element by element, as the same values at every position.

``x[:, mask]`` has an axis along which one entry stands for each position where the mask holds: it is packed. What is
computed from packed tensors element by element can be computed from the whole ones as well, and what comes of it where
the mask does not hold (NaN, Inf) is for the caller to drop. Only operators that cannot fail there are lifted.

Other than `graphfix.mask_reading` this knows reads along any axis, by ``Gather`` with the positions of a mask and by
indices that pair the mask with single columns and whole axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphfix import aten
from graphfix.builder import BOOL, FLOATS, Builder
from graphfix.facts import Facts
from graphfix.graph import Node, Value
from graphfix.index_reading import columns_of, factors_of, mask_of_vector
from graphfix.index_write import Full, Span
from graphfix.mask_reading import list_items, read_by_mask
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

_MOST_NODES = 512

Emit = Callable[[Builder], Value]


@dataclass(frozen=True)
class _Read:
    """``source`` read by the mask: its axes from ``axis`` on are those that the mask decides about, and the result is
    packed along ``packed``. ``shape`` makes the whole tensor from the source cut to the mask's size."""

    source: Value
    axis: int
    packed: int
    shape: Callable[[Value, Builder], Value]


@dataclass
class PackedValues:
    """What it takes to compute a packed tensor on all positions; made by `find_packed_values`."""

    mask: Value
    width: int
    values: Value
    reads: dict[Value, _Read] = field(default_factory=dict)
    steps: dict[Value, Emit] = field(default_factory=dict)
    whole: dict[Value, Value] = field(default_factory=dict)

    def emit(self, data: Value, axis: int, builder: Builder) -> tuple[Value, Value, Value]:
        """(mask, part, values): the mask as bool, data and values at the positions it decides about.

        The values have the mask's axes in the place of the packed one. A mask of one axis may be shorter than an axis
        it is used on, or longer (and holds nowhere beyond it): all are cut to the shortest.
        """
        mask = builder.cast(self.mask, BOOL)
        used = [(data, axis), *((r.source, r.axis) for r in self.reads.values())]
        seen = {builder.dims(mask)[0]}
        for tensor, at in used if self.width == 1 else ():
            if builder.dims(tensor)[at] not in seen:
                seen.add(builder.dims(tensor)[at])
                mask = builder.slice(mask, 0, 0, builder.size(tensor, at))
        extent = builder.dims(mask)[0]

        def cut(tensor: Value, at: int) -> Value:
            if self.width > 1 or builder.dims(tensor)[at] == extent:
                return tensor
            return builder.slice(tensor, at, 0, builder.size(mask, 0), length=extent)

        for packed, read in self.reads.items():
            self.whole[packed] = read.shape(cut(read.source, read.axis), builder)
        for tensor, step in self.steps.items():
            self.whole[tensor] = step(builder)
        return mask, cut(data, axis), self.whole[self.values]


def find_packed_values(values: Value, packed: int, mask: Value, facts: Facts) -> PackedValues | None:
    """How values that are packed by a mask along an axis can be computed on all positions, or None."""
    shape = facts.shape(mask)
    if not shape:
        return None
    found = PackedValues(mask, len(shape), values)
    return found if _Walk(found, facts).lift(values, packed) else None


class _Walk:
    """Goes from packed values back to the reads. Steps are in the order in which they have to be emitted."""

    def __init__(self, found: PackedValues, facts: Facts):
        self.found = found
        self.facts = facts
        self.packed: dict[Value, int] = {}

    def lift(self, tensor: Value, packed: int) -> bool:
        """Whether a tensor with its packed axis there can be computed on all positions; adds what that takes."""
        if tensor in self.packed:
            return self.packed[tensor] == packed
        node = tensor.inputs[0] if tensor.inputs else None
        if node is None or len(self.packed) > _MOST_NODES or self.facts.shape(tensor) is None:
            return False
        self.packed[tensor] = packed
        read = _read(node, self.found.mask, self.found.width, self.facts)
        if read is not None:
            self.found.reads[tensor] = read
            return read.packed == packed
        if not node.standard or node.has_references or node.outputs[0] is not tensor:
            return False
        handler = getattr(self, f"_{node.op.lower()}", self._elementwise if node.op in LIFTED else None)
        step = handler(node, tensor, packed) if handler is not None else None
        if step is not None:
            self.found.steps[tensor] = step
        return step is not None

    def _at(self, axis: int, packed: int) -> int:
        """Where an axis of a packed tensor is in the whole one."""
        return axis if axis <= packed else axis + self.found.width - 1

    def _shape(self, tensor: Value) -> tuple[Expr, ...] | None:
        return self.facts.shape(tensor)

    def _elementwise(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        if node.op in ("Div", "Pow") and tensor.dtype not in FLOATS:
            return None
        whole, width, rank = self.found.whole, self.found.width, len(self._shape(tensor) or ())
        lifted: list[Value] = []
        plain: dict[Value, int] = {}
        for given in node.inputs:
            if not given.name:
                continue
            shape = self._shape(given)
            if shape is None:
                return None
            at = packed - (rank - len(shape))
            if at < 0 or shape[at] == ONE:
                plain[given] = at
            elif self.lift(given, at):
                lifted.append(given)
            else:
                return None
        if not lifted:
            return None

        def step(builder: Builder) -> Value:
            def operand(given: Value) -> Value:
                if given in lifted:
                    return whole[given]
                at = plain[given]
                # A plain tensor with an axis of size 1 where the mask's axes are needs one for each of them.
                return builder.insert_axes(given, range(at, at + width - 1)) if at >= 0 and width > 1 else given

            inputs = [operand(i) if i.name else None for i in node.inputs]
            shape = builder.broadcast_shape(*(i for i in inputs if i is not None))
            return builder.emit(node.op, inputs, dict(node.attrs), tensor.dtype, shape)

        return step

    def _expand(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        """An Expand that repeats nothing."""
        source = node.inputs[0]
        before, after = self._shape(source), self._shape(tensor)
        if before is None or after is None or len(before) != len(after):
            return None
        if any(a != b for i, (a, b) in enumerate(zip(before, after, strict=True)) if i != packed):
            return None
        return (lambda builder: self.found.whole[source]) if self.lift(source, packed) else None

    def _reshape(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        """Reshape, Squeeze and Unsqueeze that only insert and drop axes of size 1."""
        source = node.inputs[0]
        before, after = self._shape(source), self._shape(tensor)
        if before is None or after is None or after[packed] == ONE:
            return None
        long, now = [i for i, d in enumerate(before) if d != ONE], [i for i, d in enumerate(after) if d != ONE]
        if [before[i] for i in long] != [after[i] for i in now]:
            return None
        at = long[now.index(packed)]
        if not self.lift(source, at):
            return None
        dropped = [self._at(i, at) for i, d in enumerate(before) if d == ONE]
        inserted = [self._at(i, packed) for i, d in enumerate(after) if d == ONE]

        def step(builder: Builder) -> Value:
            whole = self.found.whole[source]
            return whole if dropped == inserted else builder.insert_axes(builder.drop_axes(whole, dropped), inserted)

        return step

    _squeeze = _unsqueeze = _flatten = _reshape

    def _transpose(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        perm = node.attrs.get("perm") or list(range(len(self._shape(tensor) or ()) - 1, -1, -1))
        source, at = node.inputs[0], perm[packed]
        if not self.lift(source, at):
            return None
        order: list[int] = []
        for axis in perm:
            order += [self._at(axis, at) + i for i in range(self.found.width if axis == at else 1)]
        return lambda builder: builder.transpose(self.found.whole[source], order)

    def _gather(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        """Columns taken along another axis than the packed one."""
        source, index = node.inputs
        before, indices = self._shape(source), self._shape(index)
        if before is None or indices is None:
            return None
        axis = node.attrs.get("axis", 0) % len(before)
        at = packed if packed < axis else packed - len(indices) + 1
        if packed >= axis and at <= axis:
            return None
        if not self.lift(source, at):
            return None
        return lambda builder: builder.gather(self.found.whole[source], index, self._at(axis, at))

    def _slice(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        cuts, source = self.facts.slices(node), node.inputs[0]
        if cuts is None or packed in cuts or not self.lift(source, packed):
            return None

        def step(builder: Builder) -> Value:
            whole = self.found.whole[source]
            for axis, (start, stop, stride) in cuts.items():
                whole = builder.slice(whole, self._at(axis, packed), start, stop, stride)
            return whole

        return step

    def _concat(self, node: Node, tensor: Value, packed: int) -> Emit | None:
        axis = node.attrs.get("axis", 0) % len(self._shape(tensor) or (ONE,))
        if axis == packed or not all(self.lift(i, packed) for i in node.inputs):
            return None
        parts = list(node.inputs)
        return lambda builder: builder.concat([self.found.whole[i] for i in parts], self._at(axis, packed))


def _read(node: Node, mask: Value, width: int, facts: Facts) -> _Read | None:
    """A node as a read by the mask, when it is one."""
    whole = read_by_mask(node, facts)
    if whole is not None:
        source, by = whole
        fits = same_mask(by, mask, facts) and _fits(source, 0, mask, width, facts)
        return _Read(source, 0, 0, lambda tensor, _: tensor) if fits else None
    if node.is_op("Gather"):
        return _gathered(node, mask, width, facts)
    if node.is_op("GatherND") and not node.attrs.get("batch_dims"):
        return _gathered_points(node, mask, width, facts)
    if aten.is_aten(node.op, node.domain) and aten.operator_name(node.op, node.attrs) == "index":
        return _indexed(node, mask, width, facts)
    return None


def _fits(source: Value, axis: int, mask: Value, width: int, facts: Facts) -> bool:
    """Whether the axes of a tensor are those of the mask; a mask of one axis can be cut or cut them."""
    shape, sizes = facts.shape(source), facts.shape(mask)
    if shape is None or sizes is None or len(shape) < axis + width:
        return False
    return width == 1 or shape[axis : axis + width] == sizes


def _gathered(node: Node, mask: Value, width: int, facts: Facts) -> _Read | None:
    """``Gather(x, positions of the mask)``."""
    source, index = node.inputs
    shape, indices = facts.shape(source), facts.shape(index)
    by = mask_of_vector(index, facts)
    if width != 1 or by is None or not same_mask(by, mask, facts) or not shape or indices is None:
        return None
    axis = node.attrs.get("axis", 0) % len(shape)
    long = [i for i, size in enumerate(indices) if size != ONE]
    if len(long) != 1:
        return None
    ones = [axis + i for i in range(len(indices)) if i != long[0]]
    return _Read(source, axis, axis + long[0], lambda tensor, builder: builder.insert_axes(tensor, ones))


def _gathered_points(node: Node, mask: Value, width: int, facts: Facts) -> _Read | None:
    """``GatherND`` by an index that pairs the positions of the mask with single columns and whole axes."""
    source, index = node.inputs
    grid, shape = facts.shape(index), facts.shape(source)
    columns = columns_of(index, facts) if grid else None
    if columns is None or shape is None or grid is None or grid[-1].constant != len(columns):
        return None
    factors = factors_of(columns, grid[:-1], source, facts)
    if factors is None:
        return None
    own = [f.dim for f in factors if f.dim is not None]
    unused = [d for d in range(len(grid) - 1) if d not in own]
    at = next((f for f in factors if f.mask is not None and same_mask(f.mask, mask, facts)), None)
    if at is None or at.dim is None or own != sorted(set(own)) or any(grid[d] != ONE for d in unused):
        return None
    if not _fits(source, at.axis, mask, width, facts):
        return None
    single: dict[int, int] = {}
    for factor in factors:
        if factor.dim is None and factor.mask is None:
            column = _column(factor.index)
            if column is None:
                return None
            single[factor.axis] = column
        elif factor.mask is None and not isinstance(factor.index, Full):
            return None
    ones = [d if d < at.dim else d + width - 1 for d in unused]
    return _Read(source, at.axis, at.dim, lambda tensor, builder: _columns_taken(tensor, single, ones, builder))


def _columns_taken(tensor: Value, single: dict[int, int], ones: Sequence[int], builder: Builder) -> Value:
    """A tensor at one column of some axes, which go, and axes of size 1 where the index grid has them."""
    for axis in sorted(single, reverse=True):
        tensor = builder.gather(tensor, builder.constant(single[axis]), axis)
    return builder.insert_axes(tensor, ones)


def _column(index: Full | Span | None) -> int | None:
    """The position that an index of a single element names."""
    if isinstance(index, Full):
        return 0  # of an axis of size 1
    if not isinstance(index, Span) or not isinstance(index.start, int):
        return None
    single = index.stop == index.start + 1 or (index.start == -1 and index.stop is None)
    return index.start if single else None


def _indexed(node: Node, mask: Value, width: int, facts: Facts) -> _Read | None:
    """``x[mask, 1]`` as an ATen node: the mask, whole axes (None) and constant columns."""
    source = node.inputs[0]
    shape = facts.shape(source)
    if shape is None:
        return None
    at: int | None = None
    axis, single, taken = 0, dict[int, int](), list[int]()
    for item in list_items(list(node.inputs[1:])):
        if item is None:
            axis += 1
            continue
        if item.dtype in MASKS:
            if at is not None or not same_mask(item, mask, facts):
                return None
            at = axis
            taken.append(axis)
            axis += width
            continue
        column = facts.const(item)
        if column is None or column.size != 1 or column.ndim:
            return None
        single[axis] = int(np.asarray(column).item())
        taken.append(axis)
        axis += 1
    if at is None or axis > len(shape) or not _fits(source, at, mask, width, facts):
        return None
    start = at - sum(i < at for i in single)
    ends = [i + (width if i == at else 1) for i in taken]
    together = all(a == b for a, b in zip(ends, taken[1:], strict=False))

    def whole(tensor: Value, builder: Builder) -> Value:
        for i in sorted(single, reverse=True):
            tensor = builder.gather(tensor, builder.constant(single[i]), i)
        if together:
            return tensor
        # Separated indices come first, as in PyTorch.
        first = list(range(start, start + width))
        return builder.transpose(tensor, [*first, *(i for i in range(builder.rank(tensor)) if i not in first)])

    return _Read(source, at, start if together else 0, whole)
