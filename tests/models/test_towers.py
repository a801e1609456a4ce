"""The towers of vision-language models: their maps are the softmax of their queries and keys."""

import numpy as np
import pytest
import torch

from attnviz.engine.passes import joined_calls, observe_joined
from attnviz.errors import UnsupportedError
from attnviz.inspect.picture.picture import picture
from attnviz.inspect.picture.request import PictureRequest
from attnviz.measures.pictures import uniform_distance
from attnviz.models.pictures import PictureFile
from attnviz.models.vision import picture_model, vision_tower
from tests.models.picture_models import FAMILIES, tiny
from tests.models.test_vision import softmaxes


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


@pytest.mark.parametrize("name", FAMILIES)
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
