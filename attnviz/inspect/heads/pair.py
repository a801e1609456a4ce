"""Which heads link two words, compared with the same two places in shuffled texts.

A head may link two places whatever their tokens are, for example a token and the one before. So all
other tokens except special ones are permuted, and the model reads each such text: the mean weight
of the pair in these texts is called chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.document import Column, Row, Table
from attnviz.draw.labels import word_label
from attnviz.draw.provenance import share
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.errors import UsageError
from attnviz.measures.words import WordPlaces
from attnviz.models.model import Model
from attnviz.records import AttentionRecord, Input, Kind, Tokens

DRAWS, SEED = 50, 0
_BATCH_CELLS = 2**23
"""The most weights of a layer that are computed at once: 32 MB."""

_ROUNDING = 1e-6
"""How far a weight in a batch may be from the same weight in a single text by rounding."""


class Direction(NamedTuple):
    """One direction of a word pair: which word attends to which.

    queries: the indices of one word's tokens. keys: those of the other word's tokens.
    """

    queries: range
    keys: range


class PairLink(NamedTuple):
    """The attention of one head in one direction between the two words of a word pair.

    layer, head: of the head. direction: the index in ``PairLinks.directions``. weight: from the
    first word to all tokens of the second, mean over the tokens of the first, in [0, 1]. chance:
    the mean weight over shuffled texts. reached: the share of these with at least this weight; NaN
    if some weight is NaN.
    """

    layer: int
    head: int
    direction: int
    weight: float
    chance: float
    reached: float

    @property
    def beats_chance(self) -> bool:
        """Return whether the weight is larger than in every shuffled text."""
        return self.reached == 0

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Return a key for sorting: the link furthest from chance comes first.

        It is (whether ``reached`` is NaN, ``reached``, minus the weight).
        """
        return math.isnan(self.reached), self.reached, -self.weight


class PairLinks(NamedTuple):
    """The result of testing a word pair: the heads that link both words, best evidence first.

    names: of each direction, such as ``it → animal``. directions: from one word to the other, and
        back, if a query sees the key. links: one for each head and direction, furthest from chance
        first. draws: the number of shuffled texts. moved: the number of tokens that were shuffled.
    """

    names: Sequence[str]
    directions: Sequence[Direction]
    links: Sequence[PairLink]
    draws: int
    moved: int

    def reached(self, link: PairLink) -> str:
        """Return in how many shuffled texts the weight is at least that of a link: ``3 of 50``."""
        if math.isnan(link.reached):
            return f"? of {self.draws}"
        return f"{round(link.reached * self.draws)} of {self.draws}"


