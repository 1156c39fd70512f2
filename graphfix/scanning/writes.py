"""Find the index writes of a file: a walk over each function, in order, with what is known of its names."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphfix.scanning.index import (
    ANYTHING,
    ELLIPSIS,
    FULL,
    MASK,
    NEW_AXIS,
    NUMBER_AT,
    POINTS,
    SPAN,
    TENSOR_AT,
    Form,
    Part,
    advanced,
    classify,
    parts,
)
from graphfix.scanning.inference import Scope, bind, element_of, infer, parameter
from graphfix.scanning.names import annotated, imports, qualified, uses
from graphfix.scanning.syntax import Candidates, dotted, nodes, statements
from graphfix.scanning.torch_names import AMBIGUOUS_METHODS, INPLACE, METHODS, VIEWS
from graphfix.scanning.values import (
    INT,
    LIST,
    NONE,
    NOTHING,
    NUMBER,
    OTHER,
    SIZES,
    STRING,
    UNKNOWN,
    Value,
    join,
    tensor,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What runs before a model is exported, and never in it.
_BEFORE_EXPORT = ("__init__", "__post_init__", "reset_parameters", "init_weights", "_init_weights", "__setstate__")
_REGISTER = ("self.register_buffer", "self.register_parameter")
_NO_ARRAY = (LIST, OTHER, SIZES, STRING, NUMBER, INT)
_TORCH_PACKAGES = ("torch", "timm", "einops", "lightning", "pytorch_lightning", "transformers", "mmcv", "mmengine")


@dataclass
class Write:
    """An index write: where it stands (``node``), what it writes into, its form, and what that rests on."""

    node: ast.AST
    statement: ast.AST
    target: str
    form: Form
    sure: bool
    function: str


@dataclass
class _Context:
    """What holds for a whole file."""

    imported: dict[str, str]
    modules: set[str]
    candidates: Candidates
    writes: dict[tuple[int, int], Write] = field(default_factory=dict)


def find_writes(tree: ast.Module, text: str) -> list[Write]:
    """The index writes of a file, in its order. ``text`` is the source that was parsed."""
    imported = imports(tree)
    uses_torch = any(name.lstrip(".").split(".")[0] in _TORCH_PACKAGES for name in imported.values())
    if not uses_torch:
        return []
    context = _Context(imported, _modules(tree, imported), Candidates(text))
    own = list(nodes(tree.body, within=True))
    _Walker(context, Scope(imported), "", tree.body, own, is_module=False).run()
    return [context.writes[key] for key in sorted(context.writes)]


def _modules(tree: ast.Module, imported: dict[str, str]) -> set[str]:
    """Names of the classes that are, as far as one sees, subclasses of torch.nn.Module."""
    classes = [node for node in statements(tree.body) if isinstance(node, ast.ClassDef)]
    found: set[str] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for node in classes:
            bases = [dotted(base) for base in node.bases]
            full = [qualified(base, imported) or dotted(base) for base in node.bases]
            has_forward = any(isinstance(each, ast.FunctionDef) and each.name == "forward" for each in node.body)
            is_function = any(name.endswith("autograd.Function") for name in full)
            named = any("nn." in name or name.endswith("Module") for name in full)
            if named or any(base in found for base in bases) or (has_forward and bases and not is_function):
                found.add(node.name)
    return found


class _Walker:
    """Walks the statements of one function (or of a file's top level)."""

    def __init__(
        self,
        context: _Context,
        scope: Scope,
        function: str,
        body: list[ast.stmt],
        own: list[ast.AST],
        *,
        is_module: bool,
    ) -> None:
        self.context = context
        self.scope = scope
        self.function = function
        self.body = body
        self.is_module = is_module
        self.recording = True
        self.loops: list[ast.AST] = []
        scope.evidence = {**scope.evidence, **uses(own, context.imported)}
        names = {qualified(node, context.imported).split(".")[0] for node in own if isinstance(node, ast.Name)}
        self.mentions_torch = "torch" in names
        self.mentions_foreign = bool(names & {"numpy", "pandas", "cv2", "PIL", "jax", "tensorflow", "mlx", "cupy"})
        self.events = _events(own)

    def run(self) -> None:
        self._block(self.body, self.scope)

    # --- statements

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._nested(node, scope)
        elif isinstance(node, ast.ClassDef):
            if self.recording and self.context.candidates.within(node):
                _walk_class(self.context, node, self.function, scope)
        elif isinstance(node, ast.Assign):
            self._calls(node.value, node, scope)
            value = infer(node.value, scope)
            for target in node.targets:
                self._assign(target, node.value, value, node, scope)
        elif isinstance(node, ast.AnnAssign):
            self._calls(node.value, node, scope)
            value = annotated(node.annotation) or infer(node.value, scope)
            self._assign(node.target, node.value, value, node, scope)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node, scope)
        elif isinstance(node, ast.If):
            self._if(node, scope)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._loop(node, scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._calls(item.context_expr, node, scope)
                if item.optional_vars is not None:
                    bind(item.optional_vars, NOTHING, scope)
            self._block(node.body, scope)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._try(node, scope)  # type: ignore[arg-type]
        elif isinstance(node, ast.Match):
            for case in node.cases:
                branch = scope.copy()
                self._block(case.body, branch)
                scope.merge(branch, scope)
        else:
            for child in ast.iter_child_nodes(node):
                self._calls(child, node, scope)

    def _nested(self, node: Function, scope: Scope) -> None:
        scope.bind(node.name, Value(OTHER))
        if self.recording and self.context.candidates.within(node):
            inner = scope.copy()
            inner.evidence = {}
            name = f"{self.function}.{node.name}" if self.function else node.name
            _walk_function(self.context, node, name, inner, is_module=self.is_module, of_forward=False)

    def _if(self, node: ast.If, scope: Scope) -> None:
        self._calls(node.test, node, scope)
        self._narrow(node.test, scope)
        body, orelse = scope.copy(), scope.copy()
        training = _training(node.test)
        recording = self.recording
        self.recording = recording and training is not True  # an export runs in eval mode
        self._narrow_type(node.test, body)
        self._block(node.body, body)
        self.recording = recording and training is not False
        self._block(node.orelse, orelse)
        self.recording = recording
        if _leaves(node.body) and not _leaves(node.orelse):
            body = orelse
        elif _leaves(node.orelse):
            orelse = body
        scope.merge(body, orelse)

    def _narrow(self, test: ast.AST, scope: Scope) -> None:
        """Names that a walrus in the test binds."""
        for node in nodes([test]):
            if isinstance(node, ast.NamedExpr):
                infer(node, scope)

    def _narrow_type(self, test: ast.AST, scope: Scope) -> None:
        if isinstance(test, ast.Call) and dotted(test.func) == "isinstance" and len(test.args) == 2:
            name, known = dotted(test.args[0]), annotated(test.args[1])
            if name and known is not None and known.kind != UNKNOWN:
                scope.bind(name, known)
        elif isinstance(test, ast.Call) and qualified(test.func, scope.imported) == "torch.is_tensor":
            name = dotted(test.args[0]) if test.args else ""
            if name:
                scope.bind(name, tensor())

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        if not isinstance(node, ast.While):
            self._calls(node.iter, node, scope)
        else:
            self._calls(node.test, node, scope)
        before = scope.copy()
        if not self.loops:  # what the body binds holds at its beginning, too
            recording, self.recording = self.recording, False
            self._once(node, scope)
            self.recording = recording
            scope.merge(before, scope.copy())
        self.loops.append(node)
        self._once(node, scope)
        self.loops.pop()
        scope.merge(before, scope.copy())
        self._block(node.orelse, scope)

    def _once(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        if not isinstance(node, ast.While):
            if isinstance(node.target, ast.Subscript):
                self._subscript_write(node.target, None, node, scope)
            bind(node.target, element_of(node.iter, scope), scope)
        self._block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        self._block(node.body, scope)
        for handler in node.handlers:
            branch = scope.copy()
            self._block(handler.body, branch)
            if not _leaves(handler.body):
                scope.merge(scope.copy(), branch)
        self._block(node.orelse, scope)
        self._block(node.finalbody, scope)

    # --- writes

    def _assign(self, target: ast.AST, source: ast.AST | None, value: Value, statement: ast.stmt, scope: Scope) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            bind(target, value, scope)
            self._unpacked(target, source, statement, scope)
        elif isinstance(target, ast.Subscript):
            self._subscript_write(target, source, statement, scope)
        elif isinstance(target, ast.Starred):
            bind(target.value, Value(LIST), scope)
        elif source is not None or value.kind != UNKNOWN:
            bind(target, value, scope)

    def _unpacked(
        self, target: ast.Tuple | ast.List, source: ast.AST | None, statement: ast.stmt, scope: Scope
    ) -> None:
        """The writes among the targets of an assignment to several."""
        sources: list[ast.expr | None] = list(source.elts) if isinstance(source, (ast.Tuple, ast.List)) else []
        if len(sources) != len(target.elts):
            sources = [None] * len(target.elts)
        for each, of in zip(target.elts, sources, strict=True):
            inner = each.value if isinstance(each, ast.Starred) else each
            if isinstance(inner, ast.Subscript):
                self._subscript_write(inner, of, statement, scope)
            elif isinstance(inner, (ast.Tuple, ast.List)):
                self._unpacked(inner, of, statement, scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        self._calls(node.value, node, scope)
        if isinstance(node.target, ast.Subscript):
            self._subscript_write(node.target, node.value, node, scope, augmented=True)
            return
        name = dotted(node.target)
        known = infer(node.target, scope)
        if known.is_tensor:
            if self._seen_elsewhere(known, node, scope, own=name):
                self._found(node.target, node, name, Form("GS111", {"write": "operator"}), known, scope)
        elif name:
            value = infer(ast.BinOp(node.target, node.op, node.value), scope)
            bind(node.target, value if known.kind != LIST else known, scope)

    def _subscript_write(
        self,
        target: ast.Subscript,
        source: ast.AST | None,
        statement: ast.AST,
        scope: Scope,
        *,
        augmented: bool = False,
    ) -> None:
        known = infer(target.value, scope)
        if known.kind in _NO_ARRAY:
            return
        items = parts(target.slice, scope)
        form = classify(items, augmented=augmented)
        if form is None:
            return
        if not known.is_tensor and not self._looks_like_a_tensor(target, items, known):
            return
        form.facts |= self._facts(target, items, known, source, scope, augmented)
        form = self._through_view(target, items, form, known, statement, scope)
        self._found(target, statement, _text(target.value), form, known, scope)

    def _through_view(
        self, target: ast.Subscript, items: list[Part], form: Form, known: Value, statement: ast.AST, scope: Scope
    ) -> Form:
        """The form of a write through a view or into a copy, where it is one."""
        inner = target.value
        if known.is_tensor and isinstance(inner, ast.Subscript) and infer(inner.value, scope).is_tensor:
            code = "GS113" if advanced(inner.slice, scope) else "GS112"
            facts = {} if code == "GS113" else {"last": "mask" if form.code in ("GS101", "GS102") else "slice"}
            return Form(code, facts, form.guesses)
        if known.is_tensor and isinstance(inner, ast.Call) and known.bases:
            return Form("GS112", {"last": "mask" if form.code in ("GS101", "GS102") else "slice"}, form.guesses)
        if self._seen_elsewhere(known, statement, scope, own=dotted(inner)):
            kinds = {item.kind for item in items}
            write = "mask" if MASK in kinds else "int" if POINTS in kinds else "slice"
            unclear = not kinds & {MASK, POINTS} and bool(kinds & {TENSOR_AT, ANYTHING})
            return Form("GS111", {} if unclear else {"write": write}, form.guesses)
        return form

    def _facts(
        self,
        target: ast.Subscript,
        items: list[Part],
        known: Value,
        source: ast.AST | None,
        scope: Scope,
        augmented: bool,
    ) -> dict[str, str]:
        facts: dict[str, str] = {}
        value = infer(source, scope)
        if source is not None and not augmented:
            if value.kind in (INT, NUMBER):
                facts["value"] = "scalar"
            elif value.is_tensor:
                facts["value"] = "tensor"
        is_bool = known.dtype == "bool" or (isinstance(source, ast.Constant) and isinstance(source.value, bool))
        if is_bool or known.dtype or (isinstance(source, ast.Constant) and isinstance(source.value, (int, float))):
            facts["data"] = "bool" if is_bool else "other"
        if len(items) == 1 and items[0].kind == MASK:
            if known.shape is not None and items[0].value.shape is known.shape:
                facts["mask"] = "full"
            if source is not None:
                index = ast.dump(target.slice)
                reads = (n for n in ast.walk(source) if isinstance(n, ast.Subscript))
                facts["same"] = "yes" if any(ast.dump(n.slice) == index for n in reads) else "no"
        return facts

    def _looks_like_a_tensor(self, target: ast.Subscript, items: list[Part], known: Value) -> bool:
        """Whether the index speaks for a tensor, where nothing is known of the target."""
        if known.kind not in (UNKNOWN, NONE):
            return False
        if any(item.value.is_tensor and item.value.sure and item.kind in (MASK, POINTS, TENSOR_AT) for item in items):
            return True
        if self.mentions_foreign or not (self.is_module or self.mentions_torch):
            return False
        several = isinstance(target.slice, ast.Tuple) and any(
            item.kind in (SPAN, FULL, ELLIPSIS, NEW_AXIS, MASK) for item in items
        )
        compared = isinstance(target.slice, (ast.Compare, ast.BinOp, ast.UnaryOp)) and items[0].kind == MASK
        return several or items[0].kind == ELLIPSIS or compared

    def _seen_elsewhere(self, known: Value, statement: ast.AST, scope: Scope, *, own: str) -> bool:
        """Whether what this value is a view of is read after the write, under its own name."""
        for name, version in known.bases:
            if name == own or scope.versions.get(name, 0) != version:
                continue
            if name.startswith("self.") or self._read_after(name, statement):
                return True
        return False

    def _read_after(self, name: str, statement: ast.AST) -> bool:
        end = (getattr(statement, "end_lineno", 0), getattr(statement, "end_col_offset", 0))
        events = self.events.get(name, [])
        following = [stored for at, stored in events if at > end]
        if following and not following[0]:
            return True
        for loop in self.loops:
            begin = (loop.body[0].lineno, loop.body[0].col_offset)  # type: ignore[attr-defined]
            inside = [stored for at, stored in events if begin <= at <= end]
            if inside and not any(inside) and not following:
                return False  # the loop only reads the views themselves
        return False

    # --- calls

    def _calls(self, node: ast.AST | None, statement: ast.AST, scope: Scope) -> None:
        """The calls within an expression that write by index, or change a view in place."""
        if node is None:
            return
        for each in nodes([node]):
            if isinstance(each, ast.Call):
                self._call(each, statement, scope)

    def _call(self, node: ast.Call, statement: ast.AST, scope: Scope) -> None:
        full = qualified(node.func, self.context.imported)
        if full:
            package, _, name = full.rpartition(".")
            if package == "torch" and name in METHODS and node.args:
                self._method(node, name, node.args[0], node.args[1:], statement, scope, sure=True)
            return
        if not isinstance(node.func, ast.Attribute):
            return
        name, receiver = node.func.attr, node.func.value
        if name == "__setitem__" and len(node.args) == 2:
            subscript = ast.copy_location(ast.Subscript(receiver, node.args[0], ast.Store()), node)
            self._subscript_write(subscript, node.args[1], statement, scope)
            return
        if name in INPLACE and self._in_place(node, name, receiver, statement, scope):
            return
        base = name.removesuffix("_")
        if base in METHODS and not (base == "scatter" and name == "scatter" and not self._is_scatter(node, scope)):
            self._method(node, name, receiver, node.args, statement, scope, sure=False)

    def _is_scatter(self, node: ast.Call, scope: Scope) -> bool:
        """x.scatter(dim, index, src), and not that of a plot or of a process group."""
        assert isinstance(node.func, ast.Attribute)
        known = infer(node.func.value, scope)
        first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "dim"), None)
        if known.is_tensor:
            return infer(first, scope).kind in (INT, UNKNOWN)
        count = len(node.args) + len(node.keywords)
        return known.kind == UNKNOWN and count >= 3 and infer(first, scope).kind == INT and bool(dotted(node.func))

    def _in_place(self, node: ast.Call, name: str, receiver: ast.AST, statement: ast.AST, scope: Scope) -> bool:
        """A change in place through a view, or of a copy. Returns whether it is one."""
        known = infer(receiver, scope)
        if isinstance(receiver, ast.Subscript):
            of = infer(receiver.value, scope)
            items = parts(receiver.slice, scope)
            shaped = any(item.kind in (SPAN, FULL, ELLIPSIS, NEW_AXIS) for item in items) and len(items) > 1
            if not of.is_tensor and not (of.kind == UNKNOWN and shaped):
                return False
            guesses = [f"{item.guessed} is a tensor" for item in items if item.guessed]
            if advanced(receiver.slice, scope):
                self._found(node, statement, _text(receiver.value), Form("GS113", {}, guesses), of, scope)
            elif all(item.kind in (SPAN, FULL, ELLIPSIS, NEW_AXIS, NUMBER_AT) for item in items):
                chained = isinstance(receiver.value, ast.Subscript)
                facts = {} if chained else {"last": "write" if name.removesuffix("_") in METHODS else "method"}
                self._found(node, statement, _text(receiver.value), Form("GS112", facts), of, scope)
            else:
                return False
            return True
        if not known.is_tensor:
            return False
        if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute) and receiver.func.attr in VIEWS:
            if known.bases and receiver.func.attr != "detach":
                self._found(
                    node, statement, _text(receiver.func.value), Form("GS112", {"last": "method"}), known, scope
                )
                return True
            return False
        own = dotted(receiver)
        if own and self._seen_elsewhere(known, statement, scope, own=own):
            self._found(node, statement, own, Form("GS111", {"write": "method"}), known, scope)
            return True
        return False

    def _method(
        self,
        node: ast.Call,
        name: str,
        receiver: ast.AST,
        arguments: list[ast.expr],
        statement: ast.AST,
        scope: Scope,
        *,
        sure: bool,
    ) -> None:
        known = infer(receiver, scope)
        if known.kind in _NO_ARRAY:
            return
        base = name.removesuffix("_")
        form = Form(METHODS[base], {"place": "in" if name.endswith("_") else "new"})
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if base == "index_put":
            accumulate = given.get("accumulate") or (arguments[2] if len(arguments) > 2 else None)
            if accumulate is not None and not (isinstance(accumulate, ast.Constant) and not accumulate.value):
                form.code = "GS207"
            indices = given.get("indices") or (arguments[0] if arguments else None)
            kinds = (
                {part.kind for part in parts(indices, scope)} if isinstance(indices, (ast.Tuple, ast.List)) else set()
            )
            if kinds and form.code == "GS206" and not kinds & {ANYTHING, TENSOR_AT}:
                form.facts["index"] = "mask" if MASK in kinds else "int"
        elif base in ("scatter", "scatter_reduce"):
            self._reduction(form, base, given, arguments)
            value = infer(
                given.get("src") or given.get("value") or (arguments[2] if len(arguments) > 2 else None), scope
            )
            if "value" in given or value.kind in (INT, NUMBER):
                form.facts["value"] = "scalar"
            elif value.is_tensor:
                form.facts["value"] = "tensor"
        elif form.code == "GS211":
            form.facts["method"] = base
        filler = given.get("value") or (arguments[1] if len(arguments) > 1 else None)
        filled = infer(filler, scope) if base == "masked_fill" else NOTHING
        if known.dtype or filled.kind in (INT, NUMBER):
            is_bool = known.dtype == "bool" or filled.dtype == "bool"
            form.facts["data"] = "bool" if is_bool else "other"
        certain = sure or base not in AMBIGUOUS_METHODS
        if known.is_tensor and known.sure:
            certain = True
        self._record(node, statement, _text(receiver), form, certain)

    @staticmethod
    def _reduction(form: Form, base: str, given: dict, arguments: list[ast.expr]) -> None:
        reduce = given.get("reduce") or (arguments[3] if len(arguments) > 3 else None)
        include = given.get("include_self")
        if isinstance(include, ast.Constant) and include.value is False:
            form.facts["self"] = "no"
        if reduce is None:
            return
        name = reduce.value if isinstance(reduce, ast.Constant) else None
        form.code = "GS210"
        if isinstance(name, str):
            form.facts["reduce"] = {"add": "sum", "multiply": "prod"}.get(name, name)

    # --- results

    def _found(self, node: ast.AST, statement: ast.AST, target: str, form: Form, known: Value, scope: Scope) -> None:
        self._record(node, statement, target, form, known.is_tensor and known.sure)

    def _record(self, node: ast.AST, statement: ast.AST, target: str, form: Form, sure: bool) -> None:
        if not self.recording or self.function.rpartition(".")[2] in _BEFORE_EXPORT:
            return
        key = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        self.context.writes.setdefault(key, Write(node, statement, target, form, sure, self.function))


