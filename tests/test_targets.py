"""What engines are known to refuse or to run wrongly: the files, the rules, and what `target` does with them.

Which models an engine runs (the expectations below that name one) was measured with the version that its file names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import require
from graph_view import View
from onnx import TensorProto, helper, numpy_helper, parser

import graphfix
from graphfix import cli, shapes
from graphfix.errors import UsageError
from graphfix.facts import Facts
from graphfix.graph import Model
from graphfix.report import Finding
from graphfix.targets import find_target, target_names
from graphfix.targets.check import Checker
from graphfix.targets.loading import parse_target

HEAD = 'title = "An engine"\nversion = "1"\n'
ATTRIBUTES: dict[str, set[str]] = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if not schema.domain:
        ATTRIBUTES.setdefault(schema.name, set()).update(schema.attributes)


def found_by(text: str, model: str | View, opset: int = 13, add: list[TensorProto] | None = None) -> list[Finding]:
    """What rules, as the text of a file says them, say of a graph."""
    view = model if isinstance(model, View) else View(f"g {model}", opset, add or [])
    return Checker(parse_target("engine", HEAD + text), view.model, view.facts).model()


def known(target: str, model: str, opset: int = 13, add: list[TensorProto] | None = None) -> set[tuple[str, str]]:
    """Kind and operator of what is known against a graph on an engine."""
    view = View(f"g {model}", opset, add or [])
    return {(f.kind, f.operator) for f in Checker(find_target(target), view.model, view.facts).model()}


def blocked(target: str, model: str, opset: int = 13, add: list[TensorProto] | None = None) -> set[str]:
    """The operators that the engine refuses, crashes on, or runs wrongly."""
    return {op for kind, op in known(target, model, opset, add) if kind in ("refuses", "wrong", "crash")}


def rule(**fields: str) -> str:
    given = {"kind": '"refuses"', "op": '"Where"', "why": '"w"', "source": '"read: s"', **fields}
    return "[[rule]]\n" + "\n".join(f"{key} = {value}" for key, value in given.items())


# ----------------------------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("name", target_names())
def test_every_file_loads_and_names_operators_that_exist(name: str) -> None:
    target = find_target(name)
    assert target.rules and target.name == name and target.version
    for one in target.rules:
        assert set(one.op) <= set(ATTRIBUTES) | {"*", "input"}, one
        named = {name for op in one.op for name in ATTRIBUTES.get(op, ())}
        assert set(one.attributes or {}) <= named, one


def test_the_engines_that_facts_are_known_of() -> None:
    engines = "coreml emx iree mnn ncnn nncase onnx2tf onnxruntime opencv openvino qnn rknn tensorrt tinygrad tract tvm"
    assert target_names() == engines.split()


def test_names_are_unique() -> None:
    targets = [find_target(name) for name in target_names()]
    words = [word for target in targets for word in (target.name, *target.aliases)]
    assert len(words) == len(set(words))
    assert all(word == word.casefold() for word in words)


@pytest.mark.parametrize(("given", "name"), [("mnn", "mnn"), (" TensorRT ", "tensorrt"), ("trt", "tensorrt")])
def test_engines_are_found_by_name_and_alias(given: str, name: str) -> None:
    assert find_target(given).name == name


@pytest.mark.parametrize("given", ["tensort", "", "no such engine", 5])
def test_an_unknown_engine_is_a_usage_error(given: str) -> None:
    with pytest.raises(UsageError, match="graphfix targets") as error:
        graphfix.fix("model.onnx", target=given)
    assert given != "tensort" or "tensorrt" in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("opsets = [7, 9]", "no key 'opsets'"),
        ("opset = [9, 7]", "no range"),
        ("opset = [7, 9]", "opset_source"),
        (rule(kind='"refuse"'), "kind is 'refuse'"),
        (rule(op="[]"), "op is missing"),
        (rule(why='""'), "why is missing"),
        (rule(source='"somewhere"'), "source has to begin"),
        (rule(input="[]"), "no key 'input'"),
        (rule(inputs='[{ tipe = "bool" }]'), "no key 'tipe'"),
        (rule(inputs='[{ type = "boolean" }]'), "type 'boolean'"),
        (rule(inputs='[{ value = "constant" }]'), "value 'constant'"),
        (rule(outputs='[{ shape = "dynamic" }]'), "shape 'dynamic'"),
    ],
)
def test_mistakes_in_a_file_are_told(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"engine.toml.*{problem}"):
        parse_target("engine", HEAD + text)


# ----------------------------------------------------------------------------------------------------------- the rules

WHERE = "(bool[2] m, float[2] x) => (float[2] y) { y = Where(m, x, x) }"


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({}, True),
        ({"op": '["Add", "Where"]'}, True),
        ({"op": '"*"'}, True),
        ({"op": '"Add"'}, False),
        ({"since": "13"}, True),
        ({"since": "14"}, False),
        ({"until": "13"}, True),
        ({"until": "12"}, False),
        ({"inputs": '[{ type = "bool" }]'}, True),
        ({"inputs": '[{ at = 1, type = "bool" }]'}, False),
        ({"inputs": '[{ at = [1, 0], type = "bool" }]'}, True),
        ({"inputs": '[{ at = 0, type = "bool" }, { at = 1, type = ["float", "double"] }]'}, True),
        ({"inputs": '[{ at = 0, type = "bool" }, { at = 1, type = "double" }]'}, False),
        ({"inputs": '[{ at = 5, type = "bool" }]'}, False),
        ({"outputs": '[{ type = "float" }]'}, True),
        ({"outputs": '[{ type = "bool" }]'}, False),
        ({"inputs_over": "2"}, True),
        ({"inputs_over": "3"}, False),
        ({"inputs": "[{ rank_over = 0 }]"}, True),
        ({"inputs": "[{ rank_over = 1 }]"}, False),
        ({"inputs": "[{ rank_under = 2 }]"}, True),
        ({"inputs": "[{ rank_under = 1 }]"}, False),
    ],
)
def test_what_a_rule_is_for(fields: dict[str, str], holds: bool) -> None:
    assert bool(found_by(rule(**fields), WHERE)) is holds


@pytest.mark.parametrize(
    ("attributes", "given", "holds"),
    [
        ('{ reduction = "add" }', '<reduction = "add">', True),
        ('{ reduction = ["mul", "add"] }', '<reduction = "add">', True),
        ('{ reduction = "add" }', '<reduction = "mul">', False),
        ('{ reduction = "add" }', "", False),
        ("{ reduction = true }", '<reduction = "none">', True),
        ("{ reduction = true }", "", False),
        ("{ reduction = false }", "", True),
        ("{ reduction = false }", '<reduction = "none">', False),
        ('{ reduction = ["none", false] }', "", True),
        ('{ reduction = ["none", false] }', '<reduction = "none">', True),
        ('{ reduction = ["none", false] }', '<reduction = "add">', False),
    ],
)
def test_attributes(attributes: str, given: str, holds: bool) -> None:
    graph = f"(float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {{ y = ScatterND{given}(x, i, u) }}"
    assert bool(found_by(rule(op='"ScatterND"', attributes=attributes), graph, 18)) is holds


def test_an_attribute_of_0_is_not_a_missing_one() -> None:
    graph = "(float[4] x, int64[2] s) => (float[2, 2] y) { y = Reshape<allowzero = 0>(x, s) }"
    assert not found_by(rule(op='"Reshape"', attributes="{ allowzero = false }"), graph, 14)
    assert not found_by(rule(op='"Reshape"', attributes="{ allowzero = [1] }"), graph, 14)
    assert found_by(rule(op='"Reshape"', attributes="{ allowzero = [0] }"), graph, 14)


@pytest.mark.parametrize(
    ("made", "value"),
    [
        ("", "stored"),
        ("s = Constant<value = int64[1] {2}>()", "stored"),
        ("t = Constant<value = int64[1] {2}>() s = Neg(t)", "folded"),
        ("s = Shape(fixed)", "folded"),
        ("s = Shape(x)", "sized"),
        ("t = Shape(x) s = Mul(t, t)", "sized"),
        ("t = Shape(x) u = ConstantOfShape(t) s = Shape(u)", "sized"),
        ("t = NonZero(x) s = Shape(t)", "counted"),
        ("t = NonZero(x) u = Shape(t) v = ConstantOfShape(u) s = Shape(v)", "counted"),
        ("s = Cast<to = 7>(x)", "run"),
        ("t = NonZero(x) s = Neg(t)", "run"),
        ("r = RandomNormal<shape = [1]>() s = Cast<to = 7>(r)", "run"),
    ],
)
def test_where_values_come_from(made: str, value: str) -> None:
    add = [] if "s = " in made else [numpy_helper.from_array(np.array([2]), "s")]
    view = View(f"g (float[N] x, float[3] fixed) => (int64[?] y) {{ {made} y = Identity(s) }}", add=add)
    for word in ("stored", "folded", "sized", "counted", "run"):
        held = found_by(rule(op='"Identity"', inputs=f'[{{ at = 0, value = "{word}" }}]'), view)
        assert bool(held) is (word == value), word


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        ("t = Relu(fixed)", "fixed"),
        ("t = Relu(x)", "sized"),
        ("s = Shape(x) t = ConstantOfShape(s)", "sized"),
        ("s = Shape(x) t = Expand(fixed, s)", "sized"),
        ("t = NonZero(x)", "run"),
        ("t = ConstantOfShape(n)", "run"),
        ("s = NonZero(x) t = Cast<to = 1>(s)", "run"),
        ("t = Slice(x, n, n)", "run"),
    ],
)
def test_where_shapes_come_from(made: str, shape: str) -> None:
    view = View(f"g (float[N] x, float[1] fixed, int64[1] n) => (float[?] y) {{ {made} y = Identity(t) }}")
    for word in ("fixed", "sized", "run"):
        held = found_by(rule(op='"Identity"', inputs=f'[{{ at = 0, shape = "{word}" }}]'), view)
        assert bool(held) is (word == shape), word


def test_sizes_against_another_input() -> None:
    longer = rule(op='"ScatterElements"', inputs="[{ at = 1, longer_than = 0 }]")
    graph = "(float[{}] x, int64[{}] i, float[{}] u) => (float[{}] y) {{ y = ScatterElements(x, i, u) }}"
    assert found_by(longer, graph.format("4, 6", "9, 6", "9, 6", "4, 6"))
    assert not found_by(longer, graph.format("4, 6", "4, 2", "4, 2", "4, 6"))
    assert not found_by(longer, graph.format("N, 6", "9, 6", "9, 6", "N, 6"))  # N may be 9


def test_ranks_against_another_input() -> None:
    graph = "(float[2, 3] x, float[3] w) => (float[2, 3] y) { y = Add(x, w) }"
    for at, key, holds in [(0, "over", True), (1, "over", False), (0, "up_to", False), (1, "up_to", True)]:
        said = f"[{{ at = {at}, rank_{key}_input = {1 - at} }}]"
        assert bool(found_by(rule(op='"Add"', inputs=said), graph)) is holds


def test_known_negative_values() -> None:
    said = rule(op='"Gather"', inputs="[{ at = 1, negative = true }]")
    graph = "(float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }"
    constant = "(float[4] x) => (float[2] y) { y = Gather(x, i) }"
    assert not found_by(said, graph)
    assert found_by(said, constant, add=[numpy_helper.from_array(np.array([0, -1]), "i")])
    assert not found_by(said, constant, add=[numpy_helper.from_array(np.array([0, 1]), "i")])


def test_what_makes_an_input() -> None:
    said = rule(op='"Add"', inputs='[{ made_by = ["Shape", "Concat"] }]')
    assert found_by(said, "(float[N] x) => (int64[1] y) { s = Shape(x) y = Add(s, s) }")
    assert not found_by(said, "(float[N] x) => (float[N] y) { s = Relu(x) y = Add(s, x) }")


@pytest.mark.parametrize("in_a_node", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_how_a_constant_is_stored(in_a_node: bool, raw: bool) -> None:
    values = np.array([True, False])
    tensor = numpy_helper.from_array(values, "m") if raw else helper.make_tensor("m", TensorProto.BOOL, [2], [1, 0])
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { y = Where(m, x, x) }'
    )
    if in_a_node:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["m"], value=tensor))
    else:
        model.graph.initializer.append(tensor)
    onnx.checker.check_model(model)
    for engine in ("opencv", "nncase", "mnn"):  # measured: raw bytes are read right, int32_data is not
        report = graphfix.fix(model, target=engine, simplify=False, only="span-chain").report
        assert bool([f for f in report.findings if f.blocks]) is not raw, engine


def test_sizes_that_value_info_names() -> None:
    said = rule(op='"*"', outputs="[{ named = true }]")
    graph = "(float[N, 2] x) => (float[N, 2] y) <float[{}, 2] t> {{ t = Relu(x) y = Relu(t) }}"
    assert [f.output for f in found_by(said, graph.format("N"))] == ["t"]
    assert not found_by(said, graph.format("M"))
    assert not found_by(said, graph.format("3"))


def test_rules_about_the_models_inputs() -> None:
    said = rule(op='"input"', inputs='[{ type = "int64" }, { shape = "sized" }]')
    (finding,) = found_by(said, "(int64[N] a, int64[2] b, float[N] c) => (int64[N] y) { y = Identity(a) }")
    assert (finding.operator, finding.output) == ("input", "a")


def test_what_is_not_known_fulfils_nothing() -> None:
    graph = "(float x) => (float y) { t = com.Custom(x) y = Relu(t) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 13, "com": 1]> g {graph}')
    for said in ("rank_over = 0", "rank_under = 9", 'type = "float"', "negative = true", "longer_than = 0"):
        text = HEAD + rule(op='"Relu"', inputs=f"[{{ at = 0, {said} }}]")
        view = Model(model, shapes.infer(model))
        assert not Checker(parse_target("engine", text), view, Facts(view)).model(), said


def test_custom_operators_are_not_those_of_the_rules() -> None:
    model = '<ir_version: 8, opset_import: ["": 13, "com": 1]> g (float x) => (float y) { y = com.Where(x) }'
    view = Model(parser.parse_model(model), shapes.infer(parser.parse_model(model)))
    assert not Checker(parse_target("engine", HEAD + rule()), view, Facts(view)).model()


def test_bodies_and_functions_are_looked_into() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "f": 1]>
    g (bool c, float[2] x) => (float[2] y) {
        t = If(c) <then_branch = a () => (float[2] p) { p = Exp(x) }, else_branch = b () => (float[2] q) { q = Neg(x) }>
        y = f.twice(t)
    }
    <domain: "f", opset_import: ["": 13]> twice (x) => (y) { y = Exp(x) }"""
    model = parser.parse_model(text)
    view = Model(model, shapes.infer(model))
    found = Checker(parse_target("engine", HEAD + rule(op='"Exp"')), view, Facts(view)).model()
    assert [(f.scope, f.output) for f in found] == [("t.then_branch", "p"), ("f::twice", "y")]


