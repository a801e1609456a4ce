"""The document of ``heads`` on a picture: maps on the picture, and every head at a glance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, layer_names, listed
from attnviz.draw.page.data import UNLABELLED, Page, PageLabel, PageMeasure
from attnviz.draw.provenance import model_words, named, share
from attnviz.inspect.heads.look import heads_page
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.picture.on_picture import SCALE, distance_grid, largest_region, on_picture
from attnviz.inspect.picture.report import (
    HeadOnPicture,
    HeadOverPictures,
    PictureReport,
    PicturesReport,
)
from attnviz.measures.pictures import SINK_SHARE, contour
from attnviz.records import Floats

_NARROW = 0.45  # largest share of the picture under 60 % of a map's weight that is told
_ON_PATCHES = 0.3  # least share of its weight on patches in a head that is shown first
_MORE = 1.5  # how many times as much as all patches a query gives to a region before it is told of
_MOST, _TALLEST = 8, 24  # pictures of a first screen; lines of one above the table of heads
_LEGEND = 3  # the lines that a terminal without colour needs for a legend of signs
_WIDE, _SMALL = 150, 12  # columns for small maps beside the table of all heads; their lines
_AROUND = 5  # the lines of a first screen around pictures: their words and their scale
_LEAST_LINES = 10  # the least lines of a picture above the table of all heads


class _Seen(NamedTuple):
    """A map on the picture, as it is drawn and told.

    name: of the head or the mean. row: (token,) the weights. weights: (row, column) on the patches.
    inside: those from which 60 % of the weight come. area: the share of all patches that these
    are. total: the weight on all patches.
    """

    name: str
    row: Floats
    weights: Floats
    inside: float
    area: float
    total: float


def document(report: PictureReport | PicturesReport) -> doc.Document:
    """Return the document: maps of all heads on one picture, or a cell for each over many."""
    if isinstance(report, PicturesReport):
        return _over_pictures(report)
    info, grid = report.model, report.layout.grids[0]
    height, width, _ = report.layout.pictures[0].shape
    patches = f"{grid.rows} × {grid.columns} patches"
    seen = f"{width} × {height} pixels, {patches}"
    query = f"query {report.query.name}"
    about = [*model_words(info), (seen, False), (query, False)]
    notes = [*info.notes, *report.notes]
    names = {report.head_name(head): head.row for head in report.asking}
    every = doc.Pictures(
        [_drawn(report, _seen(report, name, row)) for name, row in names.items()],
        [("All heads", True), ("each map in its own colours", False)],
        small=True,
    )
    return doc.Document(
        f"attention heads of {info.name} on {report.name}",
        f"Attention heads of {info.name} on an image",
        [
            doc.Group([doc.Facts(about), doc.Quote("image", report.name, lead=7)]),
            *[doc.Group(list(map(doc.Note, notes)))] * bool(notes),
            doc.Group([_clearest(report, None)]),
            _glance(report),
            *[doc.Group([every])] * (len(report.asking) > 1),
            doc.Group([_table(report)]),
        ],
        doc.Explanation("images", f"measured on this image alone, {patches}."),
        doc.next_steps(
            ["--token ROW,COLUMN", "--at X,Y", "--head L2H5", "--explain"], tone="faint"
        ),
        heading=[*named(info), (patches, False), (query, False)],
        quoted=report.name,
        finding=_finding(report),
        first=partial(_first, report),
        page=None if report.maps is None else partial(_page, report, report.maps),
    )


_HUE = "56b4e9"  # the colour of local heads on a page
_MEANINGS = {
    "local": "looks at patches near its own",
    "sink: CLS": "every patch attends to CLS",
    "sink: registers": "every patch attends to registers",
    "sink: one patch": "every patch attends to the same one",
}


def _page(report: PictureReport, maps: HeadsReport) -> Page:
    """Return the page of whole maps, which opens at the mean of the last layer, as the finding."""
    last = [head for head in report.measured if head.layer == report.measured[-1].layer]
    page = heads_page(maps, [[]], opened=report.head_name(last[0]))
    heads = []
    for shown, head in zip(page.captures[0].heads, report.measured, strict=True):
        means = _MEANINGS.get(head.label, "")
        label = PageLabel(head.label, head.label, "text", means, _HUE if "local" in means else "")
        facts = f"distance {head.distance:.1f}, most on patch {report.patch_name(head.peak)}"
        known = {"distance": head.distance, "cls": head.cls, "register": head.register}
        own = label if head.label else UNLABELLED
        heads.append(replace(shown, label=own, score=math.nan, facts=facts, values=known))
    capture = replace(page.captures[0], heads=heads)
    token = report.query.token
    mean = "&scope=layer" * (len(last) > 1)
    link = page.link if token is None else f"{page.link}&q={token}{mean}&view=both"
    names = {"distance": "distance", "cls": "on CLS", "register": "on registers"}
    given = [name for name in names if heads[0].values[name] is not None]
    ways = [
        PageMeasure(name, names[name], "patches" if name == "distance" else "") for name in given
    ]
    return replace(page, captures=[capture], measures=ways, look=[], link=link)


# The answer in words -------------------------------------------------------------------------


def _finding(report: PictureReport) -> str:
    """Return where the query looks; if it looks everywhere alike, what else the heads do."""
    if any(not np.isfinite(head.row).all() for head in report.heads):
        return "The attention weights are not numbers (NaN): nothing can be said of this image."
    for sentence in filter(None, [_region(report), *_sayings(report)]):
        return sentence
    who = _who(report)
    return (
        f"{who[:1].upper()}{who[1:]} looks everywhere alike, no token collects attention, and no "
        "head looks nearer than with its patches in random order."
    )


def _sayings(report: PictureReport) -> list[str]:
    """Return the sentences on sinks and on distances, without empty ones."""
    return [sentence for sentence in (_sinks(report), _distances(report)) if sentence]


def _who(report: PictureReport) -> str:
    name = report.query.name
    words = {"pool": "the pooling query", "mean": "the mean of all patches"}
    return words.get(name, f"patch {name}" if name[0].isdigit() else name)


def _region(report: PictureReport) -> str:
    """Return in which part of the picture the query's weight lies, if it is a small one."""
    mean = _mean_of_last(report)
    if not mean.area <= _NARROW:
        return ""
    where, held = largest_region(mean.weights)
    whole = held >= 0.95 * float(mean.weights[mean.weights >= mean.inside].sum()) / mean.total
    if where == "several parts":
        where = "in several parts"
    elif not whole:
        where = f"most of it in {where}"
    sentence = (
        f"60% of the attention from {_who(report)} to patches falls on {mean.area:.0%} of them "
        f"({mean.name}; {where})"
    )
    times = _times_ordinary(report)
    if times is None:
        return sentence + "."
    if times >= _MORE:
        return f"{sentence}, {times:.1f} times what the average patch puts there."
    return f"{sentence}; the average patch looks there too."


