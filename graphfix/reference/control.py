"""If, Loop and Scan in Python, for bodies that ONNX Runtime cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphfix.reference.refusal import ReferenceRefusal

if TYPE_CHECKING:
    from graphfix.reference.program import Program

Value = Any
Interpreter = Callable[[list[Value], MutableMapping[str, Value]], list[Value]]


def interpreter(op_type: str, bodies: Mapping[str, Program], attributes: Mapping[str, Any]) -> Interpreter:
    """A function from a node's inputs and the values around it to the node's outputs."""
    if op_type == "If" and {"then_branch", "else_branch"} <= set(bodies):
        return lambda inputs, values: _if(bodies, inputs, values)
    if op_type == "Loop" and "body" in bodies:
        return lambda inputs, values: _loop(bodies["body"], inputs, values)
    if op_type == "Scan" and "body" in bodies:
        return _scan_interpreter(bodies["body"], attributes)
    raise ReferenceRefusal("the reference interprets the bodies of If, Loop and Scan only")


def _if(bodies: Mapping[str, Program], inputs: list[Value], values: MutableMapping[str, Value]) -> list[Value]:
    branch = "then_branch" if np.asarray(inputs[0]).reshape(-1)[0] else "else_branch"
    return bodies[branch].run({}, values)


def _loop(body: Program, inputs: list[Value], values: MutableMapping[str, Value]) -> list[Value]:
    trips = None if inputs[0] is None else int(np.asarray(inputs[0]).reshape(-1)[0])
    going = True if len(inputs) < 2 or inputs[1] is None else bool(np.asarray(inputs[1]).reshape(-1)[0])
    carried = inputs[2:]
    slices: list[list[Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    count = 0
    while going and (trips is None or count < trips):
        given = [np.asarray(count, np.int64), np.asarray(going), *carried]
        results = body.run(_bind(body, given), values)
        going = bool(np.asarray(results[0]).reshape(-1)[0])
        carried = results[1 : 1 + len(carried)]
        for kept, value in zip(slices, results[1 + len(carried) :], strict=True):
            kept.append(value)
        count += 1
    outputs = list(body.graph.output)[1 + len(carried) :]
    return [*carried, *(_stack(kept, 0, o) for kept, o in zip(slices, outputs, strict=True))]


def _scan_interpreter(body: Program, attributes: Mapping[str, Any]) -> Interpreter:
    if "num_scan_inputs" not in attributes:
        raise ReferenceRefusal("Scan lacks num_scan_inputs")
    scanned = int(attributes["num_scan_inputs"])
    states = len(body.inputs) - scanned
    made = len(body.outputs) - states
    if "directions" in attributes or states < 0 or made < 0:
        raise ReferenceRefusal("the reference runs Scan from opset 9 on")
    in_axes = attributes.get("scan_input_axes", [0] * scanned)
    in_backwards = attributes.get("scan_input_directions", [0] * scanned)
    out_axes = attributes.get("scan_output_axes", [0] * made)
    out_backwards = attributes.get("scan_output_directions", [0] * made)

    def run(inputs: list[Value], values: MutableMapping[str, Value]) -> list[Value]:
        if len(inputs) != len(body.inputs):
            raise ReferenceRefusal(
                f"Scan has {len(inputs)} inputs for a body of {len(body.inputs)}; opset 8 is not run"
            )
        carried, sequences = inputs[:states], inputs[states:]
        lengths = {v.shape[axis] for v, axis in zip(sequences, in_axes, strict=True)}
        if len(lengths) != 1:
            raise ReferenceRefusal(f"the scanned inputs have different lengths: {sorted(lengths)}")
        length = lengths.pop()
        slices: list[list[Value]] = [[] for _ in range(made)]
        for step in range(length):
            parts = [
                np.take(v, length - 1 - step if backwards else step, axis)
                for v, axis, backwards in zip(sequences, in_axes, in_backwards, strict=True)
            ]
            results = body.run(_bind(body, [*carried, *parts]), values)
            carried = results[:states]
            for kept, value in zip(slices, results[states:], strict=True):
                kept.append(value)
        outputs = list(body.graph.output)[states:]
        stacked = [
            _stack(kept[::-1] if backwards else kept, axis, o)
            for kept, axis, backwards, o in zip(slices, out_axes, out_backwards, outputs, strict=True)
        ]
        return [*carried, *stacked]

    return run


def _bind(body: Program, inputs: list[Value]) -> dict[str, Value]:
    if len(inputs) != len(body.inputs):
        raise ReferenceRefusal(f"the body has {len(body.inputs)} inputs, but the node gives it {len(inputs)}")
    return dict(zip(body.inputs, inputs, strict=True))


def _stack(slices: list[Value], axis: int, declared: onnx.ValueInfoProto) -> Value:
    """Scan outputs joined along a new axis. Without any, only the declaration can tell the dtype and the dims."""
    if slices:
        try:
            return np.stack(slices, axis)
        except ValueError:
            raise ReferenceRefusal(f"the slices of {declared.name!r} differ in shape") from None
    tensor = declared.type.tensor_type
    if not tensor.elem_type:
        raise ReferenceRefusal(f"{declared.name!r} has no slices and no declared type")
    dims = [d.dim_value for d in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    rank = len(dims) + 1
    dims.insert(axis % rank, 0)
    return np.zeros(dims, dtype)
