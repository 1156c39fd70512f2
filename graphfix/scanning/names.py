"""What names of a file mean: imports, annotations, and what the use of a name says about it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from graphfix.scanning.torch_names import OTHER_USES, TENSOR_USES, words
from graphfix.scanning.values import (
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


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a chain of names, "" for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def imports(tree: ast.Module) -> dict[str, str]:
    """Names that imports anywhere in the file bind, with what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
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
    return plain.get(name, OTHER_VALUE)


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


def uses(nodes: Iterable[ast.AST], imported: dict[str, str]) -> dict[str, str]:
    """For names that are used as only a tensor can be, or as no tensor can: "tensor", "other", or "both"."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = dotted(node.value)
            if name and name not in imported:
                if node.attr in TENSOR_USES:
                    found.setdefault(name, set()).add("tensor")
                elif node.attr in OTHER_USES:
                    found.setdefault(name, set()).add("other")
        elif isinstance(node, ast.Subscript) and _is_text(node.slice):
            found.setdefault(dotted(node.value), set()).add("other")
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if isinstance(node.left, (ast.Constant, ast.JoinedStr)):
                found.setdefault(dotted(node.comparators[0]), set()).add("other")
        elif isinstance(node, ast.Call) and dotted(node.func) == "isinstance" and len(node.args) == 2:
            if any(word in ast.dump(node.args[1]) for word in ("dict", "'list'", "ndarray", "'str'", "Mapping")):
                found.setdefault(dotted(node.args[0]), set()).add("other")
        elif isinstance(node, ast.Call):
            called = qualified(node.func, imported)
            if called in ("torch.cat", "torch.stack", "torch.concat") and node.args:
                found.setdefault(dotted(node.args[0]), set()).add("other")  # a list of tensors
            elif dotted(node.func) in ("enumerate", "zip", "reversed"):
                for argument in node.args:
                    found.setdefault(dotted(argument), set()).add("listed")
    return {name: next(iter(kinds)) if len(kinds) == 1 else "both" for name, kinds in found.items() if name}


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
