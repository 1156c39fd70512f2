"""Loading and saving: what is refused and how it is said, and that nothing is lost or left behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from graphfix import model_io
from graphfix.errors import InputError

SMALL = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[N, 4] x) => (float[N, 4] y) {
    a = Relu(x)
    y = Neg(a)
}
"""


def small() -> onnx.ModelProto:
    return parser.parse_model(SMALL)


def refusal(source) -> str:
    """The message that loading is refused with: one line."""
    with pytest.raises(InputError) as caught:
        model_io.load(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def text_refusal(text: str) -> str:
    return refusal(parser.parse_model(text))


def external(folder: Path, *, location: str = "w.bin", count: int = 8, **entries: str) -> onnx.ModelProto:
    """A model that adds 8 floats from an external file; the file gets ``count`` of them."""
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 13]> g (float[8] x) => (float[8] y) {y = Add(x, w)}')
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if count:
        path = folder / location
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.arange(count, dtype=np.float32).tobytes())
    return model


# ------------------------------------------------------------------------------------------------ reading


def test_loads_a_path_bytes_and_a_model(tmp_path: Path) -> None:
    model = small()
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    from_path = model_io.load(path)
    assert (from_path.model, from_path.path, from_path.base_dir) == (model, path, tmp_path)
    assert from_path.size == path.stat().st_size
    assert model_io.load(str(path)).model == model
    from_bytes = model_io.load(path.read_bytes())
    assert (from_bytes.model, from_bytes.path, from_bytes.base_dir) == (model, None, None)
    from_model = model_io.load(model)
    assert from_model.model == model
    assert from_model.model is not model
    assert from_model.size == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"Hello, this is a text file.\nNot a model.\n", "text file"),
        (b'{"irVersion": "8", "graph": {}}', "text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (bytes(range(200, 256)) * 9, "not an ONNX model"),
        (b"\x08\x08", "not an ONNX model"),  # an IR version and nothing else
    ],
)
def test_refuses_what_is_no_model(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert says in message


def test_refuses_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx")
    assert "is a folder" in refusal(tmp_path)
    assert "cannot be read" in refusal("nul\0byte.onnx")


def test_refuses_every_truncation_and_survives_damage() -> None:
    data = small().SerializeToString()
    for length in range(len(data)):
        refusal(data[:length])
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 5)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        try:
            model_io.load(bytes(damaged))
        except InputError as error:
            assert "\n" not in str(error)


def test_refuses_bad_versions() -> None:
    model = small()
    model.ir_version = 0
    assert "IR version" in refusal(model)
    model.ir_version = 999
    assert "upgrade onnx" in refusal(model)
    model = small()
    model.opset_import[0].version = 999
    assert "imports opset 999" in refusal(model)
    model.opset_import[0].version = 0
    assert "imports opset 0" in refusal(model)
    del model.opset_import[:]
    assert "imports no operator set" in refusal(model)


def test_the_same_import_twice() -> None:
    model = small()
    model.opset_import.add(domain="ai.onnx", version=13)
    assert len(model_io.load(model).model.opset_import) == 2
    model.opset_import[1].version = 11
    assert "version 13 and 11" in refusal(model)


def test_a_missing_default_import_is_read_as_onnx_runtime_does() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 13]> g (float[1, 3] x) => (y) {y = Relu(x)}')
    model.opset_import[0].domain = "ai.onnx.ml"
    loaded = model_io.load(model)
    # Relu last changed in opset 14: from there on the newest opset means the same.
    assert [(i.domain, i.version) for i in loaded.model.opset_import] == [("ai.onnx.ml", 13), ("", 14)]
    assert "does not say which opset" in loaded.notes[0]


def test_an_ml_model_needs_no_default_import() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 2]> g (float[2, 3] x) => (y) {y = ai.onnx.ml.Scaler(x)}'
    )
    loaded = model_io.load(model)
    assert loaded.model == model
    assert loaded.notes == []


