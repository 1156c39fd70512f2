"""What never changes, item by item, with and without simplification. Every model holds an index_put to replace."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, StringStringEntryProto, TensorProto, helper, numpy_helper, parser

import graphfix

RICH = """
<
  ir_version: 10,
  opset_import: ["": 13, "org.pytorch.aten": 1, "prim": 1, "ai.onnx.ml": 3, "other": 7],
  producer_name: "maker", producer_version: "1.2.3", domain: "org.example", model_version: 42,
  doc_string: "all there is to know"
>
rich (float[B, 3] x, int64[K] i, float[3] scale, float[2, S] spare)
=> (float[B, 3] b, float[B, 3] y, float[2, 3] z)
<
  float[3] scale = {1.0, 2.0, 3.0}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 10}, float[1, 3] v = {7, 8, 9},
  bool no = {0}, float[B, 3] a, float[B, 3] b, float[B, 3] c
>
{
    [first] a = MatMul(x, w)
    [put] b = org.pytorch.aten.ATen<operator = "index_put", overload_name = "">(a, i, v, no)
    [second] c = MatMul(b, w)
    [last] y = Add(c, scale)
    [side] z = MatMul(spare, spare_weight)
}
"""
SIMPLIFY = pytest.mark.parametrize("simplify", [False, True], ids=["plain", "simplified"])


def _note(props, key: str, value: str) -> None:
    props.append(StringStringEntryProto(key=key, value=value))


@functools.cache
def rich() -> onnx.ModelProto:
    """A model that has something of everything that onnx's own tools and GraphSurgeon like to drop."""
    model = parser.parse_model(RICH)
    graph = model.graph
    _note(model.metadata_props, "licence", "free")
    _note(graph.metadata_props, "trained", "yes")
    graph.doc_string = "the graph"
    for node in graph.node:
        node.doc_string = f"where {node.name} was written"
        _note(node.metadata_props, "namespace", f"net/{node.name}")
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.doc_string = f"about {value.name}"
        _note(value.metadata_props, "unit", "metre")
    graph.input[0].type.denotation = "TENSOR"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.input[3].type.tensor_type.shape.dim[1].dim_param = "odd name"
    raw = numpy_helper.from_array(
        np.array([[np.nan], [-0.0]], np.float32) * np.ones((1, 3), np.float32), "spare_weight"
    )
    raw.doc_string = "kept to the bit"
    _note(raw.metadata_props, "from", "checkpoint")
    graph.initializer.append(raw)
    annotation = graph.quantization_annotation.add(tensor_name="c")
    _note(annotation.quant_parameter_tensor_names, "SCALE_TENSOR", "w")
    return model


@functools.cache
def fixed(simplify: bool) -> onnx.ModelProto:
    result = graphfix.fix(rich(), verify="none", simplify=simplify)
    assert [r.operator for r in result.report.replacements] == ["aten::index_put"]
    assert not result.report.warnings
    onnx.checker.check_model(result.model, full_check=True)
    return result.model


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def named(items) -> dict[str, bytes]:
    return {item.name: item.SerializeToString() for item in items}


def own(items) -> dict[str, bytes]:
    """What graphfix did not add."""
    return {name: data for name, data in named(items).items() if "/graphfix/" not in name}


def test_the_input_model_is_not_touched() -> None:
    before = rich().SerializeToString()
    fixed(False)
    assert rich().SerializeToString() == before


@SIMPLIFY
def test_the_rewrite_is_right(simplify: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    w = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10]], np.float32)
    b = x @ w
    b[[-1, 1]] = [7, 8, 9]
    feeds = {"x": x, "i": np.array([-1, 1]), "spare": np.zeros((2, 2), np.float32)}
    got = run(fixed(simplify), feeds)
    np.testing.assert_array_equal(got[0], b)
    np.testing.assert_allclose(got[1], b @ w + [1, 2, 3], rtol=1e-6)
    got = run(fixed(simplify), {**feeds, "scale": np.zeros(3, np.float32)})  # still an input with a default
    np.testing.assert_allclose(got[1], b @ w, rtol=1e-6)


@SIMPLIFY
def test_inputs_and_outputs(simplify: bool) -> None:
    """Names, order, element types, shapes, names of dims, denotations, doc strings, metadata."""
    for part in ("input", "output"):
        before, after = (list(getattr(m.graph, part)) for m in (rich(), fixed(simplify)))
        assert [v.SerializeToString() for v in after] == [v.SerializeToString() for v in before]


