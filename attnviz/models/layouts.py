"""Where the patches of pictures stand among a model's tokens, read from its config and inputs.

A vision tower runs the patches of a picture row by row, in blocks, or in windows, behind class
tokens and registers, and a vision-language model has them among the tokens of its prompt. What a
config or an input says decides; ``CLASS_TOKENS`` names families only for what neither says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UnsupportedError
from attnviz.token_layout import WHOLE, Box, Grid, TokenKind, TokenLayout

CLASS_TOKENS: Mapping[str, int] = {
    "beit": 1,
    "clip_vision_model": 1,
    "deit": 2,  # the second is for distillation
    "dinov2": 1,
    "dinov2_with_registers": 1,
    "dinov3_vit": 1,
    "idefics3_vision": 0,
    "ijepa": 0,
    "internvl_vision": 1,
    "metaclip_2_vision_model": 1,
    "pixtral": 0,
    "qwen2_5_vl_vision": 0,
    "qwen2_vl_vision": 0,
    "qwen3_5_vision": 0,
    "qwen3_vl_moe_vision": 0,
    "qwen3_vl_vision": 0,
    "siglip2_vision_model": 0,
    "siglip_vision_model": 0,
    "smolvlm_vision": 0,
    "vit": 1,
    "vit_msn": 1,
}
"""The number of class tokens before the patches, by the ``model_type`` of a tower's config."""

_CHOOSE = "choose a ViT, CLIP, SigLIP or DINO"

_WINDOWS = f"has windows that shift from layer to layer, no map of a whole picture: {_CHOOSE}"

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("swin", "swinv2", "donut-swin", "maskformer-swin"), _WINDOWS),
    **dict.fromkeys(("hiera", "dinat", "pvt", "pvt_v2", "segformer", "mgp-str"), _WINDOWS),
    **dict.fromkeys(
        ("convnext", "convnextv2", "dinov3_convnext", "resnet", "bit", "regnet", "efficientnet"),
        f"is a convolutional network, which has no attention: {_CHOOSE}",
    ),
    "vit_mae": "runs a random part of the patches in a random order: open its encoder as a ViT",
}
"""Why a tower has no layout, and what to do, by the ``model_type`` of its config."""


