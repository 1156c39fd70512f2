"""The fixed models of models/ in OpenVINO, held against PyTorch's own answers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import graphfix

MODELS = sorted(p.stem for p in (ROOT / "models").glob("*.npz") if p.stem != "lossy")


@pytest.mark.openvino
@pytest.mark.parametrize("name", MODELS)
def test_fixed_models_give_pytorchs_answers(name: str, tmp_path: Path) -> None:
    import openvino

    path = tmp_path / "fixed.onnx"
    graphfix.fix(ROOT / "models" / f"{name}.onnx", path)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    sets: dict[str, dict[str, dict[str, np.ndarray]]] = defaultdict(lambda: {"in": {}, "out": {}})
    for key, array in np.load(ROOT / "models" / f"{name}.npz").items():
        number, side, tensor = key.split("/", 2)
        sets[number][side][tensor] = array
    assert sets
    for answers in sets.values():
        request = compiled.create_infer_request()
        request.infer(answers["in"])
        for tensor, wanted in answers["out"].items():
            np.testing.assert_allclose(request.get_tensor(tensor).data, wanted, rtol=1e-5, atol=1e-6)
