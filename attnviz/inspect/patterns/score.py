"""Scores and labels every head of a model, on probes or on a person's own text."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attnviz.engine.capture import Probing, capture, open_probing
from attnviz.engine.known_labels import known_labels
from attnviz.engine.observer import Reduce, notes_of_runs
from attnviz.errors import UsageError
from attnviz.inspect.patterns.measure import Array, Place, TextScores, cells_of, measure
from attnviz.inspect.patterns.probes import (
    AGREES_ON,
    NATURAL,
    ON_TEXT,
    OWN,
    SCORES_OF,
    AnnotatedSentence,
    ProbeText,
    described,
    measures_of,
    probe_texts,
    relation_base_rate,
    shipped_sentences,
)
from attnviz.inspect.patterns.report import Control, PatternReport, PatternScores, Probe
from attnviz.measures.bootstrap import share_interval, student_interval
from attnviz.measures.labels import (
    THRESHOLD,
    KnownLabels,
    best_label,
    clear_deviations,
    least_strength,
    strength,
    strengths,
    testable,
)
from attnviz.measures.one_text import head_scores
from attnviz.measures.registry import DESCRIBED, LABELS, MEASURES, NEEDS, View, label_named
from attnviz.measures.rows import Conditions
from attnviz.models.model import Model
from attnviz.progress import shares_of
from attnviz.records import SINKS, UNKNOWN_NOTE, HeadLabel, Input, Kind, ModelInfo, Source
from attnviz.texts import natural_texts

_REACH = 0.1
"""The least share of queries that must be able to show a score, such as by a separator in their
window: below it, nothing is known of the other queries, and the score labels no head."""

_ONE_DELIMITER = 2 / 3
"""The most of the gain of ``delimiter`` over chance that a single token, such as a comma, may give:
above it, the head attends to that token, and nothing is known of other delimiters."""

_READ = 256  # the most tokens of a person's own text in which labels are sought, to limit memory


def score_patterns(
    model: Model,
    text: Input | None = None,
    *,
    kind: Kind | None = None,
    view: View = "raw",
    sentences: Sequence[AnnotatedSentence] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    control: int | None = None,
    heads: Mapping[int, Container[int]] | None = None,
    progress: Callable[[float], None] = lambda share: None,
    index_base: int = 0,
    no_known_labels: bool = False,
    reduce: Reduce = "auto",
    probing: Probing | None = None,
) -> PatternReport:
    """Measure the pattern scores of the heads of ``model``, and label the heads.

    text: a person's own, for the kinds ``decoder`` and ``cross`` with the decoder's; None for the
        probes that ship with the package: natural text, random repeated tokens and annotated
        English sentences.
    view: the transform of the attention weights before scores are measured.
    sentences: annotated ones, in place of those that ship with the package; added to ``text``.
    seeds: of the random tokens. control: the seed of a random baseline, a model with random
        parameters, whose scores a label must exceed as well; None without one.
    heads: the heads to score in each layer; None scores all.
    no_known_labels: over a person's own text, ignore labels that were measured before.
    probing: the model opened for this kind of attention, if it already is.

    Raises UsageError if a text is too short or a choice does not fit the model, UnsupportedError if
    its attention, or values that a weight transform needs, cannot be observed.
    """
    began = time.monotonic()
    probing = probing or open_probing(model, kind)
    if sentences is None:
        sentences = shipped_sentences() if text is None else ()
    probes, skipped = probe_texts(probing, text, sentences, seeds)
    runs = 1 if control is None else 2
    work = shares_of(runs * sum(cells_of(probe, probing.kind) for probe in probes), progress)
    used = {relation for probe in probes for relation, _, _ in probe.pairs}
    relations = (*(name for name in LABELS if name in used), *sorted(used - set(LABELS)))
    attention = Conditions(probing.kind, probing.causal, view, probing.ranked)
    results = measure(probing, probes, attention, heads, work, reduce)
    scores = summaries(probes, results, relations)
    if not scores:
        raise UsageError(
            "none of the chosen layers has such a head: choose others with --layer or --head"
        )
    twin: Mapping[Place, PatternScores] = {}
    if control is not None:
        random = measure(probing.twin(control), probes, attention, heads, work, reduce)
        twin = summaries(probes, random, relations)
    of_text, labels = None, list[HeadLabel]()
    if text is not None:
        before = known_labels(model, probing.kind, ignored=no_known_labels)
        of_text = {} if text.text.unknown else _labels_of_text(probing, text, heads, before)
        labels = [*of_text.values()]
    annotated = dict.fromkeys(pair.relation for sentence in sentences for pair in sentence.pairs)
    report = scored_report(
        model.info,
        attention,
        scores,
        {head for result in results for head in result.lost},
        probes=described(probing, probes, relations, skipped),
        notes=_notes(probing, probes, relations),
        control=control,
        twin=twin,
        text_labels=of_text,
        own=text is not None,
        relations=relations,
        unscored=[name for name in annotated if name not in relations],
    )
    source: Source = next((label.source for label in labels if label.is_known), "text")
    return replace(
        report,
        seconds=time.monotonic() - began,
        index_base=index_base,
        labels_from="none" if of_text is None else source,
        labels_date=max((label.date for label in labels), default=""),
    )


def scored_report(
    info: ModelInfo,
    attention: Conditions,
    scores: Mapping[Place, PatternScores],
    lost: Collection[Place],
    *,
    probes: tuple[Probe, ...],
    notes: tuple[str, ...] = (),
    control: int | None = None,
    twin: Mapping[Place, PatternScores] = MappingProxyType({}),
    text_labels: Mapping[Place, HeadLabel] | None = None,
    own: bool = True,
    relations: Sequence[str] = (),
    unscored: Sequence[str] = (),
) -> PatternReport:
    """Return the report of the heads' scores: their strengths and labels.

    scores: those by (layer, head). lost: the heads with weights that are not numbers.
    control, twin: the seed of the random baseline and its scores; None and empty without one.
    text_labels: the labels on a person's one text. own: whether a person gave the texts.
    relations, unscored: the annotated relations that were measured, and those that could not be.
    """
    names = tuple(
        name
        for name in dict.fromkeys((*LABELS, *relations))
        if any(
            head.scores.get(name) is not None and head.base_rate.get(name) is not None
            for head in scores.values()
        )
    )
    least = clear_deviations(len(scores) * len(relations))
    threshold = math.inf if info.weights == "random" else THRESHOLD
    rule = _Rule(names, threshold, least, text_labels)
    # The random heads of a layer are drawn alike, so that the highest score of any counts.
    floors: dict[int, dict[str, float]] = {}
    for (layer, _), drawn in twin.items():
        known = floors.setdefault(layer, {})
        for name, score in drawn.scores.items():
            if score is not None:
                known[name] = max(score, known.get(name, score))
    heads = []
    for at, head in scores.items():
        if at not in lost:
            head = rule.labelled(head, floors.get(at[0], {}))
        else:  # the texts on which a head did not overflow are no fair sample
            head = PatternScores(
                *at,
                label=None,
                scores=dict.fromkeys(head.scores),
                base_rate=head.base_rate,
                measured=dict.fromkeys(head.measured, 0),
                statistics=dict.fromkeys(head.statistics),
            )
        heads.append(replace(head, control=twin[at].scores if at in twin else {}))
    if lost:
        overflow = "some weights are not numbers: those heads have no label"
        notes += (f"{overflow}{info.overflow_advice}",)
    by_chance = None
    if control is not None:
        alone = _Rule(names, THRESHOLD, least)
        labels = Counter(alone.labelled(drawn, {}).label for drawn in twin.values())
        by_chance = Control(control, {name: labels[name] for name in names if labels[name]})
    return PatternReport(
        model=info,
        kind=attention.kind,
        causal=attention.causal,
        view=attention.view,
        heads=tuple(heads),
        labels=names,
        probes=probes,
        not_measured=_not_measured(attention, heads, own=own, relations=unscored),
        untestable=_untestable(scores.values(), relations, least),
        control=by_chance,
        notes=notes,
    )


# Scores over single texts ----------------------------------------------------------------------

_FOLDS = 10


class Stack(NamedTuple):
    """The scores of heads over some texts; NaN where a text cannot show a score.

    scores, base, reach: (text, score, head), the score, its base rate, the share of the queries
        that could show it. gained: by token, (text, head), see ``TextScores.delimiters``.
    """

    scores: Array
    base: Array
    reach: Array
    gained: Mapping[int, Array]


def stacked(results: Sequence[TextScores], names: Sequence[str]) -> Stack:
    """Return the scores of the same heads over several texts. names: of the scores."""
    heads = len(results[0].places)
    nothing = np.full(heads, np.nan)

    def over(of: str) -> Array:
        return np.array(
            [[getattr(result, of).get(name, nothing) for name in names] for result in results]
        )

    scores, gained = over("scores"), {}
    if "delimiter" in names:
        measured = ~np.isnan(scores[:, names.index("delimiter")])
        for token in dict.fromkeys(token for result in results for token in result.delimiters):
            values = [result.delimiters.get(token, np.zeros(heads)) for result in results]
            gained[token] = np.where(measured, values, 0)
    return Stack(scores, over("base"), over("reach"), gained)


def summaries(
    texts: Sequence[ProbeText], results: Sequence[TextScores], relations: Sequence[str]
) -> dict[Place, PatternScores]:
    """Return the pattern scores of each head by (layer, head), in that order, without a label."""
    heads = blank(sorted({head for result in results for head in result.places}))
    for probe in dict.fromkeys(text.probe for text in texts):
        own = [result for text, result in zip(texts, results, strict=True) if text.probe == probe]
        if probe in SCORES_OF and heads:
            _enter_probe(heads, probe, stacked(own, measures_of(probe)))
    sentences = [pair for pair in zip(texts, results, strict=True) if pair[0].words is not None]
    for relation in relations if heads else ():
        _enter_relation(heads, relation, sentences)
    return {head: PatternScores(*head, label=None, **own) for head, own in heads.items()}


def blank(heads: Iterable[Place]) -> dict[Place, dict[str, Any]]:
    """Return for each head the fields of a ``PatternScores`` by name, all without values."""
    kinds = ("scores", "base_rate", "intervals", "measured", "reach", "pairs", "agreeing")
    none = dict.fromkeys(DESCRIBED)
    return {head: {"statistics": {**none}} | {kind: {} for kind in kinds} for head in heads}


def _enter_probe(heads: Mapping[Place, dict[str, Any]], probe: str, stack: Stack) -> None:
    names, further = SCORES_OF[probe], AGREES_ON.get(probe, ())
    gains = [values.sum(0) for values in stack.gained.values()]
    for column, head in enumerate(heads.values()):
        for row, source in enumerate(measures_of(probe)):
            at = ~np.isnan(stack.scores[:, row, column]), row, column
            scores = stack.scores[at].tolist()
            pairs = list(zip(scores, stack.base[at].tolist(), strict=True))
            name = names.get(source, source)
            if source in names:
                bases = [base for _, base in pairs if not math.isnan(base)]
                head["scores"][name], head["base_rate"][name] = _mean(scores), _mean(bases)
                head["measured"][name] = len(pairs)
                if pairs:
                    head["reach"][name] = math.fsum(stack.reach[at]) / len(pairs)
                if (interval := student_interval(scores)) is not None:
                    head["intervals"][name] = interval
            if source in names or source in further:
                head["pairs"].setdefault(name, []).extend(pairs)
            if source in DESCRIBED and probe in (NATURAL, OWN):
                head["statistics"][source] = _mean(scores)
        own = [float(values[column]) for values in gains]
        if sum(own) > 0:
            head["one_delimiter"] = max(own) / sum(own)


def _enter_relation(
    heads: Mapping[Place, dict[str, Any]],
    relation: str,
    sentences: Sequence[tuple[ProbeText, TextScores]],
) -> None:
    tested = [
        (number % _FOLDS, key - query, scores.scores[at], scores.base[at])
        for number, (text, scores) in enumerate(sentences)
        for at, (name, query, key) in enumerate(text.pairs)
        if name == relation
    ]
    folds, offsets, hits, chance = map(np.array, zip(*tested, strict=True))
    bases: dict[bytes, float] = {}
    for column, head in enumerate(heads.values()):
        known = ~np.isnan(hits[:, column])
        by_chance, own = chance[known, column], hits[known, column]
        key = known.tobytes() + by_chance.tobytes()
        if key not in bases:
            bases[key] = relation_base_rate(offsets[known].tolist(), by_chance.tolist())
        base, count = bases[key], len(own)
        of_folds = folds[known]
        parts = [own[of_folds == fold].tolist() for fold in dict.fromkeys(of_folds.tolist())]
        mean = _mean(own.tolist())
        head["scores"][relation] = mean
        head["base_rate"][relation] = base if count else None
        head["measured"][relation] = count
        if (interval := share_interval(mean or 0.0, count)) is not None:
            head["intervals"][relation] = interval
        head["pairs"][relation] = [(sum(part) / len(part), base) for part in parts]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# Labels --------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """The rule by which a pattern score becomes the label of a head.

    threshold, deviations: see ``best_label``; heads with random parameters do not reach them.
    text_labels: those by ``one_text`` on a person's own text, which is too short for the threshold
        alone; None for the probes. Relations are annotated by hand and always use the threshold.
    """

    names: Sequence[str]
    threshold: float
    deviations: float
    text_labels: Mapping[Place, HeadLabel] | None = None

    def labelled(self, head: PatternScores, floors: Mapping[str, float]) -> PatternScores:
        """Return the head with its label and what stands behind it."""
        gains = strengths(self.names, head.scores, head.base_rate, floors)
        of_text = None if self.text_labels is None else self.text_labels.get(head.place)
        label = self._label(head, gains, of_text)
        head = replace(head, strength=gains, text_label=of_text)
        if label is None:
            return head
        margin = (head.scores[label] or 0.0) - (head.base_rate[label] or 0.0)
        return replace(head, label=label, margin=margin, agreement=self._agreement(head, label))

    def _label(
        self, head: PatternScores, gains: Mapping[str, float], of_text: HeadLabel | None
    ) -> str | None:
        gains = {
            name: gain
            for name, gain in gains.items()
            if head.reach.get(name, 1.0) >= _REACH
            and not (name == "delimiter" and head.one_delimiter > _ONE_DELIMITER)
        }
        if self.text_labels is not None and self.threshold < 1:
            if of_text is not None and head.scores.get(of_text.name) is not None:
                return of_text.name
            relations = (name for name in gains if label_named(name).family == "relation")
            gains = {name: gains[name] for name in relations}
        return best_label(
            gains, head.scores, head.base_rate, head.measured, self.threshold, self.deviations
        )

    def _agreement(self, head: PatternScores, label: str) -> float | None:
        """Return the share of single texts on which the label's strength reaches its threshold."""
        if label in head.agreeing:
            return head.agreeing[label]
        pairs = head.pairs.get(label, ())
        if len(pairs) < 2:
            return None
        gains, least = [strength(*pair) for pair in pairs], least_strength(label)
        return sum(gain is not None and gain >= least for gain in gains) / len(pairs)


