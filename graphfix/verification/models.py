"""The comparison of any two models, or of a model with recorded outputs: the work behind ``graphfix.verify``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx

from graphfix import model_io
from graphfix.errors import UsageError
from graphfix.report import LayerComparison, Verification
from graphfix.user_inputs import check_ranges, check_recorded, check_sets, check_shapes, model_inputs
from graphfix.verification import Progress, VerifyOptions, compare
from graphfix.verification.check import Check
from graphfix.verification.inputs import InputSet
from graphfix.verification.layers import Setting, compare_layers
from graphfix.verification.pairing import pair
from graphfix.verification.weights import mapped

if TYPE_CHECKING:
    from graphfix.user_inputs import Arrays

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto
    Sets = str | os.PathLike[str] | Arrays | Sequence[Arrays]


def compare_models(
    reference: Model,
    candidate: Model,
    options: VerifyOptions,
    *,
    inputs: Sets | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_ranges: Mapping[str, Sequence[float]] | None = None,
    layers: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """See `graphfix.api.verify`."""
    ours, theirs = model_io.load(reference), model_io.load(candidate)
    pairing = pair(ours.model, theirs.model)
    declared = model_inputs(ours.model)
    options = dataclasses.replace(
        options,
        inputs=check_sets(inputs, declared),
        input_shapes=check_shapes(input_shapes, declared),
        input_ranges=check_ranges(input_ranges, declared),
        against=_name(reference, "the reference"),
        subject=_name(candidate, "the candidate"),
    )
    places = [(ours.model, ours.base_dir), (theirs.model, theirs.base_dir)]
    with mapped(places) as [(one, folder), (other, other_folder)]:
        check = Check(
            one,
            other,
            options,
            base_dir=folder,
            candidate_dir=other_folder,
            pairing=pairing,
            progress=progress,
        )
        result = check.run()
        result.notes = pairing.notes + result.notes
        if layers:
            setting = Setting(
                folder, other_folder, check.pairing, options.custom_ops, rtol=options.rtol, atol=options.atol
            )
            _add_layers(result, check, setting)
    return result


def _add_layers(result: Verification, check: Check, setting: Setting) -> None:
    """Compare the layers on the set that tells most, and put them into the result."""
    if check.telling is None or check.reference is None:
        return
    skipped: list[str] = []
    for layer in compare_layers(check.reference, check.candidate, check.telling.feeds, setting, skipped):
        first = bool(layer.difference.problem) and not any(known.problem for known in result.layers)
        line = dataclasses.asdict(compare.merge(layer.name, layer.dtype, [layer.difference]))
        result.layers.append(LayerComparison(**line, operator=layer.operator, first=first))
    result.notes += [f"layers compared on {check.telling.describe()}"]
    result.notes += [f"layer not compared: {line}" for line in skipped]


def compare_recorded(
    expected: Sets,
    candidate: Model,
    options: VerifyOptions,
    *,
    inputs: Sets | None = None,
    progress: Progress | None = None,
) -> Verification:
    """See `graphfix.api.verify`."""
    theirs = model_io.load(candidate)
    known = {o.name: _output_dtype(o) for o in theirs.model.graph.output}
    recorded = check_recorded(expected, known)
    if inputs is None and recorded.inputs is None:
        raise UsageError("recorded outputs need the inputs that they were recorded with: give inputs too")
    declared = model_inputs(theirs.model)
    given = list(recorded.inputs.values()) if inputs is None and recorded.inputs is not None else inputs
    sets = check_sets(given, declared) or []
    if len(sets) != len(recorded.outputs):
        raise UsageError(f"there are {len(sets)} input sets, but {len(recorded.outputs)} sets of recorded outputs")
    options = dataclasses.replace(options, against="the recorded outputs", subject=_name(candidate, "the candidate"))
    pairs = [InputSet(feeds, outputs) for feeds, outputs in zip(sets, recorded.outputs, strict=True)]
    with mapped([(theirs.model, theirs.base_dir)]) as [(model, folder)]:
        result = Check(None, model, options, candidate_dir=folder, recorded=pairs, progress=progress).run()
    result.notes = recorded.notes + result.notes
    return result


def _name(model: Model, otherwise: str) -> str:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else otherwise


def _output_dtype(value: onnx.ValueInfoProto) -> Any:
    elem_type = value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0
    return onnx.helper.tensor_dtype_to_np_dtype(elem_type) if elem_type else None
