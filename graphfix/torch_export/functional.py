"""A module as a function while TorchScript traces it: what is written in place becomes a new value.

TorchScript records operators, and its ONNX exporter takes what is written through a view for a new tensor that nothing
else sees: the write is lost. Here every tensor of the module stands for a value that is never changed. A write makes a
new value of the tensor, and of the one that it is a view of, all the way up; the other views make theirs anew when they
are next used. An operator receives the values of its arguments.

Neither elements of the inputs nor dynamic sizes may become numbers of Python on the way, for the trace would keep the
example's: a branch on one, ``int(x)``, a loop over one are refused, with their line. Which sizes are dynamic is seen
from a run with inputs of other sizes. ``x.item()`` of an integer stays a tensor.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphfix.errors import ExportError
from graphfix.torch_export import subscript
from graphfix.torch_export.dynamic_sizes import Call, DynamicSizes
from graphfix.torch_export.frozen import On, Stop, refuse_number
from graphfix.torch_export.inplace import INSTEAD, value_after
from graphfix.torch_export.operators import (
    CHECKS,
    CONSTRUCTORS,
    ELEMENTWISE,
    FILLED,
    METADATA,
    RESHAPING,
    SELECTING,
    SHAPED,
    SIZES,
    TO_PYTHON,
    TO_TEXT,
    UNFOLLOWED,
    UNWRITTEN,
    is_mask,
    is_number,
    name_of,
    tensors_in,
    written_argument,
)
from graphfix.torch_export.patches import Patches
from graphfix.torch_export.untraced import laid_out, layout_of, memory_of, shape_of, untraced
from graphfix.torch_export.user_code import is_assertion, located, where
from graphfix.torch_export.views import UnfollowedView, View

_CONVERSION = "Converting a tensor to a Python"  # how a warning of the tracer begins


@dataclass(eq=False)
class _Root:
    """A tensor that is no view: its value, and how often it was written."""

    value: Tensor
    depends: On = On.NOTHING
    writes: int = 0


@dataclass(eq=False)
class _Entry:
    """What a tensor of the module stands for: its value as of the root's number of writes.

    ``sized`` tells whether its sizes may depend on the elements of the inputs.
    """

    tensor: Tensor
    root: _Root
    path: tuple[View, ...]
    value: Tensor
    writes: int = 0
    depends: On = On.NOTHING
    sized: bool = False


class Functional(TorchFunctionMode):
    """Makes the calls of PyTorch within it functional.

    ``inputs`` are the tensors whose elements are unknown, ``parameters`` the module's own. ``others`` are the calls
    of a run with other sizes of the dynamic dims, if there are any (see DynamicSizes).
    """

    def __init__(
        self,
        inputs: Iterable[Tensor],
        parameters: Iterable[Tensor] = (),
        others: Sequence[Call] | None = None,
    ) -> None:
        super().__init__()
        self._patches = Patches(lambda function, args: self.__torch_function__(function, (), args), self._hashed)
        self._parameters = {id(tensor) for tensor in parameters}
        self.sizes = DynamicSizes(others)
        self._busy = False  # what is done here on behalf of a call is none of the module's
        self._entries: dict[int, _Entry] = {}
        self._memory: dict[int, list[_Root]] = {}
        self._shared: list[_Root] = []  # roots that share memory in an unknown way
        for tensor in inputs:
            self._entry(tensor).root.depends = On.ELEMENTS

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

    def __enter__(self) -> Functional:
        self._patches.install()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.remove()

    def _hashed(self, tensor: Tensor) -> int:
        """A number that is a tensor is found in no dict or set, though its value may be a key."""
        entry = self._entries.get(id(tensor))
        if not self._busy and entry is not None and not shape_of(tensor):
            try:
                refuse_number(entry.depends | entry.root.depends)
            except ExportError as error:
                raise Stop(error) from error
        return id(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._busy:
            return func(*args, **(kwargs or {}))
        self._busy = True
        try:
            return self._functional(func, args, kwargs or {})
        except ExportError as error:
            raise Stop(error) from error
        except Exception as error:
            told = " ".join(str(error).split())[:300]
            raise Stop(ExportError(f"{where()}: {type(error).__name__}: {told}")) from error
        finally:
            self._busy = False

    def _functional(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = name_of(func)
        if name == "__set__" and func.__self__.__name__ not in ("grad", "requires_grad"):
            raise ExportError(f"{where()}: an assignment to .{func.__self__.__name__} cannot be followed")
        if name in CHECKS:
            return None
        if name in METADATA and not (name == "type" and (len(args) > 1 or kwargs)):  # x.type(dtype) is a cast
            return self._looked_up(func, name, args, kwargs)
        call = _Call(self, func, name, args, kwargs)
        if name in TO_TEXT:
            return self._told(call)
        if name == "item":
            return self._item(call)
        if name in CONSTRUCTORS and args:
            return self._made(call)
        if name == "__setitem__":
            return self._set(call)
        target = written_argument(name, args, kwargs)
        if target is not None:
            return self._write_call(call, target)
        if kwargs.get("out") is not None:
            return self._write_out(call)
        return self._read(call)

    # --- calls that make new tensors, or views

    def _looked_up(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = list(tensors_in((args, kwargs)))
        args, kwargs = self._values(args), self._values(kwargs)
        if name == "size" and len(args) == 2 and isinstance(args[1], int):
            args = (args[0], args[1] % len(shape_of(args[0])))  # the exporter does not always know the rank
        result = func(*args, **kwargs)
        dynamic = self.sizes.axes(name, [self.value(tensor) for tensor in given]) if given else []
        elements = On.ELEMENTS if any(self._entry(tensor).sized for tensor in given) else On.NOTHING
        if name not in SIZES or not given:
            if name in SHAPED:
                refuse_number(elements | (On.SIZES if any(dynamic) else On.NOTHING))
            return result
        axes = dynamic[0]
        if isinstance(result, int):
            refuse_number(elements | (On.SIZES if 0 in axes or (name != "__len__" and axes) else On.NOTHING))
        elif isinstance(result, Tensor):
            self._mark(
                result, elements | (On.SIZES if axes & _asked(args, kwargs, self.value(given[0])) else On.NOTHING)
            )
        else:
            for axis, size in enumerate(result):
                if isinstance(size, Tensor):
                    self._mark(size, elements | (On.SIZES if axis in axes else On.NOTHING))
        return result

    def _mark(self, size: Tensor, depends: On) -> None:
        self._entry(size).depends |= depends

    def _read(self, call: _Call) -> Any:
        result = call.run()
        call.follow_hidden_writes()
        depends = call.depends if call.name not in FILLED else On.NOTHING
        if isinstance(result, (bool, int, float, complex)) or call.name in TO_PYTHON:
            refuse_number(depends)
            return result
        if isinstance(result, (tuple, list)) and self.sizes.differ_in_number(len(result)):
            refuse_number(On.SIZES)
        return self._adopted(result, call, depends, None)

    def _adopted(self, result: Any, call: _Call, depends: On, pick: int | None) -> Any:
        """The result as the module sees it: its tensors known, those that were given the module's own."""
        if isinstance(result, Tensor):
            given = call.given.get(id(result))
            if given is not None:
                return given
            self._know(result, call, depends, pick)
            return result
        if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            parts = [self._adopted(one, call, depends, n if pick is None else -1) for n, one in enumerate(result)]
            if all(new is old for new, old in zip(parts, result, strict=False)):
                return result
            return _made_of(parts, result)
        if isinstance(result, dict):
            for one in result.values():
                self._adopted(one, call, depends, -1)
        return result

    def _know(self, result: Tensor, call: _Call, depends: On, pick: int | None) -> None:
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

    def _told(self, call: _Call) -> str:
        """A text of a tensor holds numbers of the example, which matters unless somebody only reads it."""
        refuse_number(call.depends)
        with untraced():
            text: str = call.func(*call.args, **call.kwargs)
        return text

    def _item(self, call: _Call) -> Any:
        """``x.item()``: an integer stays a tensor, which TorchScript takes for sizes, bounds and indices."""
        value = call.args[0]
        with untraced():
            whole = not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype != torch.bool
        if not whole:
            refuse_number(call.depends)
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
        with located():
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
        if name in UNWRITTEN:
            return tensor
        if name in UNFOLLOWED:
            raise ExportError(f"{where()}: {name}() cannot be followed")
        if name in RESHAPING:
            entry = self._entry(tensor)
            view = View(name[:-1], getattr(Tensor, name[:-1]), call.args[1:], call.kwargs)
            entry.value, entry.path = view.of(call.args[0]), (*entry.path, view)
            return tensor
        with located():
            value = value_after(name, call.func, *call.args, **call.kwargs)
            return self._write(tensor, value, call.depends)

    def _write_out(self, call: _Call) -> Any:
        kwargs = dict(call.kwargs)
        kwargs.pop("out")
        out = call.given_kwargs["out"]
        result = call.func(*call.args, **kwargs)
        outs, results = (out, result) if isinstance(out, (tuple, list)) else ((out,), (result,))
        for one, value in zip(outs, results, strict=False):
            if shape_of(self.value(one)) != shape_of(value):
                raise ExportError(f"{where()}: out= of another shape than the result cannot be followed")
            self._write(one, value.to(self.value(one).dtype), call.depends)
        return out

    def _write(self, tensor: Tensor, value: Tensor, depends: On) -> Tensor:
        """A tensor holds a value from now on, and so does what it is a view of."""
        entry = self._entry(tensor)
        if shape_of(self.value(tensor)) != shape_of(value):
            raise ExportError(f"{where()}: what is written has another shape than the tensor")
        if entry.root in self._shared:
            raise ExportError(f"{where()}: a tensor is written that shares its memory with another one, no view of it")
        parents = [entry.root.value]
        for view in entry.path[:-1]:
            parents.append(view.of(parents[-1]))
        new = value
        for view, parent in zip(reversed(entry.path), reversed(parents), strict=False):
            new = view.written(parent, new)
        old = entry.value
        entry.root.value = laid_out(new, entry.root.value)
        entry.root.depends |= depends
        entry.root.writes += 1
        # The value itself serves, unless its elements lie in memory in another way than the view's do.
        if not entry.path:
            entry.value, entry.writes = entry.root.value, entry.root.writes
        elif layout_of(value) == layout_of(old):
            entry.value, entry.writes = value, entry.root.writes
        return tensor

    # --- what is known of tensors

    def _entry(self, tensor: Tensor) -> _Entry:
        entry = self._entries.get(id(tensor))
        if entry is None:
            value = tensor
            if id(tensor) not in self._parameters and tensor.requires_grad:
                with untraced():
                    value = tensor.detach()  # a parameter of no module here is a constant
            memory = memory_of(tensor)
            entry = _Entry(tensor, _Root(value), (), value)
            for root in self._memory.get(memory, ()) if memory else ():
                entry.root.depends |= root.depends  # the same elements, got at behind PyTorch's back
            self._enter(entry, memory)
        return entry

    def _enter(self, entry: _Entry, memory: int) -> None:
        self._entries[id(entry.tensor)] = entry  # keeps the tensor, so that no other one gets its id
        if memory:
            roots = self._memory.setdefault(memory, [])
            roots.append(entry.root)
            if len(roots) > 1:
                self._shared += roots
                if any(root.writes for root in roots):
                    raise ExportError(f"{where()}: a tensor is used whose memory was written through another one")

    def _values(self, given: Any) -> Any:
        """Arguments with the values of their tensors."""
        if isinstance(given, Tensor):
            return self.value(given)
        if isinstance(given, slice):
            return slice(self._values(given.start), self._values(given.stop), self._values(given.step))
        if isinstance(given, (tuple, list)) and not isinstance(given, torch.Size):
            parts = [self._values(one) for one in given]
            if all(new is old for new, old in zip(parts, given, strict=False)):
                return given
            return _made_of(parts, given)
        if isinstance(given, dict):
            return {key: self._values(one) for key, one in given.items()}
        return given

    def _depends(self, given: Any) -> On:
        found = On.NOTHING
        for tensor in tensors_in(given):
            entry = self._entry(tensor)
            found |= entry.depends | entry.root.depends
        return found


