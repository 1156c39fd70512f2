"""Export from PyTorch: what is written by index arrives whole, at every size, and every answer is PyTorch's."""

from __future__ import annotations

import copy
import re

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import require

import graphfix

torch = require("torch")
pytestmark = pytest.mark.torch

from engine import run_all  # noqa: E402
from torch_exports import GROUPS, Together, hold, unwanted  # noqa: E402
from torch_writes import SIZES, WRITES  # noqa: E402


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_writes_of_any_size(group: int) -> None:
    writes = GROUPS[group]
    dims = ([tuple(d or None for d in write.dims()) for write in writes],)
    result = graphfix.export(
        Together(writes), ([write.make(SIZES[0]) for write in writes],), dynamic_shapes=dims, verify="model"
    )
    assert result.report.verification.against == "PyTorch"
    assert sum(unwanted(result.model).values()) == len([w for w in writes if w.kept]) == len(result.report.left)
    for number, sizes in enumerate(SIZES):
        hold(result.model, writes, sizes, number)


@pytest.mark.parametrize(("opset", "part"), [(11, 0), (13, 1), (16, 2), (21, 3)])
def test_writes_of_fixed_size_at_other_opsets(opset: int, part: int) -> None:
    writes = WRITES[part::12]
    args = ([write.make(SIZES[0]) for write in writes],)
    result = graphfix.export(Together(writes), args, opset=opset, verify="model")
    assert [o.version for o in result.model.opset_import if o.domain == ""] == [opset]
    assert not unwanted(result.model)
    hold(result.model, writes, SIZES[0], 0)