# ----------------------------------------------------------------------------------------- rules against measured facts


@pytest.mark.parametrize(
    ("data", "index", "values", "right"),
    [  # run in MNN 3.6.1 with one input set each: where the slices of a ScatterND end up
        ("5", "2, 1", "2", True),
        ("4, 6", "1", "6", False),
        ("4, 6", "2, 1", "2, 6", True),
        ("4, 6", "2, 2", "2", True),
        ("4, 6", "2, 3, 2", "2, 3", True),
        ("2, 4, 6", "1", "4, 6", False),
        ("2, 4, 6", "2, 1", "2, 4, 6", True),
        ("2, 4, 6", "2", "6", False),
        ("2, 4, 6", "2, 2", "2, 6", False),
        ("2, 4, 6", "2, 3, 2", "2, 3, 6", True),
        ("2, 4, 6", "2, 3", "2", True),
        ("6, 3, 4", "2, 2, 1", "2, 2, 3, 4", False),
        ("2, 3, 4, 5", "2, 3, 3", "2, 3, 5", False),
        ("2, 3, 4, 5", "2, 3, 2", "2, 3, 4, 5", True),
    ],
)
def test_scatter_nd_in_mnn(data: str, index: str, values: str, right: bool) -> None:
    graph = f"(float[{data}] x, int64[{index}] i, float[{values}] u) => (float[{data}] y) {{ y = ScatterND(x, i, u) }}"
    assert (blocked("mnn", graph) == set()) is right


