"""The records of ``diff``: each pair of heads, the noise floor, the models as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.head_run import Head
from attnviz.inspect.diff.compare import Floor, Predictions
from attnviz.records import Kind, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document


@dataclass(frozen=True)
class HeadState:
    """The label, scores and ablation effect of one head in one of the compared models.

    label: the name of its clearest pattern, by the rules of ``patterns``, or None.
    scores: of ``patterns`` by name; intervals: 95 % ends of those that have one; by_text: over
        single texts, in their order, empty for a saved result.
    effect, effect_ends: loss increase when the head is ablated, nats per token, and the ends of its
        interval; NaN and None if not measured.
    """

    label: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_text: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    effect: float = math.nan
    effect_ends: tuple[float, float] | None = None

    @property
    def score(self) -> float:
        """Return the score of the head's label; NaN without a label."""
        found = None if self.label is None else self.scores.get(self.label)
        return math.nan if found is None else found


class Move(NamedTuple):
    """The change of one number of a head from A to B, over paired texts.

    name: of the score, or ``loss_delta``. change: the mean of B minus A. p: of a two-sided
    sign-flip test over ``texts`` texts. significant: whether it is so among all numbers that were
    tested, at a false-discovery rate of 5 %.
    """

    name: str
    change: float
    p: float
    texts: int
    significant: bool


@dataclass(frozen=True)
class HeadChange:
    """One head of A next to its partner in B, with all measured changes.

    place, other: (layer, head) in A and in B. a, b: its label and scores in each.
    js: Jensen–Shannon divergence of the rows, bits; ends: of its 95 % interval, None without one;
        no_sink: the same without the sink. NaN if there are no maps.
    output: 1 − cosine of the outputs, in [0, 2]; output_ends: likewise. NaN if not compared.
    changed: whether the interval of ``js`` lies above the floor; for saved results, whether the
        intervals of the label's score, or of the effect, do not overlap.
    output_changed: whether the interval of ``output`` lies above its floor.
    moves: the changes of the scores behind its labels, and of its effect.
    """

    place: Head
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
        named = (name for name in (self.a.label, self.b.label) if name is not None)
        return tuple(dict.fromkeys(named))

    @property
    def size(self) -> float:
        """Return the size of a head's change, of attention or output.

        For saved results of scores.
        """
        known = [value for value in (self.js, self.output) if math.isfinite(value)]
        if known:
            return max(known)
        moved = [
            abs((self.a.scores.get(name) or 0.0) - (self.b.scores.get(name) or 0.0))
            for name in self.labels
        ]
        moved += [self.effect_change] if math.isfinite(self.effect_change) else []
        return max(moved, default=0.0)

    @property
    def effect_change(self) -> float:
        """Return the absolute change of the head's ablation effect; NaN if not measured."""
        return abs(self.b.effect - self.a.effect)


class ChangedMaps(NamedTuple):
    """The maps of one head over one text in both models.

    change: what changed in the head. text: its index among the texts, from 0. queries, keys: its
    tokens. a, b: weights (query, key).
    every: each pair of heads over this text, with its maps in A and in B.
    """

    change: HeadChange
    text: int
    queries: Tokens
    keys: Tokens
    a: NDArray[np.floating]
    b: NDArray[np.floating]
    every: Sequence[tuple[HeadChange, NDArray[np.floating], NDArray[np.floating]]] = ()


@dataclass(frozen=True, repr=False)
class DiffReport(Report, Provenance):
    """The report of ``attnviz diff`` on two models, or on one model under two conditions.

    a, b: the facts of the models. condition: how B differs if it is the same model as A, else
        empty. saved: whether A or B is a saved result, which has no maps.
    same: whether A and B are the same, so that nothing was measured; there are no changes then.
    kind, causal: of the attention. texts, tokens: how many the models ran on.
    changes: an entry per pair of heads, layer by layer. unmatched_a, unmatched_b: unpaired heads.
    matched: whether heads were paired by divergence, not by index.
    floor: see ``compare.Floor``, None without one; floor_words: how it was measured. predictions:
        None if there are none; floor_predictions: of a model and itself in another number format.
    family: the number of tested differences, for which p-values are corrected.
    example: maps of the head whose attention changed most; None if none changed.
    stride: every ``stride``-th query was compared. importance: whether effects were compared.
    """

    a: ModelInfo
    b: ModelInfo
    kind: Kind
    causal: bool
    texts: int
    tokens: int
    changes: tuple[HeadChange, ...]
    floor: Floor | None = None
    floor_words: str = ""
    condition: str = ""
    saved: bool = False
    same: bool = False
    unmatched_a: tuple[Head, ...] = ()
    unmatched_b: tuple[Head, ...] = ()
    matched: bool = False
    predictions: Predictions | None = None
    floor_predictions: Predictions | None = None
    family: int = 0
    example: ChangedMaps | None = None
    stride: int = 1
    importance: bool = False
    top: int = 8

    command = "diff"
    lists = ("heads",)

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.diff.data import diff_data

        return diff_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.diff.data import diff_rows

        return diff_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.diff.document import diff_document

        return diff_document(self).shown(explain=explain, hints=hints)

    def pair_name(self, change: HeadChange) -> str:
        """Return the head's name, with that of its partner if that has another layer or index."""
        name = self.head_name(change.place)
        return name if change.place == change.other else f"{name}→{self.head_name(change.other)}"

    @property
    def ranked(self) -> tuple[HeadChange, ...]:
        """Return all head changes, those beyond the noise floor first, then the largest first."""
        return tuple(sorted(self.changes, key=lambda each: (not each.differs, -each.size)))

    @property
    def changed(self) -> tuple[HeadChange, ...]:
        """Return the head changes with attention beyond the noise floor, the largest first."""
        return tuple(each for each in self.ranked if each.changed)

    @property
    def crossed(self) -> int:
        """Return how many heads of A have a partner in B at another (layer, head)."""
        return sum(each.place != each.other for each in self.changes)
