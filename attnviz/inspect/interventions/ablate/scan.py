"""Measure the ablations of a job: exactly, by gradient, or as many as a budget allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.draw.signed import Place
from attnviz.engine.effects import METRICS, Metric, Scores
from attnviz.engine.scan.scan import Scan
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.claims import one_text
from attnviz.inspect.interventions.ablate.effects import ablation_effects, mean_baseline
from attnviz.inspect.interventions.ablate.job import AblationJob
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect
from attnviz.inspect.interventions.ablate.request import UNITS
from attnviz.inspect.interventions.study import Metrics, Series, Study
from attnviz.measures.bootstrap import few_note, spearman
from attnviz.progress import Advance, Watch, shares_of
from attnviz.reading import damaged, finite, typed
from attnviz.resume import Piece, ResumeFile, restored, stored

_ABLATIONS, _CONTROL, _RANKING = "removals", "control", "ranking"
"""The parts in a resume file."""

_FIRST_CHUNK = 4
"""The number of ablations that a time budget begins with, to learn how long one takes."""

_RANKING_SHARE = 0.25
"""The share of a budget in seconds that ranking by gradient may take."""


class AblationSeries(Series[Scores]):
    """The measurements of the ablations of a job, or of their random baseline.

    The baseline removes random directions instead of heads. scan: measures them on the model.
    """

    changed, noun, nouns = "variants", "removal", "removals"

    def __init__(
        self, name: str, job: AblationJob, scan: Scan, file: ResumeFile | None, texts: int = 0
    ) -> None:
        self._job, self.scan = job, scan
        super().__init__(name, len(job.variants), texts or len(job.texts), file)

    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Scores]]:
        for scores in self.scan.scan_all(missing, self._job.variants):
            yield scores.text, scores

    def cost(self, text: int) -> float:
        return self._job.cost(text)

    def details(self, piece: Scores) -> dict[str, Any]:
        losses = piece.token_losses
        return {
            "errors": {name: stored(values) for name, values in piece.errors.items()},
            "baseline": dict(piece.baseline),
            "token_losses": None if losses is None else [stored(row) for row in losses],
            "notes": list(self.scan.notes),
        }

    def rebuild(self, text: int, changes: tuple[int, ...], metrics: Metrics, kept: Any) -> Scores:
        losses, notes = kept["token_losses"], kept.get("notes", [])
        length = len((self._job.targets or self._job.texts)[text])
        if not all(isinstance(note, str) for note in notes):
            raise ValueError("a note is no text")
        if losses is not None and any(len(row) != length for row in losses):
            raise ValueError(f"the text has {length:,} tokens")
        for name, values in metrics.items():
            if METRICS[name].percent and ((values < 0) | (values > 1)).any():
                raise ValueError(f"{name} is not from 0 to 1")
        self.scan.notes.extend(note for note in notes if note not in self.scan.notes)
        return Scores(
            text,
            changes,
            metrics,
            {key: finite(value) for key, value in kept["baseline"].items()},
            {metric: restored(values) for metric, values in kept["errors"].items()},
            None if losses is None else np.array([restored(row) for row in losses]),
        )

    def spend(
        self,
        ranked: Sequence[int],
        order: Sequence[int],
        until: float,
        add: Callable[[float], None],
    ) -> None:
        """Measure ablations in the order ``ranked`` until the time is up, but at least a few.

        Half of the time goes to the first few ablations, over as many texts in the given order as
        it allows. The other half goes to further ablations over the same texts.
        ranked: indices of the ablations. order: indices of the texts. until: the end, in seconds of
            the monotonic clock. add: is called with the cost of each finished piece.
        """
        start = time.monotonic()
        size, measured, texts = _FIRST_CHUNK, 0, list[int]()
        for text in order:
            measured += self.cover(ranked[:size], [text], add)
            texts.append(text)
            if time.monotonic() > (start + until) / 2:
                break
        done = size
        while done < len(ranked):
            spent, left = time.monotonic() - start, until - time.monotonic()
            if measured:
                # Only half of the time left is planned: the pace is an estimate, and the budget
                # must not be exceeded.
                size = int(left / 2 * measured / max(spent, 1e-3) / len(texts))
            if size < 1 or left <= 0:
                return
            chunk = ranked[done : done + size]
            measured += self.cover(chunk, texts, add)
            done += len(chunk)


class RandomEdges(AblationSeries):
    """The control of hidden edges: random edges in the same heads, each draw in place of a text."""

    def __init__(self, job: AblationJob, scan: Scan, file: ResumeFile | None) -> None:
        super().__init__(_CONTROL, job, scan.changed(), file, len(job.draws))

    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Scores]]:
        for draw, wanted in missing.items():
            variants = [replace(one, edges=self._job.draws[draw]) for one in self._job.variants]
            for scores in self.scan.scan(0, variants, wanted):
                yield draw, replace(scores, text=draw)

    def cost(self, text: int) -> float:
        return super().cost(0)

    def rebuild(self, text: int, changes: tuple[int, ...], metrics: Metrics, kept: Any) -> Scores:
        return replace(super().rebuild(0, changes, metrics, kept), text=text)


class AblationStudy(Study):
    """Measures a job of ablations, and makes the report from the measurements.

    gradients: the importance of each head by gradient, if requested.
    ranked_over: the number of texts for whose gradients a budget in seconds had time.
    """

    def __init__(self, job: AblationJob, file: ResumeFile | None) -> None:
        super().__init__(file)
        self.job = job
        self.ablations = AblationSeries(_ABLATIONS, job, job.scan(), file)
        self.control: AblationSeries | None = None
        self.gradients: Mapping[Place, float] = {}
        self.ranked_over: int | None = None

    @property
    def empty(self) -> bool:
        return not self.ablations.pieces and not self.gradients

    def run(self, watch: Watch) -> None:
        """Measure the ablations by the requested method.

        With several texts, and for hidden edges, a random baseline of the ranked ablations is
        measured too. watch: is given the progress.
        """
        job, texts = self.job, range(len(self.job.texts))
        how, amount = job.request.how, job.request.amount
        if amount is not None and amount.seconds is not None:
            self._spend(amount.seconds, watch)
            return
        if how != "exact":
            self.gradients = job.gradients(watch, texts)
        if how == "gradient":
            return
        wanted: Sequence[int] = range(len(job.variants))
        if amount is not None:
            wanted = self._by_gradient()[: amount.count]
        # The control is of those that the ranking shows: the most important, half as many harmful.
        controlled = how == "exact" and (len(texts) > 1 or bool(job.draws))
        controls = min(job.request.top * 3 // 2, len(wanted)) if controlled else 0
        controls *= len(job.draws) or 1
        many = f" × {len(texts):,} texts" if len(texts) > 1 else ""
        watch.begin(f"ablating {counted(len(job.variants), UNITS[job.request.unit])}{many}")
        add = shares_of((len(wanted) + controls) * sum(map(job.cost, texts)), watch)

        def finished(text: int) -> None:
            watch.found(lambda: one_text(self.report([text]), text, len(texts)))

        self.ablations.cover(wanted, texts, add, finished if len(texts) > 1 else lambda text: None)
        if controls:
            scan = self.ablations.scan
            if job.draws:
                self.control = RandomEdges(job, scan, self.file)
            else:
                self.control = AblationSeries(_CONTROL, job, scan.changed(control=True), self.file)
            self.control.cover(self._ranked(), range(self.control.texts), add)

    def _spend(self, seconds: float, advance: Advance) -> None:
        """Rank the heads and measure ablations over as many texts as the time allows."""
        job, start = self.job, time.monotonic()
        drawn = np.random.default_rng(job.options.seed).permutation(len(job.texts) - 1) + 1
        order = [0, *drawn.tolist()]  # the first text stays first, because it is shown

        def spent() -> float:
            return min((time.monotonic() - start) / seconds, 1.0)

        kept = self.file.done if self.file is not None else []
        known = next((piece.result for piece in kept if piece.part == _RANKING), None)
        if known is None:
            count = 0

            def enough() -> bool:
                nonlocal count
                count += 1
                return spent() > _RANKING_SHARE

            gradients = job.gradients(lambda done: advance(spent()), order, enough)
            known = {"texts": count, "heads": [[*head, score] for head, score in gradients.items()]}
            if self.file is not None:
                self.file.append(Piece(_RANKING, 0, known))
        with damaged("the resume file: its ranking", "begin another file"):
            self.ranked_over = typed(known["texts"], int)
            self.gradients = {(layer, head): finite(score) for layer, head, score in known["heads"]}
            ranked = self._by_gradient()
        self.ablations.spend(ranked, order, start + seconds, lambda count: advance(spent()))

    def _by_gradient(self) -> list[int]:
        variants = self.job.variants
        singles = [index for index, variant in enumerate(variants) if len(variant.heads) == 1]
        return sorted(singles, key=lambda index: -self.gradients[variants[index].heads[0]])

    def _ranked(self) -> list[int]:
        """Return the indices of the ablations that need a random baseline.

        They are those that the ranking shows and that are not zero, and the ones with a name of
        their own.
        """
        report = self.report()
        order = report.ranking()
        shown = {
            effect.variant.heads
            for effect in (*order.matter, *order.harm)
            if not effect.shown(report.metric).unclear
        }
        return [
            index
            for index, variant in enumerate(self.job.variants)
            if variant.heads in shown
            or variant.name is not None
            or (variant.edges and len(variant.heads) > 1)
        ]

    # What was found ----------------------------------------------------------------------------

    def report(self, texts: Sequence[int] | None = None) -> AblationReport:
        """Return the report over some of the texts.

        texts: their indices; by default the finished texts or, if there is none yet, one unfinished
            text. Raises UsageError for a metric that the model does not have.
        """
        job, request, options = self.job, self.job.request, self.job.options
        texts = self._texts() if texts is None else texts
        pieces = self._pieces(self.ablations, texts)
        control = self._pieces(self.control, range(len(job.draws)) if job.draws else texts)
        effects = ablation_effects(pieces, job.variants, options.seed, control)
        foil = job.pair[1][1] if job.pair else None
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
            metric=metric_of(effects, request.metric, job.pair is not None, job.info.name),
            baseline=mean_baseline(pieces),
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
            answer=job.answer,
            foil=foil,
            classes=tuple(self.ablations.scan.labels),
            top=request.top,
            by_token=request.by_token,
            index_base=request.index_base,
            edges=job.edges,
            edge_draws=len(job.draws),
        )

    def followed(self, report: AblationReport, most: int) -> AblationReport:
        """Return the report with the change of each token's loss for its first heads.

        most: for how many heads of the ranking. The losses over the first text are measured by a
            further small scan: those of all heads would fill the memory.
        """
        order, job = report.ranking(most), self.job
        shown = [effect.variant for effect in (*report.joint[:1], *order.matter, *order.harm)]
        known = report.by_token or any(effect.token_losses for effect in report.effects)
        if known or "loss" not in report.baseline or not shown or not self.complete:
            return report
        wanted = [job.variants.index(variant) for variant in shown]
        scan = self.ablations.scan.changed(token_losses=True)
        losses = {
            job.variants[index]: (row,)
            for piece in scan.scan(0, job.variants, wanted)
            if piece.token_losses is not None
            for index, row in zip(piece.variants, piece.token_losses, strict=True)
        }
        effects = (replace(e, token_losses=losses.get(e.variant, ())) for e in report.effects)
        return replace(report, effects=tuple(effects))

    def _texts(self) -> list[int]:
        """Return the indices of the finished texts.

        A text is finished if it has the result of every ablation that any text has. If none is
        finished, the index of the first text with any result is returned.
        """
        count = len(self.job.texts)
        if not self.ablations.pieces:
            return list(range(count))
        done = [self.ablations.done(text) for text in range(count)]
        wanted = set().union(*done)
        whole = [text for text, found in enumerate(done) if found == wanted]
        return whole or [next(text for text, found in enumerate(done) if found)]

    @staticmethod
    def _pieces(series: AblationSeries | None, texts: Sequence[int]) -> list[Scores]:
        found = series.pieces if series is not None else {}
        return list(chain.from_iterable(found.get(text, ()) for text in texts))

    def _budget_notes(self, measured: int) -> tuple[str, ...]:
        """Return a note on how many texts the time budget allowed; empty if it allowed all."""
        wanted = len(self.job.texts)
        if self.ranked_over is None or self.ranked_over == measured == wanted:
            return ()
        return (
            f"budget: of {wanted:,} texts, drawn with seed {self.job.options.seed}, there was time "
            f"to rank by gradient over {self.ranked_over:,} and to measure over {measured:,}",
        )


def _correlation(effects: Sequence[Effect], gradients: Mapping[Place, float]) -> float | None:
    """Return the rank correlation of gradients and measured loss changes over the heads with both.

    gradients: by (layer, head). None for fewer than two such heads.
    """
    both = [
        (gradients[effect.head], effect.value("loss_delta"))
        for effect in effects
        if effect.head is not None and effect.head in gradients and "loss_delta" in effect.means
    ]
    if len(both) < 2:
        return None
    return spearman([gradient for gradient, _ in both], [loss for _, loss in both])


def metric_of(effects: Sequence[Effect], wanted: Metric | None, paired: bool, name: str) -> Metric:
    """Return the metric that ranks the heads: the requested one, or a default.

    effects: of the ablations; the first one shows which metrics the model has. wanted: as asked
    for, or None. paired: whether two tokens are compared. name: of the model.
    Raises UsageError for a metric that the model does not have.
    """
    if not effects:
        return "loss_delta"
    known = [name for name in METRICS if name in effects[0].means]
    if wanted is None:
        defaults: tuple[Metric, ...] = ("loss_delta", "output_mse")
        if paired:
            defaults = ("logit_diff", *defaults)
        return next((name for name in defaults if name in known), known[0])
    if wanted not in known:
        raise UsageError(f"{name!r} has no {wanted} here: choose --metric {', '.join(known)}")
    return wanted
