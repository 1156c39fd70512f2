"""Run onnxsim in a child process, and take from its result only what it is trusted with.

onnxsim folds constants and removes nodes that do nothing. It is native code that may crash, hang or go wrong, so it
runs in a process of its own with a limit on time and memory, and a failure there is a reason in the outcome, never an
error.

It gets a light copy of the model: no big weights (they are disguised as inputs, so it can neither read nor fold them),
no declared shapes that may be wrong, no metadata. Of what it returns only the nodes and the new small constants are
used; everything else comes from the model as it was. Results that lose, freeze or add what they should not are
rejected.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphfix import model_io
from graphfix.aten import is_aten
from graphfix.errors import InputError
from graphfix.protobuf import attribute_bodies, bodies, graphs_within, nodes_within

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

BIG = 64 * 1024  # bytes: bigger tensors are hidden from onnxsim, and folding may not add more than this to the file
_MEMORY = 4 << 30  # bytes that the child may allocate; its model has no big weights
_ROUNDS = 3
_NOT_IMPORTED = ("torch", "torchvision", "sympy", "openvino", "tensorflow")

# Passes that change how floats are rounded or rewrite weights, that bring in other operators, or that are known to go
# wrong: what is left folds constants and removes nodes without effect. Names that a version does not know are ignored.
_SKIPPED = (
    "eliminate_duplicate_initializer",
    "eliminate_loop_with_const_trip_count",
    "eliminate_nop_monotone_argmax",
    "eliminate_nop_softmax",
    "fuse_add_bias_into_conv",
    "fuse_attention",
    "fuse_bn_into_conv",
    "fuse_consecutive_log_softmax",
    "fuse_consecutive_mul",
    "fuse_consecutive_reduce",
    "fuse_consecutive_reduce_unsqueeze",
    "fuse_consecutive_slices",
    "fuse_gelu",
    "fuse_gqa",
    "fuse_layer_norm",
    "fuse_lp_normalization",
    "fuse_matmul_add_bias_into_gemm",
    "fuse_matmul_add_bias_into_gemm_batched",
    "fuse_matmul_into_conv",
    "fuse_mul_into_conv",
    "fuse_pad_into_conv",
    "fuse_pad_into_pool",
    "fuse_preceding_mul_into_conv",
    "fuse_qkv",
    "fuse_reduce_sum_into_conv",
    "fuse_rms_norm",
    "fuse_rope",
    "fuse_split_gather_concat",
    "fuse_transpose_into_gemm",
    "replace_einsum_with_matmul",
)

# Operators that the passes left may bring into a model that had none of them.
_MAY_APPEAR = frozenset({"Constant", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass(frozen=True)
class SimplifyOutcome:
    """The simplified model, or None and the reason in words."""

    model: ModelProto | None
    reason: str = ""


class _Rejected(Exception):
    """Why a model cannot be given to onnxsim, or its result cannot be used."""


def simplify(model: ModelProto, *, base_dir: Path | None, timeout: float = 60.0) -> SimplifyOutcome:
    """Simplify a model of standard and custom operators. The model given is not changed.

    ``base_dir`` is the folder of its external data, of which only small tensors are read. ``timeout`` is in seconds.
    Never raises for what goes wrong in onnxsim.
    """
    try:
        light = _light_copy(model, base_dir)
        result = _run_child(light, timeout)
        _check(light, result)
        return SimplifyOutcome(_restore(model, light, result))
    except _Rejected as reason:
        return SimplifyOutcome(None, str(reason))


# ----------------------------------------------------------------------------------------------------- what it gets


def _light_copy(model: ModelProto, base_dir: Path | None) -> ModelProto:
    """The model as onnxsim sees it."""
    import onnx

    for node in nodes_within(model.graph.node):
        if is_aten(node.op_type, node.domain):
            raise _Rejected("onnxsim was not run: ATen nodes are left, which it cannot read")
        if node.domain in model_io.DEFAULT_DOMAINS and not onnx.defs.has(node.op_type):
            raise _Rejected(f"onnxsim was not run: it cannot read {node.op_type} nodes, which are left")
    if model.graph.sparse_initializer:
        raise _Rejected("onnxsim was not run: it loses sparse initializers")
    light = onnx.ModelProto()
    imports = [onnx.helper.make_opsetid(i.domain, i.version) for i in model.opset_import]
    light.ir_version = max(8, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))
    light.opset_import.extend(imports)
    graph = light.graph
    graph.name = "graph"
    constants = {t.name for t in model.graph.initializer}
    inputs = {i.name for i in model.graph.input}
    # From IR 4 on an initializer that is an input as well may be overridden: it is no constant.
    fixed = constants if model.ir_version < 4 else constants - inputs
    graph.input.extend(i for i in model.graph.input if i.name not in fixed)
    for tensor in model.graph.initializer:
        if tensor.name not in fixed:
            continue
        if _is_big(tensor):
            graph.input.append(_as_input(tensor, tensor.name))
        else:
            graph.initializer.append(_loaded(tensor, base_dir))
    for node in model.graph.node:
        tensor = _constant_value(node)
        if tensor is not None and _is_big(tensor):
            graph.input.append(_as_input(tensor, node.output[0]))
        else:
            graph.node.append(node)
    for node in nodes_within(graph.node):
        node.ClearField("doc_string")
        del node.metadata_props[:]
        for tensor in _node_tensors(node):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(_loaded(tensor, base_dir))
    for inner in graphs_within(graph):
        del inner.value_info[:]
    graph.output.extend(model.graph.output)
    _distrust_outputs(light)
    return light


def _distrust_outputs(light: ModelProto) -> None:
    """What the model declares of its outputs may be wrong, and onnxsim would believe it: leave the rank, inferred."""
    from graphfix.shapes import infer

    ranks = {
        output.name: len(output.type.tensor_type.shape.dim)
        for output in infer(light).graph.output
        if output.type.HasField("tensor_type") and output.type.tensor_type.HasField("shape")
    }
    for output in light.graph.output:
        output.ClearField("doc_string")
        del output.metadata_props[:]
        if not output.type.HasField("tensor_type"):
            continue
        declared = output.type.tensor_type
        if output.name not in ranks and not declared.HasField("shape"):
            raise _Rejected(f"onnxsim was not run: it would have to know the rank of the output {output.name!r}")
        rank = ranks.get(output.name, len(declared.shape.dim))
        declared.ClearField("shape")
        declared.shape.SetInParent()
        for _ in range(rank):
            declared.shape.dim.add()


def _is_big(tensor: TensorProto) -> bool:
    size = model_io.tensor_bytes(tensor)
    return tensor.ByteSize() > BIG if size is None else size > BIG


def _as_input(tensor: TensorProto, name: str):  # type: ignore[no-untyped-def]
    import onnx

    return onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)


def _loaded(tensor: TensorProto, base_dir: Path | None) -> TensorProto:
    """The tensor with its data in it."""
    import onnx

    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return tensor
    if _is_big(tensor) or base_dir is None:
        raise _Rejected(f"onnxsim was not run: {tensor.name!r} is external data that it would have to read")
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    try:
        onnx.external_data_helper.load_external_data_for_tensor(copy, str(base_dir))
    except Exception as error:
        raise _Rejected(f"onnxsim was not run: the external data of {tensor.name!r} cannot be read: {error}") from None
    copy.data_location = onnx.TensorProto.DEFAULT
    del copy.external_data[:]
    return copy


def _constant_value(node: NodeProto) -> TensorProto | None:
    if node.op_type == "Constant" and node.domain in model_io.DEFAULT_DOMAINS:
        return next((a.t for a in node.attribute if a.name == "value" and not a.ref_attr_name), None)
    return None


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for body in bodies(node):
        yield from body.initializer


# ------------------------------------------------------------------------------------------------------- the child


def _run_child(light: ModelProto, timeout: float) -> ModelProto:
    """Simplify in a child process. Whatever happens to it, it is gone when this returns or raises."""
    import onnx
    from google.protobuf.message import DecodeError

    if getattr(sys, "frozen", False) or not sys.executable:
        raise _Rejected("onnxsim was not run: there is no Python interpreter to run it in")
    try:
        with tempfile.TemporaryDirectory(prefix="graphfix-") as folder:
            source, target, log = (Path(folder, name) for name in ("in.onnx", "out.onnx", "log"))
            source.write_bytes(light.SerializeToString())
            arguments = json.dumps(
                {
                    "path": [os.path.abspath(p) for p in sys.path],
                    "source": str(source),
                    "target": str(target),
                    "timeout": timeout,
                    "parent": os.getpid(),
                }
            )
            # The parent's import path, set before anything is imported: the child finds the same packages.
            code = (
                "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
                "from graphfix.simplify import child; child(**a)"
            )
            with open(log, "wb") as errors:
                status = _supervise([sys.executable, "-c", code, arguments], folder, errors, timeout)
            if status is None:
                raise _Rejected(f"onnxsim took longer than {timeout:g} s and was stopped")
            if status < 0:
                raise _Rejected(f"onnxsim crashed ({signal.Signals(-status).name})")
            if status:
                raise _Rejected(f"onnxsim failed: {_last_line(log)}")
            if not target.exists():
                raise _Rejected("onnxsim ended without a result")
            result = onnx.ModelProto()
            result.ParseFromString(target.read_bytes())
            return result
    except OSError as error:
        raise _Rejected(f"onnxsim could not be run: {error.strerror or error}") from None
    except DecodeError:
        raise _Rejected("onnxsim made a file that is not a model") from None


def _supervise(command: list[str], folder: str, errors, timeout: float) -> int | None:  # type: ignore[no-untyped-def]
    """Run a command to its end. Returns its status, negative for a signal, or None when it was stopped for time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONNXSIM_")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        cwd=folder,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us to handle; and what it starts can be stopped with it
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            process.wait()


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:300]


