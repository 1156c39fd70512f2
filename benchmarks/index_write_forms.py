"""The forms in which people write into tensors by index, as small cases: the input of `exporter_verdicts.py`.

Each case belongs to a code of `graphfix scan`. ``condition`` says in words what sets it apart from the other cases of
its code (empty: the usual one), ``when`` says the same as facts that the scanner may know, so that a finding shows only
the cases that can be meant. ``instead`` is another way to write it, without ScatterND and NonZero.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A form: lines that change ``x`` (a copy of the input), the inputs, and lines that do the same in another way."""

    code: str
    condition: str
    inputs: str
    source: str
    instead: str = ""
    when: dict[str, str] = field(default_factory=dict)


SCALAR, TENSOR = {"value": "scalar"}, {"value": "tensor"}

# Index tensors are read by comparison: hit[r, k] says that the k-th index is row r. `last` is 1 + the last k that hits.
HIT = "hit = torch.arange(x.shape[0])[:, None] == i"
LAST = f"{HIT}\nlast = (hit * torch.arange(1, i.shape[0] + 1)).amax(1)"
ROWS = f"{LAST}\nx = torch.where((last > 0)[:, None], v[(last - 1).clamp(min=0)], x)"
PACKED = "at = (mask.long().cumsum(0) - 1).clamp(min=0)\nx = torch.where(mask[:, None], v[at], x)"
SUM = f"{HIT}\nx = x + hit.to(x.dtype) @ v"
ALONG = "hit = torch.arange(x.shape[1])[None, :, None] == i[:, None, :]"

MASKS = [
    Case("GS101", "the mask has all axes of the tensor", "x: f[B,T]", "x[x > 0] = 0",
         "x = torch.where(x > 0, 0.0, x)", SCALAR | {"mask": "full", "data": "other"}),
    Case("GS101", "the mask has fewer axes than the tensor", "x: f[B,T,4], mask: b[B,T]", "x[mask] = 0",
         "x = x.masked_fill(mask[..., None], 0)", SCALAR | {"mask": "lower"}),
    Case("GS101", "the mask has fewer axes than the tensor, all as long", "x: f[B,B], mask: b[B]", "x[mask] = 0",
         "x = x.masked_fill(mask[:, None], 0)", SCALAR | {"mask": "lower"}),
    Case("GS101", "the tensor is bool", "x: b[B,T], mask: b[B,T]", "x[mask] = True", "x = x | mask",
         SCALAR | {"data": "bool"}),
    Case("GS101", "the values are one row", "x: f[B,4], mask: b[B], row: f[4]", "x[mask] = row",
         "x = torch.where(mask[:, None], row, x)", TENSOR | {"mask": "lower", "same": "no"}),
    Case("GS101", "the values are one element", "x: f[B,T], mask: b[B,T], v: f[]", "x[mask] = v",
         "x = torch.where(mask, v, x)", TENSOR | {"same": "no"}),
    Case("GS101", "the values are read by the same mask", "x: f[B,T], y: f[B,T], mask: b[B,T]", "x[mask] = y[mask]",
         "x = torch.where(mask, y, x)", TENSOR | {"same": "yes"}),
    Case("GS101", "the values are rows read by the same mask", "x: f[B,4], y: f[B,4], mask: b[B]",
         "x[mask] = y[mask]", "x = torch.where(mask[:, None], y, x)", TENSOR | {"mask": "lower", "same": "yes"}),
    Case("GS101", "the values come one for each True", "x: f[B,4], mask: b[B], v: f[B,4]",
         "x[mask] = v[:int(mask.sum())]", PACKED, TENSOR | {"same": "no", "mask": "lower"}),
    Case("GS102", "the mask is behind a full slice", "x: f[B,T,4], mask: b[T]", "x[:, mask] = 0",
         "x = x.masked_fill(mask[:, None], 0)", {"beside": "behind"} | SCALAR),
    Case("GS102", "the mask is behind a full slice", "x: f[B,T,4], mask: b[T], v: f[4]", "x[:, mask] = v",
         "x = torch.where(mask[:, None], v, x)", {"beside": "behind"} | TENSOR),
    Case("GS102", "the mask stands beside a column number", "x: f[B,4], mask: b[B]", "x[mask, 0] = 1",
         "column = torch.arange(x.shape[1]) == 0\nx = x.masked_fill(mask[:, None] & column, 1)",
         {"beside": "int"} | SCALAR),
    Case("GS102", "the mask stands beside a column number", "x: f[B,4], mask: b[B], y: f[B]",
         "x[mask, 0] = y[mask]", "x = torch.cat([torch.where(mask, y, x[:, 0])[:, None], x[:, 1:]], 1)",
         {"beside": "int"} | TENSOR),
    Case("GS102", "the mask stands before a slice", "x: f[B,4], mask: b[B]", "x[mask, :2] = 0",
         "x = torch.cat([x[:, :2].masked_fill(mask[:, None], 0), x[:, 2:]], 1)", {"beside": "before"} | SCALAR),
    Case("GS102", "the mask stands before a slice", "x: f[B,4], mask: b[B], v: f[2]", "x[mask, :2] = v",
         "x = torch.cat([torch.where(mask[:, None], v, x[:, :2]), x[:, 2:]], 1)", {"beside": "before"} | TENSOR),
    Case("GS102", "the mask stands beside an index tensor", "x: f[B,4], mask: b[B], j: i[]<4", "x[mask, j] = 1",
         "column = torch.arange(x.shape[1]) == j\nx = x.masked_fill(mask[:, None] & column, 1)",
         {"beside": "tensor"} | SCALAR),
    Case("GS102", "the mask stands beside an index tensor", "x: f[B,4], mask: b[B], j: i[]<4, v: f[]",
         "x[mask, j] = v",
         "column = torch.arange(x.shape[1]) == j\nx = torch.where(mask[:, None] & column, v, x)",
         {"beside": "tensor"} | TENSOR),
]  # fmt: skip

