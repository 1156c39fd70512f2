"""Input shapes and input sets that the user gives, held against the model's declared inputs."""

from __future__ import annotations

import difflib
import math
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
    """A graph input: numpy dtype (None for maps), declared dims, whether it must be fed, and whether it is a sequence.

    Of a sequence, dtype and dims are those of its elements; of an optional, those of what it may hold.
    """

    dtype: np.dtype[Any] | None
    dims: tuple[int | str | None, ...] | None
    required: bool
    is_list: bool = False


def model_inputs(model: onnx.ModelProto) -> dict[str, ModelInput]:
    """The model's inputs by name. One that has an initializer, its default, need not be fed."""
    from onnx.helper import tensor_dtype_to_np_dtype

    from graphfix.protobuf import tensor_of

    defaults = {tensor.name for tensor in model.graph.initializer}
    defaults.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    found = {}
    for value in model.graph.input:
        dims: tuple[int | str | None, ...] | None = None
        dtype = None
        tensor, is_list = tensor_of(value.type)
        if tensor is not None:
            dtype = tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
            if tensor.HasField("shape"):
                dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        found[value.name] = ModelInput(dtype, dims, value.name not in defaults, is_list)
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


def check_ranges(
    given: Mapping[str, Sequence[float]] | None, known: Mapping[str, ModelInput]
) -> dict[str, tuple[float, float]]:
    """Ranges ``(low, high)`` by input name; both ends are allowed values.

    Raises UsageError for an unknown input, and for a range that is none or that the input's dtype cannot hold.
    """
    import numpy as np

    ranges = {}
    for name, pair in (given or {}).items():
        at = f"input range of {name!r}"
        if name not in known:
            raise UsageError(f"{at}: the model has no such input; {suggest(name, known)}")
        ends = tuple(pair)
        numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not numbers or not all(math.isfinite(end) for end in ends) or ends[0] > ends[1]:
            raise UsageError(f"{at}: {pair!r} is no range; give two numbers, the lower first")
        low, high = ends
        dtype = known[name].dtype
        if dtype is None or dtype.kind in "OSU":
            raise UsageError(f"{at}: the input holds no numbers; give it with inputs")
        if dtype.kind in "biu":
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if low != int(low) or high != int(high) or low < least or high > most:
                raise UsageError(f"{at}: {dtype} takes whole numbers from {least} to {most}")
            low, high = int(low), int(high)
        else:
            with np.errstate(over="ignore"):
                rounded = np.array([low, high], np.float64).astype(dtype)
            if not np.isfinite(rounded).all():
                raise UsageError(f"{at}: {dtype} does not reach {high if np.isfinite(rounded[0]) else low:g}")
        ranges[name] = (low, high)
    return ranges


