"""Real architectures, built from their libraries with random weights: what `real_exports.py` exports.

Each maker gives a module, its arguments and, where the module allows one, its dynamic dims. They are small (few layers,
small pictures), so that an export takes seconds; the code that runs is the libraries' own. A wrapper does no more than
turn tensors into the objects that a library takes, and its results into tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 100  # the vocabulary of the language models


@dataclass(frozen=True)
class Case:
    """What to export: ``sets`` are arguments, of which the first are the example; the last time the latency.

    ``dynamic`` is as `graphfix.export` takes ``dynamic_shapes``. ``ranges`` are the values that an input may have where
    the module does not tell: lengths, positions.
    """

    module: nn.Module
    sets: Sequence[tuple[Tensor, ...]]
    dynamic: Any = None
    ranges: dict[str, tuple[float, float]] | None = None


MAKERS: dict[str, Callable[[], Case]] = {}


def maker(function: Callable[[], Case]) -> Callable[[], Case]:
    """Add a maker to the table under its name."""
    MAKERS[function.__name__.replace("_", "-")] = function
    return function


def make(name: str) -> Case:
    """The case of that name."""
    torchvision()  # transformers and timm import it
    return MAKERS[name]()


def made(function: Callable[[], nn.Module]) -> nn.Module:
    """A module with random weights from a fixed seed, in evaluation mode."""
    torch.manual_seed(1)
    return function().eval()


def settled(model: nn.Module, *arguments: Any) -> nn.Module:
    """The model with the batch statistics of these arguments, as after training.

    With the statistics that a new model starts with, what a deep one makes of any picture is the same but for rounding,
    and which boxes come first is chance.
    """

    def measure(module: Any, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        others = [axis for axis in range(x.ndim) if axis != 1]
        module.running_mean.copy_(x.mean(others))
        # What does not vary in one picture may in others.
        module.running_var.copy_(x.var(others, unbiased=False) + 0.1 * x.square().mean(others) + 1e-6)

    norms = [m for m in model.modules() if getattr(m, "running_mean", None) is not None]
    handles = [module.register_forward_pre_hook(measure) for module in norms]
    with torch.no_grad():
        model(*arguments)
    for handle in handles:
        handle.remove()
    return model


def spread(*layers: nn.Module) -> None:
    """Make what score layers say differ from place to place, as after training."""
    with torch.no_grad():
        for layer in layers:
            weight = layer.weight
            weight.copy_(torch.randn(weight.shape) / weight[0].numel() ** 0.5)


def pictures(*shapes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """One argument each: random pictures of these shapes."""
    torch.manual_seed(2)
    return [(torch.rand(*shape),) for shape in shapes]


def words(batch: int, length: int, high: int = TOKENS) -> Tensor:
    """Random token ids."""
    return torch.randint(3, high, (batch, length))


# ---- torchvision ---------------------------------------------------------------------------------------------------


def torchvision() -> Any:
    """The library. PyPI's wheel needs CUDA's libraries; where they are missing, the two operators that the detectors
    use are given to PyTorch here, with the library's schemas."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define(
            "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
            "int sampling_ratio, bool aligned) -> Tensor"
        )
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
        from torchvision.ops import roi_align

        library.impl("nms", _nms, "CPU")
        library.impl("roi_align", sys.modules[roi_align.__module__]._roi_align, "CPU")  # type: ignore[attr-defined]
        library.impl("roi_align", _roi_align_meta, "Meta")
        torchvision.extension._has_ops = lambda: True
        sys.modules[roi_align.__module__]._has_ops = lambda: True  # type: ignore[attr-defined]
        torchvision.kept = library
    return torchvision


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Non-maximum suppression: the best boxes, best first, without those that overlap a better one by more."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    common = (torch.minimum(boxes[:, None, 2:], boxes[:, 2:]) - torch.maximum(boxes[:, None, :2], boxes[:, :2])).clamp(
        min=0
    )
    overlap = common.prod(2)
    too_near = (overlap / (area[:, None] + area - overlap) > threshold).numpy()
    gone = torch.zeros(len(order), dtype=torch.bool).numpy()
    for number in range(len(order)):
        if not gone[number]:
            gone[number + 1 :] |= too_near[number, number + 1 :]
    return order[~torch.from_numpy(gone)]


