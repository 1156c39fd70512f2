"""What an index selects, taken apart: independent groups of axes, and values laid out along data's axes.

An index as written says little: ``x[arange(B)[:, None], 3, i]`` is a whole axis, a single column and a set of points.
`resolve` finds the groups whose outer product the index is, turns what is really a span into one, and says which axis
of the values belongs to which axis of the data. Lowerings work on the result only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphfix.facts import INTEGERS, Facts
from graphfix.graph import Value
from graphfix.index_write import Full, IndexWrite, Mask, Points, Reduction, Span
from graphfix.masks import count_of, is_count
from graphfix.symbolic import ONE, Expr, product


class Unresolvable(Exception):
    """The index cannot be taken apart: the message says why."""


class PairedMask(Unresolvable):
    """A mask is paired with other indices, element by element (see `graphfix.lowering.paired_mask`)."""


@dataclass(frozen=True)
class PointSet:
    """Integer indices into one or more axes that belong together, as ``x[i, j]``.

    ``tensors`` has one index tensor for each axis of ``axes``; they broadcast together. An axis in ``batch`` is walked
    through once, in order, along one dimension of the grid, so that its index need not be looked at.
    """

    axes: tuple[int, ...]
    tensors: tuple[Value, ...]
    batch: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Group:
    """One factor of the outer product that an index selects.

    ``axes`` are the data axes it covers, ``grid`` the dimensions of the selection it makes (none for a single
    position), both in the order in which a lowering flattens them. ``length`` is how many positions it selects.
    """

    axes: tuple[int, ...]
    index: Full | Span | PointSet | Mask
    grid: tuple[int, ...]
    length: Expr

    @property
    def varies(self) -> bool:
        """Whether the group is neither a whole axis nor a span."""
        return isinstance(self.index, PointSet | Mask)


@dataclass(frozen=True)
class Selection:
    """An index write taken apart.

    ``shape`` is the selection's shape (what the values broadcast to), ``groups`` are sorted by their first axis and
    cover every axis of the data. ``dims`` says for each axis of ``values`` along which dimension of the selection it
    runs, None for an axis of size 1 that runs along none. Points and Masks broadcast to a grid of ``grid_rank``
    dimensions, which starts at dimension ``grid_at`` of the selection.
    """

    data: Value
    shape: tuple[Expr, ...]
    groups: tuple[Group, ...]
    values: Value
    dims: tuple[int | None, ...]
    reduction: Reduction
    grid_at: int
    grid_rank: int

    def values_vary_along(self, group: Group) -> bool:
        """Whether different positions of a group may get different values."""
        return any(d in group.grid for d in self.dims if d is not None)

    @property
    def uniform(self) -> bool:
        """Whether one value is written everywhere."""
        return all(d is None for d in self.dims)

    def reshaped(self, facts: Facts) -> bool:
        """Whether the values have the elements of the selection in its order, but another shape."""
        shape = facts.shape(self.values)
        if self.uniform or shape is None:
            return False
        return (
            self.dims == tuple(range(len(self.shape))) and product(shape) == product(self.shape) and shape != self.shape
        )

    @property
    def varying(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.varies)


def resolve(write: IndexWrite, facts: Facts) -> Selection:
    """Take an index write apart. Raises Unresolvable with the reason when ranks are unknown or indices do not fit."""
    data_shape = facts.shape(write.data)
    if data_shape is None:
        raise Unresolvable("the rank of the data is unknown")
    positions = _positions(write, data_shape, facts)
    advanced = [(axes, index) for axes, index in positions if isinstance(index, Points | Mask)]
    grid_rank, grid_shape = _grid(advanced, facts)
    shape, grid_at, own_dim = _layout(positions, data_shape, grid_rank, grid_shape)
    groups: list[Group] = []
    for axes, index in positions:
        if isinstance(index, Full | Span):
            (axis,) = axes
            length = shape[own_dim[axis]]
            groups.append(Group(axes, index, (own_dim[axis],), length))
    for component in _components(advanced, grid_rank, facts):
        if len(component) > 1 and any(isinstance(index, Mask) for _, index, _ in component):
            raise PairedMask("a mask is paired with other indices element by element")
        groups.append(_group(component, data_shape, grid_rank, grid_shape, grid_at, facts))
    groups.sort(key=lambda g: min(g.axes))
    values, dims = _match_values(write.values, tuple(shape), facts)
    return Selection(write.data, tuple(shape), tuple(groups), values, dims, write.reduction, grid_at, grid_rank)


def _positions(write: IndexWrite, data_shape: tuple[Expr, ...], facts: Facts) -> list[tuple[tuple[int, ...], object]]:
    """Each index with the axes it covers, Full for what is left."""
    positions: list[tuple[tuple[int, ...], object]] = []
    axis = 0
    for index in write.index:
        width = 1
        if isinstance(index, Mask):
            rank = facts.rank(index.tensor)
            if rank is None:
                raise Unresolvable("the rank of a mask is unknown")
            if rank == 0:
                raise Unresolvable("a mask without axes adds one to the data")
            width = rank
        if isinstance(index, Points) and facts.rank(index.tensor) is None:
            raise Unresolvable("the rank of an index is unknown")
        if axis + width > len(data_shape):
            raise Unresolvable(f"the index covers more axes than the {len(data_shape)} of the data")
        positions.append((tuple(range(axis, axis + width)), index))
        axis += width
    positions += [((a,), Full()) for a in range(axis, len(data_shape))]
    return positions


def _grid(advanced: list, facts: Facts) -> tuple[int, list[Expr]]:
    """The shape that Points and Masks broadcast to. The length of a Mask is an unknown of its own."""
    shapes: list[tuple[Expr, ...]] = []
    for _, index in advanced:
        if isinstance(index, Mask):
            shapes.append((count_of(index.origin or index.tensor),))
        else:
            shapes.append(facts.shape(index.tensor) or ())
    if not shapes:
        return 0, []
    grid = facts.broadcast(shapes, "grid" + "".join(i.tensor.name for _, i in advanced))
    return len(grid), list(grid)


def _layout(
    positions: list, data_shape: tuple[Expr, ...], grid_rank: int, grid_shape: list[Expr]
) -> tuple[list[Expr], int, dict[int, int]]:
    """The selection's shape, where the grid starts in it, and the dimension that each Full or Span axis has."""
    advanced = [i for i, (_, index) in enumerate(positions) if isinstance(index, Points | Mask)]
    together = bool(advanced) and advanced == list(range(advanced[0], advanced[-1] + 1))
    shape: list[Expr] = []
    own_dim: dict[int, int] = {}
    grid_at = 0
    if advanced and not together:
        shape += grid_shape
    for i, (axes, index) in enumerate(positions):
        if isinstance(index, Full | Span):
            own_dim[axes[0]] = len(shape)
            shape.append(_span_length(index, data_shape[axes[0]], axes[0]))
        elif together and i == advanced[0]:
            grid_at = len(shape)
            shape += grid_shape
    return shape, grid_at, own_dim


