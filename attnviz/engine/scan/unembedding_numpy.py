"""Compute loss, divergence and flips from hidden states in NumPy, by tiles; see ``unembedding``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats, project
from attnviz.engine.likely import log_softmax
from attnviz.engine.scan.runner import Comparison
from attnviz.models.pool import spread

_SAFE = 60.0
"""If a logit grows by more than this, p·exp δ may overflow float32, and the row is recomputed."""

_ROWS, _WORDS = 512, 512
"""The rows and words of a tile that stays in a cache."""

_CLEAN_BYTES = 48_000_000
"""The bytes of clean logits and probabilities of the positions that are compared at once."""


@dataclass(frozen=True)
class NumpyUnembedding:
    """The vocabulary projection of a NumPy model; its methods are those of ``ReadOut``.

    weight, bias: (vocab, width), (vocab,) or None.
    """

    weight: Floats
    bias: Floats | None

    def bytes_for(self, positions: int) -> int:
        """Return the most bytes that ``compare`` allocates for this number of positions."""
        vocabulary = len(self.weight)
        tile = _ROWS * min(_WORDS, vocabulary) * 12
        return tile + min(_CLEAN_BYTES, 12 * positions * vocabulary)

    def logits(self, rows: Floats) -> Floats:
        logits: Floats = project(rows, self.weight, self.bias)
        return logits

    def logit_difference(
        self, clean: Floats, changed: Floats, answer: int, foil: int
    ) -> tuple[float, NDArray[np.float64]]:
        row = self.weight[answer] - self.weight[foil]
        shift = 0.0 if self.bias is None else float(self.bias[answer] - self.bias[foil])
        return float(clean @ row) + shift, ((changed - clean) @ row).astype(np.float64)

    @np.errstate(over="ignore", invalid="ignore")
    def compare(self, clean: Floats, changed: Floats, wanted: Sequence[int]) -> Comparison:
        size = max(1, _CLEAN_BYTES // (12 * len(self.weight)))
        parts = [
            self._compare(clean[some], changed[:, some], np.array(wanted)[some])
            for some in (slice(at, at + size) for at in range(0, len(clean), size))
        ]
        return Comparison(*(np.concatenate(part, -1) for part in zip(*parts, strict=True)))

    def _compare(
        self, clean: Floats, changed: Floats, wanted: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
        """Return the unchanged run's loss, and the loss change, KL and flips of changed runs.

        The loss is (position,), the others (change, position). clean, changed: the projection's
        inputs, (position, width) and (change, position, width).
        wanted: (position,), the id of the token that came next; −1 if it is not known.
        """
        logits, known, word = self.logits(clean), wanted >= 0, np.maximum(wanted, 0)
        scores, top = log_softmax(logits), logits.argmax(-1)
        loss = np.where(known, -scores[np.arange(len(word)), word], np.nan)
        chances = np.exp(scores)
        change = np.ascontiguousarray((changed - clean).swapaxes(0, 1))
        mean = np.matmul(change, (chances @ self.weight)[..., None])[..., 0]
        step = max(1, _ROWS // max(len(changed), 1))
        tile = partial(self._tile, change, logits, chances, mean, picked=np.stack([top, word]))
        tiles = [slice(at, at + step) for at in range(0, len(clean), step)]
        found = spread(tile, tiles, change.size * (2.0 * len(self.weight)))
        expansion, largest, best, moved_top, moved_word = (
            np.concatenate(part) for part in zip(*found, strict=True)
        )
        kl = np.maximum(np.log1p(expansion), 0)
        delta, flips = kl + mean - moved_word, best > moved_top
        # This comparison selects NaN for recomputation as well.
        for at, which in np.argwhere(~(largest < _SAFE)):
            moved = self.logits(changed[which, at][None])[0]
            after = log_softmax(moved)
            delta[at, which] = scores[at, word[at]] - after[word[at]]
            kl[at, which] = np.maximum((chances[at] * (scores[at] - after)).sum(), 0)
            flips[at, which] = moved.argmax() != top[at]
        delta[~known] = np.nan
        return loss, delta.T, kl.T, flips.T

    def _tile(
        self,
        change: Floats,
        logits: Floats,
        chances: Floats,
        mean: Floats,
        some: slice,
        *,
        picked: NDArray[np.integer],
    ) -> tuple[Floats, ...]:
        """Return five arrays (position, change) about δ, the change of the logits.

        They are Σ p·(exp(δ − μ) − 1), the largest δ − μ, the largest changed logit, the changed
        logit of the likeliest token, and δ of the wanted token.
        change: (position, change, width) of the projection's input. logits, chances: the unchanged
            logits and probabilities p, (position, vocab). mean: μ = Σ p·δ.
        some: the positions to compute. picked: the ids of the likeliest and of the wanted token.
        """
        part, logits, chances, mean = change[some], logits[some], chances[some], mean[some]
        flat, (top, word) = part.reshape(-1, part.shape[-1]), picked[:, some]
        expansion = np.zeros_like(mean)
        largest, best = (np.full_like(mean, -np.inf) for _ in range(2))
        moved_top, moved_word = np.zeros_like(mean), np.zeros_like(mean)
        for first in range(0, len(self.weight), _WORDS):
            words = slice(first, first + _WORDS)
            delta = (flat @ self.weight[words].T).reshape(*mean.shape, -1)
            moved = delta + logits[:, None, words]
            np.maximum(best, moved.max(-1), out=best)
            for target, tile, wanted in ((moved_top, moved, top), (moved_word, delta, word)):
                at = np.flatnonzero((wanted >= first) & (wanted < first + _WORDS))
                target[at] = tile[at, :, wanted[at] - first]
            delta -= mean[..., None]
            np.maximum(largest, delta.max(-1), out=largest)
            _expm1(delta)
            expansion += np.matmul(delta, chances[:, words, None])[..., 0]
        return expansion, largest, best, moved_top, moved_word


def _expm1(x: Floats) -> None:
    """Replace x by exp(x) − 1 in place, with the relative error of its dtype near zero as well.

    Beyond 80, where rows are recomputed, it is cut off. Without wide vectors NumPy computes this
    function of float32 entry by entry; then it is (u − 1) + u (x − ln u) for the rounded u = exp x:
    ln u is the number whose power u is, and what x has beyond it is added to first order.
    """
    if x.dtype != np.float32 or _in_wide_vectors():
        np.expm1(x, out=x)
        return
    np.clip(x, np.float32(-80), np.float32(80), out=x)
    raised = np.exp(x)
    x -= np.log(raised)
    x *= raised
    raised -= 1
    x += raised


@cache
def _in_wide_vectors() -> bool:
    """Return whether NumPy has a vector version of expm1 of float32 for this processor."""
    introspect = getattr(np.lib, "introspect", None)  # NumPy 2.0 has none
    if introspect is None:
        return False
    versions = introspect.opt_func_info(func_name="^expm1$", signature="^float32$")
    return any(
        not one["current"].startswith("baseline") for one in versions.get("expm1", {}).values()
    )
