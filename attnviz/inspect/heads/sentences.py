"""What is said about heads: the answer in a sentence, what each head does, how runs differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnviz.draw import provenance as facts
from attnviz.draw.document import Words
from attnviz.draw.labels import cut, token_labels, visible
from attnviz.draw.numbers import counted, listed
from attnviz.draw.provenance import p_value, share
from attnviz.draw.regions import region_finding
from attnviz.inspect.heads.links import (
    Link,
    PairLink,
    PairLinks,
    head_links,
    link_words,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.report import HeadsReport, LongHead, LongHeads, padding_of
from attnviz.measures.bootstrap import CHANCE
from attnviz.measures.registry import said_name
from attnviz.measures.sinks import SINK_WEIGHT, sink_of
from attnviz.measures.telling import Telling
from attnviz.measures.word_links import NO_MORE, WordLink, agreed_links
from attnviz.measures.words import WordPlaces, words_of_tokens
from attnviz.prompts.naming import quoted_word
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
    HeadLabel,
    HeadScores,
    HeadsRecord,
    LayerWeights,
    Score,
)

_NAMED = 4
_ARBITRARY = "Untrained random weights: where these heads attend is arbitrary"
_SOURCES = {"card": "model card", "patterns": "attnviz patterns, {date}", "text": "from this text"}


class LabelCount(NamedTuple):
    """How many heads have a label or description, and the (layer, head) with the highest score."""

    label: HeadLabel
    heads: int
    best: tuple[int, int]


def scored(name: str, score: float) -> str:
    """Return a name and its score as one string; the name alone if the score is NaN."""
    return name if math.isnan(score) else f"{name} {share(score)}"


def counts(run: HeadsRecord) -> list[LabelCount]:
    """Return how many heads have each label or description; labels first, then by number."""
    alike: dict[str, list[HeadScores]] = {}
    for entry in run.heads:
        alike.setdefault(entry.label.said, []).append(entry)
    counted = []
    for heads in alike.values():
        best = max(heads, key=lambda entry: float(np.nan_to_num(entry.label.score, nan=-1.0)))
        counted.append(LabelCount(best.label, len(heads), best.place))
    return sorted(counted, key=lambda count: (not count.label.is_finding, -count.heads))


def finding(report: HeadsReport) -> str:
    """Return the most important result in one or two sentences, at most two lines of 80 columns."""
    run, view = report.first, report.view
    if view.pairs or view.words:
        answer = _of_pair(run, view.pairs[0]) if view.pairs else _of_word(report, view.words[0])
        if report.of_texts:
            return f"In the first of {len(report.reports):,} texts: {answer}"
        if len(report.reports) > 1:
            return f"With {' and '.join(run_names(report)[1][0])}: {answer}"
        return answer
    if len(report.reports) > 1:
        return _of_runs(report)
    if view.top is not None:
        links = [_named(run, link) for link in strongest_links(run, _NAMED, view.sink)]
        return f"Strongest links: {', '.join(links) or 'none'}."
    if run.sorted_by is not None:
        return _of_order(run, run.sorted_by)
    if run.regions is not None and run.record.model.weights == "random":
        return f"{_ARBITRARY}, so regions say nothing about the model."
    if run.regions is not None:
        return region_finding(run.regions, lambda head: run.name(*head))
    return _of_heads(report) if run.selected else _of_text(report)


def overview_words(run: HeadsRecord) -> list[str]:
    """Return strings: how many heads attend mostly to the sink, and the source of the labels."""
    resting = sum(run.rests(*head) for head in run.places)
    sinks, labelled = np.flatnonzero(sink_of(run.record)[1]).tolist(), token_labels(run.record.keys)
    names = list(dict.fromkeys(labelled[at] for at in sinks))
    sink = " and ".join(names) if len(names) <= 2 else "special tokens"
    sink = "first token" if sinks == [0] else sink
    words = [f"sink heads: {resting} of {len(run.heads)} ({sink})"] if resting else []
    labels = [entry.label for entry in run.heads if entry.label.is_finding]
    source = "none: attnviz patterns measures them"
    if labels:
        source = _SOURCES[labels[0].source].format(date=facts.spoken_date(labels[0].date))
    elif run.record.model.weights == "random":
        source = "none: random weights"
    return [source, *words]


def _of_text(report: HeadsReport) -> str:
    run, links = report.first, report.agreed_links
    if run.record.model.weights == "random":
        return f"{_ARBITRARY}, so links are not tested."
    if all(entry.scores["entropy"] is None for entry in run.heads):
        return "The weights of every head are not numbers (NaN): nothing can be said of them."
    if links is None and not report.told:
        nearest = strongest_links(run, 2, of_each=1, unusual=True)
        unusual = ", ".join(_named(run, link) for link in nearest) or "none"
        return f"The text is too long to test each link. Furthest above control: {unusual}."
    if links is not None and links.pairs < 2 and not report.told:
        few = "only one pair of words is" if links.pairs else "fewer than two words are"
        return f"No link is tested: without sinks, punctuation and unknown tokens, {few} left."
    if not report.told:
        return "No link between words stands out: no head prefers one word to the others."
    first, *others = (_told(run, telling) for telling in report.told)
    return next(filter(facts.fits_two_lines, (f"{first} {other}" for other in others)), first)


def _told(run: HeadsRecord, telling: Telling) -> str:
    """Return the sentence on a link that is worth saying."""
    why, link = telling.why, telling.link
    query, key = quoted_ends(run, link)
    name, weight, heads = run.name(link.layer, link.head), share(telling.weight), len(run.heads)
    if why == "induction" and telling.copy is not None:
        copy = quoted_word(run.record.queries, telling.copy)
        return f"Induction: {name} attends ({weight}) from {query} to {key}, which followed {copy}."
    if why == "label":
        label = run.scores(link.layer, link.head).label
        return f"{name} ({label.said}) attends ({weight}) from {query} to {key}."
    if why == "asked":
        single = len(link.query) == len(link.key) == 1  # else the control is one of whole words
        compared = f"{weight}, control {share(link.habit)}" if single else weight
        unclear = f"with {counted(heads, 'head')} to choose from, this may be chance"
        if not math.isnan(link.chance):
            unclear = f"not significant among all word pairs (p = {p_value(link.chance)})"
        return f"{query} attends to {key} in {name} ({compared}); {unclear}."
    best, of = f"{name} {weight}", f"in {link.heads} of {heads} heads"
    if why == "nearest" and math.isnan(link.chance):
        few = f"{heads} heads are" if heads > 1 else "One head is"
        pair = f"{query} → {key} in {best}, control {share(link.habit)}"
        return f"{few} too few to test links. Furthest above its control: {pair}."
    p = f"p = {p_value(link.chance)}"
    if why == "nearest":
        closest = f"{query} → {key} in {name} ({weight}; {p}, threshold {share(CHANCE)})"
        return f"No word pair is significant; the closest is {closest}."
    if why in ("local", "function"):
        only = "neighbours" if why == "local" else "function words"
        return f"Only {only} stand out: {query} attends to {key} {of} ({best}; {p})."
    return f"{query} attends to {key} above chance {of} ({best}; {p})."


def quoted_ends(run: HeadsRecord, link: WordLink) -> list[str]:
    """Return the two words of a link in quotes, the query's first."""
    return [quoted_word(run.record.queries, link.query), quoted_word(run.record.keys, link.key)]