INDICES = [
    Case("GS103", "one value for each index", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x[i] = v", ROWS,
         TENSOR | {"several": "no"}),
    Case("GS103", "indices repeat", "x: f[B,4], i: d[K]<B, v: f[K,4]", "x[i] = v", ROWS, TENSOR | {"several": "no"}),
    Case("GS103", "one row of values for all indices", "x: f[B,4], i: i[K]<B, v: f[4]", "x[i] = v",
         f"{HIT}\nx = torch.where(hit.any(1)[:, None], v, x)", TENSOR | {"several": "no"}),
    Case("GS103", "the value is a number", "x: f[B,4], i: i[K]<B", "x[i] = 0",
         f"{HIT}\nx = x.masked_fill(hit.any(1)[:, None], 0)", SCALAR | {"several": "no"}),
    Case("GS103", "the index has no axes (a position)", "x: f[B,T], i: i[]<T, v: f[B]", "x[:, i] = v",
         "x = torch.where(torch.arange(x.shape[1]) == i, v[:, None], x)", TENSOR | {"several": "no"}),
    Case("GS103", "the index has no axes (a position)", "x: f[B,T], i: i[]<T", "x[:, i] = 0",
         "x = x.masked_fill(torch.arange(x.shape[1]) == i, 0)", SCALAR | {"several": "no"}),
    Case("GS103", "the index is behind a full slice", "x: f[B,T], i: u[2]<T, v: f[B,2]", "x[:, i] = v",
         "hit = torch.arange(x.shape[1])[:, None] == i\nlast = (hit * torch.arange(1, i.shape[0] + 1)).amax(1)\n"
         "x = torch.where(last > 0, v[:, (last - 1).clamp(min=0)], x)", TENSOR | {"several": "no"}),
    Case("GS103", "several index tensors side by side", "x: f[B,T], i: i[K]<B, j: i[K]<T, v: f[K]", "x[i, j] = v",
         "hit = (torch.arange(x.shape[0])[:, None] == i)[:, None] & (torch.arange(x.shape[1])[:, None] == j)\n"
         "last = (hit * torch.arange(1, i.shape[0] + 1)).amax(-1)\n"
         "x = torch.where(last > 0, v[(last - 1).clamp(min=0)], x)", TENSOR | {"several": "yes"}),
    Case("GS103", "several index tensors side by side", "x: f[B,T], i: i[K]<B, j: i[K]<T", "x[i, j] = 1",
         "hit = (torch.arange(x.shape[0])[:, None] == i)[:, None] & (torch.arange(x.shape[1])[:, None] == j)\n"
         "x = x.masked_fill(hit.any(-1), 1)", SCALAR | {"several": "yes"}),
    Case("GS104", "", "x: f[B,T,4], i: u[2]<B, j: u[2]<4, v: f[2,T]", "x[i, :, j] = v",
         "hit = (torch.arange(x.shape[0])[:, None] == i)[:, None] & (torch.arange(x.shape[2])[:, None] == j)\n"
         "last = (hit * torch.arange(1, i.shape[0] + 1)).amax(-1)\n"
         "rows = v[(last - 1).clamp(min=0)].transpose(1, 2)\n"
         "x = torch.where((last > 0)[:, None], rows, x)", TENSOR),
    Case("GS104", "", "x: f[B,T,4], i: i[K]<B, j: i[K]<4", "x[i, :, j] = 0",
         "hit = (torch.arange(x.shape[0])[:, None] == i)[:, None] & (torch.arange(x.shape[2])[:, None] == j)\n"
         "x = x.masked_fill(hit.any(-1)[:, None], 0)", SCALAR),
]  # fmt: skip

