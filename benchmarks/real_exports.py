"""Export real architectures by graphfix and show what comes of it: `python benchmarks/real_exports.py [--only NAME]`.

The models are built by `export_models.py` from torchvision, timm and transformers with random weights; nothing is
downloaded. Each is exported by `graphfix.export`, which confirms it against PyTorch; then OpenVINO runs the result on
two or more input sets, and ONNX Runtime is timed on it and on what `torch.onnx.export` makes of the same module. See
README.md in this folder.

Every step runs in a child process with a time limit: one that crashes or hangs costs its own figures only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COUNTED = ("ATen", "ScatterND", "ScatterElements", "NonZero")
LATENCY_SECONDS = 3.0
FEWEST_PAIRS, MOST_PAIRS = 5, 300
RTOL = 2e-3  # of the largest value: what counts as PyTorch's answer in another engine


# ---- steps, each in a process of its own ---------------------------------------------------------------------------


def step_export(name: str, folder: str) -> dict[str, Any]:
    """Export by graphfix; the input sets and PyTorch's answers are written beside the model."""
    import numpy as np
    import torch
    from export_models import make

    import graphfix

    case = make(name)
    answers = []
    with torch.no_grad():
        for arguments in case.sets:
            torch.manual_seed(0)
            found = case.module(*(tensor.clone() for tensor in arguments))
            answers.append(found if isinstance(found, tuple) else (found,))
    start = time.perf_counter()
    try:
        result = graphfix.export(
            case.module,
            case.sets[0],
            str(Path(folder) / "fixed.onnx"),
            dynamic_shapes=case.dynamic,
            input_ranges=case.ranges,
        )
    except graphfix.GraphfixError as error:
        return {"refused": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    arrays = {}
    for number, (arguments, found) in enumerate(zip(case.sets, answers, strict=True)):
        for given, tensor in zip(result.model.graph.input, arguments, strict=True):
            arrays[f"{number}/in/{given.name}"] = tensor.numpy()
        for made, tensor in zip(result.model.graph.output, found, strict=True):
            arrays[f"{number}/out/{made.name}"] = tensor.numpy()
    np.savez(Path(folder) / "sets.npz", **arrays)
    report = result.report
    return {
        "seconds": seconds,
        "stages": report.stages,
        "route": next((note for note in report.notes if note.startswith("exported by")), ""),
        "notes": [note for note in report.notes if not note.startswith("exported by")] + report.warnings,
        "status": report.verification.status,
        "detail": report.verification.detail,
        "sets": len(report.verification.sets),
        "nodes": len(result.model.graph.node),
        "left": dict(Counter(n.op_type for n in result.model.graph.node if n.op_type in COUNTED)),
        "reasons": sorted({f"{left.operator}: {left.reason}" for left in report.left}),
        "replaced": dict(Counter(f"{r.operator} by {r.lowering}" for r in report.replacements)),
    }


def step_plain(name: str, folder: str) -> dict[str, Any]:
    """Export by torch.onnx alone, at the same opset."""
    import torch
    from export_models import make

    case = make(name)
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                case.module, case.sets[0], dynamo=True, dynamic_shapes=case.dynamic, opset_version=18, verbose=False
            )
        program.save(str(Path(folder) / "plain.onnx"))
    except Exception as error:  # PyTorch's exporters raise anything; that they do is the figure.
        return {"failed": short(f"{type(error).__name__}: {error}")}
    nodes = Counter(node.op_type for node in program.model_proto.graph.node)
    return {"left": {op: nodes[op] for op in COUNTED if nodes[op]}, "nodes": sum(nodes.values())}


def step_openvino(folder: str) -> dict[str, Any]:
    """Run the result in OpenVINO's CPU plugin on every set, against PyTorch's answers."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(Path(folder) / "fixed.onnx"))
    request = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    agree = []
    for feeds, expected in load_sets(Path(folder)):
        answer = request.infer(feeds)
        agree.append(close(list(expected.values()), [answer[k] for k in range(len(answer))]))
    return {"agree": agree}


def step_latency(folder: str) -> dict[str, Any]:
    """Run both models in turn in ONNX Runtime on the last set; milliseconds (medians) and the median ratio of pairs."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    feeds, expected = load_sets(Path(folder))[-1]
    runs: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {}
    for side in ("plain", "fixed"):
        path = Path(folder) / f"{side}.onnx"
        if not path.exists():
            continue
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            given = dict(zip((i.name for i in session.get_inputs()), feeds.values(), strict=True))
            answer = session.run(None, given)
        except Exception as error:  # an engine's own errors have no common type; the message is the figure
            found[side] = short(str(error))
            continue
        found[f"{side}_agrees"] = close(list(expected.values()), answer)
        runs[side] = lambda session=session, given=given: session.run(None, given)
    times: dict[str, list[float]] = {side: [] for side in runs}
    start = time.perf_counter()
    for pair in range(MOST_PAIRS if runs else 0):
        if pair >= FEWEST_PAIRS and time.perf_counter() - start > LATENCY_SECONDS:
            break
        for side in list(runs) if pair % 2 else list(reversed(runs)):
            began = time.perf_counter()
            runs[side]()
            times[side].append(1000 * (time.perf_counter() - began))
    found |= {side: float(np.median(values)) for side, values in times.items()}
    if len(times) == 2:
        found["ratio"] = float(np.median(np.array(times["fixed"]) / np.array(times["plain"])))
    return found