def _roi_align_meta(
    input: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> Tensor:
    return input.new_empty((rois.shape[0], input.shape[1], height, width))


class Detector(nn.Module):
    """A detector of torchvision with its postprocess, for one picture."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.model([image])[0]
        return found["boxes"], found["scores"], found["labels"]


class Field(nn.Module):
    """One entry of a model's results."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        found = self.model(*args)
        return tuple(found[name] for name in self.names)


NO_WEIGHTS: dict[str, Any] = {"weights": None, "weights_backbone": None}


@maker
def ssdlite() -> Case:
    """SSDlite with MobileNetV3, whole: anchors, the boxes' decoding, non-maximum suppression by class."""
    detection = torchvision().models.detection
    model = made(lambda: detection.ssdlite320_mobilenet_v3_large(num_classes=6, topk_candidates=40, **NO_WEIGHTS))
    sets = pictures((3, 320, 320), (3, 320, 320))
    settled(model, list(sets[0]))
    spread(*(block[-1] for block in model.head.classification_head.module_list))
    return Case(Detector(model), sets)


@maker
def faster_rcnn() -> Case:
    """Faster R-CNN with MobileNetV3 and a feature pyramid, whole: proposals, RoIAlign by level, box heads."""
    detection = torchvision().models.detection
    options = {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 30, "box_score_thresh": 0.01}
    model = made(
        lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            num_classes=6, min_size=128, max_size=160, **options, **NO_WEIGHTS
        )
    )
    sets = pictures((3, 128, 160), (3, 128, 160))
    settled(model, list(sets[0]))
    spread(model.rpn.head.cls_logits, model.roi_heads.box_predictor.cls_score)
    return Case(Detector(model), sets)


def _pyramid() -> Any:
    utils = torchvision().models.detection.backbone_utils
    return utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None, returned_layers=[2, 3, 4])


@maker
def retinanet() -> Case:
    """RetinaNet with ResNet-18, whole."""
    detection = torchvision().models.detection
    model = made(
        lambda: detection.RetinaNet(
            _pyramid(),
            6,
            anchor_generator=detection.anchor_utils.AnchorGenerator(
                tuple((x, int(x * 1.26), int(x * 1.59)) for x in (32, 64, 128, 256)), ((0.5, 1.0, 2.0),) * 4
            ),
            min_size=128,
            max_size=160,
            score_thresh=0.005,
            topk_candidates=50,
        )
    )
    sets = pictures((3, 128, 160), (3, 128, 160))
    settled(model, list(sets[0]))
    spread(model.head.classification_head.cls_logits)
    return Case(Detector(model), sets)


@maker
def fcos() -> Case:
    """FCOS with ResNet-18, whole."""
    detection = torchvision().models.detection
    model = made(
        lambda: detection.FCOS(
            _pyramid(),
            6,
            anchor_generator=detection.anchor_utils.AnchorGenerator(((8,), (16,), (32,), (64,)), ((1.0,),) * 4),
            min_size=128,
            max_size=160,
            score_thresh=0.005,
            topk_candidates=50,
        )
    )
    sets = pictures((3, 128, 160), (3, 128, 160))
    settled(model, list(sets[0]))
    spread(model.head.classification_head.cls_logits)
    return Case(Detector(model), sets)


@maker
def deeplabv3() -> Case:
    """DeepLabV3 with MobileNetV3."""
    segmentation = torchvision().models.segmentation
    model = made(lambda: segmentation.deeplabv3_mobilenet_v3_large(num_classes=6, **NO_WEIGHTS))
    return Case(Field(model, "out"), pictures((2, 3, 65, 65), (3, 3, 65, 65)), (({0: "batch"},),))


@maker
def lraspp() -> Case:
    """LR-ASPP with MobileNetV3."""
    segmentation = torchvision().models.segmentation
    model = made(lambda: segmentation.lraspp_mobilenet_v3_large(num_classes=6, **NO_WEIGHTS))
    return Case(Field(model, "out"), pictures((2, 3, 64, 96), (3, 3, 64, 96)), (({0: "batch"},),))