SLICES = [
    Case("GS105", "", "x: f[B,T,4], v: f[B,T,2]", "x[..., :2] = v", "x = torch.cat([v, x[..., 2:]], -1)",
         TENSOR | {"step": "no"}),
    Case("GS105", "", "x: f[B,T,4]", "x[:, 0] = 0", "x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], 1)",
         SCALAR | {"step": "no"}),
    Case("GS105", "with a step", "x: f[B,T], v: f[B,1]", "x[:, ::2] = v",
         "x = torch.where(torch.arange(x.shape[1]) % 2 == 0, v, x)", TENSOR | {"step": "yes"}),
    Case("GS105", "with a step", "x: f[B,T]", "x[:, ::2] = 0",
         "x = x.masked_fill(torch.arange(x.shape[1]) % 2 == 0, 0)", SCALAR | {"step": "yes"}),
    Case("GS105", "the tensor is bool", "x: b[B,T]", "x[:, 0] = True",
         "x = torch.cat([torch.ones_like(x[:, :1]), x[:, 1:]], 1)", {"data": "bool", "step": "no"} | SCALAR),
    Case("GS106", "bounds that are computed from sizes", "x: f[B,T], v: f[B,2]", "n = x.shape[1] - 2\nx[:, n:] = v",
         "x = torch.cat([x[:, : x.shape[1] - 2], v], 1)", TENSOR | {"bound": "size"}),
    Case("GS106", "bounds that are computed from sizes", "x: f[B,T]", "n = x.shape[1] // 2\nx[:, n:] = 0",
         "x = x.masked_fill(torch.arange(x.shape[1]) >= x.shape[1] // 2, 0)", SCALAR | {"bound": "size"}),
    Case("GS106", "bounds that are tensors", "x: f[B,T], n: i[]<2", "x[:, n:] = 0",
         "x = x.masked_fill(torch.arange(x.shape[1]) >= n, 0)", SCALAR | {"bound": "tensor"}),
    Case("GS106", "bounds that are tensors", "x: f[B,T], n: i[]<2, v: f[B,1]", "x[:, n:] = v",
         "x = torch.where(torch.arange(x.shape[1]) >= n, v, x)", TENSOR | {"bound": "tensor"}),
    Case("GS106", "bounds that are tensors, on both sides", "x: f[B,T], n: i[]<2, v: f[B,2]", "x[:, n:n + 2] = v",
         "at = torch.arange(x.shape[1]) - n\ninside = (at >= 0) & (at < 2)\n"
         "x = torch.where(inside, v[:, at.clamp(0, 1)], x)", TENSOR | {"bound": "tensor"}),
    Case("GS106", "bounds that are made Python numbers by int() or .item()", "x: f[B,T], n: i[]<2",
         "x[:, int(n):] = 0", "x = x.masked_fill(torch.arange(x.shape[1]) >= n, 0)", SCALAR | {"bound": "item"}),
    Case("GS106", "bounds that are made Python numbers by int() or .item()", "x: f[B,T], n: i[]<2, v: f[B,1]",
         "x[:, int(n):] = v", "x = torch.where(torch.arange(x.shape[1]) >= n, v, x)", TENSOR | {"bound": "item"}),
    Case("GS107", "the loop runs over a dynamic size", "x: f[B,T]",
         "for t in range(1, x.shape[1]):\n    x[:, t] = x[:, t] + x[:, t - 1]", "x = x.cumsum(1)", {"loop": "size"}),
    Case("GS107", "the loop runs over a tensor", "x: f[B,4], n: i[K]<B", "for k in n:\n    x[k] = 0",
         "x = x.masked_fill((torch.arange(x.shape[0])[:, None] == n).any(1)[:, None], 0)", {"loop": "tensor"}),
    Case("GS108", "the index is an int", "x: f[B,T]", "k = 1\nx[k] = 0",
         "x = x.masked_fill(torch.arange(x.shape[0])[:, None] == 1, 0)", SCALAR),
    Case("GS108", "the index is an int", "x: f[B,T], v: f[T]", "k = 1\nx[k] = v",
         "x = torch.where(torch.arange(x.shape[0])[:, None] == 1, v, x)", TENSOR),
    Case("GS108", "the index is a mask with all axes", "x: f[B,T], k: b[B,T]", "x[k] = 0",
         "x = x.masked_fill(k, 0)", SCALAR),
    Case("GS108", "the index is a mask with fewer axes", "x: f[B,T], k: b[B]", "x[k] = 0",
         "x = x.masked_fill(k[:, None], 0)", SCALAR),
    Case("GS108", "the index is a mask", "x: f[B,T], k: b[B], v: f[T]", "x[k] = v",
         "x = torch.where(k[:, None], v, x)", TENSOR),
    Case("GS108", "the index is a tensor of numbers", "x: f[B,4], k: i[K]<B", "x[k] = 0",
         "x = x.masked_fill((torch.arange(x.shape[0])[:, None] == k).any(1)[:, None], 0)", SCALAR),
    Case("GS108", "the index is a tensor of numbers", "x: f[B,4], k: u[2]<B, v: f[2,4]", "x[k] = v",
         ROWS.replace("i.shape", "k.shape").replace("== i", "== k"), TENSOR),
    Case("GS108", "the index is a tensor of numbers, with one row for all", "x: f[B,4], k: i[K]<B, v: f[4]",
         "x[k] = v", "x = torch.where((torch.arange(x.shape[0])[:, None] == k).any(1)[:, None], v, x)", TENSOR),
]  # fmt: skip

