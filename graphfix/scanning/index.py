"""What kind of index a subscript holds, and which form of write that makes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from graphfix.scanning.inference import Scope, infer
from graphfix.scanning.syntax import dotted
from graphfix.scanning.values import INT, LIST, NONE, NUMBER, OTHER, SIZES, SLICE, STRING, UNKNOWN, Value

MASK = "mask"
POINTS = "index tensor"
NUMBER_AT = "number"
SPAN = "slice"
FULL = "full slice"
ELLIPSIS = "ellipsis"
NEW_AXIS = "None"
TENSOR_AT = "tensor"  # a mask or an index tensor
ANYTHING = "anything"
KEY = "key"  # a string: the target is no tensor

# Where nothing else is known, people's names tell a mask from an index tensor.
_MASK_NAME = re.compile(r"mask|valid|invalid|keep|padding|(^|_)(is|has|not|no|bad|ignore|pad)(_|$)")
_INDEX_NAME = re.compile(
    r"ind(ex|ices|s)?(_|$|\d)|idx|ids$|(^|_)(pos|positions?|perm|order|slots?|rows?|cols?|topk)(_|\d|$)"
)


@dataclass
class Part:
    """One item of a subscript. ``origin`` is that of an int, or of the bounds of a slice."""

    kind: str
    value: Value
    origin: str = "const"
    guessed: str = ""  # the name that the kind was guessed from
    step: bool = False


@dataclass
class Form:
    """The form of a write: its code, the facts that pick among the measured cases, what was taken for granted."""

    code: str
    facts: dict[str, str] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)


def parts(node: ast.AST, scope: Scope) -> list[Part]:
    """The items of a subscript."""
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    if any(isinstance(item, ast.Starred) for item in items):
        return [Part(ANYTHING, Value())]
    return [_part(item, scope) for item in items]


def _part(node: ast.AST, scope: Scope) -> Part:
    if isinstance(node, ast.Slice):
        return _span(node, scope)
    if isinstance(node, ast.Constant) and node.value is Ellipsis:
        return Part(ELLIPSIS, Value())
    value = infer(node, scope)
    if value.is_tensor:
        if value.dtype == "bool":
            return Part(MASK, value)
        if value.dtype == "int":
            return Part(POINTS, value, value.origin)
        kind = _by_name(node)
        return Part(kind or TENSOR_AT, value, value.origin, dotted(node) if kind else "")
    if value.kind == INT:
        return Part(NUMBER_AT, value, value.origin)
    if value.kind == NUMBER:
        return Part(NUMBER_AT if value.dtype != "bool" else ANYTHING, value, "")
    if value.kind == NONE and isinstance(node, ast.Constant):
        return Part(NEW_AXIS, value)
    if value.kind == SLICE:
        return Part(SPAN, value, "")
    if value.kind == STRING:
        return Part(KEY, value)
    if value.kind in (LIST, SIZES):
        return _of_list(node, value)
    if value.dtype == "bool":  # a comparison of what is not known
        return Part(MASK, value)
    kind = _by_name(node) if value.kind == UNKNOWN else ""
    return Part(kind or ANYTHING, value, "", dotted(node) if kind else "")


def _of_list(node: ast.AST, value: Value) -> Part:
    """A list as an index is an index tensor or a mask; a tuple may be any list of indices."""
    if isinstance(node, (ast.List, ast.ListComp)):
        of = value.element or Value()
        return Part(MASK if of.dtype == "bool" else POINTS if of.kind == INT or of.is_tensor else ANYTHING, value)
    return Part(ANYTHING, value)


def _by_name(node: ast.AST) -> str:
    name = dotted(node).rpartition(".")[2].casefold()
    if not name:
        return ""
    if _MASK_NAME.search(name):
        return MASK
    held = dotted(node).startswith("self.")  # most likely a number: the place of a layer, the id of a token
    return POINTS if _INDEX_NAME.search(name) and not held else ""


def _span(node: ast.Slice, scope: Scope) -> Part:
    if node.lower is None and node.upper is None and node.step is None:
        return Part(FULL, Value())
    origin = "const"
    for bound in (node.lower, node.upper):
        if bound is not None:
            origin = _worse(origin, _bound(bound, scope))
    stepped = node.step is not None and not (isinstance(node.step, ast.Constant) and node.step.value == 1)
    return Part(SPAN, Value(), origin, step=stepped)


def _bound(node: ast.AST, scope: Scope) -> str:
    value = infer(node, scope)
    if value.is_tensor:
        return "tensor"
    if value.kind == INT:
        return value.origin
    if value.kind == NONE:
        return "const"
    if value.kind == OTHER or dotted(node).startswith(("self.", "cls.")):
        return "const"  # a number that the module holds
    return ""


_WORSE = ("loop-tensor", "tensor", "item", "loop-size", "size", "", "const")


def _worse(one: str, other: str) -> str:
    return min(one, other, key=_WORSE.index)


def advanced(node: ast.AST, scope: Scope) -> bool:
    """Whether reading with this subscript copies: it holds a mask or an index tensor."""
    return any(part.kind in (MASK, POINTS, TENSOR_AT) for part in parts(node, scope) if not part.guessed) or any(
        part.kind in (MASK, POINTS) and part.value.is_tensor for part in parts(node, scope)
    )


def classify(items: list[Part], *, augmented: bool) -> Form | None:
    """The form of a write with these indices; None when the target can be no tensor."""
    if any(item.kind == KEY for item in items):
        return None
    guesses = [f"{item.guessed} is {_ARTICLE[item.kind]}" for item in items if item.guessed]
    kinds = [item.kind for item in items]
    form = _classify(items, kinds, augmented)
    form.guesses = guesses
    return form


_ARTICLE = {MASK: "a mask", POINTS: "a tensor of indices"}


def _classify(items: list[Part], kinds: list[str], augmented: bool) -> Form:
    if MASK in kinds:
        if augmented:
            return Form("GS110", {"index": "mask"})
        rest = [kind for kind in kinds if kind != MASK]
        if not rest and len(kinds) == 1:
            return Form("GS101")
        if POINTS in rest or TENSOR_AT in rest or kinds.count(MASK) > 1:
            beside = "tensor"
        elif NUMBER_AT in rest:
            beside = "int"
        elif ANYTHING in rest:
            beside = ""
        else:
            beside = "before" if kinds[0] == MASK else "behind"
        return Form("GS102", {"beside": beside} if beside else {})
    unclear = TENSOR_AT in kinds or ANYTHING in kinds
    if POINTS in kinds and not unclear:
        if any(item.kind == POINTS and item.origin == "loop-tensor" for item in items):
            return Form("GS107", {"loop": "tensor"})
        if augmented:
            return Form("GS110", {"index": "int"})
        places = [n for n, kind in enumerate(kinds) if kind == POINTS]
        between = kinds[places[0] : places[-1]]
        apart = any(kind in (FULL, SPAN, ELLIPSIS, NEW_AXIS) for kind in between)
        return Form("GS104") if apart else Form("GS103", {"several": "yes" if len(places) > 1 else "no"})
    if unclear:
        return Form("GS110") if augmented else Form("GS108")
    origin = "const"
    for item in items:
        if item.kind in (NUMBER_AT, SPAN):
            origin = _worse(origin, item.origin)
    if origin in ("loop-size", "loop-tensor"):
        return Form("GS107", {"loop": origin.removeprefix("loop-")})
    if origin in ("size", "tensor", "item"):
        return Form("GS106", {"bound": origin})
    if origin == "" and any(item.kind == SPAN and item.origin == "" for item in items):
        return Form("GS106")
    return Form("GS105", {"step": "yes" if any(item.step for item in items) else "no"})