def _walk_class(context: _Context, node: ast.ClassDef, outer: str, scope: Scope) -> None:
    name = f"{outer}.{node.name}" if outer else node.name
    is_module = node.name in context.modules
    attributes = _attributes(node, context, is_module)
    body = [each for each in node.body if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    own = list(nodes(body, within=True))
    _Walker(context, Scope(context.imported), name, body, own, is_module=False).run()
    methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    used = uses(nodes(methods), context.imported)
    evidence = {key: kind for key, kind in used.items() if key.startswith("self.")}
    for each in node.body:
        if not context.candidates.within(each):
            continue
        if isinstance(each, ast.ClassDef):
            _walk_class(context, each, name, scope)
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = Scope(context.imported, attributes, evidence)
            of_forward = is_module and each.name == "forward"
            _walk_function(context, each, f"{name}.{each.name}", inner, is_module=is_module, of_forward=of_forward)


def _walk_function(
    context: _Context, node: Function, name: str, scope: Scope, *, is_module: bool, of_forward: bool
) -> None:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = list(zip(positional + given.kwonlyargs, defaults + list(given.kw_defaults), strict=True))
    own = list(nodes(node.body, within=True))
    used = uses(own, context.imported)
    for number, (argument, default) in enumerate(pairs):
        if number == 0 and argument.arg in ("self", "cls"):
            continue
        value = parameter(argument, default, of_forward=of_forward)
        if argument.annotation is None and value.is_tensor and used.get(argument.arg, "tensor") != "tensor":
            value = Value(OTHER) if used[argument.arg] == "other" else NOTHING
        scope.bind(argument.arg, value)
    if given.vararg:
        scope.bind(given.vararg.arg, Value(LIST, element=annotated(given.vararg.annotation)))
    if given.kwarg:
        scope.bind(given.kwarg.arg, Value(OTHER))
    _Walker(context, scope, name, node.body, own, is_module=is_module).run()


def _attributes(node: ast.ClassDef, context: _Context, is_module: bool) -> dict[str, Value]:
    """What the methods of a class assign to self."""
    found: dict[str, list[Value]] = {}
    scope = Scope(context.imported)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            known = annotated(line.annotation)
            if known is not None:
                found.setdefault(f"self.{line.target.id}", []).append(known)
        elif isinstance(line, ast.Assign):
            for target in line.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(f"self.{target.id}", []).append(infer(line.value, scope))
    for method in node.body:
        if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inner = Scope(context.imported)
        for argument in [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]:
            known = annotated(argument.annotation)
            if known is not None:
                inner.bind(argument.arg, known)
        for statement in statements(method.body):
            each: ast.AST = statement.value if isinstance(statement, ast.Expr) else statement
            if isinstance(each, ast.Assign):
                value = infer(each.value, inner)
                for target in each.targets:
                    name = dotted(target)
                    if name.startswith("self.") and name.count(".") == 1:
                        found.setdefault(name, []).append(value)
                    elif name and "." not in name:
                        inner.bind(name, value)
            elif isinstance(each, ast.AnnAssign) and dotted(each.target).startswith("self."):
                known = annotated(each.annotation) or infer(each.value, inner)
                found.setdefault(dotted(each.target), []).append(known)
            elif isinstance(each, ast.Call) and dotted(each.func) in _REGISTER and each.args:
                named = each.args[0].value if isinstance(each.args[0], ast.Constant) else None
                value = infer(each.args[1], inner) if len(each.args) > 1 else NOTHING
                if isinstance(named, str):
                    found.setdefault(f"self.{named}", []).append(value if value.is_tensor else tensor())
    result = {}
    for name, values in found.items():
        value = values[0]
        for other in values[1:]:
            value = join(value, other)
        result[name] = Value(value.kind, value.dtype, value.sure, (), value.shape, "", value.element, value.items)
        if value.kind == INT:
            result[name] = Value(INT, origin=value.origin if value.origin in ("const", "size") else "const")
    return result


def _events(own: Iterable[ast.AST]) -> dict[str, list[tuple[tuple[int, int], bool]]]:
    """For each name, where it is read (False) and bound (True), in order."""
    found: dict[str, list[tuple[tuple[int, int], bool]]] = {}
    for node in own:
        if node.__class__ is ast.Name or node.__class__ is ast.Attribute:
            name = dotted(node)
            if name:
                stored = isinstance(node.ctx, (ast.Store, ast.Del))
                # What a statement binds is bound after its right side was read.
                found.setdefault(name, []).append(((node.lineno, node.col_offset + (1 << 20 if stored else 0)), stored))
    for events in found.values():
        events.sort()
    return found


def _training(test: ast.AST) -> bool | None:
    """True for `if self.training`, False for `if not self.training`, None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _training(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return True if any(_training(value) is True for value in test.values) else None
    return True if isinstance(test, ast.Attribute) and test.attr == "training" else None


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
