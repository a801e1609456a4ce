"""What random texts are made of: a model's plain tokens, and what stands around every text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Tokens

__all__ = ["HasVocabulary", "Vocabulary", "frame_of", "random_copies"]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model.

    plain: ids that are not special.
    before, after: the special tokens around every text.
    ranked: whether a larger id stands for a rarer token, as in vocabularies learnt by frequency.
    texts: what ids stand for.
    """

    plain: NDArray[np.int64]
    before: Tokens
    after: Tokens
    ranked: bool
    texts: Callable[[Sequence[int]], tuple[str, ...]]

    def bare(self) -> Vocabulary:
        """The same with nothing around a text."""
        nothing = Tokens((), (), ())
        return replace(self, before=nothing, after=nothing)


@runtime_checkable
class HasVocabulary(Protocol):
    """A model that can be given random tokens."""

    def vocabulary(self) -> Vocabulary:
        """Its plain tokens, and what stands around every text."""
        ...


def frame_of(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """The special tokens that an encoded text begins and ends with."""
    begin, end = 0, len(tokens)
    while begin < end and tokens.special[begin]:
        begin += 1
    while end > begin and tokens.special[end - 1]:
        end -= 1
    return _cut(tokens, 0, begin), _cut(tokens, end, len(tokens))


def _cut(tokens: Tokens, begin: int, end: int) -> Tokens:
    kept = slice(begin, end)
    return Tokens(tokens.ids[kept], tokens.texts[kept], tokens.special[kept])


def random_copies(vocabulary: Vocabulary, length: int, copies: int, seed: int) -> Tokens:
    """BOS r₁…r_n r₁…r_n …: ``length`` distinct random tokens, ``copies`` times, in its frame.

    Raises ValueError where the vocabulary has fewer plain tokens.
    """
    if length > len(vocabulary.plain):
        raise ValueError(f"{length} distinct tokens of {len(vocabulary.plain)}")
    generator = np.random.default_rng((seed, length, copies))
    drawn = generator.choice(vocabulary.plain, length, replace=False).tolist() * copies
    before, after = vocabulary.before, vocabulary.after
    return Tokens(
        (*before.ids, *drawn, *after.ids),
        (*before.texts, *vocabulary.texts(drawn), *after.texts),
        (*before.special, *(False for _ in drawn), *after.special),
    )
