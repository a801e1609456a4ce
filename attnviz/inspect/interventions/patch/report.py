"""The report of ``attnviz patch``: the effect of each patch, their order, their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.signed import Place
from attnviz.draw.values import known_label_facts, model_facts, table_of, token_facts
from attnviz.engine.patching import WHOLE_LAYER, Direction, PatchMetric, What
from attnviz.inspect.interventions.patch.request import Asked as Method
from attnviz.inspect.interventions.patch.request import At
from attnviz.inspect.interventions.study import NOT_MEASURED, Mean, cell_name
from attnviz.prompts.study import TokenPair
from attnviz.records import HeadLabel, Kind, ModelInfo, Provenance, Tokens


class AskedToken(NamedTuple):
    """A token whose logit is measured; its text may have control characters."""

    id: int
    text: str


class PatchMetricInfo(NamedTuple):
    """The names of a metric of patching.

    carried: a name for the difference between the clean and the corrupt run, of which a patch has a
        share.
    """

    short: str
    name: str
    unit: str
    carried: str


METRICS: Mapping[PatchMetric, PatchMetricInfo] = {
    "logit_diff": PatchMetricInfo(
        "logit difference", "logit(answer) − logit(foil)", "logits", "the logit difference"
    ),
    "log_prob": PatchMetricInfo(
        "log p", "log p(answer)", "nats", "the difference in log probability"
    ),
    "kl": PatchMetricInfo("KL", "KL from the clean prediction", "nats", "the KL divergence"),
}


@dataclass(frozen=True)
class PairRuns:
    """One prompt pair, with the metric of its two runs without a patch.

    answer, foil: the tokens whose logits are compared; the foil is None if the metric has none.
        clean_metric, corrupt_metric: the metric in each run.
    """

    tokens: TokenPair
    answer: AskedToken
    foil: AskedToken | None
    clean_metric: float
    corrupt_metric: float


@dataclass(frozen=True)
class PatchEffect:
    """The effect of one patch, as the mean over prompt pairs.

    places: the patched (layer, head), one or several together; also (layer, key/value head), or
        (layer, 0) of a part that a layer has once.
    change: its difference to the metric of the base run.
    share: the effect: ``change`` divided by the difference between the two runs; NaN if it is not
        shown. Its base rate is the effect of an unrelated source; its p-value is that of the
        difference to the base rate.
    q: the q-value of Benjamini and Hochberg for the same difference; NaN if it was not requested.
    gradient: the first-order estimate of the effect; NaN if it was not requested.
    """

    places: tuple[Place, ...]
    metric: float
    change: float
    share: Mean = NOT_MEASURED
    q: float = math.nan
    gradient: float = math.nan

    @property
    def carries(self) -> bool:
        """Return whether the effect is above its base rate, corrected for how many were tested."""
        return self.share.significant and self.share.value > (self.share.base_rate or 0.0)


@dataclass(frozen=True)
class TokenEffects:
    """The effects of patching each token of one prompt pair alone.

    places: the columns, each (layer, head). tokens: the rows, as positions in the base prompt.
    predicts: the position that predicts, or that is masked. values: (row, column), effects or
        changes of the metric, whichever the report shows.
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
    """The report of ``attnviz patch``: the effect of each patch, and the options of the run.

    pairs: the measured prompt pairs; the first one is shown.
    effects: of every single patch, in the order of the grid.
    by_token: the effects by token; None if they were not requested.
    clean_metric, corrupt_metric: of the runs without a patch, mean over pairs.
    ratio: whether effects are shares of the difference between the runs. If not, the runs hardly
        differ, ``why`` says how little, and the changes of the metric are shown.
    control: a description of the unrelated sources of the base rate; empty if there are none.
    group: the number of query heads that share a patched head, which is 1 except for keys and
        values of grouped heads.
    rank_correlation: of gradient and exact effects; None unless both were requested. source: a
        description of where the pairs come from.
    labels: of heads, from the model card or from ``patterns``.
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
        """Return the report as one JSON object.

        ``heads`` has an entry for each patch; ``head`` is null for ``--what mlp`` and
        ``residual``. ``clean`` and ``corrupt`` are the prompts of the first pair; ``metric`` is the
        mean over all pairs.
        """
        report, first = replace(self, index_base=0), self.pairs[0]
        data: dict[str, Any] = {
            "schema": "attnviz.patch/1",
            "model": model_facts(self.model),
            "kind": self.kind,
            **_pair(first, self.clean_metric, self.corrupt_metric),
            **fields_of(self, _OPTIONS),
            "reason": self.why or None,
            "control": self.control or None,
            "source": self.source or None,
            "pair_count": len(self.pairs),
            **fields_of(self, ("complete", "seed")),
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "query_heads_per_head": self.group,
            "rank_correlation": self.rank_correlation,
            "heads": [_effect(report, effect) for effect in self.effects],
            "together": None if self.together is None else _effect(report, self.together),
        }
        if (effects := self.by_token) is not None:
            data["by_token"] = [
                {
                    "index": token,
                    "token": self.base.texts[token],
                    "layer": layer,
                    "head": None if self.whole_layers else head,
                    "effect" if self.ratio else "change": value,
                }
                for token, row in zip(effects.tokens, effects.values, strict=True)
                for (layer, head), value in zip(effects.places, row, strict=True)
            ]
        if len(self.pairs) > 1:
            data["pairs"] = [
                _pair(pair, pair.clean_metric, pair.corrupt_metric) for pair in self.pairs
            ]
        return data

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each patch: name, layer, head, effect and others."""
        names = ("effect", "metric", "change", "ci_low", "ci_high", "base_rate", "q", "gradient")
        data = self.data()
        entries = [*data["heads"], *filter(None, [data["together"]])]
        rows = ({**entry, "pairs": data["pair_count"]} for entry in entries)
        return table_of(("name", "layer", "head", "pairs", *names), rows)

    @property
    def base(self) -> Tokens:
        """Return the prompt of the first pair whose run the patches change."""
        pair = self.pairs[0].tokens
        return pair.clean if self.direction == "noise" else pair.corrupt

    @property
    def whole_layers(self) -> bool:
        """Return whether a layer has one patch instead of one for each head."""
        return self.what in WHOLE_LAYER

    @property
    def ranks(self) -> bool:
        """Return whether the order of the heads is meaningful, as their effects have intervals."""
        return self.ratio and any(effect.share.interval for effect in self.effects)

    def mean(self, effect: PatchEffect) -> Mean:
        """Return what is shown of a patch, with its interval: estimate, share, or change."""
        if self.method == "gradient":
            return Mean(effect.gradient)
        return effect.share if self.ratio else Mean(effect.change)

    def shown(self, effect: PatchEffect) -> float:
        """Return the number that is shown for a patch, without its interval; see ``mean``."""
        return self.mean(effect).value

    def ranking(self, top: int | None = None) -> list[PatchEffect]:
        """Return the ``top`` patches with the largest finite effects of either sign."""
        finite = [effect for effect in self.effects if math.isfinite(self.shown(effect))]
        finite.sort(key=lambda effect: -abs(self.shown(effect)))
        return finite[: self.top if top is None else top]

    def column(self, column: int) -> str:
        """Return the name over a column of the grid. column: its index, from 0."""
        return self.what if self.whole_layers else f"{self._letters}{column + self.index_base}"

    def name(self, cell: Place) -> str:
        """Return the name of a patched head or layer, such as ``L2H5``, ``L2KV1`` or ``L2``."""
        return cell_name(cell, self._letters, self.index_base)

    @property
    def _letters(self) -> str:
        return "" if self.whole_layers else "H" if self.group == 1 else "KV"

    def names(self, effect: PatchEffect) -> str:
        """Return the names of all heads or layers that one patch replaces, with blanks between."""
        return " ".join(map(self.name, effect.places))


