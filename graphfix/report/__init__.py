"""What a run did, as data: read by the console, by JSON and by scripts."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Replacement:
    """One node that was replaced.

    ``node`` is the node's name ("" when unnamed), ``output`` its first output, ``operator`` what it was
    (``aten::index_put``, ``ScatterND``), ``scope`` the path of the subgraph or local function it is in ("" for the
    main graph), ``lowering`` the form that replaced it, ``emitted`` how many nodes of which type came in its place.
    """

    code: str
    pass_name: str
    node: str
    output: str
    operator: str
    scope: str
    lowering: str
    emitted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Left:
    """A node that was meant to go and stays, and why. ``asked`` is False when it is only reported (kept scatters)."""

    code: str
    node: str
    output: str
    operator: str
    scope: str
    reason: str
    asked: bool


@dataclass(frozen=True)
class Finding:
    """A node of the result (or an input: ``operator`` is "input") that the target is known to have trouble with.

    ``kind`` is "refuses", "wrong", "crash", "slow", "note", or "opset" for the model as a whole; ``source`` is where
    that is known from, and ``blocks`` says that the result will not do on this engine what it should.
    """

    kind: str
    operator: str
    node: str
    output: str
    scope: str
    reason: str
    source: str
    blocks: bool


@dataclass(frozen=True)
class OutputComparison:
    """One graph output over all input sets: the largest absolute and relative difference seen.

    ``exact`` says that every value was equal (NaN to NaN, -0.0 to 0.0). ``max_ulp`` is the largest difference in
    representable values of the dtype, ``differing`` how many of all compared ``elements`` were not equal, and
    ``largest_at`` the index of the largest absolute difference (after the number of the element, in a sequence).
    ``rtol`` and ``atol`` are the tolerance that was applied; they are zero for what must be equal. ``problem`` tells
    what is beyond it, "" when nothing is.
    """

    name: str
    dtype: str
    max_abs: float
    max_rel: float
    exact: bool
    max_ulp: float = 0.0
    differing: int = 0
    elements: int = 0
    largest_at: tuple[int, ...] | None = None
    rtol: float = 0.0
    atol: float = 0.0
    problem: str = ""

    @property
    def share(self) -> float:
        """The share of the elements that differ, from 0 to 1."""
        return self.differing / self.elements if self.elements else float(not self.exact)


@dataclass(frozen=True)
class LayerComparison(OutputComparison):
    """An intermediate tensor that both models have, made by ``operator`` in the reference.

    ``first`` marks the first one beyond the tolerance.
    """

    operator: str = ""
    first: bool = False


@dataclass
class RewriteChecks:
    """What came of checking every rewrite alone, against what it replaced.

    ``checked`` rewrites agreed on ``sets`` input sets, ``exact`` of them bit for bit. ``unchecked`` holds one line for
    each rewrite that could not be cut out and run alone, with the reason.
    """

    checked: int = 0
    exact: int = 0
    sets: int = 0
    unchecked: list[str] = field(default_factory=list)


@dataclass
class Verification:
    """How the result was confirmed.

    ``status`` is "confirmed", "in part" (no output of the model, but what goes into nodes that cannot be run here),
    "failed", "rewrites only", "not run" (``verify="none"``, or nothing changed). ``against`` is what the
    fixed model was compared with ("the input model", or "the input model as repaired"). ``sets`` holds one line a set:
    the shapes of its inputs. ``skipped`` holds input sets that the reference itself refused, with its message.
    ``outputs`` compares what ran with ONNX Runtime's optimisations off (on, when the reference runs with them
    only), ``optimised`` the same outputs of the fixed model with them on. ``not_compared`` are outputs of which
    nothing is known, ``first_difference`` is the first tensor of both models that differs, ``not_run`` nodes that
    were left out on both sides, as nothing here can run them. ``notes`` say how the models were paired. ``layers``
    holds the intermediate tensors of both models, when they were asked for.
    """

    status: str
    against: str = "the input model"
    sets: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outputs: list[OutputComparison] = field(default_factory=list)
    detail: str = ""
    first_difference: str = ""
    optimised: list[OutputComparison] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers: list[LayerComparison] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether the models agree on everything that was compared."""
        return self.status in ("confirmed", "in part")


@dataclass
class Report:
    """Everything a run found and did. ``sizes`` are bytes of the serialised graph file, without external data.

    ``target`` is the engine that the result was held against, with its version ("" for none), ``findings`` what is
    known against it there.
    """

    input: str = ""
    output: str = ""
    opset_before: int = 0
    opset_after: int = 0
    opset_reason: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    size_before: int = 0
    size_after: int = 0
    replacements: list[Replacement] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    target: str = ""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    rewrites: RewriteChecks = field(default_factory=RewriteChecks)
    verification: Verification = field(default_factory=lambda: Verification("not run"))
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether anything in the model was replaced."""
        return bool(self.replacements) or self.opset_before != self.opset_after

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {"format": 1, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """The report as JSON. Non-finite differences become strings, as JSON has no such numbers."""
        return as_json(self.to_dict())


def as_json(content: dict[str, Any]) -> str:
    """Plain data as JSON. Non-finite numbers become strings, as JSON has none."""
    return json.dumps(_finite(content), indent=2) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
