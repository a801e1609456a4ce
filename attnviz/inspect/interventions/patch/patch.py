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
from attnviz.inspect.interventions.means import Ends, Mean, p_values
from attnviz.inspect.interventions.patch.job import MOST_FOLLOWED, AskedPair, PatchJob, prepare
from attnviz.inspect.interventions.patch.report import (
    METRICS,
    PairRuns,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.inspect.interventions.prompts import PromptPairs
from attnviz.inspect.interventions.study import Metrics, Series, Study
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
from attnviz.reading import finite
from attnviz.resume import ResumeFile

_SCHEMA = "attnviz.patch-resume/1"

_PATCHES, _CONTROL, _TOKENS, _GRADIENT = "patches", "control", "tokens", "gradient"
"""The parts in a resume file."""


def work(pairs: PromptPairs, request: PatchRequest) -> Work:
    """Return what is planned with a model for prompt pairs, by which NumPy or torch is chosen."""
    tokens = about_tokens(*(text for pair in pairs.prompts for text in pair[:2]))
    exact = request.method == "exact"
    return Work(tokens if exact else None, changed=True, joined=pairs.joined)


def patch(
    model: Model, pairs: PromptPairs, request: PatchRequest, *, advance: Watch = UNWATCHED
) -> PatchReport:
    """Patch activations between the prompts of each pair; measure the effect of each patch.

    pairs: the prompt pairs, as ``read_pairs`` returns them. advance: is given the progress.
    The report of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError for heads, prompts or tokens that do not fit the model,
    UnsupportedError for a model that predicts nothing or cannot be patched, LoadError for a damaged
    resume file, KeyboardInterrupt if nothing was measured.
    """
    job, path = prepare(model, pairs, request, advance), request.resume
    with ResumeFile(path, _SCHEMA, job.identity()) if path else nullcontext() as file:
        study = PatchStudy(job, file)
        study.measure(advance)
    return study.report()


class PatchSeries(Series[PatchScores]):
    """The measurements of the patches of some prompt pairs.

    asked: the pairs. patches: returns the patches of a pair. patching: measures them on the model.
    """

    changed, noun, nouns, text = "patches", "patch", "patches", "pair"

    def __init__(
        self,
        name: str,
        study: PatchStudy,
        asked: Sequence[AskedPair],
        patching: Patching,
        patches: Callable[[AskedPair], Sequence[Patch]],
    ) -> None:
        self._asked = {one.index: one for one in asked}
        self._patching, self._patches, self._metric = patching, patches, study.job.request.metric
        super().__init__(name, len(patches(asked[0])), max(self._asked) + 1, study.file)

    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, PatchScores]]:
        for pair, changes in missing.items():
            asked = self._asked[pair]
            foil = asked.foil.id if asked.foil is not None else None
            found = self._patching.patch(pair, self._patches(asked), changes, asked.answer.id, foil)
            yield from ((pair, piece) for piece in found)

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
        found = np.full(self.count, np.nan)
        for scores in self.pieces.get(asked.index, ()):
            found[list(scores.patches)] = scores.metrics[self._metric]
        return found

    def plain(self, asked: AskedPair) -> tuple[float, float]:
        """Return the metric of a prompt pair without a patch: (clean run, corrupt run)."""
        scores = self.pieces[asked.index][0]
        return scores.clean[self._metric], scores.corrupt[self._metric]


