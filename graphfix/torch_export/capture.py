"""From a subject to a lossless ONNX model, by torch.export: what PyTorch writes by index stays an ATen node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.fx.experimental import _config

from graphfix.errors import ExportError
from graphfix.torch_export import diagnosis
from graphfix.torch_export.captured import Captured
from graphfix.torch_export.counted import taken_as_general
from graphfix.torch_export.dim_names import named_dims, rename_dims
from graphfix.torch_export.limits import limits
from graphfix.torch_export.prepare import is_number, prepared
from graphfix.torch_export.silence import silence
from graphfix.torch_export.subject import Subject, quiet

OPSET = 18  # that of torch.onnx's translations; the model is converted afterwards
_MOST_TRIES = 40  # operators without a translation, each found by a run of the exporter
_UNTRANSLATED = re.compile(r"No ONNX function found for <OpOverload\(op='([\w:.]+)', overload='(\w+)'\)>")
_FAILED = re.compile(r"target ?= ?torch\.ops\.([\w.]+)")


def capture(
    subject: Subject,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    place: Path | None = None,
) -> Captured:
    """Export by torch.export and torch.onnx. With ``place``, a path to come, the weights are put beside it.

    Raises ExportError, with the user's source line, when PyTorch cannot.
    """
    with silence(), _pending_sizes_allowed():
        program, how, asked = (
            (subject.program, "given", []) if subject.program is not None else _export(subject, dynamic_shapes)
        )
        given, program = program, prepared(program)
        dynamic = _dynamic_dims(program)
        translated = _translate(program, input_names, output_names)
        fixed = sorted(dynamic - _dynamic_dims(translated.exported_program))
        if fixed:
            raise ExportError(
                f"PyTorch fixes dim {fixed[0][1]} of {fixed[0][0]}, which was to be dynamic, when it makes the writes "
                f"of {subject.name} functional; write into x[:, k] in the place of views from unbind, split or chunk"
            )
        model = _model(translated, place)
    route = f"torch.export ({how}), PyTorch {torch.__version__}"
    found = Captured(model, {}, {}, translated.exported_program, route, base_dir=place and place.parent)
    _match(found, given)
    if asked:
        places = "; ".join(asked[:3]) + ("; ..." if len(asked) > 3 else "")
        found.notes.append(f"sizes that the values decide are taken for 2 or more where the module asks: {places}")
    if dynamic_shapes is not None:
        dims = named_dims(subject, dynamic_shapes)
        rename_dims(model, {name: dims.get(number, {}) for number, name in found.inputs.items()})
    return found


def _model(translated: Any, place: Path | None) -> onnx.ModelProto:
    """The translated model; with its weights beside a path, where one is given."""
    if place is None:
        model = onnx.ModelProto()
        model.CopyFrom(translated.model_proto)
        return model
    translated.save(str(place), external_data=True)
    return onnx.load(place, load_external_data=False)


def _pending_sizes_allowed() -> Any:
    """While PyTorch 2.13 decomposes a program it loses sight of sizes that only the values tell, and makes them twice.

    Older versions have no word for that.
    """
    wanted = {"soft_pending_unbacked_not_found_error": True}
    return _config.patch(wanted) if all(hasattr(_config, name) for name in wanted) else nullcontext()


def _export(subject: Subject, dynamic_shapes: Any) -> tuple[torch.export.ExportedProgram, str, list[str]]:
    """The exported program, how it was made, and the places that ask about sizes that only the values tell."""
    shapes = _with_hints(dynamic_shapes)
    told: Exception | None = None
    ways = [(False, False)]
    while ways:
        strict, counted = ways.pop(0)
        general: AbstractContextManager[list[str]] = taken_as_general() if counted else nullcontext([])
        with quiet(), general as answered:
            try:
                program = torch.export.export(
                    subject.fresh(), subject.args, subject.kwargs or None, dynamic_shapes=shapes, strict=strict
                )
            except Exception as error:
                # What comes after answers is about the rest: the answers were no obstacle.
                if not strict and not counted:
                    # What the values decide stops a strict export as well.
                    ways = (
                        [(False, True), (True, True)]
                        if diagnosis.is_of_values(error)
                        else [(True, False), (True, True)]
                    )
                told = error if told is None or answered else told
                continue
        return program, "strict" if strict else "non-strict", list(dict.fromkeys(answered))
    assert told is not None
    raise diagnosis.export_error(told, subject.name) from told


def _translate(
    program: torch.export.ExportedProgram,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Any:
    """torch.onnx's program. An operator that it cannot translate is kept as an ATen node."""
    from graphfix.torch_export.nodes import any_translation, write_translations

    table = write_translations()
    names: dict[str, Any] = {"input_names": input_names, "output_names": output_names}
    for _ in range(_MOST_TRIES):
        try:
            with quiet():
                translated = torch.onnx.export(
                    program,
                    (),
                    dynamo=True,
                    custom_translation_table=table,
                    opset_version=OPSET,
                    optimize=True,
                    verbose=False,
                    external_data=False,
                    **names,
                )
                _restore_constants(translated.model.graph)
                return translated
        except Exception as error:
            overload = _untranslated(error)
            if overload is None or overload in table:
                raise diagnosis.translation_error(error, program, overload) from error
            table[overload] = any_translation(overload)
    raise ExportError(f"more than {_MOST_TRIES} operators have no translation to ONNX; export a part of the model")


