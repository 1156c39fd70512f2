"""`graphfix scan` and graphfix.scan: which lines are found, and which are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import unquote

import pytest

import graphfix
from graphfix import cli
from graphfix.scanning.codes import CODES
from graphfix.scanning.verdicts import EXPORTERS, VERDICTS, cases, measured_with, table
from graphfix.scanning.verdicts import Case as MeasuredCase

HEAD = "import torch\nimport torch.nn as nn\nimport numpy as np\nimport pandas as pd\nfrom torch import Tensor\n"


def found(tmp_path: Path, source: str) -> list[tuple[int, str, str]]:
    """(line, code, certainty) of the findings; line 1 is the first of ``source``, behind the imports."""
    file = tmp_path / "net.py"
    file.write_text(HEAD + textwrap.dedent(source).strip("\n") + "\n", encoding="utf-8")
    report = graphfix.scan(file)
    assert not report.unreadable
    return [(f.line - HEAD.count("\n"), f.code, f.certainty) for f in report.findings]


def forward(body: str, parameters: str = "x, mask, idx, v") -> str:
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return f"class Net(nn.Module):\n    def forward(self, {parameters}):\n{lines}\n        return x\n"


def codes(tmp_path: Path, body: str, parameters: str = "x, mask, idx, v") -> list[tuple[str, str]]:
    return [(code, sure) for _, code, sure in found(tmp_path, forward(body, parameters))]


# --- the measured cases


ANNOTATIONS = {"f": "torch.FloatTensor", "b": "torch.BoolTensor"}


@pytest.mark.parametrize("case", table(), ids=lambda case: f"{case.code} {case.source[:40]!r} {case.condition}")
def test_measured_cases_are_found_as_what_they_are(case: MeasuredCase, tmp_path: Path) -> None:
    """Each case of the table, written as a module: the scan gives its code, and does not rule the case out."""
    if case.source.startswith("k = 1"):
        pytest.skip("the scan sees that k is a number")
    inputs = re.findall(r"(\w+): (\w)\[", case.inputs)
    parameters = ", ".join(
        name if name == "k" else f"{name}: {ANNOTATIONS.get(letter, 'torch.LongTensor')}" for name, letter in inputs
    )
    file = tmp_path / "net.py"
    file.write_text(HEAD + forward(case.source, parameters))
    findings = graphfix.scan(file).findings
    assert [(f.code, f.certainty) for f in findings] == [(case.code, "sure")]
    (finding,) = findings
    for exporter in EXPORTERS:
        assert case.verdicts[exporter].verdict in [v.verdict for v in finding.verdicts[exporter]]


@pytest.mark.parametrize(
    "case", [c for c in table() if c.instead], ids=lambda case: f"{case.code} {case.source[:40]!r}"
)
def test_what_is_offered_instead_is_right_with_both_exporters(case: MeasuredCase) -> None:
    assert [case.instead_verdicts[exporter].verdict for exporter in EXPORTERS] == ["right", "right"]


def test_every_code_was_measured() -> None:
    assert {case.code for case in table()} == set(CODES)
    assert measured_with()["torch"]
    assert all(case.verdicts[exporter].verdict in VERDICTS for case in table() for exporter in EXPORTERS)


@pytest.mark.parametrize(
    ("code", "facts", "torchscript", "dynamo"),
    [
        # Known beforehand of torch 2.13, from exports compared with PyTorch by other means.
        ("GS104", {}, {"export error"}, {"fragile"}),
        ("GS102", {"beside": "behind"}, {"fragile", "unusable"}, {"export error"}),
        ("GS207", {}, {"wrong", "fragile"}, {"fragile"}),
        ("GS205", {}, {"wrong", "fragile"}, {"fragile"}),
        ("GS111", {"write": "mask"}, {"wrong"}, {"fragile"}),
        ("GS101", {"value": "scalar", "mask": "lower"}, {"wrong", "unusable"}, {"fragile"}),
        ("GS201", {"data": "other", "place": "new"}, {"right"}, {"right"}),
    ],
)
def test_verdicts(code: str, facts: dict, torchscript: set, dynamo: set) -> None:
    left = cases(code, facts)
    assert {case.verdicts["torchscript"].verdict for case in left} == torchscript
    assert {case.verdicts["dynamo"].verdict for case in left} == dynamo


# --- more forms


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("x[~mask] = 0", "GS101"),
        ("x[mask & (x > 1)] = 0", "GS101"),
        ("x[x.isnan()] = 0", "GS101"),
        ("x[torch.isnan(x)] = 0", "GS101"),
        ("x[idx == 3] = v", "GS101"),
        ("x[mask.bool()] = 0", "GS101"),
        ("x[[True, False]] = 0", "GS101"),
        ("x[..., mask] = 0", "GS102"),
        ("x[mask, idx] = 0", "GS102"),
        ("x[mask, 1:] = 0", "GS102"),
        ("x[idx.long()] = v", "GS103"),
        ("x[[0, 2]] = v", "GS103"),
        ("x[:, torch.arange(3)] = v", "GS103"),
        ("x[torch.where(x > 0)[0]] = v", "GS103"),
        ("x[v.argmax(-1)] = 1", "GS103"),
        ("x[v.topk(3)[1]] = 1", "GS103"),
        ("x[v.topk(3).indices] = 1", "GS103"),
        ("x[v.sort()[1], 0] = 1", "GS103"),
        ("x[idx, :, idx] = 1", "GS104"),
        ("x[idx, ..., idx] = 1", "GS104"),
        ("x[0] = 1", "GS105"),
        ("x[None] = 1", "GS105"),
        ("x[...] = 1", "GS105"),
        ("x[-1, 2:5] = v", "GS105"),
        ("x[:, 0] += v", "GS105"),
        ("x[..., 0], v2 = v, 1", "GS105"),
        ("x[:, :idx] = v", "GS106"),
        ("x[:, : x.size(1) // 2] = v", "GS106"),
        ("x[: len(v)] = v", "GS106"),
        ("x[idx.item()] = v", "GS106"),
        ("x[: max(x.shape[0], 3)] = v", "GS106"),
        ("x[v] = 1", "GS108"),
        ("x[idx] += v", "GS110"),
        ("x[mask] *= 2", "GS110"),
        ("x[:, 0].clamp_(0)", "GS112"),
        ("x[0][1] = v", "GS112"),
        ("x[mask].fill_(0)", "GS113"),
        ("x[mask][0] = 1", "GS113"),
        ("x.masked_fill_(mask, 0)", "GS201"),
        ("x = torch.masked_fill(x, mask, 0)", "GS201"),
        ("x = self.conv(x).masked_fill(mask, 0)", "GS201"),
        ("x.masked_scatter_(mask, v)", "GS202"),
        ("x.index_fill_(0, idx, 0)", "GS203"),
        ("x.index_copy_(0, idx, v)", "GS204"),
        ("x.index_add_(0, idx, v)", "GS205"),
        ("x = torch.index_add(x, 0, idx, v)", "GS205"),
        ("x.index_put_((idx,), v)", "GS206"),
        ("x.index_put_((idx,), v, accumulate=True)", "GS207"),
        ("x.index_put_((idx,), v, True)", "GS207"),
        ("x.scatter_(1, idx, 1.0)", "GS208"),
        ("x = torch.scatter(x, 1, idx, v)", "GS208"),
        ("x = torch.zeros_like(x).scatter(dim=1, index=idx, src=v)", "GS208"),
        ("x.scatter_add_(1, idx, v)", "GS209"),
        ("x.scatter_(1, idx, v, reduce='add')", "GS210"),
        ("x.scatter_reduce_(1, idx, v, reduce='amax')", "GS210"),
        ("x = torch.slice_scatter(x, v, 1)", "GS211"),
        ("x.__setitem__(mask, 0)", "GS101"),
    ],
)
def test_forms(line: str, code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, line) == [(code, "sure")]


def test_views(tmp_path: Path) -> None:
    lost = "y = x[:, 0]\ny[y > 0] = 0"
    assert codes(tmp_path, lost) == [("GS111", "sure")]
    assert codes(tmp_path, "y = x.view(-1)\ny.add_(1)") == [("GS111", "sure")]
    assert codes(tmp_path, "for row in x:\n    row[0] = 1") == [("GS111", "sure")]
    assert codes(tmp_path, "a, b = x.chunk(2)\na.zero_()") == [("GS111", "sure")]
    # x is not what y is a view of, or y is no view
    assert codes(tmp_path, "x = x.view(-1)\nx[x > 0] = 0") == [("GS101", "sure")]
    assert codes(tmp_path, "y = x[:, 0].clone()\ny[y > 0] = 0") == [("GS101", "sure")]
    assert codes(tmp_path, "y = x[mask]\ny[y > 0] = 0") == [("GS101", "sure")]
    assert codes(tmp_path, "y = x[:, 0]\ny[y > 0] = 0\nx = y") == [("GS101", "sure")]
    assert codes(tmp_path, "y = x[:, 0].clone()\ny += 1\nx = y + 1") == []


def test_loops(tmp_path: Path) -> None:
    assert codes(tmp_path, "for t in range(x.shape[1]):\n    x[:, t] = 0") == [("GS107", "sure")]
    assert codes(tmp_path, "B, T = x.shape\nfor t in range(T):\n    x[:, t] = 0") == [("GS107", "sure")]
    assert codes(tmp_path, "for k, row in enumerate(v):\n    x[k] = row", "x, v: Tensor") == [("GS107", "sure")]
    assert codes(tmp_path, "for k in range(4):\n    x[k] = 0") == [("GS105", "sure")]
    # what the body binds holds at its beginning, too
    assert codes(tmp_path, "k = 0\nfor _ in range(3):\n    x[k] = 0\n    k = idx.long()") == [("GS108", "sure")]


def test_all_statements_are_walked(tmp_path: Path) -> None:
    source = """
    def f(x: Tensor, m: torch.BoolTensor, n: int):
        with torch.no_grad() as g, open("a") as h:
            x[0] = 1
        try:
            x[0] = 1
        except ValueError as e:
            x[0] = 1
        else:
            x[0] = 1
        finally:
            x[0] = 1
        match n:
            case 1:
                x[0] = 1
        while True:
            x[n] = 0
            break
        else:
            x[0] = 1
        for x[0] in range(3):
            pass
        if (k := x.argmax()) > 0:
            x[k] = 0
        else:
            x[0] = 1
        (x[0], [x[1], *rest]) = m, n
        x[0]: int = 4
        x[0] = x[1] = 2
        return [x.masked_fill_(m, 0) for _ in range(n)]
    class A:
        async def f(self, x: Tensor):
            async with a:
                async for b in c:
                    x[0] = 1
    """
    lines = [(line, code) for line, code, _ in found(tmp_path, source)]
    plain = [3, 5, 7, 9, 11, 14, 16, 19, 20, 25, 26, 26, 27, 28, 28, 34]
    assert lines == sorted([(line, "GS105") for line in plain] + [(23, "GS103"), (29, "GS201")])


def test_training_code_is_not_exported(tmp_path: Path) -> None:
    assert codes(tmp_path, "if self.training:\n    x[mask] = 0") == []
    assert codes(tmp_path, "if self.training and mask is not None:\n    x[mask] = 0") == []
    assert codes(tmp_path, "if not self.training:\n    x[mask] = 0") == [("GS101", "sure")]
    source = "class Net(nn.Module):\n    def __init__(self):\n        w = torch.zeros(3)\n        w[0] = 1\n"
    assert found(tmp_path, source) == []


def test_functions_and_scripts(tmp_path: Path) -> None:
    source = """
    def sure(x: Tensor, m: torch.BoolTensor, i: "torch.LongTensor | None" = None):
        x[m] = 0
        x[i] = 0
    def by_use(x, k):
        y = x.unsqueeze(0)
        x[:, 0] = 1
    def by_index(x, m: torch.BoolTensor):
        x[m] = 0
    def made():
        out = torch.zeros(3, 4)
        out[1:, 0] = 1
        def inner():
            out[0] = 2
        return out
    grid = torch.arange(9).reshape(3, 3)
    grid[0] = 1
    """
    assert found(tmp_path, source) == [
        (2, "GS101", "sure"),
        (3, "GS103", "sure"),
        (6, "GS105", "maybe"),
        (8, "GS101", "maybe"),
        (11, "GS105", "sure"),
        (13, "GS105", "sure"),
        (16, "GS105", "sure"),
    ]


def test_attributes_of_the_class(tmp_path: Path) -> None:
    source = """
    class Net(nn.Module):
        def __init__(self, n: int):
            super().__init__()
            self.register_buffer("table", torch.zeros(4))
            self.scale = nn.Parameter(torch.ones(4))
            self.cache = {}
            self.seen = []
            self.counts = np.zeros(4)
            self.n = n
        def forward(self, x, pos):
            self.table[0] = 1
            self.cache[pos] = x
            self.seen[0] = x
            self.counts[0] += 1
            x[:, : self.n] = 0
            return x * self.scale
    """
    assert found(tmp_path, source) == [(11, "GS105", "sure"), (15, "GS105", "sure")]


# --- no false alarms


@pytest.mark.parametrize(
    "line",
    [
        "d = {}\nd[idx] = x",
        "d = dict(a=1)\nd[mask] = x",
        "d = collections.defaultdict(list)\nd[mask] = x",
        "d = []\nd[0] = x",
        "d = [None] * 3\nd[1:2] = [x]",
        "d = [x for _ in range(3)]\nd[0] = x",
        "d = list(v)\nd[0] = x",
        "d = np.zeros((3, 4))\nd[:, 0] = 1",
        "d = np.zeros(3)\nd[d > 0] = 1",
        "d = x.numpy()\nd[d > 0] = 1",
        "d = x.detach().cpu().numpy()\nd[..., 0] = 1",
        "d = pd.DataFrame()\nd[d > 0] = 1\nd.loc[0, :] = 2",
        "v['mask'] = x",
        "v[f'{x}'] = x",
        "kwargs['mask'] = x\nkwargs[mask] = x",
        "os.environ['A'] = 'b'",
        "config[name] = x",
        "d = bytearray(4)\nd[0] = 1",
        "d = x.tolist()\nd[0] = 1",
        "d = list(x.shape)\nd[-1] = 1",
        "shape = [1] * x.dim()\nshape[0] = -1",
        "outs = self.blocks(v)\nouts[self.last] = x",
        "ax.scatter(x, v, c=mask)",
        "torch.distributed.scatter(x, [v])",
        "self.state = {}\nself.state[idx] = x",
        "y = x[mask]",
        "y = x[:, 0] + 1",
        "x = x + x[idx]",
        "y = x == v[idx]",
        "d = np.zeros((3, 4)).copy()[0]\nd[1:] = 1",
        "d = np.zeros(3) + 1\nd[d > 0] = 1",
        "x.add_(1)\nx += 1",
        "del v[0]",
    ],
)
def test_no_false_alarm(line: str, tmp_path: Path) -> None:
    given = "x: Tensor, mask, idx, v, config: dict, name, k, ax, **kwargs"
    if line.startswith("v["):
        given = given.replace(" v,", " v: dict,") if "f'" in line else given
    body = f"import os, collections\n{line}"
    assert codes(tmp_path, body, given) == []


@pytest.mark.parametrize(
    "annotation",
    [
        "dict",
        "Dict[str, Tensor]",
        "list[Tensor]",
        "List[Tensor]",
        "np.ndarray",
        "pd.DataFrame",
        "str",
        "Cache",
        "tuple",
    ],
)
def test_annotations_that_are_no_tensors(annotation: str, tmp_path: Path) -> None:
    assert codes(tmp_path, "v[0] = x\nv[mask] = 0", f"x, mask, v: {annotation}") == []


@pytest.mark.parametrize(
    "annotation", ["Tensor", "torch.Tensor", "Optional[Tensor]", "'Tensor'", "Tensor | None", "Float[Tensor, 'b t']"]
)
def test_annotations_that_are_tensors(annotation: str, tmp_path: Path) -> None:
    assert found(tmp_path, f"def f(v: {annotation}):\n    v[0] = 1\n") == [(2, "GS105", "sure")]


def test_parameters_of_forward_that_are_used_as_containers(tmp_path: Path) -> None:
    assert codes(tmp_path, "for k, f in v.items():\n    v[k] = f * 2") == []
    assert codes(tmp_path, "v['a'] = x\nv[idx] = x") == []
    assert codes(tmp_path, "v.append(x)\nv[0] = x") == []
    assert codes(tmp_path, "for k, f in enumerate(v):\n    v[k] = f\nx = torch.cat(v)") == []


def test_numpy_functions_are_left_alone(tmp_path: Path) -> None:
    assert (
        found(tmp_path, "def f(image, boxes):\n    image = np.pad(image, 1)\n    boxes[:, 0] += 1\n    return image")
        == []
    )


def test_files_without_torch_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text("def f(x, m):\n    x[..., 0] = 1\n    x[x > 0] = 1\n")
    assert graphfix.scan(file).findings == []


# --- places, comments, files


def test_places_count_characters(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(HEAD + "é = torch.zeros(3); é[0] = 1  # write\n", encoding="utf-8")
    (finding,) = graphfix.scan(file).findings
    line = HEAD.count("\n") + 1
    assert (finding.line, finding.column, finding.end_line, finding.end_column) == (line, 21, line, 25)


def test_encodings_and_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_bytes(b"# -*- coding: latin-1 -*-\r\nimport torch\r\n\xe9 = torch.zeros(3)\r\n\xe9[0] = 1\r\n")
    (finding,) = graphfix.scan(file).findings
    assert (finding.line, finding.column, finding.end_column) == (4, 1, 5)


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# graphfix: ignore", 0),
        ("# graphfix: ignore[GS105]", 0),
        ("# noqa  # graphfix: ignore[GS101, GS105]", 0),
        ("# graphfix: ignore[GS101]", 1),
        ("# graphfix: ignored by no one?", 0),
        ("# nothing", 1),
    ],
)
def test_comments(comment: str, left: int, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"import torch\nx = torch.zeros(3)\nx[\n    0\n] = 1  {comment}\n")
    report = graphfix.scan(file)
    expected = left if "ignored" not in comment else 1
    assert (len(report.findings), report.ignored) == (expected, 1 - expected)


def test_comments_in_strings_and_on_other_lines_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nx = torch.zeros(3)\nx[0] = 1; s = '# graphfix: ignore'\n# graphfix: ignore\nx[1] = 1\n"
    )
    assert len(graphfix.scan(file).findings) == 2


def test_files_that_cannot_be_parsed_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\ndef f(:\n")
    (tmp_path / "b.py").write_text("import torch\nx = torch.zeros(3)\nx[0] = 1\n")
    (tmp_path / "c.py").write_bytes(b"import torch\nx = '\xff'\n")
    (tmp_path / "d.py").write_bytes(b"import torch\0\n")
    (tmp_path / "e.py").write_text("import torch\nx = " + "-" * 100_000 + "1\n")
    report = graphfix.scan(tmp_path)
    assert report.files == 5
    assert [Path(each.path).name for each in report.unreadable] == ["a.py", "c.py", "d.py", "e.py"]
    assert report.unreadable[0].line == 2
    assert [Path(finding.path).name for finding in report.findings] == ["b.py"]
    assert report.exit_code == 1


def test_folders(tmp_path: Path) -> None:
    text = "import torch\nx = torch.zeros(3)\nx[0] = 1\n"
    for name in ("a.py", "sub/b.py", ".hidden/c.py", "__pycache__/d.py", "venv/e.py", "sub/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    report = graphfix.scan([tmp_path, tmp_path / "a.py"])
    names = [Path(finding.path).relative_to(tmp_path).as_posix() for finding in report.findings]
    assert names == ["a.py", "sub/b.py"]


# --- the command


@pytest.fixture
def net(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source = forward("x[mask > 0] = 0\nx[v] = 1\ny = x.masked_fill(mask > 1, 0)")
    source += "\ndef helper(z, m: torch.BoolTensor):\n    z[m] = 1\n"
    Path("my net.py").write_text(HEAD + source)
    return Path("my net.py")


def run(*arguments: object) -> int:
    return cli.run(["scan", *map(str, arguments)])


def test_text(net: Path, capfd) -> None:
    assert run(net) == 1
    out = capfd.readouterr().out
    assert "my net.py:8:9: GS101 x[mask > 0] = 0  in Net.forward" in out
    assert "if z is a tensor" in out
    assert "TorchScript: wrong (other answers than PyTorch) if the mask has fewer axes than the tensor" in out
    assert "4 index writes in 1 of 1 file: 3 sure, 1 maybe" in out
    assert run(net, "--sure", "--select", "GS1", "--ignore", "gs108") == 1
    assert "1 index write in 1 of 1 file: 1 sure, 0 maybe" in capfd.readouterr().out


def test_exit_codes(net: Path, tmp_path: Path, capfd) -> None:
    empty = tmp_path / "empty.py"
    empty.touch()
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert run(empty) == 0
    assert "no index writes found in 1 file" in capfd.readouterr().out
    assert run(net) == 1
    assert run(net, broken) == 1
    assert run(broken) == 2
    assert "broken.py:1: not scanned: syntax error" in capfd.readouterr().out
    for wrong in (["nosuch.py"], [], [net, "--format", "xml"], [net, "--select", "GS999"], [tmp_path / "a.onnx"]):
        capfd.readouterr()
        assert run(*wrong) == 2
        captured = capfd.readouterr()
        assert captured.out == "" and captured.err.startswith("graphfix: error: ") and captured.err.count("\n") == 1
    assert run(net, "-o", tmp_path / "no" / "folder") == 2


def test_json(net: Path, capfd) -> None:
    assert run(net, "--format", "json") == 1
    content = json.loads(capfd.readouterr().out)
    assert content["format"] == 1 and content["files"] == 1 and content["unreadable"] == []
    assert [(f["line"], f["code"], f["certainty"]) for f in content["findings"]] == [
        (8, "GS101", "sure"),
        (9, "GS108", "sure"),
        (10, "GS201", "sure"),
        (14, "GS101", "maybe"),
    ]
    assert content["findings"][2]["worst"] == "right"
    assert content["findings"][3]["assumptions"] == ["z is a tensor"]
    assert content == graphfix.scan(net).to_dict() | {"findings": content["findings"]}


def test_sarif(net: Path, tmp_path: Path, capfd) -> None:
    """The fields that SARIF 2.1.0 requires (section 3), and what code hosts ask for besides."""
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    assert run(net, "broken.py", "--format", "sarif", "-o", "out.sarif") == 1
    assert capfd.readouterr().out == ""
    log = json.loads(Path("out.sarif").read_text())
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run_,) = log["runs"]
    driver = run_["tool"]["driver"]
    assert driver["name"] == "graphfix"
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == len(CODES)
    for rule in rules:
        assert rule["shortDescription"]["text"] and rule["fullDescription"]["text"] and rule["help"]["text"]
    assert run_["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    lines = net.read_text().splitlines()
    assert len(run_["results"]) == 4
    for result in run_["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert unquote(physical["artifactLocation"]["uri"]) == "my net.py"
        assert " " not in physical["artifactLocation"]["uri"]
        region = physical["region"]
        assert 1 <= region["startLine"] <= region["endLine"] <= len(lines)
        assert region["startColumn"] >= 1 and region["endColumn"] > region["startColumn"]
        text = lines[region["startLine"] - 1][region["startColumn"] - 1 : region["endColumn"] - 1]
        assert text in ("x[mask > 0]", "x[v]", "x.masked_fill(mask > 1, 0)", "z[m]")
    assert [r["level"] for r in run_["results"]] == ["error", "error", "note", "note"]
    (invocation,) = run_["invocations"]
    assert invocation["executionSuccessful"] is True
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"].startswith("syntax error")
    assert notification["locations"][0]["physicalLocation"]["region"]["startLine"] == 2


def test_explain(capfd) -> None:
    for name in ("GS101", "gs101", "mask-write"):
        assert cli.run(["explain", name]) == 0
        out = capfd.readouterr().out
        assert out.startswith("GS101 mask-write") and "x[mask] = 0" in out and "TorchScript:" in out
    assert cli.run(["explain", "GS999"]) == 2
    for code in CODES:
        assert cli.run(["explain", code]) == 0


def test_a_scan_imports_nothing_heavy(net: Path) -> None:
    code = (
        "import sys, graphfix; graphfix.scan('my net.py').to_sarif(); "
        "print(sorted({'torch', 'numpy', 'onnx', 'onnxruntime', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_graphfix_scan_stays_a_function_after_its_package_was_imported() -> None:
    import graphfix.scanning.files

    assert callable(graphfix.scan) and graphfix.ScanReport is type(graphfix.scan([]))
