"""Which tensors are the same mask, and which are the positions where a mask holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from graphfix.graph import Value
from graphfix.symbolic import Expr

if TYPE_CHECKING:
    from graphfix.facts import Facts

MASKS = {TensorProto.BOOL, TensorProto.UINT8}


def mask_root(mask: Value) -> Value:
    """A mask without the Cast, Identity and flattening Reshape nodes that exporters put before its use."""
    while mask.inputs:
        node = mask.inputs[0]
        flattens = node.is_op("Reshape") and mask.shape is not None and len(mask.shape) == 1
        if not (node.is_op("Identity") or flattens or (node.is_op("Cast") and node.inputs[0].dtype in MASKS)):
            break
        mask = node.inputs[0]
    return mask


def same_mask(a: Value, b: Value, facts: Facts) -> bool:
    """Whether two tensors are the same mask, but for casts to bool.

    A flattened mask is the same only as another that is flattened: it decides about other positions than the mask that
    it was made from.
    """
    return mask_root(a) is mask_root(b) and facts.rank(a) == facts.rank(b)


def count_of(mask: Value) -> Expr:
    """How often a mask holds: a size of its own."""
    return Expr.dim(f"true({mask_root(mask).name})")


def is_count(size: Expr) -> bool:
    """Whether a size is how often a mask holds: nothing else can be compared with it."""
    return any(u.startswith("dim:true(") for m, _ in size.terms for u in m)
