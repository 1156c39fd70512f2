"""Extras (PyTorch, OpenVINO): a test that needs one carries its marker, or asks ``require`` for it.

The plain `pytest` runs with whatever is installed: without an extra its tests are skipped. With CI=true they fail
instead, so that a run which claims to test an extra cannot pass without it. .ci/run therefore does two runs: README's
command with CI unset, where nothing but the extra `test` is installed, and the tests of the extras with CI=true.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = ("torch", "openvino")


def require(module: str) -> Any:
    """Import the module of an extra. When it is missing, skips the test or module that asks; fails with CI=true."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true, but {module} cannot be imported: {error}", pytrace=False)
        pytest.skip(f"{module} is not installed", allow_module_level=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for extra in EXTRAS:
        if item.get_closest_marker(extra) is not None:
            require(extra)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the folder models/, to work in."""
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "models", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
