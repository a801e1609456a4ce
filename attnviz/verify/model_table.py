"""The properties of a model: a block a check, a line a measure, and where its tolerance is from."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, stack
from attnviz.draw.labels import at_blanks, visible, width
from attnviz.draw.theme import Theme
from attnviz.verify.records import Check, Measure, Verification
from attnviz.verify.signs import in_signs
from attnviz.verify.words import bound_words, difference, verdict, verdict_style

__all__ = ["model_table"]

_VERDICT = 6
_NUMBER = 7
_GAP = 2


def model_table(found: Verification, theme: Theme, room: int) -> Block:
    """Every check below the other."""
    measures = [measure for check in found.checks for measure in check.measures]
    columns = _Columns(
        max((width(measure.name) for measure in measures), default=0),
        max((width(measure.where) for measure in measures), default=0),
        max((width(in_signs(_reason(measure), theme)) for measure in measures), default=0),
    )
    return stack([_check(check, theme, room, columns) for check in found.checks])


@dataclass(frozen=True)
class _Columns:
    """How wide the longest of all names, places and reasons are."""

    name: int
    where: int
    reason: int

    def beside(self, used: int, room: int) -> bool:
        """Whether every reason stands on the line of its measure."""
        return used + self.where + 2 * _GAP + self.reason <= room


def _reason(measure: Measure) -> str:
    return f"{bound_words(measure.tolerance)}: {measure.reason}"


def _check(check: Check, theme: Theme, room: int, columns: _Columns) -> Block:
    word = Segment(f"{verdict(check):<{_VERDICT}}", verdict_style(check.verdict, theme))
    claim = check.claim if check.skipped is None else check.skipped
    told = visible(in_signs(f"{check.name}: {claim}", theme), theme.encoding)
    lines = _broken(told, word, room, theme)
    before = ""
    for measure in check.measures:
        reason = _reason(measure)
        lines += _measure(measure, "" if reason == before else reason, theme, room, columns)
        before = reason
    for note in check.notes:
        lines += _dim(in_signs(note, theme), _VERDICT, theme, room)
    return Block(tuple(lines), room)


def _broken(told: str, word: Segment, room: int, theme: Theme) -> list[Line]:
    """The name in bold, then what it claims."""
    pieces = at_blanks(told, max(room - _VERDICT, 8), "", theme.ellipsis)
    name, colon, rest = pieces[0].partition(":")
    first: Line = [word, Segment(name, BOLD), Segment(colon + rest)]
    return [first, *([Segment(" " * _VERDICT), Segment(piece)] for piece in pieces[1:])]


def _measure(
    measure: Measure, reason: str, theme: Theme, room: int, columns: _Columns
) -> list[Line]:
    """The measure; its reason beside it where there is room for all, else below."""
    style = None if measure.passed else verdict_style("fail", theme) + BOLD
    sign = "≤" if measure.passed else ">"
    number = f"{difference(measure.difference):>{_NUMBER}}"
    bound = in_signs(f" {sign} {difference(measure.tolerance.value):<{_NUMBER}}", theme)
    told = in_signs(reason, theme)
    used = _VERDICT + columns.name + _GAP + _NUMBER + len(bound)
    if used > room:
        whole = f"{measure.name} {number.strip()}{bound.rstrip()} {measure.where}".rstrip()
        pieces = at_blanks(whole, max(room - _VERDICT, 8), "  ", theme.ellipsis)
        lines: list[Line] = [
            [Segment(" " * min(_VERDICT, room // 4)), Segment(piece, style)] for piece in pieces
        ]
        return lines + (_dim(told, _VERDICT, theme, room) if told else [])
    line: Line = [
        Segment(" " * _VERDICT + measure.name.ljust(columns.name + _GAP)),
        Segment(number, style),
        Segment(bound, DIM),
    ]
    if columns.beside(used, room):
        gap = " " * _GAP
        return [[*line, Segment(f"{gap}{measure.where:<{columns.where}}{gap}"), Segment(told, DIM)]]
    if measure.where and used + _GAP + width(measure.where) <= room:
        line.append(Segment(" " * _GAP + measure.where))
    elif measure.where:
        told = f"{measure.where}; {told}" if told else measure.where
    return [line, *(_dim(told, _VERDICT + _GAP, theme, room) if told else [])]


def _dim(text: str, indent: int, theme: Theme, room: int) -> list[Line]:
    indent = min(indent, room // 4)
    safe = visible(text, theme.encoding)
    return [
        [Segment(" " * indent), Segment(piece, DIM)]
        for piece in at_blanks(safe, room - indent, "", theme.ellipsis)
    ]
