"""Random index_put calls: arrays, their ATen graph, and the answer from NumPy's (or PyTorch's) own indexing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

FLOATS = ["float32", "float64", "float16"]
INTEGERS = ["int64", "int32", "uint8", "int8", "int16"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]


@dataclass
class Case:
    """One call ``data[index] = values`` (or ``+=`` with accumulate) and how its graph is written.

    ``index`` holds arrays (integer or bool) and None. ``dynamic`` are the names of inputs whose sizes are not declared;
    ``constant`` the indices that are initializers.
    """

    data: np.ndarray
    index: list[np.ndarray | None]
    values: np.ndarray
    accumulate: bool
    opset: int
    dynamic: bool
    constant: tuple[int, ...]
    domain: str

    def feeds(self) -> dict[str, np.ndarray]:
        feeds = {"x": self.data, "v": self.values}
        for i, index in enumerate(self.index):
            if index is not None and i not in self.constant:
                feeds[f"i{i}"] = index
        return feeds

    def model(self) -> onnx.ModelProto:
        """The ATen fallback graph of this call."""
        inputs, initializers = [], []
        names = ["x"]
        for i, index in enumerate(self.index):
            if index is None:
                names.append("")
                continue
            names.append(f"i{i}")
            if i in self.constant:
                initializers.append(onnx.numpy_helper.from_array(index, f"i{i}"))
        for name, array in self.feeds().items():
            shape = [f"{name}_{d}" if self.dynamic else n for d, n in enumerate(array.shape)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
        flag = helper.make_node(
            "Constant", [], ["acc"], value=onnx.numpy_helper.from_array(np.array(self.accumulate), "acc_value")
        )
        put = helper.make_node("ATen", [*names, "v", "acc"], ["y"], domain=self.domain, operator="index_put")
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(self.data.dtype), None)
        graph = helper.make_graph([flag, put], "g", inputs, [output], initializers)
        imports = [helper.make_opsetid("", self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, ir_version=8, opset_imports=imports)

    def key(self) -> tuple[Any, ...]:
        return tuple(slice(None) if i is None else i for i in self.index)

    def answer(self) -> np.ndarray:
        """By NumPy's indexing; for duplicates, applied in row-major order so that the last wins."""
        if self.accumulate:
            if self.data.dtype == np.bool_:
                positions = np.arange(self.data.size).reshape(self.data.shape)[self.key()]
                out = self.data.copy().reshape(-1)
                np.logical_or.at(out, positions, np.broadcast_to(self.values, positions.shape))
                return out.reshape(self.data.shape)
            wide = np.float64 if self.data.dtype.kind == "f" else self.data.dtype
            out = self.data.astype(wide)
            # Spread first: NumPy 2.4 sums wrongly when the values have fewer dimensions than the index.
            values = np.broadcast_to(self.values.astype(wide), out[self.key()].shape)
            np.add.at(out, self.key(), values)
            return out.astype(self.data.dtype)
        positions = np.arange(self.data.size).reshape(self.data.shape)[self.key()]
        out = self.data.copy().reshape(-1)
        for position, value in zip(
            positions.reshape(-1), np.broadcast_to(self.values, positions.shape).reshape(-1), strict=True
        ):
            out[position] = value
        return out.reshape(self.data.shape)

    def torch_answer(self, torch: Any) -> np.ndarray:
        """By PyTorch's index_put_."""
        out = torch.from_numpy(self.data.copy())
        indices = tuple(None if i is None else torch.from_numpy(i.copy()) for i in self.index)
        torch.ops.aten.index_put_(out, list(indices), torch.from_numpy(self.values), self.accumulate)
        return out.numpy()