def child(source: str, target: str, timeout: float, parent: int) -> None:
    """What runs in the child: simplify the file ``source`` into ``target``, until nothing changes any more."""
    _limit(timeout, parent)
    import onnx

    # onnxsim imports these where they are installed, for tools that are not used here, and that takes seconds.
    for name in _NOT_IMPORTED:
        sys.modules[name] = None  # type: ignore[assignment]
    import onnxsim

    model = onnx.load(source)
    for _ in range(_ROUNDS):
        before = model.SerializeToString()
        model, _ = onnxsim.simplify(
            model,
            check_n=0,
            skipped_optimizers=list(_SKIPPED),
            tensor_size_threshold=f"{BIG // 1024}KB",
        )
        del model.metadata_props[:], model.graph.value_info[:]
        if model.SerializeToString() == before:
            break
    Path(target).write_bytes(model.SerializeToString())


def _limit(timeout: float, parent: int) -> None:
    """Never outlive the parent or the time limit, take all memory, or leave a core file."""
    import faulthandler

    faulthandler.dump_traceback_later(timeout + 10, exit=True)
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


# ------------------------------------------------------------------------------------------------- what is accepted


def _check(light: ModelProto, result: ModelProto) -> None:
    """Reject a result that differs from what it was made of in more than its nodes and small constants."""
    if [o.name for o in result.graph.output] != [o.name for o in light.graph.output]:
        raise _Rejected("onnxsim changed the outputs")
    before, after = ({i.name: i.type for i in m.graph.input} for m in (light, result))
    if before.keys() != after.keys():
        raise _Rejected("onnxsim changed the inputs")
    if frozen := next((name for name in before if not _is_no_narrower(after[name], before[name])), None):
        raise _Rejected(f"onnxsim changed the type or shape of the input {frozen!r}")
    if _versions(light) != _versions(result):
        raise _Rejected("onnxsim changed the opset")
    if _protected(light.graph) != _protected(result.graph):
        raise _Rejected("onnxsim changed custom or random operators")
    new = (
        {n.op_type for n in nodes_within(result.graph.node)}
        - {n.op_type for n in nodes_within(light.graph.node)}
        - _MAY_APPEAR
    )
    if new:
        raise _Rejected(f"onnxsim brought in operators: {', '.join(sorted(new))}")
    growth = _weight(result.graph) - _weight(light.graph)
    if growth > BIG:
        raise _Rejected(f"onnxsim made the model {growth >> 10} KiB bigger by folding constants")


