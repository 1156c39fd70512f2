"""Load and save ONNX models without touching their weights.

``load`` reads the graph only: external data stays on disk, but every reference to it is checked. What no engine could
ever load (damaged files, cycles, names that nobody makes, unknown operators) is refused here with one line that says
where; ATen nodes and the experimental operators that ONNX removed are let through, since replacing them is the point.

``save`` replaces the output whole or not at all, and never rewrites weights.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import heapq
import math
import os
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from graphfix.aten import is_aten
from graphfix.errors import InputError, UsageError
from graphfix.protobuf import attribute_bodies, nodes_within

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})

# In the default domain, but in no released opset any more. Old exporters wrote them; ONNX Runtime still runs some.
REMOVED_OPS = frozenset(
    {
        "ATen",
        "Affine",
        "ConstantFill",
        "Crop",
        "DynamicSlice",
        "GRUUnit",
        "GivenTensorFill",
        "ImageScaler",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
    }
)

_COPY_AGAIN = "the file is damaged or was cut off: copy or export it again"
_FICLONE = 0x40049409  # ioctl that makes a copy share its blocks, on file systems that can


@dataclass
class LoadedModel:
    """A model as it was read.

    ``model`` has its external data not loaded; ``base_dir`` is the folder that external data is relative to (None
    when the model did not come from a file); ``size`` is the serialised graph in bytes, without external data;
    ``notes`` says what had to be put right to read it (nodes sorted, an opset import added).
    """

    model: ModelProto
    path: Path | None
    base_dir: Path | None
    size: int
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------- loading


def load(source: str | os.PathLike[str] | bytes | ModelProto) -> LoadedModel:
    """Read a model from a file, from its serialised bytes, or from a ModelProto (which is copied, not changed).

    Raises InputError when there is no such file, when it is not an ONNX model, when its graph is not valid, or when
    external data is missing, too short, or outside the model's folder, and when it has no outputs. Raises UsageError
    for what is none of the three.
    """
    from onnx import ModelProto

    path: Path | None = None
    if isinstance(source, ModelProto):
        where = "the model"
        model = ModelProto()
        model.CopyFrom(source)
        size = model_size(model)
        _adopt_loaded_data(model)
    else:
        _check_path(source, "the model", "a path, the bytes of a file, or a ModelProto")
        if isinstance(source, (bytes, bytearray, memoryview)):
            where, data = "the model", bytes(source)
        else:
            path = Path(source)
            where, data = str(path), _read(path)
        size = len(data)
        model = _parse(data, where)
    base_dir = None if path is None else path.parent
    try:
        _check_header(model, where)
        notes = _complete_imports(model, where)
        _check_external_data(model, base_dir, where)
        notes += check_graph(model, where)
        if not model.graph.output:
            raise InputError(f"{where}: the model has no outputs, so that it computes nothing; export it again")
    except UnicodeDecodeError:
        raise InputError(f"{where}: not an ONNX model (a name in it is not text); {_COPY_AGAIN}") from None
    return LoadedModel(model, path, base_dir, size, notes)


def _check_path(given: Any, what: str, wanted: str) -> None:
    """Raises UsageError for what is neither a path nor bytes, and for an empty path."""
    if not isinstance(given, (str, os.PathLike, bytes, bytearray, memoryview)):
        raise UsageError(f"{what} is of the type {type(given).__name__}: give {wanted}")
    if isinstance(given, str) and not given:
        raise UsageError(f"the name of {what} is empty: give the name of a file")


def model_size(model: ModelProto) -> int:
    """Bytes of the serialised model, without its external data. Of one too big to serialise, only its tensors count."""
    from google.protobuf.message import EncodeError
    from onnx import TensorProto

    try:
        return model.ByteSize()
    except (EncodeError, ValueError):  # over 2 GB
        inline = (t for t in iter_tensors(model) if t.data_location != TensorProto.EXTERNAL)
        return sum(tensor_bytes(tensor) or 0 for tensor in inline)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name the .onnx file in it") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {_os_reason(error)}") from None
    except MemoryError:
        raise InputError(f"{path}: does not fit into memory; save the model with external data") from None


def _parse(data: bytes, where: str) -> ModelProto:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if not data:
        raise InputError(f"{where}: the file is empty; {_COPY_AGAIN}")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(f"{where}: {_what_it_is(data)}") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InputError(f"{where}: {_what_it_is(data)}")
    return model


def _what_it_is(data: bytes) -> str:
    """A guess at what the user handed over instead of a model."""
    if data.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"
    if data.startswith(b"PK\x03\x04"):
        return "is a zip archive (a PyTorch checkpoint?), not an ONNX model; export it to ONNX first"
    head = data[:4096]
    printable = sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)
    if printable > 0.95 * len(head):
        return "is a text file, not an ONNX model; export the model to ONNX first"
    return f"not an ONNX model, or {_COPY_AGAIN}"


def _check_header(model: ModelProto, where: str) -> None:
    import onnx

    if model.ir_version <= 0:
        raise InputError(f"{where}: not an ONNX model (it has no IR version); {_COPY_AGAIN}")
    if model.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"{where}: has IR version {model.ir_version}, but the installed onnx package reads up to "
            f"{onnx.IR_VERSION}; upgrade onnx"
        )
    if not model.opset_import:
        raise InputError(f"{where}: imports no operator set, so its nodes have no meaning; {_COPY_AGAIN}")
    _check_imports(model.opset_import, where)
    for function in model.functions:
        _check_imports(function.opset_import, f"{where}: function {function.name!r}")


def _check_imports(imports: Iterable, where: str) -> None:
    import onnx

    seen: dict[str, int] = {}
    for item in imports:
        if not isinstance(item.domain, str):
            raise InputError(f"{where}: the name of an operator set is not text; {_COPY_AGAIN}")
        domain = "" if item.domain in DEFAULT_DOMAINS else item.domain
        name = domain or "ai.onnx"
        if seen.setdefault(domain, item.version) != item.version:
            raise InputError(
                f"{where}: imports the operator set {name} twice, as version {seen[domain]} and {item.version}; "
                "remove one of them"
            )
        if domain == "" and not 1 <= item.version <= onnx.defs.onnx_opset_version():
            raise InputError(
                f"{where}: imports opset {item.version}, but the installed onnx package knows 1 to "
                f"{onnx.defs.onnx_opset_version()}; upgrade onnx or export with an older opset"
            )


def _complete_imports(model: ModelProto, where: str) -> list[str]:
    """Add the default domain's import when nodes need it. ONNX Runtime takes its newest opset for such a model.

    The version added is the oldest one that means the same: where the newest of the used operators came in.
    """
    import onnx

    if any(item.domain in DEFAULT_DOMAINS for item in model.opset_import):
        return []
    versions = [
        onnx.defs.get_schema(node.op_type).since_version
        for node in nodes_within(model.graph.node)
        if node.domain in DEFAULT_DOMAINS and onnx.defs.has(node.op_type)
    ]
    if not versions:
        return []
    model.opset_import.add(domain="", version=max(versions))
    return [f"the model does not say which opset its nodes are from: taken as {max(versions)}, like ONNX Runtime does"]


# ---------------------------------------------------------------------------------------------------- external data


def external_locations(model: ModelProto) -> list[str]:
    """The ``location`` of every external tensor, without repetition, in the order of the model."""
    from onnx import TensorProto

    locations = {
        _external_entries(tensor).get("location", ""): None
        for tensor in iter_tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL
    }
    return list(locations)


def iter_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that a model holds: initializers, sparse ones, attributes, in subgraphs and functions too."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in [
        *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
        *attribute.sparse_tensors,
    ]:
        yield sparse.values
        yield sparse.indices
    for body in attribute_bodies(attribute):
        yield from _graph_tensors(body)


def _external_entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _adopt_loaded_data(model: ModelProto) -> None:
    """Tensors whose external data the caller has read already are ordinary ones from here on."""
    from onnx import TensorProto

    for tensor in iter_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL and tensor.HasField("raw_data"):
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]


def tensor_bytes(tensor: TensorProto) -> int | None:
    """The bytes that the tensor's elements take as raw data; None for strings and unknown types."""
    import onnx

    count = math.prod(tensor.dims)
    bits = {
        getattr(onnx.TensorProto, name): width
        for width, names in ((4, ("INT4", "UINT4", "FLOAT4E2M1")), (2, ("INT2", "UINT2")))
        for name in names
        if hasattr(onnx.TensorProto, name)
    }
    if tensor.data_type in bits:
        return (count * bits[tensor.data_type] + 7) // 8
    if tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        return None


