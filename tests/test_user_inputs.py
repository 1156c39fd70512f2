"""Input sets and shapes that the user gives: every accepted form, and what is refused and how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphfix.errors import InputError, UsageError
from graphfix.user_inputs import ModelInput, check_ranges, check_sets, check_shapes, model_inputs, suggest

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
KNOWN = {
    "x": ModelInput(F32, ("N", 4), True),
    "a/b": ModelInput(I64, (3,), True),
    "weight": ModelInput(F32, (4,), False),
}
X, AB = np.zeros((2, 4), np.float32), np.arange(3)


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_model_inputs() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [],
        "g",
        [
            value("x", TensorProto.FLOAT, ["N", 4, None]),
            value("w", TensorProto.INT64, [2]),
            value("any_rank", TensorProto.BFLOAT16, None),
            helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, None),
        ],
        [],
        [helper.make_tensor("w", TensorProto.INT64, [2], [1, 2])],
    )
    found = model_inputs(helper.make_model(graph))
    assert found["x"] == ModelInput(F32, ("N", 4, None), True)
    assert found["w"] == ModelInput(I64, (2,), False)
    assert found["any_rank"].dims is None and found["any_rank"].dtype.itemsize == 2
    assert found["many"] == ModelInput(F32, None, True, is_list=True)


def test_no_inputs() -> None:
    assert check_sets(None, KNOWN) is None


def test_one_dict_and_a_list_of_them() -> None:
    one = {"x": X, "a/b": AB}
    for given, number in [(one, 1), ([one, one], 2)]:
        sets = check_sets(given, KNOWN)
        assert sets is not None and len(sets) == number
        assert sets[0].keys() == one.keys()


def test_a_given_dict_is_not_changed() -> None:
    given = {"x": X.tolist(), "a/b": AB}
    with pytest.raises(UsageError, match="float64, but the model takes float32"):
        check_sets(given, KNOWN)
    assert given["x"] == X.tolist()


@pytest.mark.parametrize("pattern", ["{name}", "s/{name}", "s/in/{name}"], ids=["by name", "set/name", "set/in/name"])
def test_files(tmp_path: Path, pattern: str) -> None:
    arrays = {pattern.format(name=name): array for name, array in [("x", X), ("a/b", AB), ("weight", X[0])]}
    sets = check_sets(saved(tmp_path / "i.npz", **arrays), KNOWN)
    assert sets is not None and len(sets) == 1
    assert sets[0].keys() == {"x", "a/b", "weight"}
    assert np.array_equal(sets[0]["a/b"], AB)


def test_sets_of_a_file_come_in_order_without_the_answers(tmp_path: Path) -> None:
    arrays = {}
    for number in (10, 9, 1):
        arrays |= {f"{number}/in/x": X + number, f"{number}/in/a/b": AB, f"{number}/out/y": X}
    sets = check_sets(saved(tmp_path / "i.npz", **arrays), KNOWN)
    assert sets is not None
    assert [arrays["x"][0, 0] for arrays in sets] == [1, 9, 10]


def test_bfloat16_of_a_file(tmp_path: Path) -> None:
    import ml_dtypes

    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    known = {"x": ModelInput(values.dtype, (2,), True)}
    sets = check_sets(saved(tmp_path / "i.npz", x=values), known)
    assert sets is not None
    assert sets[0]["x"].dtype == values.dtype
    assert sets[0]["x"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds no input set"),
        ({"x": X}, "lacks the input 'a/b'; give an array for every input: x, a/b"),
        ({"0/x": X, "0/a/b": AB, "1/x": X}, "set 1: lacks the input 'a/b'"),
        ({"x": X, "a/b": AB, "z": X}, "the model has no input 'z'"),
        ({"x": X, "a/b": AB, "0/weigth": X[0]}, "did you mean weight?"),
        ({"x": X, "0/a/b": AB}, "mixes arrays named"),
        ({"x": X, "a/b": AB.astype(np.int32)}, "'a/b' is int32, but the model takes int64"),
    ],
)
def test_refused_files(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    path = saved(tmp_path / "i.npz", **arrays)
    with pytest.raises(UsageError, match=message) as caught:
        check_sets(path, KNOWN)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [None, b"", b"not a zip file", "npy", "pickle"])
def test_unreadable_files(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "i.npz"
    if content == "npy":
        with open(path, "wb") as file:
            np.save(file, X)
    elif content == "pickle":
        np.savez(path, x=np.array([{}], object))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"i\.npz: ") as caught:
        check_sets(path, KNOWN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 4), (0, 4), [7, 4]])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert check_shapes({"x": shape}, KNOWN) == {"x": tuple(shape)}
    assert check_shapes(None, KNOWN) == {}


@pytest.mark.parametrize("dim", [0, -1])
def test_a_declared_dim_that_says_nothing(dim: int) -> None:
    assert check_shapes({"x": (5,)}, {"x": ModelInput(F32, (dim,), True)}) == {"x": (5,)}
    assert check_shapes({"x": (5, 6)}, {"x": ModelInput(F32, None, True)}) == {"x": (5, 6)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": (1,)}, "'y': the model has no such input"),
        ({"x": (1, 5)}, r"\[1, 5\] does not fit \[N, 4\]"),
        ({"x": (1,)}, r"\[1\] does not fit \[N, 4\]"),
        ({"x": (-1, 4)}, r"\[-1, 4\] is no shape"),
        ({"x": (1.5, 4)}, r"is no shape"),
        ({"x": (True, 4)}, r"is no shape"),
    ],
)
def test_refused_shapes(shapes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_shapes(shapes, KNOWN)


def test_suggestions() -> None:
    assert suggest("WIEGHT", ["weight", "x"]) == "did you mean weight?"
    assert suggest("q", ["weight", "x"]) == "known: weight, x"
    assert suggest("q", []) == "there are none"
    assert suggest("q", [f"w{i}" for i in range(20)]).endswith("w11, ...")


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), F32, helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)])
def test_a_range_beyond_the_dtype(dtype) -> None:
    known = {"x": ModelInput(dtype, ("N",), True)}
    assert check_ranges({"x": (-6e4, 6e4)}, known) == {"x": (-6e4, 6e4)}
    for pair in ((0, 1e39), (-1e39, 0)):
        with pytest.raises(UsageError, match=r"does not reach -?1e\+39"):
            check_ranges({"x": pair}, known)


def test_arrays_of_another_shape_are_bad_usage() -> None:
    known = {"x": ModelInput(F32, ("N", 4), True)}
    assert check_sets({"x": np.zeros((3, 4), F32)}, known)
    for shape in ((4,), (3, 5), (1, 3, 4)):
        with pytest.raises(UsageError, match=r"'x' has shape .*, but the model takes \[N, 4\]"):
            check_sets({"x": np.zeros(shape, F32)}, known)
