"""Export by TorchScript: writes in place and through views arrive, and what a trace would freeze is refused."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import require

import graphfix

torch = require("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from engine import run_all  # noqa: E402
from torch_exports import GROUPS, Together, hold, unwanted  # noqa: E402
from torch_writes import SIZES  # noqa: E402


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_writes_of_any_size(group: int) -> None:
    writes = GROUPS[group]
    dims = ([tuple(d or None for d in write.dims()) for write in writes],)
    result = graphfix.export(
        Together(writes),
        ([write.make(SIZES[0]) for write in writes],),
        dynamic_shapes=dims,
        verify="model",
        route="torchscript",
    )
    assert result.report.notes[0].startswith("exported by TorchScript")
    assert sum(unwanted(result.model).values()) == len(result.report.left) <= len([w for w in writes if w.kept])
    for number, sizes in enumerate(SIZES):
        hold(result.model, writes, sizes, number)


# --- what TorchScript loses, and what it would freeze

RIGHT: list[Any] = []
REFUSED: list[Any] = []


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def right(*args: Any, dims: Any = None) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        RIGHT.append(pytest.param(function, args, dims, id=function.__name__))
        return function

    return register


def refused(words: str, *args: Any, dims: Any = None) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        REFUSED.append(pytest.param(function, args, dims, words, id=function.__name__))
        return function

    return register


N = {0: "N"}


@right(f(6, 5), dims=({0: "N", 1: "M"},))
def views_of_views(x):
    x = x.clone()
    turned = x.t()
    column = turned[1]
    flat = x.view(-1)
    column[column > 0] = 7
    flat[0] = -1
    spread = x.unsqueeze(0).transpose(1, 2)
    spread[:, 2] += column
    upper, lower = x.chunk(2, 0)
    lower.zero_()
    x.diagonal().fill_(3)
    x.narrow(1, 1, 2).neg_()
    moved = x.movedim(0, 1).permute(1, 0)
    moved[1:, -1] = upper[0, 0]
    return x, column, turned, spread, lower, flat


@right(f(4, 5))
def views_by_unbind_and_split(x):
    x = x.clone()
    for number, row in enumerate(x.unbind(0)):
        row.mul_(number)
    for row in x:
        row[0] += 1
    first, second = x.split([2, 3], dim=1)
    second[first[:, 0] > 0] = 4
    parts = x.tensor_split(3, dim=1)
    parts[1].copy_(parts[2][:, :1])
    return x


@right(f(4, 5))
def the_input_itself(x):
    x[0] = 1
    x.add_(2)
    return x


@right(f(4, 5))
def other_names_of_one_tensor(x):
    x = x.clone()
    x.contiguous()[0] = 1
    x.to(torch.float32)[1] = 2
    x.reshape(5, 4)[0] = 3
    x.t().reshape(-1)[0] = 9  # a copy
    x.data[2] = 4
    x.detach()[3] = 5
    x.expand(4, 5)[3, 0] = 6
    x.type(torch.float32)[0, 1] = 7
    return x


@right(f(4, 5))
def in_place_functions(x):
    x = x.clone()
    part = x[1:3]
    F.relu(part, inplace=True)
    x[:, 1] = torch.nn.ReLU(inplace=True)(x[:, 0])
    torch.neg_(x[3])
    F.dropout(x, training=False)[0] = 1
    F.leaky_relu_(x[2:])
    return x, part


@right(f(4, 5), dims=(N,))
def results_into_given_tensors(x):
    out = torch.empty_like(x)
    torch.add(x, 1, out=out[:])
    torch.sub(out, 2, out=out)
    return out


class Stepped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        y = x.clone()
        y[0] = k
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@right(f(4, 5), dims=(N,))
def a_gradient_of_its_own(x):
    x = x.clone()
    x[1] = 0
    return Stepped.apply(x, 3.0) + 1


@torch.jit.script
def _scripted(x: torch.Tensor):
    x[0] = 0
    return x * 2


@right(f(4, 5))
def a_write_within_a_scripted_function(x):
    x = x.clone()
    return x, _scripted(x), x + 1


@right(f(4, 5), torch.tensor(3))
def bounds_that_are_tensors(x, n):
    x = x.clone()
    x[:, :n] = 0
    k = n.item()
    x[k] = 1
    x[:, k - 1 : k + 1] *= 2
    x[n:, 1] = x[0, 0]
    return x


@right(f(4, 5), dims=(N,))
def sizes_in_tensors(x):
    sizes = torch.tensor([x.shape[0], x.shape[1]], dtype=torch.float32)
    grid = torch.zeros(x.shape[0], x.size(0))
    rows = torch.arange(len(x.shape) + 1)
    grid[rows, rows] = x[:3, 0]
    grid[0, [1, 2]] = 5
    grid[[0, 1]] = grid[[1, 0]]
    return x / sizes[0] + sizes[1], grid


@right(f(2, 3, 4, 5), torch.tensor([0, 1]), torch.tensor([1, 2]))
def subscripts_of_all_kinds(x, i, j):
    x = x.clone()
    x[i, :, j] = 1.0
    x[:, :, j, i] = torch.arange(2.0)
    x[..., None, 0] = 2
    x[0, ..., i] = 3.0
    x[1, None, j, 2:, None] = torch.arange(2.0).reshape(1, 1, 1, 1, 2)[..., :1]
    x[np.array([0, 1]), 0] = 8
    x[x[0, 0, 0, 0] > 100] = 0
    x[torch.tensor(True)] = x + 1
    x[:, torch.tensor([True, False, True])] *= 2
    return x


@right(f(4, 5), f(4, 5) > 0)
def masks(x, mask):
    x = x.clone()
    x[mask[:, 0]] = torch.arange(5.0)
    x[mask] = 2
    x[mask[:, 1], 1] = 4
    x[:, mask[0]] = 9
    x[mask[:, 2]] += 1
    return x


@right(f(4, 5), torch.tensor([1, 1, 2]), f(3, 5))
def methods_that_write(x, i, v):
    x = x.clone()
    x.index_put_((i,), v, accumulate=True)
    x.index_add_(0, i, v, alpha=2)
    x.scatter_add_(0, i[:, None].expand(3, 5), v)
    x.scatter_(1, i[:, None], 5.0)
    x.scatter_(1, i[:, None], v, reduce="multiply")
    x.masked_fill_(x > 1, 0.5)
    x.index_fill_(1, i, 2)
    x.index_copy_(0, i[1:], v[1:])
    x.put_(i, v[:, 0])
    x.fill_diagonal_(7)
    x.clamp_(-1, 1).sub_(3)
    return x


@right(f(4, 5), torch.tensor([0, 2]))
def element_types(x, i):
    whole = torch.zeros(4, 5, dtype=torch.int32)
    whole[i] = 3.7
    whole += 1
    whole[1:] //= 2
    half = torch.zeros(4, 5, dtype=torch.float16)
    half[i] = x[i].half()
    mask = torch.zeros(4, dtype=torch.bool)
    mask[i] = True
    mask[1] |= True
    return whole, half, mask


@right(f(4, 5))
def shapes_changed_in_place(x):
    y = torch.empty(4, 5)
    y.copy_(x[0])
    y[1].copy_(x[2])
    y.t_()
    y[0] = 3
    y.unsqueeze_(0)
    y[0, 1] = x[0, 0]
    return y


@right({"a": f(3, 2), "b": [f(3), f(3) + 1]}, dims=({"a": N, "b": [N, N]},))
def nested_arguments(given):
    a = given["a"].clone()
    a[:, 0] = given["b"][0]
    a[:, 1] += given["b"][1]
    return {"p": a, "q": (given["b"][0], 2, None)}


@right(torch.tensor([3, 1, 2]), f(3, 5), dims=({0: "B"}, {0: "B", 1: "T"}))
def padding(n, x):
    assert x.max() < 1000
    if x.shape[0] > 1000 or x.min() < -1000:
        raise ValueError("too much")
    mask = torch.arange(x.shape[1])[None] >= n[:, None]
    x = x.masked_fill(mask, 3)
    x[mask] = 0
    return x


ATTENTION = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
RECURRENT = torch.nn.LSTM(8, 4, batch_first=True).eval()


@right(f(4, 5), dims=(N,))
def messages(x):
    print(f"{x.max():.2f}", x.shape, len(x), file=io.StringIO())
    logging.getLogger("quiet").debug("%d rows of %s", int(x.shape[0]), x.mean().item())
    return x + 1


@right(f(2, 3, 8), f(3, 8), dims=({0: "B", 1: "T"}, None))
def larger_modules(x, y):
    x = x.clone()
    x[:, 0] = y[0]
    seen, _ = ATTENTION(x, x, x, need_weights=False)
    seen[:, 1] = 0
    return RECURRENT(seen)[0]


@right(f(4, 5))
def results_of_several_names(x):
    ends = torch.aminmax(x)
    ends.min.add_(1)
    return torch.stack(ends)


@pytest.mark.parametrize(("function", "args", "dims"), RIGHT)
def test_what_the_exporter_would_lose(function: Any, args: Any, dims: Any) -> None:
    result = graphfix.export(function, copy.deepcopy(args), dynamic_shapes=dims, verify="model", route="torchscript")
    assert not unwanted(result.model)
    flat = torch.utils._pytree.tree_flatten(args)[0]
    with torch.no_grad():
        answers = torch.utils._pytree.tree_flatten(function(*copy.deepcopy(args)))[0]
    inputs = dict(zip((i.name for i in result.model.graph.input), (t.numpy() for t in flat), strict=True))
    tensors = [answer.numpy() for answer in answers if isinstance(answer, torch.Tensor)]
    for got, answer in zip(run_all(result.model, inputs).values(), tensors, strict=True):
        assert got.dtype == answer.dtype and got.shape == answer.shape
        np.testing.assert_allclose(got, answer, rtol=1e-5, atol=1e-5)
    assert dims is None or len(set(result.report.verification.sets)) > 2


@refused("a number is taken from a tensor", f(4, 5), torch.tensor(3))
def a_branch_on_elements(x, n):
    if n > 2:
        return x + 1
    return x


@refused("a number is taken from a tensor", f(4, 5), torch.tensor(3))
def an_int_of_a_tensor(x, n):
    x = x.clone()
    x[:, : int(n)] = 0
    return x


@refused("a number is taken from a tensor", f(4, 5), torch.tensor(3))
def an_item_in_a_loop(x, n):
    for _ in range(n.item()):
        x = x + 1
    return x


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_a_selected_size(x):
    y = x[x[:, 0] > 0]
    return x if y.shape[0] == 0 else x + y.sum()


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_a_selected_length(x):
    y = x[x[:, 0] > 0]
    return x if len(y) == 0 else x + y.sum()


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_an_indexed_constant(x):
    table = torch.arange(5)
    return x if table[x.argmax() % 5] > 2 else x + 1


@refused("a number is taken from a tensor", f(4, 5))
def numpy_on_the_way(x):
    return torch.from_numpy(x.numpy() * 2)


@refused("a number is taken from a tensor", f(4, 5))
def equality_of_tensors(x):
    return x if torch.equal(x, x * 2) else x + 1


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_number_of_a_size(x):
    return x.reshape(int(x.shape[0]) // 2, 2, 5)


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_loop_over_a_size(x):
    x = x.clone()
    for k in range(x.shape[0]):
        x[k] *= k
    return x


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_loop_over_rows(x):
    return torch.stack([row * n for n, row in enumerate(x)])


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_branch_that_no_size_here_takes(x):
    return x * 2 if x.shape[0] > 1000 else x


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_a_size_like_a_selected_one(x):
    zeros = torch.zeros(x[x > 0].shape)
    return x if zeros.shape[0] > 3 else x + 1


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_the_size_of_what_was_selected_and_written(x):
    y = x[x > 0]
    y[:] = 1
    return x if y.shape[0] > 3 else x + 1


@refused("a number is made of a dynamic size", f(6, 5), f(6, 5), dims=(None, N))
def a_branch_on_equal_sizes(x, y):
    return x + y.sum() if x.is_same_size(y) else x


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_length(x):
    return x / len(x)


@refused("a number is made of a dynamic size", f(6, 5), dims=(N,))
def a_size_as_a_key(x):
    return x * {224: 10.0}.get(x.size(0), 1.0)


@refused("a number is taken from a tensor", f(4, 5), torch.tensor(3))
def an_element_in_a_set(x, n):
    return x * 2 if n.item() in {97, 98} else x


@refused("a number is taken from a tensor", f(4, 5))
def a_text_of_an_element(x):
    return x * 2 if len(f"{x.max():.0f}") > 6 else x


@refused("a number is taken from a tensor", f(4, 5))
def memory_behind_the_back(x):
    return x * 2 if torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).max() > 1e3 else x


@refused("a number is taken from a tensor", f(4, 5))
def elements_of_the_storage(x):
    return x * 2 if x.storage()[3] > 1 else x


@refused("RuntimeError: shape", f(4, 3), dims=(N,))
def an_error_that_is_caught(x):
    try:
        return x.view(-1, 97).sum(0)
    except RuntimeError:
        return x.sum(0)


@refused("a view made by unfold", f(4, 6))
def a_write_into_windows(x):
    x = x.clone()
    x.unfold(1, 2, 2)[0] = 1
    return x


@refused("a view made by as_strided", f(4, 6))
def a_write_by_strides(x):
    x = x.clone()
    torch.as_strided(x, (2, 2), (1, 5)).fill_(1)
    return x


@refused("resize_", f(4, 6))
def a_resize(x):
    return x.clone().resize_(2, 3)


@refused("no other sizes", f(4, 6), dims=(N,))
def one_size_only(x):
    return x.reshape(4, 3, 2)


@refused("a number is taken from a tensor", f(4, 5))
def a_branch_on_a_cast(x):
    return x if x.type(torch.int64).sum() > 0 else x + 1


@refused("a number is taken from a tensor", f(4, 5))
def a_number_named_in_a_check(x):
    if (n := int(x.abs().max())) > 1000:
        raise ValueError
    return x * n


@refused("a number is taken from a tensor", f(4, 5))
def a_number_beside_an_assertion(x):
    n = int(x.abs().max()); assert n < 1000  # noqa: E702  # fmt: skip
    return x * n


@pytest.mark.parametrize(("function", "args", "dims", "words"), REFUSED)
def test_what_a_trace_would_freeze_is_refused_with_its_line(function: Any, args: Any, dims: Any, words: str) -> None:
    with pytest.raises(graphfix.ExportError, match=words) as error:
        graphfix.export(function, args, dynamic_shapes=dims, verify="none", route="torchscript")
    assert "\n" not in str(error.value)
    if "no other sizes" not in words:
        assert "test_export_torchscript.py:" in str(error.value)


def test_code_without_a_file_is_named_too() -> None:
    typed: dict[str, Any] = {}
    exec(compile("def branch(x):\n    return x if x.sum() > 0 else x + 1\n", "<stdin>", "exec"), typed)
    with pytest.raises(graphfix.ExportError, match=r"^<stdin>:2: a number is taken"):
        graphfix.export(typed["branch"], (f(3),), verify="none", route="torchscript")
    generated: dict[str, Any] = {}
    exec(compile("def branch(x):\n    return x if x.sum() > 0 else x + 1\n", "<generated>", "exec"), generated)
    with pytest.raises(graphfix.ExportError, match=r"^the module: a number is taken"):
        graphfix.export(generated["branch"], (f(3),), verify="none", route="torchscript")


def test_a_library_beside_pytorch_is_not_pytorch() -> None:
    from graphfix.torch_export.user_code import is_user_code

    packages = torch.__file__.removesuffix("torch/__init__.py")
    assert not is_user_code(f"{packages}torch/functional.py")
    assert is_user_code(f"{packages}torchvision/ops/boxes.py")


class Accumulating(torch.nn.Module):
    """Writes into a buffer and a parameter; drops out while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("memory", torch.arange(8.0).reshape(2, 4))

    def forward(self, x, *, scale):
        self.memory[0] = x[0]
        self.memory[:, 1] += scale
        return self.dropout(self.linear(x)) + self.memory.sum(0)


