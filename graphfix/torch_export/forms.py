"""The ATen nodes that a lossless model has for index writes and reads: those that `graphfix.aten.read_call` knows."""

from __future__ import annotations

# Operators whose ATen node differs from them in its name, and the parameters that it has, in order.
WRITES: dict[str, tuple[str, ...]] = {
    "index_put": ("self", "indices", "values", "accumulate"),
    "_unsafe_index_put": ("self", "indices", "values", "accumulate"),
    "masked_fill": ("self", "mask", "value"),
    "masked_scatter": ("self", "mask", "source"),
    "index_fill": ("self", "dim", "index", "value"),
    "index_copy": ("self", "dim", "index", "source"),
    "index_add": ("self", "dim", "index", "source", "alpha"),
    "scatter": ("self", "dim", "index", "src", "reduce"),
    "scatter_add": ("self", "dim", "index", "src"),
    "scatter_reduce": ("self", "dim", "index", "src", "reduce", "include_self"),
    "slice_scatter": ("self", "src", "dim", "start", "end", "step"),
    "select_scatter": ("self", "src", "dim", "index"),
    "diagonal_scatter": ("self", "src", "offset", "dim1", "dim2"),
    "index": ("self", "indices"),
    "_unsafe_index": ("self", "indices"),
}
LIKE_DATA = ("value", "values", "src", "source")  # parameters that have the element type of the data
