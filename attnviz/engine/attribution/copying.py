"""Copying heads: measure which heads raise the logit of the token that they read.

Texts of one token show it, see ``one_token``. A head copies a token that is among the five it
raises most: the copy score of Wang et al. 2022, "Interpretability in the Wild", section 3.1, over
random tokens instead of names. It suppresses a token among the five it lowers most (McDougall et
al. 2023, "Copy Suppression").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.attribution.on_torch import lost
from attnviz.engine.attribution.one_token import BATCH, COPIED, TRIED, tried_tokens
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.attribution.residual_pass import Jacobian, ResidualPass
from attnviz.engine.backend import backend_of
from attnviz.engine.hook_points import hooked
from attnviz.engine.patchable import PatchableModel, Untouched, probe_of
from attnviz.engine.scan.plan import is_causal
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.models.resolve import random_twin
from attnviz.records import Input

_CONTROL = 4
"""The control is measured on every fourth token."""


@dataclass(frozen=True)
class CopyingScores:
    """How often each head copies or suppresses the token of a text of that one token.

    tokens: how many were tried. all_tokens: True if these are all plain tokens of the vocabulary.
    copying, suppressing: for each head the share in [0, 1] of tokens that are among the ``COPIED``
        that it raises, or lowers, most.
    chance: the share in a random order, ``COPIED`` divided by the size of the vocabulary.
    control: the share of copied tokens over all heads of the model with random weights; None if
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
    """Return the scores of every head of a causal model.

    tokens: the largest number of tokens to try. seed: of the sample and of the random weights.
    on_progress: called with the number of tokens done and their total.
    Raises UsageError for a model that is not causal or predicts no tokens, UnsupportedError if what
    its heads write cannot be followed to the logits.
    """
    every = tried_tokens(model, tokens, seed)
    fewer = every[::_CONTROL]
    done, total = 0, len(every) + len(fewer)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    opened = open_language_model(model, every)
    ranks = _ranks(opened, every, advance)
    control = None
    try:
        twin = open_language_model(random_twin(model, seed), fewer)
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


def open_language_model(model: Model, tokens: Sequence[int]) -> PatchableModel:
    """Return the model to follow what its heads write; UsageError if it predicts no next token."""
    given = Input.of_ids(tokens[:1])
    opened = backend_of(model).open_patchable("self", given)
    with torch.no_grad(), opened.hook_points.borrowed():
        causal = is_causal(opened, probe_of(given))
    if opened.head is None or not causal:
        raise UsageError(
            f"{model.info.name!r} does not predict the next token: whether its heads copy cannot "
            "be told"
        )
    return opened


def _ranks(
    model: PatchableModel, tokens: Sequence[int], advance: Callable[[int], None]
) -> dict[HeadKey, tuple[Any, Any]]:
    """Return for each head how it ranks each token over a text of that token: two (token,).

    The counts are those of the other tokens that it raises, and lowers, at least as much.
    """
    found: dict[HeadKey, tuple[list[Tensor], list[Tensor]]] = {}
    assert model.head is not None
    weight = model.head.weight.detach().float()
    with model.hook_points.borrowed():
        for start in range(0, len(tokens), BATCH):
            batch = tokens[start : start + BATCH]
            own = torch.tensor(batch, device=weight.device)[:, None]
            for key, written in _written(model, batch):
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


def torch_one_token_logits(
    model: PatchableModel, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], NDArray[np.floating]]]:
    """Yield each head's part of the logits; see ``Backend.one_token_logits``."""
    assert model.head is not None
    weight = model.head.weight.detach().float()
    with model.hook_points.borrowed():
        for start in range(0, len(tokens), BATCH):
            batch = tokens[start : start + BATCH]
            for key, written in _written(model, batch, heads):
                yield key, batch, (written.float() @ weight.T).cpu().numpy()


def _written(
    model: PatchableModel, tokens: Sequence[int], wanted: Collection[HeadKey] | None = None
) -> Iterator[tuple[HeadKey, Tensor]]:
    """Yield each head with its part of the vocabulary projection's input, by token: (token, width).

    wanted: the heads; None for all.
    The pass is linear in the heads' outputs z, so this part is J z, with J its Jacobian.
    """
    projected: list[Tensor] = []

    def catch(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        projected.append(args[0])
        return (args[0][:1, :0], *args[1:])

    flow = ResidualPass(model, Untouched())
    assert model.head is not None
    with hooked(model.head.register_forward_pre_hook(catch)), flow.following():
        model.run(*(Input.of_ids([token]) for token in tokens))
    heads = [(leaf.value, leaf.point) for leaf in flow.leaves if leaf.point is not None]
    if not projected or not projected[0].requires_grad:
        raise lost(model)
    jacobian = Jacobian(projected, [z for z, _ in heads])
    for at, (z, number) in enumerate(heads):
        if not jacobian.leads(at):
            raise lost(model)
        point = model.hook_points.found[number]
        for head in range(point.heads):
            key: HeadKey = (point.kind, point.layer, head)
            if wanted is not None and key not in wanted:
                continue
            alone = torch.zeros_like(z)
            alone[:, :, head] = z.detach()[:, :, head]
            (seen,) = jacobian.moved({at: alone})
            assert seen is not None
            yield key, seen.flatten(1)
