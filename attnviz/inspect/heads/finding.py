"""The answer of ``attnviz heads`` in a sentence, and the counts of heads by label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from attnviz.draw.document import Words
from attnviz.draw.labels import fit, numbered, token_labels, width, word_label
from attnviz.draw.numbers import counted, listed
from attnviz.draw.provenance import (
    fits_two_lines,
    label_source,
    places_words,
    shape_words,
    share,
    size_words,
    spoken_date,
)
from attnviz.draw.regions import region_finding
from attnviz.inspect.heads.links import (
    LONGEST,
    Link,
    head_links,
    link_names,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.pair import PairLinks
from attnviz.inspect.heads.report import HeadsReport, HeadsView
from attnviz.inspect.heads.words import run_names
from attnviz.measures.registry import said_name
from attnviz.measures.sinks import sink_of
from attnviz.measures.word_links import (
    DRAWS,
    NO_MORE,
    WordLink,
    WordLinks,
    agreed_links,
    is_repeat,
)
from attnviz.measures.words import word_ranges, word_text, words_of_tokens
from attnviz.records import HeadScores, HeadsRecord, LayerWeights, RegionShares, Tokens

_NAMED = 4
_ARBITRARY = "Untrained random weights: where these heads attend is arbitrary"
_AS_USUAL = "No link between words stands out: every head attends to each word about as usual."
_SOURCES = {"card": "model card", "patterns": "attnviz patterns, {date}", "text": "of this text"}


class HeadWords(NamedTuple):
    """The name of a head on a first screen: its label, or a description of its attention.

    said, short: the name in full, and short for a table cell. score: see ``HeadLabel``. finding:
        whether it is a label with evidence, not only a description of this text.
    """

    said: str
    short: str
    score: float
    finding: bool


def described(entry: HeadScores) -> HeadWords:
    """Return the name of a head on a first screen: its label, or a description."""
    label = entry.label
    return HeadWords(label.said, label.short, label.score, label.is_finding)


class LabelCount(NamedTuple):
    """How many heads have the same label or description, and the best of them.

    what: the label or description. heads: their number. place: the (layer, head) with the highest
        score.
    """

    what: HeadWords
    heads: int
    place: tuple[int, int]


def scored(name: str, score: float) -> str:
    """Return a name and its score as one string; the name alone if the score is NaN."""
    return name if math.isnan(score) else f"{name} {share(score)}"


def best_of(report: HeadsRecord, count: LabelCount) -> str:
    """Return the name of the head with the highest score, and that score; empty if it is NaN.

    count: the heads that share a label or description.
    """
    score = count.what.score
    return "" if math.isnan(score) else scored(report.name(*count.place), score)


def counts(report: HeadsRecord) -> list[LabelCount]:
    """Return how many heads have each label or description; labels first, then by number."""
    found: dict[str, list[tuple[HeadWords, tuple[int, int]]]] = {}
    for entry in report.heads:
        what = described(entry)
        found.setdefault(what.said, []).append((what, (entry.layer, entry.head)))
    counted = []
    for same in found.values():
        best = max(same, key=lambda each: -1.0 if math.isnan(each[0].score) else each[0].score)
        counted.append(LabelCount(best[0], len(same), best[1]))
    return sorted(counted, key=lambda each: (not each.what.finding, -each.heads))


def heading(found: HeadsReport, changed: Sequence[str], names: Sequence[str]) -> Words:
    """Return the heading in one line: the model, its attention and the length of the text.

    changed: the differences to the unchanged model; even a narrow line must show them.
    names: the words for the runs that are compared.
    """
    info = found.first.record.model
    words: list[tuple[str, bool]] = [(info.name, True), *((word, False) for word in changed)]
    words += [(word, False) for word in places_words(info)]
    words += [] if info.is_one_layer else [(shape_words(info), False)]
    sizes = dict.fromkeys(size_words(report.record) for report in found.reports)
    if found.of_texts:
        sizes = dict.fromkeys([_sizes(found)])
    return [*words, *((word, False) for word in (*names, *sizes))]


def _sizes(found: HeadsReport) -> str:
    lengths = sorted(len(report.record.queries) for report in found.reports)
    apart = f"{lengths[0]:,} to {lengths[-1]:,}" if lengths[0] < lengths[-1] else f"{lengths[0]:,}"
    return f"{len(found.reports):,} texts of {apart} tokens"


def finding(found: HeadsReport, view: HeadsView) -> str:
    """Return the most important result in one or two sentences, at most two lines of 80 characters.

    view: the display options; the sentences are about a requested word or word pair, if any.
    """
    report = found.first
    if view.pairs or view.words:
        said = _of_pair(report, view.pairs[0]) if view.pairs else _of_word(report, view)
        return f"In the first of {len(found.reports):,} texts: {said}" if found.of_texts else said
    if len(found.reports) > 1:
        return _of_runs(found)
    if view.top is not None:
        return _of_links(report, strongest_links(report, _NAMED, view.sink))
    if report.sorted_by is not None:
        return _of_order(report, report.sorted_by)
    if report.regions is not None:
        return _of_regions(report, report.regions)
    if report.selected:
        return _of_heads(found, view)
    return _of_text(found)


def overview_words(report: HeadsRecord) -> list[str]:
    """Return strings: how many heads attend mostly to the sink, and the source of the labels."""
    total = len(report.heads)
    resting = sum(report.rests(entry.layer, entry.head) for entry in report.heads)
    words = [f"this text: {resting} of {total} sink on {sink_name(report)}"] if resting else []
    labels = [entry.label for entry in report.heads if entry.label.is_finding]
    if labels:
        source = _SOURCES[labels[0].source].format(date=spoken_date(labels[0].date))
        return [source, *words]
    if report.record.model.weights == "random":
        return ["none: random weights", *words]
    return ["none: attnviz patterns measures them", *words]


def sink_name(report: HeadsRecord) -> str:
    """Return the sink in words, such as ``first token`` or ``[CLS] and [SEP]``."""
    record = report.record
    places = sink_of(record)[1].nonzero()[0].tolist()
    if places == [0]:
        return "first token"
    labels = token_labels(record.keys)
    names = list(dict.fromkeys(labels[place] for place in places))
    return " and ".join(names) if len(names) <= 2 else "special tokens"


def _of_regions(report: HeadsRecord, regions: RegionShares) -> str:
    if report.record.model.weights == "random":
        return f"{_ARBITRARY}, regions say nothing of the model."
    return region_finding(regions, lambda head: report.name(*head))


# The links of this text ----------------------------------------------------------------------


def _of_text(found: HeadsReport) -> str:
    """Return the finding on a text: which words attend to which others beyond chance, if any."""
    report, links = found.first, found.agreed_links
    if report.record.model.weights == "random":
        return f"{_ARBITRARY}, links are not tested."
    if links is None:
        nearest = strongest_links(report, 2, each=1, unusual=True)
        unusual = ", ".join(_link(report, each) for each in nearest) or "none"
        return f"Too long a text to test each link. Furthest above usual: {unusual}."
    if not links.pairs:
        return (
            "No link is tested: beside sinks, punctuation and unknown tokens this text has under "
            "two words."
        )
    if not links.links:
        return _AS_USUAL
    said = said_links(found)
    if not said or not said[0].beats_chance:
        repeats = said and is_repeat(report.record, said[0], _induction(report))
        return _of_repeat(report, links, said[0]) if repeats else _nearest(report, links)
    first, *others = said
    chance = _reached(max(link.chance for link in (first, *others)))
    ends = quoted_ends(report, first)
    shown = f"{' attends to '.join(ends)} more than usual in {_heads(links, first)}"
    for second in others:
        best = f"{report.name(first.layer, first.head)} {share(first.weight)}"
        other = f"{report.name(second.layer, second.head)} {share(second.weight)}"
        added = f"{' to '.join(quoted_ends(report, second))} in {second.heads} ({other})"
        both = f"{shown} ({best}), {added}; {chance}."
        if fits_two_lines(both):
            return both
    return f"{shown} ({_best(report, first)}); {_reached(first.chance)}."


def said_links(found: HeadsReport) -> list[WordLink]:
    """Return the links between words that the text of ``finding`` names.

    They are at most two that beat chance, or one by which an induction head follows a repetition,
    or the one that comes nearest. The list is empty if ``finding`` is about something else: chosen
    heads, several runs, random parameters.
    """
    report = found.first
    about_text = len(found.reports) == 1 and not report.selected and report.sorted_by is None
    if not about_text or report.record.model.weights == "random" or not found.agreed_links:
        return []
    beyond = found.agreed_links.beyond_chance
    if not beyond:
        nearest = found.agreed_links.nearest(report.record, _induction(report))
        return [] if nearest is None else [nearest]
    first = beyond[0]
    apart = [each for each in beyond if {each.query, each.key} != {first.query, first.key}]
    return [first, *apart[:1]]


def _induction(report: HeadsRecord) -> set[tuple[int, int]]:
    """Return the (layer, head) of heads that other texts show to be induction heads."""
    return {
        (entry.layer, entry.head)
        for entry in report.heads
        if entry.label.name == "induction" and entry.label.is_known
    }


def _of_repeat(report: HeadsRecord, links: WordLinks, link: WordLink) -> str:
    """Return the sentence on a link by which an induction head follows a repetition."""
    query, key = quoted_ends(report, link)
    text, before = report.record.queries, link.key.start - 1
    copy = words_of_tokens(text)[before]
    head = f"the induction head {report.name(link.layer, link.head)}"
    weights = f"({share(link.weight)}, usual {share(link.habit)})"
    more = f" and {link.heads - 1} more of {links.heads} heads" if link.heads > 1 else ""
    followed = f"which followed {_quoted(text, copy)}"
    return f"{query} attends to {key}, {followed}, in {head} {weights}{more}."


def _nearest(report: HeadsRecord, links: WordLinks) -> str:
    """Return the sentence that no link between words beats chance, with the nearest link."""
    link = links.links[0]
    pair = " → ".join(quoted_ends(report, link))
    best = _best(report, link)
    if link.weight - link.habit < NO_MORE:
        return _AS_USUAL
    if math.isnan(link.chance):
        heads = f"{links.heads} heads are" if links.heads > 1 else "One head is"
        return f"{heads} too few to tell a link from chance. Furthest above usual: {pair} ({best})."
    if not link.heads:
        return f"No link between words stands out. Nearest: {pair} ({best})."
    if link.heads == 1:
        return (
            f"No link between words beats chance. Nearest: {pair}, above usual in 1 head ({best})."
        )
    return (
        f"No link between words beats chance. Nearest: {pair}, above usual in "
        f"{_heads(links, link)} ({best}; {_reached(link.chance)})."
    )


def quoted_ends(report: HeadsRecord, link: WordLink) -> list[str]:
    """Return the two words of a link in quotes, the query's first."""
    record = report.record
    ends = (record.queries, link.query), (record.keys, link.key)
    return [_quoted(tokens, word) for tokens, word in ends]


