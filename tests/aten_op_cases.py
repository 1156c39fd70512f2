"""Random calls of the ATen operators beside index_put: arguments, their graph, and the answer written out in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from index_put_cases import DTYPES, FLOATS
from onnx import TensorProto, helper, numpy_helper

OPSETS = [9, 11, 13, 16, 18, 21]
SCALAR_TYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7}


@dataclass
class Case:
    """One call of an ATen operator and how its graph is written.

    ``arguments`` are in PyTorch's order: arrays are tensors, numbers and texts scalars, None is absent, a list holds
    index tensors. ``constant`` are the tensors that are initializers, ``attributes`` the scalars that are attributes of
    the node (all others are Constants). ``list_maker`` is the operator that makes one value of the index tensors.
    """

    operator: str
    arguments: dict[str, Any]
    constant: frozenset[str]
    attributes: frozenset[str]
    opset: int
    dynamic: bool
    domain: str
    list_maker: str = ""
    exact: bool = True
    overload: str = field(default="", repr=False)

    def tensors(self) -> dict[str, np.ndarray]:
        found = {k: v for k, v in self.arguments.items() if isinstance(v, np.ndarray)}
        for i, index in enumerate(self.arguments.get("indices", ())):
            if index is not None:
                found[f"index{i}"] = index
        return found

    def feeds(self) -> dict[str, np.ndarray]:
        return {k: v for k, v in self.tensors().items() if k not in self.constant}

    def answer(self) -> np.ndarray:
        """By NumPy, element by element."""
        return NUMPY[self.operator](**self.arguments)

    def torch_answer(self, torch: Any) -> np.ndarray:
        """By PyTorch."""
        return TORCH[self.operator](torch, **{k: _to_torch(torch, v) for k, v in self.arguments.items()}).numpy()

    def model(self) -> onnx.ModelProto:
        """The ATen fallback graph of this call."""
        nodes, names, initializers, attributes = [], [], [], {"operator": self.operator}
        for name, value in self.arguments.items():
            if value is None:
                names.append("")
            elif name in self.attributes:
                attributes[name] = value
            elif name == "indices":
                names += self._index_list(nodes)
            else:
                names.append(name)
                if not isinstance(value, np.ndarray):
                    nodes.append(_constant(name, value))
        for name in self.constant:
            initializers.append(numpy_helper.from_array(self.tensors()[name], name))
        inputs = []
        for name, array in self.feeds().items():
            shape = [f"{name}_{d}" if self.dynamic else n for d, n in enumerate(array.shape)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
        nodes.append(helper.make_node("ATen", names, ["y"], domain=self.domain, **attributes))
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(self.answer().dtype), None)
        graph = helper.make_graph(nodes, "g", inputs, [output], initializers)
        domains = {n.domain for n in nodes} - {""}
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        return helper.make_model(graph, ir_version=8, opset_imports=imports)

    def _index_list(self, nodes: list[onnx.NodeProto]) -> list[str]:
        names = [f"index{i}" if index is not None else "" for i, index in enumerate(self.arguments["indices"])]
        if not self.list_maker:
            return names
        if "" in names:
            nodes.append(helper.make_node("Constant", [], ["none"], domain="prim"))
        domain = "prim" if self.list_maker == "ListConstruct" else ""
        nodes.append(helper.make_node(self.list_maker, [n or "none" for n in names], ["list"], domain=domain))
        return ["list"]


def _constant(name: str, value: Any) -> onnx.NodeProto:
    if isinstance(value, str):
        tensor = helper.make_tensor(f"{name}_value", TensorProto.STRING, [], [value.encode()])
    else:
        tensor = numpy_helper.from_array(np.array(value), f"{name}_value")
    return helper.make_node("Constant", [], [name], value=tensor)


def _to_torch(torch: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_to_torch(torch, v) for v in value]
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


# ---- answers by NumPy


def _wide(array: np.ndarray) -> np.ndarray:
    """Floats as float64, in which sums and products are made; all else as it is."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _along(index: np.ndarray, dim: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(position in the data, position in the index) for an index with one entry an element."""
    for at in np.ndindex(index.shape):
        yield (*at[:dim], int(index[at]), *at[dim + 1 :]), at


