"""What a person asked to see of the heads: their order, the views, and what to try next."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnviz.analysis.words import joined, word_spans
from attnviz.errors import UsageError
from attnviz.records import AttentionRecord, HeadsReport, Tokens
from attnviz.render.screen import View
from attnviz.render.token_view import Word

__all__ = ["Wish", "comparison_hints", "make_view"]


@dataclass(frozen=True)
class Wish:
    """What is to be seen of the heads; the options of the same names."""

    values: bool = False
    top: int | None = None
    token: str | None = None
    sort: str | None = None
    reverse: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        if self.reverse and self.sort is None:
            raise UsageError("--reverse turns the order of --sort around: add --sort MEASURE")


def make_view(
    report: HeadsReport, text: str, target: str | None, wish: Wish, hinting: bool
) -> View:
    """The views of the report that were asked for; hints only on the plain overview.

    target: the decoder's text as given; None where the model wrote it or has none.

    Raises UsageError for a word that the text does not have.
    """
    record = report.record
    plain = not report.selected and wish.top is None and wish.token is None
    if target is None and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    return View(
        text,
        target,
        values=wish.values,
        top=wish.top,
        token=_word(record, wish.token) if wish.token is not None else None,
        explain=wish.explain,
        hints=_hints(report, wish.explain) if plain and hinting else (),
    )


def _word(record: AttentionRecord, wanted: str) -> tuple[Word | None, Word | None]:
    """Where the chosen word stands among the queries and among the keys."""
    queries = _place(record.queries, wanted)
    keys = queries if record.keys is record.queries else _place(record.keys, wanted)
    if queries is None and keys is None:
        last = max(len(record.queries), len(record.keys)) - 1
        raise UsageError(
            f"no token {wanted!r} in the text: give a word of it, or an index from 0 to {last}"
        )
    return queries, keys


def _place(tokens: Tokens, wanted: str) -> Word | None:
    """The token of an index, or the first occurrence of a word."""
    if re.fullmatch(r"-?\d{1,18}", wanted):
        place = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        return Word(range(place, place + 1)) if 0 <= place < len(tokens) else None
    spans = word_spans(tokens, wanted)
    return Word(spans[0], tuple(span.start for span in spans[1:])) if spans else None


def _hints(report: HeadsReport, explained: bool) -> tuple[str, ...]:
    """What to try next."""
    name = report.name(*report.telling[0])
    return (
        f"next: --head {name} draws one head",
        "--token WORD follows a word",
        "--top 3 lists the strongest pairs",
        *_reading(explained),
    )


def comparison_hints(report: HeadsReport, explained: bool) -> tuple[str, ...]:
    """What to try next where runs stand side by side."""
    name = report.name(*report.telling[0])
    return (f"next: --head {name} compares one head", *_reading(explained))


def _reading(explained: bool) -> tuple[str, ...]:
    return () if explained else ("--explain reads it for you",)
