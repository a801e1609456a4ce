"""Scores of a stored model's heads on text and on random tokens, with standard errors.

The scores are those of Olsson et al. 2022 and Wang et al. 2022; see ``measures``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.checkpoint import open_checkpoint
from attnviz.attention.family_reading import llama_stack
from attnviz.attention.functional import Floats
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.learn.train.report import ModelScores, ScoredHeads, SequenceMean
from attnviz.measures.rows import Conditions, EqualFormula, EqualRows, RowBlock, Rows, TextFacts
from attnviz.measures.uniform import uniform_weights
from attnviz.records import Tokens

Ids = NDArray[np.int64]

SCORED = ("previous", "first", "duplicate", "induction")
"""The measures on a model's card."""

_HELD_OUT = 3
"""A stream of random numbers that training never draws from, whatever its seed."""

_TOKENS_AT_ONCE = 1024
_SEQUENCES = 32


def open_decoder(directory: Path) -> NumpyStack:
    """Return the stored model as a NumPy decoder in float32; raise LoadError if it is damaged."""
    checkpoint = open_checkpoint(directory)
    return llama_stack(checkpoint.config, checkpoint.tensors, np.float32)


def text_windows(
    ids: NDArray[np.integer], length: int, beginning: int, most: int = _SEQUENCES
) -> Ids:
    """Return windows spread evenly over a text, each after the beginning token.

    The result is (window, 1 + length). ids: of the text's tokens. length: of a window. beginning:
    the id that is put first.
    most: the largest number of windows. A text shorter than ``length`` is one window.
    """
    length = min(length, len(ids))
    count = min(most, len(ids) // length)
    starts = np.linspace(0, len(ids) - length, count).astype(np.int64)
    windows = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
    return np.concatenate([np.full((count, 1), beginning), windows], axis=1)


def random_twice(vocabulary: int, beginning: int, length: int, sequences: int, seed: int) -> Ids:
    """Return sequences of the beginning token, different random tokens and a copy of them.

    vocabulary: ids are below it. beginning: the id that is put first. length: how many random
    tokens. sequences: how many. seed: of the tokens.

    The shape is (sequence, 1 + 2 · length).
    """
    random = np.random.default_rng((seed, _HELD_OUT))
    plain = np.delete(np.arange(vocabulary), beginning)
    drawn = np.stack([random.permutation(plain)[:length] for _ in range(sequences)])
    begun = np.full((sequences, 1), beginning)
    return np.concatenate([begun, drawn, drawn], axis=1)


def head_scores(
    decoder: NumpyStack,
    windows: Ids | None,
    *,
    beginning: int,
    copies: int = _SEQUENCES,
    copy_tokens: int = 60,
    seed: int = 0,
) -> ModelScores:
    """Measure the pattern scores of every head of a trained decoder.

    decoder: the model. windows: (window, token) of a text, from ``text_windows``; None for no text.
    beginning: the id that begins a text.
    copies, copy_tokens: number of sequences of random tokens and tokens of one of their two copies;
    the model's context and vocabulary may limit these. seed: of the random tokens.
    """
    config = decoder.shape
    copy_tokens = min(copy_tokens, (config.context - 1) // 2, config.vocabulary - 1)
    twice = random_twice(config.vocabulary, beginning, copy_tokens, copies, seed)
    losses = np.concatenate([_losses(decoder, batch) for _, batch in _batches(twice)])
    length = losses.shape[1] // 2  # the first token of the second copy is not predictable
    scores = () if windows is None else _scored(decoder, windows, _ON_TEXT, "text")
    return ModelScores(
        (*scores, *_scored(decoder, twice, _ON_RANDOM, "random")),
        windows=0 if windows is None else len(windows),
        window_tokens=0 if windows is None else windows.shape[1] - 1,
        copies=copies,
        copy_tokens=copy_tokens,
        seed=seed,
        first_copy=_estimate(losses[:, :length].mean(1)),
        second_copy=_estimate(losses[:, length + 1 :].mean(1)),
    )


def _second_copy(block: EqualRows) -> Rows:
    """Return each query's induction score and how often it counts, in the second copy only.

    block: rows of attention weights over a text that is repeated once.
    """
    values, counts = block.on_equal(1)
    return values, counts & (block.queries > len(block.text.keys) // 2)


_ON_TEXT = Conditions("self", causal=True).formulas(SCORED)
_ON_RANDOM = {**_ON_TEXT, "induction": _second_copy}


def _scored(
    decoder: NumpyStack, sequences: Ids, scores: Mapping[str, EqualFormula], probe: str
) -> tuple[ScoredHeads, ...]:
    """Return the pattern scores of every head and of uniform attention, as means over sequences.

    sequences: (sequence, token) ids. scores: the formula of each score by name. probe: the name of
    these sequences.
    """
    config, tokens = decoder.shape, sequences.shape[1]
    shape = (config.layers + 1, config.heads, len(sequences))
    measured = {name: np.full(shape, np.nan) for name in scores}
    uniform = uniform_weights(tokens, tokens, causal=True)[None]
    texts = [_facts(ids) for ids in sequences]

    def add(layer: int, sequence: int, weights: Floats) -> None:
        block = RowBlock(texts[sequence], weights)
        for name, formula in scores.items():
            values, counts = formula(block)
            if counts.ndim == 2:  # the first row is the text in its own order
                values, counts = values[..., 0, :], counts[0]
            if counts.any():
                measured[name][layer, :, sequence] = values[..., counts].mean(-1)

    for start, batch in _batches(sequences):

        def observe(layer: int, weights: Floats, outputs: Floats, start: int = start) -> None:
            for number, maps in enumerate(weights):
                add(layer, start + number, maps)

        decoder.run_outputs(batch, observe)
        for number in range(len(batch)):
            add(config.layers, start + number, uniform)
    return tuple(
        ScoredHeads(
            name,
            probe,
            tuple(tuple(map(_estimate, heads)) for heads in values[:-1]),
            _estimate(values[-1, 0]).mean,
        )
        for name, values in measured.items()
    )


def _facts(ids: Ids) -> TextFacts:
    """Return the numbers per token that pattern scores need; only ``ids`` (token,) are known."""
    tokens = Tokens(tuple(ids.tolist()), ("",) * len(ids), (False,) * len(ids))
    return TextFacts(tokens, tokens, Conditions("self", causal=True))


def _losses(decoder: NumpyStack, ids: Ids) -> Floats:
    """Return the cross-entropy of each token after the first in nats: (sequence, token − 1).

    ids: (sequence, token).
    """
    logits = decoder.logits(ids[:, :-1]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    losses: Floats = np.log(np.exp(logits).sum(-1)) - chosen
    return losses


def _batches(sequences: Ids) -> Iterator[tuple[int, Ids]]:
    """Yield the index of the first sequence of each batch, and the batch."""
    size = max(1, _TOKENS_AT_ONCE // sequences.shape[1])
    for start in range(0, len(sequences), size):
        yield start, sequences[start : start + size]


def _estimate(values: Floats) -> SequenceMean:
    """Return the mean over the values that are not NaN; 0 if there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return SequenceMean(0.0, None)
    error = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return SequenceMean(float(known.mean()), error)
