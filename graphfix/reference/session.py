"""The reference session: runs a model as it is, ATen nodes and all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from graphfix.protobuf import all_nodes, tensor_of
from graphfix.reference.bool_where import without_bool_where
from graphfix.reference.memory import Memory, bounded
from graphfix.reference.ort import OrtModel
from graphfix.reference.program import Context, Program, holds_kernel, is_scatter
from graphfix.reference.refusal import ReferenceRefusal

Array = np.ndarray[Any, Any]


class Input(NamedTuple):
    """A graph input that has to be given.

    ``is_list`` says that it is a sequence of tensors, of which ``dtype`` and ``shape`` then tell; an optional is what
    it may hold. ``dtype`` is None for what holds no tensors. ``shape`` has an int for a fixed dim, a str for a named
    one and None for any other (a dim of 0 or less, as old exporters wrote, is not fixed); it is None when the rank is
    unknown.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | str | None, ...] | None
    is_list: bool = False


class ReferenceSession:
    """A model that can be run: the standard parts by ONNX Runtime, the rest by NumPy kernels.

    ONNX Runtime's optimisations stay off unless ``optimise`` is set, for a model that runs only when its constants
    have been folded. ``model`` is not changed. External data is read from ``base_dir``. ``custom_ops`` are paths of
    libraries of custom operators for ONNX Runtime. A run that asks for more than ``memory`` leaves is refused.
    Raises ReferenceRefusal when the model holds an operator that neither side has, or cannot be loaded.

    With ``scatters`` ONNX's own scatters run in NumPy too, where the last of several writes to one place wins.

    ``shapes`` holds, after a run, the shapes of the inputs and of every tensor that crossed between the two sides in
    the main graph. A refused run leaves those it got to.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        base_dir: Path | None = None,
        optimise: bool = False,
        custom_ops: Sequence[str] = (),
        memory: Memory | None = None,
        scatters: bool = False,
    ) -> None:
        self.inputs = graph_inputs(model.graph)
        self.outputs = [o.name for o in model.graph.output]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._run: Callable[[Mapping[str, Array]], dict[str, Array]]
        self._memory = memory or Memory()
        model = without_bool_where(model)
        if uses_kernels(model) or (scatters and any(is_scatter(node) for node in all_nodes(model))):
            model = _without_functions(model)
            program = Program(model.graph, Context(model, base_dir, optimise, tuple(custom_ops), scatters))
            self._run = lambda feeds: dict(zip(self.outputs, program.run(feeds, shapes=self.shapes), strict=True))
        else:
            self._run = OrtModel(model, base_dir=base_dir, optimise=optimise, custom_ops=custom_ops).run

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All graph outputs by name. ``feeds`` holds every input, in its dtype, rank and fixed dims.

        Raises ReferenceRefusal, with a message of one line, when the inputs do not fit, at the door or further in.
        """
        # Numbers of NumPy are no arrays to ONNX Runtime.
        feeds = {name: value if isinstance(value, list) else np.asarray(value) for name, value in feeds.items()}
        self.shapes = {name: value.shape for name, value in feeds.items() if not isinstance(value, list)}
        for problem in misfits(self.inputs, feeds):
            raise ReferenceRefusal(problem)
        return bounded(self._run, self._memory)(feeds)


def uses_kernels(model: onnx.ModelProto) -> bool:
    """Whether the model holds a node that ONNX Runtime cannot run and the kernels are for."""
    return holds_kernel(model.graph.node) or any(holds_kernel(f.node) for f in model.functions)


def graph_inputs(graph: onnx.GraphProto) -> list[Input]:
    """The inputs that must be given: those without an initializer of the same name."""
    given = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = []
    for value in graph.input:
        if value.name in given:
            continue
        tensor, is_list = tensor_of(value.type)
        if tensor is None:
            inputs.append(Input(value.name, None, None))
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = tuple(_dim(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
        inputs.append(Input(value.name, dtype, shape, is_list))
    return inputs


def misfits(inputs: list[Input], feeds: Mapping[str, Array]) -> Iterator[str]:
    """What is wrong with ``feeds`` for a model with these inputs, one line each."""
    for name in feeds:
        if name not in {i.name for i in inputs}:
            yield f"the model has no input {name!r} (inputs: {', '.join(i.name for i in inputs)})"
    for name, dtype, shape, is_list in inputs:
        if name not in feeds:
            yield f"input {name!r} is missing"
            continue
        value = feeds[name]
        if dtype is not None and is_list != isinstance(value, list):
            have, wanted = ("no list", "a sequence") if is_list else ("a list", "a tensor")
            yield f"input {name!r} is {have}, but the model takes {wanted}"
        if dtype is None or isinstance(value, list):
            continue
        if value.dtype != dtype:
            yield f"input {name!r} has dtype {value.dtype}, not {dtype}"
        if shape is None:
            continue
        fits = value.ndim == len(shape)
        if not fits or any(
            isinstance(want, int) and have != want for have, want in zip(value.shape, shape, strict=True)
        ):
            wanted = ", ".join("?" if d is None else str(d) for d in shape)
            yield f"input {name!r} has shape {list(value.shape)}, not [{wanted}]"


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.dim_param:
        return dim.dim_param
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions inlined, when one of them holds a node for the kernels."""
    if not any(holds_kernel(f.node) for f in model.functions):
        return model
    import onnx.inliner

    model = onnx.inliner.inline_local_functions(model)
    for function in model.functions:
        if holds_kernel(function.node):
            raise ReferenceRefusal(f"the local function {function.domain}::{function.name} cannot be inlined")
    return model
