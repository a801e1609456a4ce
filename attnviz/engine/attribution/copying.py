"""Copying heads: measure which heads raise the logit of the token that they read.

Texts of one token show it, see ``one_token``. A head copies a token that is among the five it
raises most: the copy score of Wang et al. 2022, "Interpretability in the Wild", section 3.1, over
random tokens instead of names. It suppresses a token among the five it lowers most (McDougall et
al. 2023, "Copy Suppression").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.one_token import COPIED, TRIED, tried_tokens
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.backend import backend_of
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.model import Model
from attnviz.models.resolve import random_twin

_CONTROL = 4
"""The control is measured on every fourth token."""


@dataclass(frozen=True)
class CopyingScores:
    """How often each head copies or suppresses a token: the result of ``copying_scores``.

    Each text is one token; a head copies it if its logit is among those that the head raises most.
    tokens: how many were tried. all_tokens: True if these are all plain tokens of the vocabulary.
    copying, suppressing: for each head the share in [0, 1] of tokens that are among the ``COPIED``
        that it raises, or lowers, most.
    chance: the share in a random order, ``COPIED`` divided by the size of the vocabulary.
    control: the share of copied tokens over all heads of the model with random parameters; None if
        that model cannot be made.
    """

    tokens: int
    all_tokens: bool
    copying: Mapping[HeadKey, float]
    suppressing: Mapping[HeadKey, float]
    chance: float
    control: float | None


def copying_scores(
    model: Model,
    *,
    tokens: int = TRIED,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> CopyingScores:
    """Return how often every head of a causal model copies or suppresses a token.

    tokens: the largest number of tokens to try. seed: of the sample and of the random parameters.
    on_progress: called with the number of tokens done and their total.
    Raises UsageError for a model that is not causal or predicts no tokens, UnsupportedError if the
    outputs of its heads cannot be traced to the logits.
    """
    every = tried_tokens(model, tokens, seed)
    fewer = every[::_CONTROL]
    done, total = 0, len(every) + len(fewer)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    found, words = _copied(model, every, advance)
    control = None
    try:
        random, _ = _copied(random_twin(model, seed), fewer, advance)
        control = float(np.mean([copied for copied, _ in random.values()]))
    except (UnsupportedError, LoadError):  # there is no random twin, or no memory for it
        advance(len(fewer))
    return CopyingScores(
        tokens=len(every),
        all_tokens=len(every) == len(model.vocabulary().plain),
        copying={key: float(copied.mean()) for key, (copied, _) in found.items()},
        suppressing={key: float(suppressed.mean()) for key, (_, suppressed) in found.items()},
        chance=COPIED / words,
        control=control,
    )


def _copied(
    model: Model, tokens: Sequence[int], advance: Callable[[int], None]
) -> tuple[dict[HeadKey, NDArray[np.bool_]], int]:
    """Return for each head which tokens it copies and which it suppresses, (2, token).

    The second result is the number of tokens that the model can predict.
    tokens: the ids, each of which is a text of its own.
    advance: called with the number of tokens that were done since the last call.
    """
    info = model.info
    heads: list[HeadKey] = [
        ("self", layer, head) for layer in range(info.layers) for head in range(info.heads)
    ]
    found: dict[HeadKey, list[NDArray[np.bool_]]] = {}
    done: Sequence[int] = ()
    words = 0
    for key, batch, logits in backend_of(model).one_token_logits(tokens, heads):
        if batch is not done:
            advance(len(done))
            done = batch
        own = logits[np.arange(len(batch)), batch][:, None]
        ahead = [(logits >= own).sum(1) - 1, (logits <= own).sum(1) - 1]
        found.setdefault(key, []).append(np.array(ahead) < COPIED)
        words = logits.shape[1]
    advance(len(done))
    return {key: np.concatenate(each, axis=1) for key, each in found.items()}, words