SCATTER_ND = "(float[4, 6] x, int64[2, 1] i, float[2, 6] u) => (float[4, 6] y) {{ y = ScatterND{}(x, i, u) }}"
SCATTER_ELEMENTS = (
    "(float[4, 6] x, int64[2, 6] i, float[2, 6] u) => (float[4, 6] y) {{ y = ScatterElements{}(x, i, u) }}"
)


@pytest.mark.parametrize(
    ("graph", "engines"),
    [
        (SCATTER_ND.format(""), ""),
        (SCATTER_ND.format('<reduction = "none">'), "tensorrt"),
        (SCATTER_ND.format('<reduction = "add">'), "tensorrt mnn nncase onnx2tf"),
        (SCATTER_ELEMENTS.format("<axis = 0>"), "nncase"),
        (SCATTER_ELEMENTS.format('<axis = 0, reduction = "none">'), "nncase"),
        (SCATTER_ELEMENTS.format('<axis = 0, reduction = "add">'), "mnn nncase"),
        (SCATTER_ELEMENTS.format('<axis = 0, reduction = "max">'), "mnn nncase onnx2tf iree"),
        ("(float[2] x) => (bool[2] y) { y = IsNaN(x) }", "mnn nncase onnx2tf"),
        ("(float[2] x, float[2] w) => (bool[2] y) { y = Less(x, w) }", "mnn"),
        ("(float[2] x, float[2] w) => (bool[2] y) { y = Greater(x, w) }", ""),
        ("(int64[2] x, int64[2] w) => (bool[2] y) { y = Less(x, w) }", ""),
        ("(bool[2] m, int32[2] x) => (int32[2] y) { y = Where(m, x, x) }", "rknn"),
        ("(bool[2] m, bool[2] x) => (bool[2] y) { y = Where(m, x, x) }", "onnxruntime opencv"),
        ("(bool[2] x, bool[2] w) => (bool[2] y) { y = Equal(x, w) }", "opencv tract tvm"),
        ("(float[2] x, float[2] w, float[2] v) => (float[2] y) { y = Max(x, w, v) }", "nncase"),
        ("(float[2] x, float[2] w) => (float[2] y) { y = Max(x, w) }", ""),
        (
            "(float[4, 6] x, bool[4] m) => (float[K, 6] y) { y = Compress<axis = 0>(x, m) }",
            "tensorrt opencv tract nncase rknn iree emx",
        ),
        (
            "(float[4] x, int64[1] e) => (float[K] y) { z = Constant<value = int64[1] {0}>() y = Slice(x, z, e, z) }",
            "tract rknn emx",
        ),
        ("(float[1, 6] x, int64[2] n) => (float[K, L] y) { y = Expand(x, n) }", "tract rknn emx"),
        ("(float[N] x) => (float[N] y) { s = Shape(x) y = ConstantOfShape(s) }", "opencv mnn rknn"),
        ("(float[4, 6] x) => (float[4, 6] y) { c = Constant<value_float = 2.0>() y = Mul(x, c) }", "rknn tvm onnx2tf"),
        ("(int64[4] x) => (int64[4] y) { c = Constant<value_int = 2>() y = Mul(x, c) }", "opencv rknn tvm onnx2tf"),
    ],
)
def test_small_graphs_as_measured(graph: str, engines: str) -> None:
    """Everything else runs the graph and gives the right answers. (TensorRT's rules are read, not measured.)"""
    tried = set(target_names()) - {"coreml", "qnn", "ncnn"}  # which nobody could run here
    assert {engine for engine in tried if blocked(engine, graph, 18)} == set(engines.split())


