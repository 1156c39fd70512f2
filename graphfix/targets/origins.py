"""How the value and the shape of a tensor come about: stored, from the model's input sizes, or from its data.

An engine that wants the bounds of a Slice as constants is content with bounds that follow from the sizes of the inputs,
once those are fixed; with bounds that are computed from data it never is.
"""

from __future__ import annotations

import enum

from graphfix.facts import Facts
from graphfix.graph import Constant, Model, Node, Value


class Level(enum.IntEnum):
    """Where something is known first. Only values are STORED; a shape is FOLDED when it is fixed, and COUNTED when it
    depends on the data."""

    STORED = 0
    FOLDED = 1
    SIZED = 2
    COUNTED = 3
    RUN = 4


# What a node's output shape is made from, besides the shapes of its inputs: the values of these inputs.
SHAPED_BY: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
# The shape of what these make depends on the data.
SHAPED_BY_DATA = frozenset(["Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "StringSplit", "Unique"])
RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)
CONTROL = frozenset(["If", "Loop", "Scan"])


class Origins:
    """Levels of the tensors of a view; they hold as long as nothing changes upstream of a tensor."""

    def __init__(self, model: Model, facts: Facts) -> None:
        self._facts = facts
        self._inputs = set(model.main.inputs)
        self._values: dict[Value, Level] = {}
        self._shapes: dict[Value, Level] = {}

    def value(self, tensor: Value) -> Level:
        """Where the value of a tensor is known first."""
        self._find(tensor)
        return self._values[tensor]

    def shape(self, tensor: Value) -> Level:
        """Where the shape of a tensor is known first."""
        self._find(tensor)
        return self._shapes[tensor]

    def _find(self, tensor: Value) -> None:
        """Producers before consumers, without recursion: graphs are deeper than Python's stack."""
        stack: list[tuple[Value, bool]] = [(tensor, False)]
        while stack:
            current, expanded = stack.pop()
            if expanded:
                self._state(current)
            elif current not in self._values:
                stack.append((current, True))
                stack += [(i, False) for node in current.inputs for i in node.inputs if i.name]

    def _state(self, tensor: Value) -> None:
        shape = self._facts.shape(tensor)
        fixed = shape is not None and all(size.constant is not None for size in shape)
        if isinstance(tensor, Constant):
            self._values[tensor], self._shapes[tensor] = Level.STORED, Level.FOLDED
        elif not tensor.inputs:
            # Of the inputs of bodies and functions nothing more is known here than what their types say.
            self._values[tensor] = Level.RUN
            self._shapes[tensor] = Level.FOLDED if fixed else Level.SIZED if tensor in self._inputs else Level.COUNTED
        else:
            node: Node = tensor.inputs[0]
            self._values[tensor] = self._value_made_by(node)
            self._shapes[tensor] = Level.FOLDED if fixed else self._shape_made_by(node)

    def _value_made_by(self, node: Node) -> Level:
        if node.is_op("Constant"):
            return Level.STORED
        if not node.standard or node.op in RANDOM or node.op in CONTROL:
            return Level.RUN
        known = self._shapes if node.op in ("Shape", "Size") else self._values
        return max([Level.FOLDED, *(known.get(i, Level.RUN) for i in node.inputs if i.name)])

    def _shape_made_by(self, node: Node) -> Level:
        if not node.standard or node.op in SHAPED_BY_DATA:
            return Level.COUNTED
        givers = [node.arg(i) for i in SHAPED_BY.get(node.op, ())]
        levels = [self._values.get(giver, Level.RUN) for giver in givers if giver is not None]
        if node.op not in ("ConstantOfShape", "Range"):
            levels += [self._shapes.get(i, Level.COUNTED) for i in node.inputs if i.name]
        return min(max([Level.FOLDED, *levels]), Level.COUNTED)
