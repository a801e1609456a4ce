"""One word through all heads: what it looks at, and what looks at it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import DIM, Block, stack, text_line
from attnviz.draw.heatmap import heatmap
from attnviz.draw.labels import at_blanks, token_labels, width, word_label
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport, Tokens

__all__ = ["Word", "looked_at_by", "looks_at", "token_view"]

_COLUMN = 5  # a byte such as <ED> and the blank beside it


@dataclass(frozen=True)
class Word:
    """A word of the text.

    span: its tokens.
    elsewhere: the first tokens of its other occurrences.
    """

    span: range
    elsewhere: tuple[int, ...] = ()


def looks_at(report: HeadsReport, span: range) -> NDArray[np.floating]:
    """Weights from a word: the mean over its tokens as queries; (head, key) (Clark et al. 2019)."""
    return np.stack([weights[list(span)].mean(0) for _, _, weights in report.record])


def looked_at_by(report: HeadsReport, span: range) -> NDArray[np.floating]:
    """Weights to a word: the sum over its tokens as keys; (head, query) (Clark et al. 2019)."""
    return np.stack([weights[:, list(span)].sum(1) for _, _, weights in report.record])


def token_view(
    report: HeadsReport,
    query: Word | None,
    key: Word | None,
    theme: Theme,
    room: int,
    values: bool,
) -> Block:
    """Two maps with a row a head: the word as a query, and the word as a key.

    In cross attention a word may be on one axis only; the other map is left out.
    """
    record = report.record
    queries = token_labels(record.queries, theme.encoding)
    keys = token_labels(record.keys, theme.encoding)
    maps = []
    if query is not None:
        weights = looks_at(report, query.span)
        if record.causal:
            weights[:, query.span.stop :] = np.nan
        title = f"what {_named(record.queries, query, theme)} looks at"
        maps.append(_rows(report, weights, keys, title, theme, room, values))
    if key is not None:
        weights = looked_at_by(report, key.span)
        if record.causal:
            weights[:, : key.span.start] = np.nan
        title = f"what looks at {_named(record.keys, key, theme)}"
        maps.append(_rows(report, weights, queries, title, theme, room, values))
    return stack(maps)


def _named(tokens: Tokens, word: Word, theme: Theme) -> str:
    """The word in quotes, its place, and the places that were passed over."""
    opening, closing = ('"', '"') if theme.ascii else ("“", "”")
    text = word_label(tokens.texts[word.span.start : word.span.stop], theme.encoding)
    first, last = word.span.start, word.span.stop - 1
    place = f"token {first}" if first == last else f"tokens {first}-{last}"
    if word.elsewhere:
        place += f"; also at {', '.join(map(str, word.elsewhere))}"
    return f"{opening}{text}{closing} ({place})"


def _rows(
    report: HeadsReport,
    weights: NDArray[np.floating],
    labels: tuple[str, ...],
    title: str,
    theme: Theme,
    room: int,
    values: bool,
) -> Block:
    """A row a head, a column a token; where they do not all fit, those with the most weight."""
    names = [report.name(layer, head) for layer, head, _ in report.record]
    lines = wrapped([(title, True)], room, theme)
    space = max((room - max(map(width, names)) - 1) // _COLUMN, 1)
    if len(labels) > space:
        seen = np.flatnonzero(~np.isnan(weights).all(0))
        heaviest = np.argsort(-np.nansum(weights[:, seen], 0), kind="stable")[:space]
        chosen = np.sort(seen[heaviest])
        note = f"the {len(chosen)} of {len(labels)} tokens with the most weight, in text order"
        weights, labels = weights[:, chosen], tuple(labels[column] for column in chosen)
        lines += [text_line((line, DIM)) for line in at_blanks(note, room)]
    return heatmap(weights, Axes(names, labels), theme, lines, room, values)