def _labels_of_text(
    probing: Probing,
    given: Input,
    heads: Mapping[int, Container[int]] | None,
    known: KnownLabels | None,
) -> dict[Place, HeadLabel]:
    """Return the label of each (layer, head) over the beginning of the text, sinks included."""
    target = None if given.target is None else given.target.cut(_READ)
    text = given.text.cut(_READ)
    record = capture(probing.model, text, kind=probing.kind, target=target, heads=heads)
    return {
        (entry.layer, entry.head): entry.label
        for entry in head_scores(record, known)
        if entry.label.is_finding or entry.label.name in SINKS
    }


# What goes with the scores -------------------------------------------------------------------


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


def _untestable(
    heads: Collection[PatternScores], relations: Sequence[str], deviations: float
) -> dict[str, float]:
    """Return the base rates of the relations that not even a perfect head could get as a label."""
    rates = {}
    for name in relations:
        bases = {head.base_rate.get(name): head.measured.get(name, 0) for head in heads}
        if not any(testable(name, base, pairs, deviations) for base, pairs in bases.items()):
            rates[name] = max((base for base in bases if base is not None), default=0.0)
    return rates


def _not_measured(
    attention: Conditions, heads: Sequence[PatternScores], *, own: bool, relations: Sequence[str]
) -> dict[str, str]:
    """Return the reason for each score that no head has, by name."""
    names = dict.fromkeys(name for head in heads for name in head.scores)
    missing = [name for name in names if all(head.scores.get(name) is None for head in heads)]
    reasons = {name: _reason(name, attention, own) for name in missing}
    reasons = {name: reason for name, reason in reasons.items() if reason != NEEDS["two texts"]}
    crosses, natural = attention.kind == "cross", SCORES_OF[NATURAL]
    if not own and not crosses and "induction" not in names:
        absent = "the model has no room or too few tokens for random repeated ones"
        reasons |= dict.fromkeys(("duplicate", "induction", "prefix_matching"), absent)
    if not own and not any(name in names for name in natural.values()):
        able = (name for of, name in natural.items() if attention.lacks(MEASURES[of]) is None)
        reasons |= dict.fromkeys(able, "the tokenizer does not know the built-in texts")
    unread = "the annotated words are not whole tokens of the model"
    if crosses:
        unread = "words that belong together are in one text, and cross attention joins two"
    return reasons | dict.fromkeys(relations, unread)


def _reason(name: str, attention: Conditions, own: bool) -> str:
    measure = MEASURES.get(name.removeprefix(ON_TEXT))
    need = None if measure is None else attention.lacks(measure)
    if need is not None:
        return NEEDS[need]
    text = "the text" if own else "the natural text"
    absent = "" if measure is None else measure.absent.format(text=text)
    return absent or "the weights are not numbers"
