"""A module as a function while TorchScript traces it: what is written in place becomes a new value.

TorchScript records operators, and its ONNX exporter takes what is written through a view for a new tensor that nothing
else sees: the write is lost. Here every tensor of the module stands for a value that is never changed. A write makes a
new value of the tensor, and of the one that it is a view of, all the way up; the other views make theirs anew when they
are next used. An operator receives the values of its arguments.

Values of the inputs must not become numbers of Python on the way, for the trace would keep the example's: a branch on
one, ``int(x)``, a loop over one are refused, with their line. ``x.item()`` of an integer stays a tensor.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphfix.errors import ExportError
from graphfix.sources import place
from graphfix.torch_export import subscript
from graphfix.torch_export.untraced import memory_of, shape_of, untraced
from graphfix.torch_export.views import UnfollowedView, View

TORCH_FOLDER = str(Path(torch.__file__).parent)
HERE_FOLDER = str(Path(__file__).parent)

# What is known of a tensor without its elements.
_METADATA = frozenset(
    """shape dtype device layout ndim dim size stride numel nelement element_size storage_offset is_contiguous
    is_floating_point is_complex is_signed is_cuda is_sparse is_quantized is_meta is_nested is_mkldnn is_mps is_xpu
    is_conj is_neg is_inference is_pinned is_leaf is_shared get_device requires_grad grad grad_fn names has_names
    __len__ __hash__ __repr__ __str__ type itemsize nbytes data_ptr _is_view _base _version storage untyped_storage
    result_type promote_types can_cast ndimension is_same_size _is_zerotensor retains_grad output_nr""".split()
)
_SIZES = frozenset(("shape", "size", "numel", "nelement", "__len__"))
# What makes tensors of sizes that depend on the elements of the arguments.
_SELECTING = frozenset(
    """nonzero nonzero_numpy argwhere masked_select unique unique_consecutive unique_dim _unique _unique2 bincount
    repeat_interleave""".split()
)
# Operators that take a number for an operand, not for a size.
_ELEMENTWISE = frozenset(
    """add sub rsub mul div divide true_divide floor_divide remainder fmod pow eq ne lt le gt ge equal where clamp clip
    minimum maximum max min abs neg logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not to type long
    int float double half bool clone masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__
    __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __and__ __or__ __xor__ __invert__ __neg__ __abs__ __bool__ __int__ __float__ __index__ item stack cat""".split()
)
_FILLED = frozenset(("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty"))
_CHECKS = frozenset(("_assert", "_assert_async", "_assert_scalar", "_check", "_check_is_size", "_check_value"))
_AUGMENTED = {
    f"__i{name}__": f"__{name}__"
    for name in "add sub mul truediv div floordiv mod pow and or xor lshift rshift matmul".split()
}
_RESHAPING = frozenset(("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_"))
_PASSED = frozenset(("requires_grad_", "detach_", "retain_grad", "share_memory_"))
_RANDOM = frozenset(
    ("bernoulli_", "uniform_", "normal_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_")
)
_NEVER = frozenset(("set_", "resize_", "resize_as_", "rename_", "apply_", "map_", "map2_", "as_strided_"))
_TO_PYTHON = "Converting a tensor to a Python"


@dataclass
class _Root:
    """A tensor that is no view: its value, and how often it was written."""

    value: Tensor
    depends: bool = False  # on what the inputs hold
    writes: int = 0


@dataclass
class _Entry:
    """What a tensor of the module stands for: its value as of the root's number of writes.

    ``depends`` and ``sized`` tell whether its elements and its sizes may depend on what the inputs hold.
    """

    tensor: Tensor
    root: _Root
    path: tuple[View, ...]
    value: Tensor
    writes: int = 0
    depends: bool = False
    sized: bool = False


class Functional(TorchFunctionMode):
    """Makes the calls of PyTorch within it functional. ``inputs`` are the tensors whose elements are unknown."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self._entries: dict[int, _Entry] = {}
        self._memory: dict[int, list[_Root]] = {}
        self._shared: list[_Root] = []  # roots that share memory in an unknown way
        for tensor in inputs:
            self._entry(tensor).root.depends = True

    def value(self, tensor: Tensor) -> Tensor:
        """What a tensor holds now."""
        entry = self._entry(tensor)
        if entry.writes != entry.root.writes:
            value = entry.root.value
            for view in entry.path:
                value = view.of(value)
            entry.value, entry.writes = value, entry.root.writes
        return entry.value

    def written(self, tensor: Tensor) -> bool:
        """Whether a tensor was written."""
        entry = self._entries.get(id(tensor))
        return entry is not None and entry.root.writes > 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if name == "__set__" and func.__self__.__name__ not in ("grad", "requires_grad"):
            raise ExportError(f"{_where()}: an assignment to .{func.__self__.__name__} cannot be followed")
        if name in _CHECKS:
            return None
        if name in _METADATA:
            return self._looked_up(func, name, args, kwargs)
        call = _Call(self, func, name, args, kwargs)
        if name == "item":
            return self._item(call)
        if name in ("tensor", "as_tensor", "asarray", "scalar_tensor") and args:
            return self._made(call)
        if name == "__setitem__":
            return self._set(call)
        target = _written(name, args, kwargs)
        if target is not None:
            return self._write_call(call, target)
        if kwargs.get("out") is not None:
            return self._write_out(call)
        if _is_inplace(func, args, kwargs):
            tensor, args, kwargs = _out_of_place(func, args, kwargs)
            result = self._read(_Call(self, func, name, args, kwargs))
            return self._write(tensor, self.value(result), self._depends((args, kwargs)))
        return self._read(call)

    # --- calls that make new tensors, or views

    def _looked_up(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = func(*self._values(args), **self._values(kwargs))
        if name in _SIZES and any(self._entry(tensor).sized for tensor in _tensors((args, kwargs))):
            if isinstance(result, int):
                self._refuse_number(True)
            for size in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(size, Tensor):
                    self._entry(size).depends = True
        return result

    def _read(self, call: _Call) -> Any:
        made = _INSTEAD.get(call.name)
        result = (made or call.func)(*call.args, **call.kwargs) if made else call.run()
        call.follow_hidden_writes()
        depends = call.depends and call.name not in _FILLED
        if isinstance(result, (bool, int, float, complex)) or call.name in ("tolist", "numpy", "__array__"):
            self._refuse_number(depends)
            return result
        return self._adopted(result, call, depends, None)

    def _adopted(self, result: Any, call: _Call, depends: bool, pick: int | None) -> Any:
        """The result as the module sees it: its tensors known, those that were given the module's own."""
        if isinstance(result, Tensor):
            given = call.given.get(id(result))
            if given is not None:
                return given
            self._know(result, call, depends, pick)
            return result
        if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            parts = [self._adopted(one, call, depends, n if pick is None else -1) for n, one in enumerate(result)]
            if all(new is old for new, old in zip(parts, result)):
                return result
            return type(result)(parts) if type(result) in (tuple, list) else type(result)(*parts)
        if isinstance(result, dict):
            for one in result.values():
                self._adopted(one, call, depends, -1)
        return result

    def _know(self, result: Tensor, call: _Call, depends: bool, pick: int | None) -> None:
        memory = memory_of(result)
        parent = next((t for t in call.tensors if memory and memory_of(self.value(t)) == memory), None)
        sized = result.dim() > 0 and call.makes_sizes()
        if parent is None:
            self._enter(_Entry(result, _Root(result), (), result, 0, depends, sized), memory)
            return
        entry = self._entry(parent)
        first = call.args and call.args[0] is entry.value and pick != -1
        view = (View if first else UnfollowedView)(call.name, call.func, call.args[1:], call.kwargs, pick)
        path = (*entry.path, view)
        self._enter(_Entry(result, entry.root, path, result, entry.root.writes, depends, sized), 0)

    def _item(self, call: _Call) -> Any:
        """``x.item()``: an integer stays a tensor, which TorchScript takes for sizes, bounds and indices."""
        value = call.args[0]
        with untraced():
            whole = not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype != torch.bool
        if not whole:
            self._refuse_number(call.depends)
            return call.run()
        result = value.reshape(()).to(torch.int64).clone()
        self._enter(_Entry(result, _Root(result), (), result, depends=call.depends), 0)
        return result

    def _made(self, call: _Call) -> Any:
        """``torch.tensor([n, 1])`` of a number that is a tensor: TorchScript would keep the example's."""
        data, *rest = call.args
        stacked = subscript.as_index_tensor(data)
        if stacked is data:
            return self._read(call)
        dtype = call.kwargs.get("dtype") or (rest[0] if rest and isinstance(rest[0], torch.dtype) else None)
        result = stacked if dtype is None else stacked.to(dtype)
        self._enter(_Entry(result, _Root(result), (), result, depends=call.depends), 0)
        return result

    # --- writes

    def _set(self, call: _Call) -> None:
        tensor, index = call.given_args[0], call.args[1]
        if self._is_already_there(tensor, call):
            return
        value = call.args[2]
        with _located():
            self._write(tensor, subscript.write(call.args[0], index, value), call.depends)

    def _is_already_there(self, tensor: Tensor, call: _Call) -> bool:
        """Whether the value is the very view that it is assigned to, as the last step of ``x[i] += v`` does."""
        entry = self._entries.get(id(call.given_args[2]))
        if entry is None or not entry.path or not isinstance(call.given_args[2], Tensor):
            return False
        last, parent = entry.path[-1], self._entry(tensor)
        same = last.name == "__getitem__" and _same(last.args[0], call.args[1])
        return same and entry.root is parent.root and entry.path[:-1] == parent.path

    def _write_call(self, call: _Call, target: int) -> Tensor:
        name, tensor = call.name, call.given_args[target]
        if name in _PASSED:
            return tensor
        if name in _NEVER:
            raise ExportError(f"{_where()}: {name}() cannot be followed")
        if name in _RESHAPING:
            entry = self._entry(tensor)
            view = View(name[:-1], getattr(Tensor, name[:-1]), call.args[1:], call.kwargs)
            entry.value, entry.path = view.of(call.args[0]), (*entry.path, view)
            return tensor
        with _located():
            return self._write(tensor, self._new_value(call), call.depends)

    def _new_value(self, call: _Call) -> Tensor:
        """What the tensor that an operator writes in place holds then."""
        name, data, rest, kwargs = call.name, call.args[0], call.args[1:], call.kwargs
        if name in _RANDOM or not (name in _AUGMENTED or name in _VALUES or hasattr(Tensor, name[:-1])):
            copy: Tensor = data.clone()
            call.func(copy, *rest, **kwargs)
            return copy
        if name in _VALUES:
            value = _VALUES[name](data, *rest, **kwargs)
        else:
            plain = _AUGMENTED.get(name, name[:-1])
            value = _INSTEAD.get(plain, getattr(Tensor, plain))(data, *rest, **kwargs)
        if not isinstance(value, Tensor):
            raise ExportError(f"{_where()}: {name}() cannot be followed")
        if value.dtype != data.dtype:
            value = value.to(data.dtype)
        return value

    def _write_out(self, call: _Call) -> Any:
        kwargs = dict(call.kwargs)
        kwargs.pop("out")
        out = call.given_kwargs["out"]
        result = call.func(*call.args, **kwargs)
        outs, results = (out, result) if isinstance(out, (tuple, list)) else ((out,), (result,))
        for one, value in zip(outs, results):
            if shape_of(self.value(one)) != shape_of(value):
                raise ExportError(f"{_where()}: out= of another shape than the result cannot be followed")
            self._write(one, value.to(self.value(one).dtype), call.depends)
        return out

    def _write(self, tensor: Tensor, value: Tensor, depends: bool) -> Tensor:
        """A tensor holds a value from now on, and so does what it is a view of."""
        entry = self._entry(tensor)
        if shape_of(self.value(tensor)) != shape_of(value):
            raise ExportError(f"{_where()}: what is written has another shape than the tensor")
        if entry.root in self._shared:
            raise ExportError(f"{_where()}: a tensor is written that shares its memory with another one, no view of it")
        parents = [entry.root.value]
        for view in entry.path[:-1]:
            parents.append(view.of(parents[-1]))
        new = value
        for view, parent in zip(reversed(entry.path), reversed(parents)):
            new = view.written(parent, new)
        entry.root.value = new
        entry.root.depends |= depends
        entry.root.writes += 1
        entry.value, entry.writes = value, entry.root.writes
        return tensor

    # --- what is known of tensors

    def _entry(self, tensor: Tensor) -> _Entry:
        entry = self._entries.get(id(tensor))
        if entry is None:
            entry = _Entry(tensor, _Root(tensor), (), tensor)
            self._enter(entry, memory_of(tensor))
        return entry

    def _enter(self, entry: _Entry, memory: int) -> None:
        self._entries[id(entry.tensor)] = entry  # keeps the tensor, so that no other one gets its id
        if memory:
            roots = self._memory.setdefault(memory, [])
            roots.append(entry.root)
            if len(roots) > 1:
                self._shared += roots

    def _values(self, given: Any) -> Any:
        """Arguments with the values of their tensors."""
        if isinstance(given, Tensor):
            return self.value(given)
        if isinstance(given, slice):
            return slice(self._values(given.start), self._values(given.stop), self._values(given.step))
        if isinstance(given, (tuple, list)) and not isinstance(given, torch.Size):
            parts = [self._values(one) for one in given]
            if all(new is old for new, old in zip(parts, given)):
                return given
            return type(given)(parts) if type(given) in (tuple, list) else type(given)(*parts)
        if isinstance(given, dict):
            return {key: self._values(one) for key, one in given.items()}
        return given

    def _depends(self, given: Any) -> bool:
        return any(self._is_unknown(tensor) for tensor in _tensors(given))

    def _is_unknown(self, tensor: Tensor) -> bool:
        entry = self._entry(tensor)
        return entry.depends or entry.root.depends

    def _refuse_number(self, depends: bool) -> None:
        """The trace would keep a number of the example; an assertion needs it for no result."""
        if not depends:
            return
        file, line = _user_line()
        code = linecache.getline(file, line).strip()
        if code.startswith("assert "):
            return
        raise ExportError(
            f"{place(file, line, code)}: a number is taken from a tensor, and the trace would keep that of the example; "
            "keep it a tensor: torch.where, a mask (torch.arange(n) < length), x[:, :n] with n a 0-d tensor"
        )


class _Call:
    """A call of PyTorch: its arguments as given, and with the values of their tensors."""

    def __init__(self, mode: Functional, func: Any, name: str, args: Any, kwargs: Any) -> None:
        self.mode, self.func, self.name = mode, func, name
        self.given_args, self.given_kwargs = args, kwargs
        self.tensors = list(_tensors((args, kwargs)))
        self.args, self.kwargs = mode._values(tuple(args)), mode._values(kwargs)
        self.depends = mode._depends((args, kwargs))
        self.given = {id(mode.value(tensor)): tensor for tensor in self.tensors}
        self._versions = [(tensor, _version(mode.value(tensor))) for tensor in self.tensors]
        if name == "__getitem__":
            self.args = (self.args[0], _with_stacked_lists(self.args[1]))

    def run(self) -> Any:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", torch.jit.TracerWarning)
            result = self.func(*self.args, **self.kwargs)
        if any(_TO_PYTHON in str(one.message) for one in told):
            self.mode._refuse_number(self.depends)
        return result

    def makes_sizes(self) -> bool:
        """Whether the sizes of the results may depend on what the inputs hold."""
        if any(self.mode._entry(tensor).sized for tensor in self.tensors):
            return True
        if not self.depends:
            return False
        if self.name in _SELECTING or (self.name == "where" and len(self.args) == 1):
            return True
        if self.name == "__getitem__" and any(_is_mask(t) for t in _tensors(self.args[1])):
            return True
        space = getattr(self.func, "namespace", None) or getattr(self.func, "_qualified_op_name", "aten::")
        if not str(space).startswith(("aten", "prim")):
            return True  # an operator of some library
        return self.name not in _ELEMENTWISE and any(
            _is_number(self.mode.value(t)) and self.mode._is_unknown(t) for t in self.tensors
        )

    def follow_hidden_writes(self) -> None:
        """A function of PyTorch's own that wrote into its arguments has changed their values."""
        for tensor, version in self._versions:
            value = self.mode.value(tensor)
            if _version(value) != version:
                self.mode._write(tensor, value, self.depends)


# --- values of what is written in place


def _copied(data: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    source = source if source.dtype == data.dtype else source.to(data.dtype)
    return subscript.stretched(source, data).clone()


def _filled(data: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(data.dtype).expand_as(data).clone()
    return torch.full_like(data, value)


def _index_put(data: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    indices = [i.bool() if isinstance(i, Tensor) and i.dtype == torch.uint8 else i for i in indices]
    written: Tensor = torch.ops.aten.index_put(data, indices, values.to(data.dtype), accumulate)
    return written


def _put(data: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return _index_put(data.reshape(-1), [index], source, accumulate).reshape(data.shape)


def _index_reduce(
    data: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    column = index.reshape([-1 if axis == dim % source.dim() else 1 for axis in range(source.dim())])
    return data.scatter_reduce(dim, column.expand_as(source), source, reduce, include_self=include_self)


def _diagonal_filled(data: Tensor, value: float, wrap: bool = False) -> Tensor:
    if data.dim() != 2 or wrap:
        raise ExportError(f"{_where()}: fill_diagonal_() of more than two axes, or with wrap, cannot be followed")
    return torch.diagonal_scatter(data, torch.full_like(data.diagonal(), value))


_VALUES: dict[str, Callable[..., Tensor]] = {
    "copy_": _copied,
    "fill_": _filled,
    "zero_": torch.zeros_like,
    "fill_diagonal_": _diagonal_filled,
}
# Functions by others, which the passes know.
_INSTEAD: dict[str, Callable[..., Tensor]] = {
    "index_put": _index_put,
    "put": _put,
    "index_reduce": _index_reduce,
}


# --- reading a call


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def _is_number(tensor: Tensor) -> bool:
    return tensor.dim() == 0 and not tensor.dtype.is_floating_point and tensor.dtype != torch.bool


def _name(func: Any) -> str:
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        name = func.__self__.__name__
    return name


def _written(name: str, args: Any, kwargs: Any) -> int | None:
    """Which argument an operator writes in place, None for one that writes none."""
    if name in _AUGMENTED or (name.endswith("_") and not name.endswith("__")):
        return 0 if args and isinstance(args[0], Tensor) else None
    return None


def _is_inplace(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function of torch.nn.functional is to work in place."""
    if getattr(func, "__module__", "") != "torch.nn.functional" or not inspect.isfunction(func):
        return False
    if "inplace" not in inspect.signature(func).parameters:
        return False
    return bool(inspect.signature(func).bind(*args, **kwargs).arguments.get("inplace", False))


def _out_of_place(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Any, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.arguments["inplace"] = False
    return next(_tensors(bound.args)), bound.args, bound.kwargs


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, slice):
        yield from _tensors((given.start, given.stop, given.step))
    elif isinstance(given, (tuple, list)) and not isinstance(given, torch.Size):
        for one in given:
            yield from _tensors(one)
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))


def _with_stacked_lists(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(subscript.as_index_tensor(item) if isinstance(item, list) else item for item in index)
    return subscript.as_index_tensor(index) if isinstance(index, list) else index


def _same(first: Any, second: Any) -> bool:
    """Whether two indices are the same: equal numbers, and the very same tensors."""
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, slice) and isinstance(second, slice):
        return _same((first.start, first.stop, first.step), (second.start, second.stop, second.step))
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return first is second
    return type(first) is type(second) and bool(first == second)


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor
        return 0


def _user_line() -> tuple[str, int]:
    """The innermost line that is neither PyTorch's nor ours."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith((TORCH_FOLDER, HERE_FOLDER)):
        frame = frame.f_back  # type: ignore[assignment]
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def _where() -> str:
    file, line = _user_line()
    return place(file, line, linecache.getline(file, line))


class _located:
    """Puts the user's line before the message of an ExportError that has none."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, ExportError) and ".py:" not in str(error):
            raise ExportError(f"{_where()}: {error}") from error
