"""ATen index_put, in every form that PyTorch has written it in."""

from __future__ import annotations

from graphfix.aten import AtenCall
from graphfix.aten_nodes import AtenPass, scalar_argument
from graphfix.facts import INTEGERS
from graphfix.graph import Node, Value
from graphfix.index_write import Full, IndexWrite, Mask, Points, Reduction
from graphfix.mask_reading import list_items
from graphfix.masks import MASKS, mask_root
from graphfix.pass_base import IndexWritePass, Refusal, Site


class AtenIndexPut(AtenPass, IndexWritePass):
    """Replace ATen index_put nodes by standard operators.

    Why: torch 1.8 to 1.11 with ONNX_ATEN_FALLBACK (and Caffe2 builds of later versions, and users' own symbolics) write
    ``x[idx] = v`` as an ATen node. ONNX Runtime, TensorRT and OpenVINO do not load such a file.

    Before: ``ATen(x, i, "", j, v, accumulate) operator="index_put"``
    After: what the index needs and no more: Slice and Concat for a slice, Where for a mask, Gather by a constant map
    for constant indices, Equal/Range comparisons and one Gather for indices known at run time.

    Indices may be integers (negative ones count from the end; of equal ones the last wins, or all add up with
    accumulate), masks, or left out. Two slips of the old exporters are read as they were meant, where that is certain:
    values that lack the axes of size 1 which an integer index leaves, and masks that were flattened.
    """

    code = "GF101"
    name = "aten-index-put"
    aten_operator = "index_put"

    def read(self, call: AtenCall[Value], node: Node, site: Site):
        accumulate = scalar_argument(call, "accumulate", site.facts)
        data, values = call.arguments["self"], call.arguments["values"]
        items = list_items([i if i is not None else _nothing(node) for i in call.indices])
        index = read_indices(items, data, site)
        if isinstance(index, Refusal):
            return index
        reduction = Reduction.ADD if accumulate else Reduction.NONE
        return IndexWrite(data, index, values, reduction, node.outputs[0])


def _nothing(node: Node) -> Value:
    return next(i for i in node.inputs if not i.name)


def read_indices(items: list[Value | None], data: Value, site: Site) -> tuple[Full | Points | Mask, ...] | Refusal:
    """The axis indices that a list of index tensors (None for a full slice) stands for."""
    index: list[Full | Points | Mask] = []
    for item in items:
        if item is None:
            index.append(Full())
        elif item.dtype in MASKS:
            index.append(Mask(_unflattened(item, len(index), data, site)))
        elif item.dtype in INTEGERS:
            index.append(Points(item))
        else:
            return Refusal(f"the element type of index {item.name} is unknown or neither integer nor bool")
    return tuple(index)


def _unflattened(mask: Value, axis: int, data: Value, site: Site) -> Value:
    """The mask before torch 1.8's exporter flattened it, when it covers the axes from ``axis`` on exactly.

    Where the flat mask would be valid too (all further axes have size 1), both are the same.
    """
    data_shape, shape = site.facts.shape(data), site.facts.shape(mask)
    root = mask_root(mask)
    root_shape = site.facts.shape(root)
    if data_shape is None or shape is None or root_shape is None or len(shape) != 1 or len(root_shape) < 2:
        return mask
    return root if root_shape == data_shape[axis : axis + len(root_shape)] else mask
