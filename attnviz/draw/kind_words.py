"""Which attention a map shows, in words: its kind, its mask, its score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnviz.records import AttentionRecord, Score

__all__ = ["kind_reading", "kind_words", "variant_names"]

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


def kind_words(record: AttentionRecord, ascii_only: bool = False) -> list[str]:
    """What there is to say: all of it where it can be chosen, else only what is not usual."""
    return [word for word in _words(record, ascii_only) if word]


def _words(record: AttentionRecord, ascii_only: bool) -> tuple[str, str, str]:
    """Kind, mask and score; nothing where a model has no other."""
    kind, score = f"{record.kind} attention", record.model.score
    if score is None:
        return "" if record.kind == "self" else kind, "", ""
    mask = "causal mask" if record.causal else "no mask"
    formula = f"{score} score {_formula(record, score, ascii_only)}"
    return kind, mask, formula


def _formula(record: AttentionRecord, score: Score, ascii_only: bool) -> str:
    width = record.model.head_dim
    formula = _FORMULAS[score].format(width=width)
    if ascii_only:
        formula = formula.replace("·", ".").replace(f"√{width}", f"sqrt({width})")
    return formula


def variant_names(
    records: Sequence[AttentionRecord], ascii_only: bool = False
) -> tuple[list[str], list[list[str]]]:
    """What all of the records share, and for each the words in which it differs."""
    columns = list(zip(*(_words(record, ascii_only) for record in records), strict=True))
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


def kind_reading(records: Iterable[AttentionRecord], ascii_only: bool = False) -> list[str]:
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
        formula = _formula(record, score, ascii_only)
        sentences[f"{score} score {formula}: {_SOURCES[score]}."] = None
    return list(sentences)
