"""Elementwise combination of what is there with what is written."""

from __future__ import annotations

from graphfix.builder import BOOL, Builder
from graphfix.graph import Value
from graphfix.index_write import Reduction
from graphfix.lowering.layout import dtype_of

_OPERATORS = {Reduction.MUL: "Mul", Reduction.MIN: "Min", Reduction.MAX: "Max"}
_LOGICAL = {Reduction.ADD: "Or", Reduction.MUL: "And", Reduction.MIN: "And", Reduction.MAX: "Or"}


def combine(reduction: Reduction, old: Value, new: Value, builder: Builder) -> Value:
    """``old`` and ``new`` (broadcast together) combined by a reduction; ``new`` itself for NONE."""
    if reduction is Reduction.NONE:
        return new
    if dtype_of(old) == BOOL:
        return builder.binary(_LOGICAL[reduction], old, new)
    if reduction is Reduction.ADD:
        return builder.add(old, new)
    return builder.arithmetic(_OPERATORS[reduction], old, new)