def _span_length(index: Full | Span, extent: Expr, axis: int) -> Expr:
    if isinstance(index, Full):
        return extent
    if extent.constant is not None and isinstance(index.start, int | None) and isinstance(index.stop, int | None):
        return Expr.of(len(range(extent.constant)[index.start : index.stop]))
    return Expr.dim(f"span[{axis}:{_bound(index.start)}:{_bound(index.stop)}]({extent})")


def _bound(bound: object) -> str:
    return str(bound.name if isinstance(bound, Value) else bound)


def _components(advanced: list, grid_rank: int, facts: Facts) -> list[list[tuple[tuple[int, ...], object, set[int]]]]:
    """Sort Points and Masks into sets that share no dimension of the grid."""
    items = []
    for axes, index in advanced:
        if isinstance(index, Mask):
            used = {grid_rank - 1}
        else:
            shape = facts.shape(index.tensor) or ()
            used = {grid_rank - len(shape) + i for i, d in enumerate(shape) if d != ONE}
        items.append((axes, index, used))
    components: list[list] = []
    for item in items:
        joined = [c for c in components if any(item[2] & other[2] for other in c)]
        components = [c for c in components if c not in joined]
        components.append([i for c in joined for i in c] + [item])
    return components


def _group(
    component: list, data_shape: tuple[Expr, ...], grid_rank: int, grid_shape: list[Expr], at: int, facts: Facts
):
    used = sorted(set().union(*(item[2] for item in component)))
    grid = tuple(at + d for d in used)
    length = product([grid_shape[d] for d in used])
    axes = tuple(sorted(a for item in component for a in item[0]))
    if len(component) == 1:
        (item_axes, index, _), *_ = component
        if isinstance(index, Mask):
            return Group(item_axes, index, grid, length)
        span = as_span(index.tensor, data_shape[item_axes[0]], facts) if len(used) <= 1 else None
        if span is not None:
            return Group(item_axes, span, grid, length)
        return Group(item_axes, PointSet(item_axes, (index.tensor,)), grid, length)
    component = sorted(component, key=lambda item: item[0])
    batch = _batch(component, data_shape, grid_rank, at, facts)
    walked = {axis for axis, _ in batch}
    component = [i for i in component if i[0][0] in walked] + [i for i in component if i[0][0] not in walked]
    axes = tuple(axis for (axis,), _, _ in component)
    batch_dims = tuple(dict(batch)[axis] for axis in axes if axis in walked)
    grid = (*batch_dims, *(d for d in grid if d not in batch_dims))
    batch = tuple((axis, dict(batch)[axis]) for axis in axes if axis in walked)
    return Group(axes, PointSet(axes, tuple(index.tensor for _, index, _ in component), batch), grid, length)


