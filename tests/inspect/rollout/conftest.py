"""Rollouts of made-up weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from attnviz.inspect.rollout.records import RolloutReport
from attnviz.records import ModelInfo, Tokens

PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")


def make_rollout(pieces: Sequence[str] = PIECES, **fields: Any) -> RolloutReport:
    """Made-up weights, followed through three layers."""
    rng = np.random.default_rng(5)
    count = len(pieces)
    raw = np.tril(rng.dirichlet(np.full(count, 0.3), count) + 1e-4)
    raw /= raw.sum(-1, keepdims=True)
    step = 0.5 * raw + 0.5 * np.eye(count)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", 3, 5, 5, 8)
    tokens = Tokens(tuple(range(count)), tuple(pieces), tuple(text == "<s>" for text in pieces))
    made = RolloutReport(info, "self", True, tokens, step @ step @ step, raw, 3)
    return dataclasses.replace(made, **fields)


@pytest.fixture(scope="session")
def rollouts() -> Callable[..., RolloutReport]:
    """Makes rollouts of made-up weights."""
    return make_rollout
