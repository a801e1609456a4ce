"""The report of ``attnviz diff``: each pair of heads, the noise floor, the models as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, table_of
from attnviz.engine.head_run import Head
from attnviz.records import Floats, Kind, ModelInfo, Provenance, Tokens

UNMEASURED = "A and B have the same weights, texts, dtype and backend: nothing was measured"

_PREDICTED = ("kl", "kl_error", "same_top", "same_top_error", "positions")
_COLUMNS = (
    *("layer", "head", "layer_b", "head_b", "js_divergence", "ci_low", "ci_high", "changed"),
    *("js_divergence_no_sink", "output_change", "output_changed", "label_a", "label_b"),
)


class Floor(NamedTuple):
    """The divergences that rounding causes: twice the largest mean over texts of any head."""

    js: float
    output: float = math.nan


class Predictions(NamedTuple):
    """The difference of two models' next-token predictions.

    The numbers are those of llama.cpp's ``--kl-divergence``. kl: KL(A ‖ B), nats, mean over
    positions. same_top: the share of positions with the same likeliest token. kl_error,
    same_top_error: their standard errors over positions, s / √n and √(p(1 − p) / (n − 1)).
    outside: None if both models predict the same tokens; else the largest share of probability, in
        [0, 1], that either gives at one position to tokens that the other lacks: both are then
        rescaled without these.
    """

    kl: float
    kl_error: float
    same_top: float
    same_top_error: float
    positions: int
    outside: float | None = None


class Noise(NamedTuple):
    """The effect of rounding alone on one model, or the larger effect on two models.

    words: a description of the model that was compared with itself in another number format, or
        ``given``. predictions: how far its predictions differ in that format; None if unknown.
    """

    floor: Floor
    words: str
    predictions: Predictions | None = None

    def or_more(self, other: Noise) -> Noise:
        """Return the noise of two models: of each number the larger one."""
        if self.words == other.words:
            return self
        known = [noise.predictions for noise in (self, other) if noise.predictions is not None]
        return Noise(
            Floor(*(float(np.fmax(*pair)) for pair in zip(self.floor, other.floor, strict=True))),
            f"{self.words}, {other.words}",
            max(known, key=lambda predictions: predictions.kl, default=None),
        )


@dataclass(frozen=True)
class HeadState:
    """The label and the scores of one head in one of the compared models.

    label: the name of its clearest pattern, by the rules of ``patterns``, or None.
    scores: of ``patterns`` by name; intervals: 95 % ends of those that have one; by_text: over
        single texts, in their order; empty for a saved result.
    """

    label: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_text: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Return the score of the head's label; NaN without a label."""
        score = None if self.label is None else self.scores.get(self.label)
        return math.nan if score is None else score


class Move(NamedTuple):
    """The change of one score of a head from A to B, over paired texts.

    change: the mean of B minus A. p: of a two-sided sign-flip
    test over ``texts`` texts. significant: whether the change stays significant among all numbers
    that were tested, at a false-discovery rate of 5 %.
    """

    score: str
    change: float
    p: float
    texts: int
    significant: bool


