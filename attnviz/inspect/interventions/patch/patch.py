"""Answers ``patch``: which heads carry the difference between two prompts, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.signed import Place
from attnviz.engine.known_labels import known_labels
from attnviz.engine.patching import WHOLE_LAYER, Patch, PatchMetric, PatchScores
from attnviz.engine.scan.patching import Patching
from attnviz.inspect.interventions.patch.plan import MOST_FOLLOWED, AskedPair, PatchPlan, plan_of
from attnviz.inspect.interventions.patch.report import (
    METRICS,
    PairRuns,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.inspect.interventions.study import Mean, Metrics, Series, Study, p_values
from attnviz.measures.bootstrap import (
    LEAST_TEXTS,
    benjamini_hochberg,
    few_note,
    intervals,
    sign_flip_p,
    spearman,
)
from attnviz.models.model import Model
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Watch, shares_of
from attnviz.prompts.request import PromptPairs
from attnviz.reading import finite
from attnviz.resume import ResumeFile

_SCHEMA = "attnviz.patch-resume/1"

_PATCHES, _CONTROL, _TOKENS, _GRADIENT = "patches", "control", "tokens", "gradient"
"""The parts in a resume file."""


def work(pairs: PromptPairs, request: PatchRequest) -> Work:
    """Return the planned work over prompt pairs, from which the loader chooses NumPy or torch."""
    tokens = about_tokens(*(text for pair in pairs.prompts for text in pair[:2]))
    return Work(tokens if request.method == "exact" else None, changed=True, joined=pairs.joined)


def patch(
    model: Model, pairs: PromptPairs, request: PatchRequest, *, advance: Watch = UNWATCHED
) -> PatchReport:
    """Patch activations between the prompts of each pair; measure the effect of each patch.

    The report of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError for heads, prompts or tokens that do not fit the model,
    UnsupportedError for a model that predicts nothing or cannot be patched, LoadError for a damaged
    resume file, KeyboardInterrupt if nothing was measured.
    """
    plan, path = plan_of(model, pairs, request, advance), request.resume
    with ResumeFile(path, _SCHEMA, plan.identity()) if path else nullcontext() as file:
        study = PatchStudy(plan, file)
        study.measure(advance)
    return study.report()


class PatchSeries(Series[PatchScores]):
    """The measurements of the patches of some prompt pairs."""

    changed, noun, nouns, text = "patches", "patch", "patches", "pair"

    def __init__(
        self,
        name: str,
        study: PatchStudy,
        asked: Sequence[AskedPair],
        patching: Patching,
        patches: Callable[[AskedPair], Sequence[Patch]],
    ) -> None:
        self._asked = {pair.index: pair for pair in asked}
        self._patching, self._patches, self._metric = patching, patches, study.plan.request.metric
        super().__init__(name, len(patches(asked[0])), max(self._asked) + 1, study.file)

    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, PatchScores]]:
        for pair, changes in missing.items():
            asked = self._asked[pair]
            patches, foil = self._patches(asked), asked.foil and asked.foil.id
            for piece in self._patching.patch(pair, patches, changes, asked.answer.id, foil):
                yield pair, piece

    def details(self, piece: PatchScores) -> dict[str, Any]:
        return {"clean": dict(piece.clean), "corrupt": dict(piece.corrupt)}

    def rebuild(
        self, text: int, changes: tuple[int, ...], metrics: Metrics, kept: Any
    ) -> PatchScores:
        clean, corrupt = (
            {name: finite(value) for name, value in kept[run].items()}
            for run in ("clean", "corrupt")
        )
        if self._metric not in metrics.keys() & clean.keys() & corrupt.keys():
            raise ValueError(f"there is no {self._metric}")
        return PatchScores(text, changes, metrics, clean, corrupt)

    def values(self, asked: AskedPair) -> NDArray[np.float64]:
        """Return the metric of each patch of a prompt pair: (patch,), NaN if not measured."""
        values = np.full(self.count, np.nan)
        for scores in self.pieces.get(asked.index, ()):
            values[list(scores.patches)] = scores.metrics[self._metric]
        return values

    def plain(self, asked: AskedPair) -> tuple[float, float]:
        """Return the metric of a prompt pair without a patch: (clean run, corrupt run)."""
        scores = self.pieces[asked.index][0]
        return scores.clean[self._metric], scores.corrupt[self._metric]


class PatchStudy(Study):
    """Measures the parts of a plan; ``followed`` are the heads that are patched by token."""

    def __init__(self, plan: PatchPlan, file: ResumeFile | None) -> None:
        super().__init__(file)
        self.plan = plan
        self._part = _GRADIENT if plan.request.method == "gradient" else _PATCHES  # that is shown
        self.series: dict[str, PatchSeries] = {}
        self.notes: list[str] = []
        self.followed: tuple[Place, ...] = ()

    @property
    def empty(self) -> bool:
        return self._part not in self.series or not self.series[self._part].pieces

    def run(self, watch: Watch) -> None:
        """Measure the estimates, the patches, single tokens and the baseline, as requested."""
        plan, method = self.plan, self.plan.request.method
        patches = len(plan.places) + bool(plan.together)
        controls = plan.controls if method != "gradient" and plan.request.metric != "kl" else ()
        rounds = len(plan.asked) * (2 if method == "both" else 1) + len(controls)
        total = patches * rounds + plan.request.each_token * len(plan.base) * MOST_FOLLOWED
        add = shares_of(total, watch)

        def measure(
            part: str,
            asked: Sequence[AskedPair],
            patching: Patching = plan.patching,
            patches: Callable[[AskedPair], Sequence[Patch]] = plan.patches,
            some: Sequence[int] = (),
        ) -> None:
            series = self.series[part] = PatchSeries(part, self, asked, patching, patches)
            series.cover(some or range(series.count), [pair.index for pair in asked], add)

        if method != "exact":
            estimated = plan.opened("gradient")
            measure(_GRADIENT, plan.asked, estimated)
            self.notes += estimated.notes
        if method == "gradient":
            return
        measure(_PATCHES, plan.asked)
        if plan.request.each_token:
            self.followed = plan.places
            chosen = plan.request.head or plan.request.layer is not None
            if not chosen and plan.request.what not in WHOLE_LAYER:
                strongest = self.report().ranking(MOST_FOLLOWED)
                self.followed = tuple(sorted(effect.places[0] for effect in strongest))
            measure(_TOKENS, plan.asked[:1], patches=lambda pair: plan.by_token(self.followed)[1])
        if controls:
            # One pair has many sources and no p-value, which would need all patches: the baseline
            # is of those that the ranking shows, and of the joint patch.
            some = list[int]()
            if len(plan.asked) == 1:
                shown = {effect.places for effect in self.report().ranking()}
                some = [at for at, cell in enumerate(plan.places) if (cell,) in shown]
                some += [len(plan.places)] * bool(plan.together)
            measure(_CONTROL, controls, some=some)
        self.notes += plan.patching.notes

    def report(self) -> PatchReport:
        """Return the report of the finished prompt pairs, or of an unfinished one if none is."""
        plan, request, series = self.plan, self.plan.request, self.series[self._part]
        places = [*((cell,) for cell in plan.places), *[plan.together] * bool(plan.together)]
        measured = [pair for pair in plan.asked if pair.index in series.pieces]
        rows = np.array([series.values(pair) for pair in measured])
        whole = np.isfinite(rows).all(axis=1) | (np.arange(len(rows)) == 0)
        kept = [pair for pair, finished in zip(measured, whole, strict=True) if finished]
        clean, corrupt = np.array([series.plain(pair) for pair in kept]).T
        ends = (clean, corrupt) if request.direction == "noise" else (corrupt, clean)
        runs = Runs(*ends, rows[whole], self._control(kept, len(places)))
        why = no_shares(runs, plan.threshold, request.metric, request.seed)
        patched = effects(runs, places, not why, request.fdr, request.seed)
        correlation = None
        if request.method != "exact":
            estimates = np.array([self.series[_GRADIENT].values(pair) for pair in kept])
            sizes = estimates - runs.base[:, None] if why else shares(runs, estimates)
            if request.method == "gradient":
                patched = [PatchEffect(effect.places, math.nan, math.nan) for effect in patched]
            means = sizes.mean(axis=0).tolist()
            patched = [replace(e, gradient=mean) for e, mean in zip(patched, means, strict=True)]
        if request.method == "both":
            known = [e for e in patched[: len(plan.places)] if math.isfinite(e.share.value)]
            correlation = spearman([e.gradient for e in known], [e.share.value for e in known])
        labels: Mapping[Place, Any] = {}
        if request.what not in WHOLE_LAYER and plan.group == 1:
            known_heads = known_labels(plan.model, plan.kind, ignored=request.no_known_labels)
            labels = {} if known_heads is None else known_heads.named()
        return PatchReport(
            model=plan.model.info,
            kind=plan.kind,
            pairs=tuple(
                PairRuns(pair.tokens, pair.answer, pair.foil, *metrics)
                for pair, *metrics in zip(kept, clean.tolist(), corrupt.tolist(), strict=True)
            ),
            what=request.what,
            direction=request.direction,
            at=request.where,
            metric=request.metric,
            method=request.method,
            effects=tuple(patched[: len(plan.places)]),
            together=patched[-1] if plan.together else None,
            by_token=self._by_token(runs, not why),
            clean_metric=float(clean.mean()),
            corrupt_metric=float(corrupt.mean()),
            ratio=not why,
            why=why,
            control=self._control_words(runs),
            group=plan.group,
            rank_correlation=correlation,
            labels=labels,
            text=plan.text,
            source=plan.source,
            pairs_wanted=plan.wanted,
            seed=request.seed,
            seconds=self.seconds,
            notes=(*plan.notes, *self.notes, *few_note(len(kept), "pairs")),
            complete=self.complete,
            top=request.top,
            fdr=request.fdr,
            index_base=request.index_base,
        )

    def _control_words(self, runs: Runs) -> str:
        plan = self.plan
        if plan.request.metric == "kl" or not np.isfinite(runs.control).any():
            return ""
        if plan.drawn == len(plan.controls):
            if plan.base.layout is not None:
                return "the source image with its pixels in random order"
            return "random tokens where the source differs"
        some = f", for {plan.drawn} of them random tokens" * bool(plan.drawn)
        return f"the source of another pair{some}"

    def _control(self, kept: Sequence[AskedPair], count: int) -> NDArray[np.float64]:
        """Return the metric with unrelated sources, (pair, patch): the mean over the sources."""
        means, series = np.full((len(kept), count), np.nan), self.series.get(_CONTROL)
        for row, pair in enumerate(kept):
            own = [control for control in self.plan.controls if control.of == pair.index]
            if own and series is not None:
                means[row] = np.mean([series.values(control) for control in own], axis=0)
        return means

    def _by_token(self, runs: Runs, ratio: bool) -> TokenEffects | None:
        series = self.series.get(_TOKENS)
        if series is None:
            return None
        (tokens, _), pair = self.plan.by_token(self.followed), self.plan.asked[0]
        values = series.values(pair)
        first = Runs(runs.base[:1], runs.source[:1], values[None], values[None])
        shown = shares(first, values[None])[0] if ratio else values - runs.base[0]
        grid = shown.reshape(len(tokens), len(self.followed))
        return TokenEffects(self.followed, tuple(tokens), pair.position, grid)


@dataclass(frozen=True)
class Runs:
    """The metric of all runs, over prompt pairs.

    base, source: (pair,), without a patch: of the run that is patched, and of the run that its new
        values come from. patched: (pair, patch), with the patch. control: (pair, patch), with an
        unrelated prompt's values; NaN if not measured.
    """

    base: NDArray[np.float64]
    source: NDArray[np.float64]
    patched: NDArray[np.float64]
    control: NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Return the mean over prompt pairs of the metric's difference, source − base."""
        return float((self.source - self.base).mean())