def _met(x: np.ndarray, dim: int, index: np.ndarray, src: Any) -> dict[tuple[int, ...], list[Any]]:
    """What is written at each position, in order."""
    met: dict[tuple[int, ...], list[Any]] = {}
    dim %= x.ndim
    for position, at in _along(index, dim):
        met.setdefault(position, []).append(src[at] if isinstance(src, np.ndarray) and src.ndim else src)
    return met


def _reduced(values: list[Any], how: str) -> Any:
    array = np.array(values)
    if array.dtype == np.bool_:
        return array.any() if how in ("add", "sum", "amax") else array.all()
    with np.errstate(all="ignore"):
        if how in ("add", "sum"):
            return np.add.reduce(array, dtype=array.dtype)
        if how in ("multiply", "prod"):
            return np.multiply.reduce(array, dtype=array.dtype)
        if how == "mean":
            total = np.add.reduce(array, dtype=array.dtype)
            return total // len(array) if array.dtype.kind in "iu" else total / array.dtype.type(len(array))
        return array.max() if how == "amax" else array.min()


def _scatter(x: np.ndarray, dim: int, index: np.ndarray, src: Any, reduce: str, include_self: bool) -> np.ndarray:
    out = _wide(x).copy()
    src = _wide(np.asarray(src).astype(x.dtype))
    for position, values in _met(x, dim, index, src if src.ndim else src[()]).items():
        out[position] = _reduced([out[position], *values] if include_self else values, reduce) if reduce else values[-1]
    return out.astype(x.dtype)


def _rows(x: np.ndarray, dim: int, index: np.ndarray) -> Iterator[tuple[tuple[Any, ...], int]]:
    for k, row in enumerate(index.reshape(-1)):
        yield (*[slice(None)] * (dim % x.ndim), int(row)), k


def _index_fill(self: np.ndarray, dim: int, index: np.ndarray, value: Any) -> np.ndarray:
    out = self.copy()
    for at, _ in _rows(self, dim, index):
        out[at] = np.asarray(value).astype(self.dtype)
    return out


