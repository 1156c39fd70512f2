"""The line of the user's source that a node was made from, where PyTorch's exporters left it in the node."""

from __future__ import annotations

import re

import onnx

STACK_KEY = "pkg.torch.onnx.stack_trace"
_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_PYTORCH = re.compile(r"(?:^|[/\\])(?:site-packages|dist-packages)[/\\]torch[/\\]|^torch[/\\]|^<")


def written_at(node: onnx.NodeProto) -> str:
    """Where the operator is written: ``model.py:12, x[i] = v``; "" when the node does not tell."""
    stack = next((p.value for p in node.metadata_props if p.key == STACK_KEY), "")
    return in_stack(stack) or in_doc_string(node.doc_string)


def in_stack(stack: str) -> str:
    """The innermost line of a stack trace of torch.export that is not PyTorch's own."""
    lines = stack.splitlines()
    found = ""
    for number, line in enumerate(lines):
        match = _STACK_LINE.search(line)
        if match is None or _PYTORCH.search(match[1]):
            continue
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        found = place(match[1], int(match[2]), "" if _STACK_LINE.search(code) else code)
    return found


def in_doc_string(doc_string: str) -> str:
    """The innermost line of a TorchScript stack trace that is not PyTorch's own: ``model.py(12): forward``."""
    lines = [line.strip() for line in doc_string.splitlines() if ".py" in line and "(" in line]
    own = [line for line in lines if not _PYTORCH.search(line)]
    return (own or lines or [""])[0][:200]


def place(file: str, line: int, code: str) -> str:
    """A file, a line and what stands there."""
    return f"{file}:{line}" + (f", {code.strip()}" if code.strip() else "")