def shares(runs: Runs, patched: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the effects of patches with their spread over prompt pairs: (pair, patch).

    The mean over pairs is the effect. patched: the metric with a patch, (pair, patch).
    The effect is the ratio of two means, R = Σ(patched − base) / Σ(source − base), so that a pair
    whose runs hardly differ counts little; of one pair it is P of Wang et al. 2022. Each pair's
    value is R + (x − R·y) / mean y, with x and y its numerator and denominator (the linearised
    ratio estimator, Cochran 1977, section 6.3).
    """
    change = patched - runs.base[:, None]
    apart = (runs.source - runs.base)[:, None]
    ratio = change.mean(axis=0) / apart.mean()
    values: NDArray[np.float64] = ratio + (change - ratio * apart) / apart.mean()
    return values


def no_shares(runs: Runs, threshold: float, metric: PatchMetric, seed: int) -> str:
    """Return why shares of the runs' difference say nothing; empty if they can be shown.

    threshold: the least difference, in the unit of the metric. seed: of the difference's confidence
        interval over pairs, which must not include zero.
    """
    if not math.isfinite(runs.difference):
        return "the metric of the plain runs is no number"
    apart = f"clean and corrupt are {runs.difference:+.2g} {METRICS[metric].unit} apart"
    (ends,) = intervals((runs.source - runs.base)[:, None], seed)
    if ends is not None and ends[0] <= 0 <= ends[1]:
        return f"{apart} over the pairs, 95% CI [{ends[0]:+.2g}, {ends[1]:+.2g}]"
    return f"{apart}, less than {threshold:.2g}" if abs(runs.difference) < threshold else ""


def effects(
    runs: Runs, places: Sequence[tuple[Place, ...]], ratio: bool, fdr: bool, seed: int
) -> list[PatchEffect]:
    """Return the effect of each patch, in the order of ``places``.

    places: for each patch the (layer, head) of all that it replaces at once. ratio: True also gives
        effects as shares of the difference between the runs.
    """
    metric = runs.patched.mean(axis=0).tolist()
    change = (runs.patched - runs.base[:, None]).mean(axis=0).tolist()
    made = list(map(PatchEffect, places, metric, change))
    if not ratio:
        return made
    own, control = shares(runs, runs.patched), shares(runs, runs.control)
    above = np.where(np.isfinite(control), own - control, own)
    q = np.full(len(places), math.nan)
    if fdr and len(own) >= LEAST_TEXTS:
        q = benjamini_hochberg(sign_flip_p(above, seed))
    means = map(
        Mean,
        own.mean(axis=0).tolist(),
        [None if ends is None or math.isnan(ends[0]) else ends for ends in intervals(own, seed)],
        [None if p is None or math.isnan(p) else p for p in p_values(above, seed)],
        [None if math.isnan(base) else base for base in control.mean(axis=0).tolist()],
    )
    columns = zip(made, means, q.tolist(), strict=True)
    return [replace(effect, share=share, q=value) for effect, share, value in columns]