def _batch(component: list, data_shape: tuple[Expr, ...], grid_rank: int, at: int, facts: Facts):
    """Axes that are walked through in order along one dimension of the grid, as the first in ``x[arange(B), i]``.

    The other indices must be known to have the axis's size there: an axis of size 1 would broadcast.
    """
    found: list[tuple[int, int]] = []
    for (axis,), index, used in component:
        ramp = facts.ramp(index.tensor)
        extent = data_shape[axis]
        walks = ramp is not None and ramp.whole and ramp.extent == extent
        if len(used) != 1 or not (walks or _is_const_arange(index.tensor, extent, facts)):
            continue
        (dim,) = used
        sizes = [_size_at(item[1].tensor, dim, grid_rank, facts) for item in component]
        if at + dim not in {d for _, d in found} and all(size in (ONE, extent) for size in sizes):
            found.append((axis, at + dim))
    return tuple(found) if len(found) < len(component) else tuple(found[:-1])


def _size_at(tensor: Value, dim: int, grid_rank: int, facts: Facts) -> Expr:
    """An index tensor's size along a dimension of the grid."""
    shape = facts.shape(tensor) or ()
    position = dim - (grid_rank - len(shape))
    return shape[position] if position >= 0 else ONE


def _is_const_arange(tensor: Value, extent: Expr, facts: Facts) -> bool:
    value = facts.const(tensor)
    return (
        value is not None and extent.constant == value.size and bool((value.reshape(-1) == np.arange(value.size)).all())
    )


def as_span(tensor: Value, extent: Expr, facts: Facts) -> Full | Span | None:
    """A one-dimensional index as a slice of its axis without a step, when it is one."""
    ramp = facts.ramp(tensor)
    if ramp is not None and ramp.extent == extent and ramp.step == 1:
        return Full() if ramp.whole else Span(ramp.start, ramp.stop)
    value = facts.const(tensor)
    if value is not None:
        return constant_span(value, extent)
    return _from_end(tensor, extent, facts) or _runtime_span(tensor, facts)


def constant_span(value: np.ndarray, extent: Expr) -> Full | Span | None:
    """Constant indices, taken in order, as a slice of an axis without a step."""
    flat = [int(v) for v in value.reshape(-1)]
    if not flat:
        return Span(0, 0)
    size = extent.constant
    if size is not None:
        if any(not -size <= v < size for v in flat):
            return None
        flat = [v % size for v in flat]
    if any(b - a != 1 for a, b in itertools.pairwise(flat)):
        return None
    start, last = flat[0], flat[-1]
    if start < 0 <= last:
        return None
    if size is not None and start == 0 and last == size - 1:
        return Full()
    return Span(start, None if last == -1 else last + 1)


def _from_end(tensor: Value, extent: Expr, facts: Facts) -> Span | None:
    """A single index that is computed as the axis's size less a constant, as ``x.shape[-1] - 1``."""
    known = facts.ints(tensor)
    if known is None or len(known) != 1:
        return None
    distance = (extent - known[0]).constant
    if distance is None or distance < 1 or (distance > 1 and not (extent - distance).nonnegative):
        return None  # below 0 an index wraps, and a slice does not
    return Span(-distance, None if distance == 1 else 1 - distance)


def _runtime_span(tensor: Value, facts: Facts) -> Span | None:
    """``Range(start, stop)`` with bounds that are known only at run time, and never negative."""
    bounds = range_bounds(tensor, facts)
    if bounds is None or not all(facts.nonnegative(b) for b in bounds):
        return None
    start, stop = (known if (known := facts.scalar(b)) is not None else b for b in bounds)
    return Span(start, stop)


def range_bounds(tensor: Value, facts: Facts) -> tuple[Value, Value] | None:
    """The start and stop of a Range with step 1 that is all that a tensor holds."""
    vector = vector_behind(tensor, facts)
    node = vector.inputs[0] if vector is not None and vector.inputs else None
    if node is not None and node.is_op("Cast") and node.attrs.get("to") in (TensorProto.INT32, TensorProto.INT64):
        node = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
    if node is None or not node.is_op("Range") or facts.scalar(node.inputs[2]) != 1:
        return None
    start, stop, _ = node.inputs
    return (start, stop) if start.dtype in INTEGERS else None


