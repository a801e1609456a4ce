"""The document of ``heads`` on a sound: words and seconds, with the loudness of the sound above."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, named, share
from attnviz.inspect.speech.report import HeadOnSound, SpeechReport
from attnviz.records import Floats, Tokens

_PAGE = 64  # the columns of a map on pages and pictures, and in the whole text
_STEPS = (20, 40, 100, 200, 500, 1000)  # milliseconds of a column: the smallest that fits
_LOUD = "loudness"  # the name of the first row of a map
_AROUND = 7  # lines of a first screen around a map: title, seconds, scale and hints
_LEAST = 66  # the fewest columns of a map beside another


def document(report: SpeechReport) -> doc.Document:
    """Return the document: the maps of the heads, and a table of what they do."""
    rows, encoder = "parts of the sound", list[str]()
    if report.kind == "cross":
        rows, encoder = f"{len(report.words)} words", ["--kind encoder"]
    about = [*model_words(report.model), (report.kind, False), (rows, False)]
    about += [(f"{report.seconds:.2f} s", False)]
    notes = [*report.model.notes, *report.notes]
    if report.transcribed:
        notes.append("the model wrote the words itself; --text takes yours")
    shown = _ranked(report)[: None if report.selected else 6]
    maps = [_map(report, head, _PAGE, titled=head is shown[0]) for head in shown]
    return doc.Document(
        f"attention heads of {report.model.name} on {report.name}",
        f"Attention heads of {report.model.name} on a sound",
        [
            doc.Group([doc.Facts(about), doc.Quote("sound", report.name, lead=7)]),
            *[doc.Group(list(map(doc.Note, notes)))] * bool(notes),
            doc.Group(maps, spaced=True),
            doc.Group([_grid(report)]),
            doc.Group([_table(report)]),
        ],
        doc.Explanation("speech", f"measured on this sound alone, {report.seconds:.2f} s."),
        doc.next_steps(["--head L2H1", *encoder, "--explain"], tone="faint"),
        heading=[*named(report.model), (report.kind, False), (f"{report.seconds:.2f} s", False)],
        quoted=report.name,
        finding=_finding(report),
        first=partial(_first, report),
    )


def _finding(report: SpeechReport) -> str:
    """Return which head follows the words, and how much of the weight lies behind the sound."""
    if any(not np.isfinite(head.rows).all() for head in report.heads):
        return "The attention weights are not numbers (NaN): nothing can be said of this sound."
    behind = (
        f"{report.padding:.0%} of the weight lies after the end of the sound, on padding"
        if report.padding > 0
        else "No weight lies after the end of the sound"
    )
    if report.model.weights == "random" or report.model.untrained:
        return f"{behind}; the weights are untrained, so that no head hears a word."
    if report.kind == "encoder":
        most = max(report.heads, key=lambda head: head.padding)
        return f"{behind}, in {report.head_name(most)} {most.padding:.0%}."
    if math.isnan(report.chance):
        return f"{behind}; {counted(len(report.words), 'word')} are too few to compare an order."
    following = [head for head in report.heads if report.follows(head)]
    heads = counted(len(report.heads), "head")
    if not following:
        best = max(report.heads, key=lambda head: head.order)
        return (
            f"No head of {heads} follows the order of the words: at best {report.head_name(best)} "
            f"{best.order:.2f} (chance {report.chance:.2f}). {behind}."
        )
    best = _ranked(report)[0]
    claim = (
        f"The peaks of {report.head_name(best)} follow the {len(report.words)} words "
        f"({best.order:.2f}; shuffled words {best.shuffled:.2f}"
    )
    if len(report.heads) == 1:
        return f"{claim}, chance {report.chance:.2f}). {behind}."
    others = f"{len(following)} of {heads} do above chance ({report.chance:.2f})"
    return f"{claim}), as those of {others}. {behind}."


def _ranked(report: SpeechReport) -> list[HeadOnSound]:
    """Return the heads that follow the words first, by the height of their peaks.

    One that moves on with shuffled words, too, counts for less. Of the encoder those are first that
    look least behind the sound.
    """
    if report.kind == "encoder" or math.isnan(report.chance):
        return sorted(report.heads, key=lambda head: head.padding)

    def clear(head: HeadOnSound) -> tuple[bool, float]:
        return report.follows(head), float(head.rows.max(-1).mean()) * (1 - abs(head.shuffled))

    return sorted(report.heads, key=clear, reverse=True)


def _pooled(values: Floats, edges: Sequence[int], *, mean: bool = False) -> Floats:
    """Return the sums, or means, of values (…, frame) between edges."""
    sums = np.add.reduceat(np.asarray(values, np.float64), edges[:-1], axis=-1)
    return sums / np.diff(edges) if mean else sums


def _map(
    report: SpeechReport, head: HeadOnSound, columns: int, lines: int = 0, *, titled: bool
) -> doc.Maps:
    """Return a head's map of so many columns and rows (0: all), the rest left out at the end."""
    frames, frame = head.rows.shape[1], report.frame * 1000
    most = max(columns, 1)
    step = next((step for step in _STEPS if frames * frame <= step * most), frames * frame / most)
    times = np.arange(0, frames * frame, step)
    edges = np.unique(np.append((times / frame).round().astype(int), frames))
    kept = len(report.words) if not lines else min(len(report.words), max(lines - 1, 1))
    if report.kind == "encoder" and kept < len(report.words):  # all of the sound, pooled
        starts = np.linspace(0, len(report.words), kept + 1).round().astype(int)
        rows = _pooled(head.rows.T, starts.tolist(), mean=True).T
        names = [report.words[at] for at in starts[:-1]]
    else:
        rows, names = head.rows[:kept], list(report.words[:kept])
    weights = _pooled(rows, edges.tolist())
    loud = _pooled(report.loudness, edges.tolist(), mean=True)
    loud = loud / max(float(loud.max()), np.finfo(float).tiny)
    times_of = tuple((edges[:-1] * frame).round().astype(int).tolist())
    seconds = _named(tuple(map(str, times_of)), times_of)
    name = report.head_name(head)
    facts = [] if math.isnan(head.order) else [(f"order {head.order:.2f}", False)]
    facts += [(f"padding {head.padding:.0%}", False), ("ms", False)]
    left = len(report.words) - kept if report.kind == "cross" else 0
    facts += [(f"{left} more words: --full", False)] if left else []
    rows_named, words = _named([_LOUD, *names]), [(name, True), *facts]
    drawn = doc.Map(name, np.vstack([loud, weights]), rows_named, seconds, words=words)
    looks = "Where words look" if report.kind == "cross" else "Where the sound looks at itself"
    axes = [(looks, True), ("columns in ms, first row: loudness", False)]
    return doc.Maps([drawn], axes if titled else (), scale=None, lines=lines)