class _Call:
    """A call of PyTorch: its arguments as given, and with the values of their tensors."""

    def __init__(self, mode: Functional, func: Any, name: str, args: Any, kwargs: Any) -> None:
        self.mode, self.func, self.name = mode, INSTEAD.get(name, func), name
        self.given_args, self.given_kwargs = args, kwargs
        self.tensors = list(tensors_in((args, kwargs)))
        self.args, self.kwargs = mode._values(tuple(args)), mode._values(kwargs)
        self.depends = mode._depends((args, kwargs))
        self._axes = mode.sizes.axes(name, [mode.value(tensor) for tensor in self.tensors])
        self.given = {id(mode.value(tensor)): tensor for tensor in self.tensors}
        self._versions = [(tensor, _version(mode.value(tensor))) for tensor in self.tensors]
        if name == "__getitem__":
            self.args = (self.args[0], _with_stacked_lists(self.args[1]))

    def run(self) -> Any:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", torch.jit.TracerWarning)
            result = self.func(*self.args, **self.kwargs)
        if any(_CONVERSION in str(one.message) and not is_assertion(one.filename, one.lineno) for one in told):
            # A function that PyTorch has written in Python looks at sizes, an operator at elements.
            sizes = On.SIZES if any(self._axes) else On.NOTHING
            refuse_number(sizes if inspect.isfunction(self.func) else self.depends)
        return result

    def makes_sizes(self) -> bool:
        """Whether the sizes of the results may depend on what the inputs hold."""
        if any(self.mode._entry(tensor).sized for tensor in self.tensors):
            return True
        if On.ELEMENTS not in self.depends:
            return False
        if self.name in SELECTING or (self.name == "where" and len(self.args) == 1):
            return True
        if self.name == "__getitem__" and any(is_mask(t) for t in tensors_in(self.args[1])):
            return True
        space = getattr(self.func, "namespace", None) or getattr(self.func, "_qualified_op_name", "aten::")
        if not str(space).startswith(("aten", "prim")):
            return True  # an operator of some library
        return self.name not in ELEMENTWISE and any(
            is_number(self.mode.value(t)) and On.ELEMENTS in self.mode._depends(t) for t in self.tensors
        )

    def follow_hidden_writes(self) -> None:
        """A function of PyTorch's own that wrote into its arguments has changed their values."""
        for tensor, version in self._versions:
            value = self.mode.value(tensor)
            if _version(value) != version:
                self.mode._write(tensor, value, self.depends)


def _made_of(parts: list[Any], like: Any) -> Any:
    """Parts as a list or tuple of the same kind. A namedtuple takes them one by one, torch.return_types as one."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


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


def _asked(args: Any, kwargs: Any, tensor: Tensor) -> set[int]:
    """The axis that ``x.size(axis)`` asks for; all axes for a number of elements."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    rank = len(shape_of(tensor))
    return {dim % rank} if isinstance(dim, int) and rank else set(range(rank))


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor
        return 0