def _times_ordinary(report: PictureReport) -> float | None:
    """Return how many times as much as the patches the query gives to its region.

    The region is chosen by every second head of the last layer and tested on the others, then the
    other way round, so that it is not large by choice. None if the query is the mean itself, or for
    one head.
    """
    heads = _last(report)
    if len(heads) < 2 or any(head.means is None for head in heads) or report.query.name == "mean":
        return None
    times = []
    for choosing, testing in ((heads[::2], heads[1::2]), (heads[1::2], heads[::2])):
        chosen = _seen(report, "", np.mean([head.row for head in choosing], axis=0))
        inside = chosen.weights >= chosen.inside
        shares = []
        own = [head.row for head in testing]
        ordinary = [head.means for head in testing if head.means is not None]
        for rows in (own, ordinary):
            given = report.layout.mapped(np.mean(rows, axis=0), 0)
            shares.append(float(given[inside].sum() / np.nansum(given)))
        if not shares[1] > 0:  # patches give the region nothing at all
            return None
        times.append(shares[0] / shares[1])
    return float(np.mean(times))


def _sinks(report: PictureReport) -> str:
    labels = [head.label for head in report.measured]
    kinds = Counter(label.removeprefix("sink: ") for label in labels if label[:4] == "sink")
    if not kinds:
        return ""
    peaks = {report.patch_name(head.peak) for head in report.measured if head.label[-5:] == "patch"}
    only = f"patch {next(iter(peaks))}" if len(peaks) == 1 else "one patch"
    words = [f"{only if kind == 'one patch' else kind} in {n}" for kind, n in kinds.most_common()]
    count = sum(kinds.values())
    sentence = (
        f"Sinks: {count} of {counted(len(labels), 'head')} put{'s' * (count == 1)} over "
        f"{SINK_SHARE:.0%} of every patch's attention on one kind of token: {listed(words)}"
    )
    outlying = [report.patch_name(at) for at in report.artefacts[:2]]
    if outlying:
        more = f" and {len(report.artefacts) - 2} more" if len(report.artefacts) > 2 else ""
        sentence += f"; patches of outlying norm: {listed(outlying)}{more}"
    return sentence + "."


