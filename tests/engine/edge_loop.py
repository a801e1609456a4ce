"""The slow way to hide edges: a score of −∞ in the softmax of transformers' eager attention.

Shares nothing with the scan: one run for each set of heads, and every metric from whole logits.
"""

from collections.abc import Collection
from unittest import mock

import torch
from torch.nn import functional

from .ablation_loop import MASK

Pairs = Collection[tuple[int, int]]


def scores_without(model, ids, heads, edges):
    """Log-probabilities (token, word) of an eager model whose softmax sees −∞ at the edges."""
    plain, calls, tokens = functional.softmax, [], len(ids)

    def softmax(scores, *args, **kwargs):
        # A learned sink is one key more.
        if scores.ndim > 2 and scores.shape[-2] == tokens and scores.shape[-1] - tokens in (0, 1):
            scores = scores.clone()
            for head in [head for layer, head in heads if layer == len(calls)]:
                for query, key in edges:
                    scores.view(-1, *scores.shape[-2:])[head, query, key] = -torch.inf
            calls.append(scores)
        return plain(scores, *args, **kwargs)

    with mock.patch.object(functional, "softmax", softmax), torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    assert len(calls) == model.config.num_hidden_layers
    return logits.double().log_softmax(-1)


def loop_metrics(model, ids, heads, edges, *, masked=False):
    """Loss change and KL of each predicted token; of a masked model each word is hidden in turn."""
    runs = [scores_without(model, ids, some, edges) for some in ((), heads)]
    wanted = torch.tensor(ids)[1:]
    if masked:
        hidden = [[*ids[:at], MASK, *ids[at + 1 :]] for at in range(len(ids))]
        runs = [
            torch.stack(
                [scores_without(model, one, some, edges)[at] for at, one in enumerate(hidden)]
            )
            for some in ((), heads)
        ]
        wanted = torch.tensor(ids)
    before, after = runs
    losses = (before - after)[: len(wanted)].gather(-1, wanted[:, None])[:, 0]
    return {
        "loss_delta": losses,
        "kl": (before.exp() * (before - after)).sum(-1),
        "flip_rate": (before.argmax(-1) != after.argmax(-1)).double(),
    }
