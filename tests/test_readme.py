"""README's commands do what it shows: each one is run, its exit code and its output are compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from conftest import ROOT

import graphfix

README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, list[str], int]]:
    """The commands of a console block, with the lines shown below each and the exit code that `echo $?` shows."""
    found: list[tuple[str, list[str], int]] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        if command == "echo $?":
            before = found.pop()
            found.append((before[0], before[1], int(shown[0])))
        else:
            found.append((command, shown, 0))
    return found


def told(output: str) -> list[str]:
    """Lines without their spacing, sizes, numbers of input sets, and the repeated progress lines of a slow machine."""
    lines, stages = [], set()
    for line in output.splitlines():
        stage = line.split()[0] if line.split() else ""
        if stage in ("load", "passes", "shapes", "simplify", "rewrites", "verify", "save") and "alone on" not in line:
            if stage in stages:
                continue
            stages.add(stage)
        line = re.sub(r"alone on \d+ input sets", "alone on N input sets", " ".join(line.split()))
        lines.append(re.sub(r"\d+(\.\d+)? (B|KiB|MiB)", "SIZE", line))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.split("\n")[0][2:40])
def test_commands(block: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models.parent)
    (source,) = [code for code in blocks("python") if "import graphfix" not in code]
    Path("pool.py").write_text(source)  # which the scan is shown on
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    for command, shown, code in commands(block):
        done = subprocess.run(
            ["bash", "-c", command], stdout=-1, stderr=subprocess.STDOUT, text=True, env=environment, timeout=120
        )
        assert done.returncode == code, f"{command}: {done.stdout}"
        assert told(done.stdout) == told("\n".join(shown)), command


def test_every_command_is_one_of_graphfix() -> None:
    assert blocks("console")
    for block in blocks("console"):
        assert all(command.split()[0] == "graphfix" for command, _, _ in commands(block))


@pytest.mark.slow
def test_before_and_after(models: Path) -> None:
    """The two node lists on the first screen: operators, inputs and outputs, in order."""
    before, after = blocks("text")
    fixed = graphfix.fix(models / "mask_rows.onnx").model
    for block, model in [(before, onnx.load(models / "mask_rows.onnx")), (after, fixed)]:
        shown = [re.match(r"(\w+)\s+\((.*?)\)\s+->\s+(\S+)", line) for line in block.splitlines()]
        nodes = [(n.op_type, ", ".join(n.input), ", ".join(n.output)) for n in model.graph.node]
        assert [match and match.groups() for match in shown] == nodes


@pytest.mark.slow
def test_python(models: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(models.parent)
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out.splitlines() == [
        "True confirmed",
        *(
            f"{r.operator} -> {r.lowering} {r.emitted}"
            for r in graphfix.fix("models/mask_rows.onnx").report.replacements
        ),
    ]
    assert Path("fixed.onnx").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_python_with_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    block = next(block for block in blocks("python") if "import graphfix, torch" in block)
    exec(block, {})
    assert capsys.readouterr().out == "PyTorch\n"
    nodes = {n.op_type for n in onnx.load("padding.onnx").graph.node}
    assert nodes == {"Unsqueeze", "Where"}


def test_the_table_of_passes_is_complete() -> None:
    rows = re.findall(r"^\| (GF\d+) \| `([\w-]+)` \|", README, re.MULTILINE)
    assert rows == [(p.code, p.name) for p in graphfix.load_passes()]


def test_options_of_the_table_exist() -> None:
    from graphfix.cli import fix_command

    known = {option for parameter in fix_command.params for option in parameter.opts}
    table = re.findall(r"^\| (`-.*?) \|", README, re.MULTILINE)
    named = {option for row in table for option in re.findall(r"`(--?[\w-]+)", row)}
    assert len(table) >= 10
    assert named <= known
    left_out = {"--version", "--quiet", "--verbose", "source", "output"}
    assert known - named == left_out


def test_ci_runs_the_commands_for_the_tests() -> None:
    assert blocks("sh")[-1].strip() == 'pip install -e ".[test]" && pytest'
    assert blocks("sh")[-1].strip() in (ROOT / ".ci" / "run").read_text()