def _is_no_narrower(after: TypeProto, before: TypeProto) -> bool:
    """Whether a type allows all that another does. (onnxsim may forget sizes, which does no harm.)"""
    if not before.HasField("tensor_type"):
        return after == before
    one, other = after.tensor_type, before.tensor_type
    if one.elem_type != other.elem_type or len(one.shape.dim) != len(other.shape.dim):
        return False
    return all(
        not a.HasField("dim_value") or (b.HasField("dim_value") and a.dim_value == b.dim_value)
        for a, b in zip(one.shape.dim, other.shape.dim, strict=True)
    )


def _versions(model: ModelProto) -> dict[str, int]:
    return {"" if i.domain in model_io.DEFAULT_DOMAINS else i.domain: i.version for i in model.opset_import}


def _weight(graph: GraphProto) -> int:
    return sum(item.ByteSize() for item in (*graph.node, *graph.initializer))


def _protected(graph: GraphProto) -> Counter:
    """How many there are of each custom or random node that the outputs depend on."""
    count: Counter = Counter()
    needed = {o.name for o in graph.output}
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        needed.update(_reads(node))
        if node.domain not in model_io.DEFAULT_DOMAINS or node.op_type in _RANDOM:
            attributes = tuple(sorted((a.name, a.SerializeToString()) for a in node.attribute))
            count[node.domain, node.op_type, len(node.input), len(node.output), attributes] += 1
        for body in bodies(node):
            count.update(_protected(body))
    return count


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for body in bodies(node):
        yield from (o.name for o in body.output)
        for inner in body.node:
            yield from _reads(inner)