def _named(texts: Sequence[str], places: tuple[int, ...] = ()) -> Tokens:
    count = len(texts)
    return Tokens(tuple(range(count)), tuple(texts), (False,) * count, places)


def _grid(report: SpeechReport) -> doc.HeadGrid:
    """Return every head: how far it follows the order, or its share of weight on padding."""
    ordered = not math.isnan(report.chance)
    cells = {}
    for head in report.heads:
        value = head.order if ordered else head.padding
        strength = float(np.clip(value, 0, 1))
        cells[head.layer, head.head] = doc.Cell(
            strength,
            doc.Tint(round(255 * strength)),
            text=share(value) if value >= 0 else f"-{share(-value)}",
            letter="w" if ordered and report.follows(head) else "",
            tip=f"{report.head_name(head)}: order {head.order:.2f}, padding {head.padding:.2f}",
            values={"order": head.order, "padding": head.padding},
        )
    measure = "peaks in the order of the words" if ordered else "weight after the sound"
    title = [("All heads", True), (measure, False)]
    title += [(f"chance {report.chance:.2f}", False)] if ordered else []
    key = [doc.Key(None, "follows the words", "w")] if ordered else []
    return doc.head_grid(cells, report.index_base, title=title, key=key)


def _table(report: SpeechReport) -> doc.Table:
    def number(value: float) -> str:
        return "–" if math.isnan(value) else f"{value:.2f}"

    return doc.table(
        _ranked(report),
        doc.ColumnOf("head", report.head_name, right=False),
        doc.ColumnOf("order", lambda head: number(head.order)),
        doc.ColumnOf("shuffled", lambda head: number(head.shuffled)),
        doc.ColumnOf("padding", lambda head: f"{head.padding:.0%}"),
        title=[("Scores", True), ("order: Spearman's correlation of words and peaks", False)],
    )


def _first(report: SpeechReport, columns: int, lines: int) -> Sequence[doc.Group]:
    heads, grid = _ranked(report), _grid(report)
    rows = min(len(report.words) + 1, lines - _AROUND)
    label = min(max(map(len, (_LOUD, *report.words))), 20) + 8
    across = max(min(columns // _LEAST, len(heads)), 1)
    most = max(((columns - 3 * (across - 1)) // across - 4 - label) // 2, 2)
    room = lines - _AROUND + 3 - len(grid.rows) - 4
    stacked = max(min(room // (rows + 4), len(heads) // across), 1)

    groups = []
    for at in range(0, across * stacked, across):
        parts = [
            _map(report, head, most, rows, titled=head is heads[0] and across == 1)
            for head in heads[at : at + across]
        ]
        groups.append(doc.beside(*parts) if across > 1 else doc.Group(parts))
    below = [doc.Group([grid], yields=1)] if len(heads) > 1 and room >= rows + 4 else []
    return [*groups, *below]