def vector_behind(tensor: Value, facts: Facts) -> Value | None:
    """The 1-d tensor whose elements an index tensor holds in order, with axes of size 1 around."""
    shape = facts.shape(tensor)
    long = [size for size in shape or () if size != ONE]
    found = tensor if len(shape or ()) == 1 else None
    while len(long) == 1 and tensor.inputs and tensor.inputs[0].is_op("Unsqueeze", "Squeeze", "Reshape", "Identity"):
        tensor = tensor.inputs[0].inputs[0]
        shape = facts.shape(tensor)
        if shape is None or [size for size in shape if size != ONE] != long:
            break
        if len(shape) == 1:
            found = tensor
    return found


def _match_values(values: Value, shape: tuple[Expr, ...], facts: Facts) -> tuple[Value, tuple[int | None, ...]]:
    """Which dimension of the selection each axis of the values runs along, and the values without needless Expands.

    Values broadcast to the selection as in PyTorch. Exporters up to torch 1.11 also write values that lack the axes of
    size 1 which an integer index left in the selection (``x[..., 0] = v`` with v of shape [B, T] for a selection of
    shape [B, T, 1]), or whose index was flattened; such values have as many elements as the selection, and are taken in
    its order. Where both readings hold they are the same. When the result has an entry for each dimension of the
    selection but the values have another rank or other sizes, they are to be reshaped to it.
    """
    if facts.uniform(values) is not None:
        return values, (None,) * (facts.rank(values) or 0)
    value_shape = facts.shape(values)
    if value_shape is None:
        inner, dims = _strip_expands(values, None, facts)
        if dims is None or any(d is not None for d in dims):
            raise Unresolvable("the rank of the values is unknown")
        return inner, dims
    dims = _broadcast_dims(value_shape, shape, proved=True)
    if dims is None:
        dims = _elementwise_dims(value_shape, shape)
    if dims is None and product(value_shape) == product(shape):
        return values, tuple(range(len(shape)))
    if dims is None:
        dims = _broadcast_dims(value_shape, shape, proved=False)
    if dims is None:
        sizes = " and ".join(f"[{', '.join(map(str, s))}]" for s in (value_shape, shape))
        raise Unresolvable(f"values and selection do not fit: {sizes}")
    inner, inner_dims = _strip_expands(values, dims, facts)
    return inner, inner_dims if inner_dims is not None else dims


def _broadcast_dims(values: tuple[Expr, ...], shape: tuple[Expr, ...], proved: bool) -> tuple[int | None, ...] | None:
    """Right-aligned broadcasting; with ``proved``, only when it holds whatever the sizes are."""
    extra = len(values) - len(shape)
    if extra > 0 and any(d != ONE for d in values[:extra]):
        return None
    dims: list[int | None] = []
    for axis, size in enumerate(values):
        target = axis - extra
        if size == ONE:
            dims.append(None)
            continue
        wanted = shape[target]
        if wanted == ONE and size.constant is None and not proved:
            dims.append(None)  # it has to be 1 when the model runs, or the write would not be valid
            continue
        known_apart = size.constant is not None and wanted.constant is not None and size != wanted
        if known_apart or (proved and size != wanted and not is_count(wanted)):
            return None
        dims.append(target)
    return tuple(dims)


def _elementwise_dims(values: tuple[Expr, ...], shape: tuple[Expr, ...]) -> tuple[int | None, ...] | None:
    """Values that equal the selection but for axes of size 1."""
    wanted = [(i, d) for i, d in enumerate(shape) if d != ONE]
    given = [d for d in values if d != ONE]
    if given != [d for _, d in wanted]:
        return None
    targets = iter(i for i, _ in wanted)
    return tuple(None if d == ONE else next(targets) for d in values)


def _strip_expands(
    values: Value, dims: tuple[int | None, ...] | None, facts: Facts
) -> tuple[Value, tuple[int | None, ...] | None]:
    """Go back through Expand nodes, which repeat only what the write repeats anyway, and Reshapes that only insert or
    drop axes of size 1."""
    while values.inputs and values.inputs[0].is_op("Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity"):
        node = values.inputs[0]
        source = node.inputs[0]
        shape, now = facts.shape(source), facts.shape(values)
        if shape is None:
            break
        if all(d == ONE for d in shape):
            if not node.is_op("Expand") and now is not None and any(d != ONE for d in now):
                break  # a Reshape that cannot be
            dims = (None,) * len(shape)
        elif dims is None:
            break
        elif node.is_op("Expand"):
            if len(shape) > len(dims):
                break
            tail = dims[len(dims) - len(shape) :]
            dims = tuple(None if size == ONE else d for size, d in zip(shape, tail, strict=True))
        else:
            if now is None or [d for d in now if d != ONE] != [d for d in shape if d != ONE]:
                break
            rest = iter(d for size, d in zip(now, dims, strict=True) if size != ONE)
            dims = tuple(None if size == ONE else next(rest) for size in shape)
        values = source
    return values, dims
