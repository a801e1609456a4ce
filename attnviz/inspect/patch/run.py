"""Measures what a job asks for, pair by pair, and makes effects of it: shares, with their doubt.

What is done is kept, however the run ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.known_labels import known_labels
from attnviz.engine.patching import WHOLE_LAYER, Patch, PatchMetric, PatchScores
from attnviz.engine.scan.run import Patching
from attnviz.inspect.patch.job import MOST_FOLLOWED, AskedPair, PatchJob
from attnviz.inspect.patch.records import (
    METRICS,
    PairRuns,
    PatchEffect,
    PatchReport,
    Place,
    TokenEffects,
)
from attnviz.measures.bootstrap import (
    LEAST_TEXTS,
    adjusted_p,
    benjamini_hochberg,
    few_note,
    mean_interval,
    sign_flip_p,
    spearman,
)
from attnviz.reading import damaged, finite, typed
from attnviz.records import Advance
from attnviz.resume import Piece, ResumeFile, restored, stored

_PATCHES, _CONTROL, _TOKENS, _GRADIENT = "patches", "control", "tokens", "gradient"
"""The parts in a resume file."""


@dataclass
class MeasuredPatches:
    """What was found of one job; ``complete`` is False where it was interrupted.

    pieces: by part and the engine's pair.
    """

    job: PatchJob
    file: ResumeFile | None
    pieces: dict[tuple[str, int], list[PatchScores]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    followed: tuple[Place, ...] = ()
    seconds: float = 0.0
    complete: bool = True

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to show."""
        return not self.pieces

    def cover(
        self,
        part: str,
        patching: Patching,
        asked: AskedPair,
        patches: Sequence[Patch],
        some: Iterable[int],
    ) -> Iterator[int]:
        """Measure some patches of a pair, but for those that are done; yields how many were."""
        done = self.pieces.setdefault((part, asked.index), [])
        for piece in self.file.done if self.file is not None and not done else []:
            if (piece.part, piece.text) == (part, asked.index):
                done.append(_restored(piece, self.job.metric, len(patches)))
                yield len(done[-1].patches)
        known = {number for scores in done for number in scores.patches}
        wanted = [number for number in some if number not in known]
        if not wanted:
            return
        foil = asked.foil.id if asked.foil is not None else None
        for scores in patching.patch(asked.index, patches, wanted, asked.answer.id, foil):
            if self.file is not None:
                self.file.append(Piece(part, asked.index, _stored(scores)))
            done.append(scores)
            yield len(scores.patches)

    # What was found ----------------------------------------------------------------------------

    def values(self, part: str, asked: AskedPair, count: int) -> NDArray[np.float64]:
        """Return the metric of each patch (patch,) of a pair; NaN where it was not measured."""
        found = np.full(count, np.nan)
        for scores in self.pieces.get((part, asked.index), []):
            found[list(scores.patches)] = scores.metrics[self.job.metric]
        return found

    def plain(self, part: str, asked: AskedPair) -> tuple[float, float]:
        """Return the metric of the clean run and of the corrupt one."""
        scores, name = self.pieces[part, asked.index][0], self.job.metric
        return scores.clean[name], scores.corrupt[name]

    def report(self) -> PatchReport:
        """Return the report of the pairs that are done; of a part of one where none is."""
        job, request = self.job, self.job.request
        part = _GRADIENT if request.method == "gradient" else _PATCHES
        places: list[tuple[Place, ...]] = [(place,) for place in job.places]
        places += [job.together] * bool(job.together)
        count, direction = len(places), request.direction
        measured = [one for one in job.asked if self.pieces.get((part, one.index))]
        rows = np.array([self.values(part, one, count) for one in measured])
        whole = np.isfinite(rows).all(axis=1) | (np.arange(len(rows)) == 0)
        kept = [one for one, each in zip(measured, whole, strict=True) if each]
        clean, corrupt = np.array([self.plain(part, one) for one in kept]).T
        ends = (clean, corrupt) if direction == "noise" else (corrupt, clean)
        runs = Runs(*ends, rows[whole], self._control(kept, count))
        close = too_close(runs, job.threshold, request.seed)
        found = effects(runs, places, not close, request.fdr, request.seed)
        correlation = None
        if request.method != "exact":
            found, correlation = self._with_gradients(kept, runs, found, not close)
        controlled = job.metric != "kl" and np.isfinite(runs.control).any()
        return PatchReport(
            model=job.model.info,
            kind=job.kind,
            pairs=tuple(map(_runs, kept, clean.tolist(), corrupt.tolist())),
            what=job.what,
            direction=direction,
            at=request.where,
            metric=job.metric,
            method=request.method,
            effects=found[: len(job.places)],
            together=found[-1] if job.together else None,
            by_token=self._by_token(runs, not close),
            clean_metric=float(clean.mean()),
            corrupt_metric=float(corrupt.mean()),
            ratio=not close,
            why=_why(close, job.threshold, job.metric, runs.difference),
            control=_control_words(job) if controlled else "",
            group=job.group,
            rank_correlation=correlation,
            labels=self._labels(),
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
        """(pair, patch): mean over a pair's sources."""
        found = np.full((len(kept), count), np.nan)
        for row, one in enumerate(kept):
            own = [each for each in self.job.controls if each.of == one.index]
            if own:
                found[row] = np.mean([self.values(_CONTROL, each, count) for each in own], axis=0)
        return found

    def _with_gradients(
        self, kept: Sequence[AskedPair], runs: Runs, found: tuple[PatchEffect, ...], ratio: bool
    ) -> tuple[tuple[PatchEffect, ...], float | None]:
        """Return the effects with their estimates, and the rank correlation of single heads'
        both.
        """
        estimates = np.array([self.values(_GRADIENT, one, len(found)) for one in kept])
        values = shares(runs, estimates) if ratio else estimates - runs.base[:, None]
        means = values.mean(axis=0).tolist()
        if self.job.request.method == "gradient":
            both = [
                PatchEffect(each.places, math.nan, math.nan, gradient=value)
                for each, value in zip(found, means, strict=True)
            ]
            return tuple(both), None
        both = [replace(one, gradient=value) for one, value in zip(found, means, strict=True)]
        known = [each for each in both[: len(self.job.places)] if math.isfinite(each.effect)]
        return tuple(both), spearman([e.gradient for e in known], [e.effect for e in known])

    def _by_token(self, runs: Runs, ratio: bool) -> TokenEffects | None:
        if not self.followed:
            return None
        tokens, patches = self.job.by_token(self.followed)
        values = self.values(_TOKENS, self.job.asked[0], len(patches))
        first = Runs(runs.base[:1], runs.source[:1], values[None], values[None])
        shown = shares(first, values[None])[0] if ratio else values - runs.base[0]
        grid = shown.reshape(len(tokens), len(self.followed))
        return TokenEffects(self.followed, tuple(tokens), self.job.asked[0].position, grid)

    def _labels(self) -> Mapping[Place, Any]:
        if self.job.what in WHOLE_LAYER or self.job.group > 1:
            return {}
        job = self.job
        known = known_labels(job.model, job.kind, ignored=job.request.no_known_labels)
        return {} if known is None else known.named()


def measure(job: PatchJob, file: ResumeFile | None, advance: Advance) -> MeasuredPatches:
    """Run the job as far as it goes: to its end, or to Ctrl-C."""
    found = MeasuredPatches(job, file)
    start = time.monotonic()  # to import torch takes seconds that are not the run's
    try:
        _run(found, advance)
    except KeyboardInterrupt:
        found.complete = False
    found.seconds = time.monotonic() - start
    return found


def _run(found: MeasuredPatches, advance: Advance) -> None:
    job, method = found.job, found.job.request.method
    each = len(job.places) + bool(job.together)
    controls = job.controls if method != "gradient" and job.metric != "kl" else ()
    rounds = len(job.asked) * (2 if method == "both" else 1) + len(controls)
    total = each * rounds + job.request.each_token * len(job.base) * MOST_FOLLOWED
    done = 0

    def cover(part: str, patching: Patching, asked: AskedPair, some: Sequence[int] = ()) -> None:
        nonlocal done
        patches = job.patches(asked) if part != _TOKENS else job.by_token(found.followed)[1]
        for count in found.cover(part, patching, asked, patches, some or range(len(patches))):
            done += count
            advance(min(done / total, 1.0))

    if method != "exact":
        estimated = job.opened("gradient")
        for one in job.asked:
            cover(_GRADIENT, estimated, one)
        found.notes += estimated.notes
    if method == "gradient":
        return
    for one in job.asked:
        cover(_PATCHES, job.patching, one)
    if job.request.each_token:
        found.followed = _followed(found)
        cover(_TOKENS, job.patching, job.asked[0])
    # Of one pair there are many sources, and no p that would need them all.
    some = _strongest(found) if len(job.asked) == 1 else ()
    for one in controls:
        cover(_CONTROL, job.patching, one, some)
    found.notes += job.patching.notes


def _strongest(found: MeasuredPatches) -> list[int]:
    """Return the patches that the ranking shows, and that of heads together."""
    job = found.job
    shown = {effect.places for effect in found.report().ranking()}
    singles = [number for number, place in enumerate(job.places) if (place,) in shown]
    return singles + [len(job.places)] * bool(job.together)


def _followed(found: MeasuredPatches) -> tuple[Place, ...]:
    """Return what is patched token by token: all that was chosen, else the strongest heads."""
    job = found.job
    if job.request.chooses_heads or job.what in WHOLE_LAYER:
        return job.places
    return tuple(sorted(each.places[0] for each in found.report().ranking(MOST_FOLLOWED)))


# From metrics to effects ---------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The metric over pairs.

    base, source: (pair,) of the plain runs. patched: (pair, patch).
    control: (pair, patch) with a source that says nothing of the pair; NaN where not measured.
    """

    base: NDArray[np.float64]
    source: NDArray[np.float64]
    patched: NDArray[np.float64]
    control: NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Source less base, mean over pairs."""
        return float((self.source - self.base).mean())


def shares(runs: Runs, patched: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values (pair, patch) whose mean over pairs is the effect, and whose spread is its doubt.

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


def too_close(runs: Runs, threshold: float, seed: int) -> tuple[float, float] | bool:
    """Return whether the runs hardly differ; with an interval over pairs, its ends where it
    includes 0.
    """
    if not math.isfinite(runs.difference):
        return True
    if len(runs.base) >= LEAST_TEXTS:
        low, high = mean_interval((runs.source - runs.base)[:, None], seed)
        if low[0] <= 0 <= high[0]:
            return float(low[0]), float(high[0])
    return abs(runs.difference) < threshold


def effects(
    runs: Runs, places: Sequence[tuple[Place, ...]], ratio: bool, fdr: bool, seed: int
) -> tuple[PatchEffect, ...]:
    """Return one effect a patch, in the order of ``places``.

    ratio: whether the plain runs differ enough for shares. fdr: add q-values.
    """
    metric = runs.patched.mean(axis=0)
    change = (runs.patched - runs.base[:, None]).mean(axis=0)
    made = [
        PatchEffect(where, float(metric[at]), float(change[at])) for at, where in enumerate(places)
    ]
    if not ratio:
        return tuple(made)
    own, control = shares(runs, runs.patched), shares(runs, runs.control)
    found, base = own.mean(axis=0), control.mean(axis=0)
    low = high = adjusted = q = np.full(len(places), math.nan)
    if len(own) >= LEAST_TEXTS:
        low, high = mean_interval(own, seed)
        above = np.where(np.isfinite(control), own - control, own)
        adjusted = adjusted_p(above, seed)
        q = benjamini_hochberg(sign_flip_p(above, seed)) if fdr else q
    return tuple(
        PatchEffect(
            places=each.places,
            metric=each.metric,
            change=each.change,
            effect=float(found[at]),
            interval=None if math.isnan(low[at]) else (float(low[at]), float(high[at])),
            base_rate=float(base[at]),
            adjusted=float(adjusted[at]),
            q=float(q[at]),
        )
        for at, each in enumerate(made)
    )


# In words and files --------------------------------------------------------------------------


def _runs(asked: AskedPair, clean: float, corrupt: float) -> PairRuns:
    tokens = asked.tokens
    return PairRuns(
        clean=tokens.clean,
        corrupt=tokens.corrupt,
        changed=tokens.changed,
        answer=asked.answer,
        foil=asked.foil,
        clean_metric=clean,
        corrupt_metric=corrupt,
    )


def _why(
    close: tuple[float, float] | bool, threshold: float, metric: PatchMetric, difference: float
) -> str:
    """Why there are no shares; empty where there are."""
    if not math.isfinite(difference):
        return "the metric of the plain runs is no number"
    unit = METRICS[metric].unit
    apart = f"clean and corrupt are {difference:+.2g} {unit} apart"
    if isinstance(close, tuple):
        return f"{apart} over the pairs, 95% CI [{close[0]:+.2g}, {close[1]:+.2g}]"
    return f"{apart}, less than {threshold:.2g}" if close else ""


def _control_words(job: PatchJob) -> str:
    if not job.drawn:
        return "the source of another pair"
    if job.drawn == len(job.controls):
        return "random tokens where the source differs"
    return f"the source of another pair, for {job.drawn} of them random tokens"


def _stored(scores: PatchScores) -> dict[str, Any]:
    metrics = {name: stored(values) for name, values in scores.metrics.items()}
    plain = {"clean": dict(scores.clean), "corrupt": dict(scores.corrupt)}
    return {"patches": list(scores.patches), "metrics": metrics, **plain}


def _restored(piece: Piece, metric: PatchMetric, patches: int) -> PatchScores:
    """Return the piece that ``_stored`` wrote; LoadError where it is none.

    metric: that it must have. patches: how many there are.
    """
    with damaged(f"the resume file: the result of pair {piece.text + 1}", "remove its line"):
        kept = piece.result
        places = tuple(typed(place, int) for place in kept["patches"])
        if not places or not all(0 <= place < patches for place in places):
            raise ValueError(f"there are {patches:,} patches")
        clean, corrupt = ({**kept[run]} for run in ("clean", "corrupt"))
        metrics = {name: restored(values) for name, values in kept["metrics"].items()}
        if metric not in metrics.keys() & clean.keys() & corrupt.keys():
            raise ValueError(f"there is no {metric}")
        finite(clean[metric]), finite(corrupt[metric])
        return PatchScores(piece.text, places, metrics, clean, corrupt)