# --------------------------------------------------------------------------------------------------- what is kept


def _restore(model: ModelProto, light: ModelProto, result: ModelProto) -> ModelProto:
    """The model with the simplified nodes in it; all else is the model's own."""
    import onnx

    hidden_constants = {
        node.output[0]: node for node in model.graph.node if (t := _constant_value(node)) is not None and _is_big(t)
    }
    _restore_nodes(model.graph.node, result.graph)
    restored = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        _set_field(restored, field.name, value)
    graph = restored.graph
    for field, value in model.graph.ListFields():
        if field.name not in ("node", "initializer", "value_info"):
            _set_field(graph, field.name, value)
    read = {name for node in result.graph.node for name in _reads(node)} | {o.name for o in graph.output}
    read_before = {name for node in model.graph.node for name in _reads(node)}
    own = {t.name: t for t in model.graph.initializer}
    new = {t.name: t for t in result.graph.initializer if t.name in read}
    seen = {t.name: t for t in light.graph.initializer}
    for tensor in model.graph.initializer:
        same = tensor.name not in new or _same_values(seen.get(tensor.name), new[tensor.name])
        if same and (tensor.name in read or tensor.name not in read_before):
            graph.initializer.append(tensor)
    kept = {t.name for t in graph.initializer}
    fresh = [t for name, t in new.items() if name not in kept]
    if any(t.name in own and t.name in {i.name for i in graph.input} for t in fresh):
        raise _Rejected("onnxsim changed the values of an initializer")
    if model.ir_version < 4:  # where an initializer must be an input as well, and the inputs are to stay
        graph.node.extend(onnx.helper.make_node("Constant", [], [t.name], value=t) for t in fresh)
    else:
        graph.initializer.extend(fresh)
    graph.node.extend(node for name, node in hidden_constants.items() if name in read)
    graph.node.extend(result.graph.node)
    made = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    graph.value_info.extend(v for v in model.graph.value_info if v.name in made)
    try:
        model_io.check_graph(restored, "onnxsim's result")
    except InputError as error:
        raise _Rejected(f"onnxsim broke the graph: {error}") from None
    return restored


