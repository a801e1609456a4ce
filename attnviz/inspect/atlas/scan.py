"""Measures every head over some texts: its scores, its strongest links, its weight by distance.

A link is the weight from one word to another, the attention sink left out, as in ``attnviz heads``.
A head *fires* on a text at its strongest link there, with that weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import BlockFacts, on_host, to_numpy
from attnviz.engine.probing import Probing
from attnviz.inspect.heads.links import between_words, linking
from attnviz.inspect.patterns.probes import OWN, ProbeText, batches
from attnviz.inspect.patterns.sums import SHUFFLES, Evens, LayerSums
from attnviz.measures.registry import OF_ONE_TEXT
from attnviz.measures.rows import Bools, Conditions, RowBlock, TextFacts, Weights, even_weights
from attnviz.records import AttentionRecord, Input, Kind, Tokens

FIRES = "fires"
NAMES = (FIRES, *OF_ONE_TEXT, "delimiter")
"""The scores that a text gives each head: the weight of its strongest link, and measures."""

FARTHEST = (1, 2, 3, 4, *(2**power for power in range(3, 21)))
"""The largest distance in tokens of each group, such as of 5 to 8; the last group has no end."""

_TOGETHER = 4_000_000
"""The most attention weights that wait until the layers of their text are measured at once."""

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
    """What one text shows. heads: the (layer, head) of each, layer by layer."""

    tokens: Tokens
    heads: tuple[tuple[int, int], ...]
    shown: Shown


def distance_group(distance: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index in ``FARTHEST`` of the group of each distance, which is at least 1."""
    return np.minimum(np.searchsorted(FARTHEST, distance), len(FARTHEST) - 1)


def scan(probing: Probing, texts: Sequence[Tokens]) -> list[TextFound]:
    """Run the model over every text; return what each shows, in the order of ``texts``.

    Raises UsageError if whole matrices of a layer do not fit into memory, UnsupportedError if the
    attention cannot be observed.
    """
    attention = Conditions(probing.kind, probing.causal, ranked=probing.ranked)
    found: dict[int, TextFound] = {}
    probes = [ProbeText(OWN, Input(each)) for each in texts]
    for batch in batches(probes):
        observer = _Scan([each.passage.text for each in batch], attention, probing)
        probing.run(observer, [each.passage for each in batch], cells=None)
        found |= {id(probe): one for probe, one in zip(batch, observer.found(), strict=True)}
    return [found[id(probe)] for probe in probes]


class _Scan:
    """An observer that measures the heads over a batch of texts, all layers of a text at once."""

    norms = False

    def __init__(self, texts: Sequence[Tokens], attention: Conditions, probing: Probing) -> None:
        self._texts, self._attention = texts, attention
        self._waiting: list[list[tuple[int, Weights, Bools | None]]] = [[] for _ in texts]
        self._cells = 0
        self._measures = [_Text(text, attention, probing) for text in texts]
        self._parts: list[dict[int, Shown]] = [{} for _ in texts]

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._attention.kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        matrix = to_numpy(weights).copy()
        mask = None if beside.mask is None else on_host(beside.mask)
        self._waiting[text].append((layer, matrix, mask))
        self._cells += matrix.size
        if self._cells > _TOGETHER:
            self._measure_waiting()

    def _measure_waiting(self) -> None:
        """Measure the matrices that wait; layers of a text with one mask as if they were one.

        Most of the time of a short text is that of the calls, not of its numbers.
        """
        for measures, waiting, parts in zip(
            self._measures, self._waiting, self._parts, strict=True
        ):
            groups: dict[bytes, list[tuple[int, Weights, Bools | None]]] = {}
            for each in waiting:
                groups.setdefault(b"" if each[2] is None else each[2].tobytes(), []).append(each)
            for group in groups.values():
                whole = measures.part(np.concatenate([each[1] for each in group]), group[0][2])
                first = 0
                for layer, matrix, _ in group:
                    some = slice(first, first := first + len(matrix))
                    parts[layer] = Shown(
                        whole.scores[:, some],
                        whole.chance[:, some],
                        *(array[some] for array in whole[2:]),
                    )
            waiting.clear()
        self._cells = 0

    def found(self) -> list[TextFound]:
        """Return what each text of the batch shows."""
        self._measure_waiting()
        found = []
        for text, by_layer in zip(self._texts, self._parts, strict=True):
            layers = sorted(by_layer)
            heads = [(one, head) for one in layers for head in range(len(by_layer[one].places))]
            columns = [*zip(*(by_layer[one] for one in layers), strict=True)]
            joined = [np.concatenate(each, -1) for each in columns[:2]]
            joined += [np.concatenate(each) for each in columns[2:]]
            found.append(TextFound(text, tuple(heads), Shown(*joined)))
        return found


class _Text:
    """Measures heads over one text."""

    def __init__(self, text: Tokens, attention: Conditions, probing: Probing) -> None:
        self._facts = TextFacts(text, text, attention, SHUFFLES, passing=True)
        self._evens = Evens({}, {})
        whole = AttentionRecord(
            probing.model.info, attention.kind, attention.causal, text, text, ()
        )
        self._linking = linking(whole, sink=False) & between_words(whole)

    def part(self, weights: Weights, mask: Bools | None) -> Shown:
        """Return what heads with the given attention weights (head, query, key) show.

        mask: boolean (query, key), which keys each query sees; None for the plain mask.
        """
        heads, _, width = weights.shape
        sums = LayerSums(self._facts, self._evens)
        sums.add(weights, 0, mask)
        measured = sums.scores(tuple(range(heads)))
        seen = RowBlock(self._facts, weights, 0, mask).seen
        cells = np.flatnonzero(self._linking & seen)
        places = np.stack(np.divmod(cells, width))
        group = distance_group(np.abs(places[0] - places[1]))
        strengths = weights.reshape(heads, -1)[:, cells].astype(np.float64)
        evenly = even_weights(seen).reshape(-1)[cells]
        of_group = np.eye(len(FARTHEST))[group]
        lost = np.isnan(weights).any((-2, -1))
        scores, chance = np.full((2, len(NAMES), heads), np.nan)
        where = np.full((heads, 2), -1)
        if len(cells):
            best = np.nan_to_num(strengths).argmax(-1)
            scores[0], chance[0] = strengths.max(-1), evenly[best]
            where = places.T[best]
        for row, name in enumerate(NAMES[1:], 1):
            if name in measured.scores:
                scores[row] = measured.scores[name]
                chance[row] = measured.shuffled.get(name, measured.uniform.get(name, np.nan))
        scores[:, lost] = np.nan
        where[lost] = -1
        counted = np.where(lost[:, None], 0, of_group.sum(0).astype(np.int64))
        return Shown(
            scores,
            chance,
            where,
            np.where(lost[:, None], 0.0, np.nan_to_num(strengths) @ of_group),
            np.where(lost[:, None], 0.0, evenly @ of_group),
            counted,
        )
