"""What an installation puts where: nothing called `passes` at the top, types marked, the licence along."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("graphfix", "passes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
        metadata = wheel.read(f"{info}/METADATA").decode()
        commands = wheel.read(f"{info}/entry_points.txt").decode()

    assert {name.split("/")[0] for name in names} == {"graphfix", info}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "graphfix").rglob("*.py")}
    sources |= {f"graphfix/{file.relative_to(ROOT)}" for file in (ROOT / "passes").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert {"graphfix/py.typed", "graphfix/scanning/verdicts.json"} <= names
    assert {str(file.relative_to(ROOT)) for file in (ROOT / "graphfix" / "targets").glob("*.toml")} <= names
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: Apache-2.0" in metadata
    assert "graphfix = graphfix.cli:main" in commands


def test_no_top_level_passes_is_installed(tmp_path: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('passes'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "None"


def test_passes_are_imported_as_graphfix_passes() -> None:
    import graphfix.passes

    assert Path(graphfix.passes.__file__).parent.name == "passes"
