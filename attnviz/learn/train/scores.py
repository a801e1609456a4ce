"""Scores of a stored model's heads on text and on random tokens, with standard errors.

The scores are those of Olsson et al. 2022 and Wang et al. 2022; see ``measures``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.checkpoint import llama_stack, open_checkpoint
from attnviz.attention.functional import Floats
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.text_pass import token_losses
from attnviz.learn.train.report import ModelScores, ScoredHeads, SequenceMean
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.measures.sinks import uniform_weights
from attnviz.records import Tokens

Ids = NDArray[np.int64]

SCORED = ("previous", "first", "duplicate", "induction")
"""The measures on a model's card."""

_HELD_OUT = 3
"""A stream of random numbers that training never draws from, whatever its seed."""

_TOKENS_AT_ONCE, _SEQUENCES = 1024, 32


def open_decoder(directory: Path) -> NumpyStack:
    """Return the stored model as a NumPy decoder in float32; raise LoadError if it is damaged."""
    checkpoint = open_checkpoint(directory)
    return llama_stack(checkpoint.config, checkpoint.tensors, np.float32)


def text_windows(ids: NDArray[np.integer], length: int, beginning: int) -> Ids:
    """Return at most 32 windows spread evenly over a text, each after the beginning token.

    The result is (window, 1 + length). ids: of the text's tokens. length: of a window. beginning:
    the id that is put first. A text shorter than ``length`` is one window.
    """
    length = min(length, len(ids))
    count = min(_SEQUENCES, len(ids) // length)
    starts = np.linspace(0, len(ids) - length, count).astype(np.int64)
    windows = ids[starts[:, None] + np.arange(length)].astype(np.int64)
    return np.insert(windows, 0, beginning, axis=1)


def random_twice(vocabulary: int, beginning: int, length: int, sequences: int, seed: int) -> Ids:
    """Return sequences: the beginning token, random tokens that all differ, and their copy.

    The shape is (sequence, 1 + 2 · length). vocabulary: ids are below it. beginning: the id that is
    put first. length: how many random tokens. sequences: how many. seed: of the tokens.
    """
    random = np.random.default_rng((seed, _HELD_OUT))
    plain = np.delete(np.arange(vocabulary), beginning)
    drawn = np.stack([random.permutation(plain)[:length] for _ in range(sequences)])
    return np.insert(np.tile(drawn, 2), 0, beginning, axis=1)


def head_scores(
    decoder: NumpyStack,
    windows: Ids,
    *,
    beginning: int,
    copies: int = _SEQUENCES,
    copy_tokens: int = 60,
    seed: int = 0,
) -> ModelScores:
    """Measure the pattern scores of every head of a trained decoder.

    decoder: the model. windows: (window, token) of a text, from ``text_windows``.
    beginning: the id that begins a text.
    copies, copy_tokens: number of sequences of random tokens and tokens of one of their two copies;
    the model's context and vocabulary may limit these. seed: of the random tokens.
    """
    config = decoder.shape
    copy_tokens = min(copy_tokens, (config.context - 1) // 2, config.vocabulary - 1)
    twice = random_twice(config.vocabulary, beginning, copy_tokens, copies, seed)
    losses = np.stack(
        [
            token_losses(logits, ids)
            for _, batch in _batches(twice)
            for logits, ids in zip(decoder.logits(batch[:, :-1]), batch, strict=True)
        ]
    )
    return ModelScores(
        (*_scored(decoder, windows, "text"), *_scored(decoder, twice, "random")),
        windows=len(windows),
        window_tokens=windows.shape[1] - 1,
        copies=copies,
        copy_tokens=copy_tokens,
        seed=seed,
        first_copy=_estimate(losses[:, :copy_tokens].mean(1)),
        # The first token of the second copy is not predictable.
        second_copy=_estimate(losses[:, copy_tokens + 1 :].mean(1)),
    )


def _scored(decoder: NumpyStack, sequences: Ids, probe: str) -> tuple[ScoredHeads, ...]:
    """Return the pattern scores of every head and of uniform attention, as means over sequences.

    sequences: (sequence, token) ids. probe: the name of these sequences.
    """
    config, (count, tokens) = decoder.shape, sequences.shape
    uniform = uniform_weights(tokens, tokens, causal=True)
    blank, ordinary, plain = ("",) * tokens, (False,) * tokens, Conditions("self", causal=True)
    every = [Tokens(tuple(ids), blank, ordinary) for ids in sequences.tolist()]
    texts = [TextFacts(text, text, plain) for text in every]
    measured = {name: np.full((config.layers, config.heads, count), np.nan) for name in SCORED}
    even: dict[str, list[float]] = {name: [] for name in SCORED}
    for start, batch in _batches(sequences):

        def observe(layer: int, weights: Floats, outputs: Floats, start: int = start) -> None:
            for sequence, maps in enumerate(weights, start):
                for name, scores in scores_of(RowBlock(texts[sequence], maps), SCORED).items():
                    measured[name][layer, :, sequence] = scores

        decoder.run_outputs(batch, observe)
    for text in texts:
        for name, score in scores_of(RowBlock(text, uniform), SCORED).items():
            even[name].append(float(score))
    return tuple(
        ScoredHeads(
            name,
            probe,
            tuple(tuple(map(_estimate, heads)) for heads in values),
            _estimate(np.array(even[name])).mean,
        )
        for name, values in measured.items()
    )


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
