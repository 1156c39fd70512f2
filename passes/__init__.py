"""The passes, in the order in which they run: `graphfix passes` lists them, `graphfix explain CODE` explains one."""

from graphfix.pass_base import Pass
from graphfix.passes.aten_arange import AtenArange
from graphfix.passes.aten_diagonal_scatter import AtenDiagonalScatter
from graphfix.passes.aten_gather import AtenGather
from graphfix.passes.aten_index import AtenIndex
from graphfix.passes.aten_index_add import AtenIndexAdd
from graphfix.passes.aten_index_copy import AtenIndexCopy
from graphfix.passes.aten_index_fill import AtenIndexFill
from graphfix.passes.aten_index_put import AtenIndexPut
from graphfix.passes.aten_masked_fill import AtenMaskedFill
from graphfix.passes.aten_masked_scatter import AtenMaskedScatter
from graphfix.passes.aten_scatter import AtenScatter
from graphfix.passes.aten_scatter_add import AtenScatterAdd
from graphfix.passes.aten_scatter_reduce import AtenScatterReduce
from graphfix.passes.aten_select_scatter import AtenSelectScatter
from graphfix.passes.aten_slice_scatter import AtenSliceScatter
from graphfix.passes.dynamic_slice import DynamicSlice
from graphfix.passes.non_zero import NonZero
from graphfix.passes.repair_lost_accumulate import RepairLostAccumulate
from graphfix.passes.repair_mask_alignment import RepairMaskAlignment
from graphfix.passes.repair_mask_column import RepairMaskColumn
from graphfix.passes.repair_reshape_broadcast import RepairReshapeBroadcast
from graphfix.passes.repair_where_bool import RepairWhereBool
from graphfix.passes.scatter_elements import ScatterElements
from graphfix.passes.scatter_nd import ScatterND
from graphfix.passes.span_chain import SpanChain

PASSES: tuple[type[Pass], ...] = (
    RepairMaskAlignment,
    RepairMaskColumn,
    RepairReshapeBroadcast,
    RepairLostAccumulate,
    RepairWhereBool,
    AtenArange,
    DynamicSlice,
    AtenIndexFill,
    AtenIndexCopy,
    AtenIndexAdd,
    AtenMaskedFill,
    AtenMaskedScatter,
    AtenScatter,
    AtenScatterAdd,
    AtenScatterReduce,
    AtenSliceScatter,
    AtenSelectScatter,
    AtenDiagonalScatter,
    AtenIndexPut,  # a masked write takes what its values are computed by along, when that is standard
    ScatterND,
    ScatterElements,
    SpanChain,
    AtenGather,
    AtenIndex,
    NonZero,
)

__all__ = ["PASSES"]
