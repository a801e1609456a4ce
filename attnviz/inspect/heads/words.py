"""Words about heads: which attention it is, what each head does, how to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnviz.draw.document import Explanation, Meaning, Words
from attnviz.draw.labels import cut, visible
from attnviz.draw.provenance import entropy_words, label_words, share, size_words
from attnviz.inspect.heads.report import HeadsReport
from attnviz.measures.registry import label_named, said_name
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
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


def _words(record: AttentionRecord) -> tuple[str, str, str]:
    """Return names for the kind, mask and score of the attention.

    Each is empty if the model has no choice there.
    """
    kind, score = f"{record.kind} attention", record.model.score
    if score is None:
        return "" if record.kind == "self" else kind, "", ""
    mask = "causal mask" if record.causal else "no mask"
    formula = _FORMULAS[score].format(width=record.model.head_dim)
    return kind, mask, f"{score} score {formula}"


def variant_names(records: Sequence[AttentionRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the names that all records share, and for each record those in which it differs.

    A single record shares all its names: kind, mask and score if they can be chosen, else only an
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


def run_names(found: HeadsReport) -> tuple[list[str], list[list[str]]]:
    """Return the names that all runs share, and those of each run, as ``variant_names`` does.

    Runs over several texts are named by the beginnings of the texts.
    """
    if not found.of_texts:
        return variant_names([report.record for report in found.reports])
    shared, _ = variant_names([found.first.record])
    return shared, [[f"“{cut(visible(each.text), _LONGEST)}”"] for each in found.reports]


_LONGEST = 40
_NAMED = 2


def removed_words(report: HeadsRecord) -> str:
    """Return the names of the ablated heads, of many only the first two."""
    names = [report.name(*head) for head in report.ablated]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


# What a head does ----------------------------------------------------------------------------


def name_words(report: HeadsRecord, scores: HeadScores) -> Words:
    """Return a head's name, and its key/value head if heads share one.

    scores: of that head.
    """
    group = report.record.model.group(scores.head)
    shared = [] if group is None else [(f"key/value head {group + report.index_base}", False)]
    return [(report.name(scores.layer, scores.head), True), *shared]


def score_words(report: HeadsRecord, scores: HeadScores) -> list[str]:
    """Return strings: a head's label, its sink weight, its entropy, and the sorting measure.

    scores: of that head.
    """
    words, measure = label_words(scores.label), report.sorted_by
    sink = report.sinks.get((scores.layer, scores.head))
    if sink is not None and scores.label.name not in SINKS and scores.label is not NO_LABEL:
        words.append(f"sink weight {share(sink)}")
    words += entropy_words(scores)
    if measure and measure not in ("entropy", scores.label.name):
        value = scores.scores[measure]
        shown = "not measured" if value is None else f"{value:.2f}"
        words.append(f"{said_name(measure)} {shown}")
    return words


# How to read it ------------------------------------------------------------------------------


def explanation(found: HeadsReport) -> Explanation:
    """Return the glossary: on which data the numbers were measured, and what labels mean."""
    record = found.first.record
    seed = "" if record.model.seed is None else f", weights drawn from seed {record.model.seed}"
    measured = f"measured in one pass over this text alone, {size_words(record)}{seed}."
    if record.model.is_array:
        measured = f"all numbers are of the given weights, {size_words(record)}."
    labels = [entry.label for report in found.reports for entry in report.heads]
    counted = Counter(label.name for label in labels if label is not NO_LABEL)
    named = [label_named(name) for name, _ in counted.most_common() if name not in SINKS]
    terms = [Meaning((label.short, label.said), f"{label.meaning}.") for label in named]
    return Explanation("heads", measured, terms)
