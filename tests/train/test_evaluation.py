"""The validation loss against a naive loop over windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from attnviz.train.evaluation import validation_loss

VOCABULARY, BEGINNING = 11, 3


def model() -> nn.Module:
    """Predicts from the last two tokens, so that a window's edge matters."""
    torch.manual_seed(0)
    table = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY)

    class Pairs(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            before = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)
            return table[before, ids]

    return Pairs()


@pytest.mark.parametrize("length", [1, 4, 5, 13, 100])
@pytest.mark.parametrize("count", [1, 5, 13, 40])
def test_every_token_is_predicted_once(length: int, count: int) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, count).astype(np.int32)
    forward = model()
    total = 0.0
    for start in range(0, count, length):
        window = [BEGINNING, *tokens[start : start + length].tolist()]
        for end in range(1, len(window)):
            scores = forward(torch.tensor([window[:end]]))[0, -1].tolist()
            total += math.log(sum(map(math.exp, scores))) - scores[window[end]]
    found = validation_loss(forward, tokens, length, BEGINNING, torch.device("cpu"))
    assert found == pytest.approx(total / count, rel=1e-5)
