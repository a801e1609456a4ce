"""Small example maps for the best heads of each label, on a text where the label shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import BlockFacts
from attnviz.engine.probing import Probing
from attnviz.inspect.patterns.probes import COPIES, OWN, ProbeText
from attnviz.inspect.patterns.report import Example, PatternReport, PatternScores
from attnviz.inspect.patterns.summary import Place
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


def examples_of(
    probing: Probing, texts: Sequence[ProbeText], report: PatternReport
) -> PatternReport:
    """Return the report with a small map for the best heads of each label.

    probing: runs the model. texts: those of the pattern scores.
    """
    maps: dict[Place, Example] = {}
    for label in report.labels:
        places = [head.place for head in _best(report, label) if head.place not in maps]
        passage = _passage(probing, texts, label) if places else None
        if passage is not None:
            keep = _Keep(probing.kind, report.view, places, passage)
            probing.run(keep, [passage])
            queries, keys = passage.queries(probing.kind), passage.keys(probing.kind)
            maps |= {place: Example(queries, keys, matrix) for place, matrix in keep.maps.items()}
    heads = tuple(replace(head, example=maps.get(head.place)) for head in report.heads)
    return replace(report, heads=heads)


def _best(report: PatternReport, label: str) -> list[PatternScores]:
    """Return the best heads of a label, those labelled with it first."""
    others = [head for head in report.ranked(label)[:_OTHERS] if head.label is None]
    return [*report.labelled(label)[:_LABELLED], *others]


def _passage(probing: Probing, texts: Sequence[ProbeText], label: str) -> Input | None:
    """Return a short text in which the label can be seen, or None."""
    family = label_named(label).family
    if family == "relation":
        shown = (text for text in texts if label in {relation for relation, _, _ in text.pairs})
        return next((text.passage for text in shown), None)
    own = next((text.passage for text in texts if text.probe == OWN), None)
    if own is None and family == "identity" and any(text.probe == COPIES for text in texts):
        return probing.copies(*_COPIES)
    passage = probing.input_of(_SENTENCE) if own is None else own
    target = passage.target
    return Input(passage.text.cut(_LONGEST), None if target is None else target.cut(_LONGEST))


class _Keep:
    """An observer that records maps of a few heads over one short text.

    The maps are drawn after the report's weight transform.
    """

    def __init__(self, kind: Kind, view: View, places: Sequence[Place], passage: Input) -> None:
        self._kind, self._view = kind, view
        self.norms = view == "norm-weighted"
        shape = (len(passage.queries(kind)), len(passage.keys(kind)))
        self.maps: dict[Place, NDArray[np.floating]] = {
            place: np.zeros(shape, np.float32) for place in places
        }

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
