"""Vision models run on token ids, and their maps are the softmax of their own queries and keys."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GPT2Config, GPT2LMHeadModel
from transformers.masking_utils import eager_mask

from attnviz.engine.capture import capture
from attnviz.engine.passes import joined_calls, observe_joined
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.picture.picture import picture
from attnviz.inspect.picture.request import PictureRequest
from attnviz.measures.pictures import uniform_distance
from attnviz.models.pictures import PictureFile, read_picture
from attnviz.models.vision import handed_pictures, picture_model, vision_tower
from tests.models.picture_models import FAMILIES as TOWERS
from tests.models.picture_models import tiny
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


class _Maps:
    """An observer that keeps all weights of a tower (query, head, key), layer by layer."""

    norms = False

    def __init__(self, tokens):
        self.tokens, self.layers = tokens, {}

    def wants(self, kind, layer):
        return True

    def observe(self, text, kind, layer, start, weights, beside):
        rows = self.layers.setdefault(layer, [])
        assert start == len(rows)
        rest = self.tokens - weights.shape[2]
        rows.extend(np.pad(weights, ((0, 0), (0, 0), (0, rest))).swapaxes(0, 1))


def opened(name, size=(40, 24)):
    """Return a family's model with two layers in its tower, as attnviz opens it, and a picture."""
    model, processor = tiny(name, layers=1, tower_layers=2)
    for weight in model.parameters():
        weight.data.mul_(4.0 if weight.ndim > 1 else 1.0)
    known = picture_model(name, model, processor.image_processor)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    return model, known, known.read(PictureFile("noise.png", pixels))


@pytest.mark.parametrize("name", TOWERS)
def test_rows_of_a_tower_are_the_softmax_by_hand_in_float64(name):
    model, known, read = opened(name)
    tower, tokens = vision_tower(model, name), len(read.tokens)
    with torch.no_grad():
        calls = softmaxes(tower, lambda: tower(**read.inputs))
    expected = []
    for weights in calls:  # those of a layer lie one after the other
        if not expected or expected[-1][1] == tokens:
            expected.append([np.zeros((len(weights), tokens, tokens)), 0])
        layer, start = expected[-1]
        stop = expected[-1][1] = start + weights.shape[1]
        layer[:, start:stop, start:stop] = weights
    patches = read.tokens.layout.of_kind("patch")
    for at in (int(patches[0]), int(patches[-2])):
        asked = PictureRequest(token=read.tokens.texts[at])
        for head in picture(known, read, asked).measured:
            weights = expected[head.layer][0][head.head]
            np.testing.assert_allclose(head.row, weights[at], atol=1e-5)
            np.testing.assert_allclose(head.means, weights[patches].mean(0), atol=1e-5)
            assert np.ptp(head.row) > 1e-3  # no map that is even
    assert known.info.layers == len(expected) == 2


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_what_transformers_returns_as_attentions_is_not_shown(name):
    """The modules return a bare tensor, their output, which transformers takes for weights."""
    model, known, read = opened(name)
    tower, tokens = vision_tower(model, name), len(read.tokens)
    with torch.no_grad():
        returned = tower(**read.inputs, output_attentions=True).attentions
    maps = _Maps(tokens)
    observe_joined(known, read.tokens, maps)
    assert {tuple(one.shape) for one in returned} == {(tokens, 16)}
    for rows in maps.layers.values():
        assert np.shape(rows) == (tokens, 2, tokens)
        np.testing.assert_allclose(np.sum(rows, axis=-1), 1, atol=1e-5)


def test_windows_are_compared_with_themselves():
    """Heads that are even in their windows look no nearer than chance, in all orders of patches."""
    model, known, read = opened("qwen2_5_vl", (32, 32))
    for name, weight in model.named_parameters():
        if "visual" in name and "qkv" in name:
            weight.data.zero_()
    calls = joined_calls(known, read.tokens)
    assert calls == {0: (0, 16, 32, 48, 64), 1: (0, 64)}
    layout = read.tokens.layout
    inside = uniform_distance(layout, calls[0])
    assert inside < uniform_distance(layout) / 1.9
    report = picture(known, read, PictureRequest())
    for head in report.measured:
        assert head.distance == pytest.approx(uniform_distance(layout, calls[head.layer]))
        assert not head.label
    assert "attention runs in 4 windows in layer 0" in str(report)
    with pytest.raises(UnsupportedError, match="no other command shows this tower"):
        known.encode("noise.png")
