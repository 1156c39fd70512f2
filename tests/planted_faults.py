"""Wrong rewrites to plant: each makes one rewrite of a run compute something else than what it replaces.

``WRITES`` change the index write before it is lowered, as a mistaken recogniser would; ``NODES`` change the nodes that
were emitted, as a mistaken lowering would. A fault returns None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto

from graphfix import pass_base, pipeline
from graphfix.graph import Constant
from graphfix.index_write import Along, Full, IndexWrite, Mask, Points, Reduction, Span
from graphfix.pass_base import Refusal, Rewrite
from graphfix.passes import scatter_elements, scatter_nd

WRITES: dict[str, Callable] = {}
NODES: dict[str, Callable] = {}


def on_write(function):
    WRITES[function.__name__] = function
    return function


def on_nodes(function):
    NODES[function.__name__] = function
    return function


@contextmanager
def planted(monkeypatch, name: str, node: str):
    """Plant a fault in the rewrite of the node of this name. Yields a list that gets an entry when it was applied."""
    applied: list[str] = []
    with monkeypatch.context() as patch:
        if name in WRITES:
            _plant_in_writes(patch, WRITES[name], node, applied)
        else:
            _plant_in_nodes(patch, NODES[name], node, applied)
        yield applied


def _plant_in_writes(patch, fault, node, applied):
    real = pass_base.lower
    done = []  # lowering may call itself

    def lower(write, builder, site):
        if builder.anchor.name == node and builder not in done:
            done.append(builder)
            wrong = fault(write, builder)
            if wrong is not None:
                applied.append(node)
                write = wrong
        return real(write, builder, site)

    for module in (pass_base, scatter_nd, scatter_elements):
        patch.setattr(module, "lower", lower)


def _plant_in_nodes(patch, fault, node, applied):
    def plant(known):
        def rewrite(self, match, builder, site):
            result = known.rewrite(self, match, builder, site)
            if builder.anchor.name != node or not isinstance(result, Rewrite) or isinstance(result, Refusal):
                return result
            emitted = Emitted(builder, result.result)
            if fault(emitted) is None:
                return result
            applied.append(node)
            return replace(result, result=emitted.result)

        return type(known.__name__, (known,), {"rewrite": rewrite})

    real = pipeline.load_passes
    patch.setattr(pipeline, "load_passes", lambda: tuple(plant(p) for p in real()))


class Emitted:
    """The nodes of one rewrite, to be tampered with."""

    def __init__(self, builder, result):
        self.builder = builder
        self.result = result

    def nodes(self, *ops):
        return [n for n in self.builder.nodes if n.op in ops]

    def first(self, *ops):
        return next(iter(self.nodes(*ops)), None)

    def last(self, *ops):
        return next(reversed(self.nodes(*ops)), None)

    @property
    def is_float(self):
        return self.result.dtype == TensorProto.FLOAT

    def number(self, value, dtype=TensorProto.INT64):
        return self.builder.constant(value, dtype)

    def feed(self, node, position, value):
        """Let a node read another value. Nodes that make it are moved in front of it."""
        node.inputs[position] = value
        node.proto.input[position] = value.name
        made = [n for n in self.builder.nodes if any(o is value for o in n.outputs)]
        for maker in made:
            self.builder.nodes.remove(maker)
            self.builder.nodes.insert(self.builder.nodes.index(node), maker)
        return True

    def swap(self, node, one=0, other=1):
        first, second = node.inputs[one], node.inputs[other]
        self.feed(node, one, second)
        return self.feed(node, other, first)

    def rename(self, node, op):
        """Make a node another operator."""
        node.op = node.proto.op_type = op
        return True

    def attribute(self, node, name, value):
        kept = [a for a in node.proto.attribute if a.name != name]
        del node.proto.attribute[:]
        node.proto.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        node.attrs[name] = value
        return True

    def shape(self, value):
        return self.builder.facts.shape(value)

    def become(self, value):
        self.result = value
        return True


# ---- what a mistaken recogniser would hand on ----------------------------------------------------------------------


def _with(write, position, entry):
    index = list(write.index)
    index[position] = entry
    return replace(write, index=tuple(index))


def _position(write, kind):
    return next((i for i, entry in enumerate(write.index) if isinstance(entry, kind)), None)


@on_write
def accumulate_lost(write: IndexWrite, builder):
    return replace(write, reduction=Reduction.NONE) if write.reduction is Reduction.ADD else None


@on_write
def added_where_it_should_overwrite(write, builder):
    return replace(write, reduction=Reduction.ADD) if write.reduction is Reduction.NONE else None


@on_write
def max_taken_for_min(write, builder):
    return replace(write, reduction=Reduction.MIN) if write.reduction is Reduction.MAX else None


@on_write
def product_taken_for_sum(write, builder):
    return replace(write, reduction=Reduction.ADD) if write.reduction is Reduction.MUL else None


@on_write
def mask_negated(write, builder):
    at = _position(write, Mask)
    if at is None:
        return None
    return _with(write, at, Mask(builder.unary("Not", write.index[at].tensor)))


@on_write
def mask_off_by_one_axis(write, builder):
    at = _position(write, Mask)
    if at is None or builder.rank(write.index[at].tensor) != 1 or builder.rank(write.data) < 2:
        return None
    return replace(write, index=(*write.index[:at], Full(), *write.index[at:]))


@on_write
def index_off_by_one_axis(write, builder):
    at = _position(write, Points)
    if at is None or len(write.index) >= builder.rank(write.data) or builder.facts.uniform(write.values) is None:
        return None
    return replace(write, index=(*write.index[:at], Full(), *write.index[at:]))


@on_write
def axes_exchanged(write, builder):
    points = [i for i, entry in enumerate(write.index) if isinstance(entry, Points)]
    if len(points) < 2:
        return None
    one, other = points[:2]
    return _with(_with(write, one, write.index[other]), other, write.index[one])


@on_write
def along_another_axis(write, builder):
    entry = write.index[0]
    if not isinstance(entry, Along) or builder.rank(write.data) < 2:
        return None
    return replace(write, index=(Along((entry.axis + 1) % builder.rank(write.data), entry.tensor),))


def _slice(write, builder):
    """The first entry that is a slice (an arange, as far as the recogniser goes), and its bounds."""
    for at, entry in enumerate(write.index):
        ramp = builder.facts.ramp(entry.tensor) if isinstance(entry, Points) else entry
        if ramp is not None and hasattr(ramp, "start"):
            return at, ramp
    return None


@on_write
def span_begins_one_late(write, builder):
    found = _slice(write, builder)
    if found is None or not isinstance(found[1].start, int | None):
        return None
    return _with(write, found[0], Span((found[1].start or 0) + 1, found[1].stop))


@on_write
def span_covers_everything(write, builder):
    found = _slice(write, builder)
    return None if found is None or builder.facts.uniform(write.values) is None else _with(write, found[0], Full())


@on_write
def values_transposed(write, builder):
    shape = builder.dims(write.values)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return None
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return replace(write, values=builder.transpose(write.values, order))


@on_write
def values_reversed(write, builder):
    shape = builder.facts.shape(write.values)
    size = shape[-1].constant if shape else None
    if size is None or size < 2:
        return None
    backwards = builder.constant(np.arange(size)[::-1])
    return replace(write, values=builder.gather(write.values, backwards, len(shape) - 1))


@on_write
def first_value_for_all(write, builder):
    shape = builder.facts.shape(write.values)
    if not shape or shape[0].constant is None or shape[0].constant < 2 or isinstance(write.index[0], Along):
        return None
    same = builder.constant(np.zeros(shape[0].constant))
    return replace(write, values=builder.gather(write.values, same, 0))


@on_write
def index_one_too_high(write, builder):
    at = _position(write, Points)
    if at is None:
        return None
    zero = builder.arithmetic("Mul", write.index[at].tensor, builder.constant(0, write.index[at].tensor.dtype))
    return _with(write, at, Points(zero))


@on_write
def values_negated(write, builder):
    return replace(write, values=builder.unary("Neg", write.values)) if write.values.dtype == 1 else None


# ---- what a mistaken lowering would emit -----------------------------------------------------------------------------


@on_nodes
def branches_of_first_where_swapped(emitted):
    node = emitted.first("Where")
    return node and emitted.swap(node, 1, 2)


@on_nodes
def branches_of_last_where_swapped(emitted):
    node = emitted.last("Where")
    return node and emitted.swap(node, 1, 2)


@on_nodes
def negative_index_not_wrapped(emitted):
    """The Where that chooses between an index and the index plus the size always takes the former."""
    for node in emitted.nodes("Where"):
        made = node.inputs[1].inputs
        if made and made[0].op == "Add" and any(i is node.inputs[2] for i in made[0].inputs):
            return emitted.feed(node, 1, node.inputs[2])
    return None


@on_nodes
def first_write_wins(emitted):
    node = emitted.first("ReduceMax")
    return node and emitted.rename(node, "ReduceMin")


@on_nodes
def less_instead_of_greater(emitted):
    node = emitted.last("Greater")
    return node and emitted.rename(node, "Less")


@on_nodes
def greater_instead_of_less(emitted):
    node = emitted.last("Less")
    return node and emitted.rename(node, "Greater")


@on_nodes
def or_instead_of_and(emitted):
    node = emitted.last("And")
    return node and emitted.rename(node, "Or")


@on_nodes
def negation_dropped(emitted):
    node = emitted.last("Not")
    return node and emitted.rename(node, "Identity")


@on_nodes
def subtracted_instead_of_added(emitted):
    node = emitted.last("Add")
    return node and emitted.rename(node, "Sub")


@on_nodes
def added_instead_of_multiplied(emitted):
    node = emitted.last("Mul")
    return node and emitted.rename(node, "Add")


@on_nodes
def count_that_excludes_itself(emitted):
    node = emitted.first("CumSum")
    return node and emitted.attribute(node, "exclusive", 1)


@on_nodes
def count_from_the_back(emitted):
    node = emitted.first("CumSum")
    return node and emitted.attribute(node, "reverse", 1)


@on_nodes
def parts_in_the_wrong_order(emitted):
    node = next((n for n in reversed(emitted.nodes("Concat")) if emitted.builder.rank(n.outputs[0]) != 1), None)
    return node and emitted.swap(node)


@on_nodes
def slice_one_late(emitted):
    return _shift(emitted, "Slice", 1, 1)


@on_nodes
def slice_one_short(emitted):
    return _shift(emitted, "Slice", 2, -1)


@on_nodes
def gather_one_off(emitted):
    return _shift(emitted, "Gather", 1, -1)


@on_nodes
def compared_with_the_next_index(emitted):
    return _shift(emitted, "Equal", 1, 1)


def _shift(emitted, op, position, by):
    """Add to an integer input of the last such node."""
    node = emitted.last(op)
    if node is None or len(node.inputs) <= position or node.inputs[position].dtype not in (6, 7):
        return None
    value = node.inputs[position]
    moved = emitted.builder.binary("Add", value, emitted.number(by, value.dtype))
    return emitted.feed(node, position, moved)


@on_nodes
def last_entry_of_a_constant_map_changed(emitted):
    for node in emitted.nodes("Gather"):
        known = node.inputs[1]
        if isinstance(known, Constant) and len(known.shape) == 1 and known.shape[0] > 1:
            values = onnx.numpy_helper.to_array(known.proto).copy()
            values[-1] = values[0]
            return emitted.feed(node, 1, emitted.number(values))
    return None


@on_nodes
def dynamic_dim_frozen(emitted):
    """The size of an axis as it happened to be in the exporter's example."""
    for node in emitted.nodes("Shape"):
        shape = emitted.shape(node.inputs[0])
        if shape and any(d.constant is None for d in shape):
            frozen = emitted.number([d.constant if d.constant is not None else 4 for d in shape])
            for consumer in list(node.outputs[0].outputs):
                for position, value in enumerate(list(consumer.inputs)):
                    if value is node.outputs[0]:
                        emitted.feed(consumer, position, frozen)
            return True
    return None


