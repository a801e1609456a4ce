"""With the weights of torch's layer ours gives the output and the weights of its own."""

import numpy as np
import pytest
import torch
from torch import nn

from attnviz.attention.functional import padding_mask
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.numpy_attention import NumpyAttention

NAMES = ("query", "key", "value", "output")


def from_torch(layer):
    """Of a layer that keeps its weights together or, for other widths, each by itself."""
    together = layer.in_proj_weight
    each = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = [*(each if together is None else together.chunk(3)), layer.out_proj.weight]
    joined = [None] * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    biases = [*joined, layer.out_proj.bias]
    has = {f"{name}_bias": bias is not None for name, bias in zip(NAMES, biases, strict=True)}
    widths = {"key_width": layer.kdim, "value_width": layer.vdim}
    ours = MultiHeadAttention(layer.embed_dim, layer.num_heads, **widths, **has).eval()
    state = {f"{name}_projection.weight": one for name, one in zip(NAMES, weights, strict=True)}
    for name, bias in zip(NAMES, biases, strict=True):
        state |= {} if bias is None else {f"{name}_projection.bias": bias}
    ours.load_state_dict(state)
    return ours


@pytest.fixture
def check_both(close):
    """Asserts that the module, by either way, and NumPy's give this output and these weights."""

    def check(attention, arrays, mask, output, weights):
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
