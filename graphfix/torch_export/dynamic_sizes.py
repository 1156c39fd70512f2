"""Which sizes of a module's tensors are dynamic: those that differ in a run with inputs of other sizes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graphfix.torch_export.untraced import shape_of

Shapes = tuple[tuple[int, ...], ...]
Call = tuple[str, Shapes]  # the name of an operator, and the shapes of its tensors


class DynamicSizes:
    """Compares the calls of a run with those of another one, ``others``; without these no size is dynamic.

    ``calls`` are those of this run. Where the two part ways, every size may be dynamic from there on.
    """

    def __init__(self, others: Sequence[Call] | None) -> None:
        self.calls: list[Call] = []
        self._others = others
        self._in_step = True

    def axes(self, name: str, tensors: Sequence[Tensor]) -> list[set[int]]:
        """The dynamic axes of the tensors of the next call."""
        shapes = tuple(shape_of(tensor) for tensor in tensors)
        self.calls.append((name, shapes))
        if self._others is None:
            return [set() for _ in shapes]
        at = len(self.calls) - 1
        known = self._others[at] if at < len(self._others) else ("", ())
        if known[0] != name or [len(s) for s in known[1]] != [len(s) for s in shapes]:
            self._in_step = False
        if not self._in_step:
            return [set(range(len(shape))) for shape in shapes]
        return [
            {axis for axis, pair in enumerate(zip(*both, strict=True)) if pair[0] != pair[1]}
            for both in zip(shapes, known[1], strict=True)
        ]

    def differ_in_number(self, results: int) -> bool:
        """Whether the last call made as many results as dynamic sizes make it: of unbind(), of split()."""
        at, told = len(self.calls), (f"{results} results", ())
        self.calls.append(told)
        if self._others is None or not self._in_step or at >= len(self._others):
            return False
        return self._others[at] != told
