"""Writes a document as Markdown: words, tables, and the numbers of pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnviz.draw import document as doc
from attnviz.draw.labels import visible
from attnviz.draw.numbers import NumberScale

_ACTIVE = re.compile(r"([\\`*_\[\]<>|#~$])")
_INDENT = "&nbsp;&nbsp;"
_MOST_TOKENS = 16
_MOST_POINTS = 12
_PATCHES = 5


def document_markdown(document: doc.Document) -> Iterator[str]:
    """Yield a document as lines of Markdown."""
    yield f"## {_safe(document.title or document.name)}\n"
    if document.finding:
        yield f"**{_safe(document.finding)}**\n"
    for group in document.groups:
        yield from _part(group)
    if document.explain:
        from attnviz.draw.terminal import page_reading

        for part in page_reading(document):
            yield from _part(part)


def part_markdown(part: doc.Part) -> str:
    """Return one part as Markdown, to be put into another text."""
    return "\n".join(_part(part)).rstrip("\n")


def _safe(text: str) -> str:
    return _ACTIVE.sub(r"\\\1", visible(" ".join(text.split())))


def _part(part: doc.Part | doc.Group) -> Iterator[str]:
    match part:
        case doc.Group():
            for member in part.parts:
                yield from _part(member)
        case doc.Facts(words, name):
            lead = f"{_safe(name)}: " if name else ""
            yield f"{lead}{_line(words)}\n"
        case doc.Quote(name, content):
            yield f"{_safe(name)}: {_safe(content)}\n"
        case doc.Note(text) | doc.Say(text):
            yield f"{_safe(text)}\n"
        case _:
            if part.title:
                yield f"### {_safe(part.title[0][0])}\n"
            if len(part.title) > 1:
                yield f"{_line(part.title[1:])}\n"
            yield from _shown(part)


def _shown(
    part: doc.Table | doc.HeadGrid | doc.Maps | doc.Pictures | doc.Arcs | doc.Plot,
) -> Iterator[str]:
    match part:
        case doc.Table():
            yield from _table(part)
        case doc.HeadGrid():
            yield from _grid(part)
        case doc.Maps():
            for shown in part.maps:
                yield from _map(shown, part)
        case doc.Pictures():
            for picture in part.pictures:
                yield from _picture(picture, part.small)
        case doc.Arcs():
            from attnviz.draw.arcs import arc_words

            yield f"{_safe(' · '.join(arc_words(part)))}\n"
        case doc.Plot():
            yield from _plot(part)


def _line(words: doc.Words) -> str:
    bold = {True: "**", "strong": "**"}
    return " · ".join(f"{bold.get(t, '')}{_safe(text)}{bold.get(t, '')}" for text, t in words)


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(titles: Sequence[str], right: Sequence[bool]) -> Iterator[str]:
    yield _cells([_safe(title) for title in titles])
    yield "|" + "|".join("---:" if numbers else "---" for numbers in right) + "|"


def _table(table: doc.Table) -> Iterator[str]:
    right = [column.right for column in table.columns]
    yield from _head([column.title for column in table.columns], right)
    for row in table.rows:
        yield _cells(_row(row, len(right)))
    yield ""
    if table.more:
        yield f"{_safe(table.more)}\n"


def _row(row: doc.Row, columns: int) -> list[str]:
    cells = []
    for index, cell in enumerate(row.cells):
        strong = cell and (row.tones or {}).get(index, row.tone) == "strong"
        cells.append(f"**{_safe(cell)}**" if strong else _safe(cell))
    cells[0] = _INDENT * row.depth + cells[0] + "".join(f"<br>{_safe(text)}" for text in row.below)
    return cells + [""] * (columns - len(cells))


def _grid(grid: doc.HeadGrid) -> Iterator[str]:
    yield from _head(["", *grid.columns], [False] + [True] * len(grid.columns))
    for row, name in enumerate(grid.rows):
        cells = [grid.cells.get((row, column)) for column in range(len(grid.columns))]
        texts = ["" if cell is None else cell.content for cell in cells]
        yield _cells([_safe(text) for text in (name, *texts)])
    yield ""
    if grid.key:
        yield " · ".join(_safe(f"{key.letter} {key.words}".strip()) for key in grid.key) + "\n"


def _map(shown: doc.Map, part: doc.Maps) -> Iterator[str]:
    """Yield the name of a map, its scores and, for a short text, its weights."""
    scale = NumberScale(shown.limit) if shown.limit else None
    words = [word for word in (*shown.words, *shown.below) if word[0] != shown.name]
    words += [(scale.times.strip(), False)] if scale is not None and scale.times else []
    yield f"**{_safe(shown.name)}** {_line(words)}".rstrip() + "\n"
    if part.texts:
        from attnviz.draw.coloured_text import extremes  # only maps need NumPy

        yield from (f"{_safe(' · '.join(names))}\n" for names in extremes(shown))
        return
    rows, columns = shown.weights.shape
    if part.small is not None or max(rows, columns) > _MOST_TOKENS:
        return
    yield from _head(["", *shown.keys.texts], [False] + [True] * columns)
    lines = zip(shown.queries.texts, shown.weights.tolist(), strict=True)
    for query, (text, weights) in enumerate(lines):
        seen = query + 1 if shown.causal else columns
        write = "{:.2f}".format if scale is None else scale.text
        written = ["" if math.isnan(weight) else write(weight) for weight in weights[:seen]]
        yield _cells([_safe(text), *written, *[""] * (columns - seen)])
    yield ""


def _picture(shown: doc.Picture, small: bool) -> Iterator[str]:
    """Yield the words of a picture, the sentence that replaces it, and the strongest patches."""
    if words := _line([*shown.words, *shown.below]):
        yield f"{words}\n"
    if shown.alternative:
        yield f"{_safe(shown.alternative)}\n"
    if shown.weights is None or small:
        return
    columns, flat = shown.weights.shape[1], shown.weights.ravel().tolist()
    known = [patch for patch, weight in enumerate(flat) if not math.isnan(weight)]
    strongest = sorted(known, key=lambda patch: -flat[patch])[:_PATCHES]
    yield from _head(["row", "column", "weight"], [True] * 3)
    for patch in strongest:
        row, column = divmod(patch, columns)
        yield _cells([str(row), str(column), f"{flat[patch]:.4g}"])
    yield ""


def _plot(plot: doc.Plot) -> Iterator[str]:
    """Yield Markdown tables with some points of each curve, or with the bars of histograms."""
    for curve in plot.curves:
        yield f"{_safe(curve.name)}\n"
        points = curve.points
        if len(points) > _MOST_POINTS:
            last, parts = len(points) - 1, _MOST_POINTS - 1
            points = [points[round(last * number / parts)] for number in range(_MOST_POINTS)]
        positions = [f"{position:.4g}" for position, _ in points]
        yield from _head([plot.across, *positions], [False] + [True] * len(positions))
        yield _cells([_safe(plot.title[0][0]), *(f"{value:.4g}" for _, value in points)])
        yield ""
    for level in plot.levels:
        yield f"{_safe(level.name)}\n"
    for histogram in plot.histograms:
        yield f"{_safe(histogram.name)}: {_safe(histogram.words)}\n"
        yield from _head(["from", "to", "share"], [True] * 3)
        bins = zip(histogram.shares, pairwise(histogram.edges), strict=True)
        for share, edges in bins:
            yield _cells([*(f"{edge:.2g}" for edge in edges), f"{share:.1%}"])
        yield ""
