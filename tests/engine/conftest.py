"""Fixtures for capture from transformers models."""

import pytest
import torch


class Recorder:
    """An observer that keeps a copy of everything, or of the wanted (kind, layer) pairs only."""

    norms = False

    def __init__(self, wanted=None):
        self.wanted = wanted
        self.seen = {}

    def wants(self, kind, layer):
        return self.wanted is None or (kind, layer) in self.wanted

    def observe(self, text, kind, layer, start, weights, beside):
        assert self.wants(kind, layer)
        assert (start, beside.norms) == (0, None)
        known = self.seen.get((kind, layer), torch.zeros(0, *weights.shape))
        assert len(known) == text, f"{kind} {layer} was handed over twice"
        self.seen[kind, layer] = torch.cat([known.to(weights), weights[None]])


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Small matrices are slower on several threads."""
