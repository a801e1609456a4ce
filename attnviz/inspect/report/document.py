"""The document of a report on a model: counts, labels, effects, and the cards of some heads."""

from __future__ import annotations

from functools import partial

from attnviz.count.params.tables import brief_parameter_table
from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, named
from attnviz.draw.signed import one_line
from attnviz.inspect.head.document import card_groups, lines_of
from attnviz.inspect.head.page import cards_page
from attnviz.inspect.head.words import finding as card_finding
from attnviz.inspect.interventions.ablate.document import head_grid, ranking_tables
from attnviz.inspect.patterns.tables import label_grid, leaders_table
from attnviz.inspect.report.records import ModelReport
from attnviz.inspect.report.words import (
    caveats,
    cost_of,
    finding,
    left_out,
    measured,
    model_lines,
)

_LEAD, _GAP = 8, 3
_TABLE = 66
"""The columns of the ranking and of the table of labels."""

_LEAST_ROWS, _AROUND = 2, 2
"""The least rows of a table, and the lines around the rows of a grid or table."""

_MAP_LINES = 3
"""The lines around the rows of the small maps."""


def report_document(report: ModelReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    return doc.Document(
        name=f"report on {report.model.name}",
        title=f"Report on {report.model.name}",
        groups=[doc.Group(_about(report)), *_groups(report)],
        explain=doc.Explanation("report", measured(report)),
        hints=doc.next_steps(_hints(report)),
        heading=[*named(report.model), *((word, False) for word in _sizes(report))],
        finding=finding(report),
        first=partial(_first, report),
        page=partial(cards_page, report.cards, maps) if (maps := report.maps) is not None else None,
    )


def _about(report: ModelReport) -> list[doc.Part]:
    sizes = [(word, False) for word in _sizes(report)]
    return [
        doc.Facts([*model_words(report.model), *sizes]),
        *map(doc.Note, (*report.model.notes, *report.notes)),
    ]


def _sizes(report: ModelReport) -> list[str]:
    if report.ablation is None:
        return ["report"]
    tokens = sum(map(len, report.ablation.texts))
    texts = report.source or counted(len(report.ablation.texts), "text")
    return ["report", texts, counted(tokens, "token"), *filter(None, [left_out(report)])]


def _hints(report: ModelReport) -> list[str]:
    hints = ["--save report.html"]
    if report.cards:
        hints.append(f"attnviz head {report.cards[0].name}")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    return [*hints, "--explain"]


def _lines(report: ModelReport) -> list[doc.Part]:
    return [
        doc.Facts([(word, False) for word in words], name, _LEAD)
        for name, words in model_lines(report)
    ]


def _groups(report: ModelReport) -> list[doc.Group]:
    """Return the groups of a report: the model, its heads, those that matter, cards of some."""
    groups, cost = [doc.Group(_lines(report))], cost_of(report)
    if cost is not None:
        groups.append(doc.Group([brief_parameter_table(cost)], full=True))
    if report.scored is not None:
        labels = leaders_table(report.scored)._replace(least=0)
        groups.append(doc.Group([label_grid(report.scored)]))
        groups.append(doc.Group([labels]))
    if report.ablation is not None:
        grid = head_grid(report.ablation)
        groups.append(doc.Group([grid] if grid is not None else []))
        groups.append(doc.Group(ranking_tables(report.ablation), spaced=True))
    for card in report.cards:
        groups += [doc.Group([doc.Say(card_finding(card))]), *card_groups(card)[1:]]
    groups.append(doc.Group([doc.Say(text, 100) for text in caveats(report)]))
    return groups


# The first screen ----------------------------------------------------------------------------


def _first(report: ModelReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: facts on the model, then the grids, tables and maps that fit."""
    said = [*_lines(report), *map(doc.Note, report.notes)]
    groups = [doc.Group(said)]
    left = lines - lines_of(said, columns - _LEAD) - len(report.notes) - 1
    tables = _tables(report)
    grids = _grids(report)
    grids[1:] = [one_line(grid, columns - full_width(grids[0]) - _GAP) for grid in grids[1:]]
    across = len(grids) == 2 and sum(map(full_width, grids)) + _GAP <= columns
    tall = max((len(grid.rows) + _AROUND for grid in grids), default=0)
    if not across and left - 2 * (tall + 1) < _LEAST_ROWS + _AROUND:
        grids = grids[:1]
    high = tall if across else (tall + 1) * len(grids) - 1
    beside = columns >= 2 * _TABLE + _GAP
    if grids and left - high - 1 >= _LEAST_ROWS + 1:
        groups.append(doc.Group(grids, beside=doc.Beside(0, _GAP) if across else None, spaced=True))
        left -= high + 1
    stacked = sum(len(table.rows) + _AROUND for table in tables)
    if left >= 2 * stacked:  # one below the other, where each has the width of all its columns
        beside = False
    rows = 0
    for place, table in enumerate(tables):
        if left < _LEAST_ROWS + 1:
            break
        shown = min(len(table.rows), max(left - 1, _LEAST_ROWS))
        tables[place] = table._replace(rows=table.rows[:shown], least=min(shown, _LEAST_ROWS))
        rows = max(rows, shown)
        if not beside:
            groups.append(doc.Group([tables[place]], yields=place))
            left -= shown + _AROUND
    if beside and rows:
        groups.append(doc.Group(tables, beside=doc.Beside(_TABLE, _GAP)))
        left -= rows + _AROUND
    maps = _maps(report, columns, left)
    return [*groups, *([doc.Group([maps], yields=5)] if maps is not None else [])]


def _tables(report: ModelReport) -> list[doc.Table]:
    """Return two tables: the heads that matter most, and the best head of each label."""
    tables = []
    if report.ablation is not None:
        ranked = [part for part in ranking_tables(report.ablation) if isinstance(part, doc.Table)]
        tables += [table._replace(title=()) for table in ranked[:1]]
    if report.scored is not None and (labels := leaders_table(report.scored)).rows:
        tables.append(labels)
    return tables


def _grids(report: ModelReport) -> list[doc.HeadGrid]:
    grids = []
    if report.scored is not None and any(entry.label for entry in report.scored.heads):
        title: doc.Words = [("labels", True), ("built-in probes", False), (doc.SHADE, False)]
        grids.append(label_grid(report.scored)._replace(title=title, key=(), scale=None))
    if report.ablation is not None and (grid := head_grid(report.ablation, scaled=False)):
        grids.append(grid)
    return grids


def _maps(report: ModelReport, columns: int, lines: int) -> doc.Maps | None:
    """Return the maps of the heads with a card that fit next to each other, or None."""
    if not report.cards:
        return None
    record = report.cards[0].map.first.record
    wide = (2 if record.causal else 5) * len(record.keys) + 12
    count = (columns + _GAP) // (wide + _GAP)
    if lines < len(record.queries) + _MAP_LINES or not count:
        return None
    maps = []
    for card in report.cards[:count]:
        own = card.map.first
        words: doc.Words = [(card.name, True), (own.scores(*card.head).label.said, False)]
        weights = own.weights(*card.head)
        maps.append(
            doc.Map(card.name, weights, record.queries, record.keys, words, causal=record.causal)
        )
    return doc.Maps(maps, scale=None)