def _quoted(tokens: Tokens, word: range) -> str:
    """Return a word in quotes; if the text has it twice, with the number of its first token."""
    text = word_text(tokens, word)
    again = any(word_text(tokens, other) == text for other in word_ranges(tokens) if other != word)
    label = word_label([text])
    label = label if width(label) <= LONGEST else fit(label, LONGEST)
    return numbered(f"“{label}”", word.start) if again else f"“{label}”"


def _heads(links: WordLinks, link: WordLink) -> str:
    return f"{link.heads} of {links.heads} heads"


def _best(report: HeadsRecord, link: WordLink) -> str:
    return f"{report.name(link.layer, link.head)} {share(link.weight)}, usual {share(link.habit)}"


def _reached(chance: float) -> str:
    """Return how often chance, heads randomly reversed, reaches a link: the end of a sentence."""
    draws = round(chance * (DRAWS + 1)) - 1
    return f"chance does that in {draws} of {DRAWS:,} draws"


def _link(report: HeadsRecord, link: Link, name: bool = True) -> str:
    queries, keys = link_names(report.record, LONGEST)
    at = _at(report, link) if name else share(link.weight)
    return f"{queries[link.query]} → {keys[link.key]} {at}"


def _at(report: HeadsRecord, link: Link) -> str:
    return f"{report.name(link.layer, link.head)} {share(link.weight)}"


