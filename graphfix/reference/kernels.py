"""NumPy kernels for ATen operators, written from PyTorch's documented semantics.

Every kernel takes an :class:`~graphfix.aten.AtenCall` whose arguments are arrays and returns one new array; inputs are
never changed. All dtypes that NumPy and ml_dtypes know are handled alike. What PyTorch raises an error for (an index
out of range, a mask that does not fit, values of another shape) raises ReferenceRefusal.

Where PyTorch leaves the order of duplicate writes open, the last one in row-major order of the index wins: that is
what it does on the CPU. Sums are taken in the data's dtype, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphfix.aten import AtenCall
from graphfix.reference.readings import ReadingError, broadcasts_to, read_mask_shape, read_values_shape
from graphfix.reference.refusal import ReferenceRefusal

Array = np.ndarray[Any, Any]
Kernel = Callable[[AtenCall[Any]], Array]

# PyTorch's ScalarType numbers, as arange and other factories carry them. 15 is bfloat16, see _scalar_type.
_SCALAR_TYPES: dict[int, str] = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
}


# --- advanced indexing


def select(shape: Sequence[int], indices: Sequence[Array | None], mask_ranks: Sequence[int | None] = ()) -> Array:
    """Flat positions, in data of ``shape``, of what ``indices`` select; int64, of the shape of the selection.

    One entry an axis: None is the whole axis, a bool or uint8 tensor is a mask over as many axes as it has dims, any
    other integer tensor holds indices (negative ones count from the end) and all of them broadcast together. Missing
    trailing entries are whole axes. Indices separated by a whole axis move to the front. ``mask_ranks`` are the hints
    of :func:`graphfix.reference.readings.read_mask_shape`, one an entry.
    """
    axes: list[Array | None] = []
    source: list[int] = []
    for n, index in enumerate(indices):
        parts: tuple[Array | None, ...] = (index,)
        if index is not None and is_mask(index):
            hint = mask_ranks[n] if n < len(mask_ranks) else None
            try:
                index = index.reshape(read_mask_shape(index.shape, shape, len(axes), hint))
            except ReadingError as error:
                raise ReferenceRefusal(str(error), argument=f"indices:{n}") from None
            if n == 0 and index.shape == tuple(shape[: index.ndim]) and not any(i is not None for i in indices[1:]):
                return _positions_of(index, shape)
            parts = np.nonzero(index)
        elif index is not None and index.dtype.kind != "i":
            raise ReferenceRefusal(f"an index has dtype {index.dtype}; it must be an integer or a mask")
        axes.extend(parts)
        source.extend([n] * len(parts))
    if len(axes) > len(shape):
        raise ReferenceRefusal(f"{len(axes)} indices for data of shape {list(shape)}")
    axes.extend([None] * (len(shape) - len(axes)))
    advanced = [k for k, index in enumerate(axes) if index is not None]
    block = _block_shape(axes, source, indices)
    adjacent = bool(advanced) and advanced[-1] - advanced[0] + 1 == len(advanced)
    place = advanced[0] if adjacent else 0
    whole = [k for k, index in enumerate(axes) if index is None]
    before, after = whole[:place], whole[place:]
    selection = (*(shape[k] for k in before), *block, *(shape[k] for k in after))
    positions = np.zeros(selection, np.int64)
    if not positions.size:
        return positions
    for axis, index in enumerate(axes):
        stride = math.prod(shape[axis + 1 :])
        if index is None:
            at = whole.index(axis)
            dims_after = len(selection) - 1 - (at if at < place else at + len(block))
            step = np.arange(shape[axis], dtype=np.int64).reshape((-1, *(1,) * dims_after))
        else:
            wrapped = _in_range(index.astype(np.int64), shape[axis], axis, f"indices:{source[axis]}")
            step = wrapped.reshape((*wrapped.shape, *(1,) * len(after)))
        positions += step * stride
    return positions


def _positions_of(mask: Array, shape: Sequence[int]) -> Array:
    """The positions that one leading mask selects: as `select` finds them, in a fraction of the time and memory."""
    rest = tuple(shape[mask.ndim :])
    inner = math.prod(rest)
    rows = np.flatnonzero(mask)
    if not rest:
        return rows
    return (rows[:, None] * inner + np.arange(inner)).reshape(rows.size, *rest)


def is_mask(index: Array) -> bool:
    """Whether an index tensor is a mask: bool, or uint8 as in old PyTorch."""
    return index.dtype in (np.bool_, np.uint8)


def _block_shape(axes: list[Array | None], source: list[int], indices: Sequence[Array | None]) -> tuple[int, ...]:
    shapes = [index.shape for index in axes if index is not None]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        pass
    masks = [n for n, index in enumerate(indices) if index is not None and is_mask(index)]
    others = [index.shape for n, index in zip(source, axes, strict=False) if index is not None and n not in masks]
    refusal = ReferenceRefusal(f"index shapes {[list(s) for s in shapes]} do not broadcast together")
    if len(masks) == 1:
        refusal.argument = f"indices:{masks[0]}"
        refusal.needs_true = max((s[-1] for s in others if s), default=1)
    raise refusal


def _in_range(index: Array, size: int, axis: int, argument: str, *, negative: bool = True) -> Array:
    """``index`` with negative values counted from the end; refuses what is out of range."""
    low = -size if negative else 0
    if index.size and (index.min() < low or index.max() >= size):
        wrong = int(index.min()) if index.min() < low else int(index.max())
        raise ReferenceRefusal(
            f"index {wrong} is out of range for axis {axis} of size {size}",
            argument=argument,
            index_range=(low, size),
        )
    return np.where(index < 0, index + size, index)


def index_put(call: AtenCall[Any], mask_ranks: Sequence[int | None] = ()) -> Array:
    """``self[indices] = values``, or ``+=`` with accumulate: a copy of ``self`` of the same shape and dtype.

    ``values`` broadcast to the selection or have as many elements (graphfix.reference.readings); they are cast to the
    dtype of ``self``. Accumulating bools is a logical or.
    """
    data, values = call.arguments["self"], call.arguments["values"]
    accumulate = bool(_number(call, "accumulate", False))
    indices = open_list(call.indices)
    positions = select(data.shape, indices, mask_ranks)
    masks = [n for n, index in enumerate(indices) if index is not None and is_mask(index)]
    try:
        shape = read_values_shape(values.shape, positions.shape, masked=bool(masks))
    except ReadingError as error:
        refusal = ReferenceRefusal(str(error), argument="values")
        if len(masks) == 1:
            refusal.argument = f"indices:{masks[0]}"
            refusal.needs_true = _true_count(values.shape, positions.shape, data.shape, indices, masks[0], mask_ranks)
        raise refusal from None
    out = data.copy()
    spread = np.broadcast_to(_cast(values, data.dtype).reshape(shape), positions.shape)
    _write(out, positions, spread, np.add if accumulate else None)
    return out


def _true_count(
    values: tuple[int, ...],
    selection: tuple[int, ...],
    data: tuple[int, ...],
    indices: Sequence[Array | None],
    n: int,
    mask_ranks: Sequence[int | None],
) -> int | None:
    """How many trues the only mask, entry ``n``, must have for the values to fit. None when no count would do."""
    mask = indices[n]
    if mask is None or any(index is not None for k, index in enumerate(indices) if k != n):
        return None
    covered = len(read_mask_shape(mask.shape, data, n, mask_ranks[n] if n < len(mask_ranks) else None))
    after = len(data) - n - covered
    at = len(values) - 1 - after
    if at >= 0:
        count = values[at]
        if broadcasts_to(values, (*selection[:n], count, *selection[n + 1 :])):
            return count
    others = math.prod(selection[:n]) * math.prod(selection[n + 1 :])
    total = math.prod(values)
    return total // others if others and total % others == 0 else None


def index(call: AtenCall[Any], mask_ranks: Sequence[int | None] = ()) -> Array:
    """``self[indices]``, by the same reading of the indices as index_put."""
    data = call.arguments["self"]
    return _flat(data)[select(data.shape, open_list(call.indices), mask_ranks)]


def open_list(indices: Sequence[Any]) -> list[Array | None]:
    """The entries of an index list that may arrive as one value: a sequence."""
    if len(indices) == 1 and isinstance(indices[0], list):
        return list(indices[0])
    if any(isinstance(index, list) for index in indices):
        raise ReferenceRefusal("a list of indices stands beside other indices")
    return list(indices)


# --- one index along one axis


def arange(call: AtenCall[Any]) -> Array:
    """``[start, start + step, ...)`` below ``end``: int64 when all are integers, else float32, unless dtype says."""
    start, end, step = _number(call, "start", 0), _number(call, "end"), _number(call, "step", 1)
    integers = all(isinstance(v, int) for v in (start, end, step))
    code = _number(call, "dtype", None)
    dtype = np.dtype(np.int64 if integers else np.float32) if code is None else _scalar_type(int(code))
    if dtype == np.int64 and not integers:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ReferenceRefusal("arange has step 0")
    if (end - start) * step < 0:
        raise ReferenceRefusal(f"arange from {start} to {end} has a step of the wrong sign, {step}")
    count = -((start - end) // step) if integers else math.ceil((end - start) / step)
    return _cast(np.arange(count) * step + start, dtype)


def index_fill(call: AtenCall[Any]) -> Array:
    """``self`` with ``value`` at every position of ``index`` along ``dim``. Negative indices count from the end."""
    value = _cast(np.asarray(_operand(call, "value")), call.arguments["self"].dtype)
    if value.size != 1:
        raise ReferenceRefusal(f"index_fill needs one value, not shape {list(value.shape)}", argument="value")
    out, rows, indices = _rows(call, negative=True)
    rows[:, indices] = value.reshape(())
    return out


def index_copy(call: AtenCall[Any]) -> Array:
    """``self`` with slice ``source[k]`` at ``index[k]`` along ``dim``; the last of equal indices wins."""
    out, rows, indices = _rows(call)
    source = _source_rows(call, out.dtype, indices.size)
    last = _last_writers(indices)
    rows[:, indices[last]] = source[:, last]
    return out


def index_add(call: AtenCall[Any]) -> Array:
    """``self`` plus ``alpha * source[k]`` at ``index[k]`` along ``dim``."""
    out, rows, indices = _rows(call)
    source = _source_rows(call, out.dtype, indices.size)
    alpha = _number(call, "alpha", 1)
    if alpha != 1:
        source = _cast(source * np.asarray(alpha, out.dtype), out.dtype)
    _at(np.add, rows, (slice(None), indices), source)
    return out


def _rows(call: AtenCall[Any], *, negative: bool = False) -> tuple[Array, Array, Array]:
    """A copy of ``self``, its view as ``[before, dim, after]``, and the checked index, rank 1."""
    data, indices = call.arguments["self"], call.arguments["index"]
    if indices.dtype.kind != "i" or indices.ndim > 1:
        raise ReferenceRefusal(
            f"index has dtype {indices.dtype} and rank {indices.ndim}; it must be integers of rank 1"
        )
    dim = _dim(call, data.ndim)
    shape = data.shape or (1,)
    out = np.array(data, order="C")
    rows = out.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    checked = _in_range(indices.reshape(-1).astype(np.int64), shape[dim], dim, "index", negative=negative)
    return out, rows, checked


def _source_rows(call: AtenCall[Any], dtype: np.dtype[Any], count: int) -> Array:
    data, source = call.arguments["self"], call.arguments["source"]
    dim = _dim(call, data.ndim)
    shape = data.shape or (1,)
    if source.ndim == 0 and len(shape) == 1:
        source = source.reshape(1)
    want = (*shape[:dim], count, *shape[dim + 1 :])
    if source.shape != want:
        raise ReferenceRefusal(f"source has shape {list(source.shape)}, not {list(want)}", argument="source")
    return _cast(source, dtype).reshape(math.prod(shape[:dim]), count, math.prod(shape[dim + 1 :]))


# --- masks


def masked_fill(call: AtenCall[Any]) -> Array:
    """``value`` where ``mask`` is true, ``self`` elsewhere; both broadcast."""
    data, mask = _broadcast_mask(call)
    value = _cast(np.asarray(_operand(call, "value")), data.dtype)
    if value.size != 1:
        raise ReferenceRefusal(f"masked_fill needs one value, not shape {list(value.shape)}", argument="value")
    return np.where(mask, value.reshape(()), data)


def masked_scatter(call: AtenCall[Any]) -> Array:
    """The elements of ``source``, in order, at the trues of ``mask``; ``self`` elsewhere; the two broadcast."""
    data, mask = _broadcast_mask(call)
    source = _cast(_flat(call.arguments["source"]), data.dtype)
    count = int(np.count_nonzero(mask))
    if source.size < count:
        raise ReferenceRefusal(f"source has {source.size} elements for {count} trues of the mask", argument="source")
    out = data.copy()
    out[mask] = source[:count]
    return out


def _broadcast_mask(call: AtenCall[Any]) -> tuple[Array, Array]:
    data, mask = call.arguments["self"], call.arguments["mask"]
    if not is_mask(mask):
        raise ReferenceRefusal(f"the mask has dtype {mask.dtype}, not bool", argument="mask")
    try:
        data, mask = np.broadcast_arrays(data, mask)
    except ValueError:
        shapes = f"a mask of shape {list(mask.shape)} and data of shape {list(data.shape)}"
        raise ReferenceRefusal(f"{shapes} do not broadcast together", argument="mask") from None
    return data, mask.astype(bool)


# --- writes into views


def slice_scatter(call: AtenCall[Any]) -> Array:
    """``self`` with ``src`` in ``start:end:step`` along ``dim``."""
    out = np.array(call.arguments["self"], order="C")
    start, end, step = (_number(call, name, None) for name in ("start", "end", "step"))
    return _write_view(out, call, (*[slice(None)] * _dim(call, out.ndim), slice(start, end, step)))


def select_scatter(call: AtenCall[Any]) -> Array:
    """``self`` with ``src`` at position ``index`` along ``dim``, an axis that ``src`` lacks."""
    out = np.array(call.arguments["self"], order="C")
    axis = _dim(call, out.ndim)
    index = int(_in_range(np.asarray(_number(call, "index")), out.shape[axis], axis, "index"))
    return _write_view(out, call, (*[slice(None)] * axis, index, ...))


def diagonal_scatter(call: AtenCall[Any]) -> Array:
    """``self`` with ``src`` on a diagonal of the axes ``dim1`` and ``dim2``, which is the last axis of ``src``."""
    out = np.array(call.arguments["self"], order="C")
    first, second = (_dim(call, out.ndim, name) for name in ("dim1", "dim2"))
    offset = int(_number(call, "offset"))
    above, left = max(-offset, 0), max(offset, 0)
    along = np.arange(max(0, min(out.shape[first] - above, out.shape[second] - left)))
    _write_view(np.moveaxis(out, (first, second), (-2, -1)), call, (..., along + above, along + left))
    return out


def _write_view(out: Array, call: AtenCall[Any], place: tuple[Any, ...]) -> Array:
    source, shape = call.arguments["src"], out[place].shape
    if source.shape != shape:
        raise ReferenceRefusal(f"src has shape {list(source.shape)}, not {list(shape)}", argument="src")
    out[place] = _cast(source, out.dtype)
    return out


# --- one index an element


def gather(call: AtenCall[Any]) -> Array:
    """``self`` at ``index`` along ``dim``, one index an element; the result has the index's shape."""
    data = call.arguments["self"]
    if not call.arguments["index"].size:
        return np.zeros(call.arguments["index"].shape, data.dtype)
    return _flat(data)[_element_positions(call)]


