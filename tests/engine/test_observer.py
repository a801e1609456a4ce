"""What is kept of the weights that pass by, and in which form."""

import numpy as np
import pytest
import torch

from attnviz.engine.observer import BlockFacts, KeepWeights, hand_over, sums_or_maps, to_numpy
from attnviz.errors import UnsupportedError
from attnviz.records import ModelInfo


def weights(layer=0, heads=5):
    return np.random.default_rng(layer).random((heads, 3, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, np.float64),
        (torch.float32, np.float32),
        (torch.float16, np.float32),
        (torch.bfloat16, np.float32),
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
    ],
)
def test_arrays_keep_their_precision_or_gain_some(given, expected):
    two = torch.tensor([0.5, 0.25], requires_grad=True)
    array = to_numpy(
        two.to(given) if isinstance(given, torch.dtype) else np.array([0.5, 0.25], given)
    )
    assert array.dtype == expected
    np.testing.assert_array_equal(array, [0.5, 0.25])


def test_what_is_of_the_kind_is_kept_in_order():
    keep = KeepWeights("decoder")
    for layer in (2, 0, 1):
        keep.observe(0, "decoder", layer, 0, weights(layer), BlockFacts())
    assert [kept.layer for kept in keep.layers] == [0, 1, 2]
    assert all(kept.heads == (0, 1, 2, 3, 4) for kept in keep.layers)
    np.testing.assert_array_equal(keep.layers[2].weights, weights(2))
    keep = KeepWeights("cross")
    assert not keep.wants("decoder", 0)
    keep.observe(0, "decoder", 0, 0, weights(), BlockFacts())
    assert keep.layers == ()


def of(library, array):
    return torch.from_numpy(array) if library == "torch" else array


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_chosen_heads_of_chosen_layers(library):
    keep = KeepWeights("self", {1: {4, 2}, 3: range(5)})
    assert [layer for layer in range(5) if keep.wants("self", layer)] == [1, 3]
    for layer in range(5):
        keep.observe(0, "self", layer, 0, of(library, weights(layer)), BlockFacts())
    one, three = keep.layers
    assert (one.layer, one.heads) == (1, (2, 4))
    np.testing.assert_array_equal(one.weights, weights(1)[[2, 4]])
    assert (three.layer, three.heads) == (3, (0, 1, 2, 3, 4))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_layer_without_the_chosen_head_keeps_nothing(library):
    """Layers of one model may differ in their heads."""
    keep = KeepWeights("self", {0: {4}, 1: {4}})
    for layer, heads in ((0, 5), (1, 3)):
        keep.observe(0, "self", layer, 0, of(library, weights(layer, heads)), BlockFacts())
    assert [(kept.layer, kept.heads) for kept in keep.layers] == [(0, (4,))]


def test_the_first_text_of_a_batch_is_kept():
    keep = KeepWeights("self")
    hand_over(keep, "self", 0, np.stack([weights(text) for text in range(3)]))
    np.testing.assert_array_equal(keep.layers[0].weights, weights(0))


@pytest.mark.parametrize(
    ("backend", "reduce", "tokens", "expected"),
    [
        ("torch", "auto", 1_495, "maps"),  # fewer than 2²⁸ bytes: 4 · tokens² · 5 layers · 6 heads
        ("torch", "auto", 1_496, "sums"),
        ("torch", "full", 5_000, "maps"),
        ("torch", "fused", 1, "sums"),
        ("numpy", "auto", 5_000, "maps"),
        ("numpy", "fused", 1, "sums"),
    ],
)
def test_long_texts_are_read_as_sums_where_there_are_sums(backend, reduce, tokens, expected):
    info = ModelInfo("made", None, "None", "float32", 5, 6, 6, 2, backend=backend)

    def unable():
        raise UnsupportedError("no sums")

    assert sums_or_maps(info, tokens, reduce, lambda: "sums", lambda: "maps") == expected
    assert sums_or_maps(info, 1, reduce, lambda: "sums", lambda: "maps", short=True) == "sums"
    if reduce == "fused":
        with pytest.raises(UnsupportedError):
            sums_or_maps(info, tokens, reduce, unable, lambda: "maps")
    else:
        assert sums_or_maps(info, tokens, reduce, unable, lambda: "maps") == "maps"
