"""What an expression is, as far as a look at one function tells."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from graphfix.scanning.names import annotated, constant, qualified
from graphfix.scanning.syntax import dotted
from graphfix.scanning.torch_names import (
    BOOL_RESULT,
    FLOAT_RESULT,
    FOREIGN,
    INT_RESULT,
    NN_OTHER,
    NN_PACKAGES,
    NOT_TENSORS,
    SAME_DTYPE,
    SAME_SHAPE,
    TENSOR_NAMESPACES,
    TORCH_LISTS,
    TORCH_OTHER,
    VALUES_AND_INDICES,
    VIEW_ATTRIBUTES,
    VIEW_LISTS,
    VIEWS,
)
from graphfix.scanning.values import (
    ARRAY,
    CONSTANT,
    FLOAT,
    INT,
    LIST,
    NONE,
    NOTHING,
    NUMBER,
    OTHER,
    OTHER_VALUE,
    SIZES,
    SLICE,
    TENSOR,
    TEXT,
    UNKNOWN,
    Value,
    join,
    number_of,
    tensor,
)

_LIMITS = ("torch.finfo", "torch.iinfo")
_BUILTINS = {
    "dict": OTHER_VALUE,
    "set": OTHER_VALUE,
    "frozenset": OTHER_VALUE,
    "str": TEXT,
    "repr": TEXT,
    "bytearray": OTHER_VALUE,
    "vars": OTHER_VALUE,
    "globals": OTHER_VALUE,
    "locals": OTHER_VALUE,
    "bool": Value(NUMBER, "bool"),
    "isinstance": Value(NUMBER, "bool"),
    "list": Value(LIST),
    "tuple": Value(LIST),
    "sorted": Value(LIST),
    "slice": Value(SLICE),
    "range": Value(LIST, element=Value(INT)),
    "memoryview": OTHER_VALUE,
}


@dataclass
class Scope:
    """What is known where a statement stands. ``shared`` parts hold for the whole function."""

    imported: dict[str, str]
    attributes: dict[str, Value] = field(default_factory=dict)  # "self.x" of the class
    evidence: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Scope:
        return replace(self, values=dict(self.values), versions=dict(self.versions))

    def bind(self, name: str, value: Value) -> None:
        """Let a name (or a chain of names) stand for this from here on."""
        self.values[name] = value
        self.versions[name] = self.versions.get(name, 0) + 1

    def known(self, name: str) -> Value:
        """What a name or a chain of names is; its uses in the function count where nothing else is known."""
        found = self.values.get(name) or self.attributes.get(name) or NOTHING
        seen = self.evidence.get(name)
        if found.kind in (UNKNOWN, NONE) and seen == "tensor":
            return tensor(sure=False)
        if found.kind == UNKNOWN and seen == "other":
            return OTHER_VALUE
        return found

    def merge(self, one: Scope, other: Scope) -> None:
        """Take over what holds after either of two ways."""
        for name in {*one.values, *other.values}:
            # A name that only one of the ways binds is that where it is used.
            left, right = one.values.get(name), other.values.get(name)
            self.values[name] = join(left, right) if left and right else left or right or NOTHING
            self.versions[name] = max(one.versions.get(name, 0), other.versions.get(name, 0))


def infer(node: ast.AST | None, scope: Scope) -> Value:
    """The value of an expression."""
    if node is None:
        return NOTHING
    if isinstance(node, ast.Constant):
        return constant(node)
    if isinstance(node, ast.Name):
        return scope.known(node.id)
    rule = _RULES.get(type(node))
    return rule(node, scope) if rule is not None else NOTHING


def _attribute(node: ast.Attribute, scope: Scope) -> Value:
    name = dotted(node)
    if name:
        known = scope.known(name)
        if known.kind != UNKNOWN:
            return known
        full = qualified(node, scope.imported)
        if full:
            return FLOAT if full in ("torch.inf", "torch.nan", "torch.pi", "math.inf", "math.pi") else OTHER_VALUE
    of = infer(node.value, scope)
    if of.is_tensor:
        if node.attr in VIEW_ATTRIBUTES:
            return _view(node.value, of, scope)
        if node.attr == "shape":
            return Value(SIZES)
        return Value(INT, origin="const") if node.attr == "ndim" else OTHER_VALUE
    if of.kind == LIST and of.items is not None and len(of.items) == 2 and node.attr in ("values", "indices"):
        return of.items[node.attr == "indices"]  # of torch.topk and the like
    if isinstance(node.value, ast.Call) and qualified(node.value.func, scope.imported) in _LIMITS:
        return FLOAT  # torch.finfo(x.dtype).min
    if node.attr == "shape" and of.kind == UNKNOWN:
        return Value(SIZES)
    return NOTHING


def _view(base: ast.AST, of: Value, scope: Scope, *, dtype: str | None = None, shape: object = None) -> Value:
    """A view of a tensor, which remembers the names of what it is a view of."""
    name = dotted(base)
    bases = of.bases
    if name:
        bases = ((name, scope.versions.get(name, 0)), *bases)
    return Value(TENSOR, of.dtype if dtype is None else dtype, of.sure, bases, shape or object())


def _subscript(node: ast.Subscript, scope: Scope) -> Value:
    of = infer(node.value, scope)
    if of.kind == SIZES:
        return Value(SIZES) if isinstance(node.slice, ast.Slice) else Value(INT, origin="size")
    if of.kind == LIST:
        at = node.slice
        if isinstance(at, ast.UnaryOp) and isinstance(at.op, ast.USub):
            at = at.operand
        number = at.value if isinstance(at, ast.Constant) and isinstance(at.value, int) else None
        if number is not None and of.items is not None and 0 < number + 1 <= len(of.items) and at is node.slice:
            return of.items[number]
        return of if isinstance(node.slice, ast.Slice) else of.element or NOTHING
    if of.is_tensor:
        from graphfix.scanning.index import advanced

        if advanced(node.slice, scope):
            return tensor(of.dtype, sure=of.sure)
        return _view(node.value, of, scope)
    return of if of == ARRAY else NOTHING


def _call(node: ast.Call, scope: Scope) -> Value:
    full = qualified(node.func, scope.imported)
    if full:
        return _function(full, node, scope)
    if isinstance(node.func, ast.Attribute):
        of = infer(node.func.value, scope)
        if of.is_tensor:
            return _method(node.func, of, node, scope)
        if of == ARRAY or (of.kind == LIST and node.func.attr == "copy"):
            return of
        return _unknown_method(node.func, node, scope) if of.kind == UNKNOWN else NOTHING
    name = dotted(node.func)
    if name in scope.values:
        called = scope.values[name]
        return called.element or NOTHING if called.kind == OTHER else NOTHING
    if name in ("int", "float", "round", "abs", "len", "max", "min", "sum", "divmod"):
        return _number_call(name, node, scope)
    if name in ("list", "tuple", "sorted", "reversed") and len(node.args) == 1:
        of = infer(node.args[0], scope)
        return Value(LIST, element=of.element, items=of.items) if of.kind == LIST else Value(LIST)
    return _BUILTINS.get(name, NOTHING)


def _number_call(name: str, node: ast.Call, scope: Scope) -> Value:
    given = [infer(argument, scope) for argument in node.args]
    if name == "len":
        return Value(INT, origin="size" if given and given[0].is_tensor else "")
    if any(value.is_tensor for value in given):
        if name in ("int", "float"):
            return Value(INT, origin="item") if name == "int" else FLOAT
        return tensor()
    if name == "int":
        return number_of([value for value in given if value.kind in (INT, UNKNOWN)] or [CONSTANT])
    if name == "float":
        return FLOAT
    if given and all(value.kind == INT for value in given):
        return number_of(given)
    return FLOAT if given and all(value.kind in (INT, NUMBER) for value in given) else NOTHING


def _keyword(node: ast.Call, name: str) -> ast.AST | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def dtype_of(node: ast.AST | None) -> str:
    """bool, int or float, of torch.bool and the like; "" when it is not one."""
    name = dotted(node).rpartition(".")[2] if node is not None else ""
    if name == "bool":
        return "bool"
    if name in ("long", "int", "int64", "int32", "int16", "int8", "short"):
        return "int"
    return "float" if name in ("float", "float32", "float64", "float16", "half", "double", "bfloat16") else ""


def _function(full: str, node: ast.Call, scope: Scope) -> Value:
    package, _, name = full.rpartition(".")
    if full.split(".")[0] in FOREIGN:
        return _foreign(full)
    first = infer(node.args[0], scope) if node.args else NOTHING
    if package in TENSOR_NAMESPACES:
        if name in TORCH_OTHER:
            return Value(LIST) if name == "broadcast_shapes" else OTHER_VALUE
        if name in VIEW_LISTS and first.is_tensor:
            return Value(LIST, element=_view(node.args[0], first, scope))
        if name in TORCH_LISTS:
            return Value(LIST, element=tensor("int" if name == "meshgrid" and first.dtype == "int" else ""))
        if package == "torch" and name[:1].isupper() and name not in ("Tensor",) and not name.endswith("Tensor"):
            return OTHER_VALUE
        return _result(name, first, node, scope, view_of=node.args[0] if node.args else None)
    if full in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return tensor(first.dtype if first.is_tensor else "float")
    if package.startswith(NN_PACKAGES) or package == "torch.nn":
        # A layer: what calling it gives is kept in `element`.
        return Value(OTHER, element=None if name in NN_OTHER else tensor("float"))
    return NOTHING


def _foreign(full: str) -> Value:
    if full.startswith("math."):
        return FLOAT
    return ARRAY if full.split(".")[0] in ("numpy", "pandas", "cupy", "jax", "cv2", "scipy") else OTHER_VALUE


def _result(name: str, first: Value, node: ast.Call, scope: Scope, *, view_of: ast.AST | None) -> Value:
    """What a function or method of this name gives for its first operand."""
    base = name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name
    if name == "where" and len(node.args) == 1 and view_of is not None and node.args[0] is view_of:
        return Value(LIST, element=tensor("int"))
    as_tuple = _keyword(node, "as_tuple")
    if name == "nonzero" and isinstance(as_tuple, ast.Constant) and as_tuple.value:
        return Value(LIST, element=tensor("int"))
    operands = [argument for argument in node.args if argument is not view_of]
    if base in VALUES_AND_INDICES and (operands or _keyword(node, "dim") is not None or base in ("topk", "sort")):
        if not operands or not infer(operands[0], scope).is_tensor:
            return Value(LIST, items=(tensor(first.dtype), tensor("int")), element=tensor())
        return tensor(first.dtype, sure=first.sure)
    if name in VIEWS and view_of is not None and first.is_tensor:
        return _view(view_of, first, scope)
    shape = first.shape if base in SAME_SHAPE and first.is_tensor else None
    if base in BOOL_RESULT and len(operands) == 1 and shape is not None:
        shape = shape if infer(operands[0], scope).kind in (INT, NUMBER) else None
    dtype = dtype_of(_keyword(node, "dtype"))
    if not dtype and base in ("to", "type"):
        dtype = next((found for found in map(dtype_of, operands) if found), "")
    if not dtype and base in BOOL_RESULT:
        dtype = "bool"
    elif not dtype and base in INT_RESULT:
        dtype = "int"
    elif not dtype and base in FLOAT_RESULT:
        dtype = "float"
    elif not dtype and base == "arange":
        dtype = "float" if any(infer(a, scope).kind == NUMBER for a in node.args) else "int"
    elif not dtype and base in ("tensor", "as_tensor"):
        dtype = _literal_dtype(node.args[0]) if node.args else ""
    elif not dtype and base == "where" and view_of is not None:
        pick = infer(node.args[1], scope) if len(node.args) > 2 else NOTHING
        dtype = pick.dtype if pick.is_tensor else ""
    elif not dtype and (base in SAME_DTYPE) and first.is_tensor:
        dtype = first.dtype
    return tensor(dtype, sure=first.sure if first.is_tensor else True, shape=shape)


def _literal_dtype(node: ast.AST) -> str:
    leaves = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    if not leaves or not isinstance(node, (ast.List, ast.Tuple, ast.Constant)):
        return ""
    if all(isinstance(leaf, bool) for leaf in leaves):
        return "bool"
    if all(isinstance(leaf, int) for leaf in leaves):
        return "int"
    return "float" if all(isinstance(leaf, (int, float)) for leaf in leaves) else ""


def _method(func: ast.Attribute, of: Value, node: ast.Call, scope: Scope) -> Value:
    name = func.attr
    if name == "item":
        return Value(INT, origin="item") if of.dtype != "float" else FLOAT
    if name == "size":
        return Value(INT, origin="size") if node.args or node.keywords else Value(SIZES)
    if name == "dim":
        return CONSTANT
    if name in ("numel", "nelement"):
        return Value(INT, origin="size")
    if name == "tolist":
        return Value(LIST, element=Value(INT, origin="item"))
    if name in NOT_TENSORS:
        return ARRAY if name == "numpy" else OTHER_VALUE
    if name in VIEW_LISTS:
        return Value(LIST, element=_view(func.value, of, scope))
    if name.endswith("_") and not name.endswith("__"):
        return of  # in place: the tensor itself
    return _result(name, of, node, scope, view_of=func.value if name in VIEWS else None)


def _unknown_method(func: ast.Attribute, node: ast.Call, scope: Scope) -> Value:
    """A method of something unknown, or a layer of the module: some names can mean only one thing."""
    name = func.attr
    if name == "size":
        return Value(INT, origin="size") if node.args else Value(SIZES)
    if name == "item":
        return Value(INT, origin="item")
    if name == "tolist":
        return Value(LIST)
    if name == "numpy":
        return ARRAY
    layer = scope.attributes.get(dotted(func))
    if layer is not None and layer.kind == OTHER and layer.element is not None:
        return layer.element
    if name in ("masked_fill", "unsqueeze", "new_zeros", "new_ones", "new_full", "new_empty", "permute", "contiguous"):
        return _result(name, NOTHING, node, scope, view_of=None)
    if name in ("isnan", "isinf", "logical_not", "logical_and", "logical_or"):
        return tensor("bool", sure=False)
    return NOTHING


def _binary(node: ast.BinOp, scope: Scope) -> Value:
    left, right = infer(node.left, scope), infer(node.right, scope)
    if left.kind in (INT, UNKNOWN) and right.kind in (INT, UNKNOWN):
        if left.kind == right.kind == INT:
            return FLOAT if isinstance(node.op, ast.Div) else number_of([left, right])
        known = left if left.kind == INT else right
        if known.kind == INT and known.origin in ("size", "item") and not isinstance(node.op, ast.Mult):
            return known
        return Value(dtype="bool") if "bool" in (left.dtype, right.dtype) and _logical(node.op) else NOTHING
    if left.is_tensor or right.is_tensor:
        sides = [side for side in (left, right) if side.is_tensor]
        logical = _logical(node.op)
        if logical and all(side.dtype in ("bool", "") for side in sides):
            dtype = "bool"
        elif isinstance(node.op, ast.Div):
            dtype = "float"
        elif len(sides) == 2:
            dtype = left.dtype if left.dtype == right.dtype else "float" if "float" in (left.dtype, right.dtype) else ""
        else:
            other = right if left.is_tensor else left
            dtype = "float" if other.kind == NUMBER and not logical else sides[0].dtype
        same = len(sides) == 1 and (right if left.is_tensor else left).kind in (INT, NUMBER)
        shape = sides[0].shape if same or (len(sides) == 2 and sides[0].shape is sides[1].shape) else None
        return tensor(dtype, sure=any(side.sure for side in sides), shape=shape)
    if left.kind in (INT, NUMBER) and right.kind in (INT, NUMBER):
        return FLOAT
    if left.kind == LIST and isinstance(node.op, (ast.Add, ast.Mult)):
        return Value(LIST, element=left.element)
    if ARRAY in (left, right):
        return ARRAY
    if OTHER in (left.kind, right.kind):
        return OTHER_VALUE
    return NOTHING


def _logical(operator: ast.AST) -> bool:
    return isinstance(operator, (ast.BitAnd, ast.BitOr, ast.BitXor))


def _unary(node: ast.UnaryOp, scope: Scope) -> Value:
    of = infer(node.operand, scope)
    if isinstance(node.op, ast.Not):
        return Value(NUMBER, "bool")
    if isinstance(node.op, ast.Invert) and of.kind == UNKNOWN:
        return Value(dtype="bool")  # of an int this is rare, of an array it is a mask
    if of.is_tensor:
        dtype = "bool" if isinstance(node.op, ast.Invert) and not of.dtype else of.dtype
        return replace(of, bases=(), dtype=dtype)
    return of


def _compare(node: ast.Compare, scope: Scope) -> Value:
    sides = [infer(side, scope) for side in (node.left, *node.comparators)]
    if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
        return Value(NUMBER, "bool")
    tensors = [side for side in sides if side.is_tensor]
    if tensors:
        scalars = all(side.kind in (INT, NUMBER) or side.is_tensor for side in sides)
        shape = tensors[0].shape if scalars and all(t.shape is tensors[0].shape for t in tensors) else None
        return tensor("bool", sure=any(t.sure for t in tensors), shape=shape)
    if any(side.kind == OTHER for side in sides):
        return OTHER_VALUE
    if any(side.kind == UNKNOWN for side in sides):
        return Value(dtype="bool")
    return Value(NUMBER, "bool")


def _choice(node: ast.IfExp, scope: Scope) -> Value:
    return join(infer(node.body, scope), infer(node.orelse, scope))


def _either(node: ast.BoolOp, scope: Scope) -> Value:
    found = infer(node.values[0], scope)
    for value in node.values[1:]:
        found = join(found, infer(value, scope))
    return found


def _list(node: ast.List | ast.Tuple, scope: Scope) -> Value:
    if any(isinstance(each, ast.Starred) for each in node.elts):
        return Value(LIST)
    items = tuple(infer(each, scope) for each in node.elts)
    element = items[0] if items else None
    for item in items[1:]:
        element = join(element, item)
    return Value(LIST, element=element, items=items if len(items) <= 16 else None)


def _comprehension(node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value:
    inner = scope.copy()
    for generator in node.generators:
        bind(generator.target, element_of(generator.iter, inner), inner)
    return Value(LIST, element=infer(node.elt, inner))


def element_of(node: ast.AST, scope: Scope) -> Value:
    """What a loop over an expression gives each time."""
    if isinstance(node, ast.Call) and dotted(node.func) == "range":
        origin = number_of([infer(argument, scope) for argument in node.args]).origin
        return Value(INT, origin={"size": "loop-size", "item": "loop-tensor"}.get(origin, origin))
    if isinstance(node, ast.Call) and dotted(node.func) == "enumerate" and node.args:
        inner = element_of(node.args[0], scope)
        over = infer(node.args[0], scope)
        count = Value(INT, origin="loop-size" if over.is_tensor else "const" if over.kind == LIST else "")
        return Value(LIST, items=(count, inner))
    if isinstance(node, ast.Call) and dotted(node.func) == "zip":
        return Value(LIST, items=tuple(element_of(argument, scope) for argument in node.args))
    of = infer(node, scope)
    if of.is_tensor:
        return replace(_view(node, of, scope), origin="loop-tensor")
    return of.element or NOTHING if of.kind == LIST else NOTHING


def bind(target: ast.AST, value: Value, scope: Scope) -> None:
    """Bind the names of an assignment's target."""
    if isinstance(target, (ast.Name, ast.Attribute)):
        name = dotted(target)
        if name:
            scope.bind(name, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        starred = any(isinstance(each, ast.Starred) for each in target.elts)
        for number, each in enumerate(target.elts):
            part = value.element or NOTHING
            if value.kind == SIZES:
                part = Value(INT, origin="size")
            elif value.items is not None and len(value.items) == len(target.elts) and not starred:
                part = value.items[number]
            elif value.is_tensor:
                part = replace(tensor(value.dtype, sure=value.sure), bases=value.bases)
            bind(each.value if isinstance(each, ast.Starred) else each, part, scope)


def _named(node: ast.NamedExpr, scope: Scope) -> Value:
    value = infer(node.value, scope)
    bind(node.target, value, scope)
    return value


def parameter(argument: ast.arg, default: ast.AST | None, *, of_forward: bool) -> Value:
    """What a parameter is: by its annotation, its default, or because it is an input of a module."""
    known = annotated(argument.annotation)
    if known is not None and known.kind not in (UNKNOWN, NONE):
        return known
    given = infer(default, Scope({})) if default is not None else NOTHING
    if given.kind in (INT, NUMBER, TEXT.kind, LIST, OTHER):
        return replace(given, origin="")
    return tensor() if of_forward and known is None else NOTHING


_RULES: dict[type[ast.AST], Callable[[Any, Scope], Value]] = {
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.BoolOp: _either,
    ast.List: _list,
    ast.Tuple: _list,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: _named,
    ast.Dict: lambda node, scope: OTHER_VALUE,
    ast.DictComp: lambda node, scope: OTHER_VALUE,
    ast.Set: lambda node, scope: OTHER_VALUE,
    ast.SetComp: lambda node, scope: OTHER_VALUE,
    ast.JoinedStr: lambda node, scope: TEXT,
    ast.Lambda: lambda node, scope: OTHER_VALUE,
    ast.Slice: lambda node, scope: Value(SLICE),
}
