"""Which inputs and outputs of two models belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from graphfix.errors import UsageError
from graphfix.protobuf import used_names
from graphfix.reference.session import Input, graph_inputs

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Pairing:
    """Names of one model's inputs and outputs by those of the other, the reference.

    ``sizes`` are sizes of the reference's dims that the candidate fixes: by dim name, or by ``input[axis]`` for a dim
    without a name. ``notes`` say what was not plain: names that differ, sizes that are fixed.
    """

    inputs: dict[str, str]
    outputs: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def pair(reference: onnx.ModelProto, candidate: onnx.ModelProto) -> Pairing:
    """Pair inputs and outputs: those of the same name, and the others in order.

    An input that the reference never reads may be missing in the candidate. Raises UsageError when the counts, or an
    input's dtype, rank or fixed sizes, do not agree.
    """
    ours, theirs = graph_inputs(reference.graph), graph_inputs(candidate.graph)
    notes: list[str] = []
    if len(ours) > len(theirs):
        read = {name for node in reference.graph.node for name in used_names(node)}
        read |= {output.name for output in reference.graph.output}
        idle = [i.name for i in ours if i.name not in read and i.name not in {t.name for t in theirs}]
        if len(ours) - len(idle) == len(theirs):
            notes += [f"input {name!r} is not read by the reference and not in the candidate" for name in idle]
            ours = [i for i in ours if i.name not in idle]
    inputs = _match("input", [i.name for i in ours], [i.name for i in theirs], notes)
    by_name = {i.name: i for i in theirs}
    sizes: dict[str, int] = {}
    for one in ours:
        _check_input(one, by_name[inputs[one.name]])
        sizes.update(_fixed(one, by_name[inputs[one.name]]))
    if sizes:
        told = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        notes.append(f"compared at the sizes that the candidate fixes only: {told}")
    outputs = _match(
        "output", [o.name for o in reference.graph.output], [o.name for o in candidate.graph.output], notes
    )
    return Pairing(inputs, outputs, sizes, notes)


def _match(what: str, ours: Sequence[str], theirs: Sequence[str], notes: list[str]) -> dict[str, str]:
    if len(ours) != len(theirs):
        raise UsageError(
            f"the models cannot be compared: the reference has {len(ours)} {what}{'s' if len(ours) != 1 else ''} "
            f"({', '.join(ours)}), "
            f"the candidate {len(theirs)} ({', '.join(theirs)})"
        )
    rest, others = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    found = {name: name for name in ours if name in theirs} | dict(zip(rest, others, strict=True))
    if rest:
        told = ", ".join(f"{one} with {other}" for one, other in zip(rest, others, strict=True))
        notes.append(f"{what}s of different names were paired by their order: {told}")
    return found


def _check_input(one: Input, other: Input) -> None:
    name = repr(one.name) if one.name == other.name else f"{one.name!r} ({other.name!r} in the candidate)"
    if one.dtype != other.dtype:
        raise UsageError(
            f"the models cannot be compared: input {name} is {_dtype(one)} in the reference and {_dtype(other)} in the "
            "candidate"
        )
    if one.shape is None or other.shape is None:
        return
    fits = len(one.shape) == len(other.shape) and all(
        a == b for a, b in zip(one.shape, other.shape, strict=True) if isinstance(a, int) and isinstance(b, int)
    )
    if not fits:
        raise UsageError(
            f"the models cannot be compared: input {name} has shape {_shape(one.shape)} in the reference and "
            f"{_shape(other.shape)} in the candidate"
        )


def _fixed(one: Input, other: Input) -> dict[str, int]:
    from graphfix.verification.sizes import symbol

    found = {}
    for axis, (dim, fixed) in enumerate(zip(one.shape or (), other.shape or (), strict=False)):
        tie = symbol(one.name, axis, dim)
        if tie is not None and isinstance(fixed, int):
            found[tie] = fixed
    return found


def _dtype(entry: Input) -> str:
    return "no tensor" if entry.dtype is None else entry.dtype.name


def _shape(dims: Dims) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"
