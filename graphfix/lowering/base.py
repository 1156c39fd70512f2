"""What a lowering is, and what it may ask of its surroundings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import onnx

from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Value
from graphfix.selection import Group, PointSet, Selection
from graphfix.symbolic import Expr, product

# What a size that is only known at run time is taken to be, for costs: a long sequence, many boxes, a large batch.
NOMINAL_SIZE = 4096
FURTHER_SIZE = 64
BUDGET_FACTOR = 16
BUDGET_FLOOR = 64 << 20


# How many multiply-adds of a matrix product take about as long as moving one byte (ONNX Runtime and OpenVINO, x86).
PRODUCTS_PER_BYTE = 8


@dataclass(frozen=True)
class Cost:
    """Bytes that a lowering moves, its largest new intermediate, and the multiply-adds of its matrix products."""

    moved: int
    largest: int
    products: int = 0

    @property
    def work(self) -> int:
        """All it takes, as bytes moved."""
        return self.moved + self.products // PRODUCTS_PER_BYTE


@dataclass(frozen=True)
class Context:
    """What is known about the model around a write. ``budget`` overrides the limit on the largest intermediate;
    ``opset`` is that of the write's scope (None: any); ``avoid`` names lowerings that the target would not run."""

    facts: Facts
    budget: int | None = None
    opset: int | None = None
    avoid: frozenset[str] = frozenset()

    def bytes_of(self, shape: tuple[Expr, ...] | list[Expr], dtype: int | None) -> int:
        """An estimate of a tensor's size."""
        item = onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize if dtype else 4
        return self.elements_of(shape) * max(item, 1)

    def elements_of(self, shape: tuple[Expr, ...] | list[Expr]) -> int:
        """An estimate of how many elements a tensor has."""
        return product(tuple(shape)).estimate(NOMINAL_SIZE, FURTHER_SIZE)

    def data_bytes(self, selection: Selection) -> int:
        shape = self.facts.shape(selection.data)
        assert shape is not None
        return self.bytes_of(shape, selection.data.dtype)

    def values_bytes(self, selection: Selection) -> int:
        return self.bytes_of(selection.shape, selection.data.dtype)

    def limit(self, selection: Selection) -> int:
        """The largest intermediate that is acceptable."""
        if self.budget is not None:
            return self.budget
        return max(BUDGET_FLOOR, BUDGET_FACTOR * (self.data_bytes(selection) + self.values_bytes(selection)))

    def comparison_bytes(self, selection: Selection, group: Group) -> int:
        """The size of comparing every position of a group's axes with every index, as int32."""
        if not isinstance(group.index, PointSet):
            return 0
        shape = self.facts.shape(selection.data)
        assert shape is not None
        positions = product([shape[a] for a in group.axes]).estimate(NOMINAL_SIZE, FURTHER_SIZE)
        walked = {d for _, d in group.index.batch}
        free = product([selection.shape[d] for d in group.grid if d not in walked])
        return positions * free.estimate(NOMINAL_SIZE, FURTHER_SIZE) * 4


class Lowering(ABC):
    """One way to express an index write. Instances hold no state."""

    name: str

    @abstractmethod
    def supports(self, selection: Selection, context: Context) -> str | None:
        """None when the lowering is exact for this write, else the reason why it does not apply."""

    @abstractmethod
    def cost(self, selection: Selection, context: Context) -> Cost:
        """What it would cost; only asked when it is supported."""

    @abstractmethod
    def emit(self, selection: Selection, builder: Builder) -> Value:
        """Emit the nodes and return the written tensor."""