def check_sets(
    given: str | os.PathLike[str] | Arrays | Sequence[Arrays] | None, known: Mapping[str, ModelInput]
) -> list[dict[str, np.ndarray]] | None:
    """Input sets from a dict, a list of dicts or an ``.npz`` file; None stays None.

    A file holds arrays named ``<input>``, or ``<set>/<input>`` or ``<set>/in/<input>`` for several sets;
    ``<set>/out/...`` is passed over. A sequence is a list of arrays, or one array of its elements. Raises InputError
    for a file that cannot be read, UsageError for sets that the model cannot take.
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
            if known[name].is_list:
                elements = list(array) if np.iterable(array) else [array]
                arrays[name] = [_as_declared(np.asarray(e), known[name], f"{at}: {name!r}") for e in elements]
            else:
                arrays[name] = _as_declared(np.asarray(array), known[name], f"{at}: {name!r}")
        missing = [name for name, declared in known.items() if declared.required and name not in arrays]
        if missing:
            raise UsageError(f"{at}: lacks the input {missing[0]!r}; {_wanted(known)}")
    return list(sets.values())


@dataclass(frozen=True)
class Recorded:
    """Outputs that were recorded, a dict a set by the model's output names.

    ``inputs`` are the input sets that the same file held, None when it held none. ``notes`` say what was not plain.
    """

    outputs: list[dict[str, np.ndarray]]
    inputs: dict[str, dict[str, np.ndarray]] | None
    notes: list[str]


def check_recorded(
    given: str | os.PathLike[str] | Arrays | Sequence[Arrays], known: Mapping[str, np.dtype[Any] | None]
) -> Recorded:
    """Recorded outputs from a dict, a list of dicts or an ``.npz`` file, for a model with the ``known`` outputs.

    A file holds arrays named ``<output>`` for one set, or ``<set>/out/<output>`` or ``<set>/<output>`` for several;
    ``<set>/in/<input>`` are inputs beside them. Names that the model does not have are taken in their order when there
    are as many as outputs. Raises InputError for a file that cannot be read, UsageError for outputs that do not fit.
    """
    import numpy as np

    where, inputs = "expected", None
    if isinstance(given, (str, os.PathLike)):
        where = os.fspath(given)
        sets, inputs = _group_recorded(_read_npz(Path(given)), known)
    elif isinstance(given, Mapping):
        sets = {"": dict(given)}
    else:
        sets = {str(number): dict(arrays) for number, arrays in enumerate(given)}
    if not sets or not all(sets.values()):
        raise UsageError(f"{where}: holds no recorded outputs; the model's outputs are {', '.join(known)}")
    notes: dict[str, None] = {}
    found = []
    for number, arrays in sets.items():
        at = f"{where}, set {number}" if number else where
        names = {name: name for name in arrays}
        strange = [name for name in arrays if name not in known]
        if strange:
            if len(arrays) != len(known):
                raise UsageError(f"{at}: the model has no output {strange[0]!r}; {suggest(strange[0], known)}")
            names = dict(zip(arrays, known, strict=True))
            told = ", ".join(f"{one} for {other}" for one, other in names.items())
            notes[f"the recorded outputs were taken in their order, as their names are others: {told}"] = None
        missing = [name for name in known if name not in names.values()]
        if missing:
            notes[f"not compared, as they were not recorded: {', '.join(missing)}"] = None
        found.append({names[name]: _viewed(np.asarray(array), known[names[name]]) for name, array in arrays.items()})
    return Recorded(found, inputs, list(notes))


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


def _as_declared(array: np.ndarray, declared: ModelInput, at: str) -> np.ndarray:
    """The array in the input's dtype. Raises UsageError when that, the rank or a fixed size does not fit."""
    array = _as_dtype(array, declared.dtype, at)
    if declared.dtype is not None and declared.dims is not None and not _fits(array.shape, declared.dims):
        raise UsageError(f"{at} has shape {_shape_text(array.shape)}, but the model takes {_shape_text(declared.dims)}")
    return array


def _as_dtype(array: np.ndarray, dtype: np.dtype[Any] | None, at: str) -> np.ndarray:
    if dtype is None or array.dtype == dtype or (dtype.kind == "O" and array.dtype.kind in "OSU"):
        return array
    # numpy.savez keeps the bytes of bfloat16 and the like, but not the name of the type.
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    raise UsageError(f"{at} is {array.dtype}, but the model takes {dtype}; convert it")


def _viewed(array: np.ndarray, dtype: np.dtype[Any] | None) -> np.ndarray:
    """The array under the dtype that the file format lost; as it is when it has one."""
    if dtype is None or array.dtype.kind != "V" or array.dtype.itemsize != dtype.itemsize:
        return array
    return array.view(dtype)


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
    return _in_order(sets)


def _group_recorded(
    arrays: Mapping[str, np.ndarray], known: Iterable[str]
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]] | None]:
    """The recorded outputs of a file by set, and the inputs beside them."""
    names = set(known)
    outputs: dict[str, dict[str, np.ndarray]] = {}
    inputs: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        number, _, rest = key.partition("/")
        side, _, name = rest.partition("/")
        if key in names:
            outputs.setdefault("", {})[key] = array
        elif side == "in" and name:
            inputs.setdefault(number, {})[name] = array
        elif side == "out" and name:
            outputs.setdefault(number, {})[name] = array
        elif rest in names:
            outputs.setdefault(number, {})[rest] = array
        else:
            outputs.setdefault("", {})[key] = array
    return _in_order(outputs), _in_order(inputs) if inputs else None


def _in_order(sets: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sets by number, then the others by name."""
    return dict(sorted(sets.items(), key=lambda item: (len(item[0]), item[0]) if item[0].isdigit() else (99, item[0])))
