"""Kinds of code that real architectures hold, reduced: each was found in a library's model that did not export."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import require

import graphfix

torch = require("torch")
pytestmark = pytest.mark.torch

from engine import run_all  # noqa: E402


def run(model: onnx.ModelProto, *tensors: Any) -> list[np.ndarray]:
    names = [i.name for i in model.graph.input]
    return list(run_all(model, dict(zip(names, (t.numpy() for t in tensors), strict=True))).values())


def hold(model: onnx.ModelProto, module: Any, *tensors: Any) -> None:
    """The model gives PyTorch's answers."""
    expected = module(*(t.clone() for t in tensors))
    answers = expected if isinstance(expected, tuple) else (expected,)
    for answer, result in zip(answers, run(model, *tensors), strict=True):
        assert result.shape == tuple(answer.shape)
        np.testing.assert_allclose(result, answer.numpy(), rtol=1e-5, atol=1e-5)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_code_that_asks_whether_anything_was_selected() -> None:
    """Detectors: ``if boxes.numel() == 0`` about what a threshold leaves."""

    def above(scores, limit):
        kept = scores[scores > limit]
        if kept.numel() == 0:
            return kept.new_zeros(0, 2)
        return torch.stack([kept, kept * 2], 1)

    scores = torch.tensor([0.1, 0.9, 0.4, 0.7])
    result = graphfix.export(above, (scores, torch.tensor(0.3)))
    assert result.report.verification.status == "confirmed"
    assert any("taken for 2 or more where the module asks" in note for note in result.report.notes)
    (left,) = result.report.left
    assert left.reason == "the number of rows that a mask selects depends on the data"
    for limit in (0.0, 0.3, 0.8, 2.0):  # four, three, one and none
        hold(result.model, above, scores, torch.tensor(limit))


def _at_most_fifty(x, y):
    kept = x[x > 0]
    if kept.shape[0] > 50:
        kept = kept[:50]
    return kept


def _the_shorter(x, y):
    first, second = x[x > 0], y[y > 0]
    if first.shape[0] <= second.shape[0]:
        return first.sum()
    return second.sum()


def _the_longer(x, y):
    first, second = x[x > 0], y[y > 0]
    if first.shape[0] >= second.shape[0]:
        return first.sum()
    return second.sum()


@pytest.mark.parametrize("function", [_at_most_fifty, _the_shorter, _the_longer])
def test_a_question_that_has_not_one_answer_for_all_counts_is_refused(function: Any) -> None:
    x = torch.arange(1.0, 7.0)
    dims = {"x": {0: "n"}, "y": {0: "m"}}
    with pytest.raises(graphfix.ExportError, match="a size or a branch depends on the values"):
        graphfix.export(function, (x, x + 1), dynamic_shapes=dims, route="torch.export")


def test_a_branch_on_a_value_is_still_refused() -> None:
    def turned(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(graphfix.ExportError, match=r"if x\.sum\(\) > 0"):
        graphfix.export(turned, (torch.ones(3),))


def test_rows_of_a_mask_written_at_their_indices() -> None:
    """PointPillars: the values' rows and the indices are picked by one mask, far from each other."""

    def scatter(features, coordinates):
        canvas = torch.zeros(3, 20)
        mask = coordinates[:, 0] == 1
        these = coordinates[mask, :]
        canvas[:, (these[:, 1] * 5 + these[:, 2]).long()] = features[mask, :].t()
        return canvas

    places = [[1, 0, 0], [0, 3, 4], [1, 2, 2], [0, 0, 0], [1, 3, 4], [1, 1, 0]]
    args = (torch.arange(18.0).reshape(6, 3), torch.tensor(places))
    dims = ({0: "pillars"}, {0: "pillars"})
    result = graphfix.export(scatter, args, dynamic_shapes=dims, input_ranges={"coordinates": (0, 3)})
    assert not {"ATen", "ScatterND"} & set(operators(result.model))
    hold(result.model, scatter, *args)
    hold(result.model, scatter, torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.int64))


def test_spline_with_knots_at_both_ends() -> None:
    """VITS: knots of a size that only PyTorch knows, written at both ends, and values computed inside of a mask."""

    def spline(x, weights):
        batch, _, length = x.shape
        knots = weights.reshape(batch, 1, -1, length).permute(0, 1, 3, 2)[..., 2:]
        knots = torch.nn.functional.pad(knots, (1, 1))
        knots[..., 0] = 0.5
        knots[..., -1] = 0.25
        inside = (x > -1) & (x < 1)
        y = torch.zeros_like(x)
        y[~inside] = x[~inside]
        widths = knots[inside].softmax(-1).cumsum(-1)
        widths[..., 0] = 0.0
        y[inside] = x[inside] * widths.sum(-1) + knots[inside].sum(-1)
        return y

    torch.manual_seed(3)
    args = (torch.randn(2, 1, 6), torch.randn(2, 5, 6))
    dims = ({0: "batch", 2: "length"}, {0: "batch", 2: "length"})
    result = graphfix.export(spline, args, dynamic_shapes=dims)
    assert result.report.verification.status == "confirmed"
    assert not {"ATen", "ScatterND", "ScatterElements", "NonZero"} & set(operators(result.model))
    hold(result.model, spline, *args)
    hold(result.model, spline, torch.full((3, 1, 4), 5.0), torch.ones(3, 5, 4))


