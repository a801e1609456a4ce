"""Which head of a trained decoder follows a pattern most, over sequences of its task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.measures.rows import uniform_weights
from attnviz.sweep.records import PatternScore
from attnviz.sweep.tasks.task import Pattern, Samples

__all__ = ["best_heads", "weight_on"]

_SEQUENCES = 64
"""That heads are looked at over."""


def best_heads(
    model: TorchDecoder, patterns: Sequence[Pattern], samples: Samples
) -> tuple[PatternScore, ...]:
    """The best head of each pattern that the sequences show, over the first 64 of them."""
    few = Samples(samples.ids[:_SEQUENCES], samples.counted[:_SEQUENCES])
    layers = _weights(model, few)
    tokens = few.counted.shape[1]
    even = uniform_weights(tokens, tokens, causal=True)
    found = []
    for pattern in patterns:
        keys = pattern.keys(few)
        if not keys.any():
            continue
        scores = np.stack([weight_on(keys, weights) for weights in layers])  # (layer, head)
        layer, head = np.unravel_index(scores.argmax(), scores.shape)
        spread = weight_on(keys, np.broadcast_to(even, (len(keys), 1, *even.shape)))
        found.append(
            PatternScore(
                name=pattern.name,
                words=pattern.words,
                layer=int(layer),
                head=int(head),
                score=float(scores[layer, head]),
                even=float(spread[0]),
            )
        )
    return tuple(found)


def weight_on(keys: NDArray[np.bool_], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean share of attention on keys, over the queries that have any: (head,), in [0, 1].

    keys: (sequence, query, key). weights: (sequence, head, query, key).
    """
    mass = np.where(keys[:, None], weights, 0).sum(-1, dtype=np.float64)  # (sequence, head, query)
    there = np.asarray(keys.any(-1))[:, None]
    return np.asarray(np.where(there, mass, 0).sum((0, 2)) / there.sum())


def _weights(model: TorchDecoder, samples: Samples) -> list[NDArray[np.floating]]:
    """The attention of each layer, (sequence, head, query, key)."""
    device = next(model.parameters()).device
    with _watched(model) as seen, torch.inference_mode():
        model(torch.from_numpy(samples.ids[:, :-1]).to(device))
    return [weights.float().cpu().numpy() for weights in seen]


@contextmanager
def _watched(model: TorchDecoder) -> Iterator[list[Tensor]]:
    """What the hook points of the attention weights hand on, layer by layer."""
    seen: list[Tensor] = []

    def keep(point: nn.Module, given: tuple[Tensor, ...], weights: Tensor) -> None:
        seen.append(weights)

    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    hooks = [part.weights_point.register_forward_hook(keep) for part in attentions]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
