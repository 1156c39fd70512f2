"""From a subject to a lossless ONNX model, by TorchScript: for models and versions of PyTorch that torch.export fails.

The module is traced as a function (`graphfix.torch_export.functional`), so that no write is lost, and index writes stay
ATen nodes (`graphfix.torch_export.symbolics`).
"""

from __future__ import annotations

import copy
import inspect
import linecache
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from graphfix.errors import ExportError
from graphfix.protobuf import graphs_within
from graphfix.sources import STACK_KEY
from graphfix.torch_export import diagnosis
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.dim_names import dynamic_dims
from graphfix.torch_export.dynamic_sizes import Call
from graphfix.torch_export.frozen import Stop
from graphfix.torch_export.functional import Functional
from graphfix.torch_export.limits import Limits
from graphfix.torch_export.other_sizes import other_sizes
from graphfix.torch_export.silence import silence
from graphfix.torch_export.subject import Subject, quiet
from graphfix.torch_export.symbolics import ONNX_TYPES, write_symbolics
from graphfix.torch_export.user_code import is_user_code

Dims = Mapping[int, Mapping[int, str]]  # names of axes, by the positions of the arguments
_FRAME = re.compile(r"(.+)\((\d+)\): (.+)")

OPSET = 17  # the highest that every supported version writes; the model is converted afterwards


def capture(
    subject: Subject,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    place: Path | None = None,
) -> Captured:
    """Trace and translate. With ``place``, a path to come, the weights are put beside it.

    Raises ExportError, with the user's source line, when the trace would not be the module.
    """
    flat = _Flat(subject)
    names = _names(subject, flat.positions)
    if input_names is not None:
        _check_count(input_names, len(names), "input")
        names = list(input_names)
    dims = dynamic_dims(subject, dynamic_shapes) if dynamic_shapes is not None else {}
    with silence():
        stuck = flat.look_elsewhere(subject, dims) if any(dims.values()) else []
        model = _export(flat, subject, names, dims, place)
    _tell_lines(model)
    found = Captured(model, {}, {}, None, f"TorchScript, PyTorch {torch.__version__}", base_dir=place and place.parent)
    found.inputs = dict(zip(flat.positions, names, strict=False))
    found.limits = _limits(subject, found.inputs, dims)
    _keep_inputs(model, subject, found.inputs, dims)
    outputs = [value.name for value in model.graph.output]
    if output_names is None:
        output_names = ["output"] if len(outputs) == 1 else [f"output_{n}" for n in range(len(outputs))]
        output_names = [_free(name, names) for name in output_names]
    _check_count(output_names, len(outputs), "output")
    _name_outputs(model, output_names)
    _drop_prefix(model)
    found.outputs = dict(zip(flat.results, output_names, strict=False))
    found.note_results(flat.numbers, flat.written)
    if stuck:
        found.notes.append(f"the module runs with no other size of {', '.join(stuck)}: only the example's was traced")
    return found