def test_tensorrt_wants_no_index_longer_than_the_data() -> None:
    graph = "(float[4, 6] x, int64[9, 6] i, float[9, 6] u) => (float[4, 6] y) {{ y = ScatterElements{}(x, i, u) }}"
    assert blocked("tensorrt", graph.format(""), 18) == {"ScatterElements"}
    assert blocked("tensorrt", graph.format('<reduction = "none">'), 18) == {"ScatterElements"}
    assert blocked("tensorrt", graph.format('<reduction = "add">'), 18) == set()  # goes through a plugin
    assert blocked("trt", "(uint8[2] x, bool[2] m) => (uint8[2] y) { y = Where(m, x, x) }") == {"Where"}


def test_openvino_reads_reductions_from_opset_16_on() -> None:
    graph = SCATTER_ND.format('<reduction = "add">')
    assert blocked("openvino", graph, 16) == set()
    assert blocked("openvino", graph, 15) == {"ScatterND"}


# --------------------------------------------------------------------------------------------------- what `target` does

RELU = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"


def model_of(text: str, opset: int) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


@pytest.mark.parametrize(
    ("target", "opset", "becomes"),
    [("tensorrt", 21, 20), ("tensorrt", 20, 20), ("tensorrt", 8, 9), ("rknn", 21, 19), ("rknn", 8, 8), ("mnn", 21, 21)],
)
def test_the_result_gets_an_opset_that_the_engine_takes(target: str, opset: int, becomes: int) -> None:
    result = graphfix.fix(model_of(RELU, opset), target=target)
    assert result.model.opset_import[0].version == becomes
    assert (result.report.opset_before, result.report.opset_after) == (opset, becomes)
    if opset != becomes:
        assert find_target(target).label in result.report.opset_reason
    assert result.ok and result.report.target == find_target(target).label


