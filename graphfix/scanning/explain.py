"""What `graphfix explain` says of the codes of a scan."""

from __future__ import annotations

from graphfix.scanning.codes import CODES
from graphfix.scanning.text import NAMES
from graphfix.scanning.verdicts import cases, measured_with

MEANINGS = """\
right: PyTorch's answers at all sizes, in operators that engines run. fragile: PyTorch's answers in ONNX Runtime,
through operators that other engines refuse or run wrongly. unusable: a file that ONNX Runtime does not load or run.
wrong: other answers than PyTorch's, without a word. export error: no file. On a GPU
give torch.arange a device=x.device."""


def explain_form(text: str) -> str | None:
    """The documentation of a form of write, by code or name; None when there is no such code."""
    wanted = text.strip().casefold()
    code = next((each for each in CODES.values() if wanted in (each.code.casefold(), each.name)), None)
    if code is None:
        return None
    versions = measured_with()
    out = [f"{code.code} {code.name}: {code.title}", "", code.text, ""]
    out += [f"Measured with torch {versions['torch']} and onnxruntime {versions['onnxruntime']}:", ""]
    for case in cases(code.code, {}):
        out += [f"    {line}" for line in case.source.splitlines()]
        out[-1] += f"    # {case.condition}" if case.condition else ""
        for exporter, name in NAMES.items():
            verdict = case.verdicts[exporter]
            out.append(f"        {name + ':':13}{verdict.verdict}" + (f" ({verdict.why})" if verdict.why else ""))
        if case.instead:
            out.append("        instead, right with both:")
            out += [f"            {line}" for line in case.instead.splitlines()]
        out.append("")
    return "\n".join([*out, MEANINGS])