SWIN = {"patch_size": [4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "num_classes": 6}


@maker
def swin() -> Case:
    """torchvision's Swin: shifted windows whose mask is written region by region."""
    models = torchvision().models
    model = made(lambda: models.SwinTransformer(window_size=[7, 7], **SWIN))
    return Case(model, pictures((2, 3, 112, 112), (3, 3, 112, 112)), ({0: "batch"},))


@maker
def swin_v2() -> Case:
    """torchvision's Swin v2, for pictures that are no multiple of a window."""
    models = torchvision().models
    block = models.swin_transformer.SwinTransformerBlockV2
    merging = models.swin_transformer.PatchMergingV2
    model = made(lambda: models.SwinTransformer(window_size=[8, 8], block=block, downsample_layer=merging, **SWIN))
    return Case(model, pictures((2, 3, 96, 112), (3, 3, 96, 112)), ({0: "batch"},))


# ---- timm ----------------------------------------------------------------------------------------------------------


@maker
def timm_swin() -> Case:
    """timm's Swin."""
    import timm

    options = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 7, "num_classes": 6}
    model = made(lambda: timm.models.swin_transformer.SwinTransformer(img_size=112, **options))
    return Case(model, pictures((2, 3, 112, 112), (3, 3, 112, 112)), ({0: "batch"},))


@maker
def timm_swin_v2() -> Case:
    """timm's Swin v2."""
    import timm

    options = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 8, "num_classes": 6}
    model = made(lambda: timm.models.swin_transformer_v2.SwinTransformerV2(img_size=128, **options))
    return Case(model, pictures((2, 3, 128, 128), (3, 3, 128, 128)), ({0: "batch"},))


# ---- transformers: vision ------------------------------------------------------------------------------------------


def _resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 40],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


SMALL_DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 12,
    "num_labels": 6,
}


@maker
def detr() -> Case:
    """DETR with the mask of padded pixels as an input."""
    from transformers import DetrConfig, DetrForObjectDetection

    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=_resnet(), **SMALL_DETR
    )
    model = made(lambda: DetrForObjectDetection(config))
    torch.manual_seed(2)
    sets = []
    for batch in (2, 3):
        mask = torch.ones(batch, 96, 128, dtype=torch.int64)
        mask[0, :, 100:] = 0
        mask[1, 64:] = 0
        sets.append((torch.rand(batch, 3, 96, 128), mask))
    return Case(Field(model, "logits", "pred_boxes"), sets, (({0: "batch"}, {0: "batch"}),), {"args_1": (0, 1)})


@maker
def deformable_detr() -> Case:
    """Deformable DETR in two stages: masks over levels, proposals kept by a mask."""
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection

    config = DeformableDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=_resnet(),
        two_stage=True,
        with_box_refine=True,
        two_stage_num_proposals=12,
        **SMALL_DETR,
    )
    model = made(lambda: DeformableDetrForObjectDetection(config))
    return Case(Field(model, "logits", "pred_boxes"), pictures((2, 3, 96, 128), (3, 3, 96, 128)), (({0: "batch"},),))


@maker
def rt_detr() -> Case:
    """RT-DETR: anchors with invalid ones masked, queries chosen by TopK."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 40],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=32,
        encoder_in_channels=[24, 32, 40],
        encoder_ffn_dim=48,
        encoder_attention_heads=4,
        d_model=32,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=48,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_queries=12,
        num_labels=6,
        anchor_image_size=None,
        eval_size=None,
    )
    model = made(lambda: RTDetrForObjectDetection(config))
    sets = pictures((2, 3, 96, 128), (3, 3, 96, 128))
    spread(*(layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)))
    settled(model, *sets[0])
    return Case(Field(model, "logits", "pred_boxes"), sets, (({0: "batch"},),))


@maker
def mask2former() -> Case:
    """Mask2Former: an attention mask whose empty rows are opened by a masked write."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    config = Mask2FormerConfig(
        backbone_config=_swin_backbone(),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=48,
        dim_feedforward=48,
        encoder_layers=1,
        decoder_layers=3,
        num_attention_heads=4,
        num_queries=12,
        num_labels=6,
    )
    model = made(lambda: Mask2FormerForUniversalSegmentation(config))
    return Case(
        Field(model, "class_queries_logits", "masks_queries_logits"), pictures((1, 3, 96, 128), (1, 3, 96, 128))
    )


