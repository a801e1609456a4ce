"""One case in full: its two histograms and the table of its measures, theory beside measurement."""

from __future__ import annotations

import math

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, Block, Line, stack
from attnviz.draw.labels import at_blanks, width
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.scaling.chart import chart_pair, side_style
from attnviz.scaling.numbers import LABELS, measured, whole
from attnviz.scaling.records import MEASURES, ScalingCase, ScalingReport, Softened

__all__ = ["case_block", "case_title", "expected_words"]

_GAP = 2
_COLUMN = 23
_TITLES = ("without the scale", "with the scale")


def case_block(report: ScalingReport, case: ScalingCase, theme: Theme, room: int) -> Block:
    """Title, histograms and table, in ``room`` columns."""
    title = Block(tuple(wrapped(case_title(report, case, theme), room, theme)), room)
    even = report.keys if report.model is None else None
    charts = chart_pair(case, even, theme, room)
    return stack([stack([title, charts], gap=0), _table(report, case, theme, room)], gap=1)


def case_title(report: ScalingReport, case: ScalingCase, theme: Theme) -> list[tuple[str, bool]]:
    """Which case, and its scale, as parts (text, bold) of a line."""
    parts = [(report.name(case), True)]
    if report.model is not None:
        parts.append((f"d_k {case.d_k}", False))
    scale = case.scaled.scale
    value = f"{scale:.4g}"
    if math.isclose(scale, 1 / math.sqrt(case.d_k)):
        root = f"1/sqrt({case.d_k})" if theme.ascii else f"1/√{case.d_k}"
        parts.append((f"scale {root} = {value}", False))
    else:
        parts.append((f"scale {value}, the model's own", False))
    if case.layer is not None and case.head is None:
        parts.append((f"mean of {case.heads} head{'s' * (case.heads != 1)}", False))
    return parts


def expected_words(report: ScalingReport, side: Softened) -> str:
    """What theory says of the variance: ``theory 64``, of a model ``random 32``."""
    name = "theory" if report.model is None else "random"
    return f"{name} {whole(side.expected_variance)}"


def _cells(report: ScalingReport, case: ScalingCase, theme: Theme) -> list[tuple[str, str, str]]:
    """Name, measurement without and with the scale, a row a measure."""
    rows = []
    for name in MEASURES:
        texts = []
        for side in (case.plain, case.scaled):
            text = measured(name, side.measures[name], theme)
            if name == "score_variance":
                text += f", {expected_words(report, side)}"
            texts.append(text)
        rows.append((LABELS[name], texts[0], texts[1]))
    return rows


def _table(report: ScalingReport, case: ScalingCase, theme: Theme, room: int) -> Block:
    rows = _cells(report, case, theme)
    columns = [*zip(("", *_TITLES), *rows, strict=True)]
    widths = [max(map(width, column)) for column in columns]
    if widths[0] + 2 * (_COLUMN + _GAP) <= room:  # the tables of a run then stand in line
        widths[1:] = [max(cells, _COLUMN) for cells in widths[1:]]
    styles = [None, side_style("plain", theme), side_style("scaled", theme)]
    lines: list[Line] = []
    if sum(widths) + 2 * _GAP > room:
        return _stacked(rows, theme, room)
    for number, row in enumerate([("", *_TITLES), *rows]):
        line: Line = []
        for place, (text, cells) in enumerate(zip(row, widths, strict=True)):
            padded = text + " " * (cells - width(text) + _GAP)
            line.append(Segment(padded, styles[place] if number == 0 else None))
        lines.append(line)
    return Block(tuple(lines), room)


def _stacked(rows: list[tuple[str, str, str]], theme: Theme, room: int) -> Block:
    """The same below each other, where columns have no room."""
    lines: list[Line] = []
    for name, plain_text, scaled_text in rows:
        lines += [[Segment(piece, BOLD)] for piece in at_blanks(name, room, "  ", theme.ellipsis)]
        for word, text in (("without", plain_text), ("with", scaled_text)):
            pieces = at_blanks(f"{word}: {text}", max(room - 2, 1), "  ", theme.ellipsis)
            lines += [[Segment(f"  {piece}")] for piece in pieces]
    return Block(tuple(lines), room)
