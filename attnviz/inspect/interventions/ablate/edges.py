"""Edges of the attention, from one word to another, that an ablation hides before the softmax.

Attention knockout of Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models", section 4: the score of an edge becomes −inf, and the softmax runs
over the other keys of its query. The control hides as many random edges of the same distance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from attnviz.draw.labels import token_labels, word_label
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.request import read_edges
from attnviz.measures.words import Word, find_in
from attnviz.records import Tokens

Pairs = tuple[tuple[int, int], ...]
"""Positions (query, key) of tokens."""

DRAWS = 8
"""The most times that random edges are drawn for the control."""


class Edge(NamedTuple):
    """An edge between two words of the text: each token of the query word, each of the key word.

    query, key: the words, safe for a terminal. pairs: the (query, key) positions that are visible
        to the model.
    """

    query: str
    key: str
    pairs: Pairs

    @property
    def name(self) -> str:
        """Return the name of the edge, such as ``it → cat``."""
        return f"{self.query} → {self.key}"


@dataclass(frozen=True)
class EdgeAxes:
    """The tokens between which edges run.

    queries, keys: the tokens of the axes of the attention. causal: whether a query sees no later
        key.
    """

    queries: Tokens
    keys: Tokens
    causal: bool

    def seen(self, query: int) -> range:
        """Return the positions of the keys that a query sees."""
        return range(query + 1) if self.causal else range(len(self.keys))

    def blind(self, pairs: Collection[tuple[int, int]]) -> int | None:
        """Return a query that would see no key if ``pairs`` were hidden; None if there is none."""
        hidden: dict[int, set[int]] = {}
        for query, key in pairs:
            hidden.setdefault(query, set()).add(key)
        left = (query for query, keys in hidden.items() if len(keys) == len(self.seen(query)))
        return next(left, None)

    def edge(self, query: str, key: str) -> Edge:
        """Return the edge between two words, each as ``find_in`` reads it.

        Raises UsageError if a word is not there, or if the query does not see the key.
        """
        ends = self._word(self.queries, query, "query"), self._word(self.keys, key, "key")
        pairs = tuple((at, to) for at in ends[0].span for to in ends[1].span if to in self.seen(at))
        if not pairs:
            raise UsageError(
                f"--edge: {query!r} (token {ends[0].span[0]}) comes before {key!r} (token "
                f"{ends[1].span[0]}), and a causal query sees no later key; write the later word "
                "first, or WORD:2 for a word's second place"
            )
        names = _name(self.queries, ends[0].span), _name(self.keys, ends[1].span)
        return Edge(*names, pairs)

    def edges(self, typed: str) -> tuple[Edge, ...]:
        """Return the edges of ``it→cat,it→mat``, each once; UsageError if one cannot be hidden."""
        edges = tuple(dict.fromkeys(self.edge(*words) for words in read_edges(typed)))
        blind = self.blind(set(chain.from_iterable(edge.pairs for edge in edges)))
        if blind is not None:
            word = _name(self.queries, range(blind, blind + 1))
            raise UsageError(
                f"--edge: {word!r} (token {blind}) sees no other key: nothing would be left, "
                "choose another edge"
            )
        return edges

    def random(self, edges: Sequence[Edge], seed: int) -> tuple[Pairs, ...]:
        """Return up to ``DRAWS`` draws, each with a random edge of the same distance for each edge.

        The random edges join tokens that are not special, and are not among ``edges``. Empty if an
        edge has no alternative of its distance. seed: of the draws.
        """
        taken = set(chain.from_iterable(edge.pairs for edge in edges))
        choices = [self._moved(edge.pairs, taken) for edge in edges]
        if not all(choices):
            return ()
        generator, draws = np.random.default_rng(seed), dict[Pairs, None]()
        for _ in range(8 * DRAWS):
            places = (moved[generator.integers(len(moved))] for moved in choices)
            pairs = tuple(sorted(chain.from_iterable(places)))
            if len(set(pairs)) == len(pairs) and self.blind(pairs) is None:
                draws[pairs] = None
        return tuple(draws)[:DRAWS]

    def _moved(self, pairs: Pairs, taken: Collection[tuple[int, int]]) -> list[Pairs]:
        """Return the edge at all other places of the text. taken: positions that are not used."""
        allowed = {
            (query, key)
            for query, special in enumerate(self.queries.special)
            for key in self.seen(query)
            if not special and not self.keys.special[key] and (query, key) not in taken
        }
        size = max(len(self.queries), len(self.keys))
        moved = (tuple((q + by, k + by) for q, k in pairs) for by in range(-size, size))
        return [edge for edge in moved if allowed.issuperset(edge) and self.blind(edge) is None]

    def _word(self, tokens: Tokens, typed: str, axis: str) -> Word:
        word = find_in(tokens, typed)
        if word is None:
            raise UsageError(
                f"--edge: no {axis} {typed!r} in the text: give a word of it, WORD:2 for its "
                f"second place, or an index from 0 to {len(tokens) - 1}"
            )
        return word


def _name(tokens: Tokens, word: range) -> str:
    if len(word) == 1:
        return token_labels(tokens)[word.start]
    return word_label(tokens.texts[word.start : word.stop])
