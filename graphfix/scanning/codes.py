"""The forms of index writes that `graphfix scan` tells apart: codes, names, and what to know about each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """A form of write: ``name`` and ``title`` for lists, ``text`` for `graphfix explain`."""

    code: str
    name: str
    title: str
    text: str


_ALL = (
    Code(
        "GS101",
        "mask-write",
        "write where a mask is True, x[mask] = v",
        """\
The TorchScript exporter makes a Where of it, but lays the mask along the last axes of x, where PyTorch lays it along
the first. With a mask of fewer axes than x the file does not run, or, where sizes happen to match, gives other
answers. The new exporter writes NonZero and ScatterND, which few engines run. torch.where, or masked_fill with the
mask unsqueezed to the axes of x, is right everywhere. For x[mask] = y[mask], write x = torch.where(mask, y, x).""",
    ),
    Code(
        "GS102",
        "mask-beside",
        "write by a mask beside other indices, x[:, mask] = v, x[mask, 0] = v",
        """\
Neither exporter is to be trusted with a mask that is not alone: files that give other answers, that do not run, or no
file. Give the mask the axes of x and use torch.where or masked_fill: mask[None, :, None] for x[:, mask], and mask[:,
None] & (torch.arange(x.shape[1]) == j) for x[mask, j].""",
    ),
    Code(
        "GS103",
        "index-write",
        "write by a tensor of indices, x[i] = v",
        """\
It becomes ScatterND. The TorchScript exporter reshapes the values instead of repeating them, so that one row for all
indices makes a file that does not run: expand it, x[i] = v.expand(len(i), -1). What TensorRT, OpenVINO plugins,
TFLite and others make of ScatterND differs; comparing the indices with torch.arange says the same in operators that
all of them run. It costs (length of the axis) x (number of indices) comparisons. `graphfix` makes this of an exported
file, too.""",
    ),
    Code(
        "GS104",
        "index-apart",
        "write by index tensors with a slice between them, x[i, :, j] = v",
        """\
The TorchScript exporter does not export it: "Only consecutive 1-d tensor indices are supported". Bring the axes side
by side first (x.transpose), or compare the indices with torch.arange.""",
    ),
    Code(
        "GS105",
        "slice-write",
        "write into a slice, x[..., :2] = v, x[:, 0] = v",
        """\
It becomes ScatterND over a grid of computed indices (ScatterElements with the new exporter): right in ONNX Runtime,
slow and often refused elsewhere. torch.cat of the parts, or torch.where with a comparison of torch.arange for steps,
says the same. Values that are broadcast into a slice with a step are reshaped to the size at export by the
TorchScript exporter.""",
    ),
    Code(
        "GS106",
        "slice-write-computed",
        "write into a slice whose bounds are computed, x[:, n:] = v",
        """\
Bounds that int() or .item() made into Python numbers become constants in the TorchScript exporter: the file gives
other answers for other values. Bounds that are tensors become Range and ScatterND, and values are not broadcast.
Write torch.where(torch.arange(x.shape[1]) >= n, v, x).""",
    ),
    Code(
        "GS107",
        "write-in-loop",
        "write in a loop over a size or a tensor, for t in range(x.shape[1]): x[:, t] = v",
        """\
The TorchScript exporter unrolls the loop as often as it ran in the export: for other sizes the file gives other
answers, without a word. The new exporter refuses a dynamic size. Write it without the loop (cumsum, matmul, a
comparison with torch.arange), or, where each step needs the last, export that size as a constant and say so.""",
    ),
    Code(
        "GS108",
        "unknown-index",
        "write by an index whose kind the scan cannot tell, x[k] = v",
        """\
What becomes of it depends on what k is: see GS101 for masks, GS103 for tensors of indices, GS105 for numbers. An
annotation or a conversion (k.bool(), k.long()) tells the scan, and readers.""",
    ),
    Code(
        "GS110",
        "augmented-index",
        "update by a mask or a tensor of indices, x[i] += v",
        """\
