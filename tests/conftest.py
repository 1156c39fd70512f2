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

import onnxruntime
import pytest

ROOT = Path(__file__).parent.parent
OLD_ONNXRUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 29)  # as on Python 3.10
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
    if item.get_closest_marker("onnxruntime_1_29") is not None and OLD_ONNXRUNTIME:
        pytest.skip("ONNX Runtime before 1.29 cannot run its models, or runs them wrongly")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the folder models/, to work in."""
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "models", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
