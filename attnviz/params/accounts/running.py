"""What a design costs when it runs: cache, operations, attention maps, what fits a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnviz.params.accounts.terms import Term

__all__ = ["CacheCount", "CacheKind", "CacheLine", "Fit", "FlopCount", "Kept", "MapCount"]


CacheKind = Literal["full", "sliding", "latent", "linear", "convolution", "cross"]
"""How a layer keeps what it has read."""


class Kept(NamedTuple):
    """What one layer keeps of a sequence.

    kind, window: as of a ``CacheLine``.
    per_token: numbers of a token; of a state, all of it.
    dtype: its own, which a state may have; empty for the cache's.
    """

    kind: CacheKind
    per_token: int
    window: int | None = None
    dtype: str = ""


@dataclass(frozen=True)
class CacheLine:
    """What equal layers keep of one sequence.

    kind: ``full``, ``sliding`` (at most ``window`` tokens), ``latent`` (the squeezed vector),
        ``linear`` (a state that does not grow, as of a state space model), ``convolution`` (the
        last inputs of a short convolution), ``cross`` (the source's, once).
    layers: how many layers keep it.
    per_token: numbers that one layer keeps of a token; of a state, all of it.
    held: for how many tokens; 1 for a state.
    values: numbers of all these layers and one sequence.
    formula: the arithmetic of ``values``.
    dtype: of these numbers.
    """

    kind: CacheKind
    layers: int
    per_token: int
    window: int | None
    held: int
    values: int
    formula: str
    dtype: str


@dataclass(frozen=True)
class CacheCount:
    """The cache of a design.

    tokens, source_tokens, batch, dtype: what it was counted for; a number takes ``bits``.
    lines: layers that keep the same, together.
    values_per_token, bytes_per_token: what one token more adds while no window is full.
    bytes_per_token_late: the same once all sliding windows are full.
    cross_bytes_per_token: what one token more of the source adds.
    bytes: for ``tokens`` and ``batch``, everything.
    cross_bytes: the cross attention's share of it.
    constant_bytes: the share of it that does not grow: states and convolutions.
    """

    tokens: int
    source_tokens: int
    batch: int
    dtype: str
    bits: int
    lines: tuple[CacheLine, ...]
    values_per_token: int
    bytes_per_token: int
    bytes_per_token_late: int
    cross_bytes_per_token: int
    bytes: int
    cross_bytes: int
    constant_bytes: int


@dataclass(frozen=True)
class FlopCount:
    """Operations of one forward pass.

    tokens, source_tokens, batch: what it was counted for.
    attention_projections: 2·b·n·d·(2·H·D + 2·K·D), of all layers.
    attention_scores: scores and mixing over all pairs, 4·b·n²·H·D: the part that grows with the
        square of the length.
    attention_scores_visible: the same where masked pairs are left out: half where causal, a band
        where a window slides.
    ffn: the feed-forward parts, of experts the active ones, with their routers.
    head: the matrix onto the vocabulary, at every token.
    other: embeddings that multiply, poolers, projectors.
    total: all, with ``attention_scores``.
    per_token: one token more, without scores.
    scores_per_token: the scores of one token over ``tokens`` keys.
    terms: the lines of the total.
    """

    tokens: int
    source_tokens: int
    batch: int
    attention_projections: int
    attention_scores: int
    attention_scores_visible: int
    ffn: int
    head: int
    other: int
    total: int
    per_token: int
    scores_per_token: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class MapCount:
    """The attention maps of a pass.

    values: numbers of all maps of ``batch`` sequences.
    bytes: what they take. bits: of one of them, 16 at least: weights may be stored in fewer, what
        a softmax gives is not.
    maps: how many maps there are, a head of a layer each, for one sequence.
    terms: equal layers together, for one sequence.
    """

    values: int
    bytes: int
    bits: int
    maps: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Fit:
    """What fits into a memory.

    memory: its bytes.
    weights: bytes of parameters and buffers.
    tokens: the longest context for ``batch`` sequences; 0 where not one token fits, None where
        nothing ends it.
    binds: what ends it: ``weights`` (they alone do not fit), ``memory`` (the cache fills it),
        ``positions`` (the model knows no longer ones), ``nothing`` (the cache does not grow).
    cache: bytes of the cache at ``tokens``, or of the cache that does not grow.
    left: bytes that stay free at ``tokens``; negative where the weights do not fit.
    by_memory: the longest context if positions did not end it; None where the cache does not grow.
    max_positions: the longest sequence that the design allows, or None.
    """

    memory: int
    weights: int
    batch: int
    tokens: int | None
    binds: Literal["weights", "memory", "positions", "nothing"]
    cache: int
    left: int
    by_memory: int | None
    max_positions: int | None
