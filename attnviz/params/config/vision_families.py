"""Vision encoders: their configs, and the designs that these describe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from attnviz.params.config.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
)
from attnviz.params.config.family import Adapter, Reader
from attnviz.params.config.fields import Fields, UnclaimedError
from attnviz.params.specs import Dense, LayerGroup, ModelSpec, Part, StackSpec, Table

__all__ = ["VISION_FAMILIES", "VisionRow", "vision"]


@dataclass(frozen=True)
class VisionRow:
    """How a vision transformer differs from ViT.

    tokens: learned vectors before the patches, with their place in the position table.
    mask_token: a vector that takes the place of hidden patches, if the config wants it.
    scaled: learned scales behind attention and feed-forward part.
    ratio: the inner width is told as a multiple of the model's.
    pooled: the bare model has a pooler.
    """

    tokens: tuple[str, ...] = ("class token",)
    mask_token: bool = False
    scaled: bool = False
    ratio: bool = False
    pooled: bool = True


def vision(fields: Fields, row: VisionRow, purpose: Literal["bare", "classifying"]) -> ModelSpec:
    """The design of the backbone, or of the classifier on it."""
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if fields.flag("use_swiglu_ffn"):
        raise UnclaimedError
    scales = tuple(Table(f"scale {n}", 1, width) for n in (1, 2)) if row.scaled else ()
    layer = block(
        square_attention(fields, width, heads, bias=fields.flag("qkv_bias"), output_bias=True),
        feed_forward=plain_feed_forward(width, _inner(fields, row, width)),
        norms=2,
        parts=scales,
    )
    patches = _patches(fields)
    tokens = patches + len(row.tokens)
    stack = StackSpec(
        name="vision",
        groups=(LayerGroup(layer, fields.whole("num_hidden_layers")),),
        causal=False,
        embeddings=_embeddings(fields, row, width, patches, tokens),
        norms=(layer_norm("final norm", width),),
        parts=_ends(fields, row, width, purpose),
        tokens=tokens,
        max_positions=tokens,
    )
    return ModelSpec(name=fields.name, source="", stacks=(stack,))


def _inner(fields: Fields, row: VisionRow, width: int) -> int:
    if not row.ratio:
        return fields.whole("intermediate_size")
    ratio = fields.get("mlp_ratio")
    return int(width * ratio)


def _patches(fields: Fields) -> int:
    image, patch = fields.get("image_size"), fields.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int):
        raise UnclaimedError
    return (fields.whole("image_size") // fields.whole("patch_size")) ** 2


def _embeddings(
    fields: Fields, row: VisionRow, width: int, patches: int, tokens: int
) -> tuple[Part, ...]:
    area = fields.whole("num_channels") * fields.whole("patch_size") ** 2
    learned = [*row.tokens]
    if row.mask_token and fields.flag("use_mask_token"):
        learned.append("mask token")
    return (
        Dense("patch embedding", area, width, bias=True, places=patches),
        Table("position embedding", tokens, width),
        *(Table(label, 1, width) for label in learned),
    )


def _ends(
    fields: Fields, row: VisionRow, width: int, purpose: Literal["bare", "classifying"]
) -> tuple[Part, ...]:
    if purpose == "classifying":
        given = fields.get("id2label")
        labels = len(given) if isinstance(given, dict) else fields.whole("num_labels", least=0)
        return (Dense("classifier", width, labels, bias=True, places=1),) if labels else ()
    if not row.pooled:
        return ()
    outwards = fields.optional("pooler_output_size") or width
    return (Dense("pooler", width, outwards, bias=True, places=1),)


def _vision(prefix: str, row: VisionRow, classifier: bool, **more: Any) -> Adapter:
    classes: dict[str, Reader] = {f"{prefix}Model": partial(vision, row=row, purpose="bare")}
    if classifier:
        read = partial(vision, row=row, purpose="classifying")
        classes[f"{prefix}ForImageClassification"] = read
    defaults = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "num_labels": 2,
        **more,
    }
    return Adapter(classes, f"{prefix}Model", defaults)


VISION_FAMILIES = {
    "vit": _vision("ViT", VisionRow(), classifier=True),
    "deit": _vision(
        "DeiT", VisionRow(tokens=("class token", "distillation token")), classifier=True
    ),
    "dinov2": _vision(
        "Dinov2",
        VisionRow(mask_token=True, scaled=True, ratio=True, pooled=False),
        classifier=False,
        patch_size=14,
        mlp_ratio=4,
        use_mask_token=True,
    ),
}