@dataclass(frozen=True)
class HeadChange:
    """One head of A next to its partner in B, with all measured changes.

    head, other: (layer, head) in A and in B.
    js: Jensen–Shannon divergence of the rows, bits; ends: of its 95 % interval, None without one;
        no_sink: the same without the sink. NaN if there are no maps.
    output: 1 − cosine of the outputs, in [0, 2]; output_ends: likewise. NaN if not compared.
    changed: whether the interval of ``js`` lies above the floor; for saved results, whether the
        intervals of the label's score do not overlap.
    output_changed: whether the interval of ``output`` lies above its floor.
    """

    head: Head
    other: Head
    a: HeadState
    b: HeadState
    js: float = math.nan
    ends: tuple[float, float] | None = None
    no_sink: float = math.nan
    output: float = math.nan
    output_ends: tuple[float, float] | None = None
    changed: bool = False
    output_changed: bool = False
    moves: tuple[Move, ...] = ()

    @property
    def differs(self) -> bool:
        """Return whether the head's attention or its output changed beyond the noise floor."""
        return self.changed or self.output_changed

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the labels that the head has in A or in B, each once."""
        return tuple(dict.fromkeys(filter(None, (self.a.label, self.b.label))))

    @property
    def size(self) -> float:
        """Return the larger of ``js`` and ``output``; of saved ones the largest score change."""
        known = [value for value in (self.js, self.output) if math.isfinite(value)]
        if known:
            return max(known)
        pairs = ((self.a.scores.get(name), self.b.scores.get(name)) for name in self.labels)
        return max((abs((a or 0.0) - (b or 0.0)) for a, b in pairs), default=0.0)


class ChangedMaps(NamedTuple):
    """The maps (query, key) in A and B of the pair ``most``, which changed most, over a text."""

    most: int
    text: int
    queries: Tokens
    keys: Tokens
    a: Floats
    b: Floats


@dataclass(frozen=True, repr=False)
class DiffReport(Report, Provenance):
    """The report of ``attnviz diff`` on two models, or on one model under two conditions.

    condition: how B differs if it is the same model as A, else empty. saved: whether A or B is a
        saved result, which has no maps.
    same: whether A and B are the same, so that nothing was measured; there are no changes then.
    changes: an entry per pair of heads, layer by layer. unmatched_a, unmatched_b: unpaired heads.
    matched: whether heads were paired by divergence, not by index.
    noise: the effect of rounding alone, None for saved results and if both sides are the same.
    family: the number of tested differences, for which p-values are corrected.
    example: maps over a text; None if no attention changed.
    stride: every ``stride``-th query was compared. of_pictures: whether the texts are pictures.
    """

    a: ModelInfo
    b: ModelInfo
    kind: Kind
    causal: bool
    texts: int
    tokens: int
    changes: tuple[HeadChange, ...]
    noise: Noise | None = None
    condition: str = ""
    saved: bool = False
    same: bool = False
    unmatched_a: tuple[Head, ...] = ()
    unmatched_b: tuple[Head, ...] = ()
    matched: bool = False
    predictions: Predictions | None = None
    family: int = 0
    example: ChangedMaps | None = None
    stride: int = 1
    of_pictures: bool = False
    top: int = 8

    command = "diff"
    lists = ("heads",)

    def data(self) -> dict[str, Any]:
        """Return the report as one JSON object, except its example maps.

        ``heads`` has an entry for each pair of heads. ``kl`` (nats) and ``same_top`` are means over
        ``positions``, their errors standard errors. ``noise`` is how far either model differs from
        itself in another number format; ``noise_floor`` is the bound in bits above which the
        interval of ``js_divergence`` must lie. If both models are the same, nothing was measured:
        the numbers are null, ``heads`` is empty and ``notes`` says so.
        """
        noise = self.noise
        return {
            "schema": "attnviz.diff/1",
            "model_a": model_facts(self.a),
            "model_b": model_facts(self.b),
            "condition": self.condition or None,
            "saved": self.saved,
            **fields_of(self, ("kind", "causal")),
            "source": self.source or None,
            "text_count": self.texts,
            "token_count": self.tokens,
            **fields_of(self, ("of_pictures", "stride", "matched")),
            "noise_floor": noise and noise.floor.js,
            "noise": noise
            and {"against": noise.words, "output_change": noise.floor.output}
            | _predicted(noise.predictions),
            **_predicted(self.predictions),
            "tests": self.family,
            "changed": len(self.changed),
            "output_changed": sum(change.output_changed for change in self.changes),
            **fields_of(self, ("unmatched_a", "unmatched_b")),
            "index_base": 0,
            "seconds": round(self.seconds, 3),
            "notes": [*self.notes, *[UNMEASURED] * self.same],
            "heads": [_head(change, other=self.matched) for change in self.changes],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each pair of heads, its scores in A and B at the end."""
        states = [state for change in self.changes for state in (change.a, change.b)]
        names = dict.fromkeys(name for state in states for name in state.scores)
        entries = [
            _head(change, other=True)
            | {f"a.{name}": score for name, score in change.a.scores.items()}
            | {f"b.{name}": score for name, score in change.b.scores.items()}
            for change in self.changes
        ]
        return table_of(
            (*_COLUMNS, *(f"{side}.{name}" for name in names for side in "ab")), entries
        )

    def pair_name(self, change: HeadChange) -> str:
        """Return the head's name, with that of its partner if that has another layer or index."""
        name = self.head_name(change.head)
        return name if change.head == change.other else f"{name}→{self.head_name(change.other)}"

    @property
    def unit(self) -> str:
        """Return what the models ran on, as a noun: a text or an image."""
        return "image" if self.of_pictures else "text"

    @property
    def ranked(self) -> tuple[HeadChange, ...]:
        """Return all head changes, those beyond the noise floor first, then the largest first."""
        return tuple(sorted(self.changes, key=lambda change: (not change.differs, -change.size)))

    @property
    def changed(self) -> tuple[HeadChange, ...]:
        """Return the head changes with attention beyond the noise floor, the largest first."""
        return tuple(change for change in self.ranked if change.changed)


def _predicted(apart: Predictions | None) -> dict[str, float | None]:
    return {name: None if apart is None else float(getattr(apart, name)) for name in _PREDICTED}


def _head(change: HeadChange, *, other: bool) -> dict[str, Any]:
    low, high = change.ends or (None, None)
    facts: dict[str, Any] = {
        "layer": change.head[0],
        "head": change.head[1],
        "js_divergence": change.js,
        "ci_low": low,
        "ci_high": high,
        "changed": change.changed,
        "label_a": change.a.label,
        "label_b": change.b.label,
        "scores_a": change.a.scores,
        "scores_b": change.b.scores,
        "js_divergence_no_sink": change.no_sink,
        "output_change": change.output,
        "output_ci": change.output_ends or (None, None),
        "output_changed": change.output_changed,
        "moves": [move._asdict() for move in change.moves],
    }
    if other:
        facts |= {"layer_b": change.other[0], "head_b": change.other[1]}
    return facts
