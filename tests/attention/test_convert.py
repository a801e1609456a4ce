from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention

from .converted import from_keras_weights, from_torch


def in_numpy(attention: MultiHeadAttention) -> NumpyAttention:
    shape = attention.shape
    return NumpyAttention.from_state(
        attention.state_dict(), shape.heads, shape.kv_heads, causal=attention.causal
    )


@pytest.fixture
def check_both(close):
    """Asserts that the module, by either way, and its NumPy twin give output and weights."""

    def check(attention, arrays, mask, output, weights) -> None:
        tensors = [torch.from_numpy(x) for x in arrays]
        given = None if mask is None else torch.from_numpy(mask)
        ours, our_weights = attention(*tensors, mask=given, return_weights=True)
        close(ours, output)
        close(our_weights, weights)
        close(attention(*tensors, mask=given), output)
        ours, our_weights = in_numpy(attention)(*arrays, mask=mask)
        close(ours, output)
        close(our_weights, weights)

    return check


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("kind", "widths"),
    [
        ("self", {}),
        ("causal", {}),
        ("cross", {}),
        ("cross", {"kdim": 5}),
        ("cross", {"kdim": 5, "vdim": 7}),
        ("padded", {}),
        ("padded", {"vdim": 7}),
    ],
)
def test_equals_torchs_layer(normal, check_both, kind, widths, bias, batch_first):
    torch.manual_seed(2)
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first, **widths).eval()
    assert (theirs.in_proj_weight is None) == bool(widths)
    for parameter in theirs.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)
    query = normal(2, 5, 12)
    key, value = normal(2, 7, widths.get("kdim", 12)), normal(2, 7, widths.get("vdim", 12))
    arrays, mask, options = (query, key, value), None, {}
    if kind in ("self", "causal"):
        arrays = (query, query, query)
    if kind == "causal":
        mask = np.tri(5, dtype=bool)
        options = {"attn_mask": torch.from_numpy(~mask)}
    if kind == "padded":
        visible = np.arange(7) < np.array([[7], [4]])
        mask = padding_mask(visible)
        options = {"key_padding_mask": torch.from_numpy(~visible)}
    given = [torch.from_numpy(x) for x in arrays]
    given = given if batch_first else [x.transpose(0, 1) for x in given]
    with torch.no_grad():
        output, weights = theirs(*given, average_attn_weights=False, **options)
    output = output if batch_first else output.transpose(0, 1)
    check_both(from_torch(theirs), arrays, mask, output, weights)


def test_causal_of_ours_equals_torchs_causal_mask(normal, close):
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    text = torch.from_numpy(normal(2, 5, 12))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    expected, _ = theirs(text, text, text, attn_mask=mask, is_causal=True)
    ours = from_torch(theirs)
    close(ours(text, mask=mask), expected)
    ours.causal = True
    close(ours(text), expected)


def test_the_copy_takes_type_dropout_and_mode_but_shares_nothing():
    theirs = nn.MultiheadAttention(12, 3, dropout=0.25, dtype=torch.float64)
    ours = from_torch(theirs)
    assert ours.training
    assert ours.dropout == 0.25
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert all((w.weight != 0).any() for w in ours.children() if isinstance(w, nn.Linear))
    assert not from_torch(theirs.eval()).training


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_are_no_tokens_are_refused(option):
    with pytest.raises(ValueError, match="keys that are no tokens"):
        from_torch(nn.MultiheadAttention(12, 3, **{option: True}))


# Keras's own get_weights calls NumPy 2 in a way that NumPy 2 warns of.
keras_copies = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


def randomise(layer, normal) -> None:
    layer.set_weights([normal(*weight.shape) / 2 for weight in layer.get_weights()])


@keras_copies
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("value_dim", [None, 7])
@pytest.mark.parametrize("kind", ["self", "cross", "masked", "causal"])
def test_equals_keras(keras, normal, check_both, kind, value_dim, use_bias):
    layer = keras.layers.MultiHeadAttention(3, 5, value_dim=value_dim, use_bias=use_bias)
    query = normal(2, 5, 11)
    key, value = normal(2, 7, 13), normal(2, 7, 2)
    arrays = (query, query, query) if kind in ("self", "causal") else (query, key, value)
    mask = normal(2, 5, 7) > 0 if kind == "masked" else None
    options = {"use_causal_mask": kind == "causal", "attention_mask": mask}
    layer(arrays[0], arrays[2], key=arrays[1])
    randomise(layer, normal)
    with torch.no_grad():
        output, weights = layer(
            arrays[0], arrays[2], key=arrays[1], return_attention_scores=True, **options
        )
    ours = from_keras_weights(layer.get_weights(), causal=kind == "causal")
    check_both(ours, arrays, None if mask is None else mask[:, None], output, weights)


@keras_copies
def test_equals_keras_with_grouped_heads_and_another_output_width(keras, normal, check_both):
    layer = keras.layers.GroupQueryAttention(5, 6, 2)
    text = normal(2, 5, 11)
    layer(text, text)
    randomise(layer, normal)
    with torch.no_grad():
        output, weights = layer(text, text, return_attention_scores=True)
    ours = from_keras_weights(layer.get_weights())
    assert (ours.shape.heads, ours.shape.kv_heads) == (6, 2)
    check_both(ours, (text, text, text), None, output, weights)

    layer = keras.layers.MultiHeadAttention(3, 5, output_shape=4)
    layer(text, text)
    randomise(layer, normal)
    with torch.no_grad():
        output, weights = layer(text, text, return_attention_scores=True)
    check_both(from_keras_weights(layer.get_weights()), (text,) * 3, None, output, weights)


def test_the_keras_copy_evaluates_until_it_is_to_train(normal):
    kernels = [normal(11, 3, 5), normal(11, 3, 5), normal(11, 3, 5), normal(3, 5, 11)]
    ours = from_keras_weights(kernels, dropout=0.25)
    assert not ours.training
    assert ours.dropout == 0.25
    before = ours.query_projection.weight.clone()
    kernels[0][:] = 0
    assert torch.equal(ours.query_projection.weight, before)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(11, 3, 5)] * 3, "expected the 4 kernels .* got 3 arrays"),
        ([(11, 15)] * 4, "expected kernels of three axes"),
        ([(11, 3, 5), (11, 3, 4), (11, 3, 5), (3, 5, 11)], "expected a weight"),
        ([(11, 3, 5), (11, 3, 5), (11, 3, 5), (3, 4, 11)], "expected a weight"),
    ],
)
def test_other_arrays_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        from_keras_weights([np.zeros(shape, np.float32) for shape in shapes])
