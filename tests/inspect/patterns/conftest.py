"""Reports of made-up scores, small enough to read back whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnviz.inspect.patterns.report import Control, Example, PatternReport, PatternScores, Probe
from attnviz.records import ModelInfo, Tokens

NAMES = ("previous", "first", "self", "duplicate", "induction", "delimiter", "rare", "subject")
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")
THRESHOLD = 0.25


def tokens_of(texts: Sequence[str]) -> Tokens:
    ids = {text: 100 + place for place, text in enumerate(dict.fromkeys(texts))}
    special = tuple(text == "<s>" for text in texts)
    return Tokens(tuple(ids[text] for text in texts), tuple(texts), special)


def example_of(name: str, tokens: Tokens, rng: np.random.Generator) -> Example:
    """A map on which previous, first and self can be seen; noise for the others."""
    count = len(tokens)
    raw = rng.dirichlet(np.full(count, 0.3), count)
    offset = {"previous": 1, "self": 0}.get(name)
    for row in range(count):
        if offset is not None and row >= offset:
            raw[row, row - offset] += 4
        elif name == "first":
            raw[row, 0] += 4
    raw = np.tril(raw) + np.tril(np.full((count, count), 1e-6))
    return Example(tokens, tokens, raw / raw.sum(-1, keepdims=True))


def make_head(
    place: tuple[int, int],
    names: Sequence[str],
    rng: np.random.Generator,
    tokens: Tokens,
    control: bool,
    missing: Sequence[str],
) -> PatternScores:
    """Made-up scores; every third head has a clear label."""
    layer, head = place
    base = dict(zip(names, rng.uniform(0.01, 0.2, len(names)).round(4).tolist(), strict=True))
    raw = rng.uniform(0.0, 0.3, len(names)).round(4).tolist()
    scores: dict[str, float | None] = dict(zip(names, raw, strict=True))
    if (2 * layer + head) % 3 == 0:
        scores[names[(layer + head) % len(names)]] = round(float(rng.uniform(0.4, 1.0)), 4)
    rates: dict[str, float | None] = dict(base)
    scores |= dict.fromkeys(missing)
    rates |= dict.fromkeys(missing)
    known = {name: value for name, value in scores.items() if value is not None}
    strength = {name: (value - base[name]) / (1 - base[name]) for name, value in known.items()}
    best = max(strength, key=lambda name: strength[name])
    label = best if strength[best] >= THRESHOLD else None
    limits = {"entropy": 3, "normalised_entropy": 1, "distance": 140, "confidence": 1}
    statistics = {name: float(rng.uniform(0, most)) for name, most in limits.items()}
    return PatternScores(
        layer,
        head,
        label,
        scores,
        rates,
        strength,
        margin=known[best] - base[best] if label else None,
        agreement=float(rng.uniform(0.5, 1)) if label else None,
        measured=dict.fromkeys(known, 7),
        statistics={**statistics, "first": scores.get("first")},
        control=dict.fromkeys(names, 0.01) if control else {},
        example=example_of(best, tokens, rng) if label else None,
        intervals={n: (round(v - 0.03, 4), round(v + 0.05, 4)) for n, v in known.items()},
    )


def make_patterns(
    *,
    layers: int = 3,
    heads: int = 5,
    names: Sequence[str] = NAMES,
    control: bool = False,
    missing: Sequence[str] = (),
    pieces: Sequence[str] = PIECES,
    **fields: Any,
) -> PatternReport:
    """A report; the other names are fields of the record."""
    rng = np.random.default_rng(11)
    tokens = tokens_of(pieces)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", layers, heads, heads, 8)
    entries = tuple(
        make_head((layer, head), names, rng, tokens, control, missing)
        for layer in range(layers)
        for head in range(heads)
    )
    report = PatternReport(
        info,
        "self",
        True,
        "raw",
        entries,
        tuple(names),
        dict.fromkeys(names, THRESHOLD),
        (
            Probe("natural text", 12, 71, 128, ("previous", "first", "self", "delimiter", "rare")),
            Probe("random repeats", 6, 33, 129, ("duplicate", "induction"), seeds=(0, 1, 2)),
            Probe("annotated sentences", 67, 6, 17, ("subject",), pairs={"subject": 67}),
        ),
        not_measured=dict.fromkeys(missing, "no token comes twice"),
        control=Control(0, {"previous": 0, "first": 1}) if control else None,
    )
    return replace(report, **fields)


@pytest.fixture(scope="session")
def pattern_reports() -> Callable[..., PatternReport]:
    """Makes reports of made-up scores."""
    return make_patterns