def test_ir_3_initializers_stay_inputs() -> None:
    model = parser.parse_model(
        '<ir_version: 3, opset_import: ["": 9]> g (float[2] x, float[2] w) => (float[2] y) {y = Add(x, w)}'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    assert model_io.load(model).model == model


# ------------------------------------------------------------------------------------------------ graph faults

HEAD = '<ir_version: 8, opset_import: ["": 13, "my.domain": 1]> g '


def test_refuses_a_cycle() -> None:
    message = text_refusal(HEAD + "(float[2] x) => (y) {b = Add(x, c)  c = Neg(b)  y = Relu(c)}")
    assert "cycle" in message
    assert re.search(r"'[bc]'", message)


def test_refuses_a_node_whose_body_needs_its_own_output() -> None:
    message = text_refusal(
        HEAD + "(bool c, float[2] x) => (y) {"
        "y = If(c) <then_branch = a () => (p) {p = Neg(y)}, else_branch = b () => (q) {q = Neg(x)}>}"
    )
    assert "cycle" in message


def test_refuses_dangling_names() -> None:
    message = text_refusal(HEAD + "(float[2] x) => (y) {y = Add(x, nowhere)}")
    assert "the Add node that makes 'y' reads 'nowhere', which nothing makes" in message
    assert "nothing makes the graph output 'z'" in text_refusal(HEAD + "(float[2] x) => (z) {y = Relu(x)}")
    inner = "y = If(c) <then_branch = a () => (p) {p = Neg(gone)}, else_branch = b () => (q) {q = Neg(x)}>"
    message = text_refusal(HEAD + "(bool c, float[2] x) => (y) {" + inner + "}")
    assert "'gone'" in message
    assert "then_branch of the If node that makes 'y'" in message


def test_optional_inputs_and_outputs_may_be_left_out() -> None:
    model = parser.parse_model(HEAD + '(float[2] x, float m) => (y) {y = Clip(x, "", m)}')
    assert model_io.load(model).notes == []


def test_refuses_a_tensor_made_twice() -> None:
    assert "exists already" in text_refusal(HEAD + "(float[2] x) => (y) {y = Relu(x)  y = Neg(x)}")
    assert "exists already" in text_refusal(HEAD + "(float[2] x) => (x) {x = Relu(x)}")
    model = small()
    model.graph.output.append(model.graph.output[0])
    assert "two of the graph's outputs are called 'y'" in refusal(model)


def test_names_in_subgraphs() -> None:
    branches = (
        "y = If(c) <then_branch = p () => ({0}) {{t = Neg(a)  {0} = Relu(t)}}, "
        "else_branch = q () => (v) {{t = Abs(a)  v = Relu(t)}}>"
    )
    head = HEAD + "(bool c, float[2] x) => (y) {a = Relu(x)  "
    assert model_io.load(parser.parse_model(head + branches.format("u") + "}")).notes == []  # siblings may share names
    assert "hides a tensor of the outer graph" in text_refusal(head + branches.format("a") + "}")


def test_sorts_nodes_and_says_so() -> None:
    model = parser.parse_model(
        HEAD + "(bool c, float[2] x) => (y, z) {"
        "y = If(c) <then_branch = p () => (u) {u = Neg(late)}, else_branch = q () => (v) {v = Abs(w)  w = Neg(x)}>"
        "z = Neg(x)  late = Relu(x)}"
    )
    loaded = model_io.load(model)
    assert [n.op_type for n in loaded.model.graph.node] == ["Neg", "Relu", "If"]
    branch = loaded.model.graph.node[2].attribute[1].g
    assert [n.output[0] for n in branch.node] == ["w", "v"]
    assert len(loaded.notes) == 2
    assert all("out of order" in note for note in loaded.notes)


def test_refuses_operators_that_do_not_exist() -> None:
    model = small()
    model.graph.node[0].op_type = "Frobnicate"
    model.graph.node[0].name = "n0"
    message = refusal(model)
    assert "node 'n0' (Frobnicate): no such operator in ai.onnx opset 13" in message
    model.graph.node[0].op_type = "Gelu"
    assert "came with opset 20" in refusal(model)
    model.graph.node[0].domain = "my.domain"  # a domain of its own makes it somebody's custom operator
    model_io.load(model)


def test_refuses_impossible_signatures() -> None:
    assert "has 1 inputs, but opset 13 wants 2" in text_refusal(HEAD + "(float[2] x) => (y) {y = Add(x)}")
    assert "lacks the attribute 'to'" in text_refusal(HEAD + "(float[2] x) => (y) {y = Cast(x)}")


@pytest.mark.parametrize("operator", ["ATen", "DynamicSlice", "ConstantFill", "Scatter", "Upsample"])
def test_lets_through_what_the_passes_replace(operator: str) -> None:
    model = small()
    model.graph.node[0].op_type = operator
    assert model_io.load(model).model == model


def test_local_functions() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13, "my.domain" : 1]>
    g (float[2] x) => (y) {{ y = my.domain.f(x) }}
    <domain: "my.domain", opset_import: ["" : 13, "my.domain" : 1]>
    f (a) => (b) {{ {body} }}
    """
    assert model_io.load(parser.parse_model(text.format(body="b = Relu(a)"))).notes == []
    assert "in function 'f'" in text_refusal(text.format(body="b = Relu(q)"))
    assert "in function 'f'" in text_refusal(text.format(body="b = Frobnicate(a)"))
    assert "calls itself" in text_refusal(text.format(body="b = my.domain.f(a)"))


def test_refuses_a_tensor_whose_data_is_cut() -> None:
    model = parser.parse_model(HEAD + "(float[2] x) => (y) {y = Add(x, w)}")
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2], raw_data=bytes(7)))
    assert "'w' holds 7 bytes, but its type and shape need 8" in refusal(model)


# ------------------------------------------------------------------------------------------------ external data


def test_external_data_is_not_read(tmp_path: Path) -> None:
    model = external(tmp_path)
    assert model_io.load(tmp_path / "model.onnx").model == model


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 0}, "'w.bin' is missing in"),
        ({"count": 7}, "which has 28"),
        ({"offset": "4"}, "needs bytes 4 to 36"),
        ({"length": "16"}, "need 32"),
        ({"length": "lots"}, "not a number"),
        ({"offset": "-4"}, "needs bytes -4"),
        ({"location": "", "count": 0}, "does not say in which file"),
        ({"location": ".", "count": 0}, "not a file"),
        ({"location": "../w.bin"}, "outside the model's folder"),
        ({"location": "/etc/passwd", "count": 0}, "outside the model's folder"),
    ],
)
def test_refuses_bad_external_data(tmp_path: Path, changes: dict, says: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    external(folder, **changes)
    message = refusal(folder / "model.onnx")
    assert "tensor 'w'" in message
    assert says in message


def test_refuses_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    external(folder)
    (folder / "w.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "w.bin").symlink_to(tmp_path / "elsewhere.bin")
    assert "outside the model's folder" in refusal(folder / "model.onnx")


def test_external_data_is_checked_in_subgraphs_attributes_functions_and_sparse_tensors(tmp_path: Path) -> None:
    tensor = external(tmp_path, count=0).graph.initializer[0]
    base = parser.parse_model(HEAD + "(float[8] x) => (y) {y = Relu(x)}")
    constant = helper.make_node("Constant", [], ["k"], value=tensor)

    in_attribute = onnx.ModelProto()
    in_attribute.CopyFrom(base)
    in_attribute.graph.node.append(constant)

    in_subgraph = parser.parse_model(
        HEAD + "(bool c, float[8] x) => (y) {y = If(c) <then_branch = p () => (u) {u = Neg(x)}, "
        "else_branch = q () => (v) {v = Abs(x)}>}"
    )
    in_subgraph.graph.node[0].attribute[0].g.initializer.append(tensor)

    in_function = onnx.ModelProto()
    in_function.CopyFrom(base)
    in_function.functions.append(
        helper.make_function("my.domain", "f", ["a"], ["k"], [constant], [helper.make_opsetid("", 13)])
    )

    sparse = onnx.ModelProto()
    sparse.CopyFrom(base)
    entry = sparse.graph.sparse_initializer.add(dims=[9])
    entry.values.CopyFrom(tensor)
    entry.indices.CopyFrom(numpy_helper.from_array(np.arange(8), "w_indices"))

    for model in (in_attribute, in_subgraph, in_function, sparse):
        path = tmp_path / "n.onnx"
        path.write_bytes(model.SerializeToString())
        assert "'w.bin' is missing" in refusal(path)


def test_a_model_in_memory_has_no_external_files(tmp_path: Path) -> None:
    model = external(tmp_path)
    assert "give its path" in refusal(model)
    assert "give its path" in refusal(model.SerializeToString())
    model.graph.initializer[0].raw_data = bytes(32)  # the caller has read the data already
    loaded = model_io.load(model)
    assert loaded.model.graph.initializer[0].data_location == TensorProto.DEFAULT
    assert model.graph.initializer[0].data_location == TensorProto.EXTERNAL


# ------------------------------------------------------------------------------------------------ writing


def write_refusal(output, model: onnx.ModelProto | None = None, base_dir: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        model_io.save(model or small(), output, base_dir=base_dir)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_saves_and_replaces_whole(tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    output.write_bytes(b"old")
    output.chmod(0o640)
    model_io.save(small(), output, base_dir=None)
    assert onnx.load(output) == small()
    assert output.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_new_files_honour_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        model_io.save(small(), tmp_path / "m.onnx", base_dir=None)
    finally:
        os.umask(before)
    assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o640


def test_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.onnx").write_bytes(b"old")
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "real" / "m.onnx")
    model_io.save(small(), link, base_dir=None)
    assert link.is_symlink()
    assert onnx.load(tmp_path / "real" / "m.onnx") == small()


def test_refuses_outputs_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "locked.onnx").write_bytes(b"")
    for output, says in (
        (tmp_path / "absent" / "m.onnx", "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "m.onnx", "not a folder"),
        (tmp_path / ("x" * 300), "name too long"),
        ("nul\0byte.onnx", "cannot be written"),
    ):
        assert says in write_refusal(output)
        if "x" * 300 not in str(output):  # only the file system can tell
            with pytest.raises(InputError, match=says):
                model_io.check_writable(output)
    assert sorted(os.listdir(tmp_path)) == ["file", "locked.onnx"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_refuses_without_permission(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "m.onnx").chmod(0o444)
    assert "read-only" in write_refusal(tmp_path / "m.onnx")
    tmp_path.chmod(0o555)
    assert "no permission" in write_refusal(tmp_path / "n.onnx")
    tmp_path.chmod(0o755)


def test_devices_are_written_not_replaced() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    assert "no space left" in write_refusal("/dev/full")
    model_io.save(small(), os.devnull, base_dir=None)
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write", "replace"])
def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch, error: BaseException, step: str) -> None:
    source, elsewhere = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    elsewhere.mkdir()
    model = external(source, location="data/w.bin")
    (elsewhere / "m.onnx").write_bytes(b"old")

    def fail(*_args):
        raise error

    if step == "write":
        monkeypatch.setattr(shutil, "copyfileobj", fail)
    else:
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda a, b: fail() if str(b).endswith(".onnx") else replace(a, b))
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        model_io.save(model, elsewhere / "m.onnx", base_dir=source)
    if isinstance(error, OSError):
        assert "no space left" in str(caught.value)
    assert [str(p.relative_to(elsewhere)) for p in elsewhere.rglob("*")] == ["m.onnx"]
    assert (elsewhere / "m.onnx").read_bytes() == b"old"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        model = small()
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(20_000, np.float32), "w"))
        assert "no space left" in write_refusal(disk / "m.onnx", model)
        assert os.listdir(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ------------------------------------------------------------------------------------------------ weights on saving


def test_in_the_same_folder_weights_are_left_alone(tmp_path: Path) -> None:
    external(tmp_path)
    before = (tmp_path / "w.bin").stat()
    loaded = model_io.load(tmp_path / "model.onnx")
    model_io.save(loaded.model, tmp_path / "model.onnx", base_dir=loaded.base_dir)
    model_io.save(loaded.model, tmp_path / "other.onnx", base_dir=loaded.base_dir)
    after = (tmp_path / "w.bin").stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_atime_ns) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_atime_ns,
    )
    assert onnx.load(tmp_path / "other.onnx", load_external_data=False) == loaded.model
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "other.onnx", "w.bin"]


def test_in_another_folder_weights_come_along(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    elsewhere.mkdir()
    model = external(source, location="data/w.bin")
    for _ in range(2):  # the second time the same file is there already
        model_io.save(model, elsewhere / "m.onnx", base_dir=source)
        loaded = onnx.load(elsewhere / "m.onnx")
        np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), np.arange(8))
        assert sorted(p.name for p in elsewhere.rglob("*")) == ["data", "m.onnx", "w.bin"]
    assert (elsewhere / "data" / "w.bin").stat().st_ino != (source / "data" / "w.bin").stat().st_ino


def test_never_replaces_other_weights(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    elsewhere.mkdir()
    model = external(source)
    other = np.full(8, 7, np.float32).tobytes()
    (elsewhere / "w.bin").write_bytes(other)
    assert "exists already with other content" in write_refusal(elsewhere / "m.onnx", model, source)
    assert os.listdir(elsewhere) == ["w.bin"]
    assert (elsewhere / "w.bin").read_bytes() == other
    for folder in (source, elsewhere):  # the output's own name is that of the weights
        assert "choose another output" in write_refusal(folder / "w.bin", model, source)
    with pytest.raises(InputError, match="choose another output"):
        model_io.check_writable(source / "w.bin", model_io.load(source / "model.onnx"))
    assert (source / "w.bin").stat().st_size == 32


def test_more_than_protobuf_can_hold_is_one_line(tmp_path: Path, monkeypatch) -> None:
    from google.protobuf.message import EncodeError

    class Big:
        def SerializeToString(self) -> bytes:
            raise EncodeError("Failed to serialize proto")

    assert "external data" in write_refusal(tmp_path / "m.onnx", Big())  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
