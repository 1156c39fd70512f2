"""What a code means: passes speak through their docstrings, verification codes are told here."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable
from typing import Any

from graphfix.api import find_pass, load_passes
from graphfix.errors import UsageError
from graphfix.scanning.codes import CODES
from graphfix.scanning.explain import explain_form
from graphfix.user_inputs import suggest

EXPORT_PREFIX = "graphfix."  # of the entries that an export writes into metadata_props

VERIFICATION: dict[str, tuple[str, str]] = {
    "GF901": (
        "confirmed-equal",
        """\
The fixed model gave exactly the input model's answers.

Both ran on the same input sets: several sizes of every dynamic dim (1, and 0 where the model takes it), integer inputs
in the range of what they index, and in one set NaN and infinities among the floats.
Standard operators ran in ONNX Runtime on the CPU, ATen nodes in kernels written from PyTorch's documented semantics.
Outputs agreed in shape, dtype and every value; NaN counts as equal to NaN, and -0.0 to 0.0. With ONNX Runtime's
optimisations, which sum in another order, they agreed within the tolerance at least.

"Equal to the input model" is not "equal to PyTorch": what the exporter got wrong before, it still is. Only a model that
`graphfix export` made is compared with PyTorch itself, the module on the same input sets, and then the summary says so.
Where a fault of
the exporter was repaired (GF301 to GF305), the comparison is with "the input model as repaired": the input with the
repairs and nothing else.""",
    ),
    "GF902": (
        "confirmed-within-tolerance",
        """\
The fixed model gave the input model's answers within the tolerance of each output's dtype and depth.

Sums taken in another order differ in the last bits, so float outputs may differ a little where a write accumulates. An
element may differ by a share of itself plus the same share of the largest element (of 1, where that is smaller): 1e-12
in float64, 1e-5 in float32, 5e-3 in float16, 1.6e-2 in bfloat16. The share grows with the square root of the number of
sums and products on the way to the output, up to ten times. Integer and bool outputs are always compared exactly. The
summary names the output with the largest difference; --rtol and --atol set other tolerances.""",
    ),
    "GF903": (
        "not-confirmed",
        """\
The fixed model could not be shown to agree with the input model. Nothing is written, the exit code is 1.

Either an output differs (the message names the output, the input set and the largest difference), or no input set ran
on the input model. What may help:

  the input model refuses the inputs that were tried   --inputs FILE.npz, --input-shape NAME:1,3,224,224,
                                                       --input-range NAME:0:29999
  it has operators of its own                          --custom-ops LIB.so
  an input asks for too much memory                    --memory-limit, --input-shape
  the tolerance is too narrow for this model           --rtol, --atol
  one pass is at fault                                 --skip PASS, one after the other; then please report it
  you compare the result yourself                      --verify none""",
    ),
    "GF904": (
        "not-checked",
        """\
The model was not run: --verify none, or nothing was replaced.

Each rewrite is made to keep every value (or to differ in rounding only, where it sums), but nothing has shown that it
does so for this model. Compare the result with the original before you rely on it.""",
    ),
    "GF905": (
        "rewrites-confirmed",
        """\
Each rewrite alone agreed with what it replaced (--verify rewrites); the model as a whole was not run.

What is replaced and what replaces it are cut out and run side by side, on inputs made to break them: indices that
repeat, count from the end, lie at the ends, or are in order; masks that hold nowhere, everywhere or once; floats with
NaN, infinities, -0.0 and subnormal numbers; sizes of 0 and 1 beside others. Of several writes to one place the last
has to win. Every value has to be equal, unless the rewrite sums or computes floats anew: those may differ in rounding.
What onnxsim does afterwards is not covered: --no-simplify leaves it out.""",
    ),
    "GF906": (
        "compared-in-part",
        """\
No output of the model was compared: all of them come out of nodes of a custom domain, which nothing here can run.

Both models were cut at these nodes. What goes into them was compared and agreed, and so did what lies between them
where the types are known. --custom-ops takes the library that has the operators, and compares the whole model.""",
    ),
}


def explain(text: str) -> str:
    """The documentation of a pass (by code or name), of a verification code, or of a form of write (GS101); or what
    made a model file.

    Raises UsageError with suggestions when there is no such code, InputError for a file that is no model.
    """
    if text.endswith(".onnx") or os.path.isfile(text):
        return _made_by(text)
    passes = load_passes()
    known = find_pass(text, passes)
    if known is not None:
        return f"{known.code} {known.name} ({safety_text(known)})\n\n{inspect.getdoc(known) or 'It has no docs.'}"
    for code, (name, doc) in VERIFICATION.items():
        if text.strip().casefold() in (code.casefold(), name):
            return f"{code} {name}\n\n{doc}"
    form = explain_form(text)
    if form is not None:
        return form
    words = [word for p in passes for word in (p.code, p.name)]
    words += [word for code, (name, _) in VERIFICATION.items() for word in (code, name)]
    words += [word for code in CODES.values() for word in (code.code, code.name)]
    raise UsageError(f"there is no pass or code {text!r}; {suggest(text, words)} (`graphfix passes` lists the passes)")


def _made_by(path: str) -> str:
    """What `graphfix.export` wrote into a model's metadata, one line each."""
    from graphfix import model_io

    model = model_io.load(path).model
    entries = {p.key.removeprefix(EXPORT_PREFIX): p.value for p in model.metadata_props if _is_export_entry(p.key)}
    if not entries:
        return f"{path}: not made by graphfix export, there is no entry {EXPORT_PREFIX}* in its metadata_props"
    width = max(map(len, entries))
    lines = []
    for key in sorted(entries):
        try:
            rows = json.loads(entries[key]) if key in ("rewrites", "left") else [entries[key]]
        except ValueError:
            rows = [entries[key]]
        texts = [" ".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows]
        lines += [f"{key if number == 0 else '':{width}}  {text}" for number, text in enumerate(texts)]
    return "\n".join(line.rstrip() for line in lines)


def _is_export_entry(key: str) -> bool:
    return key.startswith(EXPORT_PREFIX)


def pass_table(passes: Iterable[type[Any]]) -> str:
    """One line a pass: code, name, safety and the first line of its docs."""
    rows = [(p.code, p.name, safety_text(p), (inspect.getdoc(p) or "").partition("\n")[0]) for p in passes]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows)


def safety_text(known: type[Any]) -> str:
    """How safe a pass is: ``exact``, ``conditional``, ``changes-result``."""
    safety = known.safety
    return str(getattr(safety, "name", safety)).casefold().replace("_", "-")
