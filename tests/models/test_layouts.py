"""Where patches stand: a tower without layers changes the token of a patch whose pixels change."""

import warnings

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

from attnviz.errors import UnsupportedError
from attnviz.models.layouts import prompt_layout, seen_box, tower_layouts

from .picture_models import FAMILIES, tiny

OTHER = {
    "Qwen2VLVision": Qwen2VisionTransformerPretrainedModel,
    "Qwen2_5_VLVision": Qwen2_5_VisionTransformerPretrainedModel,
    "SmolVLMVision": SmolVLMVisionTransformer,
}
SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
SMALL |= {"num_hidden_layers": 0, "patch_size": 4, "image_size": 16, "num_channels": 3}
QWEN = {"depth": 0, "hidden_size": 16, "embed_dim": 16, "num_heads": 2, "intermediate_size": 8}
QWEN |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 8}
PLAIN = {  # the config's class, and the size of the picture
    **dict.fromkeys(("ViT", "DeiT", "ViTMSN", "IJepa", "Beit", "CLIPVision"), (16, 16)),
    **dict.fromkeys(("MetaClip2Vision", "SiglipVision", "InternVLVision"), (16, 16)),
    **dict.fromkeys(("Dinov2", "Dinov2WithRegisters", "DINOv3ViT"), (12, 22)),
}
TILED = {"llava_next", "llava_onevision", "idefics3", "smolvlm", "internvl"}


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def built(name, **settings):
    """Return the model of a config's class name with random weights and the given settings."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    model = OTHER.get(name) or getattr(transformers, f"{name}Model")
    return model(config).eval()


def ran(model, inputs):
    """Return the states (picture, token, width) at the end of a tower."""
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def changed(before, after):
    """Return the indices of the tokens whose states differ."""
    return torch.nonzero((before - after).abs().amax(-1) > 1e-6)[:, -1].tolist()


@pytest.mark.parametrize("name", PLAIN)
def test_a_patch_is_the_token_that_its_pixels_change(name):
    high, wide = PLAIN[name]
    registers = {"num_register_tokens": 3} if "Registers" in name or "v3" in name else {}
    pair = {"patch_size": (4, 4), "image_size": (16, 16)} if name == "InternVLVision" else {}
    model = built(name, **{**SMALL, **registers, **pair})
    pixels = noise(2, 3, high, wide)
    _, layout = tower_layouts(model.config, {"pixel_values": pixels})
    before = ran(model, {"pixel_values": torch.from_numpy(pixels)})
    assert len(layout) == before.shape[1]
    assert len(layout.of_kind("register")) == 3 * bool(registers)
    grid = layout.grids[0]
    assert (grid.rows, grid.columns) == (high // 4, wide // 4)
    assert grid.box == pytest.approx((0, 0, grid.columns * 4 / wide, 1))
    for row, column in [(0, 1), (grid.rows - 1, 0), (1, grid.columns - 1)]:
        other = pixels.copy()
        other[1, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 1
        after = ran(model, {"pixel_values": torch.from_numpy(other)})
        assert changed(before, after) == [layout.at(0, row, column)]


def two_pictures(sizes, places):
    """Return two pictures of noise, and the same with a patch of the second inverted.

    places: the rows and columns of patches of 4 × 4 pixels; each makes another pair.
    """
    arrays = [noise_picture(at, *size) for at, size in enumerate(sizes)]
    others = []
    for row, column in places:
        other = arrays[1].copy()
        other[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] ^= 255
        others.append([Image.fromarray(arrays[0]), Image.fromarray(other)])
    return [Image.fromarray(array) for array in arrays], others


def noise_picture(seed, high, wide):
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), np.uint8)


def tensors(processor, pictures):
    return dict(processor(images=pictures, return_tensors="pt"))


BLOCKS = {  # the config's class and its settings
    "Qwen2VLVision": QWEN | {"mlp_ratio": 1, "hidden_size": 8},
    "Qwen2_5_VLVision": QWEN | {"window_size": 16, "fullatt_block_indexes": [1]},
    "Qwen3VLVision": QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": []},
    "Qwen3_5Vision": QWEN | {"num_position_embeddings": 16},
}
QWEN_PICTURES = transformers.Qwen2VLImageProcessorPil(
    patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=16, max_pixels=10**6
)


@pytest.mark.parametrize("name", BLOCKS)
def test_patches_in_blocks_and_windows(name):
    model, places = built(name, **BLOCKS[name]), [(0, 1), (5, 0), (3, 9), (4, 7)]
    pictures, others = two_pictures([(16, 24), (24, 40)], places)
    inputs = tensors(QWEN_PICTURES, pictures)
    first, layout = tower_layouts(model.config, inputs)

    def states(inputs):
        with torch.no_grad():
            return model(
                inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]
            ).last_hidden_state

    before = states(inputs)
    assert layout.grids == ((1, 6, 10, (0, 0, 1, 1), ""),)
    for place, other in zip(places, others, strict=True):
        token = len(first) + layout.at(0, *place)
        assert changed(before[None], states(tensors(QWEN_PICTURES, other))[None]) == [token]


def test_pictures_of_unlike_sizes_in_one_batch():
    places = [(0, 1), (5, 0), (2, 1)]
    pictures, others = two_pictures([(8, 24), (24, 8)], places)
    towers = {
        "Siglip2Vision": (
            {"num_patches": 16},
            transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=13),
        ),
        "PixtralVision": (
            {"head_dim": 4},
            transformers.PixtralImageProcessorPil(patch_size=4, size={"longest_edge": 24}),
        ),
    }
    for name, (settings, processor) in towers.items():
        model, inputs = built(name, **SMALL | settings), tensors(processor, pictures)
        first, layout = tower_layouts(model.config, inputs)
        before = ran(model, inputs)
        start = 0 if name == "Siglip2Vision" else len(first)
        assert layout.kinds.count("padding") == (name == "Siglip2Vision")
        assert start + len(layout) == before.shape[1]
        for place, other in zip(places, others, strict=True):
            after = ran(model, tensors(processor, other))
            assert changed(before, after) == [start + layout.at(0, *place)]


def test_padding_inside_a_batch_of_pixels():
    model = built("SmolVLMVision", **SMALL)
    pixels, mask = noise(2, 3, 12, 16), np.ones((1, 2, 12, 16), int)
    mask[0, 1, 8:] = mask[0, 1, :, 12:] = 0
    inputs = {"pixel_values": pixels[None], "pixel_attention_mask": mask}
    patches = torch.from_numpy(mask[0, :, ::4, ::4] > 0)
    states = lambda values: ran(  # noqa: E731
        model, {"pixel_values": torch.from_numpy(values), "patch_attention_mask": patches}
    )
    _, layout = tower_layouts(model.config, inputs)
    before = states(pixels)
    assert layout.grids[0][1:3] == (2, 3)
    assert layout.kinds.count("padding") == 6
    for row, column in [(0, 2), (1, 0)]:
        other = pixels.copy()
        other[1, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 1
        assert changed(before, states(other)) == [layout.at(0, row, column)]


@pytest.mark.parametrize(
    ("name", "why"), [("Swin", "windows that shift"), ("ViTMAE", "random"), ("Sam", "no known")]
)
def test_a_tower_without_a_map_is_refused(name, why):
    config = getattr(transformers, f"{name}Config")()
    with pytest.raises(UnsupportedError, match=f"{why}.*: .*"):
        tower_layouts(config, {"pixel_values": noise(1, 3, 8, 8)})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}),
        ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": {"height": 50, "width": 36}}),
        ("Beit", {"size": {"height": 48, "width": 40}, "crop_size": {"height": 32, "width": 32}}),
        ("Siglip", {"size": {"height": 32, "width": 32}}),
        ("Llava", {"do_pad": True, "do_center_crop": False, "size": {"shortest_edge": 64}}),
    ],
)
@pytest.mark.parametrize(("high", "wide"), [(60, 100), (90, 50)])
def test_what_a_processor_cuts_off(name, settings, high, wide):
    """A picture whose red is x and whose green is y says where the model's pixels are from."""
    x, y = (np.arange(wide) + 0.5) / wide, (np.arange(high) + 0.5) / high
    shares = np.stack(np.broadcast_arrays(x, y[:, None], 0), -1)
    processor = getattr(transformers, f"{name}ImageProcessorPil")(do_normalize=False, **settings)
    picture = Image.fromarray(np.uint8(shares * 255))
    pixels = processor(images=[picture], return_tensors="np")["pixel_values"][0]
    left, top, right, low = seen_box(processor, wide, high)
    own = {0: left + (right - left) * (np.arange(pixels.shape[2]) + 0.5) / pixels.shape[2]}
    own[1] = top + (low - top) * (np.arange(pixels.shape[1]) + 0.5) / pixels.shape[1]
    middle = {0: pixels[0, pixels.shape[1] // 2], 1: pixels[1, :, pixels.shape[2] // 2]}
    for axis, expected in own.items():
        inside = (expected > 0.05) & (expected < 0.95)
        assert np.abs(middle[axis] - expected)[inside].max() < 0.02


def prompt(processor, pictures):
    """Return the ids of a prompt with pictures, and the other inputs."""
    text = f"{processor.image_token} dog " * len(pictures) + "what is in the picture"
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        inputs = dict(processor(images=pictures, text=text, return_tensors="pt"))
    if "Idefics3" in type(processor).__name__:
        extra = processor.image_processor(images=[pictures], return_row_col_info=True)
        inputs |= {"rows": extra["rows"], "cols": extra["cols"]}
    return inputs


def embedded(model, inputs):
    """Return what a model without layers makes of each token."""
    given = {name: own for name, own in inputs.items() if name not in ("rows", "cols", "labels")}
    with torch.no_grad():
        return model(**given).logits[0]


SIZES = {  # the heights and widths of pictures
    "one": [(40, 24)],
    "two": [(24, 40), (32, 32)],
    "wide": [(17, 60)],
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_token_of_a_prompt_that_a_part_of_a_picture_changes(name, sizes):
    model, processor = tiny(name)
    pictures = [noise_picture(at, *size) // 4 + 96 for at, size in enumerate(SIZES[sizes])]
    shown = [Image.fromarray(picture) for picture in pictures]
    inputs = prompt(processor, shown)
    boxes = [seen_box(processor.image_processor, *picture.size) for picture in shown]
    layout = prompt_layout(
        model.config, inputs["input_ids"][0], inputs, [picture.size for picture in shown], boxes
    )
    before = embedded(model, inputs)
    assert len(layout) == len(before)
    names = {"tiles", "overview"} if name in TILED else {""}
    assert {grid.name for grid in layout.grids} == names
    other = 0
    for index, grid in enumerate(layout.grids):
        left, top, right, low = grid.box
        high, wide = pictures[grid.picture].shape[:2]
        for row, column in {(0, 0), (grid.rows - 1, grid.columns // 2), (1, grid.columns - 1)}:
            x = (left + (right - left) * (column + 0.5) / grid.columns) * wide
            y = (top + (low - top) * (row + 0.5) / grid.rows) * high
            if not (1 <= x < wide - 1 and 1 <= y < high - 1):
                continue
            changed = [picture.copy() for picture in pictures]
            changed[grid.picture][int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2] = 255
            again = prompt(processor, [Image.fromarray(picture) for picture in changed])
            difference = (embedded(model, again) - before).abs().amax(-1).numpy()
            own = layout.patches(index)
            assert own[difference[own].argmax()] == layout.at(index, row, column)
            assert not difference[layout.grid < 0].any()
            others = [at for at, each in enumerate(layout.grids) if each.picture != grid.picture]
            assert not difference[np.isin(layout.grid, others)].any()
            other += 1
    assert other >= len(layout.grids)