def _swin_backbone() -> Any:
    from transformers import SwinConfig

    return SwinConfig(
        image_size=96,
        embed_dim=16,
        depths=[1, 2, 1, 1],
        num_heads=[2, 2, 4, 4],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


@maker
def maskformer() -> Case:
    """MaskFormer with a Swin backbone."""
    from transformers import DetrConfig, MaskFormerConfig, MaskFormerForInstanceSegmentation

    decoder = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=_resnet(), **SMALL_DETR
    )
    config = MaskFormerConfig(
        backbone_config=_swin_backbone(),
        decoder_config=decoder,
        fpn_feature_size=32,
        mask_feature_size=32,
        num_labels=6,
    )
    model = made(lambda: MaskFormerForInstanceSegmentation(config))
    return Case(
        Field(model, "class_queries_logits", "masks_queries_logits"), pictures((1, 3, 96, 128), (1, 3, 96, 128))
    )


class Sam(nn.Module):
    """SAM's prompt encoder and mask decoder on a picture's embedding: points whose labels choose what is added."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embedding: Tensor, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(image_embeddings=embedding, input_points=points, input_labels=labels, multimask_output=True)
        return found.pred_masks, found.iou_scores


@maker
def sam() -> Case:
    """SAM with points as prompts."""
    from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig

    config = SamConfig(
        vision_config=SamVisionConfig(
            hidden_size=32,
            output_channels=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=128,
            global_attn_indexes=[0],
            mlp_dim=48,
            num_pos_feats=16,
        ),
        prompt_encoder_config=SamPromptEncoderConfig(hidden_size=32, image_size=128, mask_input_channels=4),
        mask_decoder_config=SamMaskDecoderConfig(
            hidden_size=32, mlp_dim=48, num_hidden_layers=1, num_attention_heads=2, iou_head_hidden_dim=32
        ),
    )
    model = made(lambda: SamModel(config))
    torch.manual_seed(2)
    sets = []
    for labels in ([[1, 0, -1], [1, 1, -10]], [[1, 1, 0], [0, -1, -1]]):
        sets.append((torch.randn(1, 32, 8, 8), torch.rand(1, 2, 3, 2) * 128, torch.tensor([labels])))
    return Case(Sam(model), sets, None, {"labels": (-1, 1)})


# ---- transformers: language ----------------------------------------------------------------------------------------


def _texts(*shapes: tuple[int, int], missing: int = 3) -> list[tuple[Tensor, ...]]:
    """Token ids and their attention masks; the last text of a batch is padded."""
    torch.manual_seed(2)
    sets = []
    for batch, length in shapes:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - missing :] = 0
        sets.append((words(batch, length), mask))
    return sets


SMALL_BERT: dict[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


@maker
def longformer() -> Case:
    """Longformer with global attention: overlapping chunks written into a band, global tokens found by NonZero."""
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(attention_window=[8, 8], max_position_embeddings=70, pad_token_id=1, **SMALL_BERT)
    model = made(lambda: LongformerModel(config, add_pooling_layer=False))
    torch.manual_seed(2)
    sets = []
    for places in ([0, 5], [0, 9]):
        whole = torch.zeros(2, 32, dtype=torch.int64)
        whole[:, places] = 1
        mask = torch.ones(2, 32, dtype=torch.int64)
        mask[1, 27:] = 0
        sets.append((words(2, 32), mask, whole))
    return Case(Longformer(model), sets, None, {"mask": (0, 1), "whole": (0, 1)})


class Longformer(nn.Module):
    """Longformer by position of its arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
        return self.model(ids, attention_mask=mask, global_attention_mask=whole).last_hidden_state