def scatter(call: AtenCall[Any]) -> Array:
    """``self`` with ``src`` (a tensor or one value) at ``index`` along ``dim``; ``reduce`` is add or multiply."""
    reduce = _text(call, "reduce", "")
    operation = {"": None, "add": np.add, "multiply": np.multiply}.get(reduce, "unknown")
    if operation == "unknown":
        raise ReferenceRefusal(f"scatter has the unknown reduction {reduce!r}")
    return _scatter(call, operation)


def scatter_add(call: AtenCall[Any]) -> Array:
    """``self`` plus ``src`` at ``index`` along ``dim``."""
    return _scatter(call, np.add)


def scatter_reduce(call: AtenCall[Any]) -> Array:
    """``src`` reduced into ``self`` at ``index`` along ``dim``: sum, prod, mean, amax or amin.

    Without include_self, the old values of ``self`` at written positions do not count.
    """
    reduce = _text(call, "reduce", "")
    data = call.arguments["self"]
    operations: dict[str, Any] = {
        "sum": np.add,
        "mean": np.add,
        "prod": np.multiply,
        "amax": np.maximum,
        "amin": np.minimum,
    }
    if reduce not in operations:
        raise ReferenceRefusal(f"scatter_reduce has the unknown reduction {reduce!r}")
    out = np.array(data, order="C")
    if not call.arguments["index"].size:
        return out
    positions = _element_positions(call)
    source = _source_elements(call, positions.shape, out.dtype)
    flat = out.reshape(-1)
    counts = np.ones(flat.size, np.int64)
    if not _number(call, "include_self", True):
        counts[positions] = 0
        # Start from one of the written values (amax, amin) or from the neutral element (the others).
        if reduce in ("amax", "amin"):
            flat[positions] = source
        else:
            flat[positions] = np.asarray(1 if reduce == "prod" else 0, flat.dtype)
    _at(operations[reduce], flat, positions, source)
    if reduce == "mean":
        np.add.at(counts, positions, 1)
        divisor = _cast(np.maximum(counts, 1), flat.dtype)
        flat[...] = flat // divisor if flat.dtype.kind in "iu" else flat / divisor
    return out