def _pair(pair: PairRuns, clean: float, corrupt: float) -> dict[str, Any]:
    return {
        "clean": {**token_facts(pair.tokens.clean), "metric": clean},
        "corrupt": {**token_facts(pair.tokens.corrupt), "metric": corrupt},
        "answer": {"id": pair.answer.id, "token": pair.answer.text},
        "foil": pair.foil and {"id": pair.foil.id, "token": pair.foil.text},
    }


_OPTIONS = ("what", "direction", "at", "metric", "method", "ratio")
"""The options that JSON repeats by their names, and whether effects are shares."""


def _effect(report: PatchReport, effect: PatchEffect) -> dict[str, Any]:
    (layer, head), *others = effect.places
    single, share = not others, effect.share
    entry: dict[str, Any] = {
        "layer": layer if single else None,
        "head": head if single and not report.whole_layers else None,
        "name": report.names(effect),
        **({} if single else {"heads": effect.places}),
        "effect": share.value,
        "metric": effect.metric,
        "change": effect.change,
    }
    if len(report.pairs) > 1:
        entry["ci_low"], entry["ci_high"] = share.interval or (None, None)
    entry["base_rate"] = share.base_rate
    if share.adjusted is not None:
        entry["carries"] = effect.carries
        entry["adjusted_p"] = share.adjusted
    if report.fdr:
        entry["q"] = effect.q
    if report.method != "exact":
        entry["gradient"] = effect.gradient
    known = report.labels.get(effect.places[0]) if single else None
    if known is not None:
        entry["label"] = known_label_facts(known)
    return entry
