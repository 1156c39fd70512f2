"""The check of an exported model against PyTorch: the module runs on every input set, and so does the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphfix.graph import walk
from graphfix.reference.refusal import ReferenceRefusal
from graphfix.report import Verification
from graphfix.torch_export.session import TorchSession
from graphfix.torch_export.subject import SEED
from graphfix.verification import compare
from graphfix.verification.check import Check
from graphfix.verification.empty import takes_empty
from graphfix.verification.inputs import InputSearch, InputSet, describe
from graphfix.verification.weights import mapped

if TYPE_CHECKING:
    from graphfix.verification import Progress, VerifyOptions

AGAINST = "PyTorch"
_SORTING = ("TopK", "Unique")


class Confirmation:
    """Compares candidates with a module on input sets that are found once.

    The first set is the example arguments; the others have other sizes of the dynamic dims and values that fit what the
    lossless ``model`` does with them. Its weights are in ``base_dir``, if not in itself. ``name`` is the module's;
    ``telling`` is the set that showed a problem.
    """

    against = AGAINST

    def __init__(self, session: TorchSession, model: onnx.ModelProto, name: str, base_dir: Path | None = None) -> None:
        self.name = name
        self.telling: InputSet | None = None
        self._session = session
        self._model = model
        self._base_dir = base_dir
        self._sets: list[InputSet] | None = None
        self._special: list[InputSet] = []  # with NaN and infinities
        self._small: list[InputSet] = []  # of sizes that torch.export does not vouch for
        self._skipped: list[str] = []
        self._random: set[str] = set()

    def __call__(
        self, candidate: onnx.ModelProto, options: VerifyOptions, progress: Progress | None = None
    ) -> Verification:
        """Run the candidate in ONNX Runtime on every set. See graphfix.verification.check_model."""
        if self._sets is None:
            self._sets = self._find(candidate, options)
        options = dataclasses.replace(options, against=AGAINST, subject="the exported model")
        if not self._sets:
            why = f": {self._skipped[0]}" if self._skipped else ""
            return Verification(
                "failed", AGAINST, skipped=self._skipped, detail=f"the module runs on no input set{why}"
            )
        if not self._sets[0].outputs:
            return Verification("failed", AGAINST, detail="every output of the module is random: nothing to compare")
        with mapped([(candidate, self._base_dir)]) as [(model, folder)]:
            return self._compared(model, folder, options, progress)

    def _compared(
        self, candidate: onnx.ModelProto, folder: Path | None, options: VerifyOptions, progress: Progress | None
    ) -> Verification:
        def hold(sets: list[InputSet], progress: Progress | None = None) -> Check:
            return Check(None, candidate, options, candidate_dir=folder, recorded=sets, progress=progress)

        assert self._sets is not None
        check = hold(self._sets, progress)
        result = check.run()
        self.telling = check.telling
        result.skipped = self._skipped
        result.not_compared = sorted(self._random)
        notes = [result.detail] if result.detail else []
        if self._random:
            notes.append(f"not compared, as the module draws random numbers: {', '.join(sorted(self._random))}")
        if result.status == "confirmed" and self._special:
            special = hold(self._special).run()
            if special.status != "confirmed":
                notes.append(f"with NaN or infinities among the inputs it is not equal to PyTorch: {special.detail}")
        if result.status == "confirmed" and self._small:
            small = hold(self._small).run()
            if small.status == "confirmed":
                result.sets += small.sets
            else:
                notes.append(f"the model is for dynamic dims from 2 on, below it is not PyTorch's: {small.detail}")
        result.detail = "; ".join(notes)
        return result

    def _find(self, candidate: onnx.ModelProto, options: VerifyOptions) -> list[InputSet]:
        """Input sets with the module's outputs."""
        session, found = self._session, []
        if options.inputs is not None:
            for feeds in options.inputs:
                try:
                    found.append(InputSet(dict(feeds), session.run(feeds)))
                except ReferenceRefusal as refusal:
                    self._skipped.append(f"{describe(feeds)}: {refusal}")
        else:
            found += self._example()
            search = InputSearch(
                session,  # type: ignore[arg-type]  # it runs as a ReferenceSession does
                self._model,
                count=options.sets,
                seed=options.seed,
                input_shapes=options.input_shapes,
                ranges=options.input_ranges,
                empty=takes_empty(candidate),
                # PyTorch leaves open which of equal values comes first.
                ties=not any(node.op_type in _SORTING for _, node in walk(self._model)),
            )
            for one in search:
                small = session.is_small(one.feeds)
                (self._special if one.special else self._small if small else found).append(one)
            self._skipped += [f"{shapes}: {reason}" for shapes, reason in search.refused.items()][:8]
        for one in found:
            again = session.run(one.feeds, SEED + 1)
            differences = compare.outputs(one.outputs, again)
            self._random |= {name for name, difference in differences.items() if difference.problem}
        for one in (*found, *self._special, *self._small):
            one.outputs = {name: value for name, value in one.outputs.items() if name not in self._random}
        return found

    def _example(self) -> list[InputSet]:
        feeds: dict[str, np.ndarray[Any, Any]] = self._session.example()
        try:
            return [InputSet(feeds, self._session.run(feeds))]
        except ReferenceRefusal as refusal:
            self._skipped.append(f"the example arguments, {describe(feeds)}: {refusal}")
            return []