def _named(run: HeadsRecord, link: Link) -> str:
    words, _, weight = link_words(run, link).rpartition(" ")
    return f"{words} {run.name(link.layer, link.head)} {weight}"


def _at(run: HeadsRecord, link: Link | WordLink | PairLink) -> str:
    return f"{run.name(link.layer, link.head)} {share(link.weight)}"


def _of_word(report: HeadsReport, word: WordPlaces) -> str:
    run, record, (query, key) = report.first, report.first.record, word
    away, towards = word_links(run, word, report.view.sink)
    other_words = "Of other words, " * (record.kind != "cross")
    parts = []
    if away and query is not None:
        other = quoted_word(record.keys, words_of_tokens(record.keys)[away[0].key])
        name = quoted_word(record.queries, query.span)
        parts.append(f"{other_words}{name} attends most to {other} ({_at(run, away[0])})")
    if towards and key is not None:
        other = quoted_word(record.queries, words_of_tokens(record.queries)[towards[0].query])
        name = "and" if parts else other_words + quoted_word(record.keys, key.span)
        parts.append(f"{name} gets most attention from {other} ({_at(run, towards[0])})")
    return f"{' '.join(parts)}." if parts else "No head links the word to another one."


def _of_pair(run: HeadsRecord, pair: PairLinks) -> str:
    best, tried = pair.links[0], len(pair.links)
    beyond = sum(link.beats_chance for link in pair.links)
    tried_words = "heads" if len(pair.directions) == 1 else "head × direction pairs"
    return (
        f"{pair.names[best.direction]}: {_at(run, best)}, "
        f"reached by {pair.reached(best)} texts with the other words shuffled (mean "
        f"{share(best.chance)}). {beyond} of {tried} {tried_words} exceed{'s' * (beyond == 1)} "
        f"them all ({tried / (pair.draws + 1):.1f} by chance)."
    )


