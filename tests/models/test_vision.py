"""Vision models run on token ids, and their maps are the softmax of their own queries and keys."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GPT2Config, GPT2LMHeadModel
from transformers.masking_utils import eager_mask

from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.pictures import read_picture
from attnviz.models.vision import handed_pictures, vision_tower
from tests.models.vision_models import FAMILIES, PATCH, SIDE, build, noise, processor


def by_hand(model, pixels):
    """The weights (head, query, key) of each layer over a picture; see `softmaxes`."""
    return softmaxes(model, lambda: model(pixels))


def softmaxes(model, run):
    """The weights (head, query, key) of each attention of a run, from what it is given."""
    seen = []

    def attend(module, query, key, value, attention_mask=None, scaling=None, **more):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query.double() @ key.double().mT * scale
        bias = attention_mask if attention_mask is not None else more.get("position_bias")
        weights = (scores if bias is None else scores + bias.double()).softmax(-1)
        seen.append(weights[0].numpy())
        return (weights.to(value.dtype) @ value).transpose(1, 2), None

    AttentionInterface.register("by_hand", attend)
    AttentionMaskInterface.register("by_hand", eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("by_hand")
    try:
        with torch.no_grad():
            run()
    finally:
        model.set_attn_implementation(before)
    return seen


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_are_the_softmax_by_hand_in_float64(name):
    model = build(name)
    opened = handed_pictures(model, processor())
    read = opened.read(read_picture(noise()))
    maps = capture(opened, read.tokens, kind="self").layers
    expected = by_hand(vision_tower(model, name), read.inputs["pixel_values"])
    assert len(maps) == len(expected) == 2
    for layer, weights in zip(maps, expected, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
        assert np.ptp(layer.weights) > 0.05  # no map that is even
    before, side = FAMILIES[name][1], SIDE // PATCH
    names = (*before, *(f"{row},{column}" for row in range(side) for column in range(side)))
    assert read.tokens.texts == names


@pytest.mark.parametrize("name", ["ViTForImageClassification", "CLIPModel", "SiglipVisionModel"])
def test_a_model_that_was_handed_over_is_left_as_it_was(name):
    model = build(name)
    before = {part: dict(vars(module)) for part, module in model.named_modules()}
    opened = handed_pictures(model, processor())
    capture(opened, opened.read(read_picture(noise())).tokens, kind="self")
    after = {part: dict(vars(module)) for part, module in model.named_modules()}
    assert before.keys() == after.keys()
    for part, fields in before.items():
        assert fields.keys() == after[part].keys(), part
        assert len(model.get_submodule(part)._forward_pre_hooks) == 0
    assert vision_tower(model, name).main_input_name == "pixel_values"


def test_a_picture_that_is_not_square_has_its_own_grid():
    opened = handed_pictures(build("Dinov2Model"), processor(24, 40))
    (grid,) = opened.read(read_picture(noise())).tokens.layout.grids
    assert (grid.rows, grid.columns) == (3, 5)


def test_several_pictures_keep_their_own_numbers():
    opened = handed_pictures(build("Dinov2Model"), processor())
    first, second = (opened.read(read_picture(noise(seed=seed), str(seed))) for seed in (1, 2))
    together = opened.inputs_of(torch.tensor([second.tokens.ids, first.tokens.ids]))
    pixels = [one.inputs["pixel_values"] for one in (second, first)]
    torch.testing.assert_close(together["pixel_values"], torch.cat(pixels))


def test_what_is_no_vision_model_is_refused():
    with pytest.raises(UsageError, match="give processor="):
        handed_pictures(build("DeiTModel"), None)
    with pytest.raises(UsageError, match="got dict"):
        handed_pictures({}, processor())
    text = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=9))
    with pytest.raises(UnsupportedError, match="no part reads images"):
        handed_pictures(text, processor())


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (1, 3), (200, 2)])
def test_narrow_pictures_are_not_taken_for_channels(shape):
    model = handed_pictures(build("DeiTModel"), processor())
    red = np.zeros((*shape, 3), np.uint8)
    red[..., 0] = 255
    values = model.read(read_picture(red)).inputs["pixel_values"][0]
    assert values.amin((1, 2)).tolist() == [1, -1, -1]
