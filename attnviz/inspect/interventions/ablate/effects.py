"""From the pieces of a scan to one effect for each ablation: the means over texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnviz.engine.effects import METRICS, Metric, Scores, Variant
from attnviz.inspect.interventions.ablate.report import Effect
from attnviz.inspect.interventions.means import Mean, p_values
from attnviz.measures.bootstrap import intervals

_Parts = Mapping[int, Sequence[tuple[Scores, int]]]
"""For each ablation the pieces that have it, in the order of the texts, and its place in each."""

_Key = tuple[int, Metric]


def mean_baseline(pieces: Iterable[Scores]) -> dict[str, float]:
    """Return the metrics of the whole model by name, as means over the texts.

    pieces: the measurements, of which one text may have several.
    """
    by_text = {piece.text: piece.baseline for piece in pieces}
    names = dict.fromkeys(name for baseline in by_text.values() for name in baseline)
    return {
        name: float(np.mean([b[name] for b in by_text.values() if name in b])) for name in names
    }


class Whole(NamedTuple):
    """The means over all texts of a corpus; single measurements are stored for only some texts.

    texts: how many. means: the mean and its standard error by ablation and metric.
    """

    texts: int
    means: Mapping[_Key, tuple[float, float]]


def ablation_effects(
    pieces: Iterable[Scores],
    variants: Sequence[Variant],
    seed: int,
    control: Iterable[Scores] = (),
    whole: Whole | None = None,
) -> tuple[Effect, ...]:
    """Return the effect of each measured ablation, in the order of ``variants``.

    pieces: the measurements; an ablation is measured over the texts whose pieces contain it.
    seed: of the bootstrap. control: the pieces of the random baseline, whose means are the base
        rates. whole: means over more texts than have pieces; these give the intervals their shape.
    """
    parts = _parts(pieces)
    measured = _values(parts)
    bases = {key: float(np.mean(values)) for key, values in _values(_parts(control)).items()}
    means = dict[_Key, Mean]()
    for texts in {len(values) for values in measured.values()}:
        # Ablations that are measured over equally many texts share the draws of their intervals.
        keys = [key for key, values in measured.items() if len(values) == texts]
        columns = np.array([measured[key] for key in keys]).T
        known = None if whole is None else np.array([whole.means[key] for key in keys]).T
        centres = columns.mean(axis=0) if known is None else known[0]
        adjusted = dict[_Key, float | None]()
        for name in {name for _, name in keys if METRICS[name].signed}:
            family = [at for at, key in enumerate(keys) if key[1] == name]
            of = None if known is None else known[:, family]
            p = p_values(columns[:, family], seed, of)
            adjusted |= zip((keys[at] for at in family), p, strict=True)
        ends = intervals(columns, seed, known)
        for key, centre, between in zip(keys, centres.tolist(), ends, strict=True):
            means[key] = Mean(
                centre,
                between,
                adjusted.get(key),
                bases.get(key),
                _error(parts, key),
                METRICS[key[1]].signed,
            )
    return tuple(
        Effect(
            variants[index],
            len(own) if whole is None else whole.texts,
            {name: means[index, name] for name in METRICS if (index, name) in means},
            tuple(piece.token_losses[at] for piece, at in own if piece.token_losses is not None),
        )
        for index, own in sorted(parts.items())
    )


def _parts(pieces: Iterable[Scores]) -> _Parts:
    parts: dict[int, list[tuple[Scores, int]]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.text):
        for at, index in enumerate(piece.variants):
            parts.setdefault(index, []).append((piece, at))
    return parts


def _values(parts: _Parts) -> dict[_Key, list[float]]:
    """Return the value of each ablation and metric over each text, without metrics that one lacks.

    parts: the pieces of each ablation.
    """
    return {
        (index, name): [piece.metrics[name][at] for piece, at in own]
        for index, own in parts.items()
        for name in METRICS
        if all(name in piece.metrics for piece, _ in own)
    }


def _error(parts: _Parts, key: _Key) -> float | None:
    """Return the standard error of a mean over texts; None unless every text has its own error."""
    index, name = key
    drawn = [piece.errors[name][at] for piece, at in parts[index] if name in piece.errors]
    whole = len(drawn) == len(parts[index])
    return float(np.sqrt(np.square(drawn).sum()) / len(drawn)) if whole else None