@SIMPLIFY
def test_model_and_graph_fields(simplify: bool) -> None:
    before, after = rich(), fixed(simplify)
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, field) == getattr(before, field), field
    assert list(after.metadata_props) == list(before.metadata_props)
    assert after.graph.name == "rich"
    assert after.graph.doc_string == "the graph"
    assert list(after.graph.metadata_props) == list(before.graph.metadata_props)


@SIMPLIFY
def test_nodes_that_stay(simplify: bool) -> None:
    """Byte for byte: name, attributes, doc string, metadata."""
    before, after = named(rich().graph.node), own(fixed(simplify).graph.node)
    del before["put"]
    assert {name: after[name] for name in before} == before


@SIMPLIFY
def test_new_nodes_say_where_they_come_from(simplify: bool) -> None:
    new = [n for n in fixed(simplify).graph.node if n.name.startswith("put/graphfix/aten-index-put/")]
    assert new
    assert len(new) == len(fixed(simplify).graph.node) - 4
    for node in new:
        assert [(p.key, p.value) for p in node.metadata_props] == [("graphfix.pass", "GF101")]


@SIMPLIFY
def test_opset_imports(simplify: bool) -> None:
    """Only those of ATen and prim go."""
    imports = {(o.domain, o.version) for o in fixed(simplify).opset_import}
    assert imports == {("", 13), ("ai.onnx.ml", 3), ("other", 7)}


def test_the_import_of_aten_stays_with_its_nodes() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
    g (float[N] x, int64[K] i, float v) => (float[N] y, float[K] z) <bool no = {0}> {
        y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
        z = org.pytorch.aten.ATen<operator = "index">(x, i)
    }"""
    result = graphfix.fix(parser.parse_model(text), verify="none", simplify=False, skip="aten-index")
    assert {(o.domain, o.version) for o in result.model.opset_import} == {("", 13), ("org.pytorch.aten", 1)}


@SIMPLIFY
def test_initializers(simplify: bool) -> None:
    """Those that are read stay byte for byte, in the form they were stored in; what only the ATen node read may go."""
    before, after = named(rich().graph.initializer), own(fixed(simplify).graph.initializer)
    for name in ("scale", "w", "spare_weight"):
        assert after[name] == before[name]
    assert set(after) <= set(before)


@SIMPLIFY
def test_tied_weights_stay_tied_and_nothing_is_copied(simplify: bool) -> None:
    graph = fixed(simplify).graph
    assert [n.input[1] for n in graph.node if n.name in ("first", "second")] == ["w", "w"]
    values = [(t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes()) for t in graph.initializer]
    assert len(values) == len(set(values))


@SIMPLIFY
def test_value_info_of_what_stays(simplify: bool) -> None:
    """But for the names of inner sizes, which contradict the inputs once a user fixes these."""
    graph = rich().graph
    for value in graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    before, after = named(graph.value_info), named(fixed(simplify).graph.value_info)
    assert {name: after[name] for name in before} == before


@SIMPLIFY
def test_quantization_annotation(simplify: bool) -> None:
    assert list(fixed(simplify).graph.quantization_annotation) == list(rich().graph.quantization_annotation)


def test_no_names_of_dims_are_added() -> None:
    def names(model: onnx.ModelProto) -> set[str]:
        values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
        return {d.dim_param for v in values for d in v.type.tensor_type.shape.dim}

    for simplify in (False, True):
        assert names(fixed(simplify)) <= names(rich()) | {""}


# ---- initializers that are inputs as well

LISTED = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
g (float[4] x, int64[2] i, float[2] v) => (float[4] y) <int64[2] i = {0, 1}, float[2] v = {5, 6}, bool no = {0}> {
    y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
}"""


def listed(ir_version: int) -> onnx.ModelProto:
    model = parser.parse_model(LISTED)
    model.ir_version = ir_version
    if ir_version < 4:  # every initializer has to be an input
        model.opset_import[0].version = 11
        model.graph.input.append(helper.make_tensor_value_info("no", TensorProto.BOOL, []))
    return model


