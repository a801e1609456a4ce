"""The tables of a verification on a terminal; every other outlet draws them as plain tables.

A row of the own attention's comparisons is broken into lines where the room is short; a measure of
a model has its reason beside it or below; the matrices of a step stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line, flow, stack
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme, Tone
from attnviz.verify.records import Check, Measure, Verdict

TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "skipped": "skipped"}

_VERDICT, _NAME = 6, 7
_DIFFERENCE = 7
_GAP = 2
_NUMBER = _DIFFERENCE + _GAP
_ROOMY = 62
"""Columns below which a comparison is broken into two lines."""


def difference(value: float) -> str:
    """A difference or a tolerance in at most seven characters, such as ``1.2e-07``."""
    if value == 0:
        return "0"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf"
    return f"{value:,.0f}" if value >= 1 and value == int(value) < 1e6 else f"{value:.1e}"


def _word(check: Check, theme: Theme) -> Segment:
    return Segment(f"{check.word:<{_VERDICT}}", theme.tone(TONES[check.verdict]))


def _hung(
    lead: Segment | None, text: str, style: Style | None, theme: Theme, room: int
) -> list[Line]:
    """Text broken to the right of the verdicts, ``lead`` before its first line."""
    blank = Segment(" " * _VERDICT)
    pieces = at_blanks(text, max(room - _VERDICT, 8), "", theme.ellipsis)
    return [
        [blank if place or lead is None else lead, Segment(piece, style)]
        for place, piece in enumerate(pieces)
    ]


def _failed(measure: Measure, theme: Theme) -> Style | None:
    return None if measure.passed else theme.tone("bad")


# The own attention ---------------------------------------------------------------------------


def case_width(checks: Sequence[Check]) -> int:
    """The columns that a case takes where there is room, for the longest of all ``checks``."""
    against = max((width(check.against) for check in checks), default=0)
    return max(_VERDICT + _NAME + against + _GAP + 2 * _NUMBER, _ROOMY)


def case_block(name: str, words: str, checks: Sequence[Check], theme: Theme, room: int) -> Block:
    """The comparisons of one case under its name; without one, of no case."""
    lines: list[Line] = []
    against = max(room - _VERDICT - _NAME - 2 * _NUMBER, 1)
    measured = next((check.measures for check in checks if len(check.measures) == 2), ())
    if name:
        lines += wrapped([(name, True), *([(words, False)] if words else [])], room, theme)
    if measured and room >= _ROOMY:
        lines += _titles(measured, against, theme, room)
    for measure in measured if room < _ROOMY else ():
        most = difference(measure.tolerance.value)
        told = theme.spell(f"{measure.name} at most {most} ({measure.tolerance.words})")
        lines += [[Segment(piece, DIM)] for piece in at_blanks(told, room, "  ", theme.ellipsis)]
    for check in checks:
        lines += _comparison(check, against, theme, room)
    return Block(tuple(lines), room)


def _titles(measures: Sequence[Measure], against: int, theme: Theme, room: int) -> list[Line]:
    """The names of the columns, and the most that their numbers may be."""
    lead = _VERDICT + _NAME + against
    names = " " * _VERDICT + "ours".ljust(_NAME) + "against"
    titles = _numbers([measure.name for measure in measures])
    bounds = dict.fromkeys(measure.tolerance.words for measure in measures)
    told = theme.spell(f"at most {' and '.join(bounds)}")
    *pieces, last = at_blanks(told, lead - _VERDICT, "", theme.ellipsis)
    most = _numbers([difference(measure.tolerance.value) for measure in measures])
    return [
        [Segment(names + titles.rjust(room - len(names)), DIM)],
        *([Segment(" " * _VERDICT), Segment(piece, DIM)] for piece in pieces),
        [Segment(fit(" " * _VERDICT + last, lead), DIM), Segment(most, DIM)],
    ]


def _numbers(texts: Sequence[str]) -> str:
    return "".join(f"{text:>{_NUMBER}}" for text in texts)


def _comparison(check: Check, against: int, theme: Theme, room: int) -> list[Line]:
    """One comparison in a row, or where the room is short in several lines."""
    word = _word(check, theme)
    if check.skipped is not None:
        told = theme.spell(f"{check.against or check.name}: {check.skipped}")
        return _hung(word, told, DIM, theme, room)
    if room < _ROOMY:
        values = ", ".join(f"{one.name} {difference(one.difference)}" for one in check.measures)
        names = f"{check.name}, {check.against}"
        return _hung(word, names, None, theme, room) + _hung(None, values, DIM, theme, room)
    cells = [
        Segment(_numbers([difference(one.difference)]), _failed(one, theme))
        for one in check.measures
    ]
    other = Segment(fit(check.against, against, theme.ellipsis))
    return [[word, Segment(f"{check.name:<{_NAME}}"), other, *cells]]


# A model -------------------------------------------------------------------------------------


def model_block(checks: Sequence[Check], theme: Theme, room: int) -> Block:
    """Every check below the other: what it claims, then a line a measure."""
    measures = [measure for check in checks for measure in check.measures]
    name = max((width(measure.name) for measure in measures), default=0)
    where = max((width(measure.where) for measure in measures), default=0)
    reason = max((width(theme.spell(measure.words)) for measure in measures), default=0)
    used = _VERDICT + name + _GAP + 2 * _DIFFERENCE + len(" ≤ ")
    beside = used + where + 2 * _GAP + reason <= room
    columns = name, where if beside else 0, beside
    blocks = []
    for check in checks:
        claim = check.claim if check.skipped is None else check.skipped
        told = theme.spell(f"{check.name}: {claim}")
        lines = _hung(_word(check, theme), told, None, theme, room)
        title, colon, rest = lines[0][1].text.partition(":")
        lines[0][1:] = [Segment(title, BOLD), Segment(colon + rest)]
        before = ""
        for measure in check.measures:
            told = theme.spell(measure.words)
            lines += _measure(measure, "" if told == before else told, columns, theme, room)
            before = told
        for note in check.notes:
            lines += _dim(theme.spell(note), _VERDICT, theme, room)
        blocks.append(Block(tuple(lines), room))
    return stack(blocks)


def _measure(
    measure: Measure, reason: str, columns: tuple[int, int, bool], theme: Theme, room: int
) -> list[Line]:
    """The measure; its reason beside it where there is room for all, else below."""
    longest, places, beside = columns
    style = _failed(measure, theme)
    sign = theme.spell("≤" if measure.passed else ">")
    number = f"{difference(measure.difference):>{_DIFFERENCE}}"
    bound = f" {sign} {difference(measure.tolerance.value):<{_DIFFERENCE}}"
    used = _VERDICT + longest + _GAP + len(number + bound)
    if used > room:
        whole = f"{measure.name} {number.strip()}{bound.rstrip()} {measure.where}".rstrip()
        pieces = at_blanks(whole, max(room - _VERDICT, 8), "  ", theme.ellipsis)
        indent = Segment(" " * min(_VERDICT, room // 4))
        lines: list[Line] = [[indent, Segment(piece, style)] for piece in pieces]
        return lines + _dim(reason, _VERDICT, theme, room)
    line: Line = [
        Segment(" " * _VERDICT + measure.name.ljust(longest + _GAP)),
        Segment(number, style),
        Segment(bound, DIM),
    ]
    gap = " " * _GAP
    if beside:
        return [[*line, Segment(f"{gap}{measure.where:<{places}}{gap}"), Segment(reason, DIM)]]
    if measure.where and used + _GAP + width(measure.where) <= room:
        line.append(Segment(gap + measure.where))
    elif measure.where:
        reason = f"{measure.where}; {reason}" if reason else measure.where
    return [line, *_dim(reason, _VERDICT + _GAP, theme, room)]


def _dim(text: str, indent: int, theme: Theme, room: int) -> list[Line]:
    indent = min(indent, room // 4)
    pieces = at_blanks(text, room - indent, "", theme.ellipsis) if text else []
    return [[Segment(" " * indent), Segment(piece, DIM)] for piece in pieces]


# The steps -----------------------------------------------------------------------------------


def matrices_block(
    matrices: Sequence[tuple[str, Sequence[Sequence[str]]]], theme: Theme, room: int
) -> Block:
    """Named matrices side by side, indented under the name of their step."""
    inner = room - 3
    drawn = flow([_matrix(name, rows, theme, inner) for name, rows in matrices], inner, 3)
    lines = (([Segment("   "), *line] if line else line) for line in drawn.lines)
    return Block(tuple(lines), room)


def _matrix(name: str, rows: Sequence[Sequence[str]], theme: Theme, room: int) -> Block:
    cells = [[theme.spell(cell) for cell in row] for row in rows]
    widest = max(width(cell) for row in cells for cell in row)
    texts = [" ".join(" " * (widest - width(cell)) + cell for cell in row) for row in cells]
    caption = fit(name, min(width(name), room), theme.ellipsis)
    across = min(max(width(name), width(texts[0])), room)
    shown = [text if width(text) <= room else fit(text, room, theme.ellipsis) for text in texts]
    return Block(([Segment(caption, DIM)], *([Segment(text)] for text in shown)), across)