class PatchStudy(Study):
    """Measures a job of patches, and makes the report from the measurements.

    series: the measurements, by part. followed: the (layer, head) that were patched token by token.
    """

    def __init__(self, job: PatchJob, file: ResumeFile | None) -> None:
        super().__init__(file)
        self.job = job
        self.series: dict[str, PatchSeries] = {}
        self.notes: list[str] = []
        self.followed: tuple[Place, ...] = ()

    @property
    def empty(self) -> bool:
        return self._part not in self.series or not self.series[self._part].pieces

    @property
    def _part(self) -> str:
        """Return the key in ``series`` of the measurements that the report shows.

        They are estimates by gradient or exact patches.
        """
        return _GRADIENT if self.job.request.method == "gradient" else _PATCHES

    def run(self, watch: Watch) -> None:
        """Measure the estimates, the patches, single tokens and the baseline, as requested.

        watch: is given the progress.
        """
        job, method = self.job, self.job.request.method
        each = len(job.places) + bool(job.together)
        controls = job.controls if method != "gradient" and job.request.metric != "kl" else ()
        rounds = len(job.asked) * (2 if method == "both" else 1) + len(controls)
        total = each * rounds + job.request.each_token * len(job.base) * MOST_FOLLOWED
        add = shares_of(total, watch)

        def measure(
            part: str,
            asked: Sequence[AskedPair],
            patching: Patching = job.patching,
            patches: Callable[[AskedPair], Sequence[Patch]] = job.patches,
            some: Sequence[int] = (),
        ) -> None:
            series = self.series[part] = PatchSeries(part, self, asked, patching, patches)
            series.cover(some or range(series.count), [one.index for one in asked], add)

        if method != "exact":
            estimated = job.opened("gradient")
            measure(_GRADIENT, job.asked, estimated)
            self.notes += estimated.notes
        if method == "gradient":
            return
        measure(_PATCHES, job.asked)
        if job.request.each_token:
            self.followed = self._strongest_places()
            measure(_TOKENS, job.asked[:1], patches=lambda one: job.by_token(self.followed)[1])
        if controls:
            # One pair has many sources and no p-value, which would need all patches.
            some = self._strongest() if len(job.asked) == 1 else ()
            measure(_CONTROL, controls, some=some)
        self.notes += job.patching.notes

    def _strongest(self) -> list[int]:
        """Return the indices of the patches for which the unrelated baseline is measured.

        They are the patches that the ranking shows, and the joint patch of several heads.
        """
        job = self.job
        shown = {effect.places for effect in self.report().ranking()}
        singles = [number for number, place in enumerate(job.places) if (place,) in shown]
        return [*singles, len(job.places)] if job.together else singles

    def _strongest_places(self) -> tuple[Place, ...]:
        """Return the (layer, head) to patch token by token: the chosen or the strongest ones."""
        job = self.job
        if job.request.chooses_heads or job.request.what in WHOLE_LAYER:
            return job.places
        return tuple(sorted(each.places[0] for each in self.report().ranking(MOST_FOLLOWED)))

    # What was found ----------------------------------------------------------------------------

    def report(self) -> PatchReport:
        """Return the report of the finished prompt pairs, or of an unfinished one if none is."""
        job, request, series = self.job, self.job.request, self.series[self._part]
        places: list[tuple[Place, ...]] = [(place,) for place in job.places]
        places += [job.together] if job.together else []
        direction = request.direction
        measured = [one for one in job.asked if one.index in series.pieces]
        rows = np.array([series.values(one) for one in measured])
        whole = np.isfinite(rows).all(axis=1) | (np.arange(len(rows)) == 0)
        kept = [one for one, each in zip(measured, whole, strict=True) if each]
        clean, corrupt = np.array([series.plain(one) for one in kept]).T
        ends = (clean, corrupt) if direction == "noise" else (corrupt, clean)
        runs = Runs(*ends, rows[whole], self._control(kept, len(places)))
        close = too_close(runs, job.threshold, request.seed)
        found = effects(runs, places, not close, request.fdr, request.seed)
        correlation = None
        if request.method != "exact":
            found, correlation = self._with_gradients(kept, runs, found, not close)
        controlled = request.metric != "kl" and np.isfinite(runs.control).any()
        control = "the source of another pair"
        if job.drawn == len(job.controls):
            control = "random tokens where the source differs"
        elif job.drawn:
            control += f", for {job.drawn} of them random tokens"
        labels: Mapping[Place, Any] = {}
        if request.what not in WHOLE_LAYER and job.group == 1:
            known = known_labels(job.model, job.kind, ignored=request.no_known_labels)
            labels = {} if known is None else known.named()
        return PatchReport(
            model=job.model.info,
            kind=job.kind,
            pairs=tuple(
                PairRuns(one.tokens, one.answer, one.foil, *metrics)
                for one, *metrics in zip(kept, clean.tolist(), corrupt.tolist(), strict=True)
            ),
            what=request.what,
            direction=direction,
            at=request.where,
            metric=request.metric,
            method=request.method,
            effects=found[: len(job.places)],
            together=found[-1] if job.together else None,
            by_token=self._by_token(runs, not close),
            clean_metric=float(clean.mean()),
            corrupt_metric=float(corrupt.mean()),
            ratio=not close,
            why=_why(close, job.threshold, request.metric, runs.difference),
            control=control if controlled else "",
            group=job.group,
            rank_correlation=correlation,
            labels=labels,
            text=job.text,
            source=job.source,
            pairs_wanted=job.wanted,
            seed=request.seed,
            seconds=self.seconds,
            notes=(*job.notes, *self.notes, *few_note(len(kept), "pairs")),
            complete=self.complete,
            top=request.top,
            fdr=request.fdr,
            index_base=request.index_base,
        )

    def _control(self, kept: Sequence[AskedPair], count: int) -> NDArray[np.float64]:
        """Return the metric with unrelated sources, (pair, patch): the mean over the sources."""
        found, series = np.full((len(kept), count), np.nan), self.series.get(_CONTROL)
        for row, one in enumerate(kept):
            own = [each for each in self.job.controls if each.of == one.index]
            if own and series is not None:
                found[row] = np.mean([series.values(each) for each in own], axis=0)
        return found

    def _with_gradients(
        self, kept: Sequence[AskedPair], runs: Runs, found: tuple[PatchEffect, ...], ratio: bool
    ) -> tuple[tuple[PatchEffect, ...], float | None]:
        """Return the effects with their estimates by gradient, and their rank correlation."""
        estimates = np.array([self.series[_GRADIENT].values(one) for one in kept])
        values = shares(runs, estimates) if ratio else estimates - runs.base[:, None]
        means = values.mean(axis=0).tolist()
        if self.job.request.method == "gradient":
            both = [
                PatchEffect(each.places, math.nan, math.nan, gradient=value)
                for each, value in zip(found, means, strict=True)
            ]
            return tuple(both), None
        both = [replace(one, gradient=value) for one, value in zip(found, means, strict=True)]
        known = [each for each in both[: len(self.job.places)] if math.isfinite(each.share.value)]
        exact = [each.share.value for each in known]
        return tuple(both), spearman([each.gradient for each in known], exact)

    def _by_token(self, runs: Runs, ratio: bool) -> TokenEffects | None:
        series = self.series.get(_TOKENS)
        if series is None:
            return None
        tokens, _ = self.job.by_token(self.followed)
        values = series.values(self.job.asked[0])
        first = Runs(runs.base[:1], runs.source[:1], values[None], values[None])
        shown = shares(first, values[None])[0] if ratio else values - runs.base[0]
        grid = shown.reshape(len(tokens), len(self.followed))
        return TokenEffects(self.followed, tuple(tokens), self.job.asked[0].position, grid)


