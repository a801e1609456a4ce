"""The document of ``heads`` on a text with pictures: maps on the picture, shares of every head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import token_label
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, named, share
from attnviz.inspect.picture.on_picture import SCALE, largest_region, on_picture
from attnviz.inspect.picture_text.report import HeadOnWords, PictureTextReport
from attnviz.measures.pictures import contour
from attnviz.records import Floats

_MORE = 1.5  # times a general prompt's weight from which on a region is told of
_MOST = 100  # a larger factor is not written in full
_FLOOR = 0.1  # least divisor of relative attention, in parts of the mean patch's weight
_LISTED = 20  # the most heads in the table, those that look at the picture most
_LEAST_LINES = 10  # the least lines of a picture above the grid of all heads


def document(report: PictureTextReport) -> doc.Document:
    """Return the document: the picture with maps, and what every head does with the word."""
    info, word = report.model, _word(report)
    size = f"{len(report.layout.of_kind('patch')):,} patches, {len(report.tokens):,} tokens"
    pictures = counted(len(report.names), "image")
    about = [*model_words(info), (f"{pictures}, {size}", False), (f"from {word}", False)]
    facts: list[doc.Part] = [doc.Facts(about), doc.Quote("text", report.text, lead=9)]
    facts += [doc.Quote("image", name, lead=7) for name in report.names]
    facts += [doc.Quote("written", report.written, lead=9)] if report.written else []
    notes = [doc.Note(note) for note in (*info.notes, *report.notes)]
    return doc.Document(
        f"attention heads of {info.name} from {word} to {', '.join(report.names)}",
        f"Attention heads of {info.name} on a text with {pictures}",
        [
            doc.Group(facts),
            *[doc.Group(notes)] * bool(notes),
            doc.Group([_maps(report, None)]),
            doc.Group([_grid(report), _sinks_said(report)]),
            doc.Group([_table(report)]),
            doc.Group([_words_table(report)]),
        ],
        doc.Explanation("images", f"measured on this prompt alone, {size}."),
        doc.next_steps(["--token WORD", "--head L2H5", "--generate 20", "--explain"], tone="faint"),
        heading=[*named(info), (size, False), (f"from {word}", False)],
        quoted=report.text,
        finding=_finding(report),
        first=partial(_first, report),
    )


def _word(report: PictureTextReport) -> str:
    return f"“{token_label(report.tokens.texts[report.query]).strip()}”"


def _finding(report: PictureTextReport) -> str:
    """Return how much the word looks at picture and sinks, and where the clearest heads look."""
    if not all(np.isfinite(head.row).all() for head in report.heads):
        return "The attention weights are not numbers (NaN): nothing can be said of this prompt."
    heads = report.heads
    seen, sinks = (float(np.mean([getattr(head, name) for head in heads])) for name in _SHARES)
    noun = "images" if len(report.names) > 1 else "image"
    who = "" if not report.selected else f" in {counted(len(heads), 'head')}"
    who = f" in {report.head_name(heads[0])}" if len(heads) == 1 else who
    told = (
        f"{_word(report)} gives the {noun} {seen:.0%} of its weight{who} (uniform: "
        f"{report.uniform:.0%})"
    )
    if sinks >= 0.005:
        places = {at for head in heads for at in report.sinks_of(head)}
        by_chance = report.sinks_by_chance
        told += f", {sinks:.0%} on {counted(len(places), 'sink')}"
        told += ", no more" * (sinks <= by_chance) + f" (random tokens: {by_chance:.0%} at most)"
    locating = report.locating
    if (region := _region(report)) is None:
        return f"{told}; no head looks at one part of it more clearly than by chance."
    where, factor = region
    more = f" and {len(locating) - 1} more look" if len(locating) > 1 else " looks"
    names = report.head_name(locating[0]) + more
    times = ""
    if factor is not None:
        number = f"{factor:.1f}" if factor < _MOST else f"over {_MOST}"
        times = f": {number} times as much as with a general prompt"
        times = times if factor >= _MORE else ", as with a general prompt"
    return f"{told}; {names} at {where}{times}."


_SHARES = ("picture", "sinks")


def _map(report: PictureTextReport, row: Floats) -> Floats:
    return report.layout.mapped(row, report.grid)


def _region(report: PictureTextReport) -> tuple[str, float | None] | None:
    """Return where the localisation heads look, rows and columns in words; None without any.

    The number is how many times as much of what they give the picture lies there as with a general
    prompt; None for one head alone. It is tested for each head on the region that the others
    choose, so that it is not more by choice.
    """
    heads = report.locating
    if not heads:
        return None
    maps = [_map(report, report.without_sinks(head)) for head in heads]
    mean = np.mean(maps, axis=0)
    where, _ = largest_region(mean)
    if len(report.names) > 1:
        where += f" of image {report.layout.grids[report.grid].picture + 1}"
    times = []
    for at, head in enumerate(heads):
        others = [own for number, own in enumerate(maps) if number != at]
        if not others:
            continue
        chosen = np.mean(others, axis=0)
        inside = chosen >= contour(chosen)
        general = head.general.copy()
        general[report.sinks_of(head)] = 0.0
        both = [np.nan_to_num(own) for own in (maps[at], _map(report, general))]
        given, usual = (float(own[inside].sum() / own.sum()) for own in both)
        times.append(given / usual if usual else np.inf)
    return where, float(np.mean(times)) if times else None


def _sinks_said(report: PictureTextReport) -> doc.Say:
    layers = sorted(report.sinks)
    if not layers:
        return doc.Say(
            "Sinks: no token has a massive activation, so that no weight is taken off the maps."
        )
    names = report.layout.names()
    counts: dict[str, int] = {}
    for at in sorted({at for own in report.sinks.values() for at in own}):
        name = names[at] or f"“{token_label(report.tokens.texts[at]).strip()}”"
        counts[name] = sum(at in own for own in report.sinks.values())
    most = sorted(counts, key=lambda name: -counts[name])
    more = f" and {len(most) - 4} more" if len(most) > 4 else ""
    return doc.Say(
        f"Sinks: {', '.join(most[:4])}{more} have massive activations, in "
        f"{counted(len(layers), 'layer')} from L{layers[0] + report.index_base} on."
    )


def _maps(report: PictureTextReport, most: int | None) -> doc.Pictures:
    """Return the picture, the word's maps, a general prompt's and heads', ``most`` in all."""
    layout, grid, heads = report.layout, report.grid, report.locating or report.heads
    name = "the clearest heads" if report.locating else "the mean of all heads"
    name = report.head_name(heads[0]) if len(heads) == 1 else name
    mean = np.mean([report.without_sinks(head) for head in heads], axis=0)
    general = np.mean([head.general for head in heads], axis=0)
    sinks = any(report.sinks_of(head) for head in heads)
    at = layout.grids[grid].picture
    picture = layout.pictures[at]
    high, wide, _ = picture.shape
    shown = [
        doc.Picture(
            picture,
            words=[(report.names[at], True)],
            alternative=f"{report.names[at]}, {wide} × {high} pixels.",
        ),
        on_picture(layout, mean, f"{name}, no sinks" if sinks else name, grid=grid),
    ]
    if sinks:
        whole = np.mean([head.row for head in heads], axis=0)
        shown.append(on_picture(layout, whole, "with sinks", grid=grid))
    shown.append(on_picture(layout, general, "general prompt", grid=grid))
    least = _FLOOR * general[layout.patches(grid)].mean()
    if least > 0:
        ratio = mean / np.maximum(general, least)
        below = [(f"up to {ratio.max():.1f} x", False)]
        shown.append(on_picture(layout, ratio, "word ÷ general", grid=grid, below=below))
    ranked = report.locating if not report.selected else report.heads
    for head in ranked if len(heads) > 1 else ():
        row = report.without_sinks(head)
        shown.append(on_picture(layout, row, report.head_name(head), grid=grid))
    title = [(f"Where {_word(report)} looks", True), ("marked: 60% of the weight", False)]
    return doc.Pictures(shown[:most], title, scale=SCALE)


