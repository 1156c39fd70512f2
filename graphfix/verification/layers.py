"""Where two models begin to differ: the intermediate tensors that both have, compared in the order they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graphfix.reference.refusal import ReferenceRefusal
from graphfix.reference.session import ReferenceSession
from graphfix.verification import compare, seeds
from graphfix.verification import shell as shells
from graphfix.verification.compare import Difference
from graphfix.verification.pairing import Pairing
from graphfix.verification.tolerance import depths

_BATCH_BYTES = 256 << 20  # of tensors that are asked for in one run
_UNKNOWN_BYTES = 1 << 20  # counted for a tensor whose size is not known
_MOST_SPLITS = 64


@dataclass(frozen=True)
class Layer:
    """One tensor that both models have. ``operator`` is what makes it in the reference."""

    name: str
    operator: str
    dtype: str
    difference: Difference


@dataclass(frozen=True)
class Setting:
    """How both models run: the folders of their external data, how their names are paired, and tolerances."""

    base_dir: Path | None = None
    candidate_dir: Path | None = None
    pairing: Pairing | None = None
    custom_ops: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None


def first_difference(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    feeds: Mapping[str, Any],
    setting: Setting | None = None,
) -> tuple[str, Difference] | None:
    """The first tensor of the main graph that both models have by name and that is beyond the tolerance, or None."""
    for layer in compare_layers(reference, candidate, feeds, setting or Setting()):
        if layer.difference.problem:
            return layer.name, layer.difference
    return None


def compare_layers(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    feeds: Mapping[str, Any],
    setting: Setting,
    skipped: list[str] | None = None,
) -> Iterator[Layer]:
    """Compare the tensors of the main graphs that both models have by name, in the reference's order.

    Both models run on ``feeds`` with optimisations off, as copies that have these tensors for outputs: in batches, so
    that not all of them are in memory at once. ``skipped`` receives those that could not be had, with the reason.
    """
    reference, candidate = seeds.seeded(reference, candidate)
    operators = _common(reference, candidate)
    skipped = [] if skipped is None else skipped
    theirs = dict(feeds)
    if setting.pairing is not None:
        theirs = {
            setting.pairing.inputs[name]: value for name, value in feeds.items() if name in setting.pairing.inputs
        }
    one = _Tap(reference, feeds, setting.base_dir, setting.custom_ops)
    other = _Tap(candidate, theirs, setting.candidate_dir, setting.custom_ops)
    batches = list(_batches(list(operators), one.sizes()))[::-1]
    splits = 0
    while batches:
        batch = batches.pop()
        try:
            expected, actual = one.run(batch), other.run(batch)
        except ReferenceRefusal as refusal:
            half = len(batch) // 2
            if half and splits < _MOST_SPLITS:
                splits += 1
                batches += [batch[half:], batch[:half]]
            else:
                skipped += [f"{name}: {refusal}" for name in batch]
            continue
        for name in batch:
            depth = max(one.depths[name], other.depths[name])
            found = compare.compare(expected[name], actual[name], rtol=setting.rtol, atol=setting.atol, depth=depth)
            yield Layer(name, operators[name], str(getattr(expected[name], "dtype", "")), found)


class _Tap:
    """A copy of a model whose outputs are what is asked for."""

    def __init__(
        self, model: onnx.ModelProto, feeds: Mapping[str, Any], base_dir: Path | None, custom_ops: Sequence[str]
    ) -> None:
        self.depths: dict[str, int] = {}
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._feeds = feeds
        self._base_dir = base_dir
        self._custom_ops = custom_ops
        self._optimise = False

    def sizes(self) -> dict[str, int]:
        """The bytes of every tensor whose shape is inferred."""
        empty = shells.shell(self._model)
        shells.resize(empty, {n: np.shape(v) for n, v in self._feeds.items() if not isinstance(v, list)})
        return {
            name: int(np.prod([d or 1 for d in shape], dtype=np.float64)) * 4
            for name, shape in shells.shapes(empty).items()
        }

    def run(self, names: Sequence[str]) -> dict[str, Any]:
        """The values of these tensors."""
        graph = self._model.graph
        declared = {o.name: o for o in graph.output}
        wanted = [onnx.ValueInfoProto(name=name) for name in names]
        del graph.output[:]
        graph.output.extend(declared.get(value.name, value) for value in wanted)
        self.depths.update(depths(self._model))
        try:
            return self._run(self._optimise)
        except ReferenceRefusal:
            if self._optimise:
                raise
            # Some exports run only once their constants have been folded.
            found = self._run(True)
            self._optimise = True
            return found

    def _run(self, optimise: bool) -> dict[str, Any]:
        session = ReferenceSession(self._model, base_dir=self._base_dir, optimise=optimise, custom_ops=self._custom_ops)
        return session.run(self._feeds)


def _common(reference: onnx.ModelProto, candidate: onnx.ModelProto) -> dict[str, str]:
    """The tensors that nodes of both main graphs make, in the reference's order, with the reference's operator."""
    theirs = {name for node in candidate.graph.node for name in node.output if name}
    return {
        name: node.op_type
        for node in reference.graph.node
        if node.op_type != "Constant"
        for name in node.output
        if name in theirs
    }


def _batches(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for name in names:
        size = sizes.get(name, _UNKNOWN_BYTES)
        if batch and total + size > _BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size
    if batch:
        yield batch
