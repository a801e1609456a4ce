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

from attnviz.engine.observer import BlockFacts, on_host, to_numpy
from attnviz.engine.probing import Probing
from attnviz.inspect.heads.links import between_words, linking
from attnviz.inspect.patterns.measure import TOGETHER
from attnviz.inspect.patterns.probes import OWN, ProbeText, batches
from attnviz.inspect.patterns.sums import SHUFFLES, Evens, LayerSums
from attnviz.measures.registry import MEASURES, OF_ONE_TEXT
from attnviz.measures.rows import Bools, Conditions, TextFacts, Weights
from attnviz.measures.uniform import even_weights, visible_keys
from attnviz.records import AttentionRecord, Input, Kind, Tokens

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

    def of(self, heads: slice) -> Shown:
        """Return what some of the heads show."""
        scores, chance = self.scores[:, heads], self.chance[:, heads]
        weight, even, links = self.weight[heads], self.even[heads], self.links[heads]
        return Shown(scores, chance, self.places[heads], weight, even, links)


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
    found: dict[int, TextFound] = {}
    probes = [ProbeText(OWN, each) for each in texts]
    for batch in batches(probes):
        observer = _Scan([each.passage for each in batch], attention, probing)
        probing.run(observer, [each.passage for each in batch], cells=None)
        found |= {id(probe): one for probe, one in zip(batch, observer.found(), strict=True)}
    return [found[id(probe)] for probe in probes]


class _Scan:
    """An observer that measures the heads over a batch of texts, layer by layer."""

    norms = False

    def __init__(self, texts: Sequence[Input], attention: Conditions, probing: Probing) -> None:
        self._kind = attention.kind
        self._texts = [_Text(text, attention, probing) for text in texts]
        self._shown: list[dict[int, Shown]] = [{} for _ in texts]
        self._waiting: dict[int, dict[int, Weights]] = {}
        self._cells = 0

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        matrix = to_numpy(weights)
        if beside.mask is not None:
            self._shown[text][layer] = self._texts[text].shown(matrix, on_host(beside.mask))
            return
        self._waiting.setdefault(text, {})[layer] = matrix.copy()
        self._cells += matrix.size
        if self._cells > TOGETHER:
            self._measure_waiting()

    def _measure_waiting(self) -> None:
        """Measure the layers that wait, all of a text as if they were one."""
        for text, by_layer in self._waiting.items():
            shown, past = self._texts[text].shown(np.concatenate([*by_layer.values()]), None), 0
            for layer, own in by_layer.items():
                self._shown[text][layer] = shown.of(slice(past, past := past + len(own)))
        self._waiting, self._cells = {}, 0

    def found(self) -> list[TextFound]:
        """Return what each text of the batch shows."""
        self._measure_waiting()
        found = []
        for text, by_layer in zip(self._texts, self._shown, strict=True):
            layers = sorted(by_layer)
            heads = tuple((at, head) for at in layers for head in range(len(by_layer[at].places)))
            scores, chance, *by_head = zip(*(by_layer[at] for at in layers), strict=True)
            joined = [np.concatenate(scores, -1), np.concatenate(chance, -1)]
            joined += map(np.concatenate, by_head)
            found.append(TextFound(text.queries, text.keys, heads, Shown(*joined)))
        return found


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


class _Text:
    """Measures heads over one text."""

    def __init__(self, text: Input, attention: Conditions, probing: Probing) -> None:
        self.queries, self.keys = text.queries(attention.kind), text.keys(attention.kind)
        self._facts = TextFacts(self.queries, self.keys, attention, SHUFFLES, passing=True)
        self._evens = Evens({}, {})
        self._whole = AttentionRecord(
            probing.model.info, attention.kind, attention.causal, self.queries, self.keys, ()
        )
        self._known: dict[bytes, _Links] = {}

    def shown(self, weights: Weights, mask: Bools | None) -> Shown:
        """Return what heads with the given attention weights (head, query, key) show.

        mask: boolean (query, key), which keys each query sees; None for the plain mask.
        """
        heads, links = len(weights), self._links(mask)
        sums = LayerSums(self._facts, self._evens)
        sums.add(weights, 0, mask)
        measured = sums.scores(tuple(range(heads)))
        score, distance = (len(NAMES), heads), (heads, len(FARTHEST))
        found = Shown(
            scores=np.full(score, np.nan),
            chance=np.full(score, np.nan),
            places=np.full((heads, 2), -1),
            weight=np.zeros(distance),
            even=np.zeros(distance),
            links=np.zeros(distance, np.int64),
        )
        lost = np.isnan(weights).any((-2, -1))
        strong = np.take(weights.reshape(heads, -1), links.cells, 1).astype(np.float64)
        strong[lost] = 0
        found.weight[:] = [links.by_distance(row) for row in strong]
        found.even[:], found.links[:] = links.by_distance(links.even), links.by_distance()
        if len(links.cells):
            best = strong.argmax(-1)
            found.scores[0], found.chance[0] = strong.max(-1), links.even[best]
            found.places[:] = links.ends.T[best]
        for row, name in enumerate(NAMES[1:], 1):
            if name in measured.scores:
                found.scores[row] = measured.scores[name]
                chance = measured.shuffled.get(name, measured.uniform.get(name, np.nan))
                found.chance[row] = chance
        found.scores[:, lost], found.places[lost] = np.nan, -1
        for array in found[3:]:
            array[lost] = 0
        return found

    def _links(self, mask: Bools | None) -> _Links:
        key = b"" if mask is None else mask.tobytes()
        if key not in self._known:
            shape = len(self.queries), len(self.keys)
            seen = visible_keys(*shape, self._whole.causal) if mask is None else mask
            linked = linking(self._whole, sink=False) & between_words(self._whole) & seen
            cells = np.flatnonzero(linked)
            ends = np.stack(np.divmod(cells, shape[1]))
            group = distance_group(ends[0] - ends[1], self._whole.kind)
            even = even_weights(seen).reshape(-1)[cells]
            self._known[key] = _Links(cells, ends, group, even)
        return self._known[key]