def pair_links(
    model: Model,
    record: AttentionRecord,
    words: tuple[WordPlaces, WordPlaces],
    text: Tokens,
    draws: int = DRAWS,
) -> PairLinks:
    """Measure the attention between two words in ``record`` and in texts with shuffled tokens.

    words: for each of the two its positions among the queries and the keys.
    text: the encoder's text if ``record`` is of a decoder; else it is not used. draws: how many
        texts, in which all tokens but these words are permuted.
    Raises UsageError if no query sees the key, or fewer than two tokens can be shuffled.
    """
    directions = _directions(record, words)
    inputs, moved = _shuffled(record, directions, text, draws)
    kept = {layer.layer: layer.heads for layer in record.layers}
    found = {(layer, head): _given(weights, directions) for layer, head, weights in record}
    chance = {place: np.zeros((draws, len(directions))) for place in found}
    heads = max(map(len, kept.values()))
    batch = max(_BATCH_CELLS // (heads * len(record.queries) * len(record.keys)), 1)
    for start in range(0, draws, batch):
        seen = _PairWeights(record.kind, kept, directions)
        backend_of(model).observe(seen, inputs[start : start + batch], cells=None)
        for (number, layer, head), weights in seen.weights.items():
            chance[layer, head][start + number] = weights
    links = [
        PairLink(
            *place,
            number,
            weight,
            float(chance[place][:, number].mean()),
            _reached(chance[place][:, number], weight),
        )
        for place, weights in found.items()
        for number, weight in enumerate(weights.tolist())
    ]
    links.sort(key=lambda link: link.rank)
    return PairLinks([_name(record, each) for each in directions], directions, links, draws, moved)


def _reached(shuffled: NDArray[np.float64], weight: float) -> float:
    if math.isnan(weight) or np.isnan(shuffled).any():
        return math.nan
    return float((shuffled >= weight - _ROUNDING).mean())


def _directions(
    record: AttentionRecord, words: tuple[WordPlaces, WordPlaces]
) -> tuple[Direction, ...]:
    """Return the directions between the two words in which a query sees a key.

    words: for each of the two its positions among the queries and the keys.
    """
    (first_query, first_key), (second_query, second_key) = words
    found = []
    for query, key in ((first_query, second_key), (second_query, first_key)):
        if query is None or key is None:
            continue
        if record.kind != "cross" and set(query.span) & set(key.span):
            raise UsageError("--pair needs two places of the text: both words are the same one")
        if not record.causal or key.span.start < query.span.stop - 1:
            found.append(Direction(query.span, key.span))
    if not found:
        raise UsageError("--pair: no query sees the key: one word must stand in each text")
    return tuple(found)


def _name(record: AttentionRecord, direction: Direction) -> str:
    query = record.queries.texts[direction.queries.start : direction.queries.stop]
    key = record.keys.texts[direction.keys.start : direction.keys.stop]
    return f"{word_label(query)} → {word_label(key)}"


# Shuffled texts ------------------------------------------------------------------------------


def _shuffled(
    record: AttentionRecord, directions: Sequence[Direction], text: Tokens, draws: int
) -> tuple[list[Input], int]:
    """Return the shuffled inputs, and the number of tokens permuted in each.

    directions: the words, which stay where they are. text: the encoder's text. draws: how many
        inputs. Raises UsageError if fewer than two tokens can be permuted.
    """
    queries = {place for each in directions for place in each.queries}
    keys = {place for each in directions for place in each.keys}
    generator = np.random.default_rng(SEED)

    def free(tokens: Tokens, fixed: Container[int]) -> list[int]:
        special = tokens.special
        return [place for place in range(len(tokens)) if place not in fixed and not special[place]]

    def permuted(tokens: Tokens, places: Sequence[int]) -> Tokens:
        order = np.arange(len(tokens))
        order[list(places)] = generator.permutation(places)
        return tokens.taken(order.tolist())

    if record.kind == "cross":
        asked, seen = free(record.queries, queries), free(record.keys, keys)
        moved = len(asked) + len(seen)
        inputs = [
            Input(permuted(record.keys, seen), permuted(record.queries, asked))
            for _ in range(draws)
        ]
    else:
        places = free(record.queries, queries | keys)
        moved = len(places)
        texts = [permuted(record.queries, places) for _ in range(draws)]
        decoder = record.kind == "decoder"
        inputs = [Input(text, each) if decoder else Input(each) for each in texts]
    if moved < 2:
        raise UsageError(
            f"--pair shuffles the other words of the text, and has {moved} to shuffle: give a "
            "longer text"
        )
    return inputs, moved


class _PairWeights:
    """An observer that records each head's weight for each text and direction of a word pair."""

    norms = False

    def __init__(
        self, kind: Kind, heads: Mapping[int, Sequence[int]], directions: Sequence[Direction]
    ) -> None:
        self._kind, self._heads, self._directions = kind, heads, directions
        self.weights: dict[tuple[int, int, int], NDArray[np.floating]] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and layer in self._heads

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        if not self.wants(kind, layer):
            return
        whole = to_numpy(weights)
        for head in self._heads[layer]:
            self.weights[text, layer, head] = _given(whole[head], self._directions)


def _given(weights: NDArray[np.floating], directions: Sequence[Direction]) -> NDArray[np.floating]:
    """Return one head's attention weight in each direction: sum over keys, mean over queries.

    weights: (query, key) of one head. directions: the positions of the words.
    """
    return np.array(
        [weights[np.ix_(each.queries, each.keys)].sum(1).mean() for each in directions], float
    )


# As a table ----------------------------------------------------------------------------------


def pair_table(report_name: Callable[[int, int], str], pair: PairLinks, least: int = 0) -> Table:
    """Return a table of a word pair's links, with a row for each head and direction.

    report_name: gives the name of a head from its layer and number. least: how many rows a short
    screen must show.
    """
    title = [
        ("Heads that link the two words", True),
        (f"chance: {pair_control(pair)}", False),
        ("here: do the other words matter? without --pair: is a link above its usual?", False),
    ]
    columns = [
        Column("", right=False),
        Column("link", right=False),
        *map(Column, ("weight", "chance", "reached by")),
    ]
    rows = [
        Row(
            [
                report_name(link.layer, link.head),
                pair.names[link.direction],
                share(link.weight),
                share(link.chance),
                pair.reached(link),
            ],
            tone="plain" if link.beats_chance else "faint",
        )
        for link in pair.links
        if not math.isnan(link.weight)
    ]
    return Table(columns, rows, title, least=least)


def pair_control(pair: PairLinks) -> str:
    """Return the explanation of the table's column ``chance`` as a string."""
    return f"mean over {pair.draws} texts with the other {pair.moved} tokens shuffled"
