"""Compute loss, divergence and flips from hidden states, holding logits only in small tiles.

With p the clean probabilities and δ the differences of the logits, both over the vocabulary:

    μ = Σ p·δ = (p W)·(hidden′ − hidden),     KL(clean ‖ ablated) = log(1 + Σ p·(exp(δ − μ) − 1))

and the loss changes by KL + μ − δ of the token that came. Differences do not cancel: a change of
zero costs exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.scan.runner import Comparison

_Found: TypeAlias = tuple[Tensor, Tensor, Tensor]

_SAFE = 60.0
"""If a logit grows by more than this, p·exp δ may overflow float32, and the row is recomputed."""

_TILE = {"cpu": (1024, 512), "cuda": (8192, 8192)}
"""The rows and words of a tile: small enough for a CPU's cache, or large enough to fill a GPU."""

_NO_ANSWER = -1e9
"""The logit of a token that cannot be the answer. It is finite, so that no difference is NaN."""

_CLEAN_BYTES = 48_000_000
"""The bytes of clean logits and probabilities of the positions that are compared at once."""


@dataclass(frozen=True)
class Unembedding:
    """The vocabulary projection of a torch model, with all that the model does to its logits.

    weight, bias: (vocab, width), (vocab,) or None. own: computes the logits (row, vocab) of hidden
        states (row, width) if the model does more than weight and bias; otherwise None.
    """

    weight: Tensor
    bias: Tensor | None
    own: Callable[[Tensor], Tensor] | None = None

    def of_answers(self, places: Sequence[int], tokens: int) -> Unembedding:
        """Return what reads all tokens of a text at once: their logits as the start of an answer.

        Its rows are (row, tokens · width). places: the tokens that may be the answer; others get a
        logit so low that their probability is zero. tokens: how many the text has.
        """

        def starts(rows: Tensor) -> Tensor:
            each = self.logits(rows.unflatten(-1, (tokens, -1)).flatten(0, 1))[:, 0]
            logits = each.view(len(rows), tokens)
            found = torch.full_like(logits, _NO_ANSWER)
            found[:, places] = logits[:, places]
            return found

        return replace(self, own=starts)

    def bytes_for(self, positions: int) -> int:
        """Return the most bytes that ``compare`` allocates for this number of positions."""
        vocabulary, (rows, words) = self.weight.shape[0], self._tile(self.weight.device)
        tile = _CLEAN_BYTES if self.own else rows * min(words, vocabulary) * 12
        return tile + min(_CLEAN_BYTES, 12 * positions * vocabulary)

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits (row, vocab) of hidden states (row, width), at least in float32."""
        if self.own is not None:
            return self.own(rows).float()
        rows = _wide(rows)
        parts = [
            rows @ _wide(self.weight[words]).T
            + (0 if self.bias is None else _wide(self.bias[words]))
            for words in self._words(rows.device)
        ]
        return torch.cat(parts, -1)

    def logit_difference(
        self, clean: Tensor, ablated: Tensor, answer: int, foil: int
    ) -> tuple[float, NDArray[np.float64]]:
        """Return logit(answer) − logit(foil) of the unchanged run, and its change in other rows.

        clean, ablated: the projection's inputs, (width,) and (row, width). answer, foil: token ids.
        """
        logits = self.logits(clean[None])[0]
        before = float(logits[answer] - logits[foil])
        change = _wide(ablated) - _wide(clean)
        if self.own is None:
            weight = _wide(self.weight[[answer, foil]])
            return before, _numpy(change @ (weight[0] - weight[1]))
        after = self.logits(ablated)
        moved = after[:, answer] - after[:, foil] - before
        return before, _numpy(moved.masked_fill((change == 0).all(-1), 0))

    def compare(self, clean: Tensor, ablated: Tensor, wanted: Sequence[int]) -> Comparison:
        """Compare the predictions of ablated runs with those of the unchanged run.

        clean, ablated: the projection's inputs, (position, width) and (ablation, position, width).
        wanted: (position,), the id of the token that came next; -1 if it is not known.
        """
        vocabulary, words = self.weight.shape[0], torch.tensor(wanted, device=clean.device)
        at_once = max(1, min(len(clean), _CLEAN_BYTES // (12 * vocabulary)))
        parts = [
            self._compare(clean[some], ablated[:, some], words[some])
            for some in _slices(len(clean), at_once)
        ]
        return Comparison(*(torch.cat(part, -1).cpu().numpy() for part in zip(*parts, strict=True)))

    def _compare(self, clean: Tensor, ablated: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
        """Return the unchanged run's loss, and the loss change, KL and flips of ablated runs.

        The loss is (position,), the others (ablation, position). clean, ablated: the projection's
        inputs, (position, width) and (ablation, position, width).
        wanted: (position,), the id of the token that came next; −1 if it is not known.
        """
        state = _Clean.of(self.logits(clean), wanted)
        mean_weight = None if self.own else self._weight_mean(state.chances)
        rows = self._tile(clean.device)[0]
        if self.own is not None:
            rows = max(1, min(rows, _CLEAN_BYTES // (8 * self.weight.shape[0])))
        parts = []
        for some in _slices(len(ablated), max(1, rows // len(clean))):
            change = _wide(ablated[some]) - _wide(clean)
            if mean_weight is None:
                tile = self._own_changes(ablated[some], change, state)
                mean = (tile * state.chances).sum(-1)
                found = _against(state, iter([(slice(0, tile.shape[-1]), tile)]), mean)
            else:
                mean = (change * mean_weight).sum(-1)
                found = _against(state, self._changes(change), mean)
            parts.append(self._repaired(found, state, clean, ablated[some]))
        loss_delta, kl, flips = (torch.cat(each) for each in zip(*parts, strict=True))
        loss_delta = loss_delta.masked_fill(~state.known, torch.nan)
        return state.loss, loss_delta, kl, flips

    def _weight_mean(self, chances: Tensor) -> Tensor:
        """Return p W, the mean row of the projection's weight: (position, width).

        chances: p, the probabilities (position, vocab) of the unchanged run.
        """
        mean: Tensor | None = None
        for words in self._words(chances.device):
            part = chances[:, words] @ _wide(self.weight[words])
            mean = part if mean is None else mean.add_(part)
        assert mean is not None
        return mean

    def _changes(self, change: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the vocabulary, each with δ, the change of its logits.

        change: of the projection's input, (ablation, position, width). δ is (ablation, position,
            vocab of the slice); the next slice overwrites it.
        """
        ablations, positions, width = change.shape
        flat, buffer = change.reshape(-1, width), None
        for words in self._words(change.device):
            weight = _wide(self.weight[words]).T
            if buffer is None or buffer.shape[1] != weight.shape[1]:
                buffer = flat.new_empty(len(flat), weight.shape[1])
            torch.mm(flat, weight, out=buffer)
            yield words, buffer.view(ablations, positions, -1)

    def _own_changes(self, ablated: Tensor, change: Tensor, state: _Clean) -> Tensor:
        """Return δ, the change of the logits over the vocabulary: (ablation, position, vocab).

        ablated: the projection's input (ablation, position, width). change: ``ablated`` minus the
            unchanged input; where it is zero δ is zero. state: the unchanged run's logits.
        """
        logits = self.logits(ablated.flatten(0, 1)).view(*change.shape[:2], -1)
        # The clean row was projected in another batch, which may have rounded differently.
        same = (change == 0).all(-1, keepdim=True)
        return (logits - state.logits).masked_fill(same, 0)

    def _repaired(self, found: _Found, state: _Clean, clean: Tensor, ablated: Tensor) -> _Found:
        """Return ``found`` with its NaN entries computed again from whole logits.

        They are NaN because they exceed the range of float32. found: loss change, KL and flips,
        each (ablation, position).
        clean, ablated: the projection's inputs, (position, width) and (ablation, position, width).
        """
        loss_delta, kl, flips = found
        beyond = torch.isnan(loss_delta).nonzero()
        for rows in _slices(len(beyond), max(1, _CLEAN_BYTES // (8 * self.weight.shape[0]))):
            some, at = beyond[rows], beyond[rows, 1]
            moved = self.logits(ablated[some[:, 0], at])
            scores = torch.log_softmax(moved, -1)
            before = torch.log_softmax(state.logits[at], -1)
            word = state.wanted[at, None]
            where = tuple(some.T)
            loss_delta[where] = (before.gather(-1, word) - scores.gather(-1, word))[:, 0]
            kl[where] = (state.chances[at] * (before - scores)).sum(-1).clamp(min=0)
            flips[where] = moved.argmax(-1) != state.top[at]
        return loss_delta, kl, flips

    def _words(self, device: torch.device) -> Iterator[slice]:
        return _slices(self.weight.shape[0], self._tile(device)[1])

    @staticmethod
    def _tile(device: torch.device) -> tuple[int, int]:
        return _TILE.get(device.type, _TILE["cpu"])


@dataclass(frozen=True)
class _Clean:
    """The predictions of the unchanged run at some positions, over the whole vocabulary.

    logits, chances: (position, vocab); chances are probabilities. top: the id of the likeliest
        token. wanted: the id of the token that came, 0 if it is not known. known: True if it is.
    loss: in nats, NaN if the token is not known.
    """

    logits: Tensor
    chances: Tensor
    top: Tensor
    wanted: Tensor
    known: Tensor
    loss: Tensor

    @classmethod
    def of(cls, logits: Tensor, wanted: Tensor) -> _Clean:
        known = wanted >= 0
        word = wanted.clamp(min=0)
        scores = torch.log_softmax(logits, -1)
        loss = -scores.gather(-1, word[:, None])[:, 0]
        return cls(
            logits,
            scores.exp_(),
            logits.argmax(-1),
            word,
            known,
            loss.masked_fill(~known, torch.nan),
        )


def _against(state: _Clean, tiles: Iterator[tuple[slice, Tensor]], mean: Tensor) -> _Found:
    """Return loss change, KL and flips (ablation, position); NaN beyond the range of float32.

    state: the unchanged run, with its probabilities p.
    tiles: one slice of the vocabulary after the other, each with δ, the change of its logits
        (ablation, position, vocab of the slice), which is overwritten.
    mean: Σ p·δ (ablation, position).
    """
    expansion = torch.zeros_like(mean)
    largest = torch.full_like(mean, -torch.inf)
    best, top, wanted = largest.clone(), torch.zeros_like(mean), torch.zeros_like(mean)
    scratch: Tensor | None = None
    for words, delta in tiles:
        if scratch is None or scratch.shape != delta.shape:
            scratch = torch.empty_like(delta)
        moved = torch.add(delta, state.logits[:, words], out=scratch)
        torch.maximum(best, moved.amax(-1), out=best)
        top = _picked(top, moved, state.top, words)
        wanted = _picked(wanted, delta, state.wanted, words)
        delta.sub_(mean[..., None])
        torch.maximum(largest, delta.amax(-1), out=largest)
        expansion += delta.expm1_().mul_(state.chances[:, words]).sum(-1)
    kl = torch.log1p(expansion).clamp_(min=0)
    # This comparison selects NaN for recomputation as well.
    return (kl + mean - wanted).masked_fill(~(largest < _SAFE), torch.nan), kl, best > top


def _picked(found: Tensor, tile: Tensor, word: Tensor, words: slice) -> Tensor:
    """Return ``found`` with the entries of wanted tokens that are in this part of the vocabulary.

    found: (ablation, position). tile: (ablation, position, vocab of the slice ``words``).
    word: (position,), the wanted id.
    """
    inside = (word >= words.start) & (word < words.start + tile.shape[-1])
    at = (word - words.start).clamp(0, tile.shape[-1] - 1)
    entry = tile.gather(-1, at[None, :, None].expand(tile.shape[0], -1, 1))[..., 0]
    return torch.where(inside, entry, found)


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor in at least float32; half precision would lose small differences."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