def _check_external_data(model: ModelProto, base_dir: Path | None, where: str) -> None:
    from onnx import TensorProto

    sizes: dict[str, int] = {}
    for tensor in iter_tensors(model):
        what = f"{where}: tensor {tensor.name!r}"
        if any(dim < 0 for dim in tensor.dims):
            raise InputError(f"{what} has a negative dimension; {_COPY_AGAIN}")
        needed = tensor_bytes(tensor)
        if tensor.data_location != TensorProto.EXTERNAL:
            if tensor.HasField("raw_data") and needed is not None and len(tensor.raw_data) != needed:
                raise InputError(
                    f"{what} holds {len(tensor.raw_data)} bytes, but its type and shape need {needed}; {_COPY_AGAIN}"
                )
            continue
        entries = _external_entries(tensor)
        location = entries.get("location", "")
        if base_dir is None:
            raise InputError(
                f"{what} has its data in the file {location!r}, but a model in memory has no folder: give its path"
            )
        if location not in sizes:
            sizes[location] = _external_file_size(base_dir, location, what)
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries["length"]) if entries.get("length") else None
        except ValueError:
            raise InputError(f"{what}: the offset or length of its external data is not a number") from None
        extent = length if length is not None else needed or 0
        if offset < 0 or extent < 0 or offset + extent > sizes[location]:
            raise InputError(
                f"{what} needs bytes {offset} to {offset + extent} of {location}, which has {sizes[location]}; "
                "the data file is cut off or of another model"
            )
        if needed is not None and extent != needed:
            raise InputError(f"{what} has {extent} bytes of external data, but its type and shape need {needed}")


