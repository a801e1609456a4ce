"""Other libraries' attention layers as our own: torch's, and Keras's by its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.attention.module import MultiHeadAttention

__all__ = ["from_keras_weights", "from_torch"]


def from_torch(attention: nn.MultiheadAttention) -> MultiHeadAttention:
    """A copy of torch's layer, with its dropout, type, device and training mode.

    Ours takes the batch first whatever ``batch_first`` says, and its masks are True where visible
    where torch's are True where hidden. Raises ValueError for a layer with ``add_bias_kv`` or
    ``add_zero_attn``: these attend to keys that are no tokens.
    """
    if attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError(
            "a MultiheadAttention with add_bias_kv or add_zero_attn has keys that are no tokens; "
            "only one without them can be taken over"
        )
    if attention.in_proj_weight is not None:
        weights = attention.in_proj_weight.chunk(3)
    else:
        weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    has_bias = attention.in_proj_bias is not None
    copy = MultiHeadAttention(
        attention.embed_dim,
        attention.num_heads,
        key_width=attention.kdim,
        value_width=attention.vdim,
        query_bias=has_bias,
        key_bias=has_bias,
        value_bias=has_bias,
        output_bias=attention.out_proj.bias is not None,
        dropout=attention.dropout,
    )
    biases = attention.in_proj_bias.chunk(3) if has_bias else (None, None, None)
    _fill(copy, (*weights, attention.out_proj.weight), (*biases, attention.out_proj.bias))
    return copy.train(attention.training)


def from_keras_weights(
    weights: Sequence[NDArray[Any]], *, dropout: float = 0.0, causal: bool = False
) -> MultiHeadAttention:
    """A copy of a Keras ``MultiHeadAttention`` or ``GroupQueryAttention``, in evaluation mode.

    weights: what ``get_weights()`` of the built layer gives: kernels of query (width, heads,
        key_dim), key (width, kv_heads, key_dim) and value (width, kv_heads, value_dim), then of
        the output (heads, value_dim, output_width); with ``use_bias`` each followed by its bias.
    causal: as ``use_causal_mask=True`` of each call. Keras aligns a longer text's causal mask at
        the start, ours at the end: they agree where there are as many keys as queries.
    Raises ValueError for arrays of other number or shape.
    """
    arrays = [np.asarray(array) for array in weights]
    if len(arrays) not in (4, 8):
        raise ValueError(
            "expected the 4 kernels of query, key, value and output, or these with a bias after "
            f"each, got {len(arrays)} arrays"
        )
    has_bias = len(arrays) == 8
    kernels = arrays[::2] if has_bias else arrays
    biases = arrays[1::2] if has_bias else [None] * 4
    if any(kernel.ndim != 3 for kernel in kernels):
        raise ValueError(
            "expected kernels of three axes, those of attention over one token axis, "
            f"got {[kernel.shape for kernel in kernels]}"
        )
    query, key, value, output = kernels
    copy = MultiHeadAttention(
        d_model=query.shape[0],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=query.shape[2],
        value_dim=value.shape[2],
        key_width=key.shape[0],
        value_width=value.shape[0],
        output_width=output.shape[2],
        query_bias=has_bias,
        key_bias=has_bias,
        value_bias=has_bias,
        output_bias=has_bias,
        dropout=dropout,
        causal=causal,
    ).eval()
    flat = [kernel.reshape(kernel.shape[0], -1).T for kernel in (query, key, value)]
    flat.append(output.reshape(-1, output.shape[2]).T)
    _fill(
        copy,
        [torch.tensor(weight) for weight in flat],
        [None if bias is None else torch.tensor(bias.reshape(-1)) for bias in biases],
    )
    return copy


def _fill(
    attention: MultiHeadAttention, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> None:
    """Put copies into the query, key, value and output projection, in this order.

    The parameters are replaced rather than written into: they keep the type of what comes.
    """
    projections = (
        attention.query_projection,
        attention.key_projection,
        attention.value_projection,
        attention.output_projection,
    )
    for projection, weight, bias in zip(projections, weights, biases, strict=True):
        if weight.shape != projection.weight.shape:
            raise ValueError(
                f"expected a weight (out, in) of shape {tuple(projection.weight.shape)}, "
                f"got {tuple(weight.shape)}"
            )
        projection.weight = nn.Parameter(weight.detach().clone())
        if bias is not None:
            projection.bias = nn.Parameter(bias.detach().clone())
