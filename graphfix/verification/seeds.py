"""Random operators, made to repeat: the same seed in both models."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from graphfix.protobuf import all_nodes

if TYPE_CHECKING:
    import onnx

_RANDOM_OPS = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


def is_random(node: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers. A Dropout does when it is told to train."""
    if node.domain not in ("", "ai.onnx"):
        return False
    return node.op_type in _RANDOM_OPS or (node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2]))


def has_random(model: onnx.ModelProto) -> bool:
    """Whether a model draws random numbers anywhere."""
    return any(is_random(node) for node in all_nodes(model))


def random_operators(model: onnx.ModelProto) -> list[str]:
    """The kinds of operators that draw random numbers."""
    return sorted({node.op_type for node in all_nodes(model) if is_random(node)})


def seeded(reference: onnx.ModelProto, candidate: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The models with a seed in every random operator that lacks one; the same objects when there is none.

    Operators whose outputs have the same name get the same seed, or, when the names differ, those of the same kind in
    the same place of the order. Names in a local function serve for all its calls.
    """
    ours, theirs = _unseeded(reference), _unseeded(candidate)
    by_name = sorted(n.output[0] for n in ours) == sorted(n.output[0] for n in theirs)
    by_name = by_name or [n.op_type for n in ours] != [n.op_type for n in theirs]
    return _with_seeds(reference, by_name), _with_seeds(candidate, by_name)


def _unseeded(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in all_nodes(model) if is_random(n) and all(a.name != "seed" for a in n.attribute)]


def _with_seeds(model: onnx.ModelProto, by_name: bool) -> onnx.ModelProto:
    import onnx

    if not _unseeded(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, node in enumerate(_unseeded(copy)):
        seed = zlib.crc32((node.output[0] if by_name else f"{node.op_type} {number}").encode()) % 65536
        # Dropout alone has an integer for a seed.
        node.attribute.append(onnx.helper.make_attribute("seed", seed if node.op_type == "Dropout" else float(seed)))
    return copy
