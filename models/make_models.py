"""Make the models of this folder: `python make_models.py [FOLDER]`, with one of the PyTorch versions below.

Each model is written by the PyTorch version its entry names, and only by that one: torch 1.8.1 and 1.10.2 (Python 3.9)
export index writes as ATen nodes under ONNX_ATEN_FALLBACK, torch 2.13.0 writes the lossy placeholder. Beside every
`name.onnx` goes `name.npz` with PyTorch's own answers: arrays `<set>/in/<input>` and `<set>/out/<output>`; several sets
are several sizes of the dynamic dims.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class MaskRows(nn.Module):
    """Zero the padded positions of a batch."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x.clone()
        x[padding] = 0.0
        return x


class IndexRows(nn.Module):
    """Write new rows into a memory; of equal slots the last wins, and negative slots count from the end."""

    def forward(self, memory: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
        memory = memory.clone()
        memory[slots] = rows
        return memory


class Accumulate(nn.Module):
    """Add the features of points to the cells they fall in; several points may share a cell."""

    def forward(self, grid: Tensor, cells: Tensor, features: Tensor) -> Tensor:
        return grid.index_put((cells,), features, accumulate=True)


class ShiftBoxes(nn.Module):
    """Overwrite two columns of every box, as detection heads do."""

    def forward(self, boxes: Tensor, sizes: Tensor) -> Tensor:
        boxes = boxes.clone()
        boxes[:, :, 2:4] = sizes * 2.0
        return boxes


class MaskedScatter(nn.Module):
    """Fill the masked positions from a packed source, in row-major order."""

    def forward(self, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        return x.masked_scatter(mask, source)


class TruncateHalf(nn.Module):
    """Zero the first half of the channels, whatever their number."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, : x.shape[1] // 2] = 0.0
        return x


class Model(NamedTuple):
    """One model: the module, its input sets (the first one is traced), and how to export it."""

    module: nn.Module
    sets: list[dict[str, np.ndarray]]
    output: str
    opset: int
    torch: str
    dynamic: dict[str, dict[int, str]] | None = None


def models() -> dict[str, Model]:
    """Every model of this folder by its name."""
    rng = np.random.default_rng(7)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def mask(*shape: int) -> np.ndarray:
        return rng.random(shape) < 0.5

    batch_time = {0: "batch", 1: "time"}
    mask_rows = [{"x": floats(b, t, 8), "padding": mask(b, t)} for b, t in [(2, 6), (1, 1), (5, 3)]]
    slots = [[4, 0, 2], [1, 1, 1], [-1, 5, -6]]
    index_rows = [{"memory": floats(6, 8), "slots": np.array(s), "rows": floats(3, 8)} for s in slots]
    cells = [[0, 3, 3, 1], [2, 2, 2, 2], [3, 2, 1, 0]]
    accumulate = [{"grid": floats(4, 5), "cells": np.array(c), "features": floats(4, 5)} for c in cells]
    shift_boxes = [{"boxes": floats(2, 10, 6), "sizes": floats(2, 10, 2)} for _ in range(2)]
    masked_scatter = [{"x": floats(3, 4), "mask": mask(3, 4), "source": floats(3, 4)} for _ in range(2)]
    truncate_half = [{"x": floats(b, c, 3)} for b, c in [(2, 6), (1, 5), (3, 1)]]

    return {
        "mask_rows": Model(
            MaskRows(), mask_rows, "y", 11, "1.10.2", {"x": batch_time, "padding": batch_time, "y": batch_time}
        ),
        "index_rows": Model(IndexRows(), index_rows, "updated", 13, "1.10.2"),
        "accumulate": Model(Accumulate(), accumulate, "sums", 11, "1.8.1"),
        "shift_boxes": Model(ShiftBoxes(), shift_boxes, "shifted", 11, "1.10.2"),
        "masked_scatter": Model(MaskedScatter(), masked_scatter, "y", 9, "1.10.2"),
        "truncate_half": Model(
            TruncateHalf(), truncate_half, "y", 9, "1.10.2", {n: {0: "batch", 1: "channels"} for n in ("x", "y")}
        ),
        "lossy": Model(IndexRows(), index_rows, "updated", 9, "2.13.0"),
    }


def export(name: str, model: Model, folder: pathlib.Path) -> None:
    """Write ``name.onnx`` and, with PyTorch's answers to every input set, ``name.npz``."""
    module = model.module.eval()
    tensors = [{k: torch.from_numpy(v) for k, v in inputs.items()} for inputs in model.sets]
    options: dict[str, Any] = {"dynamo": False} if int(torch.__version__.split(".")[0]) >= 2 else {}
    torch.onnx.export(
        module,
        tuple(tensors[0].values()),
        str(folder / f"{name}.onnx"),
        input_names=list(tensors[0]),
        output_names=[model.output],
        dynamic_axes=model.dynamic,
        opset_version=model.opset,
        operator_export_type=torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK,
        **options,
    )
    answers: dict[str, Any] = {}
    for number, inputs in enumerate(tensors):
        for key, value in inputs.items():
            answers[f"{number}/in/{key}"] = value.numpy()
        with torch.no_grad():
            answers[f"{number}/out/{model.output}"] = module(*inputs.values()).numpy()
    np.savez(folder / f"{name}.npz", **answers)


def main() -> None:
    """Export what this version of PyTorch is to export."""
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    version = torch.__version__.split("+")[0]
    chosen = {name: model for name, model in models().items() if model.torch == version}
    if not chosen:
        wanted = sorted({model.torch for model in models().values()})
        sys.exit(f"torch {version} makes none of these models: use one of {', '.join(wanted)}")
    for name, model in chosen.items():
        export(name, model, folder)
        print(f"{name}.onnx")


if __name__ == "__main__":
    main()