def _index_copy(self: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    out = self.copy()
    for at, k in _rows(self, dim, index):
        out[at] = source.take(k, dim)
    return out


def _index_add(self: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray, alpha: Any = 1) -> np.ndarray:
    out = _wide(self).copy()
    for at, k in _rows(self, dim, index):
        row = source.take(k, dim)
        with np.errstate(all="ignore"):
            out[at] = out[at] | row if self.dtype == np.bool_ else out[at] + _wide(row) * np.array(alpha, out.dtype)
    return out.astype(self.dtype)


def _masked_fill(self: np.ndarray, mask: np.ndarray, value: Any) -> np.ndarray:
    data, mask = np.broadcast_arrays(self, mask)
    out = data.copy()
    out[mask != 0] = np.asarray(value).astype(self.dtype)
    return out


def _masked_scatter(self: np.ndarray, mask: np.ndarray, source: np.ndarray) -> np.ndarray:
    data, mask = np.broadcast_arrays(self, mask)
    out, rest = data.copy(), iter(source.reshape(-1))
    for at in np.ndindex(out.shape):
        if mask[at]:
            out[at] = next(rest)
    return out


def _gather(self: np.ndarray, dim: int, index: np.ndarray, sparse_grad: Any = False) -> np.ndarray:
    out = np.zeros(index.shape, self.dtype)
    for position, at in _along(index, dim % self.ndim):
        out[at] = self[position]
    return out


def _index(self: np.ndarray, indices: list[np.ndarray | None]) -> np.ndarray:
    return self[tuple(slice(None) if i is None else i for i in indices)]


def _view(self: np.ndarray, src: np.ndarray, place: tuple[Any, ...]) -> np.ndarray:
    out = self.copy()
    out[place] = src
    return out


def _bound(value: Any) -> int | None:
    return None if value is None else int(value)


def _diagonal(self: np.ndarray, src: np.ndarray, offset: int, dim1: int, dim2: int) -> np.ndarray:
    out = self.copy()
    rows = np.moveaxis(out, (dim1, dim2), (-2, -1))
    for k in range(src.shape[-1]):
        rows[..., k + max(-offset, 0), k + max(offset, 0)] = src[..., k]
    return out


def _arange(end: Any, start: Any = 0, step: Any = 1, dtype: int | None = None, **_: Any) -> np.ndarray:
    start, end, step = (np.asarray(v)[()] for v in (start, end, step))
    integral = all(np.asarray(v).dtype.kind == "i" for v in (start, end, step))
    names = {code: name for name, code in SCALAR_TYPES.items()}
    name = names[dtype] if dtype is not None else "int64" if integral else "float32"
    count = math.ceil((end - start) / step)
    return np.array([start + step * k for k in range(count)], np.float64).astype(name)


NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "arange": _arange,
    "gather": _gather,
    "index": _index,
    "index_fill": _index_fill,
    "index_copy": _index_copy,
    "index_add": _index_add,
    "masked_fill": _masked_fill,
    "masked_scatter": _masked_scatter,
    "scatter": lambda self, dim, index, src, reduce="": _scatter(self, dim, index, src, reduce, True),
    "scatter_add": lambda self, dim, index, src: _scatter(self, dim, index, src, "add", True),
    "slice_scatter": lambda self, src, dim, start, end, step: _view(
        self, src, (*[slice(None)] * (dim % self.ndim), slice(_bound(start), _bound(end), step))
    ),
    "select_scatter": lambda self, src, dim, index: _view(self, src, (*[slice(None)] * (dim % self.ndim), int(index))),
    "diagonal_scatter": lambda self, src, offset, dim1, dim2: _diagonal(self, src, offset, dim1, dim2),
    "scatter_reduce": lambda self, dim, index, src, reduce, include_self=True: _scatter(
        self, dim, index, src, reduce, include_self
    ),
}


# ---- answers by PyTorch


def _torch_arange(torch: Any, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None, **_: Any) -> Any:
    start, end, step = (v.item() if isinstance(v, torch.Tensor) else v for v in (start, end, step))
    names = {code: getattr(torch, name) for name, code in SCALAR_TYPES.items()}
    return torch.arange(start, end, step, dtype=names.get(dtype))


def _torch_scatter(torch: Any, self: Any, dim: int, index: Any, src: Any, reduce: str = "") -> Any:
    src = src.item() if isinstance(src, torch.Tensor) and not src.dim() else src
    return self.scatter(dim, index.long(), src, **({"reduce": reduce} if reduce else {}))


TORCH: dict[str, Callable[..., Any]] = {
    "arange": _torch_arange,
    "gather": lambda torch, self, dim, index, sparse_grad=False: self.gather(dim, index.long()),
    "index": lambda torch, self, indices: torch.ops.aten.index(self, indices),
    "index_fill": lambda torch, self, dim, index, value: self.index_fill(dim, index.long(), value),
    "index_copy": lambda torch, self, dim, index, source: self.index_copy(dim, index.long(), source),
    "index_add": lambda torch, self, dim, index, source, alpha=1: self.index_add(dim, index, source, alpha=alpha),
    "masked_fill": lambda torch, self, mask, value: self.masked_fill(mask.bool(), value),
    "masked_scatter": lambda torch, self, mask, source: self.masked_scatter(mask.bool(), source),
    "scatter": _torch_scatter,
    "scatter_add": lambda torch, self, dim, index, src: self.scatter_add(dim, index.long(), src),
    "slice_scatter": lambda torch, self, src, dim, start, end, step: self.slice_scatter(
        src, dim, _bound(start), _bound(end), step
    ),
    "select_scatter": lambda torch, self, src, dim, index: self.select_scatter(src, dim, int(index)),
    "diagonal_scatter": lambda torch, self, src, offset, dim1, dim2: self.diagonal_scatter(src, offset, dim1, dim2),
    "scatter_reduce": lambda torch, self, dim, index, src, reduce, include_self=True: self.scatter_reduce(
        dim, index.long(), src, reduce, include_self=include_self
    ),
}