def _same_values(one: TensorProto | None, other: TensorProto) -> bool:
    from onnx import numpy_helper

    if one is None or one.data_type != other.data_type or list(one.dims) != list(other.dims):
        return False
    return numpy_helper.to_array(one).tobytes() == numpy_helper.to_array(other).tobytes()


def _restore_nodes(originals: Iterable[NodeProto], graph: GraphProto) -> None:
    """Give nodes back their names, doc strings and metadata, and their exact form where nothing changed."""
    originals = list(originals)
    by_output = {name: node for node in originals for name in node.output if name}
    names = Counter(node.name for node in originals if node.name)
    by_name = {node.name: node for node in originals if names[node.name] == 1}
    taken: set[int] = set()
    for node in graph.node:
        candidates = [by_output.get(next(iter(node.output), "")), by_name.get(node.name)]
        original = next(
            (c for c in candidates if c is not None and id(c) not in taken and _same_operator(c, node)), None
        )
        if original is None:
            continue
        taken.add(id(original))
        inputs, outputs = list(node.input), list(node.output)
        for body, own in zip(bodies(node), bodies(original), strict=False):
            _restore_body(own, body)
        held = {a.name: a for a in node.attribute if attribute_bodies(a)}
        kept = [held.get(a.name, a) for a in original.attribute]
        restored = type(node)()
        for field, value in original.ListFields():
            if field.name not in ("input", "output", "attribute"):
                _set_field(restored, field.name, value)
        restored.input.extend(inputs)
        restored.output.extend(outputs)
        restored.attribute.extend(kept)
        node.CopyFrom(restored)


def _set_field(message, name: str, value) -> None:  # type: ignore[no-untyped-def]
    if isinstance(value, (str, int, bytes)):
        setattr(message, name, value)
    else:
        getattr(message, name).extend(value)


def _same_operator(original: NodeProto, node: NodeProto) -> bool:
    """Whether a node is the original one, but for its inputs, the names of its outputs and its bodies."""
    if (original.op_type, original.domain, len(original.output)) != (node.op_type, node.domain, len(node.output)):
        return False

    def signature(n: NodeProto) -> list[tuple[str, bytes]]:
        return sorted((a.name, b"" if attribute_bodies(a) else _attribute_key(a)) for a in n.attribute)

    return signature(original) == signature(node)


def _attribute_key(attribute) -> bytes:  # type: ignore[no-untyped-def]
    copy = type(attribute)()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    if copy.HasField("t"):
        from onnx import numpy_helper

        values = numpy_helper.to_array(copy.t)
        return f"{copy.t.data_type}{values.shape}".encode() + values.tobytes()
    return copy.SerializeToString()


def _restore_body(original: GraphProto, body: GraphProto) -> None:
    body.name, body.doc_string = original.name, original.doc_string
    if not original.HasField("doc_string"):
        body.ClearField("doc_string")
    del body.metadata_props[:]
    body.metadata_props.extend(original.metadata_props)
    if [o.name for o in body.output] == [o.name for o in original.output]:
        del body.output[:]
        body.output.extend(original.output)
    _restore_nodes(original.node, body)
    made = {name for node in body.node for name in node.output}
    del body.value_info[:]
    body.value_info.extend(v for v in original.value_info if v.name in made)