class LocalLongformer(nn.Module):
    """Longformer with local attention alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(ids, attention_mask=mask).last_hidden_state


@maker
def longformer_local() -> Case:
    """Longformer with its sliding windows alone, of any batch."""
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(attention_window=[8, 8], max_position_embeddings=70, pad_token_id=1, **SMALL_BERT)
    model = made(lambda: LongformerModel(config, add_pooling_layer=False))
    dynamic = ({0: "batch"}, {0: "batch"})
    return Case(LocalLongformer(model), _texts((2, 32), (3, 32)), dynamic, {"mask": (0, 1)})


@maker
def big_bird() -> Case:
    """BigBird with block-sparse attention: random blocks, drawn when it is exported."""
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        block_size=8, num_random_blocks=2, max_position_embeddings=256, attention_type="block_sparse", **SMALL_BERT
    )
    model = made(lambda: BigBirdModel(config, add_pooling_layer=False))
    return Case(LocalLongformer(model), _texts((2, 96), (2, 96)), None, {"mask": (0, 1)})


class Step(nn.Module):
    """One step of a decoder with the keys and values of the steps before: of its own, and of the encoder's text."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(self, token: Tensor, hidden: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        own, other = DynamicCache(), DynamicCache()
        for layer in range(self.layers):
            keys, values, far_keys, far_values = past[4 * layer : 4 * layer + 4]
            own.update(keys, values, layer)
            other.update(far_keys, far_values, layer)
        cache = EncoderDecoderCache(own, other)
        found = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=mask,
            decoder_input_ids=token,
            past_key_values=cache,
            use_cache=True,
        )
        after = found.past_key_values.self_attention_cache
        return (found.logits, *(t for layer in after.layers for t in (layer.keys, layer.values)))


