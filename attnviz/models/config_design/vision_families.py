"""The vision transformers, each with its sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnviz.models.config_design.family import Family, Reader
from attnviz.models.config_design.vision import VisionRow, vision

__all__ = ["VISION_FAMILIES"]


def _vision(prefix: str, row: VisionRow, classifier: bool, **more: Any) -> Family:
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
    return Family(classes, f"{prefix}Model", defaults)


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