def tower_layouts(
    config: Any, inputs: Mapping[str, Any], boxes: Sequence[Box] = ()
) -> tuple[TokenLayout, ...]:
    """Return the tokens of a vision tower for each picture of a batch, in the order of its run.

    A model that runs all pictures as one sequence has the tokens of the first picture first.

    config: of the tower, or of the model that has it as ``vision_config``.
    inputs: what the model's processor returned, as tensors or arrays: ``pixel_values``, and
        ``image_grid_thw``, ``spatial_shapes``, ``pixel_attention_mask`` or ``image_sizes`` where it
        has them. Tiles of a picture count as pictures of their own.
    boxes: the part of each picture that the model sees, see ``seen_box``; the whole by default.

    Raises UnsupportedError for a model without a map of the whole picture, or an unknown one.
    """
    config = getattr(config, "vision_config", None) or config
    family = require_layout(config)
    before: tuple[TokenKind, ...] = (
        *("cls",) * CLASS_TOKENS[family],
        *("register",) * (getattr(config, "num_register_tokens", None) or 0),
    )
    patch, shape = _pair(config.patch_size), tuple(inputs["pixel_values"].shape)
    size = shape[-2:]
    own_boxes = chain(boxes, repeat(WHOLE))
    if "image_grid_thw" in inputs:
        merge, window = config.spatial_merge_size, _window(config)
        grids = np.asarray(inputs["image_grid_thw"]).tolist()
        return tuple(
            _layout(before, _in_blocks(*grid, merge, window), at, next(own_boxes))
            for at, grid in enumerate(grids)
        )
    if "spatial_shapes" in inputs:
        return tuple(
            _layout(before, _raster(*own), at, next(own_boxes), padding=shape[1] - own[0] * own[1])
            for at, own in enumerate(np.asarray(inputs["spatial_shapes"]).tolist())
        )
    if "pixel_attention_mask" in inputs:
        masks = np.asarray(inputs["pixel_attention_mask"], bool).reshape(-1, *size)
        seen = [mask for mask in masks if mask.any()]  # pictures of padding do not run
        return tuple(
            _masked(before, mask, patch, at, next(own_boxes)) for at, mask in enumerate(seen)
        )
    sizes = [size] * prod(shape[:-3])
    if family == "pixtral" and "image_sizes" in inputs:
        sizes = np.asarray(inputs["image_sizes"]).tolist()
    return tuple(
        _layout(
            before,
            _raster(own[0] // patch[0], own[1] // patch[1]),
            at,
            _whole_patches(next(own_boxes), own, patch),
        )
        for at, own in enumerate(sizes)
    )


def require_layout(config: Any) -> str:
    """Return the family of a tower; raise UnsupportedError if its tokens have no known place.

    config: of the tower, or of the model that has it as ``vision_config``.
    """
    config = getattr(config, "vision_config", None) or config
    family = str(getattr(config, "model_type", None))
    if family not in CLASS_TOKENS:
        why = _REFUSED.get(family, f"has no known order of patches: {_CHOOSE}")
        raise UnsupportedError(f"the vision model {family!r} {why}")
    return family


def seen_box(processor: Any, width: int, height: int) -> Box:
    """Return the part of a picture that a model sees after its processor's padding and cropping.

    processor: the image processor, read for its settings. width, height: of the picture in pixels.
    The box reaches beyond the picture where the processor pads it.
    """
    left, top, wide, high = 0, 0, width, height
    if type(processor).__name__.startswith("LlavaImageProcessor") and processor.do_pad:
        wide = high = max(width, height)
        left, top = -((wide - width) // 2), -((high - height) // 2)
    box = (left / width, top / height, (left + wide) / width, (top + high) / height)
    if not getattr(processor, "do_center_crop", False):
        return box
    size, crop = (dict(processor.size) if processor.do_resize else {}), dict(processor.crop_size)
    short = size.get("shortest_edge")
    if short:
        wide, high = (int(short * side / min(wide, high)) for side in (wide, high))
    else:
        wide, high = size.get("width", wide), size.get("height", high)
    sides = ((wide, crop["width"]), (high, crop["height"]))
    (left, right), (top, low) = (((s - c) // 2 / s, ((s - c) // 2 + c) / s) for s, c in sides)
    return _part(box, (left, top, right, low))


def _part(box: Box, inner: Box) -> Box:
    """Return a part of a box, which is given in shares of the box, in shares of the picture."""
    left, top, wide, high = box[0], box[1], box[2] - box[0], box[3] - box[1]
    x, y, right, low = inner
    return left + wide * x, top + high * y, left + wide * right, top + high * low


_Cells = tuple[int, int, NDArray[np.intp], NDArray[np.intp]]
"""The rows and columns of a grid, and the row and column of each of its tokens."""


def _pair(size: Any) -> tuple[int, int]:
    """Return the height and the width of a patch."""
    high, wide = (size, size) if isinstance(size, int) else size
    return int(high), int(wide)


def _raster(rows: int, columns: int) -> _Cells:
    row, column = np.indices((rows, columns)).reshape(2, -1)
    return rows, columns, row, column


def _window(config: Any) -> int:
    """Return the side of an attention window in merged patches, 0 without windows."""
    if not hasattr(config, "fullatt_block_indexes"):
        return 0
    return int(config.window_size // config.spatial_merge_size // config.patch_size)


def _in_blocks(frames: int, rows: int, columns: int, merge: int, window: int) -> _Cells:
    """Return patches in blocks of merge × merge, the blocks window by window if there are any."""
    frame, row, column = np.indices((frames, rows, columns)).reshape(3, -1)
    keys = [column, row, column // merge, row // merge, frame]
    if window:
        keys[4:] = [column // (merge * window), row // (merge * window), frame]
    order = np.lexsort(keys)
    return rows, columns, row[order], column[order]


def _masked(
    before: tuple[TokenKind, ...],
    mask: NDArray[np.bool_],
    patch: tuple[int, int],
    picture: int,
    box: Box,
) -> TokenLayout:
    """Return the layout of a picture that is padded at its right and bottom.

    mask: (pixel row, pixel column) whether a pixel is of the picture.
    """
    high, wide = (side // step for side, step in zip(mask.shape, patch, strict=True))
    cut = mask[: high * patch[0], : wide * patch[1]]
    seen = cut.reshape(high, patch[0], wide, patch[1]).any((1, 3))
    rows, columns = int(seen.any(1).sum()), int(seen.any(0).sum())
    layout = _layout(before, (rows, columns, *_raster(high, wide)[2:]), picture, box)
    padding = np.concatenate([np.zeros(len(before), bool), ~seen.reshape(-1)])
    kinds = np.where(padding, "padding", np.asarray(layout.kinds)).tolist()
    places = (np.where(padding, -1, own) for own in (layout.grid, layout.row, layout.column))
    return TokenLayout(tuple(kinds), layout.grids, *places)


def _whole_patches(box: Box, size: Sequence[int], patch: tuple[int, int]) -> Box:
    """Return the part of a box that whole patches cover; no pixel beyond the last is read."""
    high, wide = (side // step * step / side for side, step in zip(size, patch, strict=True))
    return _part(box, (0.0, 0.0, wide, high))


def _layout(
    before: tuple[TokenKind, ...], cells: _Cells, picture: int, box: Box, *, padding: int = 0
) -> TokenLayout:
    rows, columns, row, column = cells
    kinds = (*before, *("patch",) * len(row), *("padding",) * padding)
    none = np.full(len(kinds), -1, np.intp)
    places = [none.copy() for _ in range(3)]
    for own, values in zip(places, (0, row, column), strict=True):
        own[len(before) : len(before) + len(row)] = values
    return TokenLayout(kinds, (Grid(picture, rows, columns, box),), *places)