@on_nodes
def nan_leaked_through_a_multiplication(emitted):
    builder, data = emitted.builder, emitted.builder.anchor.inputs[0]
    if not emitted.is_float:
        return None
    zero = builder.binary("Mul", data, builder.constant(0, TensorProto.FLOAT))
    return emitted.become(builder.binary("Add", emitted.result, zero))


@on_nodes
def nan_replaced_by_zero(emitted):
    builder = emitted.builder
    if not emitted.is_float:
        return None
    zero = builder.constant(0, TensorProto.FLOAT)
    return emitted.become(builder.where(builder.is_nan(emitted.result), zero, emitted.result))


@on_nodes
def infinities_cut_off(emitted):
    if not emitted.is_float:
        return None
    bounds = [emitted.number(b, TensorProto.FLOAT) for b in (-1e30, 1e30)]
    return emitted.become(
        emitted.builder.emit("Clip", [emitted.result, *bounds], None, 1, emitted.shape(emitted.result))
    )


@on_nodes
def subnormal_numbers_flushed(emitted):
    builder, result = emitted.builder, emitted.result
    if not emitted.is_float:
        return None
    tiny = builder.binary("Less", builder.unary("Abs", result), builder.constant(1.1754944e-38, 1), TensorProto.BOOL)
    return emitted.become(builder.where(tiny, builder.constant(0, 1), result))