def _of_links(report: HeadsRecord, links: Sequence[Link]) -> str:
    said = ", ".join(_link(report, each) for each in links) or "none"
    return f"Strongest links: {said}."


def _of_word(report: HeadsRecord, view: HeadsView) -> str:
    record = report.record
    query, key = view.words[0]
    away, towards = word_links(report, view.words[0], view.sink)
    parts = []
    if away and query is not None:
        other = _quoted(record.keys, words_of_tokens(record.keys)[away[0].key])
        name = _quoted(record.queries, query.span)
        parts.append(f"{name} attends most to {other} ({_at(report, away[0])})")
    if towards and key is not None:
        other = _quoted(record.queries, words_of_tokens(record.queries)[towards[0].query])
        name = "and" if parts else _quoted(record.keys, key.span)
        parts.append(f"{name} gets most attention from {other} ({_at(report, towards[0])})")
    return f"{' '.join(parts)}." if parts else "No head links the word to another one."


def _of_pair(report: HeadsRecord, pair: PairLinks) -> str:
    best, tried = pair.links[0], len(pair.links)
    beyond = sum(each.beats_chance for each in pair.links)
    tried_words = "heads" if len(pair.directions) == 1 else "head × direction pairs"
    return (
        f"{pair.names[best.direction]}: {report.name(best.layer, best.head)} {share(best.weight)}, "
        f"reached by {pair.reached(best)} texts with the other words shuffled (mean "
        f"{share(best.chance)}). {beyond} of {tried} {tried_words} exceed{'s' * (beyond == 1)} "
        f"them all ({tried / (pair.draws + 1):.1f} by chance)."
    )


