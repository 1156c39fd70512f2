"""What PyTorch's functions and methods return, as far as it matters to index writes."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


BOOL_RESULT = words("""
    eq ne lt le gt ge less less_equal greater greater_equal not_equal isnan isinf isfinite isclose isin isposinf
    isneginf logical_and logical_or logical_not logical_xor bool any all signbit
    """)
INT_RESULT = words("""
    long int short argmax argmin argsort nonzero argwhere searchsorted bucketize count_nonzero randperm bincount
    multinomial tril_indices triu_indices randint histc
    """)
FLOAT_RESULT = frozenset(
    [
        "float",
        "double",
        "half",
        "bfloat16",
        "softmax",
        "log_softmax",
        "sigmoid",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "randn",
        "rand",
    ]
)

# Methods and functions with the shape and dtype of their first operand.
SAME_SHAPE = words("""
    clone detach contiguous abs neg clamp clip relu sigmoid tanh exp log sqrt rsqrt square sin cos floor ceil
    round to float double half bfloat16 long int short bool type type_as cuda cpu zeros_like ones_like full_like
    empty_like rand_like randn_like randint_like softmax log_softmax cumsum cumprod masked_fill fill_ zero_
    requires_grad_ logical_not isnan isinf isfinite sign trunc nan_to_num masked_scatter index_fill index_copy
    index_add index_put scatter scatter_add scatter_reduce eq ne lt le gt ge
    """)
SAME_DTYPE = SAME_SHAPE | words("""
    view reshape flatten permute transpose swapaxes swapdims movedim t squeeze unsqueeze expand expand_as narrow
    select repeat tile flip roll gather index_select masked_select take cat concat concatenate stack hstack
    vstack where unfold diagonal view_as reshape_as unflatten ravel broadcast_to tril triu diag
    repeat_interleave add sub mul new_zeros new_ones new_full new_empty new_tensor pin_memory amax amin
    """)
VIEWS = words("""
    view reshape flatten permute transpose swapaxes swapdims movedim moveaxis t squeeze unsqueeze expand
    expand_as narrow select unfold diagonal view_as detach ravel unflatten view_as_real view_as_complex
    """)
VIEW_ATTRIBUTES = words("T mT H mH data real imag")
VIEW_LISTS = words("split chunk unbind tensor_split hsplit vsplit")
# With an axis given these return (values, indices).
VALUES_AND_INDICES = words("topk sort max min kthvalue median mode cummax cummin")
NOT_TENSORS = words("""
    device dtype numpy tolist size stride dim storage data_ptr is_contiguous element_size numel nelement
    get_device backward register_hook is_floating_point is_complex untyped_storage layout is_cuda requires_grad
    is_leaf grad_fn name names equal allclose
    """)

# Functions of the module torch that return no tensor.
TORCH_OTHER = words("""
    device dtype Size Generator is_tensor is_floating_point is_complex no_grad enable_grad inference_mode
    set_grad_enabled get_default_dtype set_default_dtype load save compile manual_seed seed finfo iinfo numel
    equal allclose autocast jit script trace export set_printoptions is_grad_enabled is_autocast_enabled
    get_autocast_dtype typename broadcast_shapes promote_types result_type can_cast get_rng_state Stream Event
    set_num_threads get_num_threads set_float32_matmul_precision use_deterministic_algorithms
    """)
TORCH_LISTS = words("meshgrid broadcast_tensors") | VIEW_LISTS
TENSOR_NAMESPACES = frozenset(
    ["torch", "torch.nn.functional", "torch.fft", "torch.linalg", "torch.special", "torch.Tensor", "torch.sparse"]
)
# Modules of torch.nn whose result is no single tensor.
NN_OTHER = words("""
    LSTM GRU RNN MultiheadAttention ModuleList ModuleDict ParameterList ParameterDict Module LSTMCell Sequential
    AdaptiveLogSoftmaxWithLoss Transformer
    """)
NN_PACKAGES = ("torch.nn.", "torch.nn.modules.")

# A name that has one of these asked of it is a tensor, or is none.
TENSOR_USES = words("""
    unsqueeze new_zeros new_ones new_full new_empty new_tensor masked_fill masked_fill_ masked_scatter permute
    contiguous index_select scatter_ scatter_add_ index_put_ index_add_ index_fill_ index_copy_ requires_grad_
    is_cuda numel detach type_as expand expand_as view_as fill_ copy_ zero_ add_ mul_ sub_ div_ clamp_ device
    unbind cuda softmax sigmoid masked_select repeat_interleave grad_fn
    """)
OTHER_USES = words("""
    items keys append extend update setdefault insert get iloc loc columns astype iterrows groupby reset_index
    apply popitem pop index_col to_numpy values sort_values fillna split_lines startswith lower tobytes ndarray
    """)
# Packages whose functions return no torch.Tensor.
FOREIGN = words("""
    numpy pandas jax tensorflow scipy sklearn cv2 PIL cupy collections json os re math random itertools
    functools pathlib copy_reg typing dataclasses logging time sys string enum subprocess argparse polars xarray
    awkward h5py librosa skimage matplotlib networkx numba ml_dtypes mlx flax datasets yaml csv keras
    """)
INPLACE = words("""
    add_ sub_ mul_ div_ fill_ zero_ copy_ clamp_ clamp_min_ clamp_max_ clip_ masked_fill_ masked_scatter_
    index_fill_ index_copy_ index_add_ index_put_ scatter_ scatter_add_ scatter_reduce_ exp_ log_ sqrt_ neg_
    abs_ sigmoid_ relu_ tanh_ floor_ round_ pow_ addcmul_ addcdiv_ lerp_ logical_and_ logical_or_ logical_not_
    bitwise_and_ bitwise_or_ erf_ floor_divide_ remainder_ square_ subtract_ multiply_ divide_ sin_ cos_ ceil_
    trunc_ sign_ fill_diagonal_ cumsum_
    """)
# The methods that write by index: without the underscore of the in-place form, with the code.
METHODS = {
    "masked_fill": "GS201",
    "masked_scatter": "GS202",
    "index_fill": "GS203",
    "index_copy": "GS204",
    "index_add": "GS205",
    "index_put": "GS206",
    "scatter": "GS208",
    "scatter_add": "GS209",
    "scatter_reduce": "GS210",
    "slice_scatter": "GS211",
    "select_scatter": "GS211",
    "diagonal_scatter": "GS211",
}
AMBIGUOUS_METHODS = frozenset({"scatter"})  # as in matplotlib and torch.distributed
