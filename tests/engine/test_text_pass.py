"""Losses of a text, from logits in NumPy and from those that a GPU keeps."""

import numpy as np
import pytest
import torch

from attnviz.engine.text_pass import token_losses

from .sizes import set_sizes


@pytest.mark.parametrize("tokens", [0, 1, 2, 11])
def test_losses_are_those_of_float64(tokens, monkeypatch):
    set_sizes(monkeypatch, logit_cells=3 * 23)
    logits = torch.randn(tokens, 23, generator=torch.Generator().manual_seed(0)) * 5
    ids = [(5 * at) % 23 for at in range(tokens)]
    logs = logits.double().log_softmax(-1)
    expected = [-float(logs[at, word]) for at, word in enumerate(ids[1:])]
    for given in (logits.numpy(), logits):
        found = token_losses(given, ids)
        assert found.dtype == np.float64
        assert found == pytest.approx(expected, abs=1e-5)
    if tokens:
        assert token_losses(logits.bfloat16(), ids) == pytest.approx(expected, abs=0.1)
