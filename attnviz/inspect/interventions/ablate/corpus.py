"""Ablates heads over a corpus of any size: the sums of a block of texts, and the report of all.

The effects over the first 1,024 texts are kept one by one. Up to so many texts, the effects and
their intervals are those of the same texts without shards. Of more texts, mean and standard error
come from exact sums over all of them, and the seeded draws of the kept texts give the quantiles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.corpus import Shard, TextBlock, TextCorpus
from attnviz.draw.numbers import counted
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.capture import capture
from attnviz.engine.effects import METRICS, Metric, Mode, Positions, Scores, Unit, Variant
from attnviz.engine.known_labels import known_labels
from attnviz.errors import UnsupportedError, UsageError
from attnviz.forms import MANY, SIGNED, Form, Numbers
from attnviz.inspect.interventions.ablate.effects import Whole, ablation_effects
from attnviz.inspect.interventions.ablate.job import AblationJob
from attnviz.inspect.interventions.ablate.report import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.interventions.ablate.scan import AblationSeries, metric_of
from attnviz.measures.bootstrap import few_note
from attnviz.measures.exact_sums import Floats, Integers, exact_sum, mean, variance
from attnviz.measures.one_text import head_scores
from attnviz.mergeable import UNUSUAL, CorpusRecord, Tallies, recorded
from attnviz.models.model import Model
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import WHOLE
from attnviz.records import HeadLabel, Kind, Tokens

_KEPT = 1024
"""The number of texts, from the first on, whose effects are kept one by one."""

_READ = 256
"""The most tokens of the first text in which labels are sought, to limit memory."""

_LARGEST = 2.0**14
"""An effect of this size or more counts as one that overflowed."""

_NAMES = tuple(METRICS)
_BASELINE = ("loss", "logit_diff", "output_square")


_HEAD = tuple[WHOLE, WHOLE]
_TOKEN = tuple[WHOLE, str]

FORM = Form(
    {"kind": Kind, "seed": WHOLE, "mode": Mode, "positions": Positions, "draws": WHOLE}
    | {"unit": Unit, "metric": Metric | None, "top": WHOLE | None, "reference": str | None}
    | {
        "text": str,
        "tokens": tuple[list[int], list[str], list[bool]],
        "removals": list[tuple[list[_HEAD], str | None]],
        "labels": list[tuple[WHOLE, WHOLE, list[str | float | int]]],
        "pair": tuple[_TOKEN, _TOKEN] | None,
    },
    lambda facts: (
        {"removal": len(facts["removals"])} | {"metric": len(_NAMES), "loss": len(_BASELINE)}
    ),
    (
        Numbers("short"),
        Numbers("texts copies", needed=False),
        Numbers("noted", terms="texts"),
        Numbers("tokens", terms="texts", term=MANY),
        Numbers("measured broken", "removal metric", "texts"),
        Numbers("controls", "removal metric", "texts", needed=False),
        Numbers("effects squares", "removal metric", "measured", SIGNED, exact=True),
        Numbers("control", "removal metric", "controls", SIGNED, exact=True),
        Numbers("based", "loss", "texts"),
        Numbers("baseline", "loss", "based", SIGNED, exact=True),
        Numbers("kept.", "any removal metric", "texts", None),
    ),
)
"""What the record of a shard may hold; see ``_tallies``."""


def refuse_for_corpus(request: AblateRequest) -> None:
    """Raise UsageError for an option that is not for a corpus, before a model is loaded."""
    given = {
        "--target": request.target is not None,
        "--by-token": request.by_token,
        "--edge": request.edge is not None,
        "--budget": request.budget is not None,
        f"--method {request.how}": request.how != "exact",
        f"--mode {request.mode} without --reference FILE": request.mode != "zero"
        and request.reference is None,
    }
    for name in (name for name, there in given.items() if there):
        raise UsageError(f"{name} is not for a corpus: leave it out, or --shard and a large file")


def ablate_over(
    model: Model,
    corpus: TextCorpus,
    request: AblateRequest,
    shard: Shard,
    file: Path | None = None,
    advance: Watch = UNWATCHED,
) -> AblationReport:
    """Ablate each head over the shard's texts of a corpus, and measure the rise of the loss.

    file: where the record of the shard is kept; see ``mergeable.recorded``. advance: is given the
    progress. The base rate, the removal of random directions, is measured for all ablations over
    the first block. Raises UsageError for options that do not fit, UnsupportedError for an
    encoder–decoder, or if the heads cannot be ablated.
    """
    began = time.monotonic()
    if "decoder" in model.kinds:
        raise UnsupportedError(
            f"{model.info.name!r} writes a target for each text: name a short file, without --shard"
        )
    request = replace(request, resume=None)
    able = (line for line in corpus.lines() if len(model.encode(line.text)) > 1)
    if corpus.source == "standard input" or (first := next(able, None)) is None:
        raise UsageError(
            f"--texts {corpus.source} cannot be read twice, or has no text: name a file"
        )
    begun = TextBlock(0, (first,))
    job = AblationJob.prepare(model, begun.texts, request)
    run = {name: fact for name, fact in job.identity().items() if name != "texts"}
    shown = {
        "model": model_facts(job.info),
        "source": corpus.source,
        "text": first.text,
        "tokens": [job.texts[0].ids, job.texts[0].texts, job.texts[0].special],
        "removals": [[variant.heads, variant.name] for variant in job.variants],
        "labels": _labels(job),
        "pair": job.pair,
        "reference": job.reference_words,
        **{name: getattr(request, name) for name in ("unit", "metric", "top", "index_base")},
    }

    def measured(block: TextBlock) -> Tallies:
        fitting = tuple(line for line in block.lines if len(model.encode(line.text)) > 1)
        short = len(block.lines) - len(fitting)
        if not fitting:
            return Tallies({"short": np.array(short)})
        found = AblationJob.prepare(model, replace(block, lines=fitting).texts, request)
        tallies = _tallies(found, block)
        copies = len(fitting) - len(found.texts)
        return tallies + Tallies({"short": np.array(short), "copies": np.array(copies)})

    begin = CorpusRecord("ablate", run, shown, (), Tallies())
    record = recorded(corpus, shard, begin, measured, FORM, file=file, watch=advance)
    return replace(report_of(record), seconds=time.monotonic() - began)


def _labels(job: AblationJob) -> list[list[Any]]:
    """Return [layer, head, fields of the label] of each ablated head, over the first text."""
    heads: dict[int, set[int]] = {}
    for layer, head in chain.from_iterable(variant.heads for variant in job.variants):
        heads.setdefault(layer, set()).add(head)
    try:
        record = capture(job.model, job.texts[0].cut(_READ), kind=job.kind, heads=heads)
    except UnsupportedError:  # what its heads cost is known all the same
        return []
    known = known_labels(job.model, record.kind, ignored=job.request.no_known_labels)
    return [[one.layer, one.head, list(one.label)] for one in head_scores(record, known)]


def _tallies(job: AblationJob, block: TextBlock) -> Tallies:
    """Return what a block adds to the sums; the axes of effects are (ablation, metric)."""
    scan = job.scan()
    pieces = _measured(AblationSeries("removals", job, scan, None), job)
    values, lost = map(np.stack, zip(*(_values(own, job) for own in pieces), strict=True))
    fine = np.abs(values) < _LARGEST  # NaN is not
    cut = np.where(fine, values, 0)
    based = np.array(
        [[each[0].baseline.get(name, np.nan) for name in _BASELINE] for each in pieces]
    )
    sums = {
        "effects": exact_sum(cut),
        "squares": exact_sum(cut**2),
        "measured": fine.sum(0),
        "broken": (~fine & ~np.isnan(values)).sum(0) + lost.sum(0),
        "baseline": exact_sum(np.where(np.isnan(based), 0, based)),
        "based": (~np.isnan(based)).sum(0),
        "texts": np.array(len(values)),
        "tokens": np.array(sum(map(len, job.texts))),
        "noted": np.array(sum(bool(job.model.notes_for(text)) for text in job.texts)),
    }
    if block.first < _KEPT:  # the bits of floats, which nothing is added to
        sums[f"kept.{block.index:02}"] = values.view(np.int64)
    if block.index == 0:
        control = AblationSeries("control", job, scan.changed(control=True), None)
        chances = np.stack([_values(own, job)[0] for own in _measured(control, job)])
        there = np.isfinite(chances)
        sums["control"] = exact_sum(np.where(there, chances, 0))
        sums["controls"] = there.sum(0)
    return Tallies(sums)


def _measured(series: AblationSeries, job: AblationJob) -> list[list[Scores]]:
    count = range(len(job.texts))
    series.cover(range(len(job.variants)), count, lambda cost: None)
    return [series.pieces[text] for text in count]


def _values(pieces: Sequence[Scores], job: AblationJob) -> tuple[Floats, Integers]:
    """Return the effects (ablation, metric) over one text, and 1 where such an effect is NaN.

    A metric that the text lacks is NaN in the first, and 0 in the second.
    """
    found = np.full((len(job.variants), len(_NAMES)), np.nan)
    lost = np.zeros(found.shape, np.int64)
    for piece in pieces:
        for name, values in piece.metrics.items():
            at = list(piece.variants), _NAMES.index(name)
            found[at], lost[at] = values, np.isnan(values)
    return found, lost


def report_of(record: CorpusRecord) -> AblationReport:
    """Return the report of the texts that a record holds, in which nothing is measured anew."""
    sums, shown, run = record.tallies.sums, record.shown, record.run
    texts = int(sums.get("texts", 0))
    variants = tuple(
        Variant(tuple((layer, head) for layer, head in heads), name)
        for heads, name in shown["removals"]
    )
    effects = ablation_effects(
        _kept(record), variants, run["seed"], _control(record), _whole(record, texts)
    )
    info, pair = model_of(shown["model"]), shown["pair"] or ((0, None), (0, None))
    ids, words, special = map(tuple, shown["tokens"])
    baseline = {}
    if texts:
        losses = mean(sums["baseline"], sums["based"])
        named = zip(_BASELINE, losses.tolist(), sums["based"].tolist(), strict=True)
        baseline = {name: loss for name, loss, number in named if number}
    paired = shown["pair"] is not None
    return AblationReport(
        info,
        run["kind"],
        (Tokens(ids, words, special),),
        effects,
        counts=(texts, int(sums.get("tokens", 0))),
        mode=run["mode"],
        unit=shown["unit"],
        positions=run["positions"],
        metric=metric_of(effects, shown["metric"], paired, info.name),
        baseline=baseline,
        reference=shown["reference"],
        draws=run["draws"],
        texts_wanted=max(texts, 2),
        answer=pair[0][1],
        foil=pair[1][1],
        known={(layer, head): HeadLabel(*label) for layer, head, label in shown["labels"]},
        top=shown["top"],
        record=record,
        text=shown["text"],
        source=shown["source"],
        seed=run["seed"],
        notes=tuple(_notes(record, texts)),
        index_base=shown["index_base"],
    )


def _notes(record: CorpusRecord, texts: int) -> Iterator[str]:
    sums = record.tallies.sums
    if short := int(sums.get("short", 0)):
        yield f"{counted(short, 'text')} of one token left out: a loss needs two"
    if copies := int(sums.get("copies", 0)):
        yield (
            f"{counted(copies, 'text')} left out: copies of another text of their block, or no "
            "other text can stand in"
        )
    if noted := int(sums.get("noted", 0)):
        yield f"{counted(noted, 'text')} {UNUSUAL}"
    if "control" in sums:
        first = counted(int(sums["controls"].max()), "text")
        yield f"the control is measured over the first {first}"
    yield from record.notes
    yield from few_note(texts, "texts")


def _kept(record: CorpusRecord) -> Iterator[Scores]:
    """Yield the effects of each text that is kept, with the metrics that all of them have."""
    sums = record.tallies.sums
    blocks = [sums[name].view(np.float64) for name in sorted(sums) if name.startswith("kept.")]
    if not blocks:
        return
    values = np.concatenate(blocks)
    present = (sums["measured"] + sums["broken"]).min(0) > 0
    for text, own in enumerate(values):
        metrics: dict[Metric, Floats] = {
            name: own[:, at] for at, name in enumerate(_NAMES) if present[at]
        }
        yield Scores(text, tuple(range(len(own))), metrics, {})


def _control(record: CorpusRecord) -> Iterator[Scores]:
    """Yield the means of the base rates as the piece of one text."""
    sums = record.tallies.sums
    if "control" in sums:
        means, known = mean(sums["control"], sums["controls"]), sums["controls"].min(0) > 0
        metrics: dict[Metric, Floats] = {
            name: means[:, at] for at, name in enumerate(_NAMES) if known[at]
        }
        yield Scores(0, tuple(range(len(means))), metrics, {})


def _whole(record: CorpusRecord, texts: int) -> Whole | None:
    """Return mean and standard error over all texts; None if all texts are kept."""
    sums = record.tallies.sums
    kept = sum(len(values) for name, values in sums.items() if name.startswith("kept."))
    if texts == kept:
        return None
    means, number = mean(sums["effects"], sums["measured"]), sums["measured"]
    spread = variance(sums["effects"], sums["squares"], number)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(spread / number)
    broken = sums["broken"] > 0
    means, errors = np.where(broken, math.nan, means), np.where(broken, math.nan, errors)
    found = {
        (index, name): (float(means[index, at]), float(errors[index, at]))
        for index in range(len(means))
        for at, name in enumerate(_NAMES)
    }
    return Whole(texts, found)
