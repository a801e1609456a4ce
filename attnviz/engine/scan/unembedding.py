"""Compute loss, divergence and flips from hidden states, holding logits only in small tiles.

With p the clean probabilities and δ the differences of the logits, both over the vocabulary:

    μ = Σ p·δ = (p W)·(hidden′ − hidden),     KL(clean ‖ changed) = log(1 + Σ p·(exp(δ − μ) − 1))

and the loss changes by KL + μ − δ of the token that came. Differences do not cancel: a change of
zero costs exactly zero. It is written once, for NumPy and torch arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, Floats, namespace
from attnviz.engine.device_sizes import TILE_BYTES, DeviceSizes, sizes_of
from attnviz.engine.likely import likeliest_answer, log_softmax
from attnviz.measures.rows import on_host
from attnviz.models.pool import spread

if TYPE_CHECKING:  # torch only where needed
    from attnviz.engine.linear_map import Halves

_SAFE = 60.0
"""If a logit grows by more than this, p·exp δ may overflow float32, and the row is recomputed."""

_NO_ANSWER = -1e9
"""The logit of a token that cannot be the answer. It is finite, so that no difference is NaN."""


@dataclass(frozen=True)
class Comparison:
    """The predictions of runs with an ablation or a patch, compared with the unchanged run.

    loss: (position,) cross-entropy of the unchanged run in nats; NaN where no token is wanted.
    loss_delta: (change, position), changed minus unchanged; NaN where no token is wanted.
    kl: (change, position), KL(unchanged ‖ changed) in nats.
    flips: (change, position), True where the likeliest token differs.
    """

    loss: NDArray[np.floating]
    loss_delta: NDArray[np.floating]
    kl: NDArray[np.floating]
    flips: NDArray[np.bool_]


class _Clean(NamedTuple):
    """The unchanged run's logits, ln p and p, (position, vocab), and two words of each position.

    top: the id of the likeliest token. word: that of the token that came, 0 if it is not known.
    """

    logits: Array
    scores: Array
    chances: Array
    top: Array
    word: Array


@dataclass(frozen=True)
class Unembedding:
    """The vocabulary projection of a model, with all that the model does to its logits.

    weight, bias: (vocab, width), (vocab,) or None. own: computes the logits (row, vocab) of hidden
        states (row, width) if a torch model does more than weight and bias; otherwise None.
    given: how much is computed at once; None takes the sizes of the weight's device.
    """

    weight: Array
    bias: Array | None
    own: Callable[[Array], Array] | None = None
    given: DeviceSizes | None = None

    def of_answers(self, places: Sequence[int], tokens: int) -> Unembedding:
        """Return an unembedding that gives each token's logit as the start of an answer.

        It reads rows (row, tokens · width), the states of all tokens of a text side by side.
        places: the tokens that may be the answer; others get probability zero. tokens: how many the
        text has.
        """

        def starts(rows: Array) -> Array:
            logits = self.logits(rows.reshape(len(rows) * tokens, -1))[:, 0].reshape(-1, tokens)
            among = namespace(logits).full_like(logits, _NO_ANSWER)
            among[:, places] = logits[:, places]
            return among

        return replace(self, own=starts)

    def bytes_for(self, positions: int) -> int:
        """Return the most bytes that ``compare`` allocates for this number of positions."""
        most, vocabulary = self._at_once.clean_bytes, len(self.weight)
        rows, words = self._at_once.tile
        tile = most if self.own else rows * min(words, vocabulary) * TILE_BYTES
        return tile + min(most, 12 * positions * vocabulary)

    def logits(self, rows: Array) -> Array:
        """Return logits (row, vocab) of hidden states (row, width), at least in float32."""
        if self.own is not None:
            return self.own(rows).float()
        if (halves := self._halves(rows)) is not None:
            products = halves.times(self.weight)
            return products if self.bias is None else products + wide(self.bias)
        rows = wide(rows)
        parts = [
            rows @ wide(self.weight[words]).T + (0 if self.bias is None else wide(self.bias[words]))
            for words in self._widened()
        ]
        return parts[0] if len(parts) == 1 else namespace(rows).concat(parts, axis=-1)

    def logit_difference(
        self, clean: Array, changed: Array, answer: int, foil: int
    ) -> tuple[float, NDArray[np.float64]]:
        """Return logit(answer) − logit(foil) of the unchanged run, and its change in other rows.

        clean, changed: the projection's inputs, (width,) and (row, width). answer, foil: token ids.
        """
        change = wide(changed) - wide(clean)
        if self.own is None:
            row = wide(self.weight[answer]) - wide(self.weight[foil])
            shift = 0.0 if self.bias is None else float(self.bias[answer] - self.bias[foil])
            return float(wide(clean) @ row) + shift, on_host(change @ row).astype(np.float64)
        logits = self.logits(clean[None])[0]
        before = float(logits[answer] - logits[foil])
        after = self.logits(changed)
        moved = after[:, answer] - after[:, foil] - before
        moved[(change == 0).all(-1)] = 0
        return before, on_host(moved).astype(np.float64)

    @np.errstate(over="ignore", invalid="ignore")
    def compare(self, clean: Array, changed: Array, wanted: Sequence[int]) -> Comparison:
        """Compare predictions of (change, position, width) with (position, width)."""
        xp = namespace(clean)
        words = xp.asarray(wanted, device=clean.device)
        parts = [
            self._compare(clean[some], changed[:, some], words[some])
            for some in _slices(len(clean), self._positions(12))
        ]
        loss, *others = (on_host(xp.concat(part)) for part in zip(*parts, strict=True))
        return Comparison(loss, *(part.T for part in others))

    def _compare(self, clean: Array, changed: Array, wanted: Array) -> tuple[Array, ...]:
        """Return the loss (position,), and loss change, KL and flips (position, change)."""
        xp = namespace(clean)
        logits, known = self.logits(clean), wanted >= 0
        word, scores, top = wanted.clip(min=0), _log_softmax(logits), logits.argmax(-1)
        loss = -scores[xp.arange(len(clean), device=clean.device), word]
        loss[~known] = math.nan
        state = _Clean(logits, scores, xp.exp(scores), top, word)
        change = wide(changed).swapaxes(0, 1) - wide(clean)[:, None]
        mean_weight = None
        if self.own is None:
            parts = (state.chances[:, some] @ wide(self.weight[some]) for some in self._widened())
            mean_weight = sum(parts)[..., None]
        results = xp.empty((5, *change.shape[:2]), dtype=change.dtype, device=change.device)

        def compute(tile: tuple[slice, slice]) -> None:
            some, which = tile
            part, here = change[some, which], _Clean(*(array[some] for array in state))
            if mean_weight is None:
                rows = changed[which, some].swapaxes(0, 1)
                after = self.logits(rows.reshape(-1, rows.shape[-1]))
                delta = after.reshape(*rows.shape[:2], -1) - here.logits[:, None]
                # The clean row was projected in another batch, which may have rounded differently.
                delta[(part == 0).all(-1)] = 0
                mean = (delta * here.chances[:, None]).sum(-1)
                tiles: Iterable[tuple[slice, Array]] = [(slice(0, delta.shape[-1]), delta)]
            else:
                mean, tiles = xp.matmul(part, mean_weight[some])[..., 0], self._changes(part)
            for number, values in enumerate(_against(here, tiles, mean)):
                results[number, some, which] = values

        tiles = list(self._tiles(*change.shape[:2]))
        if isinstance(clean, np.ndarray):
            spread(compute, tiles, change.size * (2.0 * len(self.weight)))
        else:
            for tile in tiles:
                compute(tile)
        kl, largest, best, moved_top, delta = results
        flips = best > moved_top
        # This comparison selects NaN for recomputation as well.
        self._recompute(xp.nonzero(~(largest < _SAFE)), changed, state, (delta, kl, flips))
        delta[~known] = math.nan
        return loss, delta, kl, flips

    def _tiles(self, positions: int, changes: int) -> Iterator[tuple[slice, slice]]:
        """Yield the positions and the changes that are compared at once."""
        rows = self._at_once.tile[0]
        if self.own is not None:  # then the whole vocabulary is computed at once
            rows = min(rows, self._positions(8))
        bounded = self.own is not None or self._at_once.waits  # a cache only sets what is fastest
        at_once = min(rows, changes) if bounded else changes
        many = max(1, rows // max(changes, 1))
        yield from product(_slices(positions, many), _slices(changes, at_once))

    def _changes(self, change: Array) -> Iterator[tuple[slice, Array]]:
        """Yield slices of the vocabulary, each with δ (position, change, vocab of the slice).

        change: of the projection's input, (position, change, width). The next δ overwrites one.
        """
        flat, buffer, xp = change.reshape(-1, change.shape[-1]), None, namespace(change)
        halves = self._halves(flat)
        for words in _slices(len(self.weight), self._at_once.tile[1]):
            if halves is not None:
                yield words, halves.times(self.weight[words]).reshape(*change.shape[:2], -1)
                continue
            weight = wide(self.weight[words]).T
            if buffer is None or buffer.shape[1] != weight.shape[1]:
                shape = len(flat), weight.shape[1]
                buffer = xp.empty(shape, dtype=flat.dtype, device=flat.device)
            xp.matmul(flat, weight, out=buffer)
            yield words, buffer.reshape(*change.shape[:2], -1)

    def _recompute(
        self, beyond: tuple[Array, Array], changed: Array, clean: _Clean, results: Sequence[Array]
    ) -> None:
        """Write loss change, KL and flips (position, change) from whole logits, of ``beyond``."""
        loss_delta, kl, flips = results
        for some in _slices(len(beyond[0]), self._positions(8)):
            at, which = (indices[some] for indices in beyond)
            logits = self.logits(changed[which, at])
            after, word = _log_softmax(logits), clean.word[at]
            loss_delta[at, which] = clean.scores[at, word] - after[range(len(at)), word]
            kl[at, which] = (clean.chances[at] * (clean.scores[at] - after)).sum(-1).clip(min=0)
            flips[at, which] = logits.argmax(-1) != clean.top[at]

    def _widened(self) -> Iterator[slice]:
        """Yield slices of the vocabulary whose weights are widened at once; all that are wide."""
        narrow = self.weight.dtype.itemsize < 4
        return _slices(len(self.weight), self._at_once.tile[1] if narrow else len(self.weight))

    def _halves(self, rows: Array) -> Halves | None:
        """Return rows (row, width) for halves without gradients; None where weights are widened."""
        narrow = not isinstance(self.weight, np.ndarray) and self.weight.dtype.itemsize == 2
        if not narrow or rows.requires_grad:
            return None
        from attnviz.engine.linear_map import Halves, sums_halves  # torch only where needed

        in_halves = sums_halves(self.weight.device.type, self.weight.dtype)
        return Halves(rows, self.weight.dtype) if in_halves else None

    def _positions(self, size: int) -> int:
        """Return for how many positions the whole vocabulary is held at once, in ``size`` bytes."""
        return max(1, self._at_once.clean_bytes // (size * len(self.weight)))

    @property
    def _at_once(self) -> DeviceSizes:
        return self.given or sizes_of(self.weight)


def _against(clean: _Clean, tiles: Iterable[tuple[slice, Array]], mean: Array) -> tuple[Array, ...]:
    """Return KL, the largest δ − μ, the largest logit, that of the clean top, δ of the wanted word.

    All are (position, change). mean: μ = Σ p·δ. tiles: one slice of the vocabulary after the other,
    each with δ (position, change, vocab of the slice), which is overwritten. Which words a slice
    has is asked of none: a GPU would be waited for.
    """
    xp = namespace(mean)
    expansion, top, word = (xp.zeros_like(mean) for _ in range(3))
    largest, best = (xp.full_like(mean, -math.inf) for _ in range(2))
    scratch, every = None, xp.arange(len(mean), device=mean.device)
    for words, delta in tiles:
        if scratch is None or scratch.shape != delta.shape:
            scratch = xp.empty_like(delta)
        moved = xp.add(delta, clean.logits[:, None, words], out=scratch)
        xp.maximum(best, xp.max(moved, axis=-1), out=best)
        for target, tile, ids in ((top, moved, clean.top), (word, delta, clean.word)):
            here = (ids >= words.start) & (ids < words.stop)
            of_ids = tile[every, :, (ids - words.start).clip(0, tile.shape[-1] - 1)]
            target[:] = xp.where(here[:, None], of_ids, target)
        delta -= mean[..., None]
        xp.maximum(largest, xp.max(delta, axis=-1), out=largest)
        _expm1(delta)
        expansion += xp.matmul(delta, clean.chances[:, words, None])[..., 0]
    kl = xp.log1p(expansion).clip(min=0)
    return kl, largest, best, top, kl + mean - word


def compared_answers(
    clean: NDArray[np.float64], changed: NDArray[np.float64], label: int | None
) -> Comparison:
    """Return a comparison of the answers of changed runs with that of the unchanged run.

    clean, changed: logits (token, 2) and (change, token, 2) of the tokens that may be the answer.
    label: 0 compares its start, 1 its end, None both, as two positions of ``Comparison``. The loss
    is -ln p of the start and of the end that the unchanged run predicts.
    """
    some = [0, 1] if label is None else [label]
    before, after = (log_softmax(logits.swapaxes(-1, -2)) for logits in (clean, changed))
    span = likeliest_answer(before.T)
    wanted = [span.start, span.end]
    loss = -before[[0, 1], wanted]
    flips = after.argmax(-1) != before.argmax(-1)
    return Comparison(
        loss[some],
        (-after[:, [0, 1], wanted] - loss)[:, some],
        (np.exp(before) * (before - after)).sum(-1).clip(min=0)[:, some],
        flips[:, some],
    )


def wide(rows: Array) -> Array:
    """Return an array in at least float32; half precision would lose small differences."""
    if rows.dtype.itemsize >= 4:
        return rows
    xp = namespace(rows)
    return xp.astype(rows, xp.float32)


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, max(size, 1)):
        yield slice(start, min(start + size, length))


def _log_softmax(logits: Array) -> Array:
    return log_softmax(logits) if isinstance(logits, np.ndarray) else logits.log_softmax(-1)


def _expm1(x: Array) -> None:
    """Replace x by exp(x) − 1 in place, with the relative error of its dtype near zero as well.

    Beyond 80, where rows are recomputed, it is cut off. Without wide vectors NumPy computes this
    function of float32 entry by entry; then it is (u − 1) + u (x − ln u) for the rounded u = exp x:
    ln u is the number whose power u is, and what x has beyond it is added to first order.
    """
    if not isinstance(x, np.ndarray):
        x.expm1_()
        return
    if x.dtype != np.float32 or _in_wide_vectors():
        np.expm1(x, out=x)
        return
    np.clip(x, np.float32(-80), np.float32(80), out=x)
    raised: Floats = np.exp(x)
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
    known = versions.get("expm1", {}).values()
    return any(not version["current"].startswith("baseline") for version in known)
