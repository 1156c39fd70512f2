"""Masks that an exporter laid along the wrong axes."""

from __future__ import annotations

from dataclasses import dataclass

from graphfix.builder import BOOL, WHERE_TYPES, Builder
from graphfix.graph import Node, Value
from graphfix.pass_base import Fault, Repair, Rewrite, Site
from graphfix.symbolic import ONE, Expr, product


@dataclass(frozen=True)
class _Choice:
    """``Where(mask, yes, no)`` with a mask over the leading axes of a result of rank ``rank``."""

    mask: Value
    yes: Value
    no: Value
    rank: int


class RepairMaskAlignment(Repair):
    """Lay the mask of ``x[mask] = value`` along the leading axes of x.

    Why: torch.onnx (TorchScript) writes ``x[mask] = 0`` as ``Where(mask, 0, x)``. PyTorch counts the axes of a mask
    from the left, Where aligns them from the right: for a mask [B, T] and x [B, T, C] the model fails when it runs.
    Where the sizes allow both readings (a square x) it runs and writes elsewhere; masked_fill, which does align from
    the right, is exported the same way, so this is then a suspicion only, repaired with ``--repair mask-alignment``.

    Before: ``Where(mask, 0, x)``
    After: ``Where(Unsqueeze(mask), 0, x)``
    """

    code = "GF302"
    name = "repair-mask-alignment"

    def match(self, node: Node, site: Site) -> Fault | None:
        if not node.is_op("Where") or len(node.inputs) != 3:
            return None
        mask, yes, no = node.inputs
        shapes = [site.facts.shape(t) for t in (mask, yes, no)]
        if mask.dtype != BOOL or yes.dtype not in WHERE_TYPES:
            return None
        mask_shape, yes_shape, no_shape = shapes
        if mask_shape is None or yes_shape is None or no_shape is None:
            return None
        data_shape = _larger(yes_shape, no_shape)
        if data_shape is None or not 0 < len(mask_shape) < len(data_shape):
            return None
        if data_shape[: len(mask_shape)] != mask_shape or all(d == ONE for d in mask_shape):
            return None
        trailing = data_shape[len(data_shape) - len(mask_shape) :]
        runs = _may_broadcast(mask_shape, trailing)
        if runs and not any(_is_single(s) for s in (yes_shape, no_shape)):
            return None
        where = f"mask {_text(mask_shape)} of data {_text(data_shape)}"
        reason = f"Where lays the {where} along the last axes, x[mask] = value means the first"
        if runs:
            reason += " (masked_fill would mean the last, too)"
        return Fault(reason, _Choice(mask, yes, no, len(data_shape)), runs)

    def rewrite(self, match: _Choice, builder: Builder, site: Site) -> Rewrite:
        mask = builder.insert_axes(match.mask, range(builder.rank(match.mask), match.rank))
        return Rewrite(builder.where(mask, match.yes, match.no), "mask_where")


def _may_broadcast(mask: tuple[Expr, ...], trailing: tuple[Expr, ...]) -> bool:
    """Whether a mask may broadcast with the last axes: two sizes of which one is a number do not, unless they are equal
    or 1; of two free sizes one may be 1 (a batch of one), but no one counts on two such coincidences at once."""
    apart = [(m, d) for m, d in zip(mask, trailing, strict=True) if m != d and ONE not in (m, d)]
    return len(apart) < 2 and all(m.constant is None and d.constant is None for m, d in apart)


def _larger(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """The shape of the two that the other one broadcasts to, None when that is neither for certain."""
    for small, large in ((a, b), (b, a)):
        tail = large[len(large) - len(small) :]
        if len(small) <= len(large) and all(s in (ONE, d) for s, d in zip(small, tail, strict=True)):
            return large
    return None


def _is_single(shape: tuple[Expr, ...]) -> bool:
    return product(shape) == ONE


def _text(shape: tuple[Expr, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
