"""Scores and labels every head of a model, on probes or on a person's own text."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from attnviz.engine.capture import capture
from attnviz.engine.known_labels import known_labels
from attnviz.engine.observer import Reduce, notes_of_runs
from attnviz.engine.probing import Probing, open_probing
from attnviz.errors import UsageError
from attnviz.inspect.patterns.examples import examples_of
from attnviz.inspect.patterns.measure import cells_of, measure
from attnviz.inspect.patterns.probes import (
    NATURAL,
    ON_TEXT,
    OWN,
    SCORES_OF,
    ProbeText,
    described,
    probe_texts,
    shipped_sentences,
)
from attnviz.inspect.patterns.relations import AnnotatedSentence
from attnviz.inspect.patterns.report import Control, PatternReport, PatternScores, Probe
from attnviz.inspect.patterns.summary import HeadSummary, Place, summaries
from attnviz.inspect.patterns.sums import TextScores
from attnviz.measures.labels import (
    THRESHOLD,
    KnownLabels,
    best_label,
    clear_deviations,
    strengths,
    testable,
)
from attnviz.measures.one_text import head_scores
from attnviz.measures.regions import shares
from attnviz.measures.registry import LABELS, MEASURES, NEEDS, View, label_named
from attnviz.measures.rows import Conditions
from attnviz.models.model import Model
from attnviz.records import SINKS, UNKNOWN_NOTE, HeadLabel, Kind, ModelInfo, RegionShares, Tokens
from attnviz.texts import natural_texts

_REACH = 0.1
"""The least share of queries that must be able to show a score, such as by a separator in their
window: below it, nothing is known of the other queries, and the score labels no head."""

_ONE_DELIMITER = 2 / 3
"""The most of the gain of ``delimiter`` over chance that a single token, such as a comma, may give:
above it, the head attends to that token, and nothing is known of other delimiters."""

_READ = 256
"""The most tokens of a person's own text in which labels are sought, to limit memory."""


