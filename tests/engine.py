"""Runs a model in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output. ``feeds`` may hold arrays that the model does not ask for."""
    return next(iter(run_all(model, feeds).values()))


def run_all(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs by name."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    results = session.run(None, {k: v for k, v in feeds.items() if k in known})
    return dict(zip((o.name for o in session.get_outputs()), results, strict=True))
