"""What heads write over texts of one token: their OV circuits, measured by running the model.

Over a text of one token attention sees only that token, so a head's output is what its value and
output projections make of it, in any model: no weight is sliced. Its effect on the logits, through
norms scaled as in this run, is its OV circuit applied to that token (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"). How often a head copies is the copy score of Wang
et al. 2022, "Interpretability in the Wild", section 3.1, over random tokens instead of names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnviz.attention.functional import Array, namespace
from attnviz.engine.backend import NumpyBackend, backend_of
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import HeadKey, Input

COPIED = 5
"""A token counts as copied if it is among this many tokens that a head raises most."""

TRIED = 256
"""The most tokens that are tried; a larger vocabulary is sampled."""


class OneTokenWrite(NamedTuple):
    """How much a head raises the logit of token ``written`` if the text is the one token ``read``.

    read, written: token ids. logits: the change minus the mean change over the whole vocabulary.
    """

    read: int
    written: int
    logits: float


class OneTokenWrites(NamedTuple):
    """The effect of one head on the logits over many texts of one token each.

    tokens: how many tokens were tried. copying: the share of them, in [0, 1], that are among the
        ``COPIED`` tokens whose logits the head raises most. chance: that share in a random order.
    strongest: for some texts the token whose logit is raised most, the largest change first.
    """

    tokens: int
    copying: float
    chance: float
    strongest: tuple[OneTokenWrite, ...]


def tried_tokens(model: Model, tokens: int = TRIED, seed: int = 0) -> list[int]:
    """Return the plain tokens of a vocabulary or a sample; UsageError for other models."""
    if tokens < 1:
        raise UsageError(f"expected at least 1 token to try, got {tokens}")
    if model.kinds != ("self",):
        raise UsageError(
            f"{model.info.name!r} is not a single-stack language model: whether its heads copy "
            "cannot be told"
        )
    plain = model.vocabulary().plain
    if len(plain) > tokens:
        plain = np.random.default_rng(seed).choice(plain, tokens, replace=False)
    return plain.tolist()


def one_token_writes(
    model: Model, heads: Collection[HeadKey], *, tokens: int = TRIED, seed: int = 0, most: int = 8
) -> dict[HeadKey, OneTokenWrites]:
    """Return the effect of each of the heads on the logits over texts of one token.

    tokens: the largest number of tokens to try. seed: of the random sample, if there are more.
    most: the length of ``strongest``. Raises UsageError for a model that does not predict the next
    token, UnsupportedError if the outputs of its heads cannot be traced to the logits.
    """
    tried = tried_tokens(model, tokens, seed)
    copied: dict[HeadKey, list[bool]] = {}
    pairs: dict[HeadKey, list[OneTokenWrite]] = {}
    chance = 0.0
    for head, batch, logits in _logits(model, tried, heads):
        xp = namespace(logits)
        own = xp.take_along_axis(logits, xp.asarray(batch, device=logits.device)[:, None], axis=1)
        above = xp.sum(xp.astype(logits >= own, xp.int32), axis=1) - 1
        best, mean = logits.argmax(1)[:, None], xp.sum(logits, axis=1, dtype=xp.float64)
        raised = xp.take_along_axis(logits, best, axis=1)[:, 0] - mean / logits.shape[1]
        known = (xp.astype(each, xp.float64) for each in (above, best[:, 0]))
        above, words, values = xp.stack([*known, raised]).tolist()  # a GPU is asked once
        copied.setdefault(head, []).extend(number < COPIED for number in above)
        pairs.setdefault(head, []).extend(
            OneTokenWrite(read, int(word), value)
            for read, word, value in zip(batch, words, values, strict=True)
        )
        chance = COPIED / logits.shape[1]
    return {
        head: OneTokenWrites(
            tokens=len(tried),
            copying=float(np.mean(copied[head])),
            chance=chance,
            strongest=tuple(sorted(pairs[head], key=lambda pair: -pair.logits)[:most]),
        )
        for head in pairs
    }


def _logits(
    model: Model, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Array]]:
    """Yield (head, token ids, logits (token, vocab) that it alone adds) by batch of texts."""
    backend, given = backend_of(model), Input.of_ids(tokens[:1])
    if isinstance(backend, NumpyBackend):
        from attnviz.engine.attribution.on_numpy import numpy_one_token_logits

        backend.open_attributor(given)  # refuses what is no sum
        return numpy_one_token_logits(backend.stack, tokens, heads)
    from attnviz.engine.attribution.lens_on_torch import torch_one_token_logits

    return torch_one_token_logits(backend.open_patchable("self", given), model, tokens, heads)