def score_patterns(
    model: Model,
    texts: Sequence[Tokens] | None = None,
    *,
    kind: Kind | None = None,
    view: View = "raw",
    targets: Sequence[Tokens] = (),
    sentences: Sequence[AnnotatedSentence] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    control: int | None = None,
    heads: Mapping[int, Container[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    index_base: int = 0,
    examples: bool = True,
    no_known_labels: bool = False,
    reduce: Reduce = "auto",
    probing: Probing | None = None,
) -> PatternReport:
    """Measure the pattern scores of the heads of ``model``, and label the heads.

    texts: a person's own; None for the probes that ship with the package: natural text, random
        repeated tokens and annotated English sentences.
    kind: of the attention; None for the model's first.
    view: the transform of the attention weights before scores are measured.
    targets: the decoder's text for each, for the kinds ``decoder`` and ``cross``.
    sentences: annotated ones, in place of those that ship with the package; added to ``texts``.
    seeds: of the random tokens. control: the seed of a random baseline, a model with random
        parameters, whose scores a label must exceed as well; None without one.
    heads: the heads to score in each layer; None scores all.
    progress: called as ``progress(done, total)``, in query–key pairs.
    examples: also run the model over short texts, for example maps.
    no_known_labels: over a person's own text, ignore labels that were measured before.
    reduce: how the attention is read.
    probing: the model opened for this kind of attention, if it already is.

    Raises UsageError if a text is too short or a choice does not fit the model, UnsupportedError if
    its attention, or values that a weight transform needs, cannot be observed.
    """
    began = time.monotonic()
    probing = probing or open_probing(model, kind)
    if sentences is None:
        sentences = shipped_sentences() if texts is None else ()
    probes, skipped = probe_texts(probing, texts, targets, sentences, seeds)
    runs = 1 if control is None else 2
    total, done = runs * sum(cells_of(text, probing.kind) for text in probes), 0

    def work(cells: int) -> None:
        nonlocal done
        done += cells
        if progress is not None:
            progress(done, total)

    relations = _relations(probes)
    attention = Conditions(probing.kind, probing.causal, view, probing.ranked)
    results = measure(probing, probes, attention, heads, work, reduce)
    found = summaries(results, relations)
    if not found:
        raise UsageError(
            "none of the chosen layers has such a head: choose others with --layer or --head"
        )
    twin: Mapping[Place, HeadSummary] = {}
    if control is not None:
        random = measure(probing.twin(control), probes, attention, heads, work, reduce)
        twin = summaries(random, relations)
    said = None
    if texts is not None:
        before = known_labels(model, probing.kind, ignored=no_known_labels)
        said = _said(probing, texts[0], targets, heads, before) if not texts[0].unknown else {}
    annotated = dict.fromkeys(pair.relation for sentence in sentences for pair in sentence.pairs)
    report = scored_report(
        model.info,
        attention,
        found,
        {place for result in results for place in result.lost},
        probes=described(probing, probes, relations, skipped),
        notes=_notes(probing, probes, relations),
        control=control,
        twin=twin,
        said=said,
        own=texts is not None,
        relations=relations,
        unscored=[name for name in annotated if name not in relations],
    )
    labels = [*(said or {}).values()]
    report = replace(
        report,
        seconds=time.monotonic() - began,
        index_base=index_base,
        regions=_regions(results),
        labels_from="none"
        if said is None
        else next((label.source for label in labels if label.is_known), "text"),
        labels_date=max((label.date for label in labels), default=""),
    )
    return examples_of(probing, probes, report) if examples else report


def scored_report(
    info: ModelInfo,
    attention: Conditions,
    found: Mapping[Place, HeadSummary],
    lost: Collection[Place],
    *,
    probes: tuple[Probe, ...],
    notes: tuple[str, ...] = (),
    control: int | None = None,
    twin: Mapping[Place, HeadSummary] = MappingProxyType({}),
    said: Mapping[Place, HeadLabel] | None = None,
    own: bool = True,
    relations: Sequence[str] = (),
    unscored: Sequence[str] = (),
) -> PatternReport:
    """Return the report of the heads' summaries: their strengths and labels.

    info: of the model. attention: what was measured. found: the summaries by (layer, head).
    lost: the heads with weights that are not numbers. probes, notes: of the report.
    control, twin: the seed of the random baseline and its summaries; None and empty without one.
    said: the labels on a person's one text. own: whether a person gave the texts.
    relations, unscored: the annotated relations that were measured, and those that could not be.
    """
    names = tuple(
        name
        for name in dict.fromkeys((*LABELS, *relations))
        if any(
            summary.scores.get(name) is not None and summary.base_rate.get(name) is not None
            for summary in found.values()
        )
    )
    least = clear_deviations(len(found) * len(relations))
    rule = _Rule(math.inf if info.weights == "random" else THRESHOLD, least, said)
    floors = _floors(twin)
    heads = [
        _lost(summary, place)
        if place in lost
        else _head(place, summary, names, rule, floors.get(place[0], {}))
        for place, summary in found.items()
    ]
    scored = tuple(
        replace(head, control=twin[head.place].scores) if head.place in twin else head
        for head in heads
    )
    if lost:
        overflow = "some weights are not numbers: those heads have no label"
        notes += (f"{overflow}{info.overflow_advice}",)
    by_chance = None
    if control is not None:
        unnamed = _Rule(THRESHOLD, least)
        labels = Counter(_head(place, one, names, unnamed, {}).label for place, one in twin.items())
        by_chance = Control(control, {name: labels[name] for name in names if labels[name]})
    return PatternReport(
        model=info,
        kind=attention.kind,
        causal=attention.causal,
        view=attention.view,
        heads=scored,
        labels=names,
        thresholds=dict.fromkeys(names, THRESHOLD),
        probes=probes,
        not_measured=_not_measured(attention, scored, own=own, relations=unscored),
        untestable=_untestable(found, relations, least),
        control=by_chance,
        notes=notes,
    )


# Labels --------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """The rule by which a pattern score becomes the label of a head.

    threshold, deviations: see ``best_label``; heads with random parameters do not reach them.
    said: the labels by ``one_text`` on a person's own text, which is too short for the threshold
        alone; None for the probes. Relations are annotated by hand and always use the threshold.
    """

    threshold: float
    deviations: float
    said: Mapping[Place, HeadLabel] | None = None

    def label(self, place: Place, summary: HeadSummary, gains: Mapping[str, float]) -> str | None:
        """Return the name of the head's label, or None. gains: the strength of each score."""
        gains = {
            name: gain
            for name, gain in gains.items()
            if summary.reach.get(name, 1.0) >= _REACH
            and not (name == "delimiter" and summary.one_delimiter > _ONE_DELIMITER)
        }
        if self.said is not None and self.threshold < 1:
            said = self.said.get(place)
            if said is not None and summary.scores.get(said.name) is not None:
                return said.name
            gains = {
                name: gain for name, gain in gains.items() if label_named(name).family == "relation"
            }
        return best_label(
            gains,
            summary.scores,
            summary.base_rate,
            summary.measured,
            self.threshold,
            self.deviations,
        )


def _head(
    place: Place,
    summary: HeadSummary,
    names: Sequence[str],
    rule: _Rule,
    floors: Mapping[str, float],
) -> PatternScores:
    gains = strengths(names, summary.scores, summary.base_rate, floors)
    label = rule.label(place, summary, gains)
    margin = None
    if label is not None:
        margin = (summary.scores[label] or 0.0) - (summary.base_rate[label] or 0.0)
    single = {name: tuple(score for score, _ in pairs) for name, pairs in summary.single.items()}
    return PatternScores(
        *place,
        label=label,
        scores=summary.scores,
        base_rate=summary.base_rate,
        strength=gains,
        margin=margin,
        agreement=None if label is None else summary.agreement(label, rule.threshold),
        measured=summary.measured,
        statistics=summary.statistics,
        intervals=summary.intervals,
        said=None if rule.said is None else rule.said.get(place),
        by_text=single,
    )


def _lost(summary: HeadSummary, place: Place) -> PatternScores:
    """Return the entry of a head without any score, because it overflowed on some text.

    The texts on which it did not overflow are no fair sample.
    """
    return PatternScores(
        *place,
        label=None,
        scores=dict.fromkeys(summary.scores),
        base_rate=summary.base_rate,
        measured=dict.fromkeys(summary.measured, 0),
        statistics=dict.fromkeys(summary.statistics),
    )


def _floors(twin: Mapping[Place, HeadSummary]) -> dict[int, dict[str, float]]:
    """Return by layer and score the highest value of any head of the random baseline.

    twin: its summaries by (layer, head). Its heads are drawn alike, so that any of them counts.
    """
    floors: dict[int, dict[str, float]] = {}
    for (layer, _), summary in twin.items():
        known = floors.setdefault(layer, {})
        for name, score in summary.scores.items():
            if score is not None:
                known[name] = max(score, known.get(name, score))
    return floors


def _said(
    probing: Probing,
    text: Tokens,
    targets: Sequence[Tokens],
    heads: Mapping[int, Container[int]] | None,
    known: KnownLabels | None,
) -> dict[Place, HeadLabel]:
    """Return the label of each (layer, head) over the beginning of the text, sinks included.

    targets: the decoder's text, if there is one. heads: by layer, those to label. known: labels
    that were measured before.
    """
    target = targets[0].cut(_READ) if targets else None
    record = capture(probing.model, text.cut(_READ), kind=probing.kind, target=target, heads=heads)
    return {
        (entry.layer, entry.head): entry.label
        for entry in head_scores(record, known)
        if entry.label.is_finding or entry.label.name in SINKS
    }


# What goes with the scores -------------------------------------------------------------------


def _regions(results: Sequence[TextScores]) -> RegionShares | None:
    """Return the attention shares between the regions of the user's text, the first one."""
    passage, layers = results[0].text.passage, results[0].layers
    sums = {
        (at, layer.heads): layer.regions
        for at, layer in layers.items()
        if layer.regions is not None
    }
    kind: Kind = "self" if passage.target is None else "cross"
    return shares(passage.queries(kind), passage.keys(kind), sums) if sums else None


def _notes(
    probing: Probing, probes: Sequence[ProbeText], relations: Sequence[str]
) -> tuple[str, ...]:
    notes = (*probing.notes_for([text.passage for text in probes]), *notes_of_runs())
    shipped = natural_texts() if not any(text.probe == OWN for text in probes) else ()
    if left := len(shipped) - sum(text.probe == NATURAL for text in probes):
        notes += (
            f"{left} of {len(shipped)} built-in texts left out: their tokens {UNKNOWN_NOTE}; give "
            "texts of yours (--texts)",
        )
    if relations and probing.causal:
        notes += ("causal model: pairs are scored from the later word to the earlier",)
    return notes


def _relations(probes: Sequence[ProbeText]) -> tuple[str, ...]:
    """Return the names of the relations in the annotated sentences, the usual ones first."""
    names = {relation for text in probes for relation, _, _ in text.pairs}
    known = [name for name in LABELS if name in names]
    return (*known, *sorted(names - set(known)))


def _untestable(
    found: Mapping[Place, HeadSummary], relations: Sequence[str], deviations: float
) -> dict[str, float]:
    """Return the base rates of the relations that not even a perfect head could get as a label.

    found: the summaries by (layer, head). deviations: how many standard deviations a label needs.
    """
    rates = {}
    for name in relations:
        bases = {
            summary.base_rate.get(name): summary.measured.get(name, 0) for summary in found.values()
        }
        if not any(testable(name, base, pairs, deviations) for base, pairs in bases.items()):
            rates[name] = max((base for base in bases if base is not None), default=0.0)
    return rates


def _not_measured(
    attention: Conditions, heads: Sequence[PatternScores], *, own: bool, relations: Sequence[str]
) -> dict[str, str]:
    """Return the reason for each score that no head has, by name.

    own: whether the user's own text was used. relations: annotated relations of which no word pair
        could be tested.
    """
    names = dict.fromkeys(name for head in heads for name in head.scores)
    missing = [name for name in names if all(head.scores.get(name) is None for head in heads)]
    reasons = {name: _reason(name, attention, own) for name in missing}
    reasons = {name: reason for name, reason in reasons.items() if reason != NEEDS["two texts"]}
    crosses = attention.kind == "cross"
    if not own and not crosses and "induction" not in names:
        absent = "the model has no room or too few tokens for random repeated ones"
        reasons |= dict.fromkeys(("duplicate", "induction", "prefix_matching"), absent)
    natural = SCORES_OF[NATURAL].values()
    if not own and not any(name in names for name in natural):
        able = (name for name in natural if attention.lacks(MEASURES[_measure(name)]) is None)
        reasons |= dict.fromkeys(able, "the tokenizer does not know the built-in texts")
    unread = (
        "words that belong together stand in one text, cross attention joins two"
        if crosses
        else "the annotated words are not whole tokens of the model"
    )
    return reasons | dict.fromkeys(relations, unread)


def _reason(name: str, attention: Conditions, own: bool) -> str:
    measure = MEASURES.get(_measure(name))
    need = None if measure is None else attention.lacks(measure)
    if need is not None:
        return NEEDS[need]
    text = "the text" if own else "the natural text"
    absent = "" if measure is None else measure.absent.format(text=text)
    return absent or "the weights are not numbers"


def _measure(score_name: str) -> str:
    return score_name.removeprefix(ON_TEXT)