def _step_sets(shapes: Sequence[tuple[int, int, int]], width: int, heads: int, layers: int) -> list[Any]:
    """Arguments of a Step: (batch, words written, words of the encoder's text)."""
    torch.manual_seed(2)
    sets = []
    for batch, written, length in shapes:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - 2 :] = 0
        past = []
        for _ in range(layers):
            past += [torch.randn(batch, heads, written, width // heads) for _ in range(2)]
            past += [torch.randn(batch, heads, length, width // heads) for _ in range(2)]
        sets.append((words(batch, 1), torch.randn(batch, length, width), mask, *past))
    return sets


def _step_dims(layers: int) -> Any:
    past = ({0: "batch", 2: "written"},) * 2 + ({0: "batch", 2: "length"},) * 2
    return ({0: "batch"}, {0: "batch", 1: "length"}, {0: "batch", 1: "length"}, past * layers)


@maker
def t5_step() -> Case:
    """A step of T5's decoder with its cache, of any batch and lengths."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    model = made(lambda: T5ForConditionalGeneration(config))
    sets = _step_sets([(2, 5, 9), (3, 7, 6)], 32, 4, 2)
    return Case(Step(model, 2), sets, _step_dims(2), {"mask": (0, 1)})


@maker
def bart_step() -> Case:
    """A step of BART's decoder with its cache, of any batch and lengths."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=TOKENS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
    )
    model = made(lambda: BartForConditionalGeneration(config))
    sets = _step_sets([(2, 5, 9), (3, 7, 6)], 32, 4, 2)
    return Case(Step(model, 2), sets, _step_dims(2), {"mask": (0, 1)})


class Teacher(nn.Module):
    """An encoder and decoder in one: the decoder's input is the labels, shifted by a write."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return self.model(ids, attention_mask=mask, labels=labels, use_cache=False).logits


@maker
def bart_labels() -> Case:
    """BART with labels: shifted to the right by slice writes, -100 filled by a mask."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=TOKENS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
    )
    model = made(lambda: BartForConditionalGeneration(config))
    sets = [(*one, words(one[0].shape[0], 6)) for one in _texts((2, 9), (3, 12))]
    sets[0][2][0, 4:] = -100
    batch = {0: "batch", 1: "length"}
    return Case(Teacher(model), sets, (batch, batch, {0: "batch"}), {"mask": (0, 1), "labels": (0, TOKENS - 1)})


class StaticStep(nn.Module):
    """One step of a decoder whose keys and values stand in tensors of fixed length, written at a position."""

    def __init__(self, model: nn.Module, config: Any, length: int) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.length = length

    def forward(self, token: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers.cache_utils import StaticCache

        cache = StaticCache(config=self.config, max_cache_len=self.length)
        for layer, (keys, values) in zip(cache.layers, zip(past[::2], past[1::2], strict=True), strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys.clone(), values.clone()
            layer.cumulative_length = position.clone()
        found = self.model(token, position_ids=position.reshape(1, 1), past_key_values=cache, use_cache=True)
        return (found.logits, *(t for layer in cache.layers for t in (layer.keys, layer.values)))


@maker
def llama_static_cache() -> Case:
    """Llama with a static cache: index_copy_ at the position of the token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_key_value_heads=2, max_position_embeddings=32, **SMALL_BERT)
    model = made(lambda: LlamaForCausalLM(config))
    torch.manual_seed(2)
    sets = [
        (words(2, 1), torch.tensor([position]), *(torch.randn(2, 2, 16, 8) for _ in range(4))) for position in (5, 11)
    ]
    return Case(StaticStep(model, config, 16), sets, None, {"position": (0, 15)})


@maker
def whisper_step() -> Case:
    """A step of Whisper's decoder with its cache."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=TOKENS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_target_positions=64,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = made(lambda: WhisperForConditionalGeneration(config))
    sets = _step_sets([(2, 5, 9), (3, 7, 6)], 32, 4, 2)
    return Case(Step(model, 2), sets, _step_dims(2), {"mask": (0, 1)})


class Plain(nn.Module):
    """A model's first result."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, **self.options)[0]


@maker
def mamba() -> Case:
    """Mamba's scan, step by step."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=TOKENS, hidden_size=32, state_size=4, num_hidden_layers=2, time_step_rank=4)
    model = made(lambda: MambaModel(config))
    torch.manual_seed(2)
    return Case(Plain(model, use_cache=False), [(words(2, 8),), (words(2, 8),)])


@maker
def rwkv() -> Case:
    """RWKV: the output of every step written into a tensor."""
    from transformers import RwkvConfig, RwkvModel

    config = RwkvConfig(
        vocab_size=TOKENS, context_length=16, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32
    )
    model = made(lambda: RwkvModel(config))
    torch.manual_seed(2)
    return Case(Plain(model, use_cache=False), [(words(2, 8),), (words(2, 8),)])


@maker
def reformer() -> Case:
    """Reformer with hashing attention: sorted buckets and their inverse by scatter."""
    from transformers import ReformerConfig, ReformerModel

    config = ReformerConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        attention_head_size=8,
        num_attention_heads=4,
        feed_forward_size=48,
        attn_layers=["local", "lsh"],
        num_buckets=4,
        num_hashes=2,
        hash_seed=3,
        lsh_attn_chunk_length=8,
        local_attn_chunk_length=8,
        axial_pos_shape=[4, 8],
        axial_pos_embds_dim=[16, 16],
        is_decoder=False,
    )
    model = made(lambda: ReformerModel(config))
    torch.manual_seed(2)
    return Case(Plain(model), [(words(2, 32),), (words(2, 32),)])


@maker
def switch_transformer() -> Case:
    """Switch Transformers: experts that write what they made at the tokens that chose them."""
    from transformers import SwitchTransformersConfig, SwitchTransformersEncoderModel

    config = SwitchTransformersConfig(
        vocab_size=TOKENS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_sparse_encoder_layers=1,
        num_heads=4,
        num_experts=4,
        expert_capacity=8,
    )
    model = made(lambda: SwitchTransformersEncoderModel(config))
    torch.manual_seed(2)
    return Case(LocalLongformer(model), _texts((2, 8), (2, 8)), None, {"mask": (0, 1)})


@maker
def mixtral() -> Case:
    """Mixtral: experts with index_add."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **SMALL_BERT)
    config._experts_implementation = "batched_mm"  # the default is an operator that no exporter knows
    model = made(lambda: MixtralForCausalLM(config))
    torch.manual_seed(2)
    return Case(Plain(model, use_cache=False), [(words(2, 8),), (words(2, 8),)])


# ---- transformers: audio -------------------------------------------------------------------------------------------


def _vits() -> Any:
    from transformers import VitsConfig, VitsModel

    config = VitsConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=48,
        flow_size=32,
        spectrogram_bins=33,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        depth_separable_num_layers=2,
        duration_predictor_num_flows=3,
    )

    def build() -> nn.Module:
        model = VitsModel(config)
        for flow in model.duration_predictor.flows:
            if hasattr(flow, "conv_proj"):  # the library starts it at 0: a spline that does nothing
                nn.init.normal_(flow.conv_proj.weight, std=0.5)
                nn.init.normal_(flow.conv_proj.bias, std=0.5)
        return model

    return made(build)


class SplineFlow(nn.Module):
    """VITS's stochastic duration predictor with its noise as an input: the spline flows, run in reverse."""

    def __init__(self, predictor: nn.Module) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, hidden: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        predictor = self.predictor
        inputs = predictor.conv_proj(predictor.conv_dds(predictor.conv_pre(hidden), mask)) * mask
        flows = list(reversed(predictor.flows))
        latents = noise
        for flow in [*flows[:-2], flows[-1]]:
            latents = torch.flip(latents, [1])
            latents, _ = flow(latents, mask, global_conditioning=inputs, reverse=True)
        return latents[:, :1]


def _spline_sets(*shapes: tuple[int, int]) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(2)
    sets = []
    for batch, length in shapes:
        mask = torch.ones(batch, 1, length)
        mask[-1, :, length - 2 :] = 0
        noise = 4 * torch.randn(batch, 2, length)  # inside and outside the splines' interval
        sets.append((torch.randn(batch, 32, length), mask, noise))
    return sets


@maker
def vits_spline_flow() -> Case:
    """The spline flows of VITS, of any batch and length: masked writes of packed values."""
    dims = {0: "batch", 2: "length"}
    return Case(SplineFlow(_vits().duration_predictor), _spline_sets((2, 9), (3, 14)), (dims, dims, dims))


class Vits(nn.Module):
    """The whole of VITS without noise: how long the speech is depends on what the predictor says."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.model.noise_scale = 0.0
        self.model.noise_scale_duration = 0.0

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(ids, attention_mask=mask).waveform


@maker
def vits() -> Case:
    """VITS whole, from phonemes to a waveform."""
    torch.manual_seed(2)
    sets = [(words(1, n, 40), torch.ones(1, n, dtype=torch.int64)) for n in (9, 9)]
    return Case(Vits(_vits()), sets, None, {"mask": (0, 1)})


@maker
def conformer() -> Case:
    """Wav2Vec2-Conformer with relative positions: the shift by padding and reshaping."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    config = Wav2Vec2ConformerConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=[16, 16],
        conv_stride=[5, 4],
        conv_kernel=[10, 4],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        position_embeddings_type="relative",
        max_source_positions=64,
    )
    model = made(lambda: Wav2Vec2ConformerModel(config))
    torch.manual_seed(2)
    sets = []
    for length in (700, 620):
        mask = torch.ones(2, 700, dtype=torch.int64)
        mask[1, length - 100 :] = 0
        sets.append((torch.randn(2, 700), mask))
    return Case(LocalLongformer(model), sets, None, {"mask": (0, 1)})


# ---- written by hand, as their libraries write them -----------------------------------------------------------------


class PillarScatter(nn.Module):
    """PointPillars' scatter as OpenPCDet and mmdet3d write it: pillars onto the canvas of their sample."""

    def __init__(self, channels: int, ny: int, nx: int, batch: int) -> None:
        super().__init__()
        self.channels, self.ny, self.nx, self.batch = channels, ny, nx, batch
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)

    def forward(self, features: Tensor, coordinates: Tensor) -> Tensor:
        canvases = []
        for number in range(self.batch):
            canvas = torch.zeros(self.channels, self.nx * self.ny, dtype=features.dtype, device=features.device)
            mask = coordinates[:, 0] == number
            these = coordinates[mask, :]
            indices = these[:, 1] + these[:, 2] * self.nx + these[:, 3]
            indices = indices.type(torch.long)
            pillars = features[mask, :].t()
            canvas[:, indices] = pillars
            canvases.append(canvas)
        spatial = torch.stack(canvases, 0).view(self.batch, self.channels, self.ny, self.nx)
        return self.conv(spatial)


def _pillars(*counts: int) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(2)
    sets = []
    for count in counts:
        cells = torch.randperm(2 * 12 * 16)[:count]  # a pillar stands for one cell
        zero = torch.zeros(count, dtype=torch.int64)
        coordinates = torch.stack([cells // 192, zero, cells % 192 // 16, cells % 16], 1)
        sets.append((torch.randn(count, 16), coordinates))
    return sets


@maker
def point_pillars() -> Case:
    """PointPillars' scatter for a batch of two, of any number of pillars."""
    model = made(lambda: PillarScatter(16, 12, 16, 2))
    return Case(model, _pillars(60, 90), ({0: "pillars"}, {0: "pillars"}), {"coordinates": (0, 1)})


class PillarScatterOne(PillarScatter):
    """The scatter of one sample, as deployments write it."""

    def forward(self, features: Tensor, coordinates: Tensor) -> Tensor:
        canvas = torch.zeros(self.channels, self.nx * self.ny, dtype=features.dtype, device=features.device)
        indices = coordinates[:, 2] * self.nx + coordinates[:, 3]
        canvas[:, indices.long()] = features.t()
        return self.conv(canvas.view(1, self.channels, self.ny, self.nx))


@maker
def point_pillars_one() -> Case:
    """PointPillars' scatter for one sample, of any number of pillars."""
    model = made(lambda: PillarScatterOne(16, 12, 16, 1))
    return Case(model, _pillars(60, 90), ({0: "pillars"}, {0: "pillars"}), {"coordinates": (0, 11)})


class YoloDecode(nn.Module):
    """The decoding of YOLO's heads that writes the grid into its result, as YOLOv5 and its descendants do."""

    def __init__(self, anchors: Sequence[Sequence[int]], classes: int, stride: int) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.tensor(anchors, dtype=torch.float32))
        self.stride = stride
        self.outputs = 5 + classes
        self.conv = nn.Conv2d(8, len(anchors) * self.outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        batch, _, ny, nx = x.shape
        y = x.view(batch, -1, self.outputs, ny, nx).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
        rows, columns = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
        grid = torch.stack((columns, rows), 2).view(1, 1, ny, nx, 2)
        y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + grid) * self.stride
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, -1, 1, 1, 2)
        return y.view(batch, -1, self.outputs)


@maker
def yolo_decode() -> Case:
    """YOLO's decoding, of any batch and size."""
    model = made(lambda: YoloDecode([[10, 13], [16, 30], [33, 23]], 4, 8))
    return Case(model, pictures((2, 8, 6, 5), (3, 8, 4, 9)), ({0: "batch", 2: "height", 3: "width"},))


class GraphNet(nn.Module):
    """Two rounds of messages along edges, then a mean over each graph, as PyTorch Geometric's scatter writes them."""

    def __init__(self, width: int, graphs: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.GRUCell(width, width)
        self.graphs = graphs

    def forward(self, nodes: Tensor, edges: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            source, target = edges[0], edges[1]
            sent = self.message(torch.cat([nodes[source], nodes[target]], 1)).relu()
            total = torch.zeros_like(nodes).scatter_add_(0, target.unsqueeze(1).expand_as(sent), sent)
            nodes = self.update(total, nodes)
        count = torch.zeros(self.graphs).index_add_(0, owner, torch.ones_like(owner, dtype=nodes.dtype))
        mean = torch.zeros(self.graphs, nodes.shape[1]).index_add_(0, owner, nodes) / count.clamp(min=1).unsqueeze(1)
        largest = torch.full((self.graphs, nodes.shape[1]), -1e9).scatter_reduce_(
            0, owner.unsqueeze(1).expand_as(nodes), nodes, "amax", include_self=True
        )
        return mean, largest


@maker
def graph_net() -> Case:
    """A graph network, of any number of nodes and edges."""
    model = made(lambda: GraphNet(8, 3))
    torch.manual_seed(2)
    sets = []
    for nodes, edges in ((7, 20), (11, 31)):
        sets.append((torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges)), torch.randint(0, 3, (nodes,))))
    dims = ({0: "nodes"}, {1: "edges"}, {0: "nodes"})
    return Case(model, sets, dims, {"edges": (0, 6), "owner": (0, 2)})