def _grid(report: PictureTextReport, *, halved: bool = False) -> doc.HeadGrid:
    """Return the share of every head's row on the pictures, with a letter for what locates."""
    cells = {
        (head.layer, head.head): doc.Cell(
            head.picture,
            doc.Tint(round(255 * min(1.0, head.picture))),
            text=share(head.picture),
            letter="l" if head.locates else "",
            tip=f"{report.head_name(head)}: {head.picture:.0%} on the image",
            values={"picture": head.picture},
        )
        for head in report.heads
    }
    title = [("Share on the image", True), (f"uniform attention {share(report.uniform)}", False)]
    key = [doc.Key(None, "locates", "l")] if report.locating else []
    return doc.head_grid(cells, report.index_base, title=title, key=key, halved=halved)


def _table(report: PictureTextReport) -> doc.Table:
    ranked = sorted(report.heads, key=lambda head: (not head.locates, -head.picture))
    more = len(ranked) - _LISTED
    columns: list[doc.ColumnOf[HeadOnWords]] = [
        doc.ColumnOf("head", report.head_name, right=False),
        doc.ColumnOf("image", lambda head: share(head.picture)),
        doc.ColumnOf("sinks", lambda head: share(head.sinks)),
        doc.ColumnOf("text", lambda head: share(1.0 - head.picture)),
        doc.ColumnOf("entropy", lambda head: f"{head.entropy:.2f}"),
        doc.ColumnOf(
            "by chance", lambda head: "–" if np.isnan(head.chance) else f"{head.chance:.2f}"
        ),
        doc.ColumnOf("bottom", lambda head: share(head.bottom)),
        doc.ColumnOf("label", lambda head: "locates" if head.locates else "", right=False),
    ]
    return doc.table(
        ranked[:_LISTED],
        *columns,
        title=[("Scores", True), (f"shares of the row of {_word(report)}; entropy in nats", False)],
        more=f"{more:,} more in --json and --save" if more > 0 else "",
    )


def _words_table(report: PictureTextReport) -> doc.Table:
    most = max(report.words.values(), default=1.0) or 1.0
    return doc.table(
        report.words.items(),
        doc.ColumnOf(
            "word", lambda word: token_label(report.tokens.texts[word[0]]).strip(), right=False
        ),
        doc.ColumnOf("image", lambda word: share(word[1])),
        row=lambda word: {"bar": (word[1], most)},
        title=[("Words", True), ("share on the images, mean over all heads", False)],
    )


def _first(report: PictureTextReport, columns: int, lines: int) -> doc.Ways:
    """Return the picture and its maps, then the shares of all heads, as far as they fit."""
    layers, left = len(_grid(report).rows), lines - 7
    ways: list[Sequence[doc.Group]] = []
    for halved in (False, True) if layers > 1 else (False,):
        under = left - (-(-layers // 2) if halved else layers) - 4
        for count in range(6, 1, -1) if under >= _LEAST_LINES else ():
            maps = _maps(report, count)._replace(lines=under)
            grid = doc.Group([_grid(report, halved=halved)], yields=1)
            ways.append([doc.Group([maps]), grid])
    for count in range(6, 1, -1):
        ways.append([doc.Group([_maps(report, count)._replace(lines=left)])])
    return doc.Ways(ways)
