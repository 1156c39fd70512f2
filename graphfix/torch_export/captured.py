"""A lossless model with what links it to the module that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from graphfix.torch_export.limits import Limits


@dataclass
class Captured:
    """A lossless model. ``inputs`` are its inputs by the positions of the flat arguments, ``outputs`` its outputs by
    those of the flat results.

    ``program`` is the exported program that was translated, its nodes named as the tensors of the model; None when
    TorchScript made the model. ``base_dir`` is the folder of the model's external data, None when it has none.
    """

    model: onnx.ModelProto
    inputs: dict[int, str]
    outputs: dict[int, str]
    program: Any
    route: str
    limits: Limits = field(default_factory=Limits)
    notes: list[str] = field(default_factory=list)
    base_dir: Path | None = None

    def note_results(self, numbers: Sequence[int], written: Sequence[str]) -> None:
        """Tell of results that are constant numbers, by their positions, and of buffers that the module writes."""
        if numbers:
            told = ", ".join(map(str, numbers))
            self.notes.append(f"results that do not depend on the inputs are no outputs: number {told}")
        if written:
            self.notes.append(f"the module writes into its buffer {written[0]}: the model starts anew in every run")
