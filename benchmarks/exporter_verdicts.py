"""What PyTorch's two ONNX exporters make of each form of index write, measured: the data behind `graphfix scan`.

    pip install torch onnxscript
    python benchmarks/exporter_verdicts.py            # measures, and writes graphfix/scanning/verdicts.json

Every case of `index_write_forms.py` is a few lines of PyTorch. Each is put into a module, exported by the TorchScript
exporter (opset 17) and by the new one (``dynamo=True``, its default opset) with dynamic dims, run in ONNX Runtime at
the sizes of the export and at others, and compared with what the module gives in PyTorch. So is the form that
`graphfix scan` offers instead.

    right          PyTorch's answers at all sizes, in standard operators that engines run
    fragile        PyTorch's answers in ONNX Runtime, through operators that engines refuse or run wrongly
    unusable       a file that ONNX Runtime does not load or run
    wrong          other answers than PyTorch's, without a word
    export error   no file
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import linecache
import logging
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from index_write_forms import CASES, Case

TABLE = Path(__file__).parent.parent / "graphfix" / "scanning" / "verdicts.json"
FRAGILE = {"ScatterND", "ScatterElements", "Scatter", "NonZero", "Compress", "ATen", "Loop", "Unique"}
EXPORT_SIZES = {"B": 3, "T": 5, "K": 4}
SIZES = [EXPORT_SIZES, {"B": 4, "T": 7, "K": 3}, {"B": 5, "T": 6, "K": 5}]
DTYPES = {"f": torch.float32, "b": torch.bool, "i": torch.int64, "u": torch.int64, "d": torch.int64}
Verdict = dict[str, Any]


def parse(inputs: str) -> dict[str, tuple[str, list[str], str]]:
    """Inputs as {name: (dtype letter, dims, bound)}; "x: f[B,T,4], i: u[K]<B" has two.

    f float, b bool, i index, u index without duplicates, d index with duplicates; ``<B`` is what an index stays below.
    """
    found = re.findall(r"(\w+): ([fbiud])\[([^\]]*)\](?:<(\w+))?", inputs)
    return {name: (letter, [d for d in dims.split(",") if d], bound) for name, letter, dims, bound in found}


def make(inputs: str, sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:
    """Random inputs of these sizes."""
    generator = torch.Generator().manual_seed(seed)

    def size(dim: str) -> int:
        return sizes[dim] if dim in sizes else int(dim)

    made = {}
    for name, (letter, dims, bound) in parse(inputs).items():
        shape = [size(d) for d in dims]
        if letter == "f":
            tensor = torch.randn(shape, generator=generator)
        elif letter == "b":
            tensor = torch.rand(shape, generator=generator) < 0.5
            if tensor.ndim:
                tensor.view(-1)[seed % tensor.numel()] = True
        elif letter == "u":
            tensor = torch.stack([torch.randperm(size(bound), generator=generator) for _ in range(_rows(shape))])
            tensor = tensor[:, : shape[-1]].reshape(shape)
        else:
            tensor = torch.randint(0, size(bound), shape, generator=generator)
            if letter == "d":
                tensor[..., -1] = tensor[..., 0]
        made[name] = tensor
    return made


def _rows(shape: list[int]) -> int:
    return int(np.prod(shape[:-1]))


def module(source: str, names: Iterable[str]) -> torch.nn.Module:
    """A module whose forward runs the lines on copies of its inputs and returns ``x``."""
    lines = [f"def forward(self, {', '.join(names)}):", "    x = x.clone()"]
    lines += [f"    {line}" for line in source.splitlines()] + ["    return x", ""]
    text = "\n".join(lines)
    file = f"<form {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, file, "exec"), scope)
    return type("Form", (torch.nn.Module,), {"forward": scope["forward"]})().eval()


def export(form: torch.nn.Module, case: Case, path: str, *, dynamo: bool) -> None:
    """Export as a user would, with every lettered dim dynamic."""
    sample = make(case.inputs, EXPORT_SIZES, 0)
    axes = {
        name: {k: d for k, d in enumerate(dims) if d in EXPORT_SIZES}
        for name, (_, dims, _) in parse(case.inputs).items()
    }
    options: dict[str, Any] = {"input_names": list(sample), "output_names": ["result"]}
    if dynamo:
        shapes = {name: dict.fromkeys(of, torch.export.Dim.DYNAMIC) for name, of in axes.items()}
        options |= {"dynamo": True, "dynamic_shapes": shapes, "verbose": False}
    else:
        options |= {"dynamo": False, "opset_version": 17, "dynamic_axes": axes}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        torch.onnx.export(form, tuple(sample.values()), path, **options)


def measure(source: str, case: Case, *, dynamo: bool) -> Verdict:
    """The verdict on one form by one exporter."""
    form = module(source, parse(case.inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/form.onnx"
        try:
            export(form, case, path, dynamo=dynamo)
        except Exception as error:
            return {"verdict": "export error", "why": reason(error)}
        model = onnx.load(path)
        try:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            return {"verdict": "unusable", "why": f"does not load: {reason(error)}"}
        return judge(form, case, model, session)


def judge(form: torch.nn.Module, case: Case, model: onnx.ModelProto, session: onnxruntime.InferenceSession) -> Verdict:
    """Run the file at all sizes and compare it with the module."""
    taken = {given.name for given in session.get_inputs()}
    faults: list[tuple[bool, str, str]] = []
    for sizes in SIZES:
        for seed in range(3):
            values = make(case.inputs, sizes, seed)
            with torch.no_grad():
                expected = form(**values).numpy()
            try:
                (got,) = session.run(None, {k: v.numpy() for k, v in values.items() if k in taken})
            except Exception as error:
                faults.append((sizes is EXPORT_SIZES, "unusable", f"does not run: {reason(error)}"))
                continue
            same = got.shape == expected.shape and got.dtype == expected.dtype
            if not same or not np.allclose(got, expected, 1e-5, 1e-6, equal_nan=True):
                faults.append((sizes is EXPORT_SIZES, "wrong", "other answers than PyTorch"))
    if faults:
        verdict = "wrong" if any(kind == "wrong" for _, kind, _ in faults) else "unusable"
        why = next(text for _, kind, text in faults if kind == verdict)
        if not any(at_export for at_export, _, _ in faults):
            why += ", at other sizes than it was exported with"
        return {"verdict": verdict, "why": why}
    operators = sorted({node.op_type for node in nodes(model)} & FRAGILE)
    return {"verdict": "fragile" if operators else "right", "why": ", ".join(operators)}


def nodes(model: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    """All nodes, in bodies and functions too."""
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        pending += [inner for a in node.attribute if a.type == onnx.AttributeProto.GRAPH for inner in a.g.node]


def reason(error: BaseException) -> str:
    """The sentence of an error that says what is wrong, short."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "INTERNAL ASSERT FAILED" in text:
        return "internal assertion of PyTorch failed"
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    operator = re.search(r"while running (\w+) node", text)
    text = re.sub(r"Non-zero status code returned while running .*?Status Message: ?", "", text)
    text = re.sub(r"^Load model from \S+ failed: ?", "", text)
    text = re.sub(r"/\S+\.(cc|h):\d+ .*?\) (?=\S)", "", text)  # where in ONNX Runtime's source
    text = re.split(r"(?<=\w)\. ?(?=[A-Z])|:$", text)[0].strip()
    text = f"{operator[1]}: {text}" if operator else text
    return text if len(text) <= 120 else text[:117].rstrip() + "..."


