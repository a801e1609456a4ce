"""What stands in the weights of attention heads alone, without a text.

In front of layer 0 the residual stream is the embedding, so that a score of that layer depends on
two tokens and their distance alone: it is exact. A previous-token head shows in how much of the
variance of its scores the distance explains,

    Var_o(mean_tu s(t, u, o)) / Var_tuo(s(t, u, o)),   for queries t and keys u, o tokens apart.

Deeper, what a token's embedding adds straight to a query is compared with what an earlier head
writes of a token and adds straight to a key (K-composition, Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"). A head that attends to the token behind an earlier copy of its
own finds t among all u at u = t. Biases, and all that other parts write, are left out. Each key is
compared without the scale that its norm gives it in a text, so that their order is exact up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats, project
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.attention.numpy_stack import NumpyStack, embeddings, held_norm, unscaled_norm
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model

APART = 6
"""How many tokens the key stands before the query that is compared with what a head writes."""

_PLACES, _STEP = 4, 7
"""The places of a query where positions are learned, and the tokens between two of them."""

OFFSETS = 16
"""The most distances between query and key that are tried in layer 0."""


def read_stack(model: Model) -> NumpyStack:
    """Return the layers of a decoder whose projections are known by their role.

    Raises UnsupportedError for a model that NumPy does not run, or that is no decoder with its
    norms in front of each part.
    """
    from attnviz.models.stack_model import StackModel  # and with it tokenizers

    if not isinstance(model, StackModel):
        raise UnsupportedError(
            f"{model.info.name!r} is run by torch: what is in its weights is known of families "
            "that NumPy runs, such as GPT-2 or Llama; leave out --weights, and --backend if it "
            "was given"
        )
    if not model.causal or not model.stack.is_sum:
        raise UnsupportedError(
            f"{model.info.name!r} is no decoder with norms in front of each part: what its heads "
            "write is not found in later heads by the weights alone; leave out --weights"
        )
    return model.stack


def first_scores(stack: NumpyStack, tokens: Sequence[int]) -> Floats:
    """Return the exact scores of layer 0 between any two tokens: (head, offset, query, key).

    tokens: the ids, each of which is a query and a key. offset: how many tokens the key stands
    before the query, from 0 on. Where positions are learned, a score depends on more than the
    distance: the queries then stand at several places, one after the other on their axis.
    """
    attention, context = stack.attention(0), stack.shape.context
    count = min(OFFSETS, context, attention.window or OFFSETS)
    steps = _PLACES if "positions.weight" in stack.tensors else 1
    places = list(range(count - 1, context, _STEP))[:steps]
    ids = np.repeat(stack.checked(np.array(tokens)[:, None]), places[-1] + 1, axis=1)

    def placed(place: int) -> tuple[Floats, Floats]:
        read = stack.read(0, stack.embed(ids[:, : place + 1], place))[:, 0]
        query, key, _ = attention.heads_of(read, read, read, np.full(len(ids), place))
        return query / np.sqrt(stack.shape.head_dim).astype(stack.dtype), key

    found = []
    for at in places:
        query = placed(at)[0]
        keys = [placed(at - back)[1] for back in range(count)]
        found.append(np.stack([query @ key.swapaxes(-1, -2) for key in keys], axis=1))
    return np.concatenate(found, axis=2)


def by_offset(scores: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean score by offset, (head, offset), and its share of the variance, (head,).

    scores: (head, offset, query, key). The share is in [0, 1]; it is 0 where all are the same.
    """
    wide = scores.astype(np.float64)
    means, whole = wide.mean((2, 3)), wide.var((1, 2, 3))
    return means, means.var(1) / np.where(whole == 0, 1.0, whole)


def found_again(stack: NumpyStack, layer: int, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return how often later heads find their query's token by what an earlier head wrote of it.

    layer: that of the earlier heads. tokens: the ids to choose from, each of which is asked for.
    The shares in [0, 1] are (earlier head, later layer, later head), from ``layer`` + 1 on; NaN
    for scores that are not finite. A token whose score another one reaches is not found.
    """
    written, wanted = _alone(stack, tokens), len(tokens)
    name = f"layers.{layer}.attention_norm"
    writer, read = _linear(stack.attention(layer)), held_norm(stack, name, written, written)
    values = writer.heads_of(read, read, read)[2]
    found = []
    for later in range(layer + 1, stack.shape.layers):
        name = f"layers.{later}.attention_norm"
        reader, asked = _linear(stack.attention(later)), unscaled_norm(stack, name, written)
        query = reader.heads_of(asked, asked, asked, np.full(wanted, APART))[0]
        for head, value in enumerate(values):
            write = unscaled_norm(stack, name, project(value, writer.output_by_head[:, head]))
            key = reader.heads_of(write, write, write, np.zeros(wanted, int))[1]
            scores = query @ key.swapaxes(-1, -2)  # (later head, query token, key token)
            own = np.diagonal(scores, axis1=-2, axis2=-1)[..., None]
            share = ((scores >= own).sum(-1) == 1).mean(-1)
            found.append(np.where(np.isfinite(scores).all((-2, -1)), share, np.nan))
    later_heads = np.array(found).reshape(-1, len(values), stack.shape.heads)
    return later_heads.swapaxes(0, 1)


def _alone(stack: NumpyStack, tokens: Sequence[int]) -> Floats:
    """Return what the embedding of each token alone writes into the stream: (token, width)."""
    write = embeddings(stack, stack.checked(np.array(tokens)[:, None]))["tokens"][:, 0]
    if "embedding_norm.weight" in stack.tensors:
        write = held_norm(stack, "embedding_norm", write, write)
    projection = stack.tensors.optional("embedding_projection.weight")
    return write if projection is None else project(write, projection)


def _linear(attention: NumpyAttention) -> NumpyAttention:
    """Return the attention without biases, and with the gains of norms but without their scale."""
    given: dict[str, Any] = dict.fromkeys(
        f"{part}_bias" for part in ("query", "key", "value", "output")
    )
    for part in ("query", "key"):
        gain, weight = getattr(attention, f"{part}_gain"), getattr(attention, f"{part}_weight")
        if gain is not None:
            rows = weight.reshape(-1, len(gain), weight.shape[1]) * gain[:, None]
            given |= {f"{part}_weight": rows.reshape(weight.shape), f"{part}_gain": None}
    return replace(attention, **given)
