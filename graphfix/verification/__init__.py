"""Check a model against another: a fixed model against the one it was made from, or any two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfix.report import Verification

if TYPE_CHECKING:
    import numpy as np
    import onnx

Progress = Callable[[int, int], None]


@dataclass
class VerifyOptions:
    """How to check.

    ``inputs``: input sets to use instead of generated ones. ``input_shapes``: shapes of generated inputs.
    ``rtol``, ``atol``: instead of the defaults of graphfix.verification.tolerance. ``sets``: how many sets to generate.
    ``against``, ``subject``: what to call the reference and the other model. ``custom_ops``: paths of libraries of
    custom operators, for both. ``input_ranges``: the lowest and the highest value of generated inputs.
    ``memory_limit``: how many bytes generated inputs, kept outputs and a run may take together; None for 4
    GiB and four times the weights, or most of what is free if that is less.
    """

    inputs: list[dict[str, np.ndarray[Any, Any]]] | None = None
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    sets: int = 4
    against: str = "the input model"
    subject: str = "the fixed model"
    custom_ops: tuple[str, ...] = ()
    input_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    memory_limit: int | None = None


def check_model(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    *,
    base_dir: Path | None = None,
    options: VerifyOptions | None = None,
    locate: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Run both models, of equal inputs and outputs, on the same input sets and compare every output.

    The reference runs as it is (graphfix.reference), twice a set: outputs that differ between its own two runs are
    named and not compared. The candidate runs in ONNX Runtime, without and with its optimisations; one that still
    holds ATen nodes runs as the reference does. Neither model is changed. External data is read from ``base_dir``.

    The status is "confirmed" when at least one set ran and all sets agree ("in part" when no output of the models could
    be compared, only what goes into nodes that cannot be run), else "failed", with the reason in ``detail``. With
    ``locate`` a failure is traced to the first tensor of both models that differs (``first_difference``). ``progress``
    is called with the runs done and all runs.

    Raises UsageError when ``options.input_shapes`` do not fit the model.
    """
    from graphfix.verification.check import Check
    from graphfix.verification.layers import Setting, first_difference
    from graphfix.verification.weights import mapped

    options = options or VerifyOptions()
    with mapped([(reference, base_dir), (candidate, base_dir)]) as [(one, folder), (other, other_folder)]:
        check = Check(
            one,
            other,
            options,
            base_dir=folder,
            candidate_dir=other_folder,
            progress=progress,
        )
        result = check.run()
        if locate and result.status == "failed" and check.reference is not None and check.telling is not None:
            setting = Setting(
                folder, other_folder, check.pairing, options.custom_ops, rtol=options.rtol, atol=options.atol
            )
            found = first_difference(check.reference, check.candidate, check.telling.feeds, setting)
            result.first_difference = found[0] if found is not None else ""
        return result
