"""Measures all that a report needs, and makes the report of whatever there is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnviz.ablate.effects import (
    LEAST_TEXTS,
    mean_baseline,
    removal_effects,
    spearman,
)
from attnviz.ablate.job import Job
from attnviz.ablate.order import ranked_effects
from attnviz.ablate.request import ScanWish
from attnviz.ablate.resume import ResumeFile
from attnviz.ablate.scanning import Part, ScanRun
from attnviz.cli.progress import Advance
from attnviz.engine.effects import AblationReport, Effect, Metric
from attnviz.errors import UsageError

__all__ = ["Measured", "measure"]

_REMOVALS, _CONTROL, _RANKING = "removals", "control", "ranking"
_RANKING_SHARE = 0.25
"""Of a budget in seconds, what ranking by gradient may take."""
_CONTROL_SHARE = 0.15
"""Of the progress, what the control is taken to need."""


@dataclass
class Measured:
    """What was found of one job; ``complete`` is False where it was interrupted.

    ranked_over: of how many texts a budget in seconds had time for the gradient.
    """

    job: Job
    wish: ScanWish
    removals: Part
    control: Part | None = None
    gradients: dict[tuple[int, int], float] = field(default_factory=dict)
    ranked_over: int | None = None
    seconds: float = 0.0
    complete: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.removals.pieces and not self.gradients

    def report(self) -> AblationReport:
        """The report of the texts that are done; of a part of one where none is."""
        job, wish, options = self.job, self.wish, self.job.options
        texts = self._texts()
        effects = self._effects(self.removals, texts)
        return AblationReport(
            job.model.info,
            job.kind,
            tuple(job.texts[text] for text in texts),
            effects,
            tuple(job.targets[text] for text in texts) if job.targets else (),
            mode=options.mode,
            unit=wish.choice.unit,
            method=wish.way,
            positions=options.positions,
            metric=_metric(wish, effects, job),
            baseline=mean_baseline([p for p in self.removals.pieces if p.text in set(texts)]),
            control=self._effects(self.control, texts) if self.control is not None else (),
            gradients=self.gradients,
            rank_correlation=_correlation(effects, self.gradients),
            reference=job.reference_words,
            draws=options.draws,
            seed=options.seed,
            seconds=self.seconds,
            notes=(
                *job.notes,
                *self.removals.scan.notes,
                *self._budget_notes(len(texts)),
                *_few_texts(effects),
            ),
            complete=self.complete,
        )

    def _budget_notes(self, measured: int) -> tuple[str, ...]:
        """Over which share of the texts, where the time did not allow all."""
        wanted = len(self.job.texts)
        if self.ranked_over is None or self.ranked_over == measured == wanted:
            return ()
        return (
            f"budget: of {wanted:,} texts, drawn with seed {self.job.options.seed}, there was time "
            f"to rank by gradient over {self.ranked_over:,} and to measure over {measured:,}",
        )

    def _texts(self) -> list[int]:
        """The texts over which everything is measured that is measured at all over the first."""
        if not self.removals.pieces:
            return list(range(len(self.job.texts)))
        done = [self.removals.done(text) for text in range(len(self.job.texts))]
        wanted = set().union(*done)
        whole = [text for text, found in enumerate(done) if found == wanted]
        return whole or [next(text for text, found in enumerate(done) if found)]

    def _effects(self, part: Part, texts: list[int]) -> tuple[Effect, ...]:
        counted = set(texts)
        pieces = [piece for piece in part.pieces if piece.text in counted]
        return removal_effects(pieces, self.job.variants, self.job.options.seed)


def _few_texts(effects: Sequence[Effect]) -> tuple[str, ...]:
    """Why there is no interval, where several texts would let one expect it."""
    texts = max((effect.texts for effect in effects), default=0)
    if not 1 < texts < LEAST_TEXTS:
        return ()
    return (
        f"no intervals: {texts} texts tell too little of how much texts differ; give at least "
        f"{LEAST_TEXTS}",
    )


def measure(
    job: Job, wish: ScanWish, top: int, file: ResumeFile | None, advance: Advance
) -> Measured:
    """Run the job as far as it goes: to its end, or to Ctrl-C.

    top: how many of the ranking are held against random directions where there are several texts.
    """
    start = time.monotonic()
    run = ScanRun(job.variants, file)
    found = Measured(job, wish, run.part(_REMOVALS, job.scan()))
    try:
        _run(found, run, top, advance)
    except KeyboardInterrupt:
        found.complete = False
    found.seconds = time.monotonic() - start
    return found


def _run(found: Measured, run: ScanRun, top: int, advance: Advance) -> None:
    job, wish, texts = found.job, found.wish, range(len(found.job.texts))
    if wish.amount is not None and wish.amount.seconds is not None:
        _spend(found, run, wish.amount.seconds, advance)
        return
    if wish.way != "exact":
        found.gradients = job.gradients(advance, texts)
    if wish.way == "gradient":
        return
    if wish.amount is not None:
        ranked = _by_gradient(job, found.gradients)[: wish.amount.count]
        run.cover(found.removals, ranked, texts, advance)
        return
    share = 1 - _CONTROL_SHARE if len(job.texts) > 1 else 1.0
    everything = range(len(job.variants))
    run.cover(found.removals, everything, texts, lambda done: advance(share * done))
    if len(job.texts) > 1:
        control = found.control = run.part(_CONTROL, job.scan(control=True))
        ranked = _ranked(found, top)
        run.cover(control, ranked, texts, lambda done: advance(share + (1 - share) * done))


def _spend(found: Measured, run: ScanRun, seconds: float, advance: Advance) -> None:
    """Rank and measure over as many texts as the time allows.

    A run that goes on takes the ranking that it began with, or it would measure other heads.
    """
    job, order, start = found.job, found.job.drawn(), time.monotonic()

    def spent() -> float:
        return min((time.monotonic() - start) / seconds, 1.0)

    known = run.kept(_RANKING)
    if known is None:
        count = 0

        def enough() -> bool:
            nonlocal count
            count += 1
            return spent() > _RANKING_SHARE

        gradients = job.gradients(lambda done: advance(spent()), order, enough)
        known = {"texts": count, "heads": [[*head, score] for head, score in gradients.items()]}
        run.keep(_RANKING, known)
    found.ranked_over = known["texts"]
    found.gradients = {(layer, head): score for layer, head, score in known["heads"]}
    ranked = _by_gradient(job, found.gradients)
    run.spend(found.removals, ranked, order, start + seconds, lambda: advance(spent()))


def _ranked(found: Measured, top: int) -> list[int]:
    """The removals that the ranking shows, and those of several heads."""
    report = found.report()
    order = ranked_effects(report, top)
    shown = {effect.variant.heads for effect in (*order.matter, *order.harm)}
    return [
        index
        for index, variant in enumerate(found.job.variants)
        if variant.heads in shown or variant.name is not None
    ]


def _by_gradient(job: Job, gradients: dict[tuple[int, int], float]) -> list[int]:
    """The single heads, the most important by gradient first."""
    singles = [index for index, variant in enumerate(job.variants) if len(variant.heads) == 1]
    return sorted(singles, key=lambda index: -gradients[job.variants[index].heads[0]])


def _correlation(
    effects: tuple[Effect, ...], gradients: dict[tuple[int, int], float]
) -> float | None:
    """Of the gradient and the exact loss delta, over the heads that have both."""
    both = [
        (gradients[effect.variant.heads[0]], effect.loss_delta)
        for effect in effects
        if len(effect.variant.heads) == 1 and effect.variant.heads[0] in gradients
    ]
    exact = [loss for _, loss in both if loss is not None]
    if len(exact) < 2:
        return None
    return spearman([gradient for gradient, _ in both], exact)


def _metric(wish: ScanWish, effects: tuple[Effect, ...], job: Job) -> Metric:
    """The metric that ranks: as asked, else the loss, or the output's change where there is none.

    Raises UsageError for one that the model does not have.
    """
    if not effects:
        return "loss_delta"
    known: list[Metric] = [
        name
        for name in ("loss_delta", "output_mse", "kl", "flip_rate", "output_cosine", "logit_diff")
        if effects[0].metric(name) is not None
    ]
    if wish.metric is None:
        return "logit_diff" if job.pair is not None and "logit_diff" in known else known[0]
    if wish.metric not in known:
        raise UsageError(
            f"{job.model.info.name!r} has no {wish.metric} here: choose --metric {', '.join(known)}"
        )
    return wish.metric
