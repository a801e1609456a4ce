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
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from attnviz.corpus import Shard, TextBlock, TextCorpus
from attnviz.draw.numbers import counted
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.effects import METRICS, Metric, Mode, Positions, Scores, Unit, Variant
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.ablate.ablate import (
    AblationSeries,
    Whole,
    ablation_effects,
    metric_of,
    observed,
)
from attnviz.inspect.interventions.ablate.plan import AblationPlan, plan_of
from attnviz.inspect.interventions.ablate.report import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.measures.bootstrap import few_note
from attnviz.measures.exact_sums import Floats, Integers, exact_sum, mean, variance
from attnviz.measures.registry import LABELS, UNLABELLED
from attnviz.mergeable import UNUSUAL, CorpusRecord, Form, Tallies, recorded
from attnviz.models.model import Model
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import WHOLE
from attnviz.records import NO_LABEL, HeadLabel, Input, Kind, Source, Tokens

_KEPT = 1024  # the number of texts, from the first on, whose effects are kept one by one
_READ = 256  # the most tokens of the first text in which labels are sought, to limit memory
_LARGEST = 2.0**14  # an effect of this size or more counts as one that overflowed
_NAMES = tuple(METRICS)
_BASELINE = ("loss", "logit_diff", "output_square")


_HEAD = tuple[WHOLE, WHOLE]
_TOKEN = tuple[WHOLE, str]
_REMOVAL = tuple[list[_HEAD], str | None, list[WHOLE]]
"""The heads, the name and the feed-forward blocks of an ablation; older records lack the last."""

_NAME = Annotated[str, (*LABELS, *UNLABELLED, NO_LABEL.name)]
_LABEL = tuple[_NAME, str, float, float, str, str, Source, WHOLE, float, str]
"""The fields of a ``HeadLabel``."""


FORM = Form(
    {"kind": Kind, "seed": WHOLE, "mode": Mode, "positions": Positions, "draws": WHOLE}
    | {"unit": Unit, "metric": Metric | None, "top": WHOLE, "reference": str | None}
    | {
        "text": str,
        "tokens": tuple[list[WHOLE], list[str], list[bool]],
        "removals": list[_REMOVAL | tuple[list[_HEAD], str | None]],
        "labels": list[tuple[WHOLE, WHOLE, _LABEL]],
        "pair": tuple[_TOKEN, _TOKEN] | None,
    },
    lambda facts: {
        "removal": len(facts["removals"]),
        "metric": len(_NAMES),
        "loss": len(_BASELINE),
    },
    {
        "": "short texts copies noted tokens",
        "removal metric": "measured broken controls",
        "removal metric exact": "effects squares control",
        "loss": "based",
        "loss exact": "baseline",
        "any removal metric": "kept.",
    },
)
"""What the record of a shard may hold; see ``_tallies``."""


def refuse_for_corpus(request: AblateRequest) -> None:
    """Raise UsageError if an option of the request does not work with a corpus; checked early."""
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

    The base rate, the removal of random directions, is measured for all ablations over the first
    block. Raises UsageError for options that do not fit, UnsupportedError for an encoder–decoder,
    or if the heads cannot be ablated.
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
    plan = plan_of(model, TextBlock(0, (first,)).texts, request)
    run = {name: fact for name, fact in plan.identity().items() if name != "texts"}
    tokens, removed = plan.inputs[0].text, chain.from_iterable(own.heads for own in plan.variants)
    cut, ignored = Input(tokens.cut(_READ)), request.no_known_labels
    seen = observed(model, cut, plan.kind, removed, ignored=ignored)
    shown = {
        "model": model_facts(plan.info),
        "source": corpus.source,
        "text": first.text,
        "tokens": [tokens.ids, tokens.texts, tokens.special],
        "removals": [[own.heads, own.name, own.feed_forward] for own in plan.variants],
        "labels": [[*own.place, list(own.label)] for own in (() if seen is None else seen.heads)],
        "pair": plan.pair,
        "reference": plan.reference_words,
        **{name: getattr(request, name) for name in ("unit", "metric", "top", "index_base")},
    }

    def measured(block: TextBlock) -> Tallies:
        fitting = tuple(line for line in block.lines if len(model.encode(line.text)) > 1)
        left = Tallies({"short": np.array(len(block.lines) - len(fitting))})
        if not fitting:
            return left
        own = plan_of(model, replace(block, lines=fitting).texts, request)
        copies = np.array(len(fitting) - len(own.inputs))
        return _tallies(own, block) + left + Tallies({"copies": copies})

    begin = CorpusRecord("ablate", run, shown, (), Tallies())
    record = recorded(corpus, shard, begin, measured, FORM, file=file, watch=advance)
    return replace(report_of(record), seconds=time.monotonic() - began)


