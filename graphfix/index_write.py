"""The one canonical form of an index write, whatever node carries it.

Recognisers (the passes) produce it, lowerings consume it, and neither knows the other. The semantics are those of
PyTorch's ``Tensor.index_put_``: all Points and Masks of one write broadcast together (a Mask stands for the positions
where it holds, in row-major order); when they are separated by Full or Span, their dimensions move to the front of the
selection; negative indices count from the end; axes without an index are Full; when equal indices meet
``Reduction.NONE``, the last in row-major order wins, as in PyTorch and ONNX Runtime on CPU.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from graphfix.facts import Bound
from graphfix.graph import Value


class Reduction(enum.Enum):
    """How values are combined with what is written over."""

    NONE = "none"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Full:
    """The whole axis."""


@dataclass(frozen=True)
class Span:
    """``start:stop`` of one axis by Python's slice rules; bounds are ints, tensors of one element, or None.

    A slice with a step is Points.
    """

    start: Bound
    stop: Bound


@dataclass(frozen=True)
class Points:
    """Integer indices into one axis, of any shape."""

    tensor: Value


@dataclass(frozen=True)
class Mask:
    """A bool tensor over as many axes as it has. ``origin`` is the mask that the index was made from, where ``tensor``
    is that cut or padded to the data's size."""

    tensor: Value
    origin: Value | None = None


@dataclass(frozen=True)
class Along:
    """One index per element along one axis, as in ScatterElements; its other axes are the leading part of data's."""

    axis: int
    tensor: Value


AxisIndex = Full | Span | Points | Mask | Along


@dataclass(frozen=True)
class IndexWrite:
    """``output = data; output[index] = values`` (or combined by a reduction).

    ``index`` has one entry for each leading axis or group of axes (a Mask covers as many as it has), or is a single
    Along. ``values`` broadcast to the shape the index selects; for Along they are at least as large as its tensor.
    """

    data: Value
    index: tuple[AxisIndex, ...]
    values: Value
    reduction: Reduction
    output: Value
