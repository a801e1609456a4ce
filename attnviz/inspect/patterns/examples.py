"""Small example maps for the best heads of each label, on a text where the label shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import BlockFacts
from attnviz.engine.probing import Probing
from attnviz.inspect.patterns.probes import COPIES, OWN, ProbeText
from attnviz.inspect.patterns.records import Example, PatternReport, PatternScores
from attnviz.inspect.patterns.sums import in_view
from attnviz.measures.registry import View, label_named
from attnviz.records import Floats, Input, Kind

_SENTENCE = "The cat sat on the mat, and the dog slept by the door."
_COPIES = (8, 2, 0)
"""The number of distinct tokens, the copies and the seed of the random text."""

_LONGEST = 32
_LABELLED = 6
_OTHERS = 3
"""How many of the best heads of a score get a map if they have no label."""

Place = tuple[int, int]


def examples_of(
    probing: Probing, texts: Sequence[ProbeText], report: PatternReport
) -> PatternReport:
    """Return the report with a small map for the best heads of each label.

    probing: runs the model. texts: those of the pattern scores.
    """
    maps: dict[Place, Example] = {}
    for label in report.labels:
        heads = _best(report, label, maps)
        passage = _passage(probing, texts, label) if heads else None
        if passage is not None:
            maps |= _maps(probing, passage, report.view, [_place(head) for head in heads])
    with_maps = tuple(replace(head, example=maps.get(_place(head))) for head in report.heads)
    return replace(report, heads=with_maps)


def _place(head: PatternScores) -> Place:
    return head.layer, head.head


def _best(report: PatternReport, label: str, taken: dict[Place, Example]) -> list[PatternScores]:
    """Return the best heads of a label that have no map yet, those labelled with it first."""
    labelled = report.labelled(label)[:_LABELLED]
    others = [head for head in report.ranked(label)[:_OTHERS] if head.label is None]
    return [head for head in (*labelled, *others) if _place(head) not in taken]


def _passage(probing: Probing, texts: Sequence[ProbeText], label: str) -> Input | None:
    """Return a short text in which the label can be seen, or None.

    probing: prepares texts for the model. texts: those of the pattern scores.
    """
    own = [text for text in texts if text.probe == OWN]
    if label_named(label).family == "relation":
        fitting = [
            text
            for text in texts
            if text.words is not None and label in {name for name, _, _ in text.words.pairs}
        ]
        return fitting[0].passage if fitting else None
    if own:
        return _shortened(own[0].passage)
    if label_named(label).family == "identity" and any(text.probe == COPIES for text in texts):
        return probing.copies(*_COPIES)
    return _shortened(probing.input_of(_SENTENCE))


def _shortened(passage: Input) -> Input:
    target = passage.target
    return Input(passage.text.cut(_LONGEST), None if target is None else target.cut(_LONGEST))


def _maps(
    probing: Probing, passage: Input, view: View, places: Sequence[Place]
) -> dict[Place, Example]:
    keep = _Keep(probing.kind, view, places, passage)
    probing.run(keep, [passage])
    queries, keys = passage.queries(probing.kind), passage.keys(probing.kind)
    return {place: Example(queries, keys, matrix) for place, matrix in keep.maps.items()}


class _Keep:
    """An observer that records maps of a few heads over one short text.

    The maps are drawn after the report's weight transform.
    """

    def __init__(self, kind: Kind, view: View, places: Sequence[Place], passage: Input) -> None:
        self._kind = kind
        self._view: View = view
        shape = (len(passage.queries(kind)), len(passage.keys(kind)))
        self.maps: dict[Place, NDArray[np.floating]] = {
            place: np.zeros(shape, np.float32) for place in places
        }

    @property
    def norms(self) -> bool:
        return self._view == "norm-weighted"

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and any(layer == at for at, _ in self.maps)

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        shown = in_view(self._view, weights, beside.norms)
        rows, keys = shown.shape[1:]
        for (at, head), matrix in self.maps.items():
            if at == layer:
                matrix[start : start + rows, :keys] = shown[head]
