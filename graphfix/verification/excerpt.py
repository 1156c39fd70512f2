"""Excerpt one rewrite out of a model: what was there and what takes its place, as two small models of the same inputs.

The two are cut where the new nodes begin. A tensor at the cut becomes an input, and may then hold anything; so what the
rewrite may have known about it has to hold by construction. Facts (graphfix.facts) come from how a tensor was made:
indices from TopK are unique, those from NonZero are in range, a mask is the negation of another, one size is another's
double. The cut therefore goes further back wherever a tensor's makers are such that facts see through them, and input
shapes are the polynomials over sizes that the facts state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from graphfix import aten
from graphfix.builder import Builder
from graphfix.facts import Facts
from graphfix.graph import Constant, Node, Scope, Value
from graphfix.model_io import tensor_bytes
from graphfix.symbolic import Expr, product

OUTPUT = "graphfix/output"

_INTEGERS = frozenset(
    {
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.INT16,
        TensorProto.INT8,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
)
# Operators that move or repeat values, and make none: facts look through them.
_MOVES = frozenset(
    [
        "Concat",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
# Results of these depend on the order or the lanes in which they are computed.
_ROUNDED = frozenset(
    (
        *(
            "MatMul",
            "Gemm",
            "Einsum",
            "CumSum",
            "Softmax",
            "LogSoftmax",
            "Exp",
            "Log",
            "Tanh",
            "Sigmoid",
            "Erf",
            "Gelu",
        ),
        *("Softplus", "Pow", "Sin", "Cos", "Mish", "LayerNormalization", "ReduceLogSumExp", "ReduceL2", "Conv"),
        *("ReduceSum", "ReduceMean", "ReduceProd", "ReduceSumSquare", "ReduceL1"),
    )
)
_LAYOUT = ("Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_MOST_NODES = 600  # of one side: beyond that, the whole-model check has to do
_MOST_STEPS_BACK = 400
_MOST_MOVES = 12  # float tensors are followed only so far: what facts say about floats is local
_LARGE = 1 << 20  # bytes of a constant that is not copied but made an input, if it holds floats
_HUGE = 1 << 24


class Inseparable(Exception):
    """The rewrite cannot be checked alone; the message says why."""


@dataclass(frozen=True)
class ExcerptInput:
    """A tensor at the cut. ``nonnegative`` is for integers that the facts know to be so."""

    name: str
    dtype: int
    shape: tuple[Expr, ...]
    nonnegative: bool = False


@dataclass(frozen=True)
class Excerpt:
    """``before`` and ``after`` have the inputs ``inputs`` and one output, `OUTPUT`.

    ``rounds`` says that they compute floats in an order, or in lanes, of their own, ``multiplies`` that products are
    among that: they overflow and vanish in one order and not in another.
    """

    before: onnx.ModelProto
    after: onnx.ModelProto
    inputs: tuple[ExcerptInput, ...]
    rounds: bool
    multiplies: bool


def excerpt(builder: Builder, result: Value) -> Excerpt:
    """The excerpt of a rewrite that was emitted but not yet put in place. Raises Inseparable."""
    return _Search(builder, result).excerpt()


class _Search:
    def __init__(self, builder: Builder, result: Value) -> None:
        self.scope: Scope = builder.scope
        self.facts: Facts = builder.facts
        self.old: Value = builder.anchor.outputs[0]
        self.new = result
        self.anchor = builder.anchor
        self.own = set(builder.nodes)
        self.functions = {(f.domain, f.name) for f in self.scope.model.proto.functions}
        self.leaves: dict[Value, None] = {}
        self.counted = self.counts()

    def counts(self) -> set[str]:
        """Names of sizes that masks decide: what has such a size has as many rows as the mask selects."""
        named: set[str] = set()
        for node in self.scope.nodes:
            masked = aten.is_aten(node.op, node.domain) and any(i.dtype == TensorProto.BOOL for i in node.inputs)
            if masked or node.is_op("NonZero", "Compress"):
                known = {d for i in node.inputs if i.name for d in i.shape or ()}
                named |= {d for o in node.outputs if o.name for d in o.shape or () if isinstance(d, str)} - known
        return named

    def excerpt(self) -> Excerpt:
        self.find_leaves()
        while True:
            before, after = _Side(self, self.old, through=self.anchor), _Side(self, self.new)
            leaves = {**before.leaves, **after.leaves}
            # What is one of several outputs of a node that is there for another cannot be an input as well.
            inside = {*before.nodes, *after.nodes}
            made = [leaf for leaf in leaves if leaf in self.leaves and leaf.inputs and leaf.inputs[0] in inside]
            if not made:
                break
            for leaf in made:
                del self.leaves[leaf]
        inputs = tuple(self.describe(leaf) for leaf in leaves)
        rounds = any(_rounds(node) for node in (*before.nodes, *after.nodes))
        multiplies = any(
            node.op == "ReduceProd" or node.attrs.get("reduction") == b"mul" for node in (*before.nodes, *after.nodes)
        )
        return Excerpt(before.model(inputs), after.model(inputs), inputs, rounds, multiplies)

    # ---- where to cut ----------------------------------------------------------------------------------------------

    def find_leaves(self) -> None:
        """Start where the new nodes begin, and go back from there as far as facts may have looked."""
        queue = [v for node in self.own for v in node.inputs if v.name and not self.is_made_here(v)]
        queue += [] if self.is_made_here(self.new) else [self.new]
        seen: set[Value] = set()
        steps = 0
        while queue:
            value = queue.pop()
            if value in seen or isinstance(value, Constant):
                continue
            seen.add(value)
            node = self.maker(value)
            if node is None or not self.goes_back(value, node):
                self.leaves[value] = None
                continue
            steps += 1
            if steps > _MOST_STEPS_BACK:
                raise Inseparable("its inputs come from too far back")
            # Of these only the shape counts, when it may be any: see _Side.
            if not node.is_op("Shape", "Size") or not self.shape_is_free(node.inputs[0]):
                queue += [i for i in node.inputs if i.name]

    def is_made_here(self, value: Value) -> bool:
        return bool(value.inputs) and value.inputs[0] in self.own

    def maker(self, value: Value) -> Any:
        """The node that makes a value, if both models can hold it."""
        node: Any = value.inputs[0] if value.inputs else None
        if node is None or node.has_references or node in self.scope.model.bodies:
            return None
        known = node.standard or aten.is_aten(node.op, node.domain) or node.domain in ("com.microsoft", "prim")
        return node if known or (node.domain, node.op) in self.functions else None

    def goes_back(self, value: Value, node: Node) -> bool:
        """Whether facts about a value may come from the node that makes it."""
        if Builder.is_own(node) and value.name.find("/graphfix/") >= 0:
            return True  # an inner value of an earlier rewrite: nothing that the model had before
        if self.facts.const(value) is not None or value.dtype is None:
            return True
        if self.sized_inside(value):
            return True
        if self.is_single(value) and all(self.is_single(i) for i in node.inputs if i.name):
            return True  # counters and bounds are computed in floats as well
        kinds = {i.dtype for i in node.inputs if i.name}
        if value.dtype in _INTEGERS:
            return node.is_op("Shape", "Size", "TopK", "ArgMax", "ArgMin") or bool(
                kinds & (_INTEGERS | {TensorProto.BOOL})
            )
        if value.dtype == TensorProto.BOOL:
            return bool(kinds & (_INTEGERS | {TensorProto.BOOL}))
        return self.facts.uniform(value) is not None or (node.is_op(*_MOVES) and self.moves_to_leaf(value))

    def is_single(self, value: Value) -> bool:
        """Whether a value has one element."""
        shape = self.facts.shape(value)
        return shape is not None and product(shape).constant == 1

    def moves_to_leaf(self, value: Value) -> bool:
        """Whether a value only moves what is a constant, an input of the cut, or read by the new nodes too."""
        queue, seen = [(value, 0)], {value}
        while queue:
            current, depth = queue.pop()
            node: Any = current.inputs[0] if current.inputs else None
            if current is not value and (current in self.leaves or any(o in self.own for o in current.outputs)):
                return True
            if isinstance(current, Constant) or (node is not None and node.is_op("Constant", "ConstantOfShape")):
                return True
            if node is None or not node.is_op(*_MOVES) or depth >= _MOST_MOVES:
                continue
            for source in node.inputs:
                if source.name and source not in seen and source.dtype not in _INTEGERS:
                    seen.add(source)
                    queue.append((source, depth + 1))
        return False

    def sized_inside(self, value: Value) -> bool:
        """Whether a size of a value is made by nodes that facts look through: a mask's count, a slice's length."""
        for dim in self.facts.shape(value) or ():
            for unknown in {u for monomial, _ in dim.terms for u in monomial}:
                name = unknown.split(":", 1)[1]
                if name in self.counted:
                    return True
                tensor = self.scope.find(name.rpartition("[")[0])
                node: Any = tensor.inputs[0] if tensor is not None and tensor.inputs else None
                if node is not None and (tensor is not value or node.is_op(*_MOVES, "NonZero", "Compress", "Range")):
                    return True
        return False

    def shape_is_free(self, value: Value) -> bool:
        """Whether a value of which only the shape counts may have any of the shapes that the facts state."""
        node = self.maker(value)
        if node is None:
            return True
        return self.facts.shape(value) is not None and not self.goes_back(value, node)

    def describe(self, leaf: Value) -> ExcerptInput:
        shape = self.facts.shape(leaf)
        if leaf.dtype is None or leaf.dtype == TensorProto.STRING:
            raise Inseparable(f"the element type of {leaf.name!r} is " + ("text" if leaf.dtype else "unknown"))
        if shape is None:
            raise Inseparable(f"the rank of {leaf.name!r} is unknown")
        nonnegative = leaf.dtype in _INTEGERS and self.facts.nonnegative(leaf)
        return ExcerptInput(leaf.name, leaf.dtype, shape, nonnegative)


class _Side:
    """One of the two models: all that an output needs, up to the leaves."""

    def __init__(self, search: _Search, output: Value, through: Node | None = None) -> None:
        self.search = search
        self.output = output
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.leaves: dict[Value, None] = {}
        shapes_only: dict[Value, None] = {}
        done: set[Any] = set()
        stack: list[tuple[Any, bool]] = [(output, False)]
        while stack:
            item, expanded = stack.pop()
            if expanded:
                self.nodes.append(item)
                continue
            value = item
            if value in done:
                continue
            done.add(value)
            if isinstance(value, Constant):
                self.add_constant(value)
                continue
            at_cut = value in search.leaves and value is not search.old
            node = None if at_cut else through if value is search.old and through else search.maker(value)
            if value.inputs and value.inputs[0] in search.own:
                node = value.inputs[0]
            if node is None:
                self.leaves[value] = None
                continue
            if node in done:
                continue
            done.add(node)
            stack.append((node, True))
            if len(done) > 4 * _MOST_NODES or len(self.nodes) > _MOST_NODES:
                raise Inseparable("what it replaces reaches too far back")
            if node.is_op("Shape", "Size") and search.shape_is_free(node.inputs[0]):
                shapes_only[node.inputs[0]] = None
                continue
            stack += [(i, False) for i in node.inputs if i.name]
        for value in shapes_only:
            if value in done:
                continue
            if isinstance(value, Constant):
                self.add_constant(value)
            else:
                self.leaves[value] = None

    def add_constant(self, value: Constant) -> None:
        size = tensor_bytes(value.proto) or 0
        floats = value.dtype not in _INTEGERS and value.dtype != TensorProto.BOOL
        if size > _LARGE and floats:
            self.leaves[value] = None
        elif size > _HUGE:
            raise Inseparable(f"the constant {value.name!r} has {size >> 20} MiB")
        else:
            self.constants[value.name] = value

    def model(self, inputs: Iterable[ExcerptInput]) -> onnx.ModelProto:
        scope, whole = self.search.scope, self.search.scope.model.proto
        model = onnx.ModelProto(ir_version=max(whole.ir_version, 4))
        imports: Any = scope.proto if scope.is_function else whole
        model.opset_import.extend(imports.opset_import)
        if any((n.domain, n.op) in self.search.functions for n in self.nodes):
            model.functions.extend(whole.functions)
        graph = model.graph
        graph.name = "rewrite"
        for given in inputs:
            dims = [d.constant if d.constant is not None else None for d in given.shape]
            graph.input.append(onnx.helper.make_tensor_value_info(given.name, given.dtype, dims))
        given_names = {given.name for given in inputs}
        graph.initializer.extend(c.proto for n, c in self.constants.items() if n not in given_names)
        graph.node.extend(node.proto for node in self.ordered())
        graph.node.append(onnx.helper.make_node("Identity", [self.output.name], [OUTPUT], f"{OUTPUT}/identity"))
        graph.output.append(onnx.ValueInfoProto(name=OUTPUT))
        return model

    def ordered(self) -> list[Node]:
        """Producers before consumers. (A Shape's input may have been found later than the Shape.)"""
        made = {o: node for node in self.nodes for o in node.outputs if o.name}
        order: list[Node] = []
        seen: set[Node] = set()
        stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(self.nodes)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                before = (made.get(i) for i in node.inputs if i not in self.leaves)
                stack += [(n, False) for n in before if n is not None and n not in seen]
        return order


def _rounds(node: Node) -> bool:
    """Whether a node's result depends on the order or the lanes in which it is computed."""
    if all(o.dtype in _INTEGERS or o.dtype == TensorProto.BOOL for o in node.outputs):
        return False
    if aten.is_aten(node.op, node.domain):
        # Where these accumulate, what replaces them sums.
        return False
    if (
        node.op == "MatMul"
        and Builder.is_own(node)
        and all(_is_whole(i) for i in node.inputs)
        and _becomes_whole(node.outputs[0])
    ):
        return False  # positions that are counted by a one-hot matrix: float32 holds them exactly
    return not node.standard or node.op in _ROUNDED or node.attrs.get("reduction") in (b"add", b"mul")


def _is_whole(value: Value) -> bool:
    """Whether a float tensor holds integers or truth values, or products of them."""
    node: Any = value.inputs[0] if value.inputs else None
    if node is None or not node.is_op("Cast", "Mul", *_LAYOUT):
        return False
    if node.is_op("Cast"):
        return node.inputs[0].dtype in _INTEGERS or node.inputs[0].dtype == TensorProto.BOOL
    return all(_is_whole(i) for i in (node.inputs if node.is_op("Mul") else node.inputs[:1]))


def _becomes_whole(value: Value) -> bool:
    """Whether a float tensor is only cast to integers."""
    readers = list(value.outputs)
    return bool(readers) and all(
        (node.is_op("Cast") and node.outputs[0].dtype in _INTEGERS)
        or (node.is_op(*_LAYOUT) and _becomes_whole(node.outputs[0]))
        for node in readers
    )
