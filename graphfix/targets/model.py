"""A target and its rules, as read from its file; `graphfix.targets` tells what the fields mean."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKING = ("refuses", "wrong", "crash")
KINDS = (*BLOCKING, "slow", "note")
VALUES = ("stored", "folded", "sized", "counted", "run")
SHAPES = ("fixed", "sized", "run")


@dataclass(frozen=True)
class Tensor:
    """What a rule says about one input or output. ``at`` holds positions, none for any."""

    at: tuple[int, ...] = ()
    type: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    rank_over: int | None = None
    rank_under: int | None = None
    negative: bool = False
    longer_than: int | None = None
    rank_over_input: int | None = None
    rank_up_to_input: int | None = None
    made_by: tuple[str, ...] = ()
    typed_data: bool = False
    named: bool = False


@dataclass(frozen=True)
class Rule:
    """One thing that an engine does not run, or not as it should.

    ``attributes`` maps a name to the values that the rule is for; among them, True is any, False that none is given.
    """

    kind: str
    op: tuple[str, ...]
    why: str
    source: str
    since: int = 1
    until: int | None = None
    attributes: dict[str, tuple[object, ...]] | None = None
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    inputs_over: int | None = None

    @property
    def blocks(self) -> bool:
        """Whether a model that it holds for does not do on this engine what it should."""
        return self.kind in BLOCKING


@dataclass(frozen=True)
class Target:
    """An engine. ``lowest`` and ``highest`` are the opsets that it takes, None where none is known."""

    name: str
    title: str
    version: str
    rules: tuple[Rule, ...]
    lowest: int | None = None
    highest: int | None = None
    opset_source: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The engine and its version, for people."""
        return f"{self.name} {self.version}".strip()

    def nearest_opset(self, opset: int) -> int:
        """The opset that is nearest to this one among those that the engine takes."""
        if self.highest is not None and opset > self.highest:
            return self.highest
        if self.lowest is not None and opset < self.lowest:
            return self.lowest
        return opset
