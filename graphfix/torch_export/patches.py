"""What a TorchFunctionMode is not shown by PyTorch, put in its sight while a module is traced, in this thread alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphfix.errors import ExportError
from graphfix.torch_export.frozen import Stop
from graphfix.torch_export.user_code import where

_SUBSCRIPTS = ("__getitem__", "__setitem__")
_DISPATCHES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class Patches:
    """Replacements in PyTorch. ``show`` takes a function and its arguments, ``hashed`` is the hash of a tensor."""

    def __init__(self, show: Callable[[Any, Any], Any], hashed: Callable[[Tensor], int]) -> None:
        self._show, self._hashed = show, hashed
        self._replaced: list[tuple[Any, str, Any]] = []  # what PyTorch had in the place of ours

    def install(self) -> None:
        """Replace."""
        # PyTorch before 2.5 does not show a mode the subscripts of plain tensors.
        for name in _SUBSCRIPTS:
            theirs = getattr(Tensor, name)
            self._replace(Tensor, name, _in_this_thread(self._shown(theirs), theirs))
        self._replace(Tensor, "__hash__", _in_this_thread(self._hashed, Tensor.__hash__))
        # Functions that are written in Python are followed on the inside.
        for name in _DISPATCHES:
            theirs = getattr(torch.overrides, name)
            self._replace(torch.nn.functional, name, _in_this_thread(lambda *tensors: False, theirs))
        apply = _in_this_thread(_applied, _apply)
        self._replace(torch.autograd.Function, "apply", classmethod(lambda *args, **kwargs: apply(*args, **kwargs)))

    def remove(self) -> None:
        """Put back what was there."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, function)

    def _shown(self, function: Any) -> Callable[..., Any]:
        return lambda *args: self._show(function, args)


def _applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function with a gradient of its own: without gradients, its forward alone."""
    if hasattr(function, "symbolic"):
        told = f"{where()}: {function.__name__} has a symbolic() of its own, which stays a custom operator"
        raise Stop(ExportError(told))
    context = _Context()
    if getattr(function, "setup_context", None) is getattr(torch.autograd.Function, "setup_context", None):
        return function.forward(context, *args, **kwargs)
    return function.forward(*args, **kwargs)


class _Context:
    """What the forward of a function keeps for its gradient: nothing is asked of it."""

    needs_input_grad = (False,) * 64
    saved_tensors = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


_APPLY = next(vars(kind)["apply"] for kind in torch.autograd.Function.__mro__ if "apply" in vars(kind))


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function.apply(...)`` as PyTorch has it."""
    return _APPLY.__get__(None, function)(*args, **kwargs)


def _in_this_thread(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """One function in this thread, and another one in all others, which may train meanwhile."""
    thread = threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if threading.get_ident() == thread else theirs)(*args, **kwargs)

    return call
