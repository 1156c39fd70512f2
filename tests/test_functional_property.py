"""Random programs of views and writes: followed as functions, they give what PyTorch gives, and write into nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import require
from hypothesis import given, settings
from hypothesis import strategies as st

torch = require("torch")
pytestmark = pytest.mark.torch

from graphfix.torch_export.functional import Functional  # noqa: E402

Step = tuple[str, int, Callable[..., Any], tuple[Any, ...]]


def _axis(draw: st.DrawFn, shape: tuple[int, ...]) -> int:
    return draw(st.integers(-len(shape), len(shape) - 1))


def _subscript(draw: st.DrawFn, shape: tuple[int, ...], advanced: bool) -> Any:
    """A random index into a tensor of this shape."""
    items: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kinds = ["all", "slice", "int", "none"] + (["points", "list", "mask"] if advanced else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "none":
            items.append(None)
        if kind in ("all", "none"):
            items.append(slice(None))
        elif kind == "slice":
            bounds = [draw(st.none() | st.integers(-size, size)) for _ in range(2)]
            items.append(slice(*bounds, draw(st.sampled_from([None, 1, 2]))))
        elif kind == "int":
            items.append(draw(st.integers(-size, size - 1)))
        elif kind == "mask":
            items.append(torch.tensor([draw(st.booleans()) for _ in range(size)]))
        else:
            found = [draw(st.integers(-size, size - 1)) for _ in range(2)]
            items.append(found if kind == "list" else torch.tensor(found))
    if draw(st.booleans()):
        items.append(Ellipsis)
    return tuple(items)


def _view(draw: st.DrawFn, tensor: Any) -> tuple[str, Callable[..., Any]]:
    """A random view of a tensor, or what may be one."""
    shape = tuple(tensor.shape)
    rank = len(shape)
    simple: list[tuple[str, Callable[..., Any]]] = [
        ("flat", lambda t: t.reshape(-1)),
        ("unsqueeze", lambda t: t.unsqueeze(0)),
        ("detach", lambda t: t.detach()),
        ("contiguous", lambda t: t.contiguous()),
        ("data", lambda t: t.data),
        ("T", lambda t: t.permute(list(range(t.dim() - 1, -1, -1)))),
        ("itself", lambda t: t.to(t.dtype)),
        ("copy", lambda t: t * 1),
        ("expand", lambda t: t.expand(t.shape)),
    ]
    if rank:
        axis, other = _axis(draw, shape), _axis(draw, shape)
        size = shape[axis]
        index = _subscript(draw, shape, advanced=draw(st.integers(0, 3)) == 0)
        simple += [
            ("getitem", lambda t: t[index]),
            ("transpose", lambda t: t.transpose(axis, other)),
            ("movedim", lambda t: t.movedim(axis, other)),
            ("squeeze", lambda t: t.squeeze(axis)),
            ("flatten", lambda t: t.flatten(0, -1)),
        ]
        if size:
            at = draw(st.integers(0, size - 1))
            length = draw(st.integers(0, size - at))
            simple += [
                ("select", lambda t: t.select(axis, at)),
                ("narrow", lambda t: t.narrow(axis, at, length)),
                ("unbind", lambda t: t.unbind(axis)[at]),
                ("chunk", lambda t: t.chunk(2, axis)[-1]),
                ("split", lambda t: t.split([at, size - at], axis)[1]),
                ("tensor_split", lambda t: t.tensor_split(2, axis)[0]),
            ]
        if rank > 1 and axis % rank != other % rank:
            simple.append(("diagonal", lambda t: t.diagonal(at % 2 if size else 0, axis, other)))
    return draw(st.sampled_from(simple))


def _write(draw: st.DrawFn, tensor: Any, other: Any) -> tuple[str, Callable[..., Any]]:
    """A random write into a tensor, perhaps of values made of another one."""
    shape = tuple(tensor.shape)
    number = draw(st.integers(-3, 3))
    found: list[tuple[str, Callable[..., Any]]] = [
        ("add_", lambda t, o: t.add_(number)),
        ("fill_", lambda t, o: t.fill_(number)),
        ("zero_", lambda t, o: t.zero_()),
        ("masked_fill_", lambda t, o: t.masked_fill_(t > number, -number)),
        ("clamp_", lambda t, o: t.clamp_(-2, 2)),
        ("copy_", lambda t, o: t.copy_(t.flip(0) if t.dim() else t)),
        ("iadd", lambda t, o: t.__iadd__(o.sum())),
        ("out", lambda t, o: torch.mul(t, 2, out=t)),
        ("relu", lambda t, o: torch.nn.functional.relu(t, inplace=True)),
    ]
    if shape:
        index = _subscript(draw, shape, advanced=True)

        def set_item(t: Any, o: Any) -> None:
            t[index] = number

        def set_values(t: Any, o: Any) -> None:
            t[index] = t[index] * 2 + o.sum()

        def augment(t: Any, o: Any) -> None:
            t[index] += number

        found += [("set", set_item), ("set values", set_values), ("augment", augment)]
    return draw(st.sampled_from(found))


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    """A shape, and steps that PyTorch takes: views of tensors made so far, and writes into them."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    pool = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 3]
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 8))):
        at = draw(st.integers(0, len(pool) - 1))
        source = draw(st.integers(0, len(pool) - 1))
        writes = draw(st.booleans())
        _, function = _write(draw, pool[at], pool[source]) if writes else _view(draw, pool[at])
        step: Step = ("write" if writes else "view", at, function, (source,))
        trial = [tensor.clone() for tensor in pool]
        try:
            made = _taken(step, pool)
        except (RuntimeError, IndexError):
            pool = _same_pool(steps, shape) if writes else pool
            del trial
            continue
        if not writes:
            if not isinstance(made, torch.Tensor) or not made.numel():
                continue
            pool.append(made)
        steps.append(step)
    return shape, steps


def _same_pool(steps: list[Step], shape: tuple[int, ...]) -> list[Any]:
    """The pool anew: a step that failed may have written half."""
    return _run(steps, torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 3)


def _taken(step: Step, pool: list[Any]) -> Any:
    kind, at, function, (source,) = step
    return function(pool[at], pool[source]) if kind == "write" else function(pool[at])


def _run(steps: list[Step], x: Any) -> list[Any]:
    pool = [x]
    for step in steps:
        made = _taken(step, pool)
        if step[0] == "view":
            pool.append(made)
    return pool


@settings(max_examples=200, deadline=None)
@given(programs())
def test_random_programs(program: tuple[tuple[int, ...], list[Step]]) -> None:
    shape, steps = program
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 3
    expected = _run(steps, x.clone())
    with Functional([x]) as mode:
        pool = _run(steps, x)
    assert torch.equal(x, torch.arange(float(x.numel())).reshape(shape) - 3)  # nothing was written for real
    for answer, tensor in zip(expected, pool, strict=True):
        assert torch.equal(mode.value(tensor), answer)