def _external_file_size(base_dir: Path, location: str, what: str) -> int:
    if not location:
        raise InputError(f"{what} is external, but does not say in which file")
    folder = os.path.realpath(base_dir)
    try:
        target = os.path.realpath(os.path.join(folder, location))
        escapes = os.path.isabs(location) or os.path.commonpath([folder, target]) != folder
        if escapes:
            raise InputError(
                f"{what}: its external data {location!r} is outside the model's folder, which is not allowed; "
                "move the data file beside the model"
            )
        info = os.stat(target)
    except FileNotFoundError:
        raise InputError(f"{what}: its external data file {location!r} is missing in {base_dir}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: its external data {location!r} cannot be read: {_os_reason(error)}") from None
    if not stat.S_ISREG(info.st_mode):
        raise InputError(f"{what}: its external data {location!r} is not a file")
    if not _may(target, os.R_OK):
        raise InputError(f"{what}: its external data {location!r} cannot be read: permission denied")
    return info.st_size


# --------------------------------------------------------------------------------------------------- graph validity


def check_graph(model: ModelProto, where: str) -> list[str]:
    """Check names, order and operators of a model's graphs, and sort what is only out of order.

    Returns a note on each graph that was sorted. Raises InputError, which begins with ``where``, at the first fault.
    """
    return _GraphChecker(model, where).check()


