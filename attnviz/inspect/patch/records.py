"""What ``attnviz patch`` found: the effect of each patch, with its interval and its base rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.patching import WHOLE_LAYER, Direction, PatchMetric, What
from attnviz.inspect.patch.request import Asked as Method
from attnviz.inspect.patch.request import At
from attnviz.records import HeadLabel, Kind, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document

Place = tuple[int, int]
"""(layer, head) of a patch, (layer, key/value head), or (layer, 0) of what a layer has once."""

_SIGNIFICANT = 0.05


class AskedToken(NamedTuple):
    """A token that is asked for. text: not yet safe for a terminal."""

    id: int
    text: str


class PatchMetricInfo(NamedTuple):
    """What a metric is called. name: of the number. carried: what a patch carries a share of."""

    name: str
    unit: str
    carried: str


METRICS: Mapping[PatchMetric, PatchMetricInfo] = {
    "logit_diff": PatchMetricInfo("logit(answer) − logit(foil)", "logits", "the logit difference"),
    "log_prob": PatchMetricInfo("log p(answer)", "nats", "the difference in log probability"),
    "kl": PatchMetricInfo("KL from the clean prediction", "nats", "the KL divergence"),
}


@dataclass(frozen=True)
class PairRuns:
    """One pair and the metric of its two plain runs.

    changed: the tokens of clean and of corrupt that the other does not have there.
    answer, foil: what is asked for; no foil where the metric has none.
    """

    clean: Tokens
    corrupt: Tokens
    changed: tuple[tuple[int, ...], tuple[int, ...]]
    answer: AskedToken
    foil: AskedToken | None
    clean_metric: float
    corrupt_metric: float


@dataclass(frozen=True)
class PatchEffect:
    """What one patch does, mean over pairs.

    places: what is patched: one, or several together.
    metric: of the patched run. change: how far that is from the base run's.
    effect: the share of the difference between the runs that ``change`` is; NaN where it is not
        shown, or not measured.
    interval: ends of its 95% interval over pairs; None below five of them.
    base_rate: the effect of a source that says nothing of the pair; NaN where not measured.
    adjusted: two-sided p of effect − base rate over pairs, adjusted for all patches; NaN if none.
    q: the same by itself, by Benjamini and Hochberg; NaN if it was not requested.
    gradient: the first-order estimate of ``effect``; NaN if it was not requested.
    """

    places: tuple[Place, ...]
    metric: float
    change: float
    effect: float = math.nan
    interval: tuple[float, float] | None = None
    base_rate: float = math.nan
    adjusted: float = math.nan
    q: float = math.nan
    gradient: float = math.nan

    @property
    def unclear(self) -> bool:
        """Return whether its 95% interval includes zero; not where there is no interval."""
        return self.interval is not None and self.interval[0] <= 0 <= self.interval[1]

    @property
    def carries(self) -> bool:
        """Return whether it is above its base rate though many patches were tried."""
        above = self.effect > (0.0 if math.isnan(self.base_rate) else self.base_rate)
        return above and not self.unclear and self.adjusted <= _SIGNIFICANT


@dataclass(frozen=True)
class TokenEffects:
    """Each token patched by itself, of one pair.

    places: the columns. tokens: positions in the base prompt, the rows.
    predicts: the token that predicts, or is masked. values: (token, place), effects or changes of
        the metric, as the report shows.
    """

    places: tuple[Place, ...]
    tokens: tuple[int, ...]
    predicts: int
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.tokens), len(self.places)):
            raise ValueError(f"expected a value for each token and place, got {self.values.shape}")


@dataclass(frozen=True, repr=False)
class PatchReport(Report, Provenance):
    """What one run found, and in what surroundings.

    pairs: those that were measured, the first of which is shown.
    effects: of every single patch, in the order of the grid. together: of the heads at once.
    by_token: None if it was not requested.
    clean_metric, corrupt_metric: of the plain runs, mean over pairs.
    ratio: whether effects are shares; else the runs hardly differ, ``why`` says how little, and
        the changes of the metric are shown.
    control: what the sources of the base rate are, in words; empty without one.
    group: query heads that share a patched head; 1 for all but keys and values of grouped heads.
    rank_correlation: of gradient and exact effects; None unless both were asked for.
    text: the first clean prompt as it was given. source: where the pairs come from, in words.
    labels: of heads, from the card or from ``patterns``.
    """

    model: ModelInfo
    kind: Kind
    pairs: tuple[PairRuns, ...]
    what: What
    direction: Direction
    at: At
    metric: PatchMetric
    method: Method
    effects: tuple[PatchEffect, ...]
    together: PatchEffect | None
    by_token: TokenEffects | None
    clean_metric: float
    corrupt_metric: float
    ratio: bool
    why: str
    control: str
    group: int = 1
    rank_correlation: float | None = None
    labels: Mapping[Place, HeadLabel] = field(default_factory=dict)
    pairs_wanted: int = 1
    top: int = 8
    fdr: bool = False

    command = "patch"
    lists = ("heads", "by_token", "pairs")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.patch.data import patch_data

        return patch_data(self)

    def rows(self) -> Iterable[tuple[object, ...]]:
        from attnviz.inspect.patch.data import patch_rows

        return patch_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.patch.document import patch_document

        return patch_document(self, explain=explain, hints=hints)

    @property
    def whole_layers(self) -> bool:
        """Return whether a layer has one patch, not one for each head."""
        return self.what in WHOLE_LAYER

    @property
    def ranks(self) -> bool:
        """Return whether the order says something of the heads: shares over several pairs."""
        return self.ratio and any(effect.interval is not None for effect in self.effects)

    def shown(self, effect: PatchEffect) -> float:
        """Return the share where there is one, else the change of the metric."""
        if self.method == "gradient":
            return effect.gradient
        return effect.effect if self.ratio else effect.change

    def ranking(self, top: int | None = None) -> list[PatchEffect]:
        """Return the patches with the largest effects of either sign; what is no number has no
        place.
        """
        found = [each for each in self.effects if math.isfinite(self.shown(each))]
        found.sort(key=lambda each: -abs(self.shown(each)))
        return found[: self.top if top is None else top]

    def column(self, column: int) -> str:
        """Return the name over a column of the grid."""
        if self.whole_layers:
            return self.what
        return f"{'H' if self.group == 1 else 'KV'}{column + self.index_base}"

    def name(self, place: Place) -> str:
        """Such as ``L2H5``, ``L2KV1`` or ``L2``."""
        layer = f"L{place[0] + self.index_base}"
        return layer if self.whole_layers else layer + self.column(place[1])

    def names(self, effect: PatchEffect) -> str:
        """Of all that is patched at once."""
        return " ".join(map(self.name, effect.places))