# From metrics to effects ---------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The metric of all runs, over prompt pairs.

    base, source: (pair,) without a patch: of the runs that are patched, and of those that the
        values are taken from. patched: (pair, patch), with a patch. control: (pair, patch), with an
        unrelated source; NaN if not measured.
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
    found: NDArray[np.float64] = ratio + (change - ratio * apart) / apart.mean()
    return found


def too_close(runs: Runs, threshold: float, seed: int) -> Ends | bool:
    """Return whether two runs differ too little to show shares of their difference.

    threshold: the least difference. seed: of the bootstrap. If the confidence interval of the
    difference includes zero, its ends (low, high) are returned instead.
    """
    if not math.isfinite(runs.difference):
        return True
    (ends,) = intervals((runs.source - runs.base)[:, None], seed)
    if ends is not None and ends[0] <= 0 <= ends[1]:
        return ends
    return abs(runs.difference) < threshold


def effects(
    runs: Runs, places: Sequence[tuple[Place, ...]], ratio: bool, fdr: bool, seed: int
) -> tuple[PatchEffect, ...]:
    """Return the effect of each patch, in the order of ``places``.

    places: for each patch the (layer, head) of all that it replaces at once. ratio: True also gives
        effects as shares of the difference between the runs. fdr: True adds q-values. seed: of the
        bootstrap.
    """
    metric = runs.patched.mean(axis=0).tolist()
    change = (runs.patched - runs.base[:, None]).mean(axis=0).tolist()
    made = list(map(PatchEffect, places, metric, change))
    if not ratio:
        return tuple(made)
    own, control = shares(runs, runs.patched), shares(runs, runs.control)
    above = np.where(np.isfinite(control), own - control, own)
    q = np.full(len(places), math.nan)
    if fdr and len(own) >= LEAST_TEXTS:
        q = benjamini_hochberg(sign_flip_p(above, seed))
    found = map(
        Mean,
        own.mean(axis=0).tolist(),
        [None if ends is None or math.isnan(ends[0]) else ends for ends in intervals(own, seed)],
        [None if p is None or math.isnan(p) else p for p in p_values(above, seed)],
        [None if math.isnan(base) else base for base in control.mean(axis=0).tolist()],
    )
    return tuple(
        replace(each, share=share, q=value)
        for each, share, value in zip(made, found, q.tolist(), strict=True)
    )


# In words ------------------------------------------------------------------------------------


def _why(close: Ends | bool, threshold: float, metric: PatchMetric, difference: float) -> str:
    """Return the reason why no shares are shown, as a string; empty if they are shown."""
    if not math.isfinite(difference):
        return "the metric of the plain runs is no number"
    unit = METRICS[metric].unit
    apart = f"clean and corrupt are {difference:+.2g} {unit} apart"
    if isinstance(close, tuple):
        return f"{apart} over the pairs, 95% CI [{close[0]:+.2g}, {close[1]:+.2g}]"
    return f"{apart}, less than {threshold:.2g}" if close else ""
