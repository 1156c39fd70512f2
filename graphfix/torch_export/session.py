"""PyTorch in the place of the reference session: the module runs on arrays, by the names of the exported model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import graph_inputs
from graphfix.torch_export.arrays import to_numpy, to_torch
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.subject import SEED, Subject

Array = np.ndarray[Any, Any]


class TorchSession:
    """A subject that runs as a `graphfix.reference.session.ReferenceSession` does.

    Its inputs and outputs have the names of the captured model, and it takes the sizes that this is for.
    """

    def __init__(self, subject: Subject, captured: Captured) -> None:
        self.inputs = graph_inputs(captured.model.graph)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._subject = subject
        self._leaves = subject.leaves
        self._positions = captured.inputs
        self._outputs = captured.outputs
        self._limits = captured.limits

    def example(self) -> dict[str, Array]:
        """The example arguments by input name."""
        return {name: _array(self._leaves[n]) for n, name in self._positions.items()}

    def is_small(self, feeds: Mapping[str, Array]) -> bool:
        """Whether a size is one that torch.export does not vouch for: 0 or 1 where it takes sizes from 2 on."""
        return self._limits.is_small({name: np.shape(value) for name, value in feeds.items()})

    def run(self, feeds: Mapping[str, Array], seed: int = SEED) -> dict[str, Array]:
        """All outputs by name. Raises ReferenceRefusal with PyTorch's message when the module refuses the inputs."""
        self.shapes = {name: np.shape(value) for name, value in feeds.items()}
        problem = self._limits.problem(self.shapes)
        if problem:
            raise ReferenceRefusal(problem)
        leaves = list(self._leaves)
        for position, name in self._positions.items():
            leaves[position] = _like(leaves[position], feeds[name])
        try:
            result = self._subject.call(leaves, seed)
        except Exception as error:  # a module may raise anything
            raise ReferenceRefusal(" ".join(str(error).split())[:300] or type(error).__name__) from error
        flat = pytree.tree_flatten(result)[0]
        return {name: _array(flat[n]) for n, name in self._outputs.items()}


def _like(example: Any, value: Array) -> Any:
    """A fed array as what the example argument is: a tensor, or a number."""
    if isinstance(example, torch.Tensor):
        return to_torch(np.asarray(value))
    return type(example)(np.asarray(value).item())


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        return to_numpy(value)
    return np.asarray(value)