def _scatter(call: AtenCall[Any], operation: Any) -> Array:
    out = np.array(call.arguments["self"], order="C")
    if not call.arguments["index"].size:
        return out
    positions = _element_positions(call)
    _write(out, positions, _source_elements(call, positions.shape, out.dtype), operation)
    return out


def _element_positions(call: AtenCall[Any]) -> Array:
    """Flat positions in ``self`` of every element of ``index``. PyTorch takes no negative index here."""
    data, indices = call.arguments["self"], call.arguments["index"]
    if indices.dtype.kind != "i":
        raise ReferenceRefusal(f"index has dtype {indices.dtype}; it must be an integer", argument="index")
    dim = _dim(call, data.ndim)
    shape, own = data.shape or (1,), indices.shape or (1,)
    if len(shape) != len(own) or any(own[k] > shape[k] for k in range(len(own)) if k != dim):
        detail = f"index has shape {list(indices.shape)} for data of shape {list(data.shape)}"
        raise ReferenceRefusal(f"{detail} along dim {dim}", argument="index")
    checked = _in_range(indices.astype(np.int64), shape[dim], dim, "index", negative=False).reshape(own)
    positions = np.zeros(own, np.int64)
    for axis in range(len(own)):
        along = np.arange(own[axis], dtype=np.int64).reshape((-1, *(1,) * (len(own) - 1 - axis)))
        positions += (checked if axis == dim else along) * math.prod(shape[axis + 1 :])
    return positions.reshape(indices.shape)