def _array(draw: st.DrawFn, dtype: str, shape: tuple[int, ...], special: bool) -> np.ndarray:
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        array = rng.standard_normal(shape).astype(dtype)
        if special and array.size:
            flat = array.reshape(-1)
            flat[rng.integers(0, flat.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        return array
    low = 0 if dtype == "uint8" else -9
    return rng.integers(low, 9, shape).astype(dtype)


@st.composite
def cases(draw: st.DrawFn, most_rank: int = 5) -> Case:
    rank = draw(st.integers(1, most_rank))
    largest = 5 if rank <= 3 else 3
    empty = draw(st.integers(0, 19)) == 0
    shape = tuple(draw(st.integers(0 if empty else 1, largest)) for _ in range(rank))
    dtype = draw(st.sampled_from(DTYPES))
    data = _array(draw, dtype, shape, True)
    grid = tuple(draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 4)) for _ in range(draw(st.integers(0, 3))))
    index: list[np.ndarray | None] = []
    masks = 0
    axis = 0
    ends = draw(st.integers(1, rank))
    while axis < ends:
        kind = draw(st.sampled_from(["none", "integer", "integer", "mask"]))
        if kind == "mask" and masks == 0:
            width = draw(st.integers(1, ends - axis))
            flavour = draw(st.integers(0, 4))
            rng = np.random.default_rng(draw(st.integers(0, 2**16)))
            mask = rng.integers(0, 2, shape[axis : axis + width]).astype(bool)
            mask = np.zeros_like(mask) if flavour == 0 else np.ones_like(mask) if flavour == 1 else mask
            index.append(mask)
            masks, axis = 1, axis + width
            continue
        if kind == "integer" and shape[axis] > 0:
            dims = tuple(1 if draw(st.booleans()) and d != 0 else d for d in grid)
            dims = dims[draw(st.integers(0, len(dims))) :]
            rng = np.random.default_rng(draw(st.integers(0, 2**16)))
            low = -shape[axis] if draw(st.booleans()) else 0
            array = rng.integers(low, shape[axis], dims).astype(draw(st.sampled_from(["int64", "int64", "int32"])))
            if array.ndim == 1 and array.size == shape[axis] and draw(st.booleans()):
                array = np.arange(shape[axis], dtype=array.dtype)
            index.append(array)
        else:
            index.append(None)
        axis += 1
    if all(i is None for i in index):
        index[-1] = np.array(0 if shape[len(index) - 1] else [], dtype=np.int64)
    if masks and draw(st.booleans()):
        # With a mask, other indices have to broadcast with its count: often they are single.
        index = [i if i is None or i.dtype == bool else np.array(i.reshape(-1)[0]) if i.size else i for i in index]
    index = _repaired(data, index)
    selected = data[tuple(slice(None) if i is None else i for i in index)].shape
    value_shape = tuple(1 if draw(st.integers(0, 3)) == 0 else d for d in selected)
    value_shape = value_shape[draw(st.integers(0, len(value_shape))) :] if draw(st.booleans()) else value_shape
    values = _array(draw, dtype, value_shape, True)
    constant = tuple(i for i, a in enumerate(index) if a is not None and draw(st.integers(0, 3)) == 0)
    opset = draw(st.sampled_from([9, 11, 13, 16, 18, 21]))
    # A size of 0 in a grid of several dimensions, known only at run time, needs Reshape's allowzero (opset 14).
    unflattenable = opset < 14 and any(i is not None and i.ndim > 1 and i.size == 0 for i in index)
    return Case(
        data,
        index,
        values,
        draw(st.integers(0, 2)) == 0,
        opset,
        draw(st.booleans()) and not unflattenable,
        constant,
        draw(st.sampled_from(["", "org.pytorch.aten"])),
    )


def _repaired(data: np.ndarray, index: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """The indices, with those made single that do not broadcast with the others (a mask's count above all)."""
    try:
        data[tuple(slice(None) if i is None else i for i in index)]
        return index
    except IndexError:
        single = [
            i if i is None or i.dtype == bool else np.zeros((), i.dtype) if i.size == 0 else np.array(i.reshape(-1)[0])
            for i in index
        ]
        return [
            None if i is not None and i.dtype != bool and data.shape[_axis(index, n)] == 0 else i
            for n, i in enumerate(single)
        ]


def _axis(index: list[np.ndarray | None], position: int) -> int:
    return sum(i.ndim if i is not None and i.dtype == bool else 1 for i in index[:position])
