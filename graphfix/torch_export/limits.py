"""The sizes that an exported program is for: torch.export states relations and ranges of its dynamic dims."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

_UNSAID = 2  # torch.export lets a dynamic dim start at 2 unless it is told otherwise, whatever the module takes


_MOST_CONDITIONS = 5
_MOST_SYMBOLS = 2  # of a condition that is tried for many sizes of each
# Sizes that conditions are tried for: of one dim, and of several together.
_SIZES = (
    (*range(2, 300), *range(320, 2049, 64), 1000, 3000, 4096, 10_000, 65_536),
    (2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 32, 64, 97, 128, 255, 256, 1000, 1024, 4096),
)


@dataclass(frozen=True)
class Condition:
    """A condition on sizes: as Python that computes it from the symbols' values, and as words."""

    symbols: tuple[Any, ...]
    code: Any
    text: str

    @classmethod
    def of(cls, expression: Any, places: Mapping[Any, str]) -> Condition | None:
        """A SymPy expression as a condition; None for one that has no form in Python."""
        from torch.utils._sympy.printers import PythonPrinter

        symbols = tuple(sorted(expression.free_symbols, key=str))
        try:
            source = PythonPrinter().doprint(expression)
            code = compile(source, "<condition>", "eval")
        except Exception:  # a printer may raise anything for a function that it does not know
            return None
        text = re.sub(r"\w+", lambda word: {str(s): places[s] for s in symbols}.get(word[0], word[0]), source)
        return cls(symbols, code, text)

    def holds(self, sizes: Mapping[Any, int]) -> bool:
        """Whether it holds for sizes of its symbols; what cannot be computed for them does."""
        values = {str(symbol): sizes[symbol] for symbol in self.symbols if symbol in sizes}
        try:
            return bool(eval(self.code, {"math": math, "max": max, "min": min, "abs": abs}, values))
        except (ArithmeticError, NameError, TypeError, ValueError):
            return True


@dataclass
class Limits:
    """The dims of each input as numbers, names or SymPy expressions, and the range of each name or symbol, both ends
    allowed. ``conditions`` are what else the program asked of the sizes, with the answer for which it is made."""

    dims: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    ranges: dict[Any, tuple[int, int | None]] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)

    def problem(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """What is wrong with the shapes of inputs; "" when they are those of the program."""
        sizes: dict[Any, int] = {}
        for name, dims in self.dims.items():
            for axis, (dim, size) in enumerate(zip(dims, shapes.get(name, ()), strict=False)):
                if dim in self.ranges and sizes.setdefault(dim, size) != size:
                    return f"dim {axis} of {name} is {size}, and {sizes[dim]} elsewhere"
        for symbol, size in sizes.items():
            low, high = self.ranges[symbol]
            if (size < low and low > _UNSAID) or (high is not None and size > high):
                return f"a size of {size} is not in the range of the exported program, {_range_text(low, high)}"
        for name, dims in self.dims.items():
            for axis, (dim, size) in enumerate(zip(dims, shapes.get(name, ()), strict=False)):
                if isinstance(dim, str):
                    continue
                known = dim.subs(sizes) if hasattr(dim, "subs") else dim
                if not getattr(known, "free_symbols", None) and int(known) != size:
                    return f"dim {axis} of {name} is {size}, but must be {dim}"
        for condition in self.conditions:
            if not self.is_small(shapes) and not condition.holds(sizes):
                return f"the exported program is for {condition.text}"
        return ""

    def is_small(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a size is below the range of the program, though nothing in the module says that it must not be."""
        dims = [(d, size) for name, dims in self.dims.items() for d, size in zip(dims, shapes[name], strict=True)]
        return any(dim in self.ranges and size < self.ranges[dim][0] for dim, size in dims)

    def notes(self) -> list[str]:
        """What is to be known about the sizes that the model takes."""
        told = []
        for name, dims in self.dims.items():
            for axis, dim in enumerate(dims):
                low, high = self.ranges.get(dim, (0, None))
                if low > _UNSAID or high is not None:
                    told.append(f"the model is for dim {axis} of {name} {_range_text(low, high)}")
        for condition in self.conditions[:_MOST_CONDITIONS]:
            told.append(f"the model is for {condition.text}: other sizes go another way in PyTorch")
        if len(self.conditions) > _MOST_CONDITIONS:
            told.append(f"and {len(self.conditions) - _MOST_CONDITIONS} more such conditions")
        return told


def limits(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> Limits:
    """The limits of a program's inputs; ``names`` maps its placeholders to the inputs of the model."""
    found = Limits()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, torch.Tensor):
            found.dims[names[node.name]] = tuple(d if isinstance(d, int) else d.node.expr for d in value.shape)
    for symbol, values in program.range_constraints.items():
        # An infinity of PyTorch's own calls itself finite, and is no int.
        low = int(values.lower) if values.lower.is_number and values.lower > 0 else 0
        bounded = values.upper.is_number and values.upper < 2**60
        found.ranges[symbol] = low, int(values.upper) if bounded else None
    found.conditions = _conditions(program, found)
    return found


def _conditions(program: torch.export.ExportedProgram, known: Limits) -> list[Condition]:
    """What the program asked of its dynamic sizes that not all sizes in their ranges answer alike.

    torch.export keeps intervals as ranges; what ``if n % 64`` or ``if n == m`` asked it knows as guards.
    """
    places = {dim: f"{name}.shape[{axis}]" for name, dims in known.dims.items() for axis, dim in enumerate(dims)}
    symbols = [symbol for symbol in known.ranges if symbol in places]
    environment = next(
        (
            node.meta["val"].fake_mode.shape_env
            for node in program.graph.nodes
            if node.op == "placeholder" and hasattr(node.meta.get("val"), "fake_mode")
        ),
        None,
    )
    found: list[Condition] = []
    for guard in getattr(environment, "guards", ()):
        asked: set[Any] = getattr(guard.expr, "free_symbols", set())
        if not asked or not asked <= set(symbols):
            continue
        condition = Condition.of(guard.expr, places)
        if condition is not None and not _always(condition, [known.ranges[s] for s in condition.symbols]):
            found.append(condition)
    return found


def _always(condition: Condition, ranges: list[tuple[int, int | None]]) -> bool:
    """Whether a condition holds for all of many sizes within their ranges."""
    choices = [
        [n for n in _SIZES[len(ranges) > 1] if low <= n <= (n if high is None else high)] for low, high in ranges
    ]
    if len(ranges) > _MOST_SYMBOLS:
        choices = [some[:3] for some in choices]
    return all(condition.holds(dict(zip(condition.symbols, some, strict=True))) for some in product(*choices))


def _range_text(low: int, high: int | None) -> str:
    return f"from {low} on" if high is None else f"from {low} to {high}"
