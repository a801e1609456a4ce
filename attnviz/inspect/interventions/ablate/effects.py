"""From the pieces of a scan to one effect an ablation: means over texts, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.engine.effects import METRICS, Metric, Scores, Variant
from attnviz.inspect.interventions.ablate.records import Effect
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, mean_interval
from attnviz.reading import damaged, typed
from attnviz.resume import restored, stored


def mean_baseline(pieces: Sequence[Scores]) -> dict[str, float]:
    """Return the clean model's own numbers, mean over the texts of the pieces."""
    by_text = {piece.text: piece.baseline for piece in pieces}
    names = dict.fromkeys(name for baseline in by_text.values() for name in baseline)
    return {
        name: float(np.mean([b[name] for b in by_text.values() if name in b])) for name in names
    }


def ablation_effects(
    pieces: Sequence[Scores], variants: Sequence[Variant], seed: int
) -> tuple[Effect, ...]:
    """Return one effect for each ablation that any piece has, in the order of ``variants``.

    An ablation counts over the texts that have it; ``LEAST_TEXTS`` or more give intervals.
    """
    found: dict[int, list[tuple[Scores, int]]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.text):
        for place, index in enumerate(piece.variants):
            found.setdefault(index, []).append((piece, place))
    measured = {
        (index, name): [piece.metrics[name][at] for piece, at in parts]
        for index, parts in found.items()
        for name in METRICS
        if all(name in piece.metrics for piece, _ in parts)
    }
    ends, chances = _doubts(measured, seed)
    return tuple(
        _effect(variants[index], index, found[index], measured, ends, chances)
        for index in sorted(found)
    )


_Key = tuple[int, Metric]


def _doubts(
    measured: Mapping[_Key, Sequence[float]], seed: int
) -> tuple[dict[_Key, tuple[float, float]], dict[_Key, float]]:
    """Interval and p of each ablation and metric; those of equally many texts share their draws.

    p only of metrics with two signs: the others cannot be zero on average.
    """
    ends: dict[_Key, tuple[float, float]] = {}
    chances: dict[_Key, float] = {}
    for texts in {len(values) for values in measured.values()} - set(range(LEAST_TEXTS)):
        keys = [key for key, values in measured.items() if len(values) == texts]
        low, high = mean_interval(np.array([measured[key] for key in keys]).T, seed)
        ends |= zip(keys, zip(low.tolist(), high.tolist(), strict=True), strict=True)
        for name in {name for _, name in keys if METRICS[name].signed}:
            tried = [key for key in keys if key[1] == name]
            columns = np.array([measured[key] for key in tried]).T
            chances |= zip(tried, adjusted_p(columns, seed).tolist(), strict=True)
    return ends, chances


def _effect(
    variant: Variant,
    index: int,
    parts: Sequence[tuple[Scores, int]],
    measured: Mapping[_Key, Sequence[float]],
    ends: Mapping[_Key, tuple[float, float]],
    chances: Mapping[_Key, float],
) -> Effect:
    values: dict[Metric, float] = {}
    errors: dict[Metric, float] = {}
    for name in METRICS:
        if (index, name) in measured:
            values[name] = float(np.mean(measured[index, name]))
        drawn = [piece.errors[name][at] for piece, at in parts if name in piece.errors]
        if name in values and len(drawn) == len(parts):
            errors[name] = float(np.sqrt(np.square(drawn).sum()) / len(drawn))
    intervals = {name: ends[index, name] for name in values if (index, name) in ends}
    adjusted = {name: chances[index, name] for name in values if (index, name) in chances}
    losses = tuple(piece.token_losses[at] for piece, at in parts if piece.token_losses is not None)
    return Effect(
        variant=variant,
        texts=len(parts),
        values=values,
        intervals=intervals,
        errors=errors,
        token_losses=losses,
        adjusted=adjusted,
    )


# For a resume file ---------------------------------------------------------------------------


def store_scores(scores: Scores) -> dict[str, Any]:
    """Return a piece as JSON values; numbers that are not valid become None."""
    return {
        "variants": list(scores.variants),
        "metrics": {name: stored(values) for name, values in scores.metrics.items()},
        "errors": {name: stored(values) for name, values in scores.errors.items()},
        "baseline": dict(scores.baseline),
        "token_losses": None
        if scores.token_losses is None
        else [stored(row) for row in scores.token_losses],
    }


def restore_scores(text: int, kept: Any, lengths: Sequence[int], variants: int) -> Scores:
    """Return the piece of text ``text`` that ``store_scores`` wrote into a resume file.

    lengths: tokens of each text. variants: how many ablations there are.
    Raises LoadError where it is none.
    """
    mend = "remove its line, and the text is measured again"
    with damaged(f"the resume file: the result of text {text + 1}", mend):
        losses = kept["token_losses"]
        if not all(isinstance(note, str) for note in kept.setdefault("notes", [])):
            raise ValueError("a note is no text")
        if not 0 <= text < len(lengths):
            raise ValueError(f"there are {len(lengths):,} texts")
        places = tuple(typed(place, int) for place in kept["variants"])
        if not places or not all(0 <= place < variants for place in places):
            raise ValueError(f"there are {variants:,} removals")
        if losses is not None and any(len(row) != lengths[text] for row in losses):
            raise ValueError(f"the text has {lengths[text]:,} tokens")
        return Scores(
            text,
            places,
            {metric: restored(values) for metric, values in kept["metrics"].items()},
            {key: float(value) for key, value in kept["baseline"].items()},
            {metric: restored(values) for metric, values in kept["errors"].items()},
            None if losses is None else np.array([restored(row) for row in losses]),
        )
