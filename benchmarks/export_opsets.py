"""Export the functions of tests/torch_writes.py at every opset, of fixed and of dynamic sizes, by each route.

    python benchmarks/export_opsets.py [--route torch.export|torchscript] [--opsets 11 16 21] [--groups 0 1]

Each group of ten functions is captured once a route and kind of sizes, and fixed and held against PyTorch at each
opset: on input sets of graphfix's own choice, and on the arguments of the tests at three sets of sizes. What is not
equal, and each ATen, ScatterND, ScatterElements and NonZero node that is left, is told; the exit code is 1 when
something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from torch_exports import GROUPS, Together, hold, unwanted
from torch_writes import SIZES

from graphfix.api import run_fix
from graphfix.errors import GraphfixError
from graphfix.torch_export.confirm import Confirmation
from graphfix.torch_export.routes import TORCH_EXPORT, TORCHSCRIPT, capture
from graphfix.torch_export.session import TorchSession
from graphfix.torch_export.subject import subject


class Tally:
    """Models that are right, and what was left in them or went wrong."""

    def __init__(self) -> None:
        self.right = 0
        self.left: dict[str, int] = {}
        self.wrong: list[str] = []

    def tell(self, label: str, seconds: float) -> None:
        left = ", ".join(f"{number} {reason}" for reason, number in sorted(self.left.items())) or "none"
        print(f"{label}: {self.right} models equal, {len(self.wrong)} not; left: {left}; {seconds:.0f} s", flush=True)
        for line in self.wrong:
            print(f"    {line}", flush=True)


def export(group: int, route: str, dynamic: bool, opsets: list[int], tally: Tally) -> None:
    """One group by one route, at every opset."""
    writes = GROUPS[group]
    args = ([write.make(SIZES[0]) for write in writes],)
    dims = ([tuple(d or None for d in write.dims()) for write in writes],) if dynamic else None
    given = subject(Together(writes), args, None)
    try:
        captured = capture(route, given, dynamic_shapes=dims, lowest_opset=min(opsets))
    except GraphfixError as error:
        tally.wrong.append(f"group {group}: {error}")
        return
    confirm = Confirmation(TorchSession(given, captured), captured.model, given.name)
    for opset in opsets:
        try:
            result = run_fix(captured.model, None, confirm, None, opset=opset)
            for number, sizes in enumerate(SIZES if dynamic else SIZES[:1]):
                hold(result.model, writes, sizes, number)
        except (GraphfixError, AssertionError) as error:
            tally.wrong.append(f"group {group}, opset {opset}: {' '.join(str(error).split())[:300]}")
            continue
        tally.right += 1
        for left in result.report.left:
            tally.left[left.reason.split(" takes ")[0]] = tally.left.get(left.reason.split(" takes ")[0], 0) + 1
        if sum(unwanted(result.model).values()) != len(result.report.left):
            tally.wrong.append(f"group {group}, opset {opset}: nodes are left that are not reported")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--route", choices=(TORCH_EXPORT, TORCHSCRIPT))
    parser.add_argument("--opsets", type=int, nargs="+", default=list(range(11, 22)))
    parser.add_argument("--groups", type=int, nargs="+", default=list(range(len(GROUPS))))
    options = parser.parse_args()
    wrong = 0
    for route in [options.route] if options.route else [TORCH_EXPORT, TORCHSCRIPT]:
        for dynamic in (False, True):
            tally, start = Tally(), time.perf_counter()
            for group in options.groups:
                export(group, route, dynamic, options.opsets, tally)
            tally.tell(f"{route}, {'dynamic' if dynamic else 'fixed'} sizes", time.perf_counter() - start)
            wrong += len(tally.wrong)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
