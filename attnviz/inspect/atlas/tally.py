"""The numbers of a block of texts, which add up over a corpus: see ``attnviz.mergeable``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.probing import Probing
from attnviz.inspect.atlas.scan import FARTHEST, NAMES, TextFound, scan
from attnviz.measures.exact_sums import exact_sum
from attnviz.measures.registry import MEASURES
from attnviz.mergeable import Tallies, best_of
from attnviz.records import Input, Kind, Tokens

BINS = 20
"""The bins of the histogram of each score."""

SAMPLE = 200
"""The texts from which tenths are taken: those with the smallest hashes, a random sample."""

_BEFORE = 2
"""The tokens before a query and before a key by which two places are told apart."""

_HASH = 6  # bytes: whole numbers that a float holds exactly


def edges(name: str) -> NDArray[np.float64]:
    """Return the edges of the histogram of a score; the last bin has what lies beyond, too."""
    unit = MEASURES[name].unit if name in MEASURES else "share"
    if unit == "tokens":
        return np.array([0.0, *(2.0**power for power in range(BINS))])
    return np.linspace(0.0, 1.0 if unit == "share" else 10.0, BINS + 1)


def tallies(probing: Probing, texts: Sequence[Input], first: int, top: int) -> Tallies:
    """Measure some texts, and return their numbers.

    first: the index of the first text in the corpus. top: how many places of a head are kept.
    """
    found = scan(probing, texts)
    heads = np.array(found[0].heads)
    scores = np.stack([one.shown.scores for one in found])
    chance = np.stack([one.shown.chance for one in found])
    links, weight, even = (np.stack([getattr(one.shown, n) for one in found]) for n in _BY_DISTANCE)
    places, sampled = (_entries(found, first, ranked) for ranked in (True, False))
    best = {"places": best_of(places, top), "sample": best_of(sampled, SAMPLE)}
    named = {int(index) for each in best.values() for index in each[..., 1].ravel() if index >= 0}
    return Tallies(
        sums={
            "texts": np.array([len(found), sum(len(one.queries) for one in found)]),
            "measured": np.isfinite(scores).sum(0),
            "scores": exact_sum(np.nan_to_num(scores)),
            "compared": np.isfinite(chance).sum(0),
            "chance": exact_sum(np.nan_to_num(chance)),
            "histogram": _histogram(scores),
            "links": links.sum(0),
            "weight": exact_sum(weight),
            "even": exact_sum(even),
        },
        most={"heads": heads},
        best=best,
        texts={index: _kept(texts[index - first]) for index in named},
    )


_BY_DISTANCE = ("links", "weight", "even")


def _histogram(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of texts in each bin, (score, head, bin). scores: (text, score, head)."""
    found = np.zeros((*scores.shape[1:], BINS), np.int64)
    for at, name in enumerate(NAMES):
        values = np.clip(np.searchsorted(edges(name), scores[:, at], "right") - 1, 0, BINS - 1)
        for number in range(BINS):
            found[at, :, number] = ((values == number) & np.isfinite(scores[:, at])).sum(0)
    return found


def _entries(found: Sequence[TextFound], first: int, ranked: bool) -> NDArray[np.float64]:
    """Return an entry (head, text, column) for the strongest link of each text.

    Its columns: rank, text, query, key, weight, even, what it is. ranked: True if the weight is the
        rank, and two places are the same if query, key and the tokens before them are; False for a
        random rank, by which each different text has its place. first: the index of the first text.
    """
    columns = []
    for index, one in enumerate(found, first):
        weight, even = one.shown.scores[0], one.shown.chance[0]
        queries, keys = one.queries.ids, one.keys.ids
        read = (queries,) if queries == keys else (queries, keys)
        drawn, places = _number(*read), one.shown.places.tolist()
        rank = weight if ranked else np.full(len(weight), -drawn, np.float64)
        what = [_number(_near(queries, q), _near(keys, k)) if ranked else drawn for q, k in places]
        rows = np.column_stack(
            [rank, np.full(len(weight), index), *one.shown.places.T, weight, even, what]
        )
        rows[np.isnan(weight)] = np.nan
        columns.append(rows)
    return np.stack(columns, 1)


def _near(ids: Sequence[int], place: int) -> Sequence[int]:
    return ids[max(place - _BEFORE, 0) : place + 1]


def _number(*ids: Sequence[int]) -> int:
    """Return a hash of token ids as a whole number."""
    content = repr([*map(tuple, ids)]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_HASH).digest(), "big")


def _kept(given: Input) -> list[list[object]]:
    """Return a text as JSON values, then the decoder's text if it has one; see ``input_of``."""
    texts = (given.text, *(() if given.target is None else (given.target,)))
    found: list[list[object]] = []
    for tokens in texts:
        found += [*tokens.ids], [*tokens.texts], [*map(int, tokens.special)]
    return found


def input_of(kept: Sequence[Sequence[Any]]) -> Input:
    """Return a text from the JSON values of a record."""
    return Input(*(_tokens(*kept[start : start + 3]) for start in range(0, len(kept), 3)))


def _tokens(ids: Sequence[Any], texts: Sequence[Any], special: Sequence[Any]) -> Tokens:
    return Tokens(tuple(map(int, ids)), tuple(map(str, texts)), tuple(map(bool, special)))


def distances(kind: Kind) -> Iterator[str]:
    """Yield the name of each group of distances, such as ``1`` or ``5–8``.

    kind: of the attention; cross attention has one group, ``all``.
    """
    if kind == "cross":
        yield "all"
        return
    for nearest, farthest in zip((1, *(each + 1 for each in FARTHEST[:-1])), FARTHEST, strict=True):
        yield f"{nearest}" if nearest == farthest else f"{nearest}–{farthest}"
