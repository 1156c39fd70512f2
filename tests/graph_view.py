"""Graphs written as text, as passes see them."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TensorProto, parser

from graphfix import shapes
from graphfix.facts import Facts
from graphfix.graph import Model, Value


class View:
    """A graph's tensors by name (``view["x"]``), and the ``facts`` about them.

    ``add`` are further initializers. The text writes a missing last input as ``none``: the parser drops an empty one.
    """

    def __init__(self, text: str, opset: int = 13, add: Iterable[TensorProto] = ()) -> None:
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "org.pytorch.aten": 1]> {text}')
        model.graph.initializer.extend(add)
        for node in model.graph.node:
            node.input[:] = ["" if name == "none" else name for name in node.input]
        self.model = Model(model, shapes.infer(model))
        self.facts = Facts(self.model)

    def __getitem__(self, name: str) -> Value:
        value = self.model.main.find(name)
        assert value is not None, name
        return value