@SIMPLIFY
def test_default_values_of_inputs_are_no_constants(simplify: bool) -> None:
    model = listed(8)
    result = graphfix.fix(model, simplify=simplify).model
    assert named(result.graph.input) == named(model.graph.input)
    assert {t.name for t in result.graph.initializer} >= {"i", "v"}
    x = np.zeros(4, np.float32)
    np.testing.assert_array_equal(run(result, {"x": x})[0], [5, 6, 0, 0])
    feeds = {"x": x, "i": np.array([3, -2]), "v": np.array([8, 9], np.float32)}
    np.testing.assert_array_equal(run(result, feeds)[0], [0, 0, 9, 8])


@SIMPLIFY
def test_ir_version_3(simplify: bool) -> None:
    """Initializers are constants there, and each has to be an input."""
    model = listed(3)
    onnx.checker.check_model(model)
    result = graphfix.fix(model, simplify=simplify).model
    assert result.ir_version == 3
    assert named(result.graph.input) == named(model.graph.input)
    onnx.checker.check_model(result)
    np.testing.assert_array_equal(run(result, {"x": np.zeros(4, np.float32)})[0], [5, 6, 0, 0])


# ---- external data

EXTERNAL = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
g (float[N] x, int64[K] i, float v) => (float[N] y, float[2] z) <bool no = {0}> {
    y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
    [reads] z = Gather<axis = 0>(table, at)
}"""


def external(folder: Path, rows: int) -> onnx.ModelProto:
    """A model with a table of 1024 columns in ``table.bin``, which is not made here."""
    model = parser.parse_model(EXTERNAL)
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[rows, 1024])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "4096"), ("length", str(rows * 4096))):
        table.external_data.append(StringStringEntryProto(key=key, value=value))
    model.graph.initializer.extend([table, numpy_helper.from_array(np.array([0, rows - 1]), "at")])
    model.graph.output[1].type.tensor_type.shape.dim.add().dim_value = 1024
    onnx.save(model, folder / "in.onnx")
    return model


@SIMPLIFY
def test_external_data(tmp_path: Path, simplify: bool) -> None:
    """The file is as it was, and so is the reference to it."""
    model = external(tmp_path, 40)
    data = np.random.default_rng(0).standard_normal(41 * 1024).astype(np.float32).tobytes()
    table = tmp_path / "table.bin"
    table.write_bytes(data)
    os.utime(table, ns=(1, 1))
    graphfix.fix(tmp_path / "in.onnx", tmp_path / "out.onnx", simplify=simplify)
    assert (table.read_bytes(), table.stat().st_mtime_ns) == (data, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx", "table.bin"]
    result = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert named(result.graph.initializer)["table"] == named(model.graph.initializer)["table"]
    assert named(result.graph.node)["reads"] == named(model.graph.node)["reads"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_copied_external_data_is_as_private_as_the_original(tmp_path: Path) -> None:
    external(tmp_path, 40)
    table = tmp_path / "table.bin"
    table.write_bytes(np.zeros(41 * 1024, np.float32).tobytes())
    table.chmod(0o600)
    (tmp_path / "other").mkdir()
    graphfix.fix(tmp_path / "in.onnx", tmp_path / "other" / "out.onnx", verify="none")
    assert (tmp_path / "other" / "table.bin").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, and memory in kilobytes")
def test_external_data_is_not_read(tmp_path: Path) -> None:
    """3 GB with nothing on the disk: reading them would show in the memory, writing them on the disk."""
    external(tmp_path, 3 << 18)
    table = tmp_path / "table.bin"
    with table.open("wb") as file:
        file.truncate(4096 + (3 << 30))
    os.utime(table, ns=(1, 1))
    code = (
        "import graphfix, resource, sys; graphfix.fix('in.onnx', 'out.onnx', verify='none'); "
        "print(max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000_000  # KiB, of which onnxsim takes some 300,000; the weights are 3 GiB
    assert table.stat().st_mtime_ns == 1
    assert sum(p.stat().st_blocks for p in tmp_path.iterdir()) * 512 < 1 << 20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx", "table.bin"]


# ---- functions, sparse initializers, custom nodes

FUNCTIONS = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1, "local": 1]>
g (float[N] x, int64[K] i, float v) => (float[N] z) <bool no = {0}> {
    [put] y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
    [call] z = local.twice<by = 2.0>(y)
}
<domain: "local", opset_import: ["": 13]>
twice <by> (a) => (c) {
    b = Constant<value_float: float = @by>()
    c = Mul(a, b)
}
<domain: "local", opset_import: ["": 13]>
unused (a) => (b) { b = Neg(a) }
"""


