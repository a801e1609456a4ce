"""The document of ``patterns`` over pictures: every head's distance and label."""

from __future__ import annotations

from collections import Counter

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, listed
from attnviz.draw.provenance import model_words, named, share
from attnviz.inspect.picture.on_picture import distance_grid
from attnviz.inspect.pictures.report import HeadOverPictures, PicturesReport

_LEGEND = 3
"""The lines that the legend and the frame of the grid take below it."""

_FEW = 5
"""The number of pictures below which labels are called those of these pictures alone."""


def document(report: PicturesReport) -> doc.Document:
    """Return the document: a cell for each head, and a table of their scores."""
    info = report.model
    size = counted(len(report.paths), "image")
    about = doc.Facts([*model_words(info), (size, False), (f"seed {report.seed}", False)])
    first = doc.Quote("images", f"the first: {report.paths[0]}", lead=8)
    notes = [doc.Note(note) for note in (*info.notes, *report.notes)]
    grid = distance_grid(
        {(head.layer, head.head): (head.distance, head.label) for head in report.heads},
        report.uniform,
        report.index_base,
    )
    return doc.Document(
        f"heads of {info.name} over images",
        f"Attention heads of {info.name} over images",
        [
            doc.Group([about, first]),
            *([doc.Group(notes)] if notes else []),
            doc.Group([grid]),
            doc.Group([_table(report)]),
        ],
        doc.Explanation("images", f"measured over {size}."),
        doc.next_steps(["attnviz heads --image FILE", "--explain"], tone="faint"),
        heading=[*named(info), (size, False)],
        quoted=report.paths[0],
        finding=_finding(report),
        first=lambda columns, lines: [
            doc.Group([grid]),
            doc.Group([_cut(_table(report), len(grid.rows) + _LEGEND)], yields=1),
        ],
    )


def _cut(table: doc.Table, rows: int) -> doc.Table:
    """Return a table with its first rows, as tall as the grid beside it."""
    hidden = max(len(table.rows) - rows, 0)
    return table._replace(rows=table.rows[:rows], hidden=hidden, least=3)


def _finding(report: PicturesReport) -> str:
    """Return how many heads have which label, and how many none."""
    labels = Counter(head.label for head in report.heads if head.label)
    total, size = len(report.heads), counted(len(report.paths), "image")
    few = "" if len(report.paths) >= _FEW else f" {size} are few: give {_FEW} or more."
    if not labels:
        return f"No head has a label in two thirds of {size}; uniform attention is at " + (
            f"{report.uniform:.1f} patches.{few}"
        )
    words = [
        f"{number} {label.replace('sink: ', 'with a sink on ')}"
        for label, number in labels.most_common()
    ]
    nearest = min(report.heads, key=lambda head: head.distance)
    return (
        f"{sum(labels.values())} of {counted(total, 'head')} keep one label over {size}: "
        f"{listed(words)}. {report.head_name(nearest)} looks nearest, {nearest.distance:.1f} "
        f"patches (uniform {report.uniform:.1f}).{few}"
    )


def _table(report: PicturesReport) -> doc.Table:
    def optional(value: float | None) -> str:
        return "–" if value is None else share(value)

    def ends(head: HeadOverPictures) -> str:
        return "–" if head.interval is None else "{:.2f} to {:.2f}".format(*head.interval)

    def seen(head: HeadOverPictures) -> str:
        return f"{head.times} of {len(report.paths)}" if head.label else ""

    columns: list[doc.ColumnOf[HeadOverPictures]] = [
        doc.ColumnOf("head", report.head_name, right=False),
        doc.ColumnOf("label", lambda head: head.label, right=False),
        doc.ColumnOf("images", seen, keep=5),
        doc.ColumnOf("distance", lambda head: f"{head.distance:.2f}"),
        doc.ColumnOf("95% interval", ends, keep=4),
    ]
    if report.heads[0].cls is not None:
        columns.append(doc.ColumnOf("CLS", lambda head: optional(head.cls), keep=7))
    if report.heads[0].register is not None:
        columns.append(doc.ColumnOf("registers", lambda head: optional(head.register), keep=6))
    columns.append(doc.ColumnOf("patch with most", lambda head: share(head.peak), keep=7))
    title = [("Scores", True), (f"mean over images; uniform: {report.token:.1%} a token", False)]
    order = sorted(report.heads, key=lambda head: (not head.label, head.distance))
    return doc.table(order, *columns, title=title)
