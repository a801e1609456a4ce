"""Measures every head over some texts: its scores, its strongest links, its weight by distance.

A link is the weight from one word to another, the attention sink left out, as in ``attnviz heads``.
A head *fires* on a text at its strongest link there, with that weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.probing import Probing
from attnviz.inspect.heads.links import between_words, linking
from attnviz.inspect.patterns.measure import Beside, measure
from attnviz.inspect.patterns.probes import OWN, ProbeText
from attnviz.inspect.patterns.summary import stacked
from attnviz.inspect.patterns.sums import TextScores
from attnviz.measures.registry import MEASURES, OF_ONE_TEXT
from attnviz.measures.rows import Conditions, Weights
from attnviz.measures.uniform import even_weights, visible_keys
from attnviz.records import AttentionRecord, Bools, Input, Kind, Tokens

FIRES = "fires"
NAMES = (FIRES, *OF_ONE_TEXT)
"""The scores that a text gives each head: the weight of its strongest link, and measures."""

BINS = 20
"""The bins of the histogram of each score."""

FARTHEST = (1, 2, 3, 4, *(2**power for power in range(3, 21)))
"""The largest distance in tokens of each group, such as of 5 to 8; the last group has no end."""

Floats = NDArray[np.float64]


class Shown(NamedTuple):
    """What a text shows of some heads.

    scores, chance: (score, head), in the order of ``NAMES``; NaN if the text cannot show it. chance
        is what uniform attention gives, or the head over shuffled tokens for measures that ask if
        tokens are equal; of ``fires`` it is the weight of uniform attention at that link.
    places: (head, 2), the query and the key of the strongest link; -1 without one.
    weight, even: (head, distance), the summed weight of its links at each distance, and that of
        uniform attention. links: (head, distance), how many there are.
    """

    scores: Floats
    chance: Floats
    places: NDArray[np.int64]
    weight: Floats
    even: Floats
    links: NDArray[np.int64]


class TextFound(NamedTuple):
    """What one text shows.

    queries, keys: its tokens, the same but for cross attention. heads: the (layer, head) of each,
    layer by layer.
    """

    queries: Tokens
    keys: Tokens
    heads: tuple[tuple[int, int], ...]
    shown: Shown


def distance_group(distance: NDArray[np.int64], kind: Kind) -> NDArray[np.int64]:
    """Return the index in ``FARTHEST`` of the group of each distance, which is not 0.

    kind: of the attention; two texts have no distance, so that of cross attention all are the
    first group.
    """
    if kind == "cross":
        return np.zeros_like(distance)
    distance = np.abs(distance)
    return np.minimum(np.searchsorted(FARTHEST, distance), len(FARTHEST) - 1)


def distances(kind: Kind) -> Iterator[str]:
    """Yield the name of each group of distances, such as ``1`` or ``5–8``.

    kind: of the attention; cross attention has one group, ``all``.
    """
    if kind == "cross":
        yield "all"
        return
    for before, farthest in pairwise((0, *FARTHEST)):
        yield f"{farthest}" if farthest == before + 1 else f"{before + 1}–{farthest}"


def edges(name: str) -> Floats:
    """Return the edges of the histogram of a score; the last bin has what lies beyond, too."""
    unit = MEASURES[name].unit if name in MEASURES else "share"
    if unit == "tokens":
        return np.array([0.0, *(2.0**power for power in range(BINS))])
    return np.linspace(0.0, 1.0 if unit == "share" else 10.0, BINS + 1)


def scan(probing: Probing, texts: Sequence[Input]) -> list[TextFound]:
    """Run the model over every text; return what each shows, in the order of ``texts``.

    Raises UsageError if whole matrices of a layer do not fit into memory, UnsupportedError if the
    attention cannot be observed.
    """
    attention = Conditions(probing.kind, probing.causal, ranked=probing.ranked)

    def links_of(text: ProbeText) -> Beside:
        return _TextLinks(text.passage, attention, probing)

    probes = [ProbeText(OWN, text) for text in texts]
    results = measure(probing, probes, attention, None, lambda work: None, beside=links_of)
    return [_found(result, attention.kind) for result in results]


def _found(result: TextScores, kind: Kind) -> TextFound:
    stack, passage = stacked([result], OF_ONE_TEXT), result.text.passage
    by_layer = [layer.beside for layer in result.layers.values()]
    links = {name: np.concatenate([layer[name] for layer in by_layer]) for name in by_layer[0]}
    scores = np.vstack([links.pop("fires"), stack.scores[0]])
    scores[:, [place in result.lost for place in stack.places]] = np.nan
    shown = Shown(scores, np.vstack([links.pop("fires_even"), stack.base[0]]), **links)
    return TextFound(passage.queries(kind), passage.keys(kind), tuple(stack.places), shown)


class _Links(NamedTuple):
    """The links that a text has under one mask, in the order of their queries and keys.

    cells: their places in a flat matrix. ends: (2, link), queries and keys. group: of the distance
    of each. even: the weight of uniform attention on each.
    """

    cells: NDArray[np.intp]
    ends: NDArray[np.intp]
    group: NDArray[np.int64]
    even: Floats

    def by_distance(self, weights: Floats | None = None) -> Floats:
        """Return for each group of distances the sum of ``weights``, or the number of links."""
        return np.bincount(self.group, weights, len(FARTHEST)).astype(np.float64)


class _TextLinks:
    """Measures the links of heads over one text."""

    def __init__(self, text: Input, attention: Conditions, probing: Probing) -> None:
        queries, keys = text.queries(attention.kind), text.keys(attention.kind)
        info = probing.model.info
        self._whole = AttentionRecord(info, attention.kind, attention.causal, queries, keys, ())
        self._known: dict[bytes, _Links] = {}

    def __call__(self, weights: Weights, mask: Bools | None) -> dict[str, NDArray[Any]]:
        """Return the links of heads with the given attention weights (head, query, key).

        mask: boolean (query, key), which keys each query sees; None for the plain mask. Besides the
        arrays of ``Shown``: ``fires``, the weight of the strongest link, and that of uniform
        attention there.
        """
        heads, links = len(weights), self._links(mask)
        lost = np.isnan(weights).any((-2, -1))
        strong = np.take(weights.reshape(heads, -1), links.cells, 1).astype(np.float64)
        strong[lost] = 0
        fires, even = np.full((2, heads), np.nan)
        places = np.full((heads, 2), -1)
        if len(links.cells):
            best = strong.argmax(-1)
            fires, even, places = strong.max(-1), links.even[best], links.ends.T[best]
        by_distance = {
            "weight": np.array([links.by_distance(row) for row in strong]),
            "even": np.tile(links.by_distance(links.even), (heads, 1)),
            "links": np.tile(links.by_distance().astype(np.int64), (heads, 1)),
        }
        places[lost] = -1
        for sums in by_distance.values():
            sums[lost] = 0
        return {"fires": fires, "fires_even": even, "places": places, **by_distance}

    def _links(self, mask: Bools | None) -> _Links:
        key = b"" if mask is None else mask.tobytes()
        if key not in self._known:
            shape = len(self._whole.queries), len(self._whole.keys)
            seen = visible_keys(*shape, self._whole.causal) if mask is None else mask
            linked = linking(self._whole, sink=False) & between_words(self._whole) & seen
            cells = np.flatnonzero(linked)
            ends = np.stack(np.divmod(cells, shape[1]))
            group = distance_group(ends[0] - ends[1], self._whole.kind)
            even = even_weights(seen).reshape(-1)[cells]
            self._known[key] = _Links(cells, ends, group, even)
        return self._known[key]