def test_the_module_stays_as_it_is() -> None:
    module = Accumulating().train()
    state, x = copy.deepcopy(module.state_dict()), f(3, 4)
    before, kept = torch.random.get_rng_state(), x.clone()
    methods = dict(torch.Tensor.__dict__), torch.autograd.Function.apply
    result = graphfix.export(
        module, (x,), kwargs={"scale": torch.tensor(2.0)}, dynamic_shapes={"x": N, "scale": None}, route="torchscript"
    )
    assert methods == (dict(torch.Tensor.__dict__), torch.autograd.Function.apply)
    assert module.training and torch.equal(x, kept) and torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in state.items())
    assert any("writes into its buffer memory" in note for note in result.report.notes)
    assert {i.name for i in result.model.graph.input} == {"x", "scale"}
    assert result.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    got = run_all(result.model, {"x": x.numpy(), "scale": np.array(2, np.float32)})["output"]
    np.testing.assert_allclose(got, module.eval()(x, scale=torch.tensor(2.0)).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_called_as_an_output() -> None:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.output = torch.nn.Parameter(torch.ones(3))
            self.scale = torch.nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            return x * self.scale + self.output

    result = graphfix.export(Net(), (torch.arange(3.0),), simplify=False, route="torchscript")
    assert {t.name for t in result.model.graph.initializer} == {"module.output", "scale"}
    assert [o.name for o in result.model.graph.output] == ["output"]


class Doubled(torch.autograd.Function):
    """A function whose gradient, 7, is its own."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


def test_other_threads_and_what_comes_after_see_nothing_of_it() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("__getitem__", "__setitem__")}
    gradients = []

    def train() -> None:
        weight = torch.ones(2, requires_grad=True)
        Doubled.apply(weight)[0].backward()
        gradients.append(weight.grad.tolist())

    def meanwhile(x):
        other = threading.Thread(target=train)
        other.start()
        other.join()
        return Doubled.apply(x)[:1]

    def failing(x):
        raise RuntimeError("of the module's own")

    result = graphfix.export(meanwhile, (f(3),), verify="none", route="torchscript")
    assert gradients and all(gradient == [7, 0] for gradient in gradients)
    np.testing.assert_array_equal(next(iter(run_all(result.model, {"x": f(3).numpy()}).values())), 2 * f(3)[:1])
    with pytest.raises(graphfix.ExportError, match="of the module's own"):
        graphfix.export(failing, (f(3),), verify="none", route="torchscript")
    train()
    assert gradients[-1] == [7, 0]
    assert {name: getattr(torch.Tensor, name) for name in before} == before


class Sharing(torch.nn.Module):
    """Writes into a buffer, and reads another one in the same memory."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("other", self.whole if part == slice(None) else self.whole[part])

    def forward(self, x):
        self.whole[0] = x.sum()
        return self.other + 1


def test_buffers_in_the_same_memory() -> None:
    x = torch.arange(1.0, 4.0)
    result = graphfix.export(Sharing(slice(None)), (x,), verify="model", route="torchscript")
    (output,) = run_all(result.model, {"x": x.numpy()}).values()
    np.testing.assert_array_equal(output, np.array([7, 1, 1, 1], np.float32))
    with pytest.raises(graphfix.ExportError, match="whose memory was written through another one"):
        graphfix.export(Sharing(slice(2)), (x,), verify="none", route="torchscript")


def test_the_route_is_chosen_and_named() -> None:
    def cut(x, n):
        x = x.clone()
        x[:, : n.item()] = 0
        return torch.stack([row for row in x if row is not None])

    def broken(x, n):
        return x + 1 if n > 2 else x

    args = (f(4, 5), torch.tensor(2))
    result = graphfix.export(cut, args, verify="model")
    entries = {p.key: p.value for p in result.model.metadata_props}
    notes = " ".join(result.report.notes)
    both = "onnxscript" in sys.modules
    if both and entries["graphfix.route"].startswith("TorchScript"):
        assert "not by torch.export: " in notes
    words = r"torch\.export cannot.*; by torchscript: .*a number is taken" if both else "a number is taken"
    with pytest.raises(graphfix.ExportError, match=words):
        graphfix.export(broken, args)
    with pytest.raises(graphfix.UsageError, match="route"):
        graphfix.export(cut, args, route="tracing")  # type: ignore[arg-type]
    if not hasattr(torch, "export"):  # before 2.1
        return
    program = torch.export.export(Accumulating().eval(), (f(3, 4),), {"scale": torch.tensor(1.0)})
    with pytest.raises(graphfix.UsageError, match="give the module"):
        graphfix.export(program, route="torchscript")


def test_names_and_opset_as_asked_for() -> None:
    def write(x, i):
        y = torch.zeros_like(x)
        y[i] = 1
        return y, y

    result = graphfix.export(
        write,
        (f(3, 4), torch.tensor([1])),
        input_names=["a", "b"],
        output_names=["c", "d"],
        opset=13,
        route="torchscript",
    )
    assert [i.name for i in result.model.graph.input] == ["a", "b"]
    assert [o.name for o in result.model.graph.output] == ["c", "d"]
    assert [o.version for o in result.model.opset_import if not o.domain] == [13]
    with pytest.raises(graphfix.ExportError, match="3 input names are given, but the model has 2 inputs"):
        graphfix.export(write, (f(3, 4), torch.tensor([1])), input_names=["a", "b", "c"], route="torchscript")


def test_a_translation_of_the_users_own_is_there_afterwards() -> None:
    def mine(g, data, mask, value):
        return g.op("mine::MaskedFill", data, mask, value)

    mine.__annotations__.clear()
    torch.onnx.register_custom_op_symbolic("aten::masked_fill", mine, 17)
    try:
        graphfix.export(lambda x: x.masked_fill(x > 0, 1), (f(2, 3),), route="torchscript", verify="none")
        stream = io.BytesIO()
        extra = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
        torch.onnx.export(Fill(), (f(2, 3),), stream, opset_version=17, custom_opsets={"mine": 1}, **extra)
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::masked_fill", 17)
    assert "MaskedFill" in [node.op_type for node in onnx.load_from_string(stream.getvalue()).graph.node]


class Fill(torch.nn.Module):
    def forward(self, x):
        return x.masked_fill(x > 0, 1)