@SIMPLIFY
def test_local_functions(simplify: bool) -> None:
    model = parser.parse_model(FUNCTIONS)
    model.functions[0].doc_string = "a function"
    _note(model.functions[0].metadata_props, "namespace", "net")
    result = graphfix.fix(model, simplify=simplify).model
    assert list(result.functions) == list(model.functions)
    assert named(result.graph.node)["call"] == named(model.graph.node)["call"]
    feeds = {"x": np.ones(3, np.float32), "i": np.array([-1]), "v": np.array(4, np.float32)}
    np.testing.assert_array_equal(run(result, feeds)[0], [2, 2, 8])


@SIMPLIFY
def test_sparse_initializers(simplify: bool) -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1]>
    g (float[4] x, int64[K] i, float v) => (float[4] z) <bool no = {0}> {
        y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
        z = Add(y, s)
    }"""
    model = parser.parse_model(text)
    values = numpy_helper.from_array(np.array([7], np.float32), "s")
    places = numpy_helper.from_array(np.array([2]), "s_places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    result = graphfix.fix(model, verify="none", simplify=simplify)
    assert list(result.model.graph.sparse_initializer) == list(model.graph.sparse_initializer)
    assert len(result.report.warnings) == simplify  # that it was not simplified
    feeds = {"x": np.zeros(4, np.float32), "i": np.array([0]), "v": np.array(1, np.float32)}
    np.testing.assert_array_equal(run(result.model, feeds)[0], [1, 0, 7, 0])


def custom_model() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 13, "org.pytorch.aten": 1, "custom": 5]>
    g (float[N] x, int64[K] i, float v) => (float[N] z) <bool no = {0}, float[N] y, float[N] c> {
        [put] y = org.pytorch.aten.ATen<operator = "index_put">(x, i, v, no)
        [mine] c, d = custom.Op(y, , i)
        z = Neg(c)
    }"""
    model = parser.parse_model(text)
    tensor = numpy_helper.from_array(np.array([1.5, np.nan], np.float32), "t")
    sparse = helper.make_sparse_tensor(tensor, numpy_helper.from_array(np.array([0, 2]), "p"), [3])
    body = parser.parse_graph("body (float[1] q) => (float[1] r) { r = custom.Inner(q) }")
    type_proto = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.STRING, [None]))
    node = model.graph.node[1]
    kinds = AttributeProto
    for name, kind, field, value in [
        ("float", kinds.FLOAT, "f", 0.1),
        ("int", kinds.INT, "i", -(1 << 60)),
        ("bytes", kinds.STRING, "s", b"\xff\xfe\x00 not UTF-8"),
        ("tensor", kinds.TENSOR, "t", tensor),
        ("graph", kinds.GRAPH, "g", body),
        ("sparse", kinds.SPARSE_TENSOR, "sparse_tensor", sparse),
        ("type", kinds.TYPE_PROTO, "tp", type_proto),
        ("floats", kinds.FLOATS, "floats", [float("nan"), -0.0]),
        ("ints", kinds.INTS, "ints", [1, -2]),
        ("strings", kinds.STRINGS, "strings", [b"", b"\x80"]),
        ("tensors", kinds.TENSORS, "tensors", [tensor, tensor]),
        ("graphs", kinds.GRAPHS, "graphs", [body, body]),
        ("sparses", kinds.SPARSE_TENSORS, "sparse_tensors", [sparse]),
        ("types", kinds.TYPE_PROTOS, "type_protos", [type_proto]),
        ("empty", kinds.INTS, "ints", []),
    ]:
        attribute = node.attribute.add(name=name, type=kind, doc_string=f"what {name} is for")
        if isinstance(value, list):
            getattr(attribute, field).extend(value)
        elif isinstance(value, int | float | bytes):
            setattr(attribute, field, value)
        else:
            getattr(attribute, field).CopyFrom(value)
    return model


@SIMPLIFY
def test_custom_nodes(simplify: bool) -> None:
    """Attributes of every kind, empty inputs, bodies: byte for byte."""
    model = custom_model()
    result = graphfix.fix(model, verify="none", simplify=simplify)
    assert [r.node for r in result.report.replacements] == ["put"]
    assert named(result.model.graph.node)["mine"] == named(model.graph.node)["mine"]
    assert named(result.model.graph.value_info)["c"] == named(model.graph.value_info)["c"]
    assert ("custom", 5) in {(o.domain, o.version) for o in result.model.opset_import}
