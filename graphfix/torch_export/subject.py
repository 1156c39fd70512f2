"""What is exported: a module or an exported program, its example arguments, and how to run it as PyTorch runs it."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphfix.errors import ExportError, UsageError

SEED = 20_230_217
_MOST_COPIED = 67_108_864  # bytes of weights that are copied for each run


@dataclass
class Subject:
    """A module in evaluation mode that may be run and exported without any change to the user's.

    ``program`` is set when an ExportedProgram was given. ``leaves`` are the flat example arguments and ``spec`` what
    puts them together again.
    """

    module: torch.nn.Module
    program: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str

    @property
    def leaves(self) -> list[Any]:
        return pytree.tree_flatten((self.args, self.kwargs))[0]

    @property
    def spec(self) -> Any:
        return pytree.tree_flatten((self.args, self.kwargs))[1]

    @property
    def weight_bytes(self) -> int:
        """The size of the module's parameters and buffers in bytes."""
        tensors = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def fresh(self) -> torch.nn.Module:
        """The module as it was given: nothing that a run of one changes is seen in another.

        Parameters that are large are the same tensors in all.
        """
        if self.program is not None:
            return self.module  # a graph: only buffers change
        return copy.deepcopy(self.module, {id(tensor): tensor for tensor in self._shared()})

    def call(self, leaves: Sequence[Any], seed: int = SEED) -> Any:
        """The module's result for flat arguments. Neither they nor the module change.

        Raises ExportError when it writes into a large parameter.
        """
        args, kwargs = pytree.tree_unflatten([_fresh(leaf) for leaf in leaves], self.spec)
        if self.program is not None:
            # In one copy: buffers that share their memory do so still.
            state = copy.deepcopy({name: tensor.detach() for name, tensor in _buffers(self.module)})
            with quiet(seed):
                return torch.func.functional_call(self.module, state, args, kwargs, tie_weights=False)
        versions = [tensor._version for tensor in self._shared()]
        module = self.fresh()
        with quiet(seed):
            result = module(*args, **kwargs)
        if versions != [tensor._version for tensor in self._shared()]:
            raise ExportError(f"{self.name} writes into one of its parameters: make a buffer of it")
        return result

    def _shared(self) -> list[torch.nn.Parameter]:
        """The parameters that are not copied for a run."""
        if self.weight_bytes <= _MOST_COPIED:
            return []
        return list(self.module.parameters())


def subject(given: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Subject:
    """What the user gave, ready for export. Raises UsageError for anything that cannot be."""
    if _is_program(given):
        example = given.example_inputs
        if args or kwargs:
            example = (_arguments(args), dict(kwargs or {}))
        if example is None:
            raise UsageError("the exported program holds no example inputs: give args")
        return Subject(given.module(), given, tuple(example[0]), dict(example[1]), "the exported program")
    if isinstance(given, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise UsageError(
            "a TorchScript module cannot be exported without loss: give the nn.Module that it was made from"
        )
    if not isinstance(given, torch.nn.Module):
        if not callable(given):
            raise UsageError(f"export takes an nn.Module or an ExportedProgram, not {type(given).__name__}")
        given = _Function(given)
    return Subject(_evaluated(given), None, _arguments(args), dict(kwargs or {}), _name(given))


def _is_program(given: Any) -> bool:
    """Whether it is an ExportedProgram, which versions before 2.1 do not have."""
    return hasattr(torch, "export") and isinstance(given, torch.export.ExportedProgram)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All buffers by all of their names."""
    for path, part in module.named_modules(remove_duplicate=False):
        for name, tensor in part._buffers.items():
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


class _Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

        self.forward = _as_forward(function)  # type: ignore[method-assign]


def _as_forward(function: Any) -> Any:
    """The function under the name "forward": torch.export keeps the source lines of code of that name alone."""
    if isinstance(function, types.FunctionType):
        code = function.__code__.replace(co_name="forward")
        named = types.FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
        named.__kwdefaults__ = function.__kwdefaults__
        return functools.update_wrapper(named, function)

    @functools.wraps(function)  # its signature names the inputs
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return forward


def _name(module: torch.nn.Module) -> str:
    if isinstance(module, _Function):
        return getattr(module.function, "__name__", type(module.function).__name__)
    return type(module).__name__


def _arguments(args: Any) -> tuple[Any, ...]:
    """The positional arguments; a single tensor stands for one."""
    if isinstance(args, torch.Tensor):
        return (args,)
    if not isinstance(args, (tuple, list)):
        raise UsageError(f"args are {type(args).__name__}: give a tuple of the module's arguments")
    return tuple(args)


def _evaluated(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the module in evaluation mode."""
    try:
        with torch.no_grad():
            copied = copy.deepcopy(module)
    except Exception as error:
        raise UsageError(
            f"{_name(module)} cannot be copied ({type(error).__name__}: {' '.join(str(error).split())[:200]}), and "
            "graphfix exports a copy, to leave yours as it is: detach the tensors that it keeps as attributes"
        ) from error
    return copied.eval()


def _fresh(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf)


@contextmanager
def quiet(seed: int = SEED) -> Iterator[None]:
    """Without gradients, from a seed; the state of the random generators is as before afterwards."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
