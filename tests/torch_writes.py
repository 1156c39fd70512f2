"""Index writes as people write them in PyTorch: functions, and makers of their arguments at any size.

An argument is described by a text: its kind, then its dims. A number is a fixed dim, a capital letter a dynamic one.

- ``f 4 N``: floats; ``h``: float16; ``d``: whole numbers, int64; ``c``: int32
- ``m B``: a mask
- ``i K <N``: indices into an axis of size N, that may repeat; ``n``: negative ones too; ``u``: each only once
- ``p 0 4``: floats, one row of 4 for each True of argument 0; ``q 0``: as many as False
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SIZES = ({"B": 5, "N": 6, "K": 3, "T": 7}, {"B": 2, "N": 9, "K": 2, "T": 3}, {"B": 7, "N": 4, "K": 4, "T": 11})


@dataclass(frozen=True)
class Write:
    """One function. ``args`` describes its arguments, ``kept`` says why a node stays that no engine likes."""

    function: Callable[..., Any]
    args: tuple[str, ...]
    kept: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__

    def make(self, sizes: dict[str, int], seed: int = 0) -> tuple[Tensor, ...]:
        """Arguments at these sizes."""
        generator = torch.Generator().manual_seed(seed)
        made: list[Tensor] = []
        for text in self.args:
            made.append(_make(text, sizes, made, generator))
        return tuple(made)

    def dims(self) -> tuple[dict[int, str], ...]:
        """The dynamic dims of each argument, by names that belong to this function."""
        found = []
        for number, text in enumerate(self.args):
            kind, *dims = [word for word in text.split() if not word.startswith("<")]
            dims = [f"P{number}" if kind in "pq" and axis == 0 else dim for axis, dim in enumerate(dims)]
            found.append({axis: f"{self.name}_{dim}" for axis, dim in enumerate(dims) if not dim.isdecimal()})
        return tuple(found)


def _make(text: str, sizes: dict[str, int], made: list[Tensor], generator: torch.Generator) -> Tensor:
    kind, *words = text.split()
    limit = next((word[1:] for word in words if word.startswith("<")), "1")
    high = int(limit) if limit.isdecimal() else sizes[limit]
    names = [word for word in words if not word.startswith("<")]
    if kind in "pq":
        mask = made[int(names[0])]
        shape = [int((mask if kind == "p" else ~mask).sum()), *(_size(n, sizes) for n in names[1:])]
    else:
        shape = [_size(n, sizes) for n in names]
    if kind == "m":
        mask = torch.rand(shape, generator=generator) < 0.5
        if mask.numel():
            mask.view(-1)[:2] = True
        return mask
    if kind == "u":
        return torch.randperm(high, generator=generator)[: shape[0]]
    if kind in "in":
        low = -high if kind == "n" else 0
        return torch.randint(low, high, shape, generator=generator)
    if kind in "dc":
        numbers = torch.randint(-9, 10, shape, generator=generator)
        return numbers if kind == "d" else numbers.to(torch.int32)
    values = torch.randn(shape, generator=generator)
    return values.half() if kind == "h" else values


def _size(name: str, sizes: dict[str, int]) -> int:
    return int(name) if name.isdecimal() else sizes[name]


WRITES: list[Write] = []


def write(*args: str, kept: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with the description of its arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        WRITES.append(Write(function, args, kept))
        return function

    return register


# --- integer indices


@write("f N 4", "u K <N", "f K 4")
def index_rows(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("f N 4", "n K <N", "f 4")
def index_rows_broadcast(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("f N 4", "f 4")
def index_negative(x, v):
    x = x.clone()
    x[-1] = v
    return x


@write("f N 4", "i T <N", "f T 4")
def index_duplicates_last_wins(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("f N 4", "i K 2 <N", "f K 2 4", kept="over the budget, as far as the sizes are known")
def index_2d(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("f B N", "i K <N")
def index_col_scalar(x, i):
    x = x.clone()
    x[:, i] = 0
    return x


@write("f B N 4", "u K <N", "f B K 4")
def index_mid(x, i, v):
    x = x.clone()
    x[:, i] = v
    return x


@write("f B N 4", "i B <N", "f B 4")
def index_batch_pos(x, pos, v):
    x = x.clone()
    x[torch.arange(x.shape[0]), pos] = v
    return x


@write("f B N", "n K <B", "n K <N", "f K")
def index_pair(x, i, j, v):
    x = x.clone()
    x[i, j] = v
    return x


@write("f B 4 N", "n K <B", "n K <N", "f K 4")
def index_pair_apart(x, i, j, v):
    x = x.clone()
    x[i, :, j] = v
    return x


@write("f B N", "u K <B", "u 2 <N", "f K 2")
def index_pair_outer(x, i, j, v):
    x = x.clone()
    x[i[:, None], j] = v
    return x


@write("f N 4", "u K <N")
def index_increment(x, i):
    x = x.clone()
    x[i] += 1
    return x


@write("f N 4", "i T <N", "f T 4")
def accumulate_duplicates(x, i, v):
    return x.index_put((i,), v, accumulate=True)


@write("f N 4", "u K <N", "f K 4")
def accumulate_unique(x, i, v):
    return x.index_put((i,), v, accumulate=True)


@write("f B N", "i T <B", "i T <N", "f T")
def accumulate_pairs(x, i, j, v):
    return x.index_put((i, j), v, accumulate=True)


@write("f N 4", "i T <N", "f T 4")
def index_add_duplicates(x, i, v):
    return x.index_add(0, i, v)


@write("f B N", "i T <N", "f B T")
def index_add_alpha(x, i, v):
    return x.index_add(1, i, v, alpha=2.5)


@write("f N 4", "i T <N", "f T 4")
def index_copy(x, i, v):
    return x.index_copy(0, i, v)


@write("f B N", "n K <N")
def index_fill(x, i):
    return x.index_fill(1, i, 7.0)


@write("h N 4", "u K <N", "h K 4")
def float16_rows(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("c N 4", "i T <N", "c T 4")
def int32_data_rows(x, i, v):
    x = x.clone()
    x[i] = v
    return x


@write("f 2 3 N 4", "u K <N", "f 2 3 K 4")
def kv_cache_step(cache, position, new):
    cache = cache.clone()
    cache[:, :, position] = new
    return cache.sum(-1)


@write("f 3 24", "i T <24", "f T 3")
def pillar_scatter(canvas, index, features):
    canvas = torch.zeros_like(canvas)
    canvas[:, index] = features.t()
    return canvas.view(3, 4, 6)


@write("f B N", "i K <5", "f K", kept="over the budget, as far as the sizes are known")
def put_flat(x, i, v):
    x = x.clone()
    x.view(-1)[i] = v
    return x


@write("f B N", "i K <5", "f K", kept="over the budget, as far as the sizes are known")
def put_method(x, i, v):
    return x.put(i, v)


@write("f B N", "i T <5", "f T")
def put_accumulate(x, i, v):
    return x.clone().put_(i, v, accumulate=True)


@write("f B 2 N", "i K <N", "f B 2 K")
def index_last_of_three(x, i, v):
    x = x.clone()
    x[..., i] = v
    return x


@write("f B N 4", "i K <B", "f K 4")
def index_then_number(x, i, v):
    x = x.clone()
    x[i, 0] = v
    return x


@write("f B N 4", "i K <N", "f K 4")
def number_then_index(x, i, v):
    x = x.clone()
    x[1, i] = v
    return x


@write("f B 4 N", "i K <B", "f K 4")
def index_and_number_apart(x, i, v):
    x = x.clone()
    x[i, :, -1] = v
    return x


@write("f 6 N 4", "i K <N", "f 2 K 4")
def slice_and_index(x, i, v):
    x = x.clone()
    x[1:3, i] = v
    return x


@write("f N 6", "i K <N", "f K 2")
def index_and_slice(x, i, v):
    x = x.clone()
    x[i, 1:5:2] = v
    return x


@write("f N 4", "f 3 4")
def index_list(x, v):
    x = x.clone()
    x[[0, 2, 1]] = v
    return x


@write("f N 4", "i K <N")
def index_multiply(x, i):
    x = x.clone()
    x[i] *= 3
    return x


@write("f N 4", "i 3 <N", "i 3 <4")
def index_pair_scalar(x, i, j):
    x = x.clone()
    x[i, j] = -1.5
    return x


@write("f B N", "i B <N")
def one_hot_write(x, label):
    hot = torch.zeros_like(x)
    hot[torch.arange(x.shape[0]), label] = 1
    return hot


# --- masks


@write("f B N", "m B N")
def mask_scalar_full(x, m):
    x = x.clone()
    x[m] = 0
    return x


@write("f B 4", "m B")
def mask_scalar_dim0(x, m):
    x = x.clone()
    x[m] = -1
    return x


@write("f B N 4", "m B N")
def mask_scalar_prefix(x, m):
    x = x.clone()
    x[m] = 2.5
    return x


@write("f 5 5", "m 5")
def mask_scalar_square(x, m):
    x = x.clone()
    x[m] = 0
    return x


@write("f B N", "m B N", "p 1")
def mask_values(x, m, v):
    x = x.clone()
    x[m] = v
    return x


@write("f B 4", "m B", "p 1 4")
def mask_rows_values(x, m, v):
    x = x.clone()
    x[m] = v
    return x


@write("f B 4", "m B", "f 4")
def mask_rows_broadcast(x, m, row):
    x = x.clone()
    x[m] = row
    return x


@write("f B 4", "m B")
def mask_affine_rows(x, m):
    x = x.clone()
    x[m] = x[m] * 2 + 1
    return x


@write("f B N", "m B N")
def mask_increment(x, m):
    x = x.clone()
    x[m] += 1
    return x


@write("f B N", "f B N", "m B N")
def mask_from_other(x, y, m):
    x = x.clone()
    x[m] = y[m]
    return x


@write("f B N N", "m B N")
def mask_attention_neg_inf(scores, padding):
    return scores.masked_fill(padding[:, None], float("-inf")).softmax(-1)


@write("m B N", "m B N")
def mask_bool_data(x, m):
    x = x.clone()
    x[m] = True
    return x


@write("d B N", "m B N")
def mask_int64_data(x, m):
    x = x.clone()
    x[m] = -(2**40)
    return x


@write("f B N")
def mask_nan_inf_data(x):
    x = x / (x > 0)
    x[~torch.isfinite(x)] = 0
    return x


@write("f B N")
def mask_none_true(x):
    x = x.clone()
    x[x > 1e30] = 5
    return x


@write("f B 4", "m B")
def mask_column(x, m):
    x = x.clone()
    x[m, 0] = 9
    return x


@write("f N 4", "m N", "i K <N")
def mask_then_index(x, m, i):
    x = x.clone()
    x[m] = 0
    x[i] = 1
    return x


@write("f B N", "m N", "p 1 ")
def mask_second_axis_values(x, m, v):
    x = x.clone()
    x[:, m] = v
    return x


@write("f B N 2", "m N")
def mask_second_axis(x, m):
    x = x.clone()
    x[:, m] = 3
    return x


@write("f B 4", "m B", "p 1")
def mask_and_number_values(x, m, v):
    x = x.clone()
    x[m, 2] = v
    return x


@write("f B N", "m B N", "f B N")
def masked_scatter(x, m, source):
    return x.masked_scatter(m, source)


@write("f B N 4", "m N", "f 4")
def mask_second_axis_row(x, m, row):
    x = x.clone()
    x[:, m] = row
    return x


@write("f B N")
def relu_by_mask(x):
    x = x.clone()
    x[x < 0] = 0
    return x


@write("f B N")
def leaky_by_mask(x):
    x = x.clone()
    x[x < 0] *= 0.1
    return x


@write("f B N", "d B")
def padding_by_length(x, length):
    x = x.clone()
    x[torch.arange(x.shape[1])[None] >= length[:, None]] = 0
    return x


@write("f B N", "m B N")
def mask_negated(x, m):
    x = x.clone()
    x[~m] = float("nan")
    return x


@write("f B 4 N", "m B N")
def mask_of_transposed(x, m):
    x = x.clone()
    x.transpose(1, 2)[m] = 0
    return x


@write("f B N", "m B N")
def masked_fill_in_place(x, m):
    x = x * 2
    x.masked_fill_(m, 1e-4)
    return x


@write("f B N", "m B N", "f 1")
def mask_tensor_value(x, m, v):
    x = x.clone()
    x[m] = v
    return x


@write("f B N", "f B N")
def where_write(x, y):
    x = x.clone()
    m = x > y
    x[m] = y[m] - x[m]
    return x


# --- slices and views


@write("f B 6")
def slice_half(x):
    x = x.clone()
    x[:, :3] = x[:, 3:]
    return x


@write("f B N")
def slice_full(x):
    x = x.clone()
    x[:] = 1
    return x


@write("f B N")
def slice_negative(x):
    x = x.clone()
    x[:, -2:] = 0
    return x


@write("f B 9", "f B 3")
def slice_step(x, v):
    x = x.clone()
    x[:, 1::3] = v
    return x


@write("f B N")
def slice_step_dynamic(x):
    x = x.clone()
    x[:, ::2] = 0
    return x


@write("f B 5 6")
def slice_two_dims(x):
    x = x.clone()
    x[:, 1:3, 2:4] = 0
    return x


@write("f B N")
def slice_copy_shift(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    return y


@write("f B N 4")
def slice_ellipsis_last(x):
    x = x.clone()
    x[..., 0] = x[..., 0] * 2
    return x


@write("f B N 5")
def slice_box_decode(x):
    y = x.clone()
    y[..., 0:2] = (x[..., 0:2].sigmoid() * 2 - 0.5) * 8
    y[..., 2:4] = (x[..., 2:4].sigmoid() * 2) ** 2
    return y


@write("f B N 9")
def slice_pose_decode(x):
    y = x.clone()
    y[..., 0::3] = x[..., 0::3] * 2 + 1
    y[..., 1::3] = x[..., 1::3] * 2 - 1
    y[..., 2::3] = x[..., 2::3].sigmoid()
    return y


@write("f B N")
def cumulative_fill(x):
    x = x.clone()
    for k in range(1, 3):
        x[:, k] = x[:, k] + x[:, k - 1]
    return x


@write("f B 4 N")
def select_then_mask(x):
    x = x.clone()
    y = x[:, 0]
    y[y > 0] = 0
    return x


@write("f B 4 N", "i K <B")
def select_then_index(x, i):
    x = x.clone()
    y = x[:, 1]
    y[i] = 5
    return x, y


@write("f B N", "f B")
def column_assign(x, v):
    x = x.clone()
    x[:, 0] = v
    return x


@write("f B N")
def slice_increment(x):
    x = x.clone()
    x[:, 1:] += x[:, :-1] * 0.5
    return x


@write("f B 6")
def slice_divide(x):
    x = x.clone()
    x[:, 2:4] /= 4
    return x


@write("f B 2 N")
def view_then_write(x):
    x = x.clone()
    flat = x.view(x.shape[0], -1)
    flat[:, 0] = 7
    return x


@write("f 6 N")
def transposed_write(x):
    x = x.clone()
    x.t()[0] = 1
    x.t()[1:3, 2:4] = 2
    return x


@write("f 6 6 N")
def permuted_write(x):
    x = x.clone()
    x.permute(2, 0, 1)[..., 1] = 4
    return x


@write("f B 4 N")
def unbind_write(x):
    x = x.clone()
    first, _, third, _ = x.unbind(1)
    first.mul_(2)
    third[third < 0] = 0
    return x


@write("f B 6")
def chunk_write(x):
    x = x.clone()
    left, right = x.chunk(2, dim=1)
    left.copy_(right + 1)
    return x


@write("f N N")
def diagonal_write(x):
    x = x.clone()
    x.diagonal().fill_(0)
    return x


@write("f B N 7")
def diagonal_of_batch(x):
    x = x.clone()
    x.diagonal(1, dim1=1, dim2=2).mul_(3)
    return x


@write("f 5 5")
def fill_diagonal(x):
    return x.clone().fill_diagonal_(float("-inf"))


@write("f B N", "f 2 2")
def corner_write(x, v):
    x = x.clone()
    x[:2, -2:] = v
    return x


@write("f 4 6 N")
def window_shift_mask(x):
    mask = torch.zeros(1, 6, 6, 1)
    count = 0
    for h in (slice(0, -2), slice(-2, -1), slice(-1, None)):
        for w in (slice(0, -2), slice(-2, -1), slice(-1, None)):
            mask[:, h, w, :] = count
            count += 1
    return x + mask.view(6, 6).sum(1)[:, None]


@write("f B N 4", "f B 4")
def teacher_shift(x, first):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = first
    return y


@write("f B N", "f B N")
def out_buffer(x, y):
    out = torch.empty(x.shape[0], 2, x.shape[1])
    out[:, 0] = x
    out[:, 1] = y
    return out


@write("d B N")
def shift_tokens(ids):
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 2
    shifted.masked_fill_(shifted == -9, 0)
    return shifted


@write("f B 8")
def rotate_half(x):
    y = torch.empty_like(x)
    y[..., ::2] = -x[..., 1::2]
    y[..., 1::2] = x[..., ::2]
    return y


@write("f B 4 3")
def nested_view(x):
    x = x.clone()
    x[:, 1:][:, :2][..., 0] = 3
    return x


# --- scatters


@write("f B N", "i B 3 <N", "f B 3")
def scatter_src(x, i, v):
    return x.scatter(1, i, v)


@write("f B N", "i B 3 <N")
def scatter_value(x, i):
    return x.scatter(1, i, 2.0)


@write("f B N", "i B T <N", "f B T")
def scatter_add(x, i, v):
    return x.scatter_add(1, i, v)


@write("f B N")
def scatter_topk_onehot(x):
    return torch.zeros_like(x).scatter_(1, x.topk(2, dim=1).indices, 1.0)


@write("f B N", "i B T <N", "f B T")
def scatter_amax(x, i, v):
    return x.scatter_reduce(1, i, v, reduce="amax", include_self=True)


@write("f B N", "i B T <N", "f B T")
def scatter_amin_alone(x, i, v):
    return x.scatter_reduce(1, i, v, reduce="amin", include_self=False)


@write("f B N", "i B 3 <N", "f B 3")
def scatter_prod(x, i, v):
    return x.scatter_reduce(1, i, v, reduce="prod")


@write("f B 6", "i B 4 <6", "f B 4", "d B 6", "d B 4")
def scatter_reduce_mean(x, i, v, counts, more):
    return (
        x.scatter_reduce(1, i, v, reduce="mean"),
        x.scatter_reduce(1, i, v, reduce="mean", include_self=False),
        counts.scatter_reduce(1, i, more, reduce="mean"),
    )


@write("f N 4", "i T <N", "f T 4")
def scatter_mean_graph(x, i, v):
    total = torch.zeros_like(x).index_add_(0, i, v)
    count = torch.zeros(x.shape[0]).index_add_(0, i, torch.ones(v.shape[0]))
    return total / count.clamp(min=1)[:, None]


@write("f N 4", "i T <N", "f T 4")
def index_reduce_amax(x, i, v):
    return x.index_reduce(0, i, v, "amax")


@write("f 2 3 9", "i 2 3 4 <9", "f 2 3 4")
def unpool_like(x, i, v):
    return torch.zeros_like(x).scatter(2, i, v)


@write("f 3 4", "i 1 <3")
def trunc_by_length(x, length):
    rows = torch.arange(x.shape[0])
    x = x.clone()
    x[rows >= length] = 0
    return x


@write("f N", "i T <N")
def bincount_by_scatter(x, i):
    return torch.zeros_like(x).scatter_add_(0, i, torch.ones(i.shape[0]))