def _source_elements(call: AtenCall[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The part of ``src`` that ``index`` of ``shape`` uses, or one value spread over it."""
    source = np.asarray(_operand(call, "value" if "value" in call.scalars else "src"))
    if source.ndim == 0:
        return np.broadcast_to(_cast(source, dtype), shape)
    if source.ndim != len(shape) or any(s < n for s, n in zip(source.shape, shape, strict=True)):
        text = f"src has shape {list(source.shape)}, smaller than index {list(shape)}"
        raise ReferenceRefusal(text, argument="src")
    return _cast(source[tuple(slice(0, n) for n in shape)], dtype)


# --- writing


def _write(out: Array, positions: Array, values: Array, operation: Any) -> None:
    """Write ``values`` at flat ``positions`` of ``out``, which is C-contiguous; the last of equal positions wins."""
    flat, where, what = out.reshape(-1), positions.reshape(-1), values.reshape(-1)
    if operation is not None:
        _at(operation, flat, where, what)
        return
    last = _last_writers(where)
    flat[where[last]] = what[last]


def _last_writers(positions: Array) -> Array | slice:
    """Which writes stay when equal positions are written in order. NumPy does not promise the order itself."""
    if positions.size < 2 or bool(np.all(positions[1:] > positions[:-1])):
        return slice(None)
    _, first_from_behind = np.unique(positions[::-1], return_index=True)
    return positions.size - 1 - first_from_behind


def _at(operation: Any, target: Array, where: Any, values: Array) -> None:
    if target.dtype == np.bool_:
        operation = {np.add: np.logical_or, np.multiply: np.logical_and}.get(operation, operation)
    with np.errstate(all="ignore"):
        operation.at(target, where, values)


# --- arguments


def _flat(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(-1)


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """Old exports mix dtypes, a float64 Constant for float32 data; PyTorch had converted such a scalar."""
    with np.errstate(all="ignore"):
        return values.astype(dtype, copy=False)


def _operand(call: AtenCall[Any], name: str) -> Any:
    if name in call.arguments:
        return call.arguments[name]
    if name in call.scalars:
        return call.scalars[name]
    raise ReferenceRefusal(f"argument {name} is missing")


_REQUIRED = object()


def _number(call: AtenCall[Any], name: str, default: Any = _REQUIRED) -> Any:
    """A scalar argument as a Python number, from an input of one element or from an attribute."""
    if default is not _REQUIRED and name not in call.arguments and name not in call.scalars:
        return default
    value = np.asarray(_operand(call, name))
    if value.size != 1 or value.dtype.kind in "OUS":
        raise ReferenceRefusal(f"{name} must be one number, not {value.dtype} of shape {list(value.shape)}")
    return value.reshape(()).item()


def _text(call: AtenCall[Any], name: str, default: str) -> str:
    if name not in call.arguments and name not in call.scalars:
        return default
    value = _operand(call, name)
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0] if value.size == 1 else str(value)
    return value.decode() if isinstance(value, bytes) else str(value)


def _dim(call: AtenCall[Any], rank: int, name: str = "dim") -> int:
    dim, rank = int(_number(call, name)), max(rank, 1)
    if not -rank <= dim < rank:
        raise ReferenceRefusal(f"{name} {dim} is out of range for rank {rank}")
    return dim % rank


def _scalar_type(code: int) -> np.dtype[Any]:
    if code == 15:
        import onnx

        return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    if code not in _SCALAR_TYPES:
        raise ReferenceRefusal(f"dtype {code} is none that the reference can make")
    return np.dtype(_SCALAR_TYPES[code])


KERNELS: dict[str, Kernel] = {
    "arange": arange,
    "diagonal_scatter": diagonal_scatter,
    "gather": gather,
    "index": index,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_fill,
    "index_put": index_put,
    "masked_fill": masked_fill,
    "masked_scatter": masked_scatter,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
    "select_scatter": select_scatter,
    "slice_scatter": slice_scatter,
}


def run_call(call: AtenCall[Any], mask_ranks: Sequence[int | None] = ()) -> Array:
    """Run an ATen call on arrays. ``mask_ranks`` are the hints for index and index_put."""
    if call.operator == "index_put":
        return index_put(call, mask_ranks)
    if call.operator == "index":
        return np.asarray(index(call, mask_ranks))
    if call.operator not in KERNELS:
        raise ReferenceRefusal(f"the reference has no kernel for aten::{call.operator}")
    return np.asarray(KERNELS[call.operator](call))


def dynamic_slice(data: Array, starts: Array, ends: Array, axes: Array | None = None) -> Array:
    """ONNX's removed operator DynamicSlice: Slice with runtime starts and ends, step 1, clamped to the data."""
    lists = [np.asarray(v).reshape(-1).tolist() for v in (starts, ends)]
    dims = list(range(len(lists[0]))) if axes is None else np.asarray(axes).reshape(-1).tolist()
    if not len(lists[0]) == len(lists[1]) == len(dims):
        raise ReferenceRefusal(f"DynamicSlice has {len(lists[0])} starts, {len(lists[1])} ends and {len(dims)} axes")
    cuts = [slice(None)] * data.ndim
    for start, end, axis in zip(*lists, dims, strict=True):
        if not -data.ndim <= axis < data.ndim:
            raise ReferenceRefusal(f"DynamicSlice has axis {axis} for data of rank {data.ndim}")
        cuts[axis] = slice(int(start), int(end))
    return np.ascontiguousarray(data[tuple(cuts)])
