"""Measures what a job asks for, piece by piece: what is done is kept, whenever and however it ends.

Every piece is one of a part: the ablations, or random directions in their place, over one text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnviz.engine.effects import METRICS, Metric, Scores, Variant
from attnviz.engine.scan.run import Scan
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.ablate.effects import (
    ablation_effects,
    mean_baseline,
    restore_scores,
    store_scores,
)
from attnviz.inspect.ablate.job import AblationJob
from attnviz.inspect.ablate.records import AblationReport, Effect, Head
from attnviz.measures.bootstrap import few_note, spearman
from attnviz.reading import damaged, finite, typed
from attnviz.records import Advance, Watch
from attnviz.resume import Piece, ResumeFile

_ABLATIONS, _CONTROL, _RANKING = "removals", "control", "ranking"
"""The parts in a resume file."""

_FIRST_CHUNK = 4
"""Ablations that a time budget begins with, to learn how long one takes."""

_RANKING_SHARE = 0.25
"""Of a budget in seconds, what ranking by gradient may take."""


@dataclass
class ScanPart:
    """One series of pieces: the ablations, or random directions in their place.

    name: in the resume file, whose pieces it has from the start. scan: the model, ready to be
    measured. variants: every ablation that may be asked for; pieces name them by their place.
    lengths: tokens of each text. operations: of one ablation over each.
    Raises LoadError for a damaged file.
    """

    name: str
    scan: Scan
    variants: Sequence[Variant]
    lengths: Sequence[int]
    operations: Sequence[float]
    file: ResumeFile | None
    pieces: list[Scores] = field(default_factory=list)
    _done: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for piece in self.file.done if self.file is not None else []:
            if piece.part == self.name:
                count = len(self.variants)
                self._add(restore_scores(piece.text, piece.result, self.lengths, count))
                new = (note for note in piece.result["notes"] if note not in self.scan.notes)
                self.scan.notes.extend(new)

    def _add(self, piece: Scores) -> None:
        done = self._done.setdefault(piece.text, set())
        if done & set(piece.variants) or len(set(piece.variants)) < len(piece.variants):
            raise LoadError(
                f"the resume file is damaged: text {piece.text + 1} has a removal twice; remove "
                "one of its lines"
            )
        done.update(piece.variants)
        self.pieces.append(piece)

    def done(self, text: int) -> set[int]:
        """Return the ablations that are measured over one text."""
        return self._done.get(text, set())

    def cover(self, wanted: Sequence[int], texts: Sequence[int], advance: Advance) -> int:
        """Measure the ``wanted`` ablations over the texts, but for those that are done.

        How many were measured, over whichever text.
        """
        total = len(wanted) * sum(self.operations[text] for text in texts)
        finished, measured = 0.0, 0
        missing: dict[int, list[int]] = {}
        for text in texts:
            left = [index for index in wanted if index not in self.done(text)]
            finished += (len(wanted) - len(left)) * self.operations[text]
            if left:
                missing[text] = left
        for scores in self.scan.scan_all(missing, self.variants):
            if self.file is not None:
                kept = {**store_scores(scores), "notes": list(self.scan.notes)}
                self.file.append(Piece(self.name, scores.text, kept))
            self._add(scores)
            finished += len(scores.variants) * self.operations[scores.text]
            measured += len(scores.variants)
            advance(finished / total)
        return measured

    def spend(
        self,
        ranked: Sequence[int],
        order: Sequence[int],
        until: float,
        advance: Callable[[], None],
    ) -> None:
        """Measure the ablations, first ranked first, until the time is up; a few at least.

        A half of the time takes the first few over as many texts, in their order, as it allows, the
        other half further ablations over these texts: all over the same.
        until: in seconds of the monotonic clock.
        """
        start = time.monotonic()
        size, measured, texts = _FIRST_CHUNK, 0, list[int]()
        for text in order:
            measured += self.cover(ranked[:size], [text], lambda share: advance())
            texts.append(text)
            if time.monotonic() > (start + until) / 2:
                break
        done = size
        while done < len(ranked):
            spent, left = time.monotonic() - start, until - time.monotonic()
            if measured:
                # Half of what is left: the pace is an estimate, the budget is not to be overrun.
                size = int(left / 2 * measured / max(spent, 1e-3) / len(texts))
            if size < 1 or left <= 0:
                return
            chunk = ranked[done : done + size]
            measured += self.cover(chunk, texts, lambda share: advance())
            done += len(chunk)


@dataclass
class MeasuredAblations:
    """What was found of one job; ``complete`` is False where it was interrupted.

    ranked_over: of how many texts a budget in seconds had time for the gradient.
    """

    job: AblationJob
    ablations: ScanPart
    control: ScanPart | None = None
    gradients: Mapping[Head, float] = field(default_factory=dict)
    ranked_over: int | None = None
    seconds: float = 0.0
    complete: bool = True

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to show."""
        return not self.ablations.pieces and not self.gradients

    def report(self) -> AblationReport:
        """Return the report of the texts that are done; of a part of one where none is.

        Raises UsageError for a metric that the model does not have.
        """
        job, request, options = self.job, self.job.request, self.job.options
        texts = self._texts()
        effects = self._effects(self.ablations, texts)
        answer, foil = job.pair or ((0, None), (0, None))
        return AblationReport(
            job.info,
            job.kind,
            tuple(job.texts[text] for text in texts),
            effects,
            tuple(job.targets[text] for text in texts) if job.targets else (),
            mode=options.mode,
            unit=request.unit,
            method=request.how,
            positions=options.positions,
            metric=_metric(effects, job),
            baseline=mean_baseline([p for p in self.ablations.pieces if p.text in set(texts)]),
            control=self._effects(self.control, texts) if self.control is not None else (),
            gradients=self.gradients,
            rank_correlation=_correlation(effects, self.gradients),
            reference=job.reference_words,
            draws=options.draws,
            seed=options.seed,
            seconds=self.seconds,
            notes=(
                *job.notes,
                *self.ablations.scan.notes,
                *self._budget_notes(len(texts)),
                *few_note(max((effect.texts for effect in effects), default=0), "texts"),
            ),
            complete=self.complete,
            text=job.written[0],
            texts_wanted=len(job.written),
            answer=answer[1],
            foil=foil[1],
            top=request.top,
            by_token=request.by_token,
            index_base=request.index_base,
        )

    def followed(self, report: AblationReport, most: int) -> AblationReport:
        """Return the report with the token losses of its first heads over the first text.

        A small scan of its own: kept of every head, they would fill the memory.
        """
        order, job = report.ranking(most), self.job
        shown = [effect.variant for effect in (*report.joint[:1], *order.matter, *order.harm)]
        if report.by_token or "loss" not in report.baseline or not shown or not self.complete:
            return report
        wanted = [job.variants.index(variant) for variant in shown]
        scan = replace(job, options=replace(job.options, token_losses=True)).scan()
        losses = {
            job.variants[index]: (row,)
            for piece in scan.scan(0, job.variants, wanted)
            if piece.token_losses is not None
            for index, row in zip(piece.variants, piece.token_losses, strict=True)
        }
        effects = (replace(e, token_losses=losses.get(e.variant, ())) for e in report.effects)
        return replace(report, effects=tuple(effects))

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
        """Return the texts over which everything is measured that is measured at all over the
        first.
        """
        if not self.ablations.pieces:
            return list(range(len(self.job.texts)))
        done = [self.ablations.done(text) for text in range(len(self.job.texts))]
        wanted = set().union(*done)
        whole = [text for text, found in enumerate(done) if found == wanted]
        return whole or [next(text for text, found in enumerate(done) if found)]

    def _effects(self, part: ScanPart, texts: list[int]) -> tuple[Effect, ...]:
        counted = set(texts)
        pieces = [piece for piece in part.pieces if piece.text in counted]
        return ablation_effects(pieces, self.job.variants, self.job.options.seed)