def _distances(report: PictureReport) -> str:
    """Return which layers look near, beside the distance of uniform attention."""
    local = [head for head in report.measured if head.label == "local"]
    if not local:
        return ""
    layers = sorted({head.layer + report.index_base for head in local})
    nearest = min(local, key=lambda head: head.distance)
    far = max(report.measured, key=lambda head: head.distance)
    return (
        f"Distance: {len(local)} of {counted(len(report.measured), 'head')} attend locally, in "
        f"{layer_names(layers)} ({report.head_name(nearest)} at {nearest.distance:.1f} patches); "
        f"{report.head_name(far)} attends farthest, at {far.distance:.1f} (uniform attention "
        f"{report.uniform:.1f})."
    )


# Maps ----------------------------------------------------------------------------------------


def _seen(report: PictureReport, name: str, row: Floats) -> _Seen:
    weights = report.layout.mapped(row, 0)
    inside, finite = contour(weights), weights[np.isfinite(weights)]
    area = float((finite >= inside).mean()) if math.isfinite(inside) else 1.0
    return _Seen(name, row, weights, inside, area, float(finite.sum()))


def _last(report: PictureReport) -> Sequence[HeadOnPicture]:
    last = max(head.layer for head in report.asking)
    return [head for head in report.asking if head.layer == last]


def _mean_of_last(report: PictureReport) -> _Seen:
    """Return the mean of the query's rows over the heads of the last layer, or the only head."""
    heads = _last(report)
    name = f"mean of L{heads[0].layer + report.index_base}"
    if len(heads) == 1:
        name = report.head_name(heads[0])
    elif heads[0].means is None:
        name = "mean of the pooling heads"
    return _seen(report, name, np.mean([head.row for head in heads], axis=0))


def _drawn(report: PictureReport, seen: _Seen) -> doc.Picture:
    return on_picture(report.layout, seen.row, seen.name, query=report.query.token)


def _ranked(report: PictureReport) -> list[_Seen]:
    """Return the maps of all heads, those with the smallest areas first."""
    maps = [_seen(report, report.head_name(head), head.row) for head in report.asking]
    sinks = {report.head_name(head) for head in report.measured if head.label[:4] == "sink"}
    told = [seen for seen in maps if seen.total > _ON_PATCHES and seen.name not in sinks]
    return sorted(told or maps, key=lambda seen: (seen.area, -seen.total))


def _clearest(report: PictureReport, most: int | None) -> doc.Pictures:
    """Return the picture and the clearest maps: ``most`` in all, or six; all that are chosen."""
    pixels = report.layout.pictures[0]
    height, width, _ = pixels.shape
    size = f"{report.name}, {width} × {height} pixels."
    alone = doc.Picture(pixels, words=[("image", True)], alternative=size)
    mean = _mean_of_last(report)
    heads = [seen for seen in _ranked(report) if seen.name != mean.name]
    shown = [alone, _drawn(report, mean), *[_drawn(report, seen) for seen in heads]]
    only = report.asking[0]
    if len(report.asking) == 1 and only.means is not None and report.query.name != "mean":
        all_patches = f"{report.head_name(only)}, all patches"
        shown.append(on_picture(report.layout, only.means, all_patches))
    count = most or (len(shown) if report.selected else 6)
    title = [
        (f"Where {_who(report)} looks", True),
        ("marked: the patches that hold 60% of the weight", False),
    ]
    return doc.Pictures(shown[:count], title, scale=SCALE)


# Tables --------------------------------------------------------------------------------------


def _grid(report: PictureReport) -> doc.HeadGrid:
    heads = {(head.layer, head.head): (head.distance, head.label) for head in report.measured}
    return distance_grid(heads, report.uniform, report.index_base)


