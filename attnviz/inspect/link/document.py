"""The document of ``attnviz link``: what was written into key and query, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import fsum

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import advised, notes_group, probability
from attnviz.draw.signed import interval_text, ranked_table, signed_grid, signed_scale
from attnviz.engine.attribution.scores import SIDES
from attnviz.inspect.link.records import LinkPart, LinkReport
from attnviz.inspect.link.words import (
    about,
    caveats,
    choice_words,
    explanation,
    finding,
    heading,
    source_words,
    sum_words,
)
from attnviz.records import Tokens

_LONGEST = 100
_GAP = 3
_TABLE = 76
"""The columns of the table of parts next to the grid."""

_MOST, _ROOM = 12, 80
"""The most parts of the query in the grid of the whole document, and its columns."""

_LARGE = 0.1
"""The least part of a head, relative to the largest part, whose source tokens are drawn."""

_EVERY = 1_000_000
"""A limit of rows that no model reaches."""

_CELL = 6
"""The least columns of a cell of the grid, such as ``+3.6`` with its glyph."""


def link_document(report: LinkReport) -> doc.Document:
    """Return the document of a report of ``link``."""
    tokens = report.first.tokens
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group(_link_facts(report)),
    ]
    if report.tallies:
        groups += [
            doc.Group([part_table(report)]),
            doc.Group([pair_grid(report, _MOST, _ROOM)]),
            doc.Group(_sources(report)),
        ]
        groups.append(doc.Group([doc.Say(text, _LONGEST) for text in caveats(report)]))
    return doc.Document(
        name=f"QK attribution of {report.head} in {report.model.name}",
        title=" ".join(report.first.text.split()),
        groups=groups,
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted="" if report.many else report.first.text,
        finding=finding(report),
        first=advised(partial(first_groups, report), tokens),
    )


def _link_facts(report: LinkReport) -> list[doc.Part]:
    """Return the lead as the sum of its parts, and why this link was chosen, each in a line."""
    chosen = choice_words(report)
    return [doc.Facts(sum_words(report)), *([doc.Facts(chosen)] if chosen else [])]


def _hints(report: LinkReport) -> list[str]:
    """Return the options to try next."""
    if not report.tallies:
        return []
    hints, writers = list[str](), [one for one in report.of_side("key") if one.part is not None]
    best = writers[0].part if writers else None
    if best is not None and best.head is not None and not best.crosses and not report.many:
        hints.append(f"--head {report.name(best)} why it wrote there")
    if not report.many and report.first.asked.than is None:
        hints.append("--than KEY")
    hints += [] if report.many else ["--texts FILE"]
    return [*hints, "--explain"]


# Tables --------------------------------------------------------------------------------------


def part_table(report: LinkReport, most: Sequence[int] = (_EVERY, _EVERY)) -> doc.Table:
    """Return a table of what was written into the key, and below into the query, largest first.

    Parts that are exactly zero, in the control too, are left out. most: how many rows each side
        has; the smaller parts share the last one, so that none is lost.
    """
    scale, count = NumberScale.over(part.lead for part in report.parts), report.controls
    rows: list[LinkPart] = []
    names: list[str] = []
    for side, limit in zip(reversed(SIDES), most, strict=True):
        parts = [part for part in report.of_side(side) if part.lead or part.base]
        kept = parts if len(parts) <= limit else parts[: max(limit - 1, 1)]
        rows += kept
        names += [report.name(part.part) for part in kept]
        if rest := parts[len(kept) :]:
            rows.append(LinkPart(side, None, fsum(part.lead for part in rest)))
            names.append(f"{len(rest)} more")
    columns: list[tuple[str | doc.Column, list[str]]] = [
        (f"lead{scale.times}", [scale.text(one.lead) for one in rows]),
        ("95% interval", [interval_text(one.interval, scale) for one in rows]),
        ("control", ["" if one.base is None else scale.text(one.base) for one in rows]),
        ("reached", ["" if one.reached is None else f"{one.reached} of {count}" for one in rows]),
        ("p", ["" if one.p is None else probability(one.p) for one in rows]),
        (
            "weight without",
            ["" if one.without is None else probability(one.without) for one in rows],
        ),
        (doc.Column("from", right=False), [source_words(report.first, one) for one in rows]),
    ]
    table = ranked_table("", names, [one.lead for one in rows], scale, columns)
    lines = [
        row._replace(tone="faint" if one.unclear else "plain")
        for row, one in zip(table.rows, rows, strict=True)
    ]
    lines.insert(sum(one.side == "key" for one in rows), doc.Row(["into the query"], spaced=True))
    first, *others = table.columns
    return table._replace(columns=[first._replace(title="into the key"), *others], rows=lines)


def pair_grid(report: LinkReport, rows: int, room: int, scaled: bool = True) -> doc.HeadGrid:
    """Return the grid of the lead by (part of the query, part of the key).

    The smaller parts share the last row and column, so that none is lost; parts of zeros alone are
    left out. rows: the most of them. room: the available width in characters.
    scaled: True adds a colour bar.
    """
    matrix = np.mean([each.found.matrix(each.towards) for each in report.prompts], axis=0)
    names = [report.name(part) for part in report.first.found.parts]
    longest = max(map(len, names))
    columns = max((room - longest - 1) // (max(longest, _CELL) + 1), 2)
    for axis, most in ((0, rows), (1, columns)):
        order = np.argsort(-np.abs(matrix.sum(1 - axis)), kind="stable")
        order = order[matrix.any(1 - axis)[order]] if matrix.any() else order
        kept = order if len(order) <= most else order[: most - 1]
        parts = [matrix.take([at], axis) for at in kept]
        if len(kept) < len(order):
            parts.append(matrix.take(order[len(kept) :], axis).sum(axis, keepdims=True))
        labels = [names[at] for at in kept] + ["other"] * (len(kept) < len(order))
        matrix = np.concatenate(parts, axis)
        if axis == 0:
            row_names = labels
    values = {place: float(value) for place, value in np.ndenumerate(matrix)}
    scale = NumberScale.over(values.values())
    grid = signed_grid(row_names, labels, values, scale)
    title: doc.Words = [("query × key, nats" + scale.times * (not scaled), True)]
    if report.many:
        title = [*title, ("mean over the prompts", False)]
    return grid._replace(
        title=title, scale=signed_scale(scale, "nats", "value") if scaled else None
    )


def _sources(report: LinkReport) -> list[doc.Part]:
    """Return the text for heads with a large part, coloured by their part of the lead."""
    first, found = report.first, list[doc.Map]()
    if report.many:
        return []
    least = _LARGE * max(abs(part.lead) for part in report.parts)
    limit = max((float(np.abs(row).max()) for row in first.found.sources.values()), default=0.0)
    for side in reversed(SIDES):
        for (of, at), row in first.found.sources.items():
            part = first.found.parts[at]
            if of != side or part.crosses or abs(row.sum()) < least:
                continue
            name = f"{report.name(part)} into the {side}"
            words: doc.Words = [(name, True), (f"{row.sum():+.2f} nats by source token", False)]
            asking = Tokens.bare((0,))
            found.append(doc.Map(name, row[None], asking, first.tokens, words, limit=limit))
    if not found:
        return []
    title: doc.Words = [("What heads wrote, by the token that they read", True)]
    scale = signed_scale(NumberScale(limit), "nats", "value")
    return [doc.Maps(found, title, texts=True, scale=scale)]


# The first screen ----------------------------------------------------------------------------


def first_groups(report: LinkReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: the sum, both tables, and the grid, as far as lines allow.

    columns, lines: the available width in characters and lines.
    """
    facts = _link_facts(report)
    words, lines = doc.Group(facts), lines + 1 - len(facts)
    if not report.tallies:
        return [words]
    parts, half = len(report.first.found.parts), (columns - _GAP) // 2
    if half >= _TABLE:
        rows = max(lines - 6, 4)
        table = part_table(report, _shared(parts, rows))
        grid = pair_grid(report, min(rows, 2 * _MOST), half, scaled=False)
        return [words, doc.Group([table, grid], beside=doc.Beside(half, _GAP))]
    height = min(parts, max(lines // 6, 3))
    table = part_table(report, _shared(parts, max(lines - height - 8, 4)))
    grid = pair_grid(report, height, columns, scaled=False)
    return [words, doc.Group([table]), doc.Group([grid], yields=1)]


def _shared(parts: int, rows: int) -> tuple[int, int]:
    """Return how many rows keys and query get of so many, the keys at least as many."""
    query = min(parts + 1, rows // 2)
    return rows - query, query
