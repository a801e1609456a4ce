"""Alignment by attention is that of transformers, which does it head set by head set."""

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from attnviz.measures.divergence import aligned, standardised


@pytest.mark.parametrize(("tokens", "frames"), [(5, 40), (12, 30), (1, 9), (7, 3), (6, 6)])
def test_times_are_those_of_transformers(tokens, frames):
    weights = np.random.default_rng(tokens).dirichlet([0.2] * frames, (4, tokens))
    weights = weights.astype(np.float32)
    ours = standardised(weights)
    torched = torch.from_numpy(weights)
    spread, mean = torch.std_mean(torched, dim=-2, keepdim=True, unbiased=False)
    if tokens > 1:
        theirs = _median_filter((torched - mean) / spread, 7)
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    begins = aligned(ours)
    for matrix, found in zip(ours, begins, strict=True):
        rows, times = _dynamic_time_warping(-matrix.astype(np.float64))
        jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
        assert found.tolist() == times[jumps].tolist()


def test_a_path_that_is_known():
    scores = np.full((1, 3, 6), -1.0)
    scores[0, 0, :2] = scores[0, 1, 2:5] = scores[0, 2, 5:] = 1
    assert aligned(scores).tolist() == [[0, 2, 5]]
