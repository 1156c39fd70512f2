"""Input shapes and input sets that the user gives, held against the model's declared inputs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfix.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ModelInput:
    """A graph input: numpy dtype (None for sequences and maps), declared dims, and whether it must be fed."""

    dtype: np.dtype[Any] | None
    dims: tuple[int | str | None, ...] | None
    required: bool


def model_inputs(model: onnx.ModelProto) -> dict[str, ModelInput]:
    """The model's inputs by name. One that has an initializer, its default, need not be fed."""
    from onnx.helper import tensor_dtype_to_np_dtype

    defaults = {tensor.name for tensor in model.graph.initializer}
    defaults.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    found = {}
    for value in model.graph.input:
        dims: tuple[int | str | None, ...] | None = None
        dtype = None
        if value.type.HasField("tensor_type"):
            tensor = value.type.tensor_type
            dtype = tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
            if tensor.HasField("shape"):
                dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        found[value.name] = ModelInput(dtype, dims, value.name not in defaults)
    return found


def check_shapes(
    given: Mapping[str, Sequence[int]] | None, known: Mapping[str, ModelInput]
) -> dict[str, tuple[int, ...]]:
    """Shapes by input name. Raises UsageError for an unknown input and a shape that the declared one rules out."""
    shapes = {}
    for name, sizes in (given or {}).items():
        if name not in known:
            raise UsageError(f"input shape of {name!r}: the model has no such input; {suggest(name, known)}")
        shape = tuple(sizes)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
            raise UsageError(f"input shape of {name!r}: {_shape_text(shape)} is no shape; give integers, zero or more")
        dims = known[name].dims
        if dims is not None and not _fits(shape, dims):
            raise UsageError(
                f"input shape of {name!r}: {_shape_text(shape)} does not fit {_shape_text(dims)}, which the model "
                "declares; give sizes for its dynamic dims only"
            )
        shapes[name] = shape
    return shapes


def check_sets(
    given: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None, known: Mapping[str, ModelInput]
) -> list[dict[str, np.ndarray]] | None:
    """Input sets from a dict, a list of dicts or an ``.npz`` file; None stays None.

    A file holds arrays named ``<input>``, or ``<set>/<input>`` or ``<set>/in/<input>`` for several sets;
    ``<set>/out/...`` is passed over. Raises InputError for a file that cannot be read, UsageError for sets that the
    model cannot take.
    """
    import numpy as np

    if given is None:
        return None
    where = "inputs"
    if isinstance(given, (str, os.PathLike)):
        where = os.fspath(given)
        sets = _group(_read_npz(Path(given)), known, where)
    elif isinstance(given, Mapping):
        sets = {"": dict(given)}
    else:
        sets = {str(number): dict(arrays) for number, arrays in enumerate(given)}
    if not sets:
        raise UsageError(f"{where}: holds no input set; {_wanted(known)}")
    for number, arrays in sets.items():
        at = f"{where}, set {number}" if number else where
        for name, array in arrays.items():
            if name not in known:
                raise UsageError(f"{at}: the model has no input {name!r}; {suggest(name, known)}")
            arrays[name] = _as_dtype(np.asarray(array), known[name].dtype, f"{at}: {name!r}")
        missing = [name for name, declared in known.items() if declared.required and name not in arrays]
        if missing:
            raise UsageError(f"{at}: lacks the input {missing[0]!r}; {_wanted(known)}")
    return list(sets.values())


def suggest(text: str, known: Iterable[str]) -> str:
    """A clause that offers the nearest of the known words, or lists some of them when none is near."""
    words = list(known)
    by_folded = {word.casefold(): word for word in words}
    near = [by_folded[w] for w in difflib.get_close_matches(text.casefold(), by_folded, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if not words:
        return "there are none"
    return f"known: {', '.join(words[:12])}{', ...' if len(words) > 12 else ''}"


def _fits(shape: tuple[int, ...], dims: tuple[int | str | None, ...]) -> bool:
    # A declared 0 or -1 is how old exporters write a dynamic dim.
    return len(shape) == len(dims) and all(
        not isinstance(dim, int) or dim <= 0 or dim == size for size, dim in zip(shape, dims, strict=True)
    )


def _shape_text(dims: Iterable[Any]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def _wanted(known: Mapping[str, ModelInput]) -> str:
    required = [name for name, declared in known.items() if declared.required]
    return f"give an array for every input: {', '.join(required)}"


def _as_dtype(array: np.ndarray, dtype: np.dtype[Any] | None, at: str) -> np.ndarray:
    if dtype is None or array.dtype == dtype or (dtype.kind == "O" and array.dtype.kind in "OSU"):
        return array
    # numpy.savez keeps the bytes of bfloat16 and the like, but not the name of the type.
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    raise UsageError(f"{at} is {array.dtype}, but the model takes {dtype}; convert it")


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    if not path.is_file():
        raise InputError(f"{path}: no such file; give the inputs as a file that numpy.savez wrote")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # numpy and zipfile raise many kinds, and an .npy file gives an array without `files`
        raise InputError(f"{path}: cannot be read as .npz; make it with numpy.savez") from error


def _group(arrays: Mapping[str, np.ndarray], known: Mapping[str, ModelInput], where: str) -> dict[str, dict[str, Any]]:
    """Sort the arrays of a file into sets. A key that is an input's whole name belongs to the unnamed set."""
    sets: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        number, _, name = key.partition("/")
        if key in known:
            number, name = "", key
        elif name not in known:
            side, _, rest = name.partition("/")
            if side == "out":
                continue  # answers that lie beside the inputs
            if side != "in" or rest not in known:
                raise UsageError(f"{where}: the model has no input {key!r}; {suggest(key, known)}")
            name = rest
        sets.setdefault(number, {})[name] = array
    if "" in sets and len(sets) > 1:
        raise UsageError(f"{where}: mixes arrays named '<input>' and '<set>/<input>'; use one of the two")
    return dict(sorted(sets.items(), key=lambda item: (len(item[0]), item[0]) if item[0].isdigit() else (99, item[0])))
