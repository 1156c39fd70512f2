"""Sizes that only values tell: how many rows a mask selects, how many boxes are kept.

torch.export takes a dynamic dim to be 2 or more where code asks whether it is 0 or 1, and traces the general case. Of a
size that the values decide it asks the module's author to say so, which libraries' code does not: detectors ask
``if boxes.numel() == 0``. Here such a size is taken as a dynamic dim is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy.symbol import SymT, symbol_is_type

from graphfix.sources import in_stack

_LEAST = 2  # what torch.export takes a dynamic dim to be
# Sets of sizes that have to agree, of the size number i of n: all alike, ever larger ones, ever smaller ones, few and
# more than any limit in a module.
_SAMPLES: tuple[Callable[[int, int], int], ...] = (
    lambda i, n: _LEAST,
    lambda i, n: _LEAST + 7 + 3 * i,
    lambda i, n: _LEAST + 7 + 3 * (n - i),
    lambda i, n: 10_000_019 + 1009 * i,
    lambda i, n: 10_000_019 + 1009 * (n - i),
)


@contextmanager
def taken_as_general() -> Iterator[list[str]]:
    """Answer what code asks of such sizes as for any size from 2 on, where all of these have one answer.

    Gives the list of what was asked, in words, as it grows.
    """
    asked: list[str] = []
    evaluate: Callable[..., Any] = symbolic_shapes.ShapeEnv.evaluate_expr

    def answered(env: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(env, *args, **kwargs)
        except symbolic_shapes.GuardOnDataDependentSymNode as error:
            answer = _general_answer(error.cond, env)
            if answer is None:
                raise
            asked.append(in_stack(str(error)) or str(error.cond))
            return sympy.true if answer else sympy.false

    symbolic_shapes.ShapeEnv.evaluate_expr = answered  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        symbolic_shapes.ShapeEnv.evaluate_expr = evaluate  # type: ignore[method-assign]


def _general_answer(condition: Any, env: Any) -> bool | None:
    """Whether a condition on sizes holds for all of several sets of sizes (or for none); None when it depends."""
    unknown = sorted(condition.free_symbols, key=str)
    if not isinstance(condition, sympy.logic.boolalg.Boolean) or not unknown:
        return None
    if not all(symbol in env.size_like or symbol_is_type(symbol, SymT.SIZE) for symbol in unknown):
        return None  # a value, not a size
    answers = set()
    for size in _SAMPLES:
        found = condition.subs({symbol: size(i, len(unknown)) for i, symbol in enumerate(unknown)})
        if found not in (sympy.true, sympy.false):
            return None
        answers.add(bool(found))
    return answers.pop() if len(answers) == 1 else None
