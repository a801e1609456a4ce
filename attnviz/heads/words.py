"""What is said of heads in words: which attention it is, what each head does, how to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnviz.draw.document import Words
from attnviz.draw.provenance import label_words, share, sinks
from attnviz.heads.report import HeadsComparison
from attnviz.measures.registry import label_named
from attnviz.records import (
    NO_LABEL,
    AttentionRecord,
    HeadLabel,
    HeadScores,
    HeadsReport,
    Score,
)

# Which attention -----------------------------------------------------------------------------

_FORMULAS: dict[Score, str] = {
    "scaled-dot": "q·k/√{width}",
    "dot": "q·k",
    "additive": "v·tanh(q + k)",
}

_SOURCES: dict[Score, str] = {
    "scaled-dot": "the product of query and key over the root of the head's width "
    "(Vaswani et al. 2017), which keeps scores from growing with it",
    "dot": "the plain product of query and key (Luong et al. 2015): the wider the head, the larger "
    "the scores and the more a row rests on one word",
    "additive": "query and key are added, squashed, and weighted by a vector v of the head's own "
    "(Bahdanau et al. 2014)",
}


def _words(record: AttentionRecord) -> tuple[str, str, str]:
    """Kind, mask and score; nothing of a mask or score where a model has no other."""
    kind, score = f"{record.kind} attention", record.model.score
    if score is None:
        return "" if record.kind == "self" else kind, "", ""
    mask = "causal mask" if record.causal else "no mask"
    return kind, mask, _score(record, score)


def _score(record: AttentionRecord, score: Score) -> str:
    return f"{score} score {_FORMULAS[score].format(width=record.model.head_dim)}"


def variant_names(
    records: Sequence[AttentionRecord],
) -> tuple[list[str], list[list[str]]]:
    """What all of the records share, and for each the words in which it differs.

    Of one alone all that there is to say, where kind, mask and score can be chosen; else only a
    kind that is not usual.
    """
    columns = list(zip(*map(_words, records), strict=True))
    differs = [len({word for word in words if word}) > 1 for words in columns]
    shared = [
        next(word for word in words if word)
        for words, varies in zip(columns, differs, strict=True)
        if not varies and any(words)
    ]
    names = [
        [word for word, varies in zip(words, differs, strict=True) if varies and word]
        for words in zip(*columns, strict=True)
    ]
    return shared, names


def kind_reading(records: Iterable[AttentionRecord]) -> list[str]:
    """A sentence on each kind, mask and score among the records, for newcomers."""
    sentences: dict[str, None] = {}
    for record in records:
        score = record.model.score
        if record.kind == "cross":
            sentences[
                "cross attention: the target asks, the text answers. Queries (rows) are made from "
                "the target, keys (columns) and values from the text; a map has as many rows and "
                "columns as the two have tokens."
            ] = None
        if score is None:
            continue
        if record.kind == "self":
            sentences[
                "self attention: one text asks itself; queries, keys and values are all made from "
                "its words."
            ] = None
        if record.causal:
            sentences[
                "causal mask: a later word's score is set to minus infinity before the softmax. "
                "Its weight is zero, and what it would have had goes to the words that are left."
            ] = None
        sentences[f"{_score(record, score)}: {_SOURCES[score]}."] = None
    return list(sentences)


# What a head does ----------------------------------------------------------------------------


def name_words(report: HeadsReport, scores: HeadScores) -> Words:
    """A head's name and the key/value head that it shares."""
    group = report.record.model.group(scores.head)
    shared = [] if group is None else [(f"key/value head {group + report.index_base}", False)]
    return [(report.name(scores.layer, scores.head), True), *shared]


def score_words(report: HeadsReport, scores: HeadScores) -> list[str]:
    """A head's label, what it compares with, its entropy, and the measure it is sorted by."""
    words, measure = label_words(scores), report.sorted_by
    if measure and measure not in ("entropy", scores.label.name):
        value = scores.scores[measure]
        shown = "not measured" if value is None else f"{value:.2f}"
        words.append(f"{measure.replace('_', ' ')} {shown}")
    return words


# How to read it ------------------------------------------------------------------------------


def explanation(found: HeadsComparison) -> list[str]:
    """Paragraphs for someone new to attention, each of which begins with words and a colon."""
    reports = found.reports
    causal = [each.record.causal for each in reports]
    hidden = "a token sees no later token, so that half is blank"
    paragraphs = [
        "How to read this: each map is one attention head. A row is a token as it reads (the "
        "query), a column is a token it may look at (a key), and the cell is the share of its "
        "attention that goes there. A row sums to one"
        + (f"; {hidden}" if all(causal) else f"; under a mask {hidden}" if any(causal) else "")
        + ".",
        *kind_reading([each.record for each in reports]),
        "The shade grows with the square root of the weight, so that small weights can be seen.",
        "The word or letter beside a map is its label: the pattern that stands out most against "
        "attention spread evenly, with its score from 0 to 1. One sentence is a hint, not a proof.",
    ]
    entries = [(each, entry) for each in reports for entry in each.heads]
    clearest: dict[str, tuple[HeadLabel, str]] = {}
    for report, entry in entries:
        known = clearest.get(entry.label.name)
        if entry.label is not NO_LABEL and (known is None or entry.label.score > known[0].score):
            clearest[entry.label.name] = entry.label, report.name(entry.layer, entry.head)
    paragraphs += [
        f"{trait.name} ({trait.letter}): {label_named(name).meaning}; clearest of those named so: "
        f"{where}, {share(trait.score)}."
        for name, (trait, where) in clearest.items()
    ]
    if any(sinks(entry) for _, entry in entries):
        paragraphs.append(
            "An induction head may look at the first token more than at anything else: there it "
            "rests where nothing comes again. It has its name from what it does where something "
            "does."
        )
    if any(moved is not None for moved in found.moved):
        paragraphs.append(
            "moved: the share of its attention that a query has on other keys than in the first "
            "map, mean over queries (total variation distance)."
        )
    return paragraphs
