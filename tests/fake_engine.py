"""A stand-in for graphfix.pipeline: tests of the command line and the console choose what a run finds."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from graphfix.report import Left, OutputComparison, Replacement, Report, Verification


@dataclass(frozen=True)
class Event:
    stage: str
    message: str
    done: int = 0
    total: int = 0


class Options:
    def __init__(self, **fields: Any):
        self.__dict__.update(fields)


def replacement(number: int = 0, **changes: Any) -> Replacement:
    fields = {
        "code": "GF101",
        "pass_name": "aten-index-put",
        "node": f"write_{number}",
        "output": f"y{number}",
        "operator": "aten::index_put",
        "scope": "",
        "lowering": "mask_where",
        "emitted": {"Unsqueeze": 1, "Where": 1},
    }
    return Replacement(**{**fields, **changes})


def left(number: int = 0, *, asked: bool = True, **changes: Any) -> Left:
    fields = {
        "code": "GF101",
        "node": f"kept_{number}",
        "output": f"k{number}",
        "operator": "aten::index_put",
        "scope": "",
        "reason": "the largest new intermediate would have 5.0 GiB, more than the budget of 64.0 MiB",
    }
    return Left(**{**fields, **changes}, asked=asked)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "opset_before": 11,
        "opset_after": 11,
        "nodes_before": 3,
        "nodes_after": 2,
        "size_before": 272,
        "size_after": 1400,
        "replacements": [replacement()],
        "verification": Verification(
            "confirmed",
            sets=["x [2, 6, 8], padding [2, 6]", "x [1, 1, 8], padding [1, 1]"],
            outputs=[OutputComparison("y", "float32", 0.0, 0.0, True)],
        ),
    }
    return Report(**{**fields, **changes})


class FakeEngine:
    """What the next run does: report ``report``, after ``act`` was called with the options and the callback."""

    def __init__(self) -> None:
        self.report = report()
        self.options: Any = None
        self.act: Callable[[Any, Callable[[Event], None]], None] = lambda options, progress: None

    def run(self, loaded: Any, options: Any, progress: Callable[[Event], None] | None) -> tuple[Any, Report]:
        tell = progress or (lambda event: None)
        self.options = options
        tell(Event("passes", "replacing nodes"))
        self.act(options, tell)
        for number in range(3):
            tell(Event("verify", "comparing", number, 2))
        return loaded.model, copy.deepcopy(self.report)


def module(engine: FakeEngine) -> types.ModuleType:
    """The engine as a module to put in the place of graphfix.pipeline."""
    made = types.ModuleType("graphfix.pipeline")
    made.__dict__.update(Event=Event, Options=Options, run=engine.run)
    return made


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    import graphfix

    fake = FakeEngine()
    monkeypatch.setitem(sys.modules, "graphfix.pipeline", module(fake))
    monkeypatch.setattr(graphfix, "pipeline", sys.modules["graphfix.pipeline"], raising=False)
    return fake
