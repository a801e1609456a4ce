"""Copying heads: measure which heads raise the logit of the token that they read.

Texts of one token show it, see ``one_token``. A head copies a token that is among the five it
raises most: the copy score of Wang et al. 2022, "Interpretability in the Wild", section 3.1, over
random tokens instead of names. It suppresses a token among the five it lowers most (McDougall et
al. 2023, "Copy Suppression").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.attribution.one_token import COPIED, TRIED, tried_tokens
from attnviz.engine.attribution.one_token_on_torch import require_language_model, written_alone
from attnviz.engine.attribution.parts import ONE_TOKEN_BATCH, HeadKey
from attnviz.engine.backend import backend_of
from attnviz.engine.patchable import PatchableModel
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.model import Model
from attnviz.models.resolve import random_twin
from attnviz.records import Input

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

    opened = _open(model, every)
    ranks = _ranks(opened, every, advance)
    control = None
    try:
        twin = _open(random_twin(model, seed), fewer)
        by_head = _ranks(twin, fewer, advance)
        control = float(np.mean([above < COPIED for above, _ in by_head.values()]))
    except (UnsupportedError, LoadError):  # there is no random twin, or no memory for it
        advance(len(fewer))
    assert opened.head is not None
    return CopyingScores(
        tokens=len(every),
        all_tokens=len(every) == len(model.vocabulary().plain),
        copying={key: float((above < COPIED).mean()) for key, (above, _) in ranks.items()},
        suppressing={key: float((below < COPIED).mean()) for key, (_, below) in ranks.items()},
        chance=COPIED / len(opened.head.weight),
        control=control,
    )


def _open(model: Model, tokens: Sequence[int]) -> PatchableModel:
    given = Input.of_ids(tokens[:1])
    opened = backend_of(model).open_patchable("self", given)
    require_language_model(opened, model.info.name, given)
    return opened


def _ranks(
    model: PatchableModel, tokens: Sequence[int], advance: Callable[[int], None]
) -> dict[HeadKey, tuple[Any, Any]]:
    """Return the rank of each text's only token in each head's effect, as two arrays (token,).

    The first counts the other tokens of the vocabulary whose logit the head raises at least as
    much, the second those whose logit it raises at most as much.
    tokens: the ids, each of which is a text of its own.
    advance: called with the number of tokens that were done since the last call.
    """
    found: dict[HeadKey, tuple[list[Tensor], list[Tensor]]] = {}
    assert model.head is not None
    weight = model.head.weight.detach().float()
    with model.hook_points.borrowed():
        for start in range(0, len(tokens), ONE_TOKEN_BATCH):
            batch = tokens[start : start + ONE_TOKEN_BATCH]
            own = torch.tensor(batch, device=weight.device)[:, None]
            for key, written in written_alone(model, batch):
                logits = written.float() @ weight.T  # (token, word)
                copied = logits.gather(1, own)
                above, below = found.setdefault(key, ([], []))
                above.append((logits >= copied).sum(1) - 1)
                below.append((logits <= copied).sum(1) - 1)
            advance(len(batch))
    return {
        key: (torch.cat(above).cpu().numpy(), torch.cat(below).cpu().numpy())
        for key, (above, below) in found.items()
    }
