"""Words about heads: which attention it is, what each head does, how to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnviz.draw.document import Words
from attnviz.draw.provenance import entropy_words, label_words, share
from attnviz.draw.regions import READING
from attnviz.inspect.heads.report import HeadsReport
from attnviz.measures.registry import label_named
from attnviz.measures.word_links import CHANCE
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
    HeadLabel,
    HeadScores,
    HeadsRecord,
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
    "the scores and the more peaked the rows",
    "additive": "query and key are added, squashed, and weighted by a vector v of the head's own "
    "(Bahdanau et al. 2014)",
}


def _words(record: AttentionRecord) -> tuple[str, str, str]:
    """Return words for the kind, mask and score; each is empty if the model has no choice."""
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
    """Return the words that all records share, and for each the words in which it differs.

    A single record shares all its words: kind, mask and score if they can be chosen, else only an
    unusual kind.
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
    """Return a sentence for newcomers on each kind, mask and score among the records."""
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


def name_words(report: HeadsRecord, scores: HeadScores) -> Words:
    """Return a head's name, and its key/value head if heads share one."""
    group = report.record.model.group(scores.head)
    shared = [] if group is None else [(f"key/value head {group + report.index_base}", False)]
    return [(report.name(scores.layer, scores.head), True), *shared]


def score_words(report: HeadsRecord, scores: HeadScores) -> list[str]:
    """Return a head's label, its sink weight, its entropy, and the measure of the sort order."""
    words, measure = label_words(scores.label), report.sorted_by
    sink = report.sinks.get((scores.layer, scores.head))
    if sink is not None and scores.label.name not in SINKS and scores.label is not NO_LABEL:
        words.append(f"sink weight {share(sink)}")
    words += entropy_words(scores)
    if measure and measure not in ("entropy", scores.label.name):
        value = scores.scores[measure]
        shown = "not measured" if value is None else f"{value:.2f}"
        words.append(f"{measure.replace('_', ' ')} {shown}")
    return words


# How to read it ------------------------------------------------------------------------------


def explanation(found: HeadsReport) -> list[str]:
    """Return paragraphs for someone new to attention; each begins with a term and a colon."""
    reports = found.reports
    causal = [each.record.causal for each in reports]
    hidden = "a token sees no later token, so that half is blank"
    paragraphs = [
        "How to read this: each map is one attention head. A row is a token (the query), a column "
        "a token that it may attend to (a key), and the cell is the share of its attention that "
        "goes there. A row sums to one"
        + (f"; {hidden}" if all(causal) else f"; under a mask {hidden}" if any(causal) else "")
        + ".",
        *kind_reading([each.record for each in reports]),
        "The shade grows with the square root of the weight, so that small weights can be seen.",
        "label: what a head does, named only where there is evidence, with its score from 0 to 1 "
        "on this text; “uniform” is the score of uniform attention. Words without a label only "
        "describe this text: sink, diffuse (near-uniform), peaked.",
        *([READING] if reports[0].regions else _link_reading(found)),
        *_changed_reading(reports[0]),
        *_sink_reading(reports),
        *_label_reading(reports),
    ]
    if any(moved is not None for moved in found.moved):
        paragraphs.append(
            "moved: the share of its attention that a query has on other keys than in the first "
            "map, mean over queries (total variation distance)."
        )
    return paragraphs


def _link_reading(found: HeadsReport) -> list[str]:
    """Return what the finding means by usual, and what its chance was measured on."""
    if len(found.reports) > 1 or found.first.selected:
        return []
    return [
        "more than usual: a head's usual weight from one word to another is that of uniform "
        "attention, or what it gives on this text at this distance, or to this word from others, "
        "whichever is most. A head counts from .10 above it. Marks, sinks and a word with itself "
        "are left out.",
        "by chance: heads would agree on a link this far above usual in so many texts if each "
        "spread its own weights at random over the words that it sees, all pairs of words counted. "
        f"A link beats chance below 1 of {round(1 / CHANCE)} texts. Measured on random models: "
        "none of 1,560 texts with usual random weights has one, 15 of 1,920 with very large ones.",
    ]


def _changed_reading(report: HeadsRecord) -> list[str]:
    sentences = []
    if report.ablated:
        sentences.append(
            "ablated heads: what they put out counts as zero, so that the layers behind them read "
            "something else; the weights of an ablated head itself are still shown."
        )
    if report.norm_weighted:
        sentences.append(
            "norm-weighted: each weight times the norm of what it moves, ‖v W_O‖, rows rescaled to "
            "sum to one (Kobayashi et al. 2020): a large weight on a token whose value is small, "
            "as of many sinks, moves little. Scores and labels are those of the weights alone."
        )
    return sentences


def _sink_reading(reports: Sequence[HeadsRecord]) -> list[str]:
    resting = [each.resting for each in reports if each.sinks]
    if not resting:
        return []
    return [
        "attention sink: the first token of a causal model and special tokens such as [CLS] and "
        "[SEP], where heads put the weight that they have no use for. The sink weight is what a "
        "head gives them, mean over the other queries; heads rest on the sink above "
        f"{share(min(resting))} (Gu et al. 2024: .30, and twice that of uniform attention). Links "
        "leave the sink out, their weights are the model's own; --no-sink leaves it out of the "
        "maps and rescales each row, --sink lists its links as well."
    ]


def _label_reading(reports: Sequence[HeadsRecord]) -> list[str]:
    """Return the meaning of each label among the heads, and the head with its highest score."""
    clearest: dict[str, tuple[HeadLabel, str]] = {}
    for report in reports:
        for entry in report.heads:
            label, name = entry.label, report.name(entry.layer, entry.head)
            known = clearest.get(label.name)
            if label is not NO_LABEL and (known is None or label.score > known[0].score):
                clearest[label.name] = label, name
    return [
        f"{label.said} ({label.short}): {label_named(name).meaning}; highest score "
        f"{share(label.score)} ({where})."
        for name, (label, where) in clearest.items()
    ]