class _GraphChecker:
    """Checks the names, the order and the operators of the main graph, its subgraphs and the local functions."""

    def __init__(self, model: ModelProto, where: str) -> None:
        self.model = model
        self.where = where
        self.sorted_graphs: list[str] = []
        self.local = {(f.domain, f.name) for f in model.functions}
        self.opsets: dict[str, int] = {}
        self.schemas: dict[tuple[str, str, int], object] = {}

    def check(self) -> list[str]:
        """Raise InputError at the first fault; sort what is only out of order. Returns a note on each sorted graph."""
        model_opsets = self._imports(self.model.opset_import)
        self.opsets = model_opsets
        self._check_graph(self.model.graph, (), "")
        self._check_function_calls()
        for function in self.model.functions:
            # A function that does not say takes the model's version, as in ONNX Runtime.
            self.opsets = {**model_opsets, **self._imports(function.opset_import)}
            self._check_function(function)
        return self.sorted_graphs

    @staticmethod
    def _imports(imports: Iterable) -> dict[str, int]:
        return {"" if item.domain in DEFAULT_DOMAINS else item.domain: item.version for item in imports}

    def _fail(self, scope: str, message: str) -> InputError:
        return InputError(f"{self.where}: {f'in {scope}: ' if scope else ''}{message}")

    def _check_text(self, scope: str, *names: str | bytes) -> None:
        """Protobuf hands over bytes where a name is not UTF-8."""
        if not all(isinstance(name, str) for name in names):
            raise self._fail(scope, f"a name in the model is not text; {_COPY_AGAIN}")

    def _check_graph(self, graph: GraphProto, outer: tuple[set[str], ...], scope: str) -> set[str]:
        """Check one graph. Returns the names that it takes from outside."""
        inputs = [i.name for i in graph.input]
        constants = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
        for kind, names in (
            ("inputs", inputs),
            ("initializers", constants),
            ("outputs", [o.name for o in graph.output]),
        ):
            self._check_text(scope, *names)
            if "" in names:
                raise self._fail(scope, f"one of the graph's {kind} has no name; {_COPY_AGAIN}")
            if twice := _repeated(names):
                raise self._fail(scope, f"two of the graph's {kind} are called {twice!r}; rename one")
        known = {*inputs, *constants}
        free = self._check_nodes(graph.node, known, outer, scope)
        for output in graph.output:
            if output.name in known:
                continue
            if not any(output.name in names for names in outer):
                raise self._fail(scope, f"nothing makes the graph output {output.name!r}; the graph is incomplete")
            free.add(output.name)
        return free

    def _check_function(self, function: FunctionProto) -> None:
        scope = f"function {function.name!r}"
        self._check_text(scope, function.name, function.domain, *function.input, *function.output)
        known = set(function.input)
        self._check_nodes(function.node, known, (), scope)
        for name in function.output:
            if name not in known:
                raise self._fail(scope, f"nothing makes its output {name!r}; the graph is incomplete")

    def _check_nodes(self, nodes, known: set[str], outer: tuple[set[str], ...], scope: str) -> set[str]:  # type: ignore[no-untyped-def]
        """Check a node list and sort it in place. Adds what the nodes make to ``known``; returns what is free."""
        maker: dict[str, int] = {}
        for position, node in enumerate(nodes):
            self._check_text(scope, node.name, node.op_type, node.domain, *node.input, *node.output)
            for name in filter(None, node.output):
                if name in known or name in maker:
                    raise self._fail(scope, f"{node_label(node)} makes {name!r}, which exists already; rename one")
                if any(name in names for names in outer):
                    raise self._fail(
                        scope, f"{node_label(node)} makes {name!r}, which hides a tensor of the outer graph; rename one"
                    )
                maker[name] = position
        before = frozenset(known)
        known.update(maker)
        free: set[str] = set()
        reads: list[list[int]] = []
        for node in nodes:
            self._check_operator(node, scope)
            used = {name: None for name in node.input if name}
            for attribute in node.attribute:
                for body in attribute_bodies(attribute):
                    inner = " / ".join(filter(None, (scope, f"{attribute.name} of {node_label(node)}")))
                    used.update(dict.fromkeys(sorted(self._check_graph(body, (known, *outer), inner))))
            for name in used:
                if name in known:
                    continue
                if not any(name in names for names in outer):
                    raise self._fail(
                        scope, f"{node_label(node)} reads {name!r}, which nothing makes; the graph is incomplete"
                    )
                free.add(name)
            reads.append([maker[name] for name in used if name in maker and name not in before])
        self._sort(nodes, reads, scope)
        return free

    def _sort(self, nodes, reads: list[list[int]], scope: str) -> None:  # type: ignore[no-untyped-def]
        if all(made_at < position for position, wanted in enumerate(reads) for made_at in wanted):
            return
        order = _stable_order(reads)
        if len(order) < len(reads):
            stuck = nodes[_in_cycle(reads, set(order))]
            raise self._fail(scope, f"the graph has a cycle: {node_label(stuck)} depends on its own output")
        in_order = [nodes[position] for position in order]
        del nodes[:]
        nodes.extend(in_order)
        self.sorted_graphs.append(f"the nodes of {scope or 'the graph'} were out of order and have been sorted")

    def _check_operator(self, node: NodeProto, scope: str) -> None:
        import onnx

        if not node.op_type:
            raise self._fail(scope, f"a node that makes {list(node.output)} has no operator; {_COPY_AGAIN}")
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        if domain not in ("", "ai.onnx.ml") or (node.domain, node.op_type) in self.local:
            return
        if is_aten(node.op_type, domain) or (domain == "" and node.op_type in REMOVED_OPS):
            return
        opset = self.opsets.get(domain, onnx.defs.onnx_opset_version() if domain == "" else 1)
        key = (domain, node.op_type, opset)
        if key not in self.schemas:
            self.schemas[key] = self._schema(node, domain, opset, scope)
        schema = self.schemas[key]
        if schema.deprecated:  # type: ignore[attr-defined]  # Upsample, Scatter: it holds no signature
            return
        counts = (
            ("inputs", len(node.input), schema.min_input, schema.max_input),  # type: ignore[attr-defined]
            ("outputs", len(node.output), schema.min_output, schema.max_output),  # type: ignore[attr-defined]
        )
        for kind, count, least, most in counts:
            if not least <= count <= most:
                wanted = f"{least}" if least == most else f"{least} to {most}" if most < 1 << 30 else f"{least} or more"
                raise self._fail(
                    scope, f"{node_label(node)} has {count} {kind}, but opset {opset} wants {wanted}; export it again"
                )
        present = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():  # type: ignore[attr-defined]
            if attribute.required and name not in present:
                raise self._fail(
                    scope,
                    f"{node_label(node)} lacks the attribute {name!r}, which opset {opset} wants; export it again",
                )

    def _schema(self, node: NodeProto, domain: str, opset: int, scope: str) -> object:
        import onnx

        try:
            return onnx.defs.get_schema(node.op_type, opset, domain)
        except onnx.defs.SchemaError:
            pass
        if onnx.defs.has(node.op_type, domain):
            since = min(
                s.since_version
                for s in onnx.defs.get_all_schemas_with_history()
                if s.name == node.op_type and s.domain == domain
            )
            raise self._fail(
                scope,
                f"{node_label(node)}: the operator came with opset {since} of {domain or 'ai.onnx'}, but the model "
                f"imports {opset}; export it again",
            )
        raise self._fail(
            scope,
            f"{node_label(node)}: no such operator in {domain or 'ai.onnx'} opset {opset}; custom operators need a "
            "domain of their own",
        )

    def _check_function_calls(self) -> None:
        calls = {
            (f.domain, f.name): {(n.domain, n.op_type) for n in nodes_within(f.node)} & self.local
            for f in self.model.functions
        }
        remaining = dict(calls)
        while remaining:
            leaves = [name for name, called in remaining.items() if not called & remaining.keys()]
            if not leaves:
                raise self._fail("", f"function {sorted(remaining)[0][1]!r} calls itself, which ONNX does not allow")
            for name in leaves:
                del remaining[name]


