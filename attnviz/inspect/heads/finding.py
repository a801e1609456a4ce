"""The answer of ``attnviz heads`` in a sentence, and the counts of heads by label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from attnviz.draw.document import Words
from attnviz.draw.labels import token_labels, word_label
from attnviz.draw.provenance import (
    LONGEST_FINDING,
    label_source,
    shape_words,
    share,
    size_words,
    spoken_date,
)
from attnviz.inspect.heads.links import (
    LONGEST,
    Link,
    head_links,
    link_names,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.pair import PairLinks
from attnviz.inspect.heads.report import HeadsComparison, HeadsView
from attnviz.inspect.heads.words import variant_names
from attnviz.measures.sinks import sink_of
from attnviz.records import HeadScores, HeadsReport

_FEW_TOKENS = 8
_NAMED = 4
_SOURCES = {"card": "The model card", "patterns": "attnviz patterns ({date})", "text": "This text"}


class HeadWords(NamedTuple):
    """The words for a head on a first screen: its label, or a description.

    said, short: in full, and short for a table cell. score: see ``HeadLabel``. finding: whether it
    is a label with evidence, not only a description of this text.
    """

    said: str
    short: str
    score: float
    finding: bool


def described(entry: HeadScores) -> HeadWords:
    """Return the words for a head."""
    label = entry.label
    return HeadWords(label.said, label.short, label.score, label.is_finding)


class LabelCount(NamedTuple):
    """How many heads have the same words, and the one of them with the highest score."""

    what: HeadWords
    heads: int
    place: tuple[int, int]


def scored(name: str, score: float) -> str:
    """Return a name and its score; the name alone if the score is NaN."""
    return name if math.isnan(score) else f"{name} {share(score)}"


def best_of(report: HeadsReport, count: LabelCount) -> str:
    """Return the head with the highest score, and that score; empty if the score is NaN."""
    score = count.what.score
    return "" if math.isnan(score) else scored(report.name(*count.place), score)


def counts(report: HeadsReport) -> list[LabelCount]:
    """Return the heads counted by their words: labels before descriptions, most heads first."""
    found: dict[str, list[tuple[HeadWords, tuple[int, int]]]] = {}
    for entry in report.heads:
        what = described(entry)
        found.setdefault(what.said, []).append((what, (entry.layer, entry.head)))
    counted = []
    for same in found.values():
        best = max(same, key=lambda each: -1.0 if math.isnan(each[0].score) else each[0].score)
        counted.append(LabelCount(best[0], len(same), best[1]))
    return sorted(counted, key=lambda each: (not each.what.finding, -each.heads))


def heading(found: HeadsComparison, changed: Sequence[str], names: Sequence[str]) -> Words:
    """Return the name of the model, its attention and the length of the text, in one line.

    changed: what differs from the model itself; even a narrow line must keep it.
    """
    info = found.first.record.model
    words: list[tuple[str, bool]] = [(info.name, True), *((word, False) for word in changed)]
    words += [] if info.is_array else [(shape_words(info), False)]
    sizes = dict.fromkeys(size_words(report.record) for report in found.reports)
    return [*words, *((word, False) for word in (*names, *sizes))]


def finding(found: HeadsComparison, view: HeadsView) -> str:
    """Return the answer in one sentence or two, at most two lines of 80 columns."""
    report = found.first
    if view.pairs:
        return _of_pair(report, view.pairs[0])
    if view.words:
        return _of_word(report, view)
    if len(found.reports) > 1:
        return _of_runs(found)
    if view.top is not None:
        return _of_links(report, strongest_links(report, _NAMED, view.sink))
    if report.sorted_by is not None:
        return _of_order(report, report.sorted_by)
    if report.selected:
        return _of_heads(report, view)
    return _of_labels(report)


def sink_name(report: HeadsReport) -> str:
    """Return the sink in words, such as ``the first token`` or ``[CLS] and [SEP]``."""
    record = report.record
    places = sink_of(record)[1].nonzero()[0].tolist()
    if places == [0]:
        return "the first token"
    labels = token_labels(record.keys)
    names = list(dict.fromkeys(labels[place] for place in places))
    return " and ".join(names) if len(names) <= 2 else "special tokens"


def _of_labels(report: HeadsReport) -> str:
    total = len(report.heads)
    resting = sum(report.rests(entry.layer, entry.head) for entry in report.heads)
    said = ""
    if report.sinks:
        many = (
            f"{resting or 'None'} of {total} heads rest on {sink_name(report)} (attention sink). "
        )
        only = f"Only 1 of {total} heads uses {sink_name(report)} as an attention sink. "
        said = only if resting == 1 else many
    named = [each for each in counts(report) if each.what.finding]
    if not named:
        return said + _no_label(report)
    label = next(entry.label for entry in report.heads if entry.label.is_finding)
    source = _SOURCES[label.source].format(date=spoken_date(label.date))

    def bare(each: LabelCount) -> str:
        return f"{each.heads} {each.what.said}"

    def with_best(each: LabelCount) -> str:
        best = best_of(report, each)
        return bare(each) + (f" (best {best})" if best else "")

    for most in (len(named), _NAMED, 2):
        others = f" and {len(named) - most} more" if most < len(named) else ""
        for way in (with_best, bare):
            shown = f"{said}{source} labels {', '.join(map(way, named[:most]))}{others}."
            if len(shown) <= LONGEST_FINDING:
                return shown
    return said.strip() or shown


def _no_label(report: HeadsReport) -> str:
    if report.record.model.weights == "random":
        return "No labels: untrained random weights, patterns are arbitrary."
    if len(report.record.queries) < _FEW_TOKENS:
        return f"No labels: fewer than {_FEW_TOKENS} tokens are no evidence."
    return "No labels: one text is too little evidence; attnviz patterns measures on thousands."


def _link(report: HeadsReport, link: Link, name: bool = True) -> str:
    queries, keys = link_names(report.record, LONGEST)
    head = f" {report.name(link.layer, link.head)}" * name
    return f"{queries[link.query]} → {keys[link.key]}{head} {share(link.weight)}"


def _of_links(report: HeadsReport, links: Sequence[Link]) -> str:
    said = ", ".join(_link(report, each) for each in links) or "none"
    return f"Strongest links: {said}."


def _of_word(report: HeadsReport, view: HeadsView) -> str:
    places, parts = view.words[0], []
    record = report.record
    ends = zip(("from", "to"), (record.queries, record.keys), places, strict=True)
    ways = word_links(report, places, view.sink)
    for (way, tokens, word), links in zip(ends, ways, strict=True):
        if links and word is not None:
            text = word_label(tokens.texts[word.span.start : word.span.stop])
            parts.append(f"Attention {way} “{text}”: {_link(report, links[0])}.")
    return " ".join(parts) or "No head links the word to another one."


def _of_pair(report: HeadsReport, pair: PairLinks) -> str:
    best, tried = pair.links[0], len(pair.links)
    beyond = sum(each.beats_chance for each in pair.links)
    tried_words = "heads" if len(pair.directions) == 1 else "head × direction pairs"
    return (
        f"{pair.names[best.direction]}: {report.name(best.layer, best.head)} {share(best.weight)}, "
        f"reached by {pair.reached(best)} shuffled texts (mean {share(best.chance)}). {beyond} of "
        f"{tried} {tried_words} exceed{'s' * (beyond == 1)} every shuffled text "
        f"({tried / (pair.draws + 1):.1f} expected by chance)."
    )


def _of_heads(report: HeadsReport, view: HeadsView) -> str:
    first = report.heads[0]
    what, place = described(first), (first.layer, first.head)
    said = f"{report.name(*place)}: {scored(what.said, what.score)}"
    said += label_source([first.label], " ({source}, {date})")
    if place in report.sinks and what.said != "sink":
        said += f", sink weight {share(report.sinks[place])}"
    links = head_links(report, *place, len(first.scores), view.sink)
    links = [each for each in links if each.query != each.key or report.record.kind == "cross"]
    said += f"; strongest link {_link(report, links[0], name=False)}." if links else "."
    others = len(report.heads) - 1
    return said + (f" {others} more." if others else "")


def _of_order(report: HeadsReport, measure: str) -> str:
    known = [
        (report.name(entry.layer, entry.head), value)
        for entry in report.heads
        if (value := entry.scores[measure]) is not None
    ]
    listed = ", ".join(f"{name} {value:.2f}" for name, value in known[:_NAMED])
    last = f"; last {known[-1][0]} {known[-1][1]:.2f}" if len(known) > _NAMED else ""
    return f"By {measure.replace('_', ' ')}: {listed}{last}."


def _of_runs(found: HeadsComparison) -> str:
    """Return a sentence on the head that differs most between the first run and another."""
    moved = [
        (value, place) for each in found.moved if each is not None for place, value in each.items()
    ]
    if not moved:
        return f"{len(found.reports)} kinds of attention over different texts, head by head."
    mean = sum(value for value, _ in moved) / len(moved)
    most, place = max(moved)
    first = " and ".join(variant_names([each.record for each in found.reports])[1][0])
    return (
        f"Compared with {first}, {share(mean)} of a head's attention moves to other keys on "
        f"average, most in {found.first.name(*place)} ({share(most)})."
    )