def _restore_constants(graph: Any) -> None:
    """Put constants that nodes read among the initializers again, under names of their own.

    The rules by which torch.onnx simplifies (onnxscript 0.7: two Clips, a Relu and a Clip of one tensor) name the
    constants that they make after the tensor; the second of a name takes the place of the first.
    """
    taken = {*graph.initializers, *(value.name for node in graph for value in node.outputs)}
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None or value.is_graph_input():
                continue
            if graph.initializers.get(value.name) is value or value.is_initializer():
                continue
            stem, number = value.name or "constant", 1
            while value.name is None or value.name in taken:
                value.name, number = f"{stem}_{number}", number + 1
            taken.add(value.name)
            graph.register_initializer(value)


def _untranslated(error: BaseException) -> Any:
    """The operator that an error of torch.onnx is about, None for another error."""
    cause: BaseException | None = error
    overload = None
    while cause is not None:
        found = _UNTRANSLATED.search(str(cause))
        if found is not None:
            overload = _resolve(f"{found[1]}.{found[2]}")
        elif overload is None:
            failed = _FAILED.search(str(cause))
            overload = _resolve(failed[1]) if failed is not None else None
        cause = cause.__cause__
    return overload


def _resolve(name: str) -> Any:
    """``aten.index_put.default`` as the operator itself."""
    found: Any = torch.ops
    for part in re.split(r"[.:]+", name):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def _dynamic_dims(program: torch.export.ExportedProgram) -> set[tuple[str, int]]:
    """The dynamic dims of the user's inputs: names and axes."""
    users = set(map(str, program.graph_signature.user_inputs))
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in users}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    # A dim that was fixed later on keeps its type, but not its name.
    return {(name, k) for name, t in tensors.items() for k, d in enumerate(t.shape) if not str(d).isdecimal()}


def _match(found: Captured, program: torch.export.ExportedProgram) -> None:
    """Fill in which argument each input is and which result each output."""
    signature = program.graph_signature
    users = [s for s in signature.input_specs if s.kind.name == "USER_INPUT"]
    tensors = [n for n, spec in enumerate(users) if not isinstance(spec.arg, ConstantArgument)]
    names = [i.name for i in found.model.graph.input]
    if len(tensors) != len(names):
        raise ExportError(f"PyTorch's exporter made {len(names)} inputs of {len(tensors)} arguments")
    found.inputs = dict(zip(tensors, names, strict=True))
    found.limits = limits(program, {users[n].arg.name: name for n, name in found.inputs.items()})
    found.notes += found.limits.notes()
    results = [s for s in signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    kept = [n for n, spec in enumerate(results) if not isinstance(spec.arg, ConstantArgument)]
    outputs = [o.name for o in found.model.graph.output]
    if len(kept) != len(outputs):
        raise ExportError(f"PyTorch's exporter made {len(outputs)} outputs of {len(kept)} results")
    found.outputs = dict(zip(kept, outputs, strict=True))
    final = found.program.graph_signature
    mutated = sorted({*signature.buffers_to_mutate.values(), *final.buffers_to_mutate.values()})
    found.note_results([n for n, spec in enumerate(results) if is_number(spec.arg)], mutated)


def _with_hints(shapes: Any) -> Any:
    """Dynamic shapes as torch.export takes them: names stand for dims that may have any size the module takes."""
    return _mapped(shapes, lambda d: torch.export.Dim.DYNAMIC if isinstance(d, str) else d)


def _mapped(shapes: Any, change: Any) -> Any:
    if isinstance(shapes, Mapping):
        return {key: _mapped(value, change) for key, value in shapes.items()}
    if isinstance(shapes, (tuple, list)):
        return type(shapes)(_mapped(value, change) for value in shapes)
    return change(shapes)
