"""With the weights of torch's layer, or of Keras's, ours gives the output and weights of theirs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention

NAMES = ("query", "key", "value", "output")


def filled(weights, biases, *sizes, **options) -> MultiHeadAttention:
    """Ours with these weights (out, in) and these biases, or None, in the order of the names."""
    has = {f"{name}_bias": bias is not None for name, bias in zip(NAMES, biases, strict=True)}
    ours = MultiHeadAttention(*sizes, **options, **has).eval()
    state = {f"{name}_projection.weight": one for name, one in zip(NAMES, weights, strict=True)}
    for name, bias in zip(NAMES, biases, strict=True):
        state |= {} if bias is None else {f"{name}_projection.bias": bias}
    ours.load_state_dict(state)
    return ours


def from_torch(layer: nn.MultiheadAttention) -> MultiHeadAttention:
    """Of a layer that keeps its weights together or, for other widths, each by itself."""
    together = layer.in_proj_weight
    each = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = each if together is None else together.chunk(3)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return filled(
        (*weights, layer.out_proj.weight),
        (*biases, layer.out_proj.bias),
        layer.embed_dim,
        layer.num_heads,
        key_width=layer.kdim,
        value_width=layer.vdim,
    )


def from_keras(arrays: list[np.ndarray], causal: bool = False) -> MultiHeadAttention:
    """Of ``get_weights()``: kernels of query, key and value (width, heads, dim) and of the output
    (heads, dim, width), each followed by its bias where there are eight."""
    kernels = arrays[::2] if len(arrays) == 8 else arrays
    biases = arrays[1::2] if len(arrays) == 8 else [None] * 4
    query, key, value, output = kernels
    flat = [kernel.reshape(kernel.shape[0], -1).T for kernel in (query, key, value)]
    flat.append(output.reshape(-1, output.shape[2]).T)
    return filled(
        [torch.tensor(weight) for weight in flat],
        [None if bias is None else torch.tensor(bias.reshape(-1)) for bias in biases],
        query.shape[0],
        query.shape[1],
        key.shape[1],
        query.shape[2],
        value_dim=value.shape[2],
        key_width=key.shape[0],
        value_width=value.shape[0],
        output_width=output.shape[2],
        causal=causal,
    )


@pytest.fixture
def check_both(close):
    """Asserts that the module, by either way, and NumPy's give this output and these weights."""

    def check(attention, arrays, mask, output, weights) -> None:
        shape, state = attention.shape, attention.state_dict()
        in_numpy = NumpyAttention.from_state(
            state, shape.heads, shape.kv_heads, causal=attention.causal
        )
        tensors = [torch.from_numpy(x) for x in arrays]
        given = None if mask is None else torch.from_numpy(mask)
        for found in (
            attention(*tensors, mask=given, return_weights=True),
            in_numpy(*arrays, mask=mask),
        ):
            close(found[0], output)
            close(found[1], weights)
        close(attention(*tensors, mask=given), output)

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


# Keras's own get_weights calls NumPy 2 in a way that NumPy 2 warns of.
keras_copies = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


def answered(layer, normal, query, key, value, **options):
    """Output and weights of a layer of Keras, once it is built and has random weights."""
    layer(query, value, key=key)
    layer.set_weights([normal(*weight.shape) / 2 for weight in layer.get_weights()])
    with torch.no_grad():
        return layer(query, value, key=key, return_attention_scores=True, **options)


# Keras aligns a longer text's causal mask at the start, ours at the end.
@keras_copies
@pytest.mark.parametrize(
    ("kind", "value_dim", "use_bias"),
    [
        *(("self", None, True), ("self", 7, False), ("cross", 7, True), ("cross", None, False)),
        *(("masked", None, True), ("causal", 7, True), ("causal", None, False)),
    ],
)
def test_equals_keras(keras, normal, check_both, kind, value_dim, use_bias):
    layer = keras.layers.MultiHeadAttention(3, 5, value_dim=value_dim, use_bias=use_bias)
    query = normal(2, 5, 11)
    key, value = normal(2, 7, 13), normal(2, 7, 2)
    arrays = (query, query, query) if kind in ("self", "causal") else (query, key, value)
    mask = normal(2, 5, 7) > 0 if kind == "masked" else None
    options = {"use_causal_mask": kind == "causal", "attention_mask": mask}
    output, weights = answered(layer, normal, *arrays, **options)
    ours = from_keras(layer.get_weights(), causal=kind == "causal")
    check_both(ours, arrays, None if mask is None else mask[:, None], output, weights)


@keras_copies
def test_equals_keras_with_grouped_heads_and_another_output_width(keras, normal, check_both):
    text = normal(2, 5, 11)
    grouped = keras.layers.GroupQueryAttention(5, 6, 2)
    for layer in (grouped, keras.layers.MultiHeadAttention(3, 5, output_shape=4)):
        output, weights = answered(layer, normal, text, text, text)
        ours = from_keras(layer.get_weights())
        assert (ours.shape.heads, ours.shape.kv_heads) == ((6, 2) if layer is grouped else (3, 3))
        check_both(ours, (text,) * 3, None, output, weights)