class Net(torch.nn.Module):
    """Writes into its input, a buffer and a slice; drops out while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("memory", torch.arange(8.0).reshape(2, 4))

    def forward(self, x, mask, *, scale=None):
        self.memory[0] = self.memory[1]
        y = self.dropout(x)
        y[mask] = self.memory[0]
        x[:, 0] = 5
        return {"y": y, "more": (x, None, 3, y.sum(0) if scale is None else y * scale)}


ARGS = (torch.ones(3, 4), torch.tensor([True, False, True]))


def test_the_module_stays_as_it_is() -> None:
    module = Net().train()
    state, args = copy.deepcopy(module.state_dict()), copy.deepcopy(ARGS)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    result = graphfix.export(module, ARGS, verify="model", simplify=False)
    assert module.training and module.dropout.training
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in state.items())
    assert all(torch.equal(a, b) for a, b in zip(args, ARGS, strict=True))
    assert any("writes into its buffer memory" in note for note in result.report.notes)
    got = run_all(result.model, {"x": args[0].numpy(), "mask": args[1].numpy()})
    y = np.array([[4, 5, 6, 7], [1, 1, 1, 1], [4, 5, 6, 7]], np.float32)
    y[:, 0] = 5  # a dropout that is off returns its input itself
    x = y
    for value, answer in zip(got.values(), (y, x, y.sum(0)), strict=True):
        np.testing.assert_array_equal(value, answer)


def test_names_keyword_arguments_and_named_dims(tmp_path) -> None:
    result = graphfix.export(
        Net(),
        ARGS,
        tmp_path / "net.onnx",
        kwargs={"scale": torch.tensor([1.0, 2.0, 3.0, 4.0])},
        dynamic_shapes={"x": {0: "rows"}, "mask": {0: "rows"}, "scale": None},
        input_names=["a", "b", "c"],
        output_names=["p", "q", "r"],
        opset=15,
        verify="model",
    )
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [i.name for i in graph.input] == ["a", "b", "c"]
    assert [o.name for o in graph.output] == ["p", "q", "r"]
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    assert len(set(result.report.verification.sets)) > 2
    assert result.report.stages["export"] > 0


def test_what_made_the_model_is_kept(tmp_path, capsys) -> None:
    from graphfix.cli import run

    graphfix.export(Net(), ARGS, tmp_path / "net.onnx", verify="model")
    entries = {p.key: p.value for p in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert entries["graphfix.version.torch"] == torch.__version__
    assert entries["graphfix.opset"] == "18"
    assert entries["graphfix.route"].startswith("torch.export")
    assert "aten::index_put" in entries["graphfix.rewrites"]
    assert entries["graphfix.confirmation"].startswith("confirmed: equal to PyTorch on")
    assert run(["explain", str(tmp_path / "net.onnx")]) == 0
    told = capsys.readouterr().out
    assert "confirmed: equal to PyTorch" in told and "aten::index_put" in told
    assert run(["explain", "models/mask_rows.onnx"]) == 0
    assert "not made by graphfix export" in capsys.readouterr().out


class Branch(torch.nn.Module):
    def forward(self, x, n):
        x = x.clone()
        if n > 2:
            x[0] = 0
        return x


def test_a_branch_on_values_is_named_with_its_line() -> None:
    with pytest.raises(graphfix.ExportError) as error:
        graphfix.export(Branch(), (torch.ones(3), torch.tensor(3)), route="torch.export")
    assert "test_export.py" in str(error.value) and "if n > 2" in str(error.value)
    assert "torch.where" in str(error.value) and "\n" not in str(error.value)


def test_an_operator_without_a_form_is_named_with_its_line() -> None:
    def bessel(x):
        return torch.special.bessel_j0(x) + 1

    with pytest.raises(graphfix.UnsupportedError, match=r"bessel_j0.*test_export\.py:\d+, return torch.special"):
        graphfix.export(bessel, (torch.ones(3),), route="torch.export")


def test_a_number_taken_from_a_tensor_is_refused_or_right() -> None:
    def write(x, i):
        x = x.clone()
        x[i[0]] = 1
        return x

    args = (torch.zeros(3), torch.tensor([1]))
    try:
        result = graphfix.export(write, args, route="torch.export")
    except graphfix.ExportError as error:
        assert re.search(r"x\[i\[0\]\] = 1.*x\[i\.reshape\(1\)\] = v", str(error))
    else:  # PyTorch 2.15
        got = run_all(result.model, {"x": np.zeros(3, np.float32), "i": np.array([2])}).popitem()[1]
        np.testing.assert_array_equal(got, [0, 0, 1])


class Stamped(torch.nn.Module):
    """What torch.export keeps as it was in the example, PyTorch looks at anew in every run."""

    def forward(self, x):
        x = x.clone()
        x[:, 0] = 1.0 if torch.compiler.is_compiling() else 2.0
        return x


def test_a_difference_is_no_success() -> None:
    with pytest.raises(graphfix.NotConfirmedError, match="output"):
        graphfix.export(Stamped(), (torch.ones(3, 3),), verify="model", route="torch.export")


def test_a_wrong_translation_is_traced_to_its_line(monkeypatch) -> None:
    from graphfix.torch_export import nodes

    right = nodes.write_translations

    def wrong():
        table = right()
        table[torch.ops.aten.sigmoid.default] = lambda self: nodes.op.Tanh(self)
        return table

    class Inner(torch.nn.Module):
        def forward(self, x):
            return x.sigmoid() * 2

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x + 1)

    monkeypatch.setattr(nodes, "write_translations", wrong)
    with pytest.raises(
        graphfix.NotConfirmedError, match=r"aten\.sigmoid in inner at .*test_export\.py:\d+, return x.sig"
    ):
        graphfix.export(Outer(), (torch.ones(3),), verify="model", route="torch.export")


def test_random_outputs_are_not_called_equal() -> None:
    def noisy(x):
        x = x.clone()
        x[0] = 0
        return x, x + torch.rand_like(x)

    verification = graphfix.export(
        noisy, (torch.ones(3, 2),), output_names=["a", "b"], verify="model"
    ).report.verification
    assert verification.not_compared == ["b"]
    assert [o.name for o in verification.outputs] == ["a"]


def test_sizes_of_0_and_1_are_compared_too() -> None:
    """torch.export vouches for sizes from 2 on, where it is not told otherwise."""

    def write(x, mask):
        x = x.clone()
        x[mask] = 0
        return x

    args = (torch.randn(5, 2), torch.tensor([True, False, True, False, False]))
    sets = graphfix.export(write, args, dynamic_shapes=({0: "B"}, {0: "B"}), verify="model").report.verification.sets
    assert {"x 0x2, mask 0", "x 1x2, mask 1"} <= set(sets)


def test_numbers_keep_the_precision_of_float64() -> None:
    def increment(x, i):
        x = x.clone()
        x[i] += 0.1
        return x

    result = graphfix.export(increment, (torch.zeros(3, dtype=torch.float64), torch.tensor([1])), verify="model")
    got = run_all(result.model, {"x": np.zeros(3), "i": np.array([1])}).popitem()[1]
    np.testing.assert_array_equal(got, [0, 0.1, 0])


def test_views_of_one_operator_keep_their_sizes() -> None:
    """PyTorch 2.13 fixes these dims without a word."""

    def parts(x):
        x = x.clone()
        first, second = x.split([1, 3], dim=1)
        first.mul_(2)
        second[second < 0] = 0
        return x

    result = graphfix.export(parts, (torch.randn(5, 4, 6),), dynamic_shapes=({0: "B", 2: "N"},), verify="model")
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(run_all(result.model, {"x": x}).popitem()[1], parts(torch.from_numpy(x)).numpy())


def test_an_exported_program_and_a_factory_on_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    from graphfix.cli import run

    program = torch.export.export(Net().eval(), ARGS)
    torch.export.save(program, tmp_path / "net.pt2")
    (tmp_path / "factories.py").write_text(
        "import torch\n"
        "def relu(x):\n    x = x.clone()\n    x[x < 0] = 0\n    return x\n"
        "def make():\n    return relu, (torch.randn(3, 2),), {'dynamic_shapes': ({0: 'B'},)}\n"
        "def wrong():\n    return relu, (torch.randn(3, 2),), {'colour': 1}\n"
        "def broken():\n    return 1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["export", "net.pt2", "net.onnx", "--opset", "13"]) == 0
    assert "equal to PyTorch" in capsys.readouterr().out
    assert run(["export", "factories:make", "relu.onnx", "-q", "--report", "report.json"]) == 0
    assert not unwanted(onnx.load("relu.onnx"))
    for source, words in [
        ("factories:wrong", "the option 'colour'"),
        ("factories:broken", "division by zero"),
        ("factories:absent", "has no function absent"),
        ("nosuch.pt2", "no such file"),
        ("nosuch", "package.module:factory"),
        ("relu.onnx", "is no exported program"),
    ]:
        assert run(["export", source, "other.onnx"]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "other.onnx").exists()


@pytest.mark.parametrize("route", ["torch.export", "torchscript"])
def test_weights_that_no_file_holds_lie_beside_the_model(tmp_path, monkeypatch, route) -> None:
    from graphfix.torch_export import run

    monkeypatch.setattr(run, "_MOST_IN_FILE", 1000)  # in the place of nearly 2 GiB
    module = torch.nn.Sequential(torch.nn.Linear(40, 50), Relu(), torch.nn.Linear(50, 3)).eval()
    x = torch.randn(2, 40)
    with pytest.raises(graphfix.UsageError, match="give output"):
        graphfix.export(module, (x,), route=route)
    graphfix.export(module, (x,), tmp_path / "large.onnx", dynamic_shapes=({0: "B"},), route=route)
    assert {path.name for path in tmp_path.iterdir()} == {"large.onnx", "large.onnx.data"}
    assert (tmp_path / "large.onnx.data").stat().st_size >= 40 * 50 * 4
    session = onnxruntime.InferenceSession(str(tmp_path / "large.onnx"), providers=["CPUExecutionProvider"])
    (name,) = [i.name for i in session.get_inputs()]
    for rows in (1, 5):
        x = torch.randn(rows, 40)
        (got,) = session.run(None, {name: x.numpy()})
        np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


class Relu(torch.nn.Module):
    def forward(self, x):
        x = x.clone()
        x[x < 0] = 0
        return x


def test_views_of_dynamic_sizes_below_opset_14() -> None:
    """torch.export's Reshape can make sizes of 0, which the older one cannot."""

    def write(x):
        x = x.clone()
        x.view(-1)[0] = 1
        return x.view(x.shape[1], x.shape[0])

    x = torch.randn(3, 4)
    result = graphfix.export(write, (x,), dynamic_shapes=({0: "A", 1: "B"},), opset=12, route="torch.export")
    assert any("from 1 on" in note for note in result.report.notes)
    x = torch.randn(5, 2)
    got = run_all(result.model, {"x": x.numpy()}).popitem()[1]
    np.testing.assert_array_equal(got, write(x).numpy())