AUGMENTED = [
    Case("GS110", "an index tensor without duplicates", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x[i] += v",
         f"v = x[i] + v\n{ROWS}", {"index": "int"}),
    Case("GS110", "an index tensor with duplicates (PyTorch counts one of them)", "x: f[B,4], i: d[K]<B, v: f[K,4]",
         "x[i] += v", f"v = x[i] + v\n{ROWS}", {"index": "int"}),
    Case("GS110", "a mask with all axes of the tensor", "x: f[B,T]", "x[x > 0] += 1",
         "x = torch.where(x > 0, x + 1, x)", {"index": "mask", "mask": "full"}),
    Case("GS110", "a mask with fewer axes than the tensor", "x: f[B,4], mask: b[B]", "x[mask] *= 2",
         "x = torch.where(mask[:, None], x * 2, x)", {"index": "mask", "mask": "lower"}),
]  # fmt: skip

VIEWS = [
    Case("GS111", "a mask", "x: f[B,T]", "y = x[:, 0]\ny[y > 0] = 0",
         "x = torch.cat([x[:, :1].clamp(max=0), x[:, 1:]], 1)", {"write": "mask"}),
    Case("GS111", "an index tensor", "x: f[B,T], i: i[K]<T", "y = x[0]\ny[i] = 0",
         "hit = (torch.arange(x.shape[1])[:, None] == i).any(1)\n"
         "x = torch.cat([x[:1].masked_fill(hit, 0), x[1:]])", {"write": "int"}),
    Case("GS111", "a slice", "x: f[B,T]", "y = x[:, 1:]\ny[:, 0] = 0",
         "x = torch.cat([x[:, :1], torch.zeros_like(x[:, :1]), x[:, 2:]], 1)", {"write": "slice"}),
    Case("GS111", "a slice of a view by transpose or view", "x: f[B,T]", "y = x.transpose(0, 1)\ny[0] = 0",
         "x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], 1)", {"write": "slice"}),
    Case("GS111", "an in-place operator", "x: f[B,T]", "y = x[:, 0]\ny += 1",
         "x = torch.cat([x[:, :1] + 1, x[:, 1:]], 1)", {"write": "operator"}),
    Case("GS111", "an in-place method", "x: f[B,T]", "y = x[:, 0]\ny.clamp_(min=0)",
         "x = torch.cat([x[:, :1].clamp(min=0), x[:, 1:]], 1)", {"write": "method"}),
    Case("GS111", "an in-place method on a view by transpose or view", "x: f[B,T]",
         "y = x.transpose(0, 1)\ny.add_(1)", "x = x + 1", {"write": "method"}),
    Case("GS112", "", "x: f[B,T]", "x[:, 0].add_(1)", "x = torch.cat([x[:, :1] + 1, x[:, 1:]], 1)",
         {"last": "method"}),
    Case("GS112", "", "x: f[B,T], v: f[B]", "x[:, 0].copy_(v)", "x = torch.cat([v[:, None], x[:, 1:]], 1)",
         {"last": "method"}),
    Case("GS112", "the view is made by a method", "x: f[B,T]", "x.select(1, 0).fill_(0)",
         "x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], 1)", {"last": "method"}),
    Case("GS112", "a part is masked", "x: f[B,T], mask: b[B]", "x[:, 0].masked_fill_(mask, 0)",
         "x = torch.cat([x[:, :1].masked_fill(mask[:, None], 0), x[:, 1:]], 1)", {"last": "write"}),
    Case("GS112", "a part is written by indices", "x: f[B,T], i: i[B,1]<2", "x[:, :2].scatter_(1, i, 1.0)",
         "hit = torch.arange(2) == i\nx = torch.cat([x[:, :2].masked_fill(hit, 1), x[:, 2:]], 1)", {"last": "write"}),
    Case("GS112", "chained subscripts", "x: f[B,T]", "x[:, 1:][:, 0] = 0",
         "x = torch.cat([x[:, :1], torch.zeros_like(x[:, :1]), x[:, 2:]], 1)", {"last": "slice"}),
    Case("GS112", "chained subscripts, the last a mask", "x: f[B,T], mask: b[B]", "x[:, 0][mask] = 0",
         "x = torch.cat([x[:, :1].masked_fill(mask[:, None], 0), x[:, 1:]], 1)", {"last": "mask"}),
    Case("GS113", "", "x: f[B,T], mask: b[B]", "x[mask].zero_()"),
]  # fmt: skip

