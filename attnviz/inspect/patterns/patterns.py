"""From a request to a report: reads the texts, scores every head, and keeps the labels.

Of a corpus of any size, the sums of each block of texts add up. A score is the mean over texts, as
over a few texts; its interval is Student's, which needs the sum and the sum of squares alone.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np

from attnviz.corpus import BLOCK, Shard, TextBlock, TextCorpus
from attnviz.draw.files import whole_file
from attnviz.draw.numbers import counted
from attnviz.draw.report import fields_of
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
from attnviz.engine.known_labels import by_label, label_file, labels_json
from attnviz.engine.observer import notes_of_runs
from attnviz.engine.probing import Probing, open_probing
from attnviz.engine.selection import choose_heads
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.patterns.measure import Place, TextScores, measure
from attnviz.inspect.patterns.probes import (
    FEWEST,
    OWN,
    SCORES_OF,
    SEEDS,
    UNREAD,
    AnnotatedSentence,
    ProbeText,
    probe_tokens,
    read_probe_file,
)
from attnviz.inspect.patterns.report import PatternReport, PatternScores, Probe
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.patterns.score import blank, score_patterns, scored_report, stacked
from attnviz.measures.bootstrap import student_ends
from attnviz.measures.exact_sums import Integers, known_exact, mean, total, variance
from attnviz.measures.labels import KnownLabel, KnownLabels, least_strength
from attnviz.measures.registry import DESCRIBED, LABELS, View, find_label
from attnviz.measures.rows import Conditions
from attnviz.measures.words import joined
from attnviz.mergeable import UNUSUAL, CorpusRecord, Form, Tallies, recorded
from attnviz.models.model import Model, TwoStackModel, model_identity
from attnviz.models.work import CORPUS_WORK, ON_TORCH, Work
from attnviz.progress import UNWATCHED, Advance, Watch
from attnviz.reading import WHOLE
from attnviz.records import Input, Kind
from attnviz.texts import encode_texts

Sentences = Sequence[AnnotatedSentence] | None
"""The sentences that a person annotated; None for those that ship with attnviz."""


def read_sentences(request: PatternsRequest, text: str | None) -> Sentences:
    """Return the annotated sentences of the request's files; called before a model is loaded.

    Raises LoadError if a file cannot be read, UsageError if the watched label is unknown or a
    target is given without a text.
    """
    if request.target is not None and text is None:
        raise UsageError("--target is the decoder's text of one text: give TEXT or --file")
    sentences = [sentence for path in request.probe for sentence in read_probe_file(path)]
    if request.watch is not None:
        find_label(request.watch, _labels(sentences))
    return sentences if request.probe else None


def work(
    text: str | TextCorpus | None, request: PatternsRequest, sentences: Sentences = None
) -> Work:
    """Return the planned work over the texts, from which the loader chooses NumPy or torch."""
    if request.reduce == "fused":
        return ON_TORCH
    drawn = bool(request.control)
    if isinstance(text, str | None):
        return Work(probe_tokens(text, sentences), built_in=drawn)
    return replace(CORPUS_WORK, built_in=drawn)


def patterns(
    model: Model,
    text: str | None,
    request: PatternsRequest,
    *,
    sentences: Sentences = None,
    file: str = "",
    advance: Advance = lambda done: None,
) -> PatternReport:
    """Measure every head's pattern scores over a text or the built-in probes; label each head.

    text: the user's text, used in place of the built-in probes, or None. file: where the text comes
        from, if it was not typed.
    Labels from the usual probes are stored for later runs; see ``engine.known_labels``.
    Raises UsageError if a text is too short or a choice does not fit the model, UnsupportedError if
    its attention, or values that a weight transform needs, cannot be observed.
    """
    info, base = model.info, request.index_base
    choice = Choice(kind=request.kind, target=request.target, truncate=request.truncate)
    attention = attention_kind(model, choice)
    given = None
    if text is not None:
        tokens = encoded(model, text, request.truncate)
        given = Input(tokens)
        if isinstance(model, TwoStackModel) and attention in ("decoder", "cross"):
            given = Input(tokens, target_tokens(model, tokens, choice))
    typed = by_label(model, attention, request.head, base)
    report = score_patterns(
        model,
        given,
        kind=request.kind,
        view=request.view,
        sentences=sentences,
        seeds=range(request.seed, request.seed + SEEDS),
        control=request.control_seed(info.seed),
        heads=choose_heads(request.layer, typed, info.layers, info.heads, base),
        progress=advance,
        index_base=base,
        no_known_labels=request.no_known_labels,
        reduce=request.reduce,
    )
    notes = report.notes
    chosen = request.probe or request.control or request.layer or request.head
    if text is None and request.view == "raw" and not chosen:  # all heads, in the usual way
        notes += tuple(keep_labels(model, report))
    target = None
    if given is not None and given.target is not None:
        target = joined(given.target) if request.target is None else request.target
    return replace(
        report,
        notes=notes,
        text=text or "",
        target=target,
        file=file,
        source=", ".join([*([file] if file else []), *map(str, request.probe)]),
        seed=request.seed,
        watch=request.watch and find_label(request.watch, _labels(sentences or ())),
        top=request.top,
    )


def keep_labels(model: Model, report: PatternReport) -> list[str]:
    """Store the labels of a model's heads for later use; return a note if that is not possible."""
    path = label_file(model, report.kind)
    if path is None or report.model.not_finite:
        return []
    labels = {
        head.place: KnownLabel(head.label, math.nan if head.score is None else head.score)
        for head in report.heads
    }
    known = KnownLabels("patterns", labels, date.today().isoformat())
    content = labels_json(path.stem.split("-")[0], report.kind, known, model.info)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(content)
    except (OSError, AttnvizError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return [f"labels are not kept for heads and ablate: {why}"]
    return []


def _labels(sentences: Sequence[AnnotatedSentence]) -> list[str]:
    """Return the labels that ``--watch`` can name: known ones and annotated relations."""
    return [*LABELS, *(pair.relation for sentence in sentences for pair in sentence.pairs)]


CORPUS = "corpus"
"""The name of the probe that a corpus is."""

_SCORES = tuple(SCORES_OF[OWN])

TWIN = "random."
"""What the names of the numbers of a random baseline begin with."""

_TWINS, _TWIN = re.compile(r"(^| )(most\.)?"), rf"\1\2{TWIN}"


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
        # The random baseline has the same arrays.
        **{axes: f"{names} {_TWINS.sub(_TWIN, names)}" for axes, names in _OF_HEADS.items()},
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
        texts, tallies = _prepared(probing, block, request.truncate)
        for model, prefix in ((probing, ""), (twin, TWIN)) if texts else ():
            if model is not None:
                scores = measure(model, texts, attention, heads, reduce=request.reduce)
                tallies += tallies_of(scores, prefix)
        return tallies

    run = {
        **model_identity(model),
        **asdict(attention),
        "heads": sorted((layer, sorted(some)) for layer, some in heads.items()) if heads else None,
        "control": control,
        **fields_of(request, ("reduce", "truncate")),
    }
    shown = {
        "model": model_facts(info),
        "source": corpus.source,
        **fields_of(request, ("watch", "top", "index_base", "seed")),
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
    long = [text for text in inputs if len(text.queries(probing.kind)) >= FEWEST]
    kept = [text for text in long if not text.text.unknown]
    lengths = [len(text.queries(probing.kind)) for text in kept]
    noted = sum(bool(probing.notes_for([text])) for text in kept)
    numbers = {"short": len(inputs) - len(long), "noted": noted, "tokens": sum(lengths)}
    numbers |= {"unknown": unread} if (unread := len(long) - len(kept)) else {}
    most = {"longest": max(lengths), "shortest": -min(lengths)} if kept else {}
    sums, ends = ({name: np.array(n) for name, n in some.items()} for some in (numbers, most))
    return [ProbeText(OWN, text) for text in kept], Tallies(sums, ends)


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
        "lost": np.sum([[head in result.lost for head in places] for result in results], 0),
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
    heads, lost = _scores(sums, most["places"]), sums["lost"].tolist()
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
        heads,
        {head for head, number in zip(heads, lost, strict=True) if number},
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
    return {head: PatternScores(*head, label=None, **own) for head, own in heads.items()}
