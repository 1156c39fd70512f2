"""What names of a file mean: imports, annotations, and what the use of a name says about it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from graphfix.scanning.syntax import dotted, statements
from graphfix.scanning.torch_names import OTHER_USES, TENSOR_USES, words
from graphfix.scanning.values import (
    ARRAY,
    CONSTANT,
    FLOAT,
    INT,
    LIST,
    NO,
    NOTHING,
    NUMBER,
    OTHER_VALUE,
    SLICE,
    TEXT,
    Value,
    join,
    tensor,
)

_CONTAINERS = words(
    "list List tuple Tuple Sequence Iterable Iterator MutableSequence Collection deque Deque set Set FrozenSet"
)
_TENSORS = {
    "BoolTensor": "bool",
    "ByteTensor": "bool",
    "LongTensor": "int",
    "IntTensor": "int",
    "FloatTensor": "float",
    "HalfTensor": "float",
    "DoubleTensor": "float",
}
_JAXTYPING = {"Bool": "bool", "Int": "int", "Integer": "int", "Int64": "int", "Int32": "int", "Float": "float"}


def imports(tree: ast.Module) -> dict[str, str]:
    """Names that imports anywhere in the file bind, with what they stand for."""
    found: dict[str, str] = {}
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"
    return found


def qualified(node: ast.AST, imported: dict[str, str]) -> str:
    """The full name of a chain of names whose first is imported, else ""."""
    name = dotted(node)
    first, _, rest = name.partition(".")
    if first not in imported:
        return ""
    return f"{imported[first]}.{rest}" if rest else imported[first]


def annotated(node: ast.AST | None) -> Value | None:
    """What an annotation says; None when there is none, or it says nothing."""
    if node is None:
        return None
    if isinstance(node, ast.Constant):
        if node.value is None:
            return NO
        if not isinstance(node.value, str):
            return None
        try:
            return annotated(ast.parse(node.value.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _either([annotated(node.left), annotated(node.right)])
    if isinstance(node, ast.Subscript):
        return _generic(node)
    name = dotted(node).rpartition(".")[2]
    if name in _TENSORS:
        return tensor(_TENSORS[name])
    if "Tensor" in name or name in ("Parameter", "Buffer"):
        return tensor()
    if name in _CONTAINERS:
        return Value(LIST)
    plain = {
        "int": Value(INT),
        "float": FLOAT,
        "bool": Value(NUMBER, "bool"),
        "str": TEXT,
        "None": NO,
        "slice": Value(SLICE),
        "Size": Value(LIST),
        "Any": None,
        "object": None,
        "": None,
    }
    if len(name) == 1 or name.endswith("T"):  # a type variable
        return None
    return ARRAY if name in ("ndarray", "NDArray", "ArrayLike", "DataFrame") else plain.get(name, OTHER_VALUE)


def _generic(node: ast.Subscript) -> Value | None:
    name = dotted(node.value).rpartition(".")[2]
    inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name in ("Optional", "Union", "Annotated", "Final", "ClassVar"):
        return _either([annotated(each) for each in (inner[:1] if name == "Annotated" else inner)])
    if name in _CONTAINERS:
        inner = [each for each in inner if not (isinstance(each, ast.Constant) and each.value is Ellipsis)]
        elements = [annotated(each) or NOTHING for each in inner]
        element = elements[0] if elements else None
        for each in elements[1:]:
            element = join(element, each)
        return Value(LIST, element=element, items=tuple(elements) if name in ("tuple", "Tuple") else None)
    if inner and "Tensor" in dotted(inner[0]):
        return tensor(_JAXTYPING.get(name, ""))  # jaxtyping: Float[Tensor, "batch time"]
    return annotated(node.value)


def _either(choices: list[Value | None]) -> Value | None:
    known = [choice for choice in choices if choice is not None]
    if len(known) < len(choices) or not known:
        return None
    result = known[0]
    for choice in known[1:]:
        result = join(result, choice)
    return result


def uses(own: Iterable[ast.AST], imported: dict[str, str]) -> dict[str, str]:
    """For names that are used as only a tensor can be, or as no tensor can: "tensor", "other", or "both"."""
    found: dict[str, set[str]] = {}
    for node in own:
        kind = node.__class__
        if kind is ast.Attribute:
            seen = "tensor" if node.attr in TENSOR_USES else "other" if node.attr in OTHER_USES else ""  # type: ignore[attr-defined]
            name = dotted(node.value) if seen else ""  # type: ignore[attr-defined]
            if name and name not in imported:
                found.setdefault(name, set()).add(seen)
        elif kind is ast.Subscript or kind is ast.Compare or kind is ast.Call:
            for name, seen in _used(node, imported):
                found.setdefault(name, set()).add(seen)
    return {name: next(iter(kinds)) if len(kinds) == 1 else "both" for name, kinds in found.items() if name}


def _used(node: ast.AST, imported: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What a subscript, a comparison or a call says about names."""
    if isinstance(node, ast.Subscript):
        if _is_text(node.slice):
            yield dotted(node.value), "other"
    elif isinstance(node, ast.Compare):
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(node.left, (ast.Constant, ast.JoinedStr)):
            yield dotted(node.comparators[0]), "other"
    elif isinstance(node, ast.Call) and node.args:
        called = dotted(node.func)
        if called == "isinstance" and len(node.args) == 2:
            if any(word in ast.dump(node.args[1]) for word in ("dict", "'list'", "ndarray", "'str'", "Mapping")):
                yield dotted(node.args[0]), "other"
        elif called in ("enumerate", "zip", "reversed"):
            for argument in node.args:
                yield dotted(argument), "listed"
        elif called.endswith(("cat", "stack")) and qualified(node.func, imported).startswith("torch."):
            yield dotted(node.args[0]), "other"  # a list of tensors


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def constant(node: ast.Constant) -> Value:
    """The value of a literal."""
    value = node.value
    if value is None:
        return NO
    if isinstance(value, bool):
        return Value(NUMBER, "bool")
    if isinstance(value, int):
        return CONSTANT
    if isinstance(value, float):
        return FLOAT
    if isinstance(value, (str, bytes)):
        return TEXT
    return OTHER_VALUE
