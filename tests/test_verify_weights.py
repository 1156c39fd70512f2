"""Large weights are put into mapped files for a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from graphfix.reference import ReferenceSession
from graphfix.verification import check_model, weights

TEXT = """<ir_version: 8, opset_import: ["": 13], producer_name: "someone"> g(float[N, 256] x) => (float[N, 256] y) {
    a = MatMul(x, w) b = Add(a, small) y = Mul(b, v) }"""


def large() -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    arrays = {"w": rng.random((256, 256)), "small": rng.random(256), "v": rng.random((1, 256))}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    return model


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_LARGE_MODEL", 1000)


def test_weights_are_moved_and_put_back_by_the_session() -> None:
    model = large()
    before = model.SerializeToString()
    feeds = {"x": np.random.default_rng(1).random((3, 256)).astype(np.float32)}
    with weights.mapped([(model, None), (model, None)]) as [(one, folder), (other, _)]:
        assert one is other and folder is not None
        data = {tensor.name: tensor for tensor in one.graph.initializer}
        assert data["w"].data_location == onnx.TensorProto.EXTERNAL and not data["w"].raw_data
        assert [t.name for t in one.graph.initializer] == ["w", "small", "v"] and data["small"].raw_data
        assert one.producer_name == "someone" and len(one.SerializeToString()) < len(before) / 10
        for name in ("w", "small", "v"):
            expected = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))
            assert np.array_equal(numpy_helper.to_array(data[name], str(folder)), expected)
        moved = ReferenceSession(one, base_dir=folder).run(feeds)
    assert not folder.exists()
    assert model.SerializeToString() == before
    assert np.array_equal(moved["y"], ReferenceSession(model).run(feeds)["y"])


def test_what_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(large(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    external = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    little = parser.parse_model('<ir_version: 8, opset_import: ["": 13]> g(float[N] x) => (float[N] y) { y = Neg(x) }')
    with weights.mapped([(external, tmp_path), (little, None)]) as places:
        assert places[0][0] is external and places[1] == (little, None)

    def full(*arguments: object, **options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(weights.tempfile, "TemporaryDirectory", full)
    model = large()
    with weights.mapped([(model, None)]) as places:
        assert places[0][0] is model


def test_a_large_model_is_compared() -> None:
    other = large()
    assert check_model(large(), other).status == "confirmed"
    changed = numpy_helper.to_array(other.graph.initializer[0]).copy()
    changed[200, 200] += 1
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(changed, "w"))
    assert check_model(large(), other).status == "failed"