def _of_heads(found: HeadsReport, view: HeadsView) -> str:
    report = found.first
    first = report.heads[0]
    what, place = described(first), (first.layer, first.head)
    name, score = report.name(*place), scored(what.said, what.score)
    said = f"{name} is labelled {score}" if what.finding else f"{name} has no label (here {score})"
    said += label_source([first.label], " ({source}, {date})")
    if place in report.sinks and what.said != "sink":
        said += f", sink weight {share(report.sinks[place])}"
    said += _furthest(found, view)
    others = len(report.heads) - 1
    return said + (f" {counted(others, 'more head')} below." if others else "")


def _furthest(found: HeadsReport, view: HeadsView) -> str:
    """Return the end of a sentence: the first head's link furthest above its usual weight."""
    report = found.first
    first = report.heads[0]
    weights = report.weights(first.layer, first.head)
    alone = replace(
        report.record, layers=(LayerWeights(first.layer, (first.head,), weights[None]),)
    )
    links = agreed_links(alone)
    if links and links.links and not view.sink:
        link = links.links[0]
        pair = " → ".join(quoted_ends(report, link))
        if link.weight - link.habit < NO_MORE:
            return "; no link is above its usual weight."
        compared = f"{share(link.weight)} (usual {share(link.habit)})"
        return f"; its link furthest above usual is {pair}, {compared}."
    strongest = head_links(report, first.layer, first.head, len(first.scores), view.sink)
    crosses = report.record.kind == "cross"
    strongest = [each for each in strongest if crosses or each.query != each.key]
    return (
        f"; its strongest link is {_link(report, strongest[0], name=False)}." if strongest else "."
    )


def _of_order(report: HeadsRecord, measure: str) -> str:
    known = [
        (report.name(entry.layer, entry.head), value)
        for entry in report.heads
        if (value := entry.scores[measure]) is not None
    ]
    most, least = ("highest", "lowest") if known[0][1] >= known[-1][1] else ("lowest", "highest")
    first, *others = [f"{name} ({value:.2f})" for name, value in known]
    name, score = first.split(" ")
    said = f"By {said_name(measure)}, {name} scores {most} {score}"
    if len(others) >= _NAMED:
        said += f", then {listed(others[: _NAMED - 1])}"
    name, score = [first, *others][-1].split(" ")
    return said + (f"; {name} scores {least} {score}." if others else ".")


def _of_runs(found: HeadsReport) -> str:
    """Return the finding on several runs: the head that differs most from the first run."""
    if found.of_texts:
        return _of_texts(found)
    moved = [
        (value, place) for each in found.moved if each is not None for place, value in each.items()
    ]
    if not moved:
        return f"{len(found.reports)} kinds of attention over different texts, head by head."
    mean = sum(value for value, _ in moved) / len(moved)
    most, place = max(moved)
    first = " and ".join(run_names(found)[1][0])
    return (
        f"Compared with {first}, {share(mean)} of a head's attention moves to other keys on "
        f"average, most in {found.first.name(*place)} ({share(most)})."
    )


def _of_texts(found: HeadsReport) -> str:
    """Return the finding on several texts: how many heads are at the sink in each of them."""
    places = [(entry.layer, entry.head) for entry in found.first.heads]
    times = [sum(report.rests(*place) for report in found.reports) for place in places]
    always = sum(each == len(found.reports) for each in times)
    some = sum(0 < each < len(found.reports) for each in times)
    if not always and not some:
        return f"{len(found.reports):,} texts, head by head; no head is mostly at a sink."
    return (
        f"{always} of {len(places)} heads attend mostly to the attention sink in each of "
        f"{len(found.reports):,} texts, {some} more in some."
    )
