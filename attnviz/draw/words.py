"""What a figure says in words: provenance, the name and the scores of a head."""

from __future__ import annotations

from attnviz.draw.labels import cut, token_labels
from attnviz.draw.provenance import trait_words
from attnviz.records import HeadScores, HeadsReport, Tokens

__all__ = [
    "axis_labels",
    "head_name",
    "head_words",
]

_LONGEST_LABEL = 16


def axis_labels(tokens: Tokens) -> list[str]:
    """The labels of a text's tokens, none longer than an axis can hold."""
    return [cut(label, _LONGEST_LABEL) for label in token_labels(tokens)]


def head_name(report: HeadsReport, scores: HeadScores) -> str:
    """A head's name, with its key/value head where heads share one."""
    name = report.name(scores.layer, scores.head)
    group = report.record.model.group(scores.head)
    return name if group is None else f"{name} kv{group + report.index_base}"


def head_words(scores: HeadScores) -> str:
    """A head's trait, how it compares and how wide the head looks."""
    return " · ".join(trait_words(scores))
