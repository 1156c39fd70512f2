"""Why an export failed: the user's line, what stands there, and what to write instead, in one line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import torch

from graphfix.errors import ExportError
from graphfix.sources import in_stack, place
from graphfix.torch_export.user_code import is_user_code

_OF_VALUES = r"data-dependent|GuardOnDataDependentSymNode|Could not guard"
# What a message of PyTorch means, and what helps.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"specialized integer from data-dependent",
        "a number is taken from a tensor",
        "keep it a tensor: x[i.reshape(1)] = v in the place of x[i] = v with a 0-d i, and no .item() or int()",
    ),
    (
        _OF_VALUES,
        "a size or a branch depends on the values of a tensor",
        "write it with a mask (torch.arange(n) < length, torch.where) instead of if, .item(), int() or slice bounds "
        "taken from a tensor, or use torch.cond",
    ),
    (
        r"Constraints violated|is not a valid|specialized|dynamic_shapes|inferred to be a constant",
        "the dynamic shapes do not fit the module",
        "",
    ),
    (
        r"mutat\w+ (?:of )?(?:module )?attribute|assigned (?:to )?(?:module )?attribute|attributes? .*assigned",
        "the module changes one of its attributes",
        "register it as a buffer, or return the new value",
    ),
    (
        r"autograd\.Function|jit\.script",
        "a scripted or custom-gradient function cannot be traced",
        "call plain PyTorch",
    ),
    (r"no fake impl|fake tensor|FakeTensor|meta kernel", "an operator cannot be traced without data", "register_fake"),
    (r"numpy", "NumPy computes a part of the result", "write that part in PyTorch"),
)


def is_of_values(error: BaseException) -> bool:
    """Whether torch.export stopped because a size or a branch depends on the values of a tensor."""
    return re.search(_OF_VALUES, f"{type(error).__name__} {error}") is not None


def export_error(error: BaseException, name: str) -> ExportError:
    """The error of torch.export in one line."""
    text = _plain(error)
    line = source_of(error)
    where = f" at {line}" if line else ""
    for pattern, meaning, advice in _KNOWN:
        if re.search(pattern, f"{type(error).__name__} {text}"):
            advice = _of_library(line) or advice or _suggested(str(error))
            told = f"; {advice}" if advice else ""
            return ExportError(f"torch.export cannot export {name}{where}: {meaning} ({_short(text)}){told}")
    told = f"; {_of_library(line)}" if _of_library(line) else ""
    return ExportError(f"torch.export cannot export {name}{where}: {type(error).__name__}: {_short(text)}{told}")


def _of_library(line: str) -> str:
    """What to do about a line that is not the user's to write in another way; "" for one that is."""
    found = re.search(r"[/\\](?:site|dist)-packages[/\\](\w+)", line)
    if found is None:
        return ""
    return (
        f"the line is {found[1]}'s own: export the part of the module before it, or replace in a subclass what holds it"
    )


def tracing_error(error: BaseException, name: str) -> ExportError:
    """The error of a module, or of the exporter, while TorchScript traced it, in one line."""
    line = source_of(error)
    where = f" at {line}" if line else ""
    return ExportError(f"TorchScript cannot export {name}{where}: {type(error).__name__}: {_short(_plain(error))}")


def translation_error(error: BaseException, program: torch.export.ExportedProgram, overload: Any) -> ExportError:
    """The error of torch.onnx in one line."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    what = (
        f"torch.onnx cannot translate {overload}" if overload is not None else "torch.onnx cannot translate the model"
    )
    line = next((p for p in _places(program, overload) if p), "") if overload is not None else ""
    where = f" at {line}" if line else ""
    return ExportError(f"{what}{where}: {type(cause).__name__}: {_short(_plain(cause))}")


def source_of(error: BaseException) -> str:
    """The innermost line of the user's code that an error came through: ``model.py:12, x[:n] = 0``."""
    cause: BaseException | None = error
    found = ""
    while cause is not None and not found:
        for frame in traceback.extract_tb(cause.__traceback__):
            if is_user_code(frame.filename) and _is_model(frame):
                found = place(frame.filename, frame.lineno or 0, frame.line or "")
        cause = cause.__cause__ or cause.__context__
    return found or in_stack(str(error))


def _is_model(frame: traceback.FrameSummary) -> bool:
    """Whether a frame lies beneath a forward: callers of the export are no part of the model."""
    return "graphfix" not in Path(frame.filename).parts[-3:-1] and frame.name not in ("export", "main", "<module>")


def _places(program: torch.export.ExportedProgram, overload: Any) -> list[str]:
    wanted = overload._schema.name.removesuffix("_")
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and hasattr(n.target, "_schema")]
    return [in_stack(n.meta.get("stack_trace") or "") for n in nodes if _base(n.target) == wanted]


def _base(target: Any) -> str:
    return target._schema.name.removesuffix("_")


def _plain(error: BaseException) -> str:
    """The first paragraph of a message."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    kept: list[str] = []
    for line in lines:
        if not line and kept:
            break
        if line and not line.startswith(("from user code", "File ")):
            kept.append(line)
    return " ".join(" ".join(kept).split())


def _suggested(text: str) -> str:
    """What torch.export suggests for dynamic shapes."""
    _, found, after = text.partition("Suggested fixes:")
    lines = [line.strip() for line in after.splitlines() if line.strip()] if found else []
    return f"it suggests {'; '.join(lines[:4])}" if lines else "leave the dim out of dynamic_shapes, or use Dim.AUTO"


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"
