"""Screens of reports, texts of strangers, and rollouts of made-up weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from attnviz.draw.blocks import Block
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.heads.document import heads_document
from attnviz.inspect.heads.report import View, compare_heads
from attnviz.inspect.rollout.flow import Rollout
from attnviz.records import HeadsReport, ModelInfo, Tokens

HOSTILE = (
    "</svg><script>alert(1)</script>",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eevil\u202c",
    'say "hi", it\'s',
    "line\nbreak\r\n\ttab",
    "nul\x00",
    "<",
    "&amp;",
    "$x^2$",
    "=1+1",
    "]]>-->",
    "\x9bC1\u2028\ufffe",
)
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")


def draw(
    reports: HeadsReport | Sequence[HeadsReport],
    view: View | None = None,
    theme: Theme | None = None,
    width: int = 80,
    height: int = 45,
) -> Block:
    """The screen of one report, or of several side by side."""
    several = [reports] if isinstance(reports, HeadsReport) else reports
    document = heads_document(compare_heads(several), view or View())
    means = dataclasses.replace(theme or Theme(colour=False), lines=height)
    return terminal_block(document, means, width)


def make_rollout(pieces: Sequence[str] = PIECES, **fields: Any) -> Rollout:
    """Made-up weights, followed through three layers."""
    rng = np.random.default_rng(5)
    count = len(pieces)
    raw = np.tril(rng.dirichlet(np.full(count, 0.3), count) + 1e-4)
    raw /= raw.sum(-1, keepdims=True)
    step = 0.5 * raw + 0.5 * np.eye(count)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", 3, 5, 5, 8)
    tokens = Tokens(tuple(range(count)), tuple(pieces), tuple(text == "<s>" for text in pieces))
    made = Rollout(info, "self", True, tokens, step @ step @ step, raw, 3)
    return dataclasses.replace(made, **fields)


@pytest.fixture(scope="session")
def screen() -> Callable[..., Block]:
    return draw


@pytest.fixture(scope="session")
def hostile() -> Sequence[str]:
    return HOSTILE


@pytest.fixture(scope="session")
def rollouts() -> Callable[..., Rollout]:
    """Makes rollouts of made-up weights."""
    return make_rollout