def _of_heads(report: HeadsReport) -> str:
    run, first, others = report.first, report.first.heads[0], len(report.first.heads) - 1
    label, head, sink = first.label, first.place, report.view.sink
    score = scored(label.said, label.score)
    words = f"is labelled {score}" if label.is_finding else f"has no label (here {score})"
    words = f"{run.name(*head)} {words}" + facts.label_source([label], " ({source}, {date})")
    if head in run.sinks and label.said != "sink":
        words += f", sink weight {share(run.sinks[head])}"
    weights = LayerWeights(first.layer, (first.head,), run.weights(*head)[None])
    above = None if sink else agreed_links(replace(run.record, layers=(weights,)))
    if above and above.links:
        link = above.links[0]
        pair = " → ".join(quoted_ends(run, link))
        compared = f"{share(link.weight)} (control {share(link.habit)})"
        more = f"; its link furthest above its control is {pair}, {compared}"
        much = link.weight - link.habit >= NO_MORE
        words += more if much else "; no link clearly exceeds its control"
    else:
        strongest = head_links(run, *head, len(first.scores), sink)
        crosses = run.record.kind == "cross"
        apart = [link for link in strongest if crosses or link.query != link.key]
        words += f"; its strongest link is {link_words(run, apart[0])}" if apart else ""
    return f"{words}." + (f" {counted(others, 'more head')} below." if others else "")


def _of_order(run: HeadsRecord, measure: str) -> str:
    known = [
        (run.name(*entry.place), value)
        for entry in run.heads
        if (value := entry.scores[measure]) is not None
    ]
    (first, top), (last, bottom) = known[0], known[-1]
    most, least = ("highest", "lowest") if top >= bottom else ("lowest", "highest")
    words = f"By {said_name(measure)}, {first} scores {most} ({top:.2f})"
    if len(known) > _NAMED:
        words += f", then {listed([f'{name} ({value:.2f})' for name, value in known[1:_NAMED]])}"
    return words + (f"; {last} scores {least} ({bottom:.2f})." if len(known) > 1 else ".")


def _of_runs(report: HeadsReport) -> str:
    first, hidden = report.first, padding_of(report.reports[-1].record)
    if report.of_texts:
        heads, texts = len(first.places), len(report.reports)
        times = [sum(run.rests(*head) for run in report.reports) for head in first.places]
        always, some = times.count(texts), sum(0 < number < texts for number in times)
        if not any(times):
            return f"{texts:,} texts, head by head; no head attends mostly to a sink."
        return (
            f"{always} of {heads} heads attend mostly to the attention sink in each of "
            f"{texts:,} texts, {some} more in some."
        )
    moved = [(value, head) for run in report.moved for head, value in (run or {}).items()]
    if not moved:
        return f"{len(report.reports)} kinds of attention over different texts, head by head."
    if hidden is not None:  # what the words of a text give to its padding
        shares = {
            head: float(first.weights(*head)[~hidden][:, hidden].sum(-1).mean())
            for head in first.places
        }
        head = max(shares, key=lambda head: shares[head])
        return (
            f"Without a padding mask, words give {share(sum(shares.values()) / len(shares))} of "
            f"their attention to {counted(int(hidden.sum()), 'padding token')}, most in "
            f"{first.name(*head)} ({share(shares[head])}); with it, none."
        )
    mean = sum(value for value, _ in moved) / len(moved)
    most, head = max(moved)
    return (
        f"Compared with {' and '.join(run_names(report)[1][0])}, {share(mean)} of a head's "
        f"attention moves to other keys on average, most in {first.name(*head)} ({share(most)})."
    )