# ---- random calls


def random_array(draw: st.DrawFn, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of any kind; among floats now and then a NaN, an infinity or -0.0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        array = rng.standard_normal(shape).astype(dtype)
        if array.size and rng.integers(0, 3) == 0:
            array.reshape(-1)[rng.integers(0, array.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        return array
    return rng.integers(0 if dtype == "uint8" else -9, 9, shape).astype(dtype)


def random_shape(draw: st.DrawFn, least_rank: int = 1, most_rank: int = 4) -> tuple[int, ...]:
    rank = draw(st.integers(least_rank, most_rank))
    least = 0 if draw(st.integers(0, 9)) == 0 else 1
    return tuple(draw(st.integers(least, 4)) for _ in range(rank))


def random_index(draw: st.DrawFn, size: int, shape: tuple[int, ...], negative: bool = False) -> np.ndarray:
    """Indices into an axis; none at all where the axis is empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if not size:
        return np.zeros([0 if i == 0 else n for i, n in enumerate(shape)], np.int64)
    return rng.integers(-size if negative else 0, size, shape).astype(
        draw(st.sampled_from(["int64", "int64", "int32"]))
    )


def case(draw: st.DrawFn, operator: str, arguments: dict[str, Any], *, exact: bool = True, **more: Any) -> Case:
    """A call with these arguments, written in one of the forms there are."""
    tensors = [k for k, v in arguments.items() if isinstance(v, np.ndarray) and k != "self"]
    tensors += [f"index{i}" for i, v in enumerate(arguments.get("indices", ())) if v is not None]
    constant = frozenset(k for k in tensors if draw(st.integers(0, 3)) == 0)
    attributes = frozenset(k for k in ("dim", "alpha", "value", "reduce") if _is_scalar(arguments.get(k)))
    attributes = attributes if draw(st.booleans()) else frozenset()
    return Case(
        operator,
        arguments,
        constant,
        attributes,
        draw(st.sampled_from(OPSETS)),
        draw(st.booleans()),
        draw(st.sampled_from(["", "org.pytorch.aten"])),
        exact=exact,
        **more,
    )


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def random_dim(draw: st.DrawFn, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


@st.composite
def arange_cases(draw: st.DrawFn) -> Case:
    floats = draw(st.booleans())
    step = draw(st.integers(1, 4)) * draw(st.sampled_from([1, 1, -1]))
    start, count = draw(st.integers(-5, 5)), draw(st.integers(0, 6))
    end = start + step * count - (draw(st.integers(0, abs(step) - 1)) * (1 if step > 0 else -1) if count else 0)
    arity = draw(st.integers(1, 3))
    if arity == 1:
        start, step, end = 0, 1, count
    elif arity == 2:
        step, end = 1, start + count
    scale = 0.25 if floats else 1  # quarters are exact in every type
    bounds = {k: v * scale for k, v in (("start", start), ("end", end), ("step", step))}
    names = ["end", "start", "step"][:arity] if arity == 1 else ["start", "end", "step"][:arity]
    kind = draw(st.sampled_from(["float32", "float64"] if floats else ["int64", "int64", "int32"]))
    arguments: dict[str, Any] = {}
    for name in names:
        known = draw(st.booleans())
        arguments[name] = bounds[name] if known else np.array(bounds[name], kind)
    dtype = draw(st.sampled_from([None, "float32", "float64", "float16", *([] if floats else ["int64", "int32"])]))
    if draw(st.booleans()) or dtype is not None:
        arguments["dtype"] = SCALAR_TYPES[dtype] if dtype is not None else None
        arguments |= dict.fromkeys(("layout", "device", "pin_memory"))
    return case(draw, "arange", arguments)


@st.composite
def index_cases(draw: st.DrawFn) -> Case:
    shape = random_shape(draw)
    grid = random_shape(draw, 0, 2)
    indices: list[np.ndarray | None] = []
    axis, count = 0, None
    while axis < draw(st.integers(1, len(shape))):
        kind = draw(st.sampled_from(["none", "integer", "integer", "mask"]))
        if kind == "mask" and count is None:
            width = draw(st.integers(1, len(shape) - axis))
            rng = np.random.default_rng(draw(st.integers(0, 2**16)))
            mask = rng.integers(0, 2, shape[axis : axis + width]).astype(bool)
            indices.append(mask)
            count, axis = int(mask.sum()), axis + width
            continue
        own = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in grid)[draw(st.integers(0, len(grid))) :]
        indices.append(random_index(draw, shape[axis], own, True) if kind == "integer" and shape[axis] else None)
        axis += 1
    if all(i is None for i in indices):
        indices = [random_index(draw, shape[0], (3,), True)]
    if count is not None:  # what stands beside a mask broadcasts with how often it holds
        indices = [
            i if i is None or i.dtype == bool else i.reshape(-1)[:1] if i.size else np.zeros(1, i.dtype)
            for i in indices
        ]
    maker = draw(st.sampled_from(["", "ListConstruct", "SequenceConstruct"]))
    made = case(draw, "index", {"self": random_array(draw, draw(st.sampled_from(DTYPES)), shape), "indices": indices})
    if maker == "SequenceConstruct" and (made.opset < 11 or any(i is None for i in indices)):
        maker = "ListConstruct"
    made.list_maker = maker
    return made


@st.composite
def row_cases(draw: st.DrawFn) -> Case:
    """index_fill, index_copy and index_add: one index into one axis."""
    operator = draw(st.sampled_from(["index_fill", "index_copy", "index_add"]))
    dtype = draw(st.sampled_from(DTYPES))
    shape = random_shape(draw)
    dim = random_dim(draw, len(shape))
    count = draw(st.integers(0, 5))
    index = random_index(draw, shape[dim], (count,), operator == "index_fill")
    arguments: dict[str, Any] = {"self": random_array(draw, dtype, shape), "dim": dim, "index": index}
    if operator == "index_fill":
        number = {"b": True, "u": 3}.get(np.dtype(dtype).kind, -2)
        arguments["value"] = draw(st.sampled_from([number, float(number), np.array(number, dtype)]))
        return case(draw, operator, arguments)
    rows = list(shape)
    rows[dim] = index.size
    arguments["source"] = random_array(draw, dtype, tuple(rows))
    if operator == "index_add" and draw(st.booleans()):
        arguments["alpha"] = 1 if dtype == "bool" else draw(st.sampled_from([1, 2, 0.5] if dtype in FLOATS else [1, 3]))
    return case(draw, operator, arguments, exact=operator == "index_copy")


@st.composite
def mask_cases(draw: st.DrawFn) -> Case:
    """masked_fill and masked_scatter: the mask broadcasts with the data (and, now and then, the data with the mask)."""
    operator = draw(st.sampled_from(["masked_fill", "masked_scatter"]))
    dtype = draw(st.sampled_from(DTYPES))
    shape = random_shape(draw)
    shapes = []
    for whole in (draw(st.integers(0, 4)) != 0, draw(st.integers(0, 2)) == 0):
        own = shape if whole else tuple(1 if draw(st.booleans()) else n for n in shape)
        shapes.append(own if whole else own[draw(st.integers(0, len(own))) :])
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    mask = rng.integers(0, 2, shapes[1]).astype(draw(st.sampled_from(["bool", "bool", "uint8"])))
    arguments: dict[str, Any] = {"self": random_array(draw, dtype, shapes[0]), "mask": mask}
    if operator == "masked_fill":
        number = {"b": True, "u": 3}.get(np.dtype(dtype).kind, -2)
        choices = [number, float(number), np.array(number, dtype)]
        arguments["value"] = draw(st.sampled_from([*choices, -math.inf] if dtype in FLOATS else choices))
        return case(draw, operator, arguments)
    count = int((np.broadcast_arrays(arguments["self"], mask)[1] != 0).sum()) + draw(st.integers(0, 3))
    arguments["source"] = random_array(draw, dtype, (count,))
    if count % 2 == 0 and draw(st.booleans()):
        arguments["source"] = arguments["source"].reshape(2, count // 2)
    return case(draw, operator, arguments)


@st.composite
def view_cases(draw: st.DrawFn) -> Case:
    """slice_scatter, select_scatter and diagonal_scatter: bounds and positions are numbers, or known at run time."""
    operator = draw(st.sampled_from(["slice_scatter", "slice_scatter", "select_scatter", "diagonal_scatter"]))
    dtype = draw(st.sampled_from(DTYPES))
    shape = random_shape(draw, 2 if operator == "diagonal_scatter" else 1)
    data = random_array(draw, dtype, shape)
    dim = random_dim(draw, len(shape))
    size = shape[dim]

    def number(low: int, high: int) -> Any:
        value = draw(st.integers(low, high))
        return np.array(value) if draw(st.booleans()) else value

    if operator == "diagonal_scatter":
        other = draw(st.sampled_from([d for d in range(len(shape)) if d != dim % len(shape)]))
        offset = draw(st.integers(-size, shape[other]))
        source = np.diagonal(data, offset, dim, other).shape
        arguments = {
            "self": data,
            "src": random_array(draw, dtype, source),
            "offset": offset,
            "dim1": dim,
            "dim2": other,
        }
        return case(draw, operator, arguments)
    if operator == "select_scatter" and size:
        index = number(-size, size - 1)
        source = np.take(data, 0, dim).shape
        return case(
            draw, operator, {"self": data, "src": random_array(draw, dtype, source), "dim": dim, "index": index}
        )
    bounds = [None if draw(st.integers(0, 3)) == 0 else number(-6, 6) for _ in range(2)]
    bounds[1] = 2**63 - 1 if draw(st.integers(0, 3)) == 0 else bounds[1]
    step = draw(st.sampled_from([1, 1, 2, 3]))
    place = (*[slice(None)] * (dim % len(shape)), slice(_bound(bounds[0]), _bound(bounds[1]), step))
    arguments = {"self": data, "src": random_array(draw, dtype, data[place].shape), "dim": dim}
    return case(draw, "slice_scatter", {**arguments, "start": bounds[0], "end": bounds[1], "step": step})


@st.composite
def element_cases(draw: st.DrawFn) -> Case:
    """gather, scatter, scatter_add and scatter_reduce: one index an element."""
    operator = draw(st.sampled_from(["gather", "scatter", "scatter_add", "scatter_reduce"]))
    dtype = draw(st.sampled_from(DTYPES))
    shape = random_shape(draw)
    dim = random_dim(draw, len(shape))
    smaller = draw(st.booleans())
    own = [draw(st.integers(min(1, n), n)) if smaller else n for n in shape]
    own[dim] = draw(st.integers(0 if draw(st.integers(0, 5)) == 0 else 1, 5))
    if not shape[dim]:
        own[dim] = 0
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    index = rng.integers(0, max(shape[dim], 1), own).astype(draw(st.sampled_from(["int64", "int64", "int32"])))
    arguments: dict[str, Any] = {"self": random_array(draw, dtype, shape), "dim": dim, "index": index}
    if operator == "gather":
        if draw(st.booleans()):
            arguments["sparse_grad"] = False
        return case(draw, operator, arguments)
    source = tuple(n + draw(st.integers(0, 1)) for n in own) if draw(st.booleans()) else tuple(own)
    arguments["src"] = random_array(draw, dtype, source)
    reduce = ""
    if operator == "scatter":
        number = {"b": True, "u": 3}.get(np.dtype(dtype).kind, -2)
        arguments["src"] = draw(st.sampled_from([arguments["src"], number, np.array(number, dtype)]))
        reduce = draw(st.sampled_from(["", "", "add", "multiply"] if dtype != "bool" else [""]))
        if reduce:
            arguments["reduce"] = reduce
    if operator == "scatter_reduce":
        averaged = np.dtype(dtype).name in ("float32", "float64", "int32", "int64")
        reductions = ["sum", "prod", "amin", "amax", *(["mean"] if averaged else [])]
        arguments["reduce"] = reduce = draw(st.sampled_from(reductions))
        if draw(st.booleans()):
            arguments["include_self"] = draw(st.booleans())
    return case(draw, operator, arguments, exact=(operator == "scatter" and not reduce) or reduce.startswith("am"))


@dataclass
class SliceCase:
    """A DynamicSlice: ``bounds`` holds (axis, start, end); without ``axes`` they are for the first axes."""

    data: np.ndarray
    bounds: list[tuple[int, int, int]]
    kind: str
    axes: bool
    constant: frozenset[str]
    opset: int
    dynamic: bool

    def tensors(self) -> dict[str, np.ndarray]:
        axes, starts, ends = (np.array(column, self.kind) for column in zip(*self.bounds, strict=True))
        found = {"x": self.data, "starts": starts, "ends": ends}
        return {**found, "axes": axes} if self.axes else found

    def feeds(self) -> dict[str, np.ndarray]:
        return {k: v for k, v in self.tensors().items() if k not in self.constant}

    def answer(self) -> np.ndarray:
        cut = [slice(None)] * self.data.ndim
        for axis, start, end in self.bounds:
            cut[axis] = slice(start, end)
        return self.data[tuple(cut)]

    def model(self) -> onnx.ModelProto:
        inputs = []
        for name, array in self.feeds().items():
            shape = [f"{name}_{d}" if self.dynamic and name == "x" else n for d, n in enumerate(array.shape)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
        constants = [numpy_helper.from_array(self.tensors()[k], k) for k in sorted(self.constant)]
        node = helper.make_node("DynamicSlice", list(self.tensors()), ["y"])
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(self.data.dtype), None)
        graph = helper.make_graph([node], "g", inputs, [output], constants)
        return helper.make_model(graph, ir_version=6, opset_imports=[helper.make_opsetid("", self.opset)])


@st.composite
def slice_cases(draw: st.DrawFn) -> SliceCase:
    data = random_array(draw, draw(st.sampled_from(DTYPES)), random_shape(draw))
    kind = draw(st.sampled_from(["int64", "int32"]))
    count = draw(st.integers(1, data.ndim))
    with_axes = draw(st.booleans())
    axes = draw(st.permutations(range(data.ndim)))[:count] if with_axes else range(count)
    largest = int(np.iinfo(kind).max)
    bound = st.one_of(st.integers(-5, 5), st.sampled_from([largest, -largest - 1, 2**31 - 1]))
    bounds = []
    for axis in axes:
        named = axis - data.ndim if with_axes and draw(st.booleans()) else axis
        bounds.append((named, draw(st.integers(-5, 5)), draw(bound)))
    constant = frozenset(k for k in ("starts", "ends") if draw(st.booleans()))
    if with_axes and draw(st.integers(0, 3)):
        constant |= {"axes"}
    return SliceCase(data, bounds, kind, with_axes, constant, draw(st.sampled_from([9, 10])), draw(st.booleans()))


ALL = {
    "arange": arange_cases(),
    "index": index_cases(),
    "rows": row_cases(),
    "masks": mask_cases(),
    "elements": element_cases(),
    "views": view_cases(),
    "slices": slice_cases(),
}

__all__ = ["ALL", "OPSETS", "Case", "SliceCase"]