@on_nodes
def dtype_narrowed(emitted):
    """float32 through float16, int64 through int8."""
    narrow = {TensorProto.FLOAT: TensorProto.FLOAT16, TensorProto.INT64: TensorProto.INT8}.get(emitted.result.dtype)
    if narrow is None:
        return None
    there = emitted.builder.cast(emitted.result, narrow)
    return emitted.become(emitted.builder.cast(there, emitted.result.dtype))


@on_nodes
def write_lost(emitted):
    return emitted.become(emitted.builder.unary("Identity", emitted.builder.anchor.inputs[0]))


@on_nodes
def rest_of_the_data_lost(emitted):
    builder, data = emitted.builder, emitted.builder.anchor.inputs[0]
    if not emitted.is_float:
        return None
    same = builder.equal(emitted.result, data)
    return emitted.become(builder.where(same, builder.constant(0, TensorProto.FLOAT), emitted.result))


@on_nodes
def total_added_twice(emitted):
    node = emitted.last("MatMul", "ReduceSum")
    if node is None or node.outputs[0] is emitted.result:
        return None
    total = node.outputs[0]
    consumers = [c for c in total.outputs if c in emitted.builder.nodes]
    twice = emitted.builder.binary("Add", total, total)
    for consumer in consumers:
        for position, value in enumerate(list(consumer.inputs)):
            if value is total:
                emitted.feed(consumer, position, twice)
    return True


@on_nodes
def signs_lost(emitted):
    return emitted.become(emitted.builder.unary("Abs", emitted.result)) if emitted.is_float else None


@on_nodes
def last_element_dropped(emitted):
    """The last row holds what the data held."""
    builder, data = emitted.builder, emitted.builder.anchor.inputs[0]
    if not emitted.is_float:
        return None
    head = builder.slice(emitted.result, 0, 0, -1)
    return emitted.become(builder.concat([head, builder.slice(data, 0, -1, None)], 0))


@on_nodes
def rows_in_reverse(emitted):
    shape = emitted.shape(emitted.result)
    size = shape[0].constant if shape else None
    if size is None or size < 2:
        return None
    return emitted.become(emitted.builder.gather(emitted.result, emitted.number(np.arange(size)[::-1]), 0))