METHODS = [
    Case("GS201", "", "x: f[B,T], mask: b[B,T]", "x = x.masked_fill(mask, 0)", "", {"place": "new"}),
    Case("GS201", "the mask has fewer axes", "x: f[B,T], mask: b[T]", "x = x.masked_fill(mask, float('-inf'))", "",
         {"place": "new"}),
    Case("GS201", "in place", "x: f[B,T], mask: b[B,T]", "x.masked_fill_(mask, 0)", "x = x.masked_fill(mask, 0)",
         {"place": "in"}),
    Case("GS201", "the tensor is bool", "x: b[B,T], mask: b[B,T]", "x = x.masked_fill(mask, True)", "x = x | mask",
         {"data": "bool"}),
    Case("GS202", "", "x: f[B,4], mask: b[B], v: f[B,4]", "x = x.masked_scatter(mask[:, None], v)", PACKED),
    Case("GS203", "", "x: f[B,4], i: i[K]<B", "x = x.index_fill(0, i, 0)",
         f"{HIT}\nx = x.masked_fill(hit.any(1)[:, None], 0)", {"place": "new"}),
    Case("GS203", "in place", "x: f[B,4], i: i[K]<B", "x.index_fill_(0, i, 0)",
         f"{HIT}\nx = x.masked_fill(hit.any(1)[:, None], 0)", {"place": "in"}),
    Case("GS204", "", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x = x.index_copy(0, i, v)", ROWS, {"place": "new"}),
    Case("GS204", "in place", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x.index_copy_(0, i, v)", ROWS, {"place": "in"}),
    Case("GS205", "indices do not repeat", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x = x.index_add(0, i, v)", SUM),
    Case("GS205", "indices repeat", "x: f[B,4], i: d[K]<B, v: f[K,4]", "x = x.index_add(0, i, v)", SUM),
    Case("GS206", "one value for each index", "x: f[B,4], i: u[2]<B, v: f[2,4]", "x = x.index_put((i,), v)", ROWS,
         {"index": "int"}),
    Case("GS206", "one row of values for all indices", "x: f[B,4], i: i[K]<B, v: f[4]", "x = x.index_put((i,), v)",
         f"{HIT}\nx = torch.where(hit.any(1)[:, None], v, x)", {"index": "int"}),
    Case("GS206", "the index is a mask", "x: f[B,4], mask: b[B], v: f[]", "x = x.index_put((mask,), v)",
         "x = torch.where(mask[:, None], v, x)", {"index": "mask"}),
    Case("GS207", "indices do not repeat", "x: f[B,4], i: u[2]<B, v: f[2,4]",
         "x = x.index_put((i,), v, accumulate=True)", SUM),
    Case("GS207", "indices repeat", "x: f[B,4], i: d[K]<B, v: f[K,4]", "x = x.index_put((i,), v, accumulate=True)",
         SUM),
    Case("GS208", "", "x: f[B,T], i: u[B,2]<T, v: f[B,2]", "x = x.scatter(1, i, v)",
         f"{ALONG}\nlast = (hit * torch.arange(1, i.shape[1] + 1)).amax(-1)\n"
         "x = torch.where(last > 0, v.gather(1, (last - 1).clamp(min=0)), x)", TENSOR),
    Case("GS208", "", "x: f[B,T], i: i[B,K]<T", "x = x.scatter(1, i, 1.0)",
         f"{ALONG}\nx = x.masked_fill(hit.any(-1), 1)", SCALAR),
    Case("GS209", "", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_add(1, i, v)",
         f"{ALONG}\nx = x + torch.where(hit, v[:, None], 0.0).sum(-1)"),
    Case("GS210", "the maximum", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_reduce(1, i, v, 'amax')",
         f"{ALONG}\nx = torch.maximum(x, torch.where(hit, v[:, None], float('-inf')).amax(-1))", {"reduce": "amax"}),
    Case("GS210", "the minimum", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_reduce(1, i, v, 'amin')",
         f"{ALONG}\nx = torch.minimum(x, torch.where(hit, v[:, None], float('inf')).amin(-1))", {"reduce": "amin"}),
    Case("GS210", "the sum", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_reduce(1, i, v, 'sum')",
         f"{ALONG}\nx = x + torch.where(hit, v[:, None], 0.0).sum(-1)", {"reduce": "sum"}),
    Case("GS210", "the product", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_reduce(1, i, v, 'prod')",
         f"{ALONG}\nx = x * torch.where(hit, v[:, None], 1.0).prod(-1)", {"reduce": "prod"}),
    Case("GS210", "the mean", "x: f[B,T], i: d[B,K]<T, v: f[B,K]", "x = x.scatter_reduce(1, i, v, 'mean')",
         f"{ALONG}\nx = (x + torch.where(hit, v[:, None], 0.0).sum(-1)) / (hit.sum(-1) + 1)", {"reduce": "mean"}),
    Case("GS210", "include_self=False", "x: f[B,T], i: d[B,K]<T, v: f[B,K]",
         "x = x.scatter_reduce(1, i, v, 'sum', include_self=False)",
         f"{ALONG}\nx = torch.where(hit.any(-1), torch.where(hit, v[:, None], 0.0).sum(-1), x)",
         {"self": "no"}),
    Case("GS211", "slice_scatter", "x: f[B,T], v: f[B,1]", "x = x.slice_scatter(v, 1, 0, 1)",
         "x = torch.cat([v, x[:, 1:]], 1)", {"method": "slice_scatter"}),
    Case("GS211", "select_scatter", "x: f[B,T], v: f[B]", "x = x.select_scatter(v, 1, 0)",
         "x = torch.cat([v[:, None], x[:, 1:]], 1)", {"method": "select_scatter"}),
    Case("GS211", "diagonal_scatter", "x: f[B,B], v: f[B]", "x = x.diagonal_scatter(v)",
         "at = torch.arange(x.shape[0])\nx = torch.where(at[:, None] == at, v, x)", {"method": "diagonal_scatter"}),
]  # fmt: skip

CASES = [*MASKS, *INDICES, *SLICES, *AUGMENTED, *VIEWS, *METHODS]