def _tallies(plan: AblationPlan, block: TextBlock) -> Tallies:
    scan = plan.scan()
    pieces = _measured(AblationSeries("removals", plan, scan, None))
    values, lost = map(np.stack, zip(*map(_values, pieces), strict=True))
    fine = np.abs(values) < _LARGEST  # NaN is not
    cut = np.where(fine, values, 0)
    based = np.array([[own[0].baseline.get(name, np.nan) for name in _BASELINE] for own in pieces])
    sums = {
        "effects": exact_sum(cut),
        "squares": exact_sum(cut**2),
        "measured": fine.sum(0),
        "broken": (~fine & ~np.isnan(values)).sum(0) + lost.sum(0),
        "baseline": exact_sum(np.where(np.isnan(based), 0, based)),
        "based": (~np.isnan(based)).sum(0),
        "texts": np.array(len(values)),
        "tokens": np.array(sum(len(given.text) for given in plan.inputs)),
        "noted": np.array(sum(bool(plan.model.notes_for(given.text)) for given in plan.inputs)),
    }
    if block.first < _KEPT:  # the bits of floats, which nothing is added to
        sums[f"kept.{block.index:02}"] = values.view(np.int64)
    if block.index == 0:
        control = AblationSeries("control", plan, scan.changed(control=True), None)
        chances = np.stack([_values(own)[0] for own in _measured(control)])
        there = np.isfinite(chances)
        sums["control"] = exact_sum(np.where(there, chances, 0))
        sums["controls"] = there.sum(0)
    return Tallies(sums)


def _measured(series: AblationSeries) -> list[list[Scores]]:
    """Return the pieces of each text, after measuring all ablations over all of them."""
    series.cover(range(series.count), range(series.texts), lambda cost: None)
    return [series.pieces[text] for text in range(series.texts)]


def _values(pieces: Sequence[Scores]) -> tuple[Floats, Integers]:
    """Return effects (ablation, metric), NaN if the text lacks one, and 1 where one is NaN."""
    effects = np.full((sum(len(piece.variants) for piece in pieces), len(_NAMES)), np.nan)
    lost = np.zeros(effects.shape, np.int64)
    for piece in pieces:
        for name, values in piece.metrics.items():
            at = list(piece.variants), _NAMES.index(name)
            effects[at], lost[at] = values, np.isnan(values)
    return effects, lost


def report_of(record: CorpusRecord) -> AblationReport:
    """Return the report made from the sums of a saved record, without running a model."""
    sums, shown, run = record.tallies.sums, record.shown, record.run
    texts = int(sums.get("texts", 0))
    variants = tuple(
        Variant(tuple((layer, head) for layer, head in heads), name, (), tuple(*layers))
        for heads, name, *layers in shown["removals"]
    )
    kept = [sums[name].view(np.float64) for name in sorted(sums) if name.startswith("kept.")]
    every = [*chain.from_iterable(kept)]
    known = (sums["measured"] + sums["broken"]).min(0) > 0 if every else np.zeros(0, bool)
    pieces = [_scores(text, values, known) for text, values in enumerate(every)]
    control = list[Scores]()
    if "control" in sums:  # the means of the base rates, as the piece of one text
        bases = mean(sums["control"], sums["controls"])
        control.append(_scores(0, bases, sums["controls"].min(0) > 0))
    whole = None if texts == len(every) else _whole(record, texts)
    effects = ablation_effects(pieces, variants, run["seed"], control, whole)
    ids, strings, special = map(tuple, shown["tokens"])
    info, pair = model_of(shown["model"]), shown["pair"] or ((0, None), (0, None))
    baseline = {}
    if texts:
        losses = mean(sums["baseline"], sums["based"])
        named = zip(_BASELINE, losses.tolist(), sums["based"].tolist(), strict=True)
        baseline = {name: loss for name, loss, number in named if number}
    return AblationReport(
        info,
        run["kind"],
        (Tokens(ids, strings, special),),
        effects,
        counts=(texts, int(sums.get("tokens", 0))),
        mode=run["mode"],
        unit=shown["unit"],
        positions=run["positions"],
        metric=metric_of(effects, shown["metric"], shown["pair"] is not None, info.name),
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
    counts = {name: int(record.tallies.sums.get(name, 0)) for name in ("short", "copies", "noted")}
    reasons = {
        "short": "of one token left out: a loss needs two",
        "copies": "left out: copies of another text of their block, or no other text can stand in",
        "noted": UNUSUAL,
    }
    yield from (f"{counted(counts[why], 'text')} {reasons[why]}" for why in reasons if counts[why])
    if "controls" in record.tallies.sums:
        first = counted(int(record.tallies.sums["controls"].max()), "text")
        yield f"the control is measured over the first {first}"
    yield from record.notes
    yield from few_note(texts, "texts")


def _scores(text: int, values: Floats, known: NDArray[np.bool_]) -> Scores:
    """Return the piece of a text. values: (ablation, metric). known: which metrics it has."""
    metrics: dict[Metric, Floats] = {
        name: values[:, at] for at, name in enumerate(_NAMES) if known[at]
    }
    return Scores(text, tuple(range(len(values))), metrics, {})


def _whole(record: CorpusRecord, texts: int) -> Whole:
    sums = record.tallies.sums
    means, number = mean(sums["effects"], sums["measured"]), sums["measured"]
    spread = variance(sums["effects"], sums["squares"], number)
    with np.errstate(invalid="ignore", divide="ignore"):
        both = np.stack([means, np.sqrt(spread / number)], axis=-1)
    both[sums["broken"] > 0] = math.nan
    keys = ((index, name) for index in range(len(means)) for name in _NAMES)
    return Whole(texts, dict(zip(keys, map(tuple, both.reshape(-1, 2).tolist()), strict=True)))