def long_finding(report: LongHeads) -> str:
    """Return a sentence: how many heads attend to the sink, and which head looks back furthest."""

    def distance(head: LongHead) -> float:
        return head.scores.get("distance") or 0.0

    sinking = [head for head in report.heads if (head.scores.get("first") or 0) > SINK_WEIGHT]
    others = [head for head in report.heads if head not in sinking]
    if len(report.heads) == 1:
        (head,) = report.heads
        sinks = "sinks" if sinking else "does not sink"
        return (
            f"{report.head_name(head[:2])} {sinks} on the first token (weight "
            f"{share(head.scores.get('first') or 0.0)}) and looks {distance(head):,.0f} tokens "
            f"away on average (uniform attention: {head.even:,.0f})."
        )
    verb = "sinks" if len(sinking) < 2 else "sink"
    words = (
        f"{len(sinking) or 'None'} of {counted(len(report.heads), 'head')} {verb} on the first "
        f"token (weight above {SINK_WEIGHT})"
    )
    if not others:
        return f"{words}."
    furthest = max(others, key=distance)
    which = "of the others, " if sinking else ""
    return (
        f"{words}; {which}{report.head_name(furthest[:2])} looks furthest away, "
        f"{distance(furthest):,.0f} tokens on average (uniform attention: {furthest.even:,.0f})."
    )


# Which attention -----------------------------------------------------------------------------

_FORMULAS: dict[Score, str] = {
    "scaled-dot": "q·k/√{width}",
    "dot": "q·k",
    "additive": "v·tanh(q + k)",
}


def _words(record: AttentionRecord) -> tuple[str, str, str]:
    """Return names for the kind, mask and score of the attention."""
    kind, score = f"{record.kind} attention", record.model.score
    if score is None:
        return "" if record.kind == "self" else kind, "", ""
    mask = "causal mask" if record.causal else "no mask"
    if padding_of(record) is not None:
        mask = "padding mask"
    return kind, mask, f"{score} score {_FORMULAS[score].format(width=record.model.head_dim)}"


def variant_names(records: Sequence[AttentionRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the names that all records share, and for each record those in which it differs.

    A single record shares all its names: kind, mask and score if they can be chosen, else only an
    unusual kind.
    """
    columns = [*zip(*map(_words, records), strict=True)]
    varied = [len({*words} - {""}) > 1 for words in columns]
    shared = [max(words) for words, varies in zip(columns, varied, strict=True) if not varies]
    names = [
        [word for word, varies in zip(words, varied, strict=True) if varies and word]
        for words in zip(*columns, strict=True)
    ]
    return [word for word in shared if word], names


def run_names(report: HeadsReport) -> tuple[list[str], list[list[str]]]:
    """Return the names that all runs share, and those of each run, as ``variant_names`` does."""
    if not report.of_texts:
        return variant_names([run.record for run in report.reports])
    shared, _ = variant_names([report.first.record])
    return shared, [[f"“{cut(visible(run.text), _LONGEST)}”"] for run in report.reports]


_LONGEST = 40
_REMOVED = 2


def removed_words(run: HeadsRecord) -> str:
    """Return the names of the ablated heads, of many only the first two."""
    names = [run.name(*head) for head in run.ablated]
    more = [f"{len(names) - _REMOVED} more"] if len(names) > _REMOVED else []
    return ", ".join([*names[:_REMOVED], *more])


def name_words(run: HeadsRecord, scores: HeadScores) -> Words:
    """Return a head's name, with that of its key/value head if several heads share that."""
    group = run.record.model.group(scores.head)
    shared = [] if group is None else [(f"key/value head {group + run.index_base}", False)]
    return [(run.name(*scores.place), True), *shared]


def score_words(run: HeadsRecord, scores: HeadScores) -> list[str]:
    """Return strings: a head's label, its sink weight, its entropy, and the sorting measure."""
    words, measure = facts.label_words(scores.label), run.sorted_by
    sink = run.sinks.get(scores.place)
    if sink is not None and scores.label.name not in SINKS and scores.label is not NO_LABEL:
        words.append(f"sink weight {share(sink)}")
    if (entropy := scores.scores.get("entropy")) is not None:
        words.append(f"entropy {entropy:.2f} nats")
    if measure and measure not in ("entropy", scores.label.name):
        value = scores.scores[measure]
        shown = "not measured" if value is None else f"{value:.2f}"
        words.append(f"{said_name(measure)} {shown}")
    return words