@pytest.mark.parametrize("opset", [21, "keep"])
def test_an_opset_that_was_asked_for_stays(opset: int | str) -> None:
    result = graphfix.fix(model_of(RELU, 21), target="rknn", opset=opset)
    assert result.model.opset_import[0].version == 21
    assert not result.ok
    (finding,) = result.report.findings[:1]
    assert (finding.kind, finding.operator, finding.blocks) == ("opset", "", True)
    assert "up to 19" in finding.reason and "21" in finding.reason


def test_a_node_that_has_no_form_in_the_engines_opset() -> None:
    text = 'g (string[2] x) => (bool[2] y) { y = RegexFullMatch<pattern = "a+">(x) }'
    result = graphfix.fix(model_of(text, 20), target="rknn", verify="none")
    assert result.model.opset_import[0].version == 20
    assert not result.ok
    assert result.report.findings[0].kind == "opset"
    assert any("RegexFullMatch" in warning for warning in result.report.warnings)


def test_findings_of_the_result_and_not_of_the_input() -> None:
    """What the passes replace is not reported; what was there and stays is."""
    mask = "(float[4, 6] x, bool[4] m, float[6] v) => (float[4, 6] y) { n = NonZero(m) i = Transpose(n) t = Shape(i) \
        a = Slice(t, k, l) d = Concat<axis = 0>(a, six) u = Expand(v, d) z = ScatterND(x, i, u) e = Exp(z) \
        o = IsNaN(e) y = Where(o, x, e) }"
    model = model_of(f"g {mask}", 17)
    for name, value in (("k", 0), ("l", 1), ("six", 6)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    before = View(f"g {mask}", 17, model.graph.initializer)
    assert "NonZero" in {f.operator for f in Checker(find_target("nncase"), before.model, before.facts).model()}
    result = graphfix.fix(model, target="nncase")
    assert [(f.operator, f.output) for f in result.report.findings if f.blocks] == [("IsNaN", "o")]
    assert not result.ok
    assert graphfix.fix(model, target="tract").ok
    assert graphfix.fix(model).report.findings == []


def sum_into_rows(edges: int, nodes: int, features: int) -> onnx.ModelProto:
    """Sums over the edges of a graph: as matrix products far too slow, so that a scatter is kept."""
    text = f"""g (float[{nodes}, {features}] x, int64[{edges}, 1] i, float[{edges}, {features}] u)
        => (float[{nodes}, {features}] y) {{ y = ScatterND<reduction = "add">(x, i, u) }}"""
    return model_of(text, 18)


@pytest.mark.parametrize(("target", "kept"), [(None, True), ("openvino", True), ("mnn", False), ("trt", False)])
def test_a_form_that_the_engine_runs_is_taken(target: str | None, kept: bool) -> None:
    result = graphfix.fix(sum_into_rows(1500, 1500, 64), target=target, verify="none")
    assert ("ScatterND" in [node.op_type for node in result.model.graph.node]) is kept
    assert bool(result.report.left) is kept
    assert result.ok


def test_a_budget_is_kept_to_all_the_same() -> None:
    """No form is within the budget: the scatter stays, and the engine refuses it."""
    result = graphfix.fix(sum_into_rows(1500, 1500, 64), target="mnn", verify="none", budget=1 << 20)
    assert [node.op_type for node in result.model.graph.node] == ["ScatterND"]
    assert [(f.kind, f.operator) for f in result.report.findings if f.blocks] == [("wrong", "ScatterND")]
    assert not result.ok


def test_forms_that_were_tried_in_vain_leave_nothing(models: Path) -> None:
    """ncnn runs no form of these writes: then the result is the one without a target, names and all."""
    for name in ("mask_rows", "index_rows", "accumulate", "masked_scatter", "truncate_half"):
        plain = graphfix.fix(models / f"{name}.onnx", verify="none").model
        result = graphfix.fix(models / f"{name}.onnx", verify="none", target="ncnn")
        assert result.model == plain
        assert not result.ok


def test_notes_do_not_change_the_outcome() -> None:
    text = "g (float[4, 2] x) => (float[4, 2] y) { a = Constant<value = int64 {0}>() y = CumSum(x, a) }"
    result = graphfix.fix(model_of(text, 13), target="tensorrt")
    assert result.ok
    assert [(f.kind, f.operator, f.blocks) for f in result.report.findings] == [("slow", "CumSum", False)]


def test_an_engine_that_runs_all_changes_nothing(models: Path) -> None:
    for path in sorted(models.glob("*.onnx")):
        if path.stem != "lossy":
            plain = graphfix.fix(path, verify="none").model
            assert graphfix.fix(path, verify="none", target="openvino").model == plain


# ----------------------------------------------------------------------------------------------------- the command line


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def test_exit_code_3_and_what_is_told(tmp_path: Path, capsys) -> None:
    text = "g (float[4] x, float[4] w) => (float[4] y) { b = Less(x, w) y = Where(b, x, w) }"
    onnx.save(model_of(text, 13), tmp_path / "less.onnx")
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    assert run(tmp_path / "less.onnx", out, "--target", "mnn", "--report", report) == 3
    assert out.exists()
    told = " ".join(capsys.readouterr().out.split())
    assert "target mnn 3.6.1: 1 place that it is known to refuse or to run wrongly" in told
    assert "wrong: Less b: two negative numbers are compared by their bits" in told
    assert "(measured: MNN 3.6.1, CPU)" in told
    content = json.loads(report.read_text())
    assert content["target"] == "mnn 3.6.1" and content["exit_code"] == 3
    (finding,) = content["findings"]
    assert (finding["kind"], finding["operator"], finding["output"], finding["blocks"]) == ("wrong", "Less", "b", True)

    assert run(tmp_path / "less.onnx", out, "--target", "OpenVINO") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "target openvino 2026.4: nothing is known that it refuses or runs wrongly" in told


def test_the_opset_is_told_as_a_finding(tmp_path: Path, capsys) -> None:
    onnx.save(model_of(RELU, 21), tmp_path / "relu.onnx")
    assert run(tmp_path / "relu.onnx", tmp_path / "out.onnx", "--target", "rknn", "--opset", "keep") == 3
    assert "opset: the model: it takes opsets up to 19, the model has 21" in " ".join(capsys.readouterr().out.split())
    assert run(tmp_path / "relu.onnx", tmp_path / "out.onnx", "--target", "rknn") == 0
    assert "21 -> 19 (the highest that rknn 2.5.0 takes)" in " ".join(capsys.readouterr().out.split())


def test_many_findings_of_one_kind_are_one_line(tmp_path: Path, capsys) -> None:
    nodes = " ".join(f"b{i} = Less(x, w) t{i} = Cast<to = 1>(b{i})" for i in range(20))
    total = ", ".join(f"t{i}" for i in range(20))
    text = f"g (float[4] x, float[4] w) => (float[4] y) {{ {nodes} y = Sum({total}) }}"
    onnx.save(model_of(text, 13), tmp_path / "many.onnx")
    assert run(tmp_path / "many.onnx", tmp_path / "out.onnx", "--target", "mnn", "--no-simplify") == 3
    told = " ".join(capsys.readouterr().out.split())
    assert "20 places" in told and "wrong: Less b0 and 19 more:" in told
    assert run(tmp_path / "many.onnx", tmp_path / "out.onnx", "--target", "mnn", "--no-simplify", "-v") == 3
    assert "Less b19" in capsys.readouterr().out


def test_unknown_target(models: Path, capsys) -> None:
    assert run(models / "mask_rows.onnx", models / "out.onnx", "--target", "openvno") == 2
    assert "openvino" in capsys.readouterr().err
    assert not (models / "out.onnx").exists()


def test_targets_lists_the_engines(capsys) -> None:
    assert run("targets") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == target_names()
    tensorrt = next(line for line in lines if line.startswith("tensorrt"))
    assert "9 to 20" in tensorrt and str(len(find_target("tensorrt").rules)) in tensorrt


@pytest.mark.parametrize("name", target_names())
def test_targets_prints_the_rules_of_one(name: str, capsys) -> None:
    assert run("targets", name) == 0
    told = capsys.readouterr().out
    for one in find_target(name).rules:
        assert one.why in told and one.source in told and f"{one.kind}: " in told


def test_rules_are_told_in_words(capsys) -> None:
    assert run("targets", "mnn") == 0
    told = capsys.readouterr().out
    assert "wrong: ArgMax with the attribute select_last_index 1" in told
    assert "wrong: any operator with an input of type bool that is stored stored in a typed field" in told


def test_targets_of_an_unknown_name(capsys) -> None:
    assert run("targets", "nosuch") == 2
    assert "graphfix targets" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- exports


@pytest.mark.torch
@pytest.mark.parametrize(("opset", "target", "becomes"), [(None, "rknn", 18), (13, "rknn", 13), (21, "rknn", 21)])
def test_an_export_for_an_engine(opset: int | None, target: str, becomes: int) -> None:
    torch = require("torch")

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = x.clone()
            x[:, 1] = 0
            return torch.nan_to_num(x)

    arguments = (torch.randn(3, 4),)
    result = graphfix.export(Net(), arguments, opset=opset, target=target)
    assert result.model.opset_import[0].version == becomes
    assert result.report.target == "rknn 2.5.0"
    assert result.ok is (becomes <= 19)
    refused = graphfix.export(Net(), arguments, opset=opset, target="mnn")
    assert {f.operator for f in refused.report.findings if f.blocks} >= {"IsNaN"}
    assert not refused.ok
