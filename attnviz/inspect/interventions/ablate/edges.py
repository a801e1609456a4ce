"""Edges of the attention, from one word to another, that an ablation hides before the softmax.

Attention knockout of Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models", section 4: the score of an edge becomes −inf, and the softmax runs
over the other keys of its query. The control hides as many random edges of the same distance; for
an edge to a picture that of other words, and for one to a patch other patches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from attnviz.draw.labels import token_labels, word_label
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.request import read_edges
from attnviz.measures.words import find_in
from attnviz.records import Tokens

Pairs = tuple[tuple[int, int], ...]
"""Positions (query, key) of tokens."""

DRAWS = 8
"""The most times that random edges are drawn for the control."""

PICTURE = "picture"
"""The end of an edge that stands for all tokens of the pictures of a prompt."""

Moved = Literal["both", "query", "key"]
"""What the random edges of a control have elsewhere: both ends, or one."""

CONTROLS: Mapping[Moved, tuple[str, str]] = {
    "both": ("", "random edges"),
    "query": ("from ", "other words"),
    "key": ("to ", "other patches"),
}
"""The preposition and the noun for the random edges of a control."""


class Edge(NamedTuple):
    """An edge between two words of the text: each token of the query word, each of the key word.

    query, key: the words, safe for a terminal; a key may be a picture or a patch. pairs: the
        (query, key) positions that are visible to the model.
    """

    query: str
    key: str
    pairs: Pairs
    moved: Moved = "both"

    @property
    def name(self) -> str:
        """Return the name of the edge, such as ``it → cat``."""
        return f"{self.query} → {self.key}"


@dataclass(frozen=True)
class EdgeAxes:
    """The tokens between which edges run."""

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
        """Return the edge between two words, each as ``find_in`` reads it, or to ``PICTURE``.

        Raises UsageError if a word is not there, or if the query does not see the key.
        """
        asks, asked = self._end(self.queries, query, "query"), self._end(self.keys, key, "key")
        pairs = tuple((at, to) for at in asks for to in asked if to in self.seen(at))
        if not pairs:
            raise UsageError(
                f"--edge: {query!r} (token {asks[0]}) comes before {key!r} (token "
                f"{asked[0]}), and a causal query sees no later key; write the later word "
                "first, or WORD:2 for a word's second occurrence"
            )
        moved: Moved = "both"
        layout = self.keys.layout
        if layout is not None and layout.kinds[asked[0]] != "text":
            moved = "query" if len(asked) > 1 else "key"
        return Edge(_name(self.queries, asks), _name(self.keys, asked), pairs, moved)

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
        """Return up to ``DRAWS`` draws, each with a random edge in the place of each edge.

        What is elsewhere are tokens of the same kind that are not special, and no edge is among
        ``edges``. Empty if an edge has no alternative.
        """
        taken = set(chain.from_iterable(edge.pairs for edge in edges))
        choices = [self._moved(edge, taken) for edge in edges]
        if not all(choices):
            return ()
        generator, draws = np.random.default_rng(seed), dict[Pairs, None]()
        for _ in range(8 * DRAWS):
            places = (moved[generator.integers(len(moved))] for moved in choices)
            pairs = tuple(sorted(chain.from_iterable(places)))
            if len(set(pairs)) == len(pairs) and self.blind(pairs) is None:
                draws[pairs] = None
        return tuple(draws)[:DRAWS]

    def _moved(self, edge: Edge, taken: Collection[tuple[int, int]]) -> list[Pairs]:
        """Return the edge at all other places of the text. taken: positions that are not used."""
        size, ends = max(len(self.queries), len(self.keys)), []
        for tokens, moves in (
            (self.queries, edge.moved != "key"),
            (self.keys, edge.moved != "query"),
        ):
            kinds = ("",) * len(tokens) if tokens.layout is None else tokens.layout.kinds
            ends.append((tokens.special, kinds, moves))

        def fits(end: int, old: int, new: int) -> bool:
            special, kinds, moves = ends[end]
            inside = 0 <= new < len(special)
            return not moves or (inside and not special[new] and kinds[new] == kinds[old])

        def allowed(old: tuple[int, int], new: tuple[int, int]) -> bool:
            both = all(fits(end, old[end], new[end]) for end in (0, 1))
            return both and new not in taken and new[1] in self.seen(new[0])

        found = []
        for by in range(-size, size):
            moved = tuple((q + by * ends[0][2], k + by * ends[1][2]) for q, k in edge.pairs)
            if all(map(allowed, edge.pairs, moved)) and self.blind(moved) is None:
                found.append(moved)
        return found

    def _end(self, tokens: Tokens, typed: str, axis: str) -> Sequence[int]:
        """Return the positions of a word of the text, or of its pictures."""
        layout = tokens.layout
        if layout is not None and typed.strip() == PICTURE:
            return tuple(layout.of_kind("patch", "cls", "newline").tolist())
        word = find_in(tokens, typed)
        if word is None:
            pictures = "an image by --image FILE, " * (typed.strip() == PICTURE)
            if layout is not None:
                sizes = dict.fromkeys(f"{grid.rows} × {grid.columns}" for grid in layout.grids)
                patches = f"ROW,COLUMN from 0 of {' or '.join(sizes)} patches"
                pictures = f"{PICTURE}, {patches}, "
            raise UsageError(
                f"--edge: no {axis} {typed!r} in the text: give {pictures}a word of it, WORD:2 for "
                f"its second occurrence, or an index from 0 to {len(tokens) - 1}"
            )
        return word.span


def _name(tokens: Tokens, word: Sequence[int]) -> str:
    if len(word) == 1:
        return token_labels(tokens)[word[0]]
    if not isinstance(word, range):
        return PICTURE
    return word_label(tokens.texts[word.start : word.stop])