class _Flat(torch.nn.Module):
    """A module of flat tensors that runs a subject's module functionally."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.module = subject.fresh()
        self._leaves, self._spec = subject.leaves, subject.spec
        self.positions = [n for n, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self.results: list[int] = []
        self.numbers: list[int] = []
        self.written: list[str] = []
        self.problem: ExportError | None = None
        self._others: list[Call] | None = None
        self._calls: list[Call] = []

    def look_elsewhere(self, subject: Subject, dims: Dims) -> list[str]:
        """Run with other sizes of the dynamic dims, and keep what calls that made. The result are dims that have none.

        Raises ExportError when the module takes no other sizes.
        """
        leaves, stuck = other_sizes(subject, dims)
        with quiet():
            try:
                tensors = tuple(leaves[n].detach().clone() for n in self.positions)
                torch.jit.trace(self, tensors, check_trace=False)
            except Exception as error:
                raise self.told(error, subject) from None
        self._others = self._calls
        self.module = subject.fresh()
        return stuck

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [copy.copy(leaf) if not isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        for n, tensor in zip(self.positions, tensors, strict=False):
            leaves[n] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        buffers = dict(self.module.named_buffers())
        mode = Functional(tensors, self.parameters(), self._others)
        self._calls = mode.sizes.calls
        try:
            with mode:
                result = self.module(*args, **kwargs)
        except (Stop, ExportError) as error:
            self.problem = error.error if isinstance(error, Stop) else error
            raise self.problem from None
        flat = pytree.tree_flatten(result)[0]
        self.results = [n for n, one in enumerate(flat) if isinstance(one, Tensor)]
        if not self.results:
            self.problem = ExportError(
                f"the module returns {type(result).__name__}: return tensors, or tuples, lists and dicts of them"
            )
            raise self.problem
        self.numbers = [n for n, one in enumerate(flat) if isinstance(one, (bool, int, float))]
        self.written = sorted(name for name, tensor in buffers.items() if mode.written(tensor))
        return tuple(mode.value(flat[n]) for n in self.results)

    def told(self, error: Exception, subject: Subject) -> ExportError:
        """What to say of an error of the trace or the exporter."""
        return self.problem or diagnosis.tracing_error(error, subject.name)


def _export(flat: _Flat, subject: Subject, names: list[str], dims: Dims, place: Path | None) -> onnx.ModelProto:
    tensors = tuple(subject.leaves[n].detach().clone() for n in flat.positions)
    axes = {name: dict(dims[n]) for n, name in zip(flat.positions, names, strict=False) if dims.get(n)}
    extra: dict[str, Any] = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.onnx"))
        try:
            with quiet(), write_symbolics(OPSET), _no_log():
                torch.onnx.export(
                    flat,
                    tensors,
                    path,
                    opset_version=OPSET,
                    input_names=names,
                    dynamic_axes=axes,
                    operator_export_type=torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK,
                    verbose=True,  # leaves the source lines in the nodes
                    **extra,
                )
        except Exception as error:
            raise flat.told(error, subject) from None
        model = onnx.load(path)
    if place is None:
        return model
    # The exporter makes a file of each tensor.
    onnx.save(model, place, save_as_external_data=True, location=f"{place.name}.data")
    return onnx.load(place, load_external_data=False)


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _limits(subject: Subject, names: Mapping[int, str], dims: Dims) -> Limits:
    """What the trace is for: dynamic dims from 2 on, as for torch.export. Below, PyTorch may go another way."""
    shapes = {
        name: tuple(dims.get(n, {}).get(axis, size) for axis, size in enumerate(subject.leaves[n].shape))
        for n, name in names.items()
    }
    return Limits(shapes, {dim: (2, None) for axes in dims.values() for dim in axes.values()})


def _check_count(names: Sequence[str], count: int, kind: str) -> None:
    if len(names) != count:
        raise ExportError(f"{len(names)} {kind} names are given, but the model has {count} {kind}s")


def _names(subject: Subject, positions: Sequence[int]) -> list[str]:
    """Names of the inputs: those of the parameters, with the keys of what is nested in them."""
    try:
        bound = inspect.signature(subject.module.forward).bind(*subject.args, **subject.kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"input_{n}": value for n, value in enumerate((*subject.args, *subject.kwargs.values()))}
    named = dict(_paths(bound.items(), ""))
    found: list[str] = []
    for n in positions:
        name = named.get(id(subject.leaves[n]), f"input_{n}")
        found.append(name if name not in found else f"{name}_{n}")
    return found


def _paths(items: Any, prefix: str) -> Iterator[tuple[int, str]]:
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, Tensor):
            yield id(value), name
        elif isinstance(value, Mapping):
            yield from _paths(value.items(), f"{name}_")
        elif isinstance(value, (tuple, list)):
            yield from _paths(enumerate(value), f"{name}_")


def _keep_inputs(model: onnx.ModelProto, subject: Subject, names: Mapping[int, str], dims: Dims) -> None:
    """Give the model all inputs of the module: the exporter drops those whose elements it does not need."""
    present = {value.name: value for value in model.graph.input}
    inputs = []
    for n, name in names.items():
        tensor = subject.leaves[n]
        shape = [dims.get(n, {}).get(axis, size) for axis, size in enumerate(tensor.shape)]
        inputs.append(present.get(name) or onnx.helper.make_tensor_value_info(name, ONNX_TYPES[tensor.dtype], shape))
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _name_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Name the outputs. One that is an input, a parameter or another output becomes a copy of it."""
    made = {name for node in model.graph.node for name in node.output}
    renamed: dict[str, str] = {}
    for value, name in zip(model.graph.output, names, strict=True):
        if value.name in made and value.name not in renamed:
            renamed[value.name] = name
        else:
            model.graph.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
        value.name = name
    for graph in graphs_within(model.graph):
        _rename_tensors(graph, renamed)


def _drop_prefix(model: onnx.ModelProto) -> None:
    """Give the parameters the names that they have in the user's module, where no input or output has them."""
    prefix = "module."
    names = {t.name: t.name.removeprefix(prefix) for t in model.graph.initializer if t.name.startswith(prefix)}
    taken = {name for graph in graphs_within(model.graph) for node in graph.node for name in node.output}
    taken |= {value.name for value in model.graph.input}
    names = {old: new for old, new in names.items() if new not in taken}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for graph in graphs_within(model.graph):
        _rename_tensors(graph, names)


def _rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]


def _tell_lines(model: onnx.ModelProto) -> None:
    """Keep of the stack that a node was made in the lines of the user's code, as torch.export writes them."""
    for graph in graphs_within(model.graph):
        for node in graph.node:
            frames = [_FRAME.fullmatch(line.strip()) for line in node.doc_string.splitlines()]
            node.doc_string = ""
            own = [frame for frame in frames if frame is not None and is_user_code(frame[1])]
            lines: list[str] = []
            for frame in own:
                lines[:0] = [f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}', "    " + _code(frame)]
                if frame[3] == "forward":
                    break
            if lines:
                node.metadata_props.add(key=STACK_KEY, value="\n".join(lines))


def _code(frame: re.Match[str]) -> str:
    return linecache.getline(frame[1], int(frame[2])).strip()


@contextmanager
def _no_log() -> Iterator[None]:
    """The exporter prints the graph when it is to keep source lines."""
    places = [(torch._C, "_jit_onnx_log"), (torch.onnx, "log")]
    kept = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    enabled = torch._C._jit_is_onnx_log_enabled()  # type: ignore[attr-defined]
    for place, name, _ in kept:
        setattr(place, name, lambda *told: None)
    try:
        yield
    finally:
        for place, name, function in kept:
            setattr(place, name, function)
        torch._C._jit_set_onnx_log_enabled(enabled)  # type: ignore[attr-defined]
