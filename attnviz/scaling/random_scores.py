"""Random queries and keys, softened without and with the scale 1/√d_k.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1: with entries of mean 0 and variance
1 the products have variance d_k, and the softmax goes where its gradients are extremely small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.queries_keys import products
from attnviz.scaling.estimates import Side
from attnviz.scaling.records import ScalingCase, ScalingReport

__all__ = ["needed_bytes", "random_scaling"]

_BLOCK_CELLS = 2**18
"""Cells of the score matrices that are measured at once."""

_NUMBER = 8
_MATRICES = 8
"""Arrays of a block's size that are there at once: scores, weights and what they are made of."""

_MEASURES_A_SAMPLE = 2 * 7


def needed_bytes(sizes: Sequence[int], seq: int, samples: int) -> int:
    """The memory that ``random_scaling`` takes at its height, in bytes."""
    block = min(_samples_a_block(seq), samples)
    drawn = 2 * block * seq * max(sizes, default=0)
    matrices = _MATRICES * block * seq * seq
    return _NUMBER * (drawn + matrices + _MEASURES_A_SAMPLE * samples)


def random_scaling(
    sizes: Sequence[int],
    seq: int,
    samples: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> ScalingReport:
    """Measure queries and keys whose entries are independent and N(0, 1), in float64.

    sizes: each d_k, at least 1. seq: queries and keys of a sample, at least 2. samples: independent
    draws, at least 1; with two or more every measure has a standard error. What a d_k gives depends
    on seed, seq and samples, not on the other sizes. ``progress`` is told the share that is done.
    """
    ordered = sorted(set(sizes))
    cases, whole = [], sum(ordered) or 1
    for place, d_k in enumerate(ordered):
        before = sum(ordered[:place])

        def advance(share: float, d_k: int = d_k, before: int = before) -> None:
            progress((before + share * d_k) / whole)

        cases.append(_case(d_k, seq, samples, seed, advance))
    return ScalingReport(tuple(cases), seed, seq, samples)


def _case(
    d_k: int, seq: int, samples: int, seed: int, progress: Callable[[float], None]
) -> ScalingCase:
    generator = np.random.default_rng((seed, d_k))
    plain, scaled = Side(1.0), Side(1 / math.sqrt(d_k))
    done = 0
    for block in _blocks(seq, samples):
        scores = products(*_draw(generator, block, seq, d_k))
        plain.add(scores)
        scaled.add(scores)
        done += block
        progress(done / samples)
    return ScalingCase(
        d_k,
        plain.result(d_k, independent=True),
        scaled.result(d_k, independent=True),
        queries=samples * seq,
        weights=samples * seq * seq,
    )


def _draw(
    generator: np.random.Generator, block: int, seq: int, d_k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Queries and keys (block, seq, d_k); sample by sample, so that blocks change no number."""
    drawn = generator.standard_normal((block, 2, seq, d_k))
    return drawn[:, 0], drawn[:, 1]


def _samples_a_block(seq: int) -> int:
    return max(_BLOCK_CELLS // (seq * seq), 1)


def _blocks(seq: int, samples: int) -> Iterator[int]:
    """How many samples are taken at a time."""
    size = _samples_a_block(seq)
    for start in range(0, samples, size):
        yield min(size, samples - start)
