"""Answers ``ablate``: how much the loss rises without each head, over one text or many.

Ablations are measured exactly, estimated by gradient, or as many as a budget allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.draw.signed import Place
from attnviz.engine.capture import capture
from attnviz.engine.effects import METRICS, Metric, Scores, Variant
from attnviz.engine.known_labels import known_labels
from attnviz.engine.scan.scan import Scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.ablate.plan import AblationPlan, Pairs, plan_of
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect
from attnviz.inspect.interventions.ablate.request import UNITS, AblateRequest
from attnviz.inspect.interventions.study import Mean, Metrics, Series, Study, p_values
from attnviz.measures.bootstrap import few_note, intervals, spearman
from attnviz.measures.one_text import head_scores
from attnviz.measures.words import joined
from attnviz.models.model import Model
from attnviz.models.work import CORPUS_WORK, Work, about_tokens
from attnviz.progress import UNWATCHED, Advance, Watch, shares_of
from attnviz.reading import damaged, finite, fits, typed
from attnviz.records import HeadsRecord, Input, Kind
from attnviz.resume import Piece, ResumeFile, restored, stored
from attnviz.texts import Texts

if TYPE_CHECKING:
    from attnviz.corpus import TextCorpus

_SCHEMA = "attnviz.ablate-resume/1"
_ABLATIONS, _CONTROL, _RANKING = "removals", "control", "ranking"  # the parts in a resume file
_CHUNK = 4  # the number of ablations after which a budget of time is looked at
_ROUNDING = 1e-3  # how far a stored number may be beyond the least or the largest that it can be
_RANKING_SHARE = 0.25  # the share of a budget in seconds that ranking by gradient may take
_ALL_MAPS = 64_000_000
_SOME_MAPS = 512_000_000
"""Bytes of maps up to which those of all ablated heads, or of the ranked ones, are kept."""


def work(texts: Texts | TextCorpus, request: AblateRequest) -> Work:
    """Return the planned work over texts, from which the loader chooses NumPy or torch."""
    if not isinstance(texts, Texts):
        return replace(CORPUS_WORK, changed=True)
    tokens = about_tokens(*texts.texts) if request.how == "exact" else None
    return Work(tokens, changed=True, joined=request.second is not None)


def ablate(
    model: Model,
    texts: Texts,
    request: AblateRequest,
    *,
    followed: int = 0,
    advance: Watch = UNWATCHED,
) -> AblationReport:
    """Ablate each head, and measure how much the loss rises without it.

    followed: for how many heads at the top of the ranking the change of each token's loss over the
        first text is measured too, by a further small scan.
    The report of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError for heads, texts or tokens that do not fit the model, UnsupportedError
    if its heads cannot be ablated, LoadError for a damaged resume file, KeyboardInterrupt if
    nothing was measured.
    """
    plan, path = plan_of(model, texts, request), request.resume
    with ResumeFile(path, _SCHEMA, plan.identity()) if path else nullcontext() as file:
        study = AblationStudy(plan, file)
        study.measure(advance)
    report = study.report()
    if followed:
        report = study.followed(report, followed)
    return replace(
        report,
        source=texts.source,
        target=(request.target or joined(report.targets[0])) if report.targets else None,
        patterns=_patterns(report, model, ignored=request.no_known_labels),
    )


class AblationSeries(Series[Scores]):
    """The measurements of the ablations of a plan, or of their random baseline.

    The baseline removes random directions instead of heads, or hides random edges. draws: sets of
    random edges, hidden instead of the named edges, each set in the role of a text; empty for other
    ablations.
    """

    changed, noun, nouns = "variants", "removal", "removals"

    def __init__(
        self,
        name: str,
        plan: AblationPlan,
        scan: Scan,
        file: ResumeFile | None,
        draws: Sequence[Pairs] = (),
    ) -> None:
        self._plan, self.scan, self._draws = plan, scan, draws
        super().__init__(name, len(plan.variants), len(draws or plan.inputs), file)

    def measure(self, missing: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Scores]]:
        variants = self._plan.variants
        if not self._draws:
            yield from ((piece.text, piece) for piece in self.scan.scan_all(missing, variants))
            return
        for draw, wanted in missing.items():
            drawn = [replace(variant, edges=self._draws[draw]) for variant in variants]
            for piece in self.scan.scan(0, drawn, wanted):
                yield draw, replace(piece, text=draw)

    def cost(self, text: int) -> float:
        return self._plan.cost(0 if self._draws else text)

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
        length = len(self._plan.inputs[0 if self._draws else text].predicted)
        if not fits(notes, list[str]):
            raise ValueError("its notes are no list of texts")
        if finite(kept["baseline"].get("loss", 0.0)) < 0:
            raise ValueError("a loss is not below 0")
        if losses is not None and any(len(row) != length for row in losses):
            raise ValueError(f"the text has {length:,} tokens")
        if not metrics:
            raise ValueError("it has no metric")
        for name, values in metrics.items():
            least, most = METRICS[name].range
            if ((values < least - _ROUNDING) | (values > most + _ROUNDING)).any():
                raise ValueError(f"{name} is not from {least:g} to {most:g}")
        self.scan.notes.extend(note for note in notes if note not in self.scan.notes)
        return Scores(
            text,
            changes,
            metrics,
            {key: finite(value) for key, value in kept["baseline"].items()},
            {metric: restored(values) for metric, values in kept["errors"].items()},
            None if losses is None else np.array([restored(row) for row in losses]),
        )


class AblationStudy(Study):
    """Measures a plan of ablations, and makes the report from the measurements.

    gradients: the importance of each head by gradient, if requested.
    ranked_over: the number of texts for whose gradients a budget in seconds had time.
    """

    def __init__(self, plan: AblationPlan, file: ResumeFile | None) -> None:
        super().__init__(file)
        self.plan = plan
        self.ablations = AblationSeries(_ABLATIONS, plan, plan.scan(), file)
        self.control: AblationSeries | None = None
        self.gradients: Mapping[Place, float] = {}
        self.ranked_over: int | None = None

    @property
    def empty(self) -> bool:
        return not self.ablations.pieces and not self.gradients

    def run(self, watch: Watch) -> None:
        """Measure the ablations, and for several texts or hidden edges as many random ones."""
        plan, texts = self.plan, range(len(self.plan.inputs))
        how, amount = plan.request.how, plan.request.amount
        if amount is not None and amount.seconds is not None:
            self._spend(amount.seconds, watch)
            return
        if how != "exact":
            self.gradients = plan.gradients(watch, texts)
        if how == "gradient":
            return
        wanted: Sequence[int] = range(len(plan.variants))
        if amount is not None:
            wanted = self._by_gradient()[: amount.count]
        # The control is of those that the ranking shows: the most important, half as many harmful.
        controlled = how == "exact" and (len(texts) > 1 or bool(plan.draws))
        controls = min(plan.request.top * 3 // 2, len(wanted)) if controlled else 0
        controls *= len(plan.draws) or 1
        many = f" × {len(texts):,} texts" if len(texts) > 1 else ""
        watch.begin(f"ablating {counted(len(plan.variants), UNITS[plan.request.unit])}{many}")
        add = shares_of((len(wanted) + controls) * sum(map(plan.cost, texts)), watch)
        self.ablations.cover(wanted, texts, add)
        if controls:
            scan = self.ablations.scan.changed(control=not plan.draws)
            self.control = AblationSeries(_CONTROL, plan, scan, self.file, plan.draws)
            self.control.cover(self._ranked(), range(self.control.texts), add)

    def _spend(self, seconds: float, advance: Advance) -> None:
        """Rank the heads by gradient, and ablate the first of them while the time allows it."""
        plan, start = self.plan, time.monotonic()
        drawn = np.random.default_rng(plan.options.seed).permutation(len(plan.inputs) - 1) + 1
        order = [0, *drawn.tolist()]  # the first text stays first, because it is shown

        def spent() -> float:
            return (time.monotonic() - start) / seconds

        def tick(_: float) -> None:
            advance(min(spent(), 1.0))

        kept = self.file.done if self.file is not None else []
        known = next((piece.result for piece in kept if piece.part == _RANKING), None)
        if known is None:
            count = 0

            def enough() -> bool:
                nonlocal count
                count += 1
                return spent() > _RANKING_SHARE

            gradients = plan.gradients(tick, order, enough)
            known = {"texts": count, "heads": [[*head, score] for head, score in gradients.items()]}
            if self.file is not None:
                self.file.append(Piece(_RANKING, 0, known))
        with damaged("the resume file: its ranking", "begin another file"):
            self.ranked_over = typed(known["texts"], int)
            self.gradients = {(layer, head): finite(score) for layer, head, score in known["heads"]}
            ranked = self._by_gradient()
        pace = 0.0
        for at in range(0, len(ranked), _CHUNK):
            before = spent()
            if at and before + pace > 1:
                return
            self.ablations.cover(ranked[at : at + _CHUNK], order[: self.ranked_over], tick)
            pace = spent() - before

    def _by_gradient(self) -> list[int]:
        variants = self.plan.variants
        singles = [index for index, variant in enumerate(variants) if len(variant.heads) == 1]
        return sorted(singles, key=lambda index: -self.gradients[variants[index].heads[0]])

    def _ranked(self) -> list[int]:
        """Return the indices of the ablations with a control: ranked and clear, or joint ones."""
        report = self.report()
        ranked = chain(*report.ranking())
        shown = {effect.variant for effect in ranked if not effect.shown(report.metric).unclear}
        return [
            index
            for index, variant in enumerate(self.plan.variants)
            if variant in shown or variant.name or (variant.edges and len(variant.heads) > 1)
        ]

    def report(self) -> AblationReport:
        """Return the report over the finished texts, or if there is none yet over an unfinished."""
        plan, request, options = self.plan, self.plan.request, self.plan.options
        texts = self._texts()
        pieces, inputs = self.ablations.over(*texts), [plan.inputs[text] for text in texts]
        drawn = range(len(plan.draws)) if plan.draws else texts
        control = [] if self.control is None else self.control.over(*drawn)
        effects = ablation_effects(pieces, plan.variants, options.seed, control)
        report = AblationReport(
            plan.info,
            plan.kind,
            tuple(given.text for given in inputs),
            effects,
            tuple(given.target for given in inputs if given.target is not None),
            mode=options.mode,
            unit=request.unit,
            method=request.how,
            positions=options.positions,
            metric=metric_of(effects, request.metric, plan.pair is not None, plan.info.name),
            baseline=mean_baseline(pieces),
            gradients=self.gradients,
            rank_correlation=_correlation(effects, self.gradients),
            reference=plan.reference_words,
            draws=options.draws,
            seed=options.seed,
            seconds=self.seconds,
            notes=(
                *plan.notes,
                *self.ablations.scan.notes,
                *self._budget_notes(len(texts)),
                *few_note(max((effect.texts for effect in effects), default=0), "texts"),
            ),
            complete=self.complete,
            text=plan.written[0],
            texts_wanted=len(plan.written),
            answer=plan.answer,
            foil=plan.pair[1][1] if plan.pair else None,
            classes=tuple(self.ablations.scan.labels),
            top=request.top,
            by_token=request.by_token,
            index_base=request.index_base,
            edges=plan.edges,
            edge_draws=len(plan.draws),
        )
        edges = self._random_edges(report) if plan.draws and effects else ()
        return replace(report, random_edges=edges)

    def followed(self, report: AblationReport, most: int) -> AblationReport:
        """Return the report with the losses by token of its first heads, from a small scan."""
        plan = self.plan
        shown = [effect.variant for effect in chain(report.joint[:1], *report.ranking(most))]
        known = report.by_token or any(effect.token_losses for effect in report.effects)
        if known or "loss" not in report.baseline or not shown or not self.complete:
            return report
        wanted = [plan.variants.index(variant) for variant in shown]
        scan = self.ablations.scan.changed(token_losses=True)
        losses = {
            plan.variants[index]: (row,)
            for piece in scan.scan(0, plan.variants, wanted)
            if piece.token_losses is not None
            for index, row in zip(piece.variants, piece.token_losses, strict=True)
        }
        effects = (replace(e, token_losses=losses.get(e.variant, ())) for e in report.effects)
        return replace(report, effects=tuple(effects))

    def _random_edges(self, report: AblationReport) -> tuple[float, ...]:
        index = self.plan.variants.index(report.leading.variant)
        pieces = () if self.control is None else self.control.over(*range(len(self.plan.draws)))
        return tuple(
            float(piece.metrics[report.metric][piece.variants.index(index)])
            for piece in pieces
            if index in piece.variants
        )

    def _texts(self) -> list[int]:
        """Return the indices of texts with every ablation, or else of the first with any."""
        count = len(self.plan.inputs)
        if not self.ablations.pieces:
            return list(range(count))
        done = [self.ablations.done(text) for text in range(count)]
        wanted = set().union(*done)
        whole = [text for text, variants in enumerate(done) if variants == wanted]
        return whole or [next(text for text, variants in enumerate(done) if variants)]

    def _budget_notes(self, measured: int) -> tuple[str, ...]:
        """Return a note on how many texts the time budget allowed; empty if it allowed all."""
        wanted = len(self.plan.inputs)
        if self.ranked_over is None or self.ranked_over == measured == wanted:
            return ()
        return (
            f"budget: of {wanted:,} texts, drawn with seed {self.plan.options.seed}, there was "
            f"time to rank by gradient over {self.ranked_over:,} and to measure over {measured:,}",
        )


def _correlation(effects: Sequence[Effect], gradients: Mapping[Place, float]) -> float | None:
    both = [
        (gradients[effect.head], effect.value("loss_delta"))
        for effect in effects
        if effect.head is not None and effect.head in gradients and "loss_delta" in effect.means
    ]
    return spearman(*map(list, zip(*both, strict=True))) if len(both) > 1 else None


def metric_of(effects: Sequence[Effect], wanted: Metric | None, paired: bool, name: str) -> Metric:
    """Return the metric that ranks heads: ``wanted``, or a default; UsageError if it is unknown."""
    if not effects:
        return "loss_delta"
    known = [name for name in METRICS if name in effects[0].means]
    if wanted is None:
        defaults: tuple[Metric, ...] = ("loss_delta", "output_mse")
        if paired:
            defaults = ("logit_diff", *defaults)
        elif "kl" in known and not any(effect.value("loss_delta") for effect in effects):
            defaults = ("kl",)  # what follows the last token alone has changed, if anything
        return next((name for name in defaults if name in known), known[0])
    if wanted not in known:
        raise UsageError(f"{name!r} has no {wanted} here: choose --metric {', '.join(known)}")
    return wanted


def _patterns(report: AblationReport, model: Model, *, ignored: bool) -> HeadsRecord | None:
    """Return the ablated heads' attention over the first text, or the ranked ones'; else None."""
    wanted = {head for effect in report.effects for head in effect.variant.heads}
    wanted |= set(report.gradients)
    queries = (report.targets if report.kind in ("decoder", "cross") else report.texts)[0]
    size = 4 * len(queries) * len(report.texts[0])
    if size * len(wanted) > _ALL_MAPS:
        ranked = {effect.variant.heads[0] for effect in chain(*report.ranking())}
        wanted = ranked or set(report.by_gradient[: report.top])
    if not wanted or size * len(wanted) > _SOME_MAPS:
        return None
    first = Input(report.texts[0], *report.targets[:1])
    seen = observed(model, first, report.kind, wanted, ignored=ignored)
    return None if seen is None else replace(seen, index_base=report.index_base)


def observed(
    model: Model, given: Input, kind: Kind, wanted: Iterable[Place], *, ignored: bool
) -> HeadsRecord | None:
    """Return the attention of some heads over a text, and labels; None if not to be observed."""
    heads: dict[int, set[int]] = {}
    for layer, head in wanted:
        heads.setdefault(layer, set()).add(head)
    try:
        record = capture(model, given.text, kind=kind, target=given.target, heads=heads)
    except UnsupportedError:
        return None
    # What these notes say of the text has no place among those of a scan.
    record = replace(record, model=replace(record.model, notes=()))
    scores = head_scores(record, known_labels(model, record.kind, ignored=ignored))
    return HeadsRecord(record, scores, (), True)


# Effects as means over texts -------------------------------------------------------------------


_Parts = Mapping[int, Sequence[tuple[Scores, int]]]
"""For each ablation the pieces that have it, in the order of the texts, and its place in each."""

_Key = tuple[int, Metric]


def mean_baseline(pieces: Iterable[Scores]) -> dict[str, float]:
    """Return the metrics of the whole model by name, as means over the texts."""
    by_text = {piece.text: piece.baseline for piece in pieces}
    names = dict.fromkeys(name for baseline in by_text.values() for name in baseline)
    return {
        name: float(np.mean([b[name] for b in by_text.values() if name in b])) for name in names
    }


class Whole(NamedTuple):
    """Means and standard errors over all texts of a corpus, of which only some are stored."""

    texts: int
    means: Mapping[_Key, tuple[float, float]]


def ablation_effects(
    pieces: Iterable[Scores],
    variants: Sequence[Variant],
    seed: int,
    control: Iterable[Scores] = (),
    whole: Whole | None = None,
) -> tuple[Effect, ...]:
    """Return the effect of each measured ablation, in the order of ``variants``.

    pieces: the measurements; an ablation is measured over the texts whose pieces contain it.
    control: the pieces of the random baseline, whose means are the base rates.
    whole: the means over all texts of a corpus of which only some have pieces; the effects are
        these means, and the pieces give the intervals their shape.
    seed: of the draws of the intervals.
    """
    parts = _parts(pieces)
    measured = _values(parts)
    bases = {key: float(np.mean(values)) for key, values in _values(_parts(control)).items()}
    means = dict[_Key, Mean]()
    for texts in {len(values) for values in measured.values()}:
        # Ablations that are measured over equally many texts share the draws of their intervals.
        keys = [key for key, values in measured.items() if len(values) == texts]
        columns = np.array([measured[key] for key in keys]).T
        known = None if whole is None else np.array([whole.means[key] for key in keys]).T
        centres = columns.mean(axis=0) if known is None else known[0]
        adjusted = dict[_Key, float | None]()
        for name in {name for _, name in keys if METRICS[name].signed}:
            family = [at for at, key in enumerate(keys) if key[1] == name]
            of = None if known is None else known[:, family]
            p = p_values(columns[:, family], seed, of)
            adjusted |= zip((keys[at] for at in family), p, strict=True)
        ends = intervals(columns, seed, known)
        for key, centre, between in zip(keys, centres.tolist(), ends, strict=True):
            means[key] = Mean(
                centre,
                between,
                adjusted.get(key),
                bases.get(key),
                _error(parts, key),
                METRICS[key[1]].signed,
            )
    return tuple(
        Effect(
            variants[index],
            len(own) if whole is None else whole.texts,
            {name: means[index, name] for name in METRICS if (index, name) in means},
            tuple(piece.token_losses[at] for piece, at in own if piece.token_losses is not None),
        )
        for index, own in sorted(parts.items())
    )


def _parts(pieces: Iterable[Scores]) -> _Parts:
    parts: dict[int, list[tuple[Scores, int]]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.text):
        for at, index in enumerate(piece.variants):
            parts.setdefault(index, []).append((piece, at))
    return parts


def _values(parts: _Parts) -> dict[_Key, list[float]]:
    """Return the value of each ablation and metric over each text that all texts have."""
    return {
        (index, name): [piece.metrics[name][at] for piece, at in own]
        for index, own in parts.items()
        for name in METRICS
        if all(name in piece.metrics for piece, _ in own)
    }


def _error(parts: _Parts, key: _Key) -> float | None:
    """Return the standard error of a mean over texts; None unless every text has its own error."""
    index, name = key
    drawn = [piece.errors[name][at] for piece, at in parts[index] if name in piece.errors]
    whole = len(drawn) == len(parts[index])
    return float(np.sqrt(np.square(drawn).sum()) / len(drawn)) if whole else None