def equal_in_pytorch(case: Case) -> bool:
    """Whether the form offered instead gives the same answers."""
    names = parse(case.inputs)
    one, other = module(case.source, names), module(case.instead, names)
    for sizes in SIZES:
        for seed in range(3):
            values = make(case.inputs, sizes, seed)
            a, b = one(**values), other(**values)
            if a.shape != b.shape or a.dtype != b.dtype or not torch.allclose(a, b, equal_nan=True):
                return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=TABLE, help="the table (default: that of graphfix scan)")
    parser.add_argument("--only", metavar="TEXT", help="only cases that hold TEXT; prints, writes nothing")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    faults = 0
    rows = []
    for case in CASES:
        if arguments.only and arguments.only not in f"{case.code} {case.source}":
            continue
        row: dict[str, Any] = {
            "code": case.code,
            "condition": case.condition,
            "when": case.when,
            "inputs": case.inputs,
            "source": case.source,
            "torchscript": measure(case.source, case, dynamo=False),
            "dynamo": measure(case.source, case, dynamo=True),
            "instead": None,
        }
        print(f"{case.code} {case.source!r} ({case.condition})", flush=True)
        print("    ", row["torchscript"], "\n    ", row["dynamo"])
        if case.instead:
            found = [measure(case.instead, case, dynamo=dynamo) for dynamo in (False, True)]
            same = equal_in_pytorch(case)
            row["instead"] = {"source": case.instead, "torchscript": found[0], "dynamo": found[1]}
            if not same or any(each["verdict"] != "right" for each in found):
                faults += 1
                print(f"     NOT GOOD INSTEAD {case.instead!r}: equal in PyTorch: {same}; {found}")
        rows.append(row)
    made_with = {name: version(name) for name in ("torch", "onnxscript", "onnxruntime", "onnx")}
    made_with["python"] = platform.python_version()
    if not arguments.only:
        exporters = {"torchscript": "dynamo=False, opset 17", "dynamo": "dynamo=True, its default opset"}
        content = {"measured_with": made_with, "exporters": exporters, "cases": rows}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
