"""From a request to a report: reads the texts, scores every head, and keeps the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from attnviz.draw.files import whole_file
from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
from attnviz.engine.known_labels import by_label, label_file, labels_json
from attnviz.engine.selection import choose_heads
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.patterns.probes import SEEDS, probe_tokens
from attnviz.inspect.patterns.relations import AnnotatedSentence, read_probe_file
from attnviz.inspect.patterns.report import PatternReport
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.registry import LABELS, find_label
from attnviz.measures.words import joined
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.work import CORPUS_WORK, ON_TORCH, Work
from attnviz.progress import Advance
from attnviz.records import Input

if TYPE_CHECKING:
    from attnviz.corpus import TextCorpus

Sentences = Sequence[AnnotatedSentence] | None
"""The sentences that a person annotated; None for those that ship with attnviz."""


def read_sentences(request: PatternsRequest, text: str | None) -> Sentences:
    """Return the annotated sentences of the request's files; called before a model is loaded.

    Raises LoadError if a file cannot be read, UsageError if the watched label is unknown or a
    target is given without a text.
    """
    if request.target is not None and text is None:
        raise UsageError("--target is the decoder's text of one text: give TEXT or --file")
    sentences = [one for path in request.probe for one in read_probe_file(path)]
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
    if text is None and request.is_usual:
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
    place = label_file(model, report.kind)
    if place is None or report.model.not_finite:
        return []
    labels = {
        head.place: KnownLabel(head.label, math.nan if head.score is None else head.score)
        for head in report.heads
    }
    known = KnownLabels("patterns", labels, date.today().isoformat())
    content = labels_json(place.stem.split("-")[0], report.kind, known, model.info)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as stream:
            stream.write(content)
    except (OSError, AttnvizError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return [f"labels are not kept for heads and ablate: {why}"]
    return []


def _labels(sentences: Sequence[AnnotatedSentence]) -> list[str]:
    """Return the labels that ``--watch`` can name: known ones and annotated relations."""
    return [*LABELS, *(pair.relation for sentence in sentences for pair in sentence.pairs)]
