"""The sizes that an exported program is for: torch.export states relations and ranges of its dynamic dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_UNSAID = 2  # torch.export lets a dynamic dim start at 2 unless it is told otherwise, whatever the module takes


@dataclass
class Limits:
    """The dims of each input as numbers or SymPy expressions, and the range of each symbol, both ends allowed."""

    dims: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    ranges: dict[Any, tuple[int, int | None]] = field(default_factory=dict)

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
                known = dim.subs(sizes) if hasattr(dim, "subs") else dim
                if not getattr(known, "free_symbols", None) and int(known) != size:
                    return f"dim {axis} of {name} is {size}, but must be {dim}"
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
    return found


def _range_text(low: int, high: int | None) -> str:
    return f"from {low} on" if high is None else f"from {low} to {high}"