def test_bounds_that_torch_onnx_names_alike() -> None:
    """Deformable DETR: two inverse sigmoids of one tensor; the constants of the first lose their place."""

    def logits(x):
        y = x.sigmoid()
        a, b = y.clamp(0, 1), y.clamp(0, 1)
        return a.clamp(min=1e-5), (1 - a).clamp(min=1e-5), b.clamp(min=1e-3)

    x = torch.tensor([-30.0, -1.0, 0.0, 8.0, 40.0])
    hold(graphfix.export(logits, (x,)).model, logits, x)


def test_integers_taken_from_a_number() -> None:
    """BigBird: ``1.0 - mask`` with an integer mask."""

    def inverted(mask, half):
        return 1.0 - mask, 2 - mask, 1 - half

    args = (torch.tensor([0, 1, 1]), torch.tensor([0.5, 2.0], dtype=torch.float16))
    result = graphfix.export(inverted, args)
    one, two, three = run(result.model, *args)
    np.testing.assert_array_equal(one, np.array([1, 0, 0], np.float32))
    np.testing.assert_array_equal(two, np.array([2, 1, 1]))
    np.testing.assert_array_equal(three, np.array([0.5, -1], np.float16))
    assert [one.dtype, two.dtype, three.dtype] == [np.float32, np.int64, np.float16]


def test_names_of_dims_of_further_arguments() -> None:
    """Decoder steps: keys and values as ``*past``; equal names are one size."""

    class Step(torch.nn.Module):
        def forward(self, token, *past):
            keys, values = past
            return torch.cat([keys, token], 1), torch.cat([values, 2 * token], 1)

    args = (torch.ones(2, 1), torch.zeros(2, 5), torch.zeros(2, 5))
    rows = {0: "batch", 1: "written"}
    result = graphfix.export(Step(), args, dynamic_shapes=({0: "batch"}, (rows, rows)))
    named = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in result.model.graph.input}
    assert named == {"token": ["batch", ""], "past_0": ["batch", "written"], "past_1": ["batch", "written"]}
    for shapes in result.report.verification.sets:
        _, keys, values = (part.split(" ")[1] for part in shapes.split(", "))
        assert keys == values


def test_a_line_of_a_library_is_named_as_one(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "site-packages" / "somelib"
    folder.mkdir(parents=True)
    source = "def branch(x):\n    if x.sum().item() > 0:\n        return x + 1\n    return x - 1\n"
    (folder / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder.parent))
    from somelib import branch

    with pytest.raises(graphfix.ExportError, match=r"somelib.__init__\.py:2, if x\.sum.*; the line is somelib's own"):
        graphfix.export(lambda x: branch(x) * 2, (torch.ones(3),), route="torch.export")


def test_rewrites_on_selected_rows_are_cut_out_alone(monkeypatch) -> None:
    """Faster R-CNN: what the number of rows comes from must not bring the whole network along."""
    from graphfix.verification import rewrites

    cut: list[Counter[str]] = []
    check = rewrites.check_rewrite

    def counted(excerpt, **options):
        cut.append(Counter(node.op_type for node in excerpt.before.graph.node))
        return check(excerpt, **options)

    monkeypatch.setattr(rewrites, "check_rewrite", counted)

    def head(x, weight):
        h = x
        for _ in range(8):
            h = (h @ weight).relu()
        rows = h[h[:, 0] > 0.5]
        out = torch.zeros_like(rows)
        out[torch.arange(rows.shape[0]), rows.argmax(1)] = 1.0
        return out

    torch.manual_seed(1)
    graphfix.export(head, (torch.rand(6, 4), torch.rand(4, 4)))
    assert cut and all(nodes["MatMul"] == 0 for nodes in cut)


def test_numbers_drawn_from_a_seed_of_the_module_are_told_of() -> None:
    """Reformer: buckets by rotations that are drawn anew, from one seed, in every run."""

    def hashed(x):
        torch.manual_seed(3)
        return x @ torch.randn(4, 4)

    with pytest.raises(graphfix.NotConfirmedError, match=r"x @ torch\.randn.*draws random numbers.*in a buffer"):
        graphfix.export(hashed, (torch.rand(2, 4),), route="torch.export")