class Windowed(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] % 64:
            x = torch.nn.functional.pad(x, (0, 64 - x.shape[1] % 64))
        return x.view(x.shape[0], -1, 64).mean(-1)


class Compared(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y], 1) if x.shape == y.shape else x.sum() + y


def test_sizes_that_go_another_way_are_told() -> None:
    """torch.export keeps intervals, and drops what else was asked of a size."""
    notes = graphfix.export(
        Windowed(), (torch.randn(2, 70),), dynamic_shapes={"x": {1: "t"}}, route="torch.export", verify="model"
    ).report.notes
    assert any("the model is for (x.shape[1] % 64) != 0" in note for note in notes)
    dims = ({1: "n"}, {1: "m"})
    notes = graphfix.export(
        Compared(), (torch.randn(2, 3), torch.randn(2, 4)), dynamic_shapes=dims, route="torch.export", verify="model"
    ).report.notes
    assert any("the model is for x.shape[1] != y.shape[1]" in note for note in notes)
    notes = graphfix.export(
        Relu(), (torch.randn(2, 3),), dynamic_shapes=({0: "n"},), route="torch.export", verify="model"
    ).report.notes
    assert not any("the model is for" in note for note in notes)


class Once(torch.nn.Module):
    """Keeps from its first run what the later ones use: an attribute, a list, a parameter, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True
        self.kept = [torch.zeros(3)]
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        y = (x * 2 if self.first else x) + self.kept[0] + self.weight + self.count
        self.first = False
        self.kept[0] = torch.full((3,), 7.0)
        self.weight[0] = 5
        self.count.add_(1)
        return y


@pytest.mark.parametrize("route", ["auto", "torchscript"])
def test_every_run_begins_with_the_module_as_it_was_given(route) -> None:
    x = torch.randn(4, 3)
    result = graphfix.export(Once(), (x,), dynamic_shapes=({0: "n"},), route=route, verify="model")
    for rows in (4, 2):
        x = torch.randn(rows, 3)
        got = run_all(result.model, {result.model.graph.input[0].name: x.numpy()}).popitem()[1]
        np.testing.assert_allclose(got, (x * 2 + 1).numpy(), rtol=1e-6)


def test_a_write_into_a_parameter_is_refused_by_name() -> None:
    class Clamped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = x * self.weight
            self.weight.data.clamp_(0)
            return y

    with pytest.raises(graphfix.ExportError, match=r"into its parameter.*clamp_\(0\): make a buffer"):
        graphfix.export(Clamped(), (torch.randn(4, 3),), route="torch.export")


@pytest.mark.parametrize("route", ["auto", "torchscript"])
@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"y": {0: "n"}}, "names 'y'"),
        ({"x": {5: "n"}}, r"the axes \[5\]"),
        (({0: "n"}, {0: "n"}), "2 entries"),
        (({0: "n"}, None), "2 entries"),
    ],
)
def test_dynamic_shapes_that_do_not_fit_are_refused(route, dims, words) -> None:
    with pytest.raises(graphfix.UsageError, match=words):
        graphfix.export(Relu(), (torch.randn(4, 3),), dynamic_shapes=dims, route=route)
