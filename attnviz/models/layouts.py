"""Where the patches of pictures stand among a model's tokens, read from its config and inputs.

A vision tower runs the patches of a picture row by row, in blocks, or in windows, behind class
tokens and registers, and a vision-language model has them among the tokens of its prompt. What a
config or an input says decides; ``CLASS_TOKENS`` names families only for what neither says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from math import ceil, prod
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

READS_BOTH_WAYS = ("paligemma",)
"""The ``model_type`` of models whose prompt sees itself both ways, and what they write does not."""

_CHOOSE = "choose a ViT, CLIP, SigLIP or DINO"

_WINDOWS = f"has windows that shift from layer to layer, no map of a whole image: {_CHOOSE}"

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("swin", "swinv2", "donut-swin", "maskformer-swin", "hiera"), _WINDOWS),
    **dict.fromkeys(
        ("convnext", "convnextv2", "dinov3_convnext", "resnet"),
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
    before: list[TokenKind] = ["cls"] * CLASS_TOKENS[family]
    before += ["register"] * (getattr(config, "num_register_tokens", None) or 0)
    patch, shape = _pair(config.patch_size), tuple(inputs["pixel_values"].shape)
    size = shape[-2:]
    own_boxes = chain(boxes, repeat(WHOLE))
    if "image_grid_thw" in inputs:
        merge, window = config.spatial_merge_size, 0
        if hasattr(config, "fullatt_block_indexes"):  # windows of so many merged patches a side
            window = int(config.window_size // merge // config.patch_size)
        grids = np.asarray(inputs["image_grid_thw"]).tolist()
        return tuple(
            _layout(before, _in_blocks((frames, rows, columns), merge, window), at, next(own_boxes))
            for at, (frames, rows, columns) in enumerate(grids)
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
    """Return a tower's family by its config; UnsupportedError if its tokens have no known place."""
    config = getattr(config, "vision_config", None) or config
    family = str(getattr(config, "model_type", None))
    if family not in CLASS_TOKENS:
        why = _REFUSED.get(family, f"has no known order of patches: {_CHOOSE}")
        raise UnsupportedError(f"the vision model {family!r} {why}")
    return family


def prompt_layout(
    config: Any,
    input_ids: Any,
    inputs: Mapping[str, Any],
    picture_sizes: Sequence[tuple[int, int]],
    boxes: Sequence[Box] = (),
) -> TokenLayout:
    """Return the kind and the place of each token of a vision-language model's expanded prompt.

    config: of the whole model. input_ids: (token,) of one prompt, in which each picture has as many
        image tokens as the model has features of it.
    inputs: what the processor returned beside them. Models whose processor cuts a picture into
        ``rows`` and ``cols`` of tiles (Idefics3, SmolVLM) need these two as well.
    picture_sizes: the width and the height of each picture in pixels.
    boxes: the part of each picture that the processor leaves, see ``seen_box``.

    A picture that is read as tiles and as a whole has two grids, ``tiles`` and ``overview``. Boxes
    of tiles take each tile as evenly filled with patches. Raises UnsupportedError if the image
    tokens of the prompt are not those of a known order.
    """
    token = getattr(config, "image_token_id", None)
    ids = np.asarray(input_ids).reshape(-1)
    images = np.flatnonzero(ids == token)
    runs = np.split(images, np.flatnonzero(np.diff(images) > 1) + 1) if len(images) else []
    own_boxes = list(islice(chain(boxes, repeat(WHOLE)), len(picture_sizes)))
    parts = list(_parts(config, inputs, picture_sizes, own_boxes, [len(run) for run in runs]))
    if sum(map(len, parts)) != len(images):
        raise UnsupportedError(
            f"the prompt has {len(images):,} image tokens, but {len(picture_sizes)} images of "
            f"{config.model_type!r} take {sum(map(len, parts)):,}: take the prompt from the "
            "model's own processor"
        )
    whole = _joined(parts)
    kinds = np.full(len(ids), "text", object)
    kinds[images] = whole.kinds
    places = np.full((3, len(ids)), -1, np.intp)
    places[:, images] = whole.grid, whole.row, whole.column
    if config.vision_config.model_type == "pixtral":  # a token of the text stands between two rows
        between = (kinds[1:-1] == "text") & (kinds[:-2] == "patch") & (kinds[2:] == "patch")
        same = places[0][:-2] == places[0][2:]
        kinds[1:-1][between & same] = "newline"
    return TokenLayout(tuple(kinds.tolist()), whole.grids, *places)