def _table(report: PictureReport) -> doc.Table:
    """Return what each head does, with the shares of tokens that are no patch."""

    def part(value: float | None) -> str:
        return "–" if value is None else share(value)

    def peak(head: HeadOnPicture) -> str:
        return f"{report.patch_name(head.peak)} {share(head.peak_share)}"

    layout = report.layout
    classes = [doc.ColumnOf[HeadOnPicture]("CLS", lambda head: part(head.cls))]
    registers = [doc.ColumnOf[HeadOnPicture]("registers", lambda head: part(head.register))]
    return doc.table(
        report.measured,
        doc.ColumnOf("head", report.head_name, right=False),
        doc.ColumnOf("distance", lambda head: f"{head.distance:.2f}"),
        *(classes if len(layout.of_kind("cls")) else []),
        *(registers if len(layout.of_kind("register")) else []),
        doc.ColumnOf("patch with most", peak),
        doc.ColumnOf("label", lambda head: head.label, right=False),
        title=[
            ("Scores", True),
            (f"mean over all patches; uniform: {1 / len(layout):.1%} a token", False),
        ],
    )


def _glance(report: PictureReport, *, halved: bool = False) -> doc.Group:
    """Return every head at a glance, and what is said of all of them."""
    sentences = [doc.Say(sentence) for sentence in _sayings(report)]
    return doc.Group([_grid(report)._replace(halved=halved), *sentences], yields=1)


# The first screen ----------------------------------------------------------------------------


def _first(report: PictureReport, columns: int, lines: int) -> doc.Ways:
    """Return the picture and the clearest maps, then every head at a glance if there is room."""
    layers, left = len(_grid(report).rows), lines - _AROUND
    ways: list[Sequence[doc.Group]] = []
    for halved in (False, True) if not report.selected and layers > 1 else ():
        glance = _glance(report, halved=halved)
        tall = (-(-layers // 2) if halved else layers) + 4 + 2 * len(_sayings(report))
        for count in range(_MOST, 1, -1) if left - tall >= _LEAST_LINES else ():
            below = glance
            if columns >= _WIDE and not halved:
                further = [_drawn(report, seen) for seen in _ranked(report)[count - 2 :]]
                small = doc.Pictures(further, [("Further heads", True)], small=True)
                rows = max(tall // _SMALL, 1)
                below = doc.beside([*glance.parts], small._replace(rows=rows))
            ways.append([_maps(report, count, min(left - tall, _TALLEST)), below])
    for tall in (left, left - _LEGEND):
        for count in range(_MOST, 1, -1):
            ways.append([_maps(report, count, tall)])
    return doc.Ways(ways)


def _maps(report: PictureReport, count: int, lines: int) -> doc.Group:
    """Return the picture and maps, ``count`` in all, in a row of the screen of their own."""
    return doc.Group([_clearest(report, count)._replace(lines=lines)], beside=doc.Beside(0))


# Over many pictures ---------------------------------------------------------------------------


_FEW = 5  # the number of pictures below which labels are called those of these pictures alone


def _over_pictures(report: PicturesReport) -> doc.Document:
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
    table, tall = _table_over(report), len(grid.rows) + 3
    hidden = max(len(table.rows) - tall, 0)
    short = table._replace(rows=table.rows[:tall], hidden=hidden, least=3)
    return doc.Document(
        f"heads of {info.name} over images",
        f"Attention heads of {info.name} over images",
        [
            doc.Group([about, first]),
            *([doc.Group(notes)] if notes else []),
            doc.Group([grid]),
            doc.Group([table]),
        ],
        doc.Explanation("images", f"measured over {size}."),
        doc.next_steps(["attnviz heads --image FILE", "--explain"], tone="faint"),
        heading=[*named(info), (size, False)],
        quoted=report.paths[0],
        finding=_finding_over(report),
        first=lambda columns, lines: [
            doc.Group([grid]),
            doc.Group([short], yields=1),
        ],
    )


def _finding_over(report: PicturesReport) -> str:
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


def _table_over(report: PicturesReport) -> doc.Table:
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
        doc.ColumnOf("95% CI", ends, keep=4),
    ]
    if report.heads[0].cls is not None:
        columns.append(doc.ColumnOf("CLS", lambda head: optional(head.cls), keep=7))
    if report.heads[0].register is not None:
        columns.append(doc.ColumnOf("registers", lambda head: optional(head.register), keep=6))
    columns.append(doc.ColumnOf("patch with most", lambda head: share(head.peak), keep=7))
    title = [("Scores", True), (f"mean over images; uniform: {report.token:.1%} a token", False)]
    order = sorted(report.heads, key=lambda head: (not head.label, head.distance))
    return doc.table(order, *columns, title=title)
