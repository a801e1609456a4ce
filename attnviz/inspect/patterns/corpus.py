"""Scores heads over a corpus of any size: the sums of a block of texts, and the report of all sums.

A score is the mean over texts, as over a few texts; its interval is Student's, which needs the sum
and the sum of squares alone. Labels follow the rule of the built-in probes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from attnviz.corpus import BLOCK, Shard, TextBlock, TextCorpus
from attnviz.draw.numbers import counted
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.capture import Choice, Probing, attention_kind, open_probing
from attnviz.engine.known_labels import by_label
from attnviz.engine.observer import notes_of_runs
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.patterns.measure import Place, TextScores, measure
from attnviz.inspect.patterns.probes import FEWEST, OWN, SCORES_OF, UNREAD, ProbeText
from attnviz.inspect.patterns.report import PatternReport, PatternScores, Probe
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.patterns.score import blank, scored_report, stacked, unlabelled
from attnviz.measures.bootstrap import student_ends
from attnviz.measures.exact_sums import Integers, known_exact, mean, total, variance
from attnviz.measures.labels import least_strength
from attnviz.measures.registry import DESCRIBED, LABELS, View, find_label
from attnviz.measures.rows import Conditions
from attnviz.mergeable import UNUSUAL, CorpusRecord, Form, Tallies, recorded
from attnviz.models.model import Model, model_identity
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import WHOLE
from attnviz.records import Kind
from attnviz.texts import encode_texts

CORPUS = "corpus"
"""The name of the probe that a corpus is."""

_SCORES = tuple(SCORES_OF[OWN])

TWIN = "random."
"""What the names of the numbers of a random baseline begin with."""


def _twins(names: str) -> str:
    """Return the names of the same arrays of the random baseline."""
    return re.sub(r"(^| )(most\.)?", rf"\1\2{TWIN}", names)


_OF_HEADS = {
    "head": "lost",
    "head pair": "most.places",
    "head exact": "delimiter.",
    "score head": "measured based agreeing",
    "score head exact": "scores squares base reach",
    "described head": "told",
    "described head exact": "described",
}

FORM = Form(
    {"kind": Kind, "causal": bool, "view": View, "ranked": bool, "control": WHOLE | None}
    | {"watch": Annotated[str, (*LABELS,)] | None, "top": WHOLE | None, "seed": WHOLE},
    lambda facts: {"pair": 2, "score": len(_SCORES), "described": len(DESCRIBED)},
    {
        "": f"short noted tokens unknown texts {TWIN}texts most.longest most.shortest",
        **{axes: f"{names} {_twins(names)}" for axes, names in _OF_HEADS.items()},
    },
)
"""What the record of a shard may hold; see ``tallies_of``."""


def patterns_over(
    model: Model,
    corpus: TextCorpus,
    request: PatternsRequest,
    shard: Shard,
    file: Path | None = None,
    advance: Watch = UNWATCHED,
) -> PatternReport:
    """Measure every head's pattern scores over the shard's texts of a corpus; label each head.

    The report has the record, which adds up with those of the other shards. A text of too few
    tokens for a score is left out.
    Raises UsageError for options that do not fit the model, LoadError for a text that cannot be
    read, UnsupportedError if the attention cannot be observed.
    """
    began = time.monotonic()
    info, base = model.info, request.index_base
    probing = open_probing(model, attention_kind(model, Choice(kind=request.kind)))
    attention = Conditions(probing.kind, probing.causal, request.view, probing.ranked)
    typed = by_label(model, probing.kind, request.head, base)
    heads = choose_heads(request.layer, typed, info.layers, info.heads, base)
    control = request.control_seed(info.seed)
    twin = None if control is None else probing.twin(control)

    def measured(block: TextBlock) -> Tallies:
        texts, found = _prepared(probing, block, request.truncate)
        for model, prefix in ((probing, ""), (twin, TWIN)) if texts else ():
            if model is not None:
                scores = measure(model, texts, attention, heads, reduce=request.reduce)
                found += tallies_of(scores, prefix)
        return found

    run = {
        **model_identity(model),
        **asdict(attention),
        "heads": sorted((layer, sorted(some)) for layer, some in heads.items()) if heads else None,
        "control": control,
        "reduce": request.reduce,
        "truncate": request.truncate,
    }
    shown = {
        "model": model_facts(info),
        "source": corpus.source,
        **{name: getattr(request, name) for name in ("watch", "top", "index_base", "seed")},
    }
    begun = CorpusRecord("patterns", run, shown, (), Tallies())
    record = recorded(corpus, shard, begun, measured, FORM, file=file, watch=advance)
    return replace(report_of(record), seconds=time.monotonic() - began)


def refuse_for_corpus(request: PatternsRequest) -> None:
    """Raise UsageError if an option of the request does not work with a corpus; checked early."""
    for name, given in (("--target", request.target), ("--probe", request.probe or None)):
        if given is not None:
            raise UsageError(f"{name} is not for a corpus: leave it or --texts out")
    if request.watch is not None:
        find_label(request.watch, LABELS)


def _prepared(
    probing: Probing, block: TextBlock, truncate: bool
) -> tuple[list[ProbeText], Tallies]:
    """Return the texts of a block as the model reads them, and counts of them.

    Texts that are too short for any score, or largely unknown to the tokenizer, are left out and
    counted.
    """
    tokens = encode_texts(probing.model, block.texts, truncate, 1)
    inputs = probing.inputs_of(block.texts.texts, tokens, truncate)
    long = [each for each in inputs if len(each.queries(probing.kind)) >= FEWEST]
    kept = [each for each in long if not each.text.unknown]
    lengths = [len(each.queries(probing.kind)) for each in kept]
    noted = sum(bool(probing.notes_for([each])) for each in kept)
    numbers = {"short": len(inputs) - len(long), "noted": noted, "tokens": sum(lengths)}
    numbers |= {"unknown": unread} if (unread := len(long) - len(kept)) else {}
    most = {"longest": max(lengths), "shortest": -min(lengths)} if kept else {}
    counts = Tallies(
        {name: np.array(number) for name, number in numbers.items()},
        {name: np.array(number) for name, number in most.items()},
    )
    return [ProbeText(OWN, each) for each in kept], counts


def tallies_of(results: Sequence[TextScores], prefix: str = "") -> Tallies:
    """Return sums over texts of the scores, (score, head), to be added to those of other texts.

    prefix: begins the name of every sum. ``places`` has the layer and head of each column.
    """
    stack, places = stacked(results, (*_SCORES, *DESCRIBED)), results[0].places
    split = len(_SCORES)
    scores, described = stack.scores[:, :split], stack.scores[:, split:]
    base, reach = stack.base[:, :split], stack.reach[:, :split]
    known = ~np.isnan(scores)
    founded = known & (base <= 1 - 1e-6)
    least = np.array([[least_strength(name)] for name in _SCORES])
    strength = np.where(founded, scores - base, 0) / np.where(founded, 1 - base, 1)
    sums = {
        "scores": known_exact(scores).sum(0),
        "squares": known_exact(scores**2).sum(0),
        "base": known_exact(np.where(known, base, np.nan)).sum(0),
        "reach": known_exact(np.where(known, reach, np.nan)).sum(0),
        "described": known_exact(described).sum(0),
        "measured": known.sum(0),
        "based": (known & ~np.isnan(base)).sum(0),
        "agreeing": (founded & (strength >= least)).sum(0),
        "told": (~np.isnan(described)).sum(0),
        "lost": np.sum([[place in result.lost for place in places] for result in results], 0),
        "texts": np.array(len(results)),
        **{
            f"delimiter.{token}": known_exact(gained).sum(0)
            for token, gained in stack.gained.items()
        },
    }
    named = {prefix + name: values for name, values in sums.items()}
    return Tallies(named, {prefix + "places": np.array(places)})


def report_of(record: CorpusRecord) -> PatternReport:
    """Return the report made from the sums of a saved record, without running a model."""
    sums, most, shown, run = record.tallies.sums, record.tallies.most, record.shown, record.run
    info, notes = model_of(shown["model"]), [*record.notes, *notes_of_runs()]
    attention = Conditions(run["kind"], run["causal"], run["view"], run["ranked"])
    unread = int(sums.get("unknown", 0))
    if not (texts := int(sums.get("texts", 0))):
        if not record.missing:
            if unread:
                raise UsageError(f"all {counted(unread, 'text')} are left out: {UNREAD}")
            raise UsageError(f"no text has {FEWEST} tokens or more: scoring heads needs that many")
        notes.append(f"this shard has no text: a shard takes every N-th block of {BLOCK} texts")
        empty = scored_report(info, attention, {}, (), probes=(), notes=tuple(notes))
        return replace(empty, source=shown["source"], record=record)
    found = _scores(sums, most["places"])
    lost = sums["lost"].tolist()
    drawn = {name.removeprefix(TWIN): own for name, own in sums.items() if name.startswith(TWIN)}
    left_out = (
        (int(sums["short"]), f"of fewer than {FEWEST} tokens left out"),
        (unread, f"left out: {UNREAD}"),
        (int(sums["noted"]), UNUSUAL),
    )
    notes += [f"{counted(number, 'text')} {why}" for number, why in left_out if number]
    report = scored_report(
        info,
        attention,
        found,
        {place for place, number in zip(found, lost, strict=True) if number},
        probes=(Probe(CORPUS, texts, -int(most["shortest"]), int(most["longest"]), _SCORES),),
        notes=tuple(notes),
        control=run["control"],
        twin={} if run["control"] is None else _scores(drawn, most[TWIN + "places"]),
    )
    return replace(
        report,
        source=shown["source"],
        watch=shown["watch"] and find_label(shown["watch"], LABELS),
        top=shown["top"],
        index_base=shown["index_base"],
        seed=shown["seed"],
        record=record,
    )


def _scores(sums: Mapping[str, Integers], places: Integers) -> dict[Place, PatternScores]:
    """Return each head's scores without a label, by (layer, head)."""
    measured, based, told = sums["measured"], sums["based"], sums["told"]
    scores, base = mean(sums["scores"], measured), mean(sums["base"], based)
    reach, described = mean(sums["reach"], measured), mean(sums["described"], told)
    spread = variance(sums["scores"], sums["squares"], measured)
    gains = np.array([total(sums[name]) for name in sums if name.startswith("delimiter.")])
    every = gains.sum(0) if len(gains) else np.zeros(len(places))
    heads = blank((layer, head) for layer, head in places.tolist())
    for column, head in enumerate(heads.values()):
        for row, name in enumerate(_SCORES):
            count, at = int(measured[row, column]), (row, column)
            head["measured"][name] = count
            head["scores"][name] = float(scores[at]) if count else None
            head["base_rate"][name] = float(base[at]) if based[at] else None
            if count:
                head["reach"][name] = float(reach[at])
            if count > 1:
                ends = student_ends(float(scores[at]), float(spread[at]), count)
                head["intervals"][name] = ends
                head["agreeing"][name] = int(sums["agreeing"][at]) / count
        for row, name in enumerate(DESCRIBED):
            if told[row, column]:
                head["statistics"][name] = float(described[row, column])
        if every[column] > 0:
            head["one_delimiter"] = float(gains[:, column].max() / every[column])
    return unlabelled(heads)