def load_sets(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The input sets that step_export wrote, each with PyTorch's answers."""
    import numpy as np

    sets: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    with np.load(folder / "sets.npz") as archive:
        for key in archive.files:
            number, side, name = key.split("/", 2)
            sets.setdefault(int(number), ({}, {}))[side == "out"][name] = archive[key]
    return [sets[number] for number in sorted(sets)]


def close(expected: Sequence[Any], answer: Sequence[Any]) -> bool:
    """Whether an engine gave PyTorch's outputs, but for what other kernels and another order of sums change."""
    import numpy as np

    def scale(array: Any) -> float:
        return float(np.nanmax(np.abs(array.astype(np.float64)), initial=0.0)) if array.size else 0.0

    return len(expected) == len(answer) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=RTOL, atol=RTOL * scale(a), equal_nan=True)
        for a, b in zip(expected, answer, strict=True)
    )


def short(text: str) -> str:
    """A message as one line of bounded length."""
    return " ".join(text.split())[:200]


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "export": step_export,
    "plain": step_plain,
    "openvino": step_openvino,
    "latency": step_latency,
}


def child(step: str, timeout: float, **arguments: Any) -> dict[str, Any]:
    """Run a step in a process of its own. Gives ``{"failed": why}`` when it crashes or takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, "--step", json.dumps([step, arguments, str(answer)])]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, stderr = process.communicate(timeout=timeout)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            os.killpg(process.pid, signal.SIGKILL)  # with the simplifier's process, if it has one
            process.communicate()
            if isinstance(stop, KeyboardInterrupt):
                raise
            return {"failed": f"took more than {timeout:.0f} s"}
        if process.returncode or not answer.exists():
            last = (stderr.strip().splitlines() or [""])[-1]
            return {"failed": f"ended with {process.returncode}: {short(last)}"}
        return dict(json.loads(answer.read_text()))


# ---- one model, all steps ------------------------------------------------------------------------------------------


def measure(name: str, timeout: float) -> dict[str, Any]:
    """All steps for one model."""
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"name": name, "export": child("export", timeout, name=name, folder=folder)}
        if "status" in result["export"]:
            result["plain"] = child("plain", timeout, name=name, folder=folder)
            result["openvino"] = child("openvino", timeout, folder=folder)
            result["latency"] = child("latency", timeout, folder=folder)
    return result


def lines(result: dict[str, Any]) -> list[str]:
    """One model as a row of the table, and what is to be said about it."""
    export = result["export"]
    if "status" not in export:
        return [f"{result['name']:<20} {'fails':<11} {export.get('refused') or export['failed']}"]
    latency, plain = result["latency"], result["plain"]
    left = ", ".join(f"{count} {op}" for op, count in export["left"].items()) or "none"
    agree = result["openvino"].get("agree")
    engine = "fails" if agree is None else f"agrees {sum(agree)}/{len(agree)}"
    ratio = f"x{latency['ratio']:.2f}" if "ratio" in latency else "plain fails" if "plain" not in latency else "fails"
    row = f"{result['name']:<20} {export['status']:<11} {left:<14} {engine:<12} {ratio:<12} {export['seconds']:>6.1f} s"
    told = [f"kept: {reason}" for reason in export["reasons"]]
    told += [f"note: {note}" for note in [export["detail"], *export["notes"]] if note]
    told += [f"OpenVINO: {result['openvino']['failed']}"] if agree is None else []
    told += [f"plain export: {plain['failed']}"] if "failed" in plain else []
    told += (
        [f"plain export leaves {', '.join(f'{n} {op}' for op, n in plain['left'].items())}"]
        if plain.get("left")
        else []
    )
    told += [f"{side}: not PyTorch's answer" for side in ("plain", "fixed") if latency.get(f"{side}_agrees") is False]
    told += [
        f"{side} in ONNX Runtime: {latency[side]}" for side in ("plain", "fixed") if isinstance(latency.get(side), str)
    ]
    return [row, *(f"    {line}" for line in told)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models that were asked for. Returns 0 when all of them were confirmed and OpenVINO agrees."""
    parser = argparse.ArgumentParser(description="Export real architectures by graphfix and show what comes of it.")
    parser.add_argument("--only", metavar="NAME", action="append", help="a name of export_models.py; may be repeated")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to a file")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0, help="for one step of one model")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        step, keywords, answer = json.loads(options.step)
        Path(answer).write_text(json.dumps(STEPS[step](**keywords)))
        return 0
    from export_models import MAKERS

    unknown = sorted(set(options.only or ()) - set(MAKERS))
    if unknown:
        parser.error(f"no model {unknown[0]}; there are {', '.join(MAKERS)}")
    results = []
    print(f"{'model':<20} {'confirmed':<11} {'left':<14} {'OpenVINO':<12} {'latency':<12} {'export':>8}")
    for name in options.only or MAKERS:
        results.append(measure(name, options.timeout))
        print("\n".join(lines(results[-1])), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(
        any(r["export"].get("status") != "confirmed" or not all(r["openvino"].get("agree", [False])) for r in results)
    )


if __name__ == "__main__":
    sys.exit(main())
