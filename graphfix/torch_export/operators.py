"""What is known of PyTorch's functions and methods by their names: which look at sizes, which write, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# What is known of a tensor without its elements.
METADATA = names(
    """shape dtype device layout ndim dim size stride numel nelement element_size storage_offset is_contiguous
    is_floating_point is_complex is_signed is_cuda is_sparse is_quantized is_meta is_nested is_mkldnn is_mps is_xpu
    is_conj is_neg is_inference is_pinned is_leaf is_shared get_device requires_grad grad grad_fn names has_names
    __len__ type itemsize nbytes data_ptr _is_view _base _version
    result_type promote_types can_cast ndimension is_same_size _is_zerotensor retains_grad output_nr"""
)
SIZES = names("shape size numel nelement __len__")
SHAPED = names("stride storage_offset nbytes is_same_size")  # numbers and answers that depend on sizes
# What makes tensors of sizes that depend on the elements of the arguments.
SELECTING = names(
    """nonzero nonzero_numpy argwhere masked_select unique unique_consecutive unique_dim _unique _unique2 bincount
    repeat_interleave"""
)
# Operators that take a number for an operand, not for a size.
ELEMENTWISE = names(
    """add sub rsub mul div divide true_divide floor_divide remainder fmod pow eq ne lt le gt ge equal where clamp clip
    minimum maximum max min abs neg logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not to type long
    int float double half bool clone masked_fill stack cat item
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__
    __rmod__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __invert__ __neg__
    __abs__ __bool__ __int__ __float__ __index__"""
)
FILLED = names("zeros_like ones_like empty_like new_zeros new_ones new_empty")  # of the argument's sizes alone
TO_PYTHON = names("tolist numpy __array__ __dlpack__ to_dlpack storage untyped_storage _typed_storage")
TO_TEXT = names("__repr__ __str__ __format__")
CHECKS = names("_assert _assert_async _assert_scalar _check _check_is_size _check_value")
CONSTRUCTORS = names("tensor as_tensor asarray scalar_tensor")

RESHAPING = names("squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_")  # in place
UNWRITTEN = names("requires_grad_ detach_ retain_grad share_memory_")  # the elements stay as they are
UNFOLLOWED = names("set_ resize_ resize_as_ rename_ apply_ map_ map2_ as_strided_")
AUGMENTED = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "true_divide",
    "__idiv__": "true_divide",
    "__ifloordiv__": "floor_divide",
    "__imod__": "remainder",
    "__ipow__": "pow",
    "__imatmul__": "matmul",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "bitwise_left_shift",
    "__irshift__": "bitwise_right_shift",
}


def name_of(func: Any) -> str:
    """The name of a function or method; of a property for its getter."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        name = func.__self__.__name__
    return name


def written_argument(name: str, args: Any, kwargs: Any) -> int | None:
    """Which argument an operator writes in place, None for one that writes none."""
    if name in AUGMENTED or (name.endswith("_") and not name.endswith("__")):
        return 0 if args and isinstance(args[0], Tensor) else None
    return None


def tensors_in(given: Any) -> Iterator[Tensor]:
    """The tensors in an argument: in lists, dicts, the bounds of slices, and sizes, which are tensors in a trace."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, slice):
        yield from tensors_in((given.start, given.stop, given.step))
    elif isinstance(given, (tuple, list)):
        for one in given:
            yield from tensors_in(one)
    elif isinstance(given, dict):
        yield from tensors_in(list(given.values()))


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor selects as an index what it is True for."""
    return tensor.dtype in (torch.bool, torch.uint8)


def is_number(tensor: Tensor) -> bool:
    """Whether a tensor can stand for a size."""
    return tensor.dim() == 0 and not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
