"""What must be known of a text before attention over it can be scored."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.records import View
from attnviz.records import Kind, Tokens

__all__ = ["TextFacts", "is_punctuation", "text_facts"]

SHUFFLES = 8
"""Orders of the tokens whose mean is the base rate of scores that ask which tokens are equal."""

_RARE_SHARE = 0.1
"""Of a text's tokens that are called rare."""

_RARE_KINDS = 3


@dataclass(frozen=True, eq=False)
class TextFacts:
    """One text as scoring sees it.

    queries, keys: the tokens of the two axes; the same object for self-attention.
    kind, causal, view: of the attention.
    orders: (1 + shuffles, token) ids: the text's own, then shuffled ones, special tokens in place.
    delimiters, separators, rare: (key,) what each key is: punctuation or special; special but not
        the first; of the least frequent tokens.
    special: (query,) whether each query is a special token.
    """

    queries: Tokens
    keys: Tokens
    kind: Kind
    causal: bool
    view: View
    orders: NDArray[np.int64]
    delimiters: NDArray[np.bool_]
    separators: NDArray[np.bool_]
    rare: NDArray[np.bool_]
    special: NDArray[np.bool_]

    @property
    def without_first(self) -> bool:
        return self.view == "without-first"


def text_facts(
    queries: Tokens, keys: Tokens, kind: Kind, causal: bool, view: View, ranked: bool
) -> TextFacts:
    """The facts of one text.

    ranked: whether a larger token id stands for a rarer token, as in vocabularies that were
        learnt by frequency; without it no token is called rare.
    """
    special = np.asarray(keys.special, bool)
    separators = special.copy()
    separators[:1] = False
    return TextFacts(
        queries,
        keys,
        kind,
        causal,
        view,
        _orders(queries),
        np.asarray([is_punctuation(text) for text in keys.texts]) | special,
        separators,
        _rare(keys) if ranked else np.zeros(len(keys), bool),
        np.asarray(queries.special, bool),
    )


def is_punctuation(text: str) -> bool:
    """Whether a token is nothing but punctuation marks and symbols, blanks aside."""
    mark = text.strip()
    return bool(mark) and all(unicodedata.category(letter)[0] in "PS" for letter in mark)


def _orders(tokens: Tokens) -> NDArray[np.int64]:
    ids = np.asarray(tokens.ids, np.int64)
    free = np.flatnonzero(~np.asarray(tokens.special, bool))
    orders = np.repeat(ids[None], 1 + SHUFFLES, axis=0)
    generator = np.random.default_rng(len(ids))
    for order in orders[1:]:
        order[free] = ids[generator.permutation(free)]
    return orders


def _rare(tokens: Tokens) -> NDArray[np.bool_]:
    """The tenth of the text's tokens that come last in the vocabulary, special ones aside.

    None of them where these are fewer than three different ones: that would be a word, not rarity.
    """
    ids = np.where(tokens.special, -1, np.asarray(tokens.ids, np.int64))
    count = int(_RARE_SHARE * (ids >= 0).sum())
    least = np.sort(ids)[-max(count, 1)]
    rare = ids >= least
    enough = count > 0 and len(set(ids[rare])) >= _RARE_KINDS and rare.mean() <= 2 * _RARE_SHARE
    return rare if enough else np.zeros(len(ids), bool)
