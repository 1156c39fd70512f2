"""Weights in a file instead of in the model: ONNX Runtime maps such a file, and copies what is in the model, each time.

Measured with a model of 1 GB that is compared with itself (three sessions, 23 runs): 15 s and no more memory than
loading the model takes (2.1 GB) in this way, 35 s and 6.3 GB in the other.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import onnx

from graphfix.model_io import external_locations, tensor_bytes

_LARGE_MODEL = 100 << 20
_LARGE_TENSOR = 64 << 10
_ALIGNMENT = 4096  # of the start of a tensor, so that it can be mapped
_FILE = "weights.bin"

Place = tuple[onnx.ModelProto, Path | None]


@contextmanager
def mapped(models: Sequence[Place]) -> Iterator[list[Place]]:
    """The models and the folders of their external data, with the weights of large models moved to temporary files.

    A model stays as it is when it is small, has external data already, or does not fit on the disk. The files are there
    as long as this lasts. No given model is changed.
    """
    with ExitStack() as stack:
        found: dict[int, Place] = {}
        for model, base_dir in models:
            if id(model) in found or not _is_large(model) or external_locations(model):
                found.setdefault(id(model), (model, base_dir))
                continue
            with suppress(OSError):  # the disk is full, or there is no place for temporary files
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphfix-")))
                if shutil.disk_usage(folder).free > 1.1 * _inline_bytes(model):
                    found[id(model)] = _moved(model, folder), folder
            found.setdefault(id(model), (model, base_dir))
        yield [found[id(model)] for model, _ in models]


def _inline_bytes(model: onnx.ModelProto) -> int:
    return sum(_raw_bytes(tensor) for tensor in model.graph.initializer)


def _raw_bytes(tensor: onnx.TensorProto) -> int:
    """The length of the raw data, without taking them out of the message, which copies them."""
    return (tensor_bytes(tensor) or 0) if tensor.HasField("raw_data") else 0


def _is_large(model: onnx.ModelProto) -> bool:
    return _inline_bytes(model) > _LARGE_MODEL


def _moved(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """A copy of the model with its large initializers in a file of the folder; the originals are not copied."""
    light = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(light, field.name).extend(value)
        else:
            setattr(light, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name == "initializer":
            continue
        if field.is_repeated:
            getattr(light.graph, field.name).extend(value)
        else:
            setattr(light.graph, field.name, value)
    with open(folder / _FILE, "xb") as file:
        for tensor in model.graph.initializer:
            if _raw_bytes(tensor) < _LARGE_TENSOR:
                light.graph.initializer.append(tensor)
                continue
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            stub = light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            stub.data_location = onnx.TensorProto.EXTERNAL
            data = tensor.raw_data
            for key, entry in {"location": _FILE, "offset": file.tell(), "length": len(data)}.items():
                stub.external_data.add(key=key, value=str(entry))
            file.write(data)
    return light