PyTorch reads x[i], adds, and writes it back: of indices that repeat, one counts. To add up all of them use index_add
(GS205). Exported, it is as the plain write (GS101, GS103).""",
    ),
    Code(
        "GS111",
        "view-write",
        "write through a named view, y = x[:, 0]; y[y > 0] = 0",
        """\
In PyTorch x changes, as y is a view of it. The TorchScript exporter loses the write: x stays as it was, without a
word. torch.export keeps it. Write into x itself, or make the new x by torch.where or torch.cat.""",
    ),
    Code(
        "GS112",
        "inplace-on-view",
        "in-place change of a part of a tensor, x[:, 0].add_(1), x[:, 1:][:, 0] = v",
        """\
The TorchScript exporter follows a write through one subscript. With a second one, x[:, 0][mask] = 0, it fails or
writes to the wrong places. Put all indices into one subscript, or make the new tensor by torch.where or torch.cat.""",
    ),
    Code(
        "GS113",
        "write-to-copy",
        "in-place change of a copy, x[mask].zero_(), x[i][0] = v",
        """\
Reading by a mask or by a tensor of indices makes a copy, so this changes nothing, in PyTorch as in the exported file.
Most likely x[mask] = 0 was meant.""",
    ),
    Code(
        "GS201",
        "masked-fill",
        "masked_fill",
        """\
Both exporters make a Where of it, right and portable. It is the form to write instead of x[mask] = 0, except on bool
data, for which ONNX Runtime has no Where on the CPU: x | mask, x & ~mask.""",
    ),
    Code(
        "GS202",
        "masked-scatter",
        "masked_scatter",
        """\
It becomes NonZero and ScatterND. A running count of the mask gives each element's place in the source:
torch.where(mask, source[mask.long().cumsum(0) - 1], x).""",
    ),
    Code(
        "GS203",
        "index-fill",
        "index_fill",
        """\
It becomes ScatterElements or ScatterND. A comparison of the indices with torch.arange and masked_fill say the
same.""",
    ),
    Code(
        "GS204",
        "index-copy",
        "index_copy",
        "It becomes ScatterElements or ScatterND; see GS103 for how to do without.",
    ),
    Code(
        "GS205",
        "index-add",
        "index_add",
        """\
The TorchScript exporter loses the sum: of indices that repeat the last one wins, without a word. A matrix product
with the comparison of the indices (x + hit.to(x.dtype) @ v) is right everywhere.""",
    ),
    Code(
        "GS206",
        "index-put",
        "index_put without accumulate",
        "It is exported as x[i] = v (GS103) and x[mask] = v (GS101) are, with the same faults.",
    ),
    Code(
        "GS207",
        "index-put-accumulate",
        "index_put(accumulate=True)",
        """\
The TorchScript exporter loses the sum: of indices that repeat the last one wins, without a word. A matrix product
with the comparison of the indices (x + hit.to(x.dtype) @ v) is right everywhere.""",
    ),
    Code(
        "GS208",
        "scatter",
        "scatter",
        """\
It becomes ScatterElements, which engines run with many restrictions. For one-hot tensors compare with torch.arange:
(torch.arange(n) == i[..., None]).any(-2).""",
    ),
    Code(
        "GS209",
        "scatter-add",
        "scatter_add",
        """\
It becomes ScatterElements with reduction="add" from opset 16. Below, the TorchScript exporter loses the sum. Engines
often ignore the reduction. Compare the indices with torch.arange, and sum.""",
    ),
    Code(
        "GS210",
        "scatter-reduce",
        "scatter_reduce",
        """\
It becomes ScatterElements with a reduction (opset 16 and 18), which engines often ignore; "mean" is not exported, or
with other answers, and include_self=False is not exported by the TorchScript exporter. Compare the indices with
torch.arange, and reduce.""",
    ),
    Code(
        "GS211",
        "slice-scatter",
        "slice_scatter, select_scatter, diagonal_scatter",
        """\
The TorchScript exporter knows none of them, the new one makes ScatterND of two. torch.cat of the parts, or
torch.where with a comparison of torch.arange, says the same.""",
    ),
)

CODES = {code.code: code for code in _ALL}
