"""Export with other versions of PyTorch: each gets a virtual environment, in which the tests of the export run.

    python benchmarks/torch_versions.py                      1.13.1, 2.1.2, 2.5.1, 2.13.0 and the newest
    python benchmarks/torch_versions.py 2.6.0 2.8.0          these
    python benchmarks/torch_versions.py --folder DIR 2.6.0   keep the environments in DIR

PyTorch 1.13 and 2.1 need Python 3.10 or 3.11 and NumPy below 2; the newest may need a newer Python. A version that pip
finds nothing for is told, and counts as failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("1.13.1", "2.1.2", "2.5.1", "2.13.0", "newest")
TORCHSCRIPT = "tests/test_export_torchscript.py"
EXPORT = ("tests/test_export.py", "tests/test_export_kinds.py")


def number(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` as numbers."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def prepare(folder: Path, version: str) -> Path:
    """The Python of a virtual environment with this version of PyTorch and graphfix. Raises CalledProcessError."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        wanted = ["torch" if version == "newest" else f"torch=={version}", "onnxscript>=0.7"]
        if version != "newest" and number(version) < (2, 3):
            wanted.append("numpy<2")
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *wanted, "-e", f"{ROOT}[test]"], check=True)
    return python


def run(python: Path) -> tuple[str, str]:
    """The version that PyTorch tells, and the last line of the tests."""
    ask = "import torch; print(torch.__version__)"
    version = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    files = [TORCHSCRIPT, *(EXPORT if number(version) >= (2, 6) else ())]
    command = [python, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:cacheprovider", "--tb=line", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line}")
    return version, lines[-1].strip("= ") if lines else f"pytest ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--folder", type=Path, help="where the environments are, and stay")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for wanted in options.versions:
            try:
                version, told = run(prepare(folder / f"torch-{wanted}", wanted))
            except subprocess.CalledProcessError as error:
                version, told = wanted, f"cannot be installed here (pip ended with {error.returncode})"
            failed |= "passed" not in told or "failed" in told or "error" in told
            print(f"PyTorch {version:16} {told}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