def _parts(
    config: Any,
    inputs: Mapping[str, Any],
    sizes: Sequence[tuple[int, int]],
    boxes: Sequence[Box],
    runs: Sequence[int],
) -> Iterator[TokenLayout]:
    """Yield the layouts of the image tokens, which stand in runs of some lengths in the prompt."""
    tower = config.vision_config
    high, wide = _pair(tower.patch_size)
    merge = getattr(config, "spatial_merge_size", None) or getattr(tower, "spatial_merge_size", 1)
    if "image_grid_thw" in inputs:
        for at, grid in enumerate(np.asarray(inputs["image_grid_thw"]).tolist()):
            cells = _in_blocks((grid[0], grid[1] // merge, grid[2] // merge), 1, 0)
            yield _layout((), cells, at, boxes[at])
        return
    if tower.model_type == "pixtral":
        for at, (tall, broad) in enumerate(np.asarray(inputs["image_sizes"]).tolist()):
            cells = _raster(tall // high // merge, broad // wide // merge)
            yield _layout((), cells, at, boxes[at])
        return
    pixels = tuple(inputs["pixel_values"].shape[-2:])
    rows, columns = pixels[0] // high, pixels[1] // wide
    if getattr(config, "image_grid_pinpoints", None):
        groups = np.asarray(inputs.get("batch_num_images", [1] * len(sizes))).tolist()
        tiled = [number == 1 for number in groups for _ in range(number)]  # others are read once
        for at, size in enumerate(sizes):
            yield from _unpadded(config, at, size, rows, boxes[at], tiled=tiled[at])
    elif "rows" in inputs:
        rows, columns = rows // config.scale_factor, columns // config.scale_factor
        tiles = (np.asarray(inputs[name]).reshape(-1).tolist() for name in ("rows", "cols"))
        for at, grid in enumerate(zip(*tiles, strict=True)):
            yield from _tiled(at, grid, (rows, columns), boxes[at])
    elif hasattr(config, "downsample_ratio"):
        rows, columns = (round(side * config.downsample_ratio) for side in (rows, columns))
        for at, (size, run) in enumerate(zip(sizes, runs, strict=False)):
            number, ratio = max(run // (rows * columns) - 1, 0), size[0] / size[1]
            grids = [(down, number // down) for down in range(1, number + 1) if number % down == 0]
            nearest = min(grids, key=lambda grid: abs(ratio - grid[1] / grid[0]), default=(0, 0))
            yield from _tiled(at, nearest, (rows, columns), boxes[at])
    else:
        if hasattr(config, "mm_tokens_per_image"):
            rows = columns = round(config.mm_tokens_per_image**0.5)
        full = getattr(config, "vision_feature_select_strategy", "default") == "full"
        classes: list[TokenKind] = ["cls"] * (CLASS_TOKENS[tower.model_type] * full)
        step = (pixels[0] // rows, pixels[1] // columns)
        for at, box in enumerate(boxes):
            yield _layout(classes, _raster(rows, columns), at, _whole_patches(box, pixels, step))


def _tiled(
    picture: int, tiles: tuple[int, int], cells: tuple[int, int], box: Box
) -> Iterator[TokenLayout]:
    """Yield a picture's tiles as one grid (rows, columns), tile by tile, then its overview."""
    if prod(tiles):
        down, across = np.indices(tiles).reshape(2, -1, 1)
        _, _, row, column = _raster(*cells)
        places = ((down * cells[0] + row).reshape(-1), (across * cells[1] + column).reshape(-1))
        whole = (tiles[0] * cells[0], tiles[1] * cells[1])
        yield _layout((), (*whole, *places), picture, box, name="tiles")
    yield _layout((), _raster(*cells), picture, box, name="overview" if prod(tiles) else "")


def _unpadded(
    config: Any, picture: int, size: tuple[int, int], side: int, box: Box, *, tiled: bool
) -> Iterator[TokenLayout]:
    """Yield the overview of a picture, then its tiles without their padding, as LLaVA-NeXT's.

    A token for a new line stands after each row of the tiles. side: the patches at a side of a
    tile. tiled: False for an overview alone, with one new line after it.
    """
    pixels = config.vision_config.image_size
    share = side * _pair(config.vision_config.patch_size)[0] / pixels
    name = "overview" if tiled else ""
    yield _layout((), _raster(side, side), picture, _part(box, (0, 0, share, share)), name=name)
    if not tiled:
        yield _layout(["newline"], _raster(0, 0), picture, box)
        return

    def used(canvas: Sequence[int]) -> tuple[int, int]:
        scale = min(canvas[1] / size[0], canvas[0] / size[1])
        read = min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])
        return read, read - canvas[0] * canvas[1]

    canvas = max(config.image_grid_pinpoints, key=used)
    rows, columns = (edge // pixels * side for edge in canvas)
    scale = min(columns / size[0], rows / size[1])
    high, wide = (int(round(edge * scale, 7)) for edge in (size[1], size[0]))
    wider = size[0] / size[1] > columns / rows
    cut = (((rows - high) // 2 if wider else 0), (0 if wider else (columns - wide) // 2))
    # The picture lies in the middle of the canvas, as large as fits.
    filled = min(canvas[1] / size[0], canvas[0] / size[1])
    edges = []
    for at, (cells, edge) in enumerate(((rows, canvas[0]), (columns, canvas[1]))):
        length = min(ceil(size[1 - at] * filled), edge)
        start, step = (edge - length) // 2, edge / cells
        ends = (cut[at] * step - start, (cells - cut[at]) * step - start)
        edges.append([end / length for end in ends])
    (top, low), (left, right) = edges
    rows, columns = rows - 2 * cut[0], columns - 2 * cut[1]
    most = str(getattr(config, "vision_aspect_ratio", "")).removeprefix("anyres_max_")
    ratio = (rows * columns / (int(most) * side**2)) ** 0.5 if most.isdigit() else 1.0
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    _, _, row, column = _raster(rows, columns + 1)
    kinds = np.where(column == columns, "newline", "patch").tolist()
    part = _part(box, (left, top, right, low))
    yield _layout((), (rows, columns, row, column), picture, part, kinds=kinds, name="tiles")


def _joined(layouts: Sequence[TokenLayout]) -> TokenLayout:
    """Return the tokens of layouts one after the other, with the grids of all that have tokens."""
    grids: list[Grid] = []
    parts: list[NDArray[np.intp]] = []
    for layout in layouts:
        parts.append(np.where(layout.grid < 0, -1, layout.grid + len(grids)))
        grids += layout.grids if len(layout.patches(0)) else ()
    none, kinds = np.empty(0, np.intp), [kind for layout in layouts for kind in layout.kinds]
    row = np.concatenate([none, *(layout.row for layout in layouts)])
    column = np.concatenate([none, *(layout.column for layout in layouts)])
    return TokenLayout(tuple(kinds), tuple(grids), np.concatenate([none, *parts]), row, column)


def seen_box(processor: Any, width: int, height: int) -> Box:
    """Return the part of a picture that a model sees after its processor's padding and cropping.

    processor: the image processor, read for its settings. width, height: of the picture in pixels.
    The box reaches beyond the picture where the processor pads it.
    """
    left, top, wide, high = 0, 0, width, height
    if getattr(processor, "image_grid_pinpoints", None):  # padding is taken off after the tower
        return WHOLE
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


# The rows and columns of a grid, and the row and column of each of its tokens.
_Cells = tuple[int, int, NDArray[np.intp], NDArray[np.intp]]


def _pair(size: Any) -> tuple[int, int]:
    """Return the height and the width of a patch."""
    high, wide = (size, size) if isinstance(size, int) else size
    return int(high), int(wide)


def _raster(rows: int, columns: int) -> _Cells:
    row, column = np.indices((rows, columns)).reshape(2, -1)
    return rows, columns, row, column


def _in_blocks(grid: tuple[int, int, int], merge: int, window: int) -> _Cells:
    """Return a grid (frames, rows, columns) in blocks of merge × merge, window by window."""
    _, rows, columns = grid
    frame, row, column = np.indices(grid).reshape(3, -1)
    keys = [column, row, column // merge, row // merge, frame]
    if window:
        keys[4:] = [column // (merge * window), row // (merge * window), frame]
    order = np.lexsort(keys)
    return rows, columns, row[order], column[order]


def _masked(
    before: Sequence[TokenKind],
    mask: NDArray[np.bool_],
    patch: tuple[int, int],
    picture: int,
    box: Box,
) -> TokenLayout:
    """Return the layout of a picture padded at right and bottom, by a mask of its pixels."""
    high, wide = (side // step for side, step in zip(mask.shape, patch, strict=True))
    cut = mask[: high * patch[0], : wide * patch[1]]
    seen = np.asarray(cut.reshape(high, patch[0], wide, patch[1]).any((1, 3)))
    rows, columns = int(seen.any(1).sum()), int(seen.any(0).sum())
    kinds = np.where(seen.reshape(-1), "patch", "padding").tolist()
    return _layout(before, (rows, columns, *_raster(high, wide)[2:]), picture, box, kinds=kinds)


def _whole_patches(box: Box, size: Sequence[int], patch: tuple[int, int]) -> Box:
    """Return the part of a box that whole patches cover; no pixel beyond the last is read."""
    high, wide = (side // step * step / side for side, step in zip(size, patch, strict=True))
    return _part(box, (0.0, 0.0, wide, high))


def _layout(
    before: Sequence[TokenKind],
    cells: _Cells,
    picture: int,
    box: Box,
    *,
    kinds: Sequence[TokenKind] | None = None,
    padding: int = 0,
    name: str = "",
) -> TokenLayout:
    """Return the tokens of a picture. kinds: of the cells, all patches by default."""
    rows, columns, row, column = cells
    own: Sequence[TokenKind] = kinds or ["patch"] * len(row)
    padded: Sequence[TokenKind] = ["padding"] * padding
    every = (*before, *own, *padded)
    is_patch = [kind == "patch" for kind in own]
    places = np.full((3, len(every)), -1, np.intp)
    places[1:, len(before) : len(before) + len(row)] = np.where(is_patch, [row, column], -1)
    places[0] = np.where(places[1] < 0, -1, 0)
    return TokenLayout(every, (Grid(picture, rows, columns, box, name),), *places)