def node_label(node: NodeProto) -> str:
    """How messages name a node: ``node 'conv1' (Conv)``, or by its first output when it has no name."""
    operator = node.op_type if node.op_type.isprintable() else repr(node.op_type)
    if node.name:
        return f"node {node.name!r} ({operator})"
    return f"the {operator} node that makes {next(iter(node.output), '')!r}"


def _repeated(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _stable_order(reads: list[list[int]]) -> list[int]:
    """The topological order nearest to the given one. Shorter than ``reads`` when there is a cycle."""
    waiting = [len(set(wanted)) for wanted in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for position, wanted in enumerate(reads):
        for made_at in set(wanted):
            readers[made_at].append(position)
    ready = [position for position, count in enumerate(waiting) if not count]
    order = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return order


def _in_cycle(reads: list[list[int]], done: set[int]) -> int:
    """A node that lies on a cycle: walk back from a stuck node until one comes again."""
    position = next(p for p in range(len(reads)) if p not in done)
    seen: set[int] = set()
    while position not in seen:
        seen.add(position)
        position = next(p for p in reads[position] if p not in done)
    return position


# ----------------------------------------------------------------------------------------------------------- saving


def check_writable(output: str | os.PathLike[str], loaded: LoadedModel | None = None) -> None:
    """Fail early, before the work is done, when ``save`` to this path would fail. Writes nothing.

    With ``loaded``, also when the output would replace that model's own weights. Raises InputError.
    """
    _check_path(output, "the output", "a path")
    try:
        target = Path(os.path.realpath(output))
        folder = target.parent
        if target.is_dir():
            raise InputError(f"{output}: is a folder; name the output file")
        if not folder.exists():
            raise InputError(f"{output}: the folder {folder} does not exist; create it first")
        if not folder.is_dir():
            raise InputError(f"{output}: {folder} is not a folder")
        exists = target.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{output}: cannot be written: {_os_reason(error)}") from None
    if exists and not _may(target, os.W_OK):
        raise InputError(f"{output}: cannot be written: it is read-only")
    if (not exists or target.is_file()) and not _may(folder, os.W_OK | os.X_OK):
        raise InputError(f"{output}: cannot be written: no permission to write in {folder}")
    if loaded is not None and loaded.base_dir is not None:
        _check_not_weights(loaded.model, loaded.base_dir, target, output)


def save(model: ModelProto, output: str | os.PathLike[str], *, base_dir: Path | None) -> None:
    """Write a model: whole, or not at all.

    ``base_dir`` is the folder the model's external data is in. Written to the same folder, the model goes on referring
    to the same files. Written elsewhere, they are copied along; a different file of that name there is not replaced.
    An existing output keeps its mode, a symbolic link stays one and its target is replaced.

    Raises InputError when the output cannot be written: no such folder, a folder, no permission, disk full, a graph
    over the 2 GB that protobuf allows. Nothing is left behind then, nor when the run is interrupted.
    """
    from google.protobuf.message import EncodeError

    check_writable(output)
    target = Path(os.path.realpath(output))
    try:
        data = model.SerializeToString()
    except (EncodeError, ValueError):  # by protobuf's implementation
        raise InputError(
            f"{output}: cannot be written: the model has more than the 2 GB that one file may hold; save the input "
            "model with external data first"
        ) from None
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # /dev/null and the like: there is nothing to rename, nor a folder for weights
            return
        with contextlib.ExitStack() as undo:
            external = _plan_external(model, base_dir, target, output)
            staged = [(_stage(undo, place, _copier(source)), place) for source, place in external]
            temporary = _stage(undo, target, lambda file: file.write(data))
            _publish(temporary, target, staged)
    except (OSError, ValueError) as error:
        raise InputError(f"{output}: cannot be written: {_os_reason(error)}") from None


def _stage(undo: contextlib.ExitStack, place: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Write a file beside where it is to be, under a temporary name that ``undo`` removes if it is still there."""
    _make_folders(undo, place.parent)
    temporary = place.parent / f".graphfix-{secrets.token_hex(8)}.tmp"
    undo.callback(temporary.unlink, missing_ok=True)  # before the file exists: an interrupt may come at any moment
    with open(temporary, "xb") as file:
        write(file)
    with contextlib.suppress(FileNotFoundError):
        temporary.chmod(stat.S_IMODE(place.stat().st_mode))
    return temporary


def _make_folders(undo: contextlib.ExitStack, folder: Path) -> None:
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        undo.callback(_remove_empty, path)
        path.mkdir()


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _publish(temporary: Path, target: Path, staged: list[tuple[Path, Path]]) -> None:
    """Rename all files into place, the model last: with it, the output exists."""
    moved: list[Path] = []
    try:
        for source, place in staged:
            moved.append(place)
            os.replace(source, place)
        os.replace(temporary, target)
    except BaseException:
        if temporary.exists():  # else the interrupt came after the last rename, and the output is complete
            for place in moved:
                place.unlink(missing_ok=True)
        raise


def _check_not_weights(model: ModelProto, base_dir: Path, target: Path, output: object) -> None:
    for location in external_locations(model):
        if os.path.realpath(base_dir / location) == str(target):
            raise InputError(f"{output}: holds weights of the model and would be replaced; choose another output")


def _plan_external(model: ModelProto, base_dir: Path | None, target: Path, output: object) -> list[tuple[Path, Path]]:
    """Which data files to copy to where."""
    locations = external_locations(model)
    if not locations:
        return []
    if base_dir is None:
        raise InputError(f"{output}: the model has external data, but no folder is known that holds it")
    _check_not_weights(model, base_dir, target, output)
    folder = Path(output).parent  # type: ignore[arg-type]  # where readers look: beside the name they open
    if os.path.samefile(folder, base_dir):
        return []
    plan = []
    for location in locations:
        source, place = base_dir / location, folder / location
        real = os.path.realpath(place)
        if os.path.commonpath([os.path.realpath(folder), real]) != os.path.realpath(folder):
            raise InputError(f"{output}: the external data {location!r} would be outside of {folder}")
        if real == str(target):
            raise InputError(f"{output}: the model's external data has that name too; choose another output name")
        if not place.exists():
            plan.append((source, Path(real)))
        elif not (os.path.samefile(source, place) or filecmp.cmp(source, place, shallow=False)):
            raise InputError(
                f"{output}: its external data {place} exists already with other content; choose another folder"
            )
    return plan


def _copier(source: Path) -> Callable[[IO[bytes]], object]:
    def copy(file: IO[bytes]) -> None:
        with open(source, "rb") as original:
            try:
                import fcntl

                fcntl.ioctl(file.fileno(), _FICLONE, original.fileno())
            except (ImportError, OSError):  # the usual file system cannot share blocks
                shutil.copyfileobj(original, file, 1 << 20)
        Path(file.name).chmod(stat.S_IMODE(source.stat().st_mode))  # no wider than the original

    return copy


def _may(path: str | Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _os_reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "no space left on the disk; free some and run again"
        return (error.strerror or str(error)).lower()
    return str(error)