def measure(job: AblationJob, file: ResumeFile | None, watch: Watch) -> MeasuredAblations:
    """Run the job as far as it goes: to its end, or to Ctrl-C.

    Where there are several texts, what the ranking shows is compared with random directions.
    """
    lengths = [*map(len, job.targets or job.texts)]
    part = ScanPart(_ABLATIONS, job.scan(), job.variants, lengths, job.operations, file)
    found = MeasuredAblations(job, part)
    start = time.monotonic()  # to import torch takes seconds that are not the scan's
    try:
        _run(found, file, watch)
    except KeyboardInterrupt:
        found.complete = False
    found.seconds = time.monotonic() - start
    return found


def _run(found: MeasuredAblations, file: ResumeFile | None, watch: Watch) -> None:
    job, texts = found.job, range(len(found.job.texts))
    how, amount = job.request.how, job.request.amount
    if amount is not None and amount.seconds is not None:
        _spend(found, file, amount.seconds, watch)
        return
    if how != "exact":
        found.gradients = job.gradients(watch, texts)
    if how == "gradient":
        return
    if amount is not None:
        ranked = _by_gradient(job, found.gradients)[: amount.count]
        found.ablations.cover(ranked, texts, watch)
        return
    everything = range(len(job.variants))
    # The control is of those that the ranking shows: the most important, and half as many harmful.
    ranked_at_most = min(len(everything), job.request.top * 3 // 2) if len(texts) > 1 else 0
    share = len(everything) / (len(everything) + ranked_at_most)
    job.expected(watch, share)
    found.ablations.cover(everything, texts, lambda done: watch(share * done))
    if len(texts) > 1:
        scan, lengths = job.scan(control=True), found.ablations.lengths
        control = ScanPart(_CONTROL, scan, job.variants, lengths, job.operations, file)
        found.control = control
        control.cover(_ranked(found), texts, lambda done: watch(share + (1 - share) * done))


def _spend(
    found: MeasuredAblations, file: ResumeFile | None, seconds: float, advance: Advance
) -> None:
    """Rank and measure over as many texts as the time allows.

    A run that goes on takes the ranking that it began with, or it would measure other heads.
    """
    job, order, start = found.job, found.job.drawn(), time.monotonic()

    def spent() -> float:
        return min((time.monotonic() - start) / seconds, 1.0)

    kept = file.done if file is not None else []
    known = next((piece.result for piece in kept if piece.part == _RANKING), None)
    if known is None:
        count = 0

        def enough() -> bool:
            nonlocal count
            count += 1
            return spent() > _RANKING_SHARE

        gradients = job.gradients(lambda done: advance(spent()), order, enough)
        known = {"texts": count, "heads": [[*head, score] for head, score in gradients.items()]}
        if file is not None:
            file.append(Piece(_RANKING, 0, known))
    with damaged("the resume file: its ranking", "begin another file"):
        found.ranked_over = typed(known["texts"], int)
        found.gradients = {(layer, head): finite(score) for layer, head, score in known["heads"]}
        ranked = _by_gradient(job, found.gradients)
    found.ablations.spend(ranked, order, start + seconds, lambda: advance(spent()))


def _ranked(found: MeasuredAblations) -> list[int]:
    """Return the ablations that the ranking shows and that are not zero, and those of several
    heads.
    """
    report = found.report()
    order = report.ranking()
    shown = {
        effect.variant.heads
        for effect in (*order.matter, *order.harm)
        if not effect.unclear(report.metric)
    }
    return [
        index
        for index, variant in enumerate(found.job.variants)
        if variant.heads in shown or variant.name is not None
    ]


def _by_gradient(job: AblationJob, gradients: Mapping[Head, float]) -> list[int]:
    """Return the single heads, the most important by gradient first."""
    singles = [index for index, variant in enumerate(job.variants) if len(variant.heads) == 1]
    return sorted(singles, key=lambda index: -gradients[job.variants[index].heads[0]])


def _correlation(effects: Sequence[Effect], gradients: Mapping[Head, float]) -> float | None:
    """Of the gradient and the exact loss delta, over the heads that have both."""
    both = [
        (gradients[effect.head], effect.values["loss_delta"])
        for effect in effects
        if effect.head is not None and effect.head in gradients and "loss_delta" in effect.values
    ]
    if len(both) < 2:
        return None
    return spearman([gradient for gradient, _ in both], [loss for _, loss in both])


def _metric(effects: Sequence[Effect], job: AblationJob) -> Metric:
    """Return the metric that ranks: as asked, else the loss, or the output's change where there is
    none.

    Raises UsageError for one that the model does not have.
    """
    if not effects:
        return "loss_delta"
    known = [name for name in METRICS if name in effects[0].values]
    wanted = job.request.metric
    if wanted is None:
        defaults: tuple[Metric, ...] = ("loss_delta", "output_mse")
        if job.pair is not None:
            defaults = ("logit_diff", *defaults)
        return next((name for name in defaults if name in known), known[0])
    if wanted not in known:
        raise UsageError(
            f"{job.model.info.name!r} has no {wanted} here: choose --metric {', '.join(known)}"
        )
    return wanted
