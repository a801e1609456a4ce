"""The properties of a model: a block a check, a line a measure, and where its tolerance is from."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.render.blocks import BOLD, DIM, Block, Line, stack
from attnviz.render.labels import at_blanks, visible, width
from attnviz.render.theme import Theme
from attnviz.render.verification.signs import in_signs
from attnviz.render.verification.words import bound_words, difference, verdict, verdict_style
from attnviz.verification import Check, Measure, Verification

__all__ = ["model_table"]

_VERDICT = 6
_NUMBER = 7
_REASON = 30
"""Columns from which on a reason stands beside its measure."""


def model_table(found: Verification, theme: Theme, room: int) -> Block:
    """Every check below the other."""
    names = [m.name for check in found.checks for m in check.measures]
    longest = max(map(width, names), default=0)
    places = max((width(m.where) for c in found.checks for m in c.measures), default=0)
    return stack([_check(check, theme, room, longest, places) for check in found.checks])


def _check(check: Check, theme: Theme, room: int, longest: int, places: int) -> Block:
    word = Segment(f"{verdict(check):<{_VERDICT}}", verdict_style(check.verdict, theme))
    claim = check.claim if check.skipped is None else check.skipped
    told = visible(in_signs(f"{check.name}: {claim}", theme), theme.encoding)
    lines = _broken(told, word, room, theme)
    told_before = ""
    for measure in check.measures:
        reason = f"{bound_words(measure.tolerance)}: {measure.reason}"
        lines += _measure(
            measure, "" if reason == told_before else reason, theme, room, longest, places
        )
        told_before = reason
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
    measure: Measure, reason: str, theme: Theme, room: int, longest: int, places: int
) -> list[Line]:
    """The measure; its reason beside it where there is room, else below."""
    style = None if measure.passed else verdict_style("fail", theme) + BOLD
    number = f"{difference(measure.difference):>{_NUMBER}}"
    bound = in_signs(f" ≤ {difference(measure.tolerance.value):<{_NUMBER}}", theme)
    if not measure.passed:
        bound = in_signs(f" > {difference(measure.tolerance.value):<{_NUMBER}}", theme)
    used = _VERDICT + longest + 2 + _NUMBER + len(bound)
    if used > room:
        whole = f"{measure.name} {number.strip()}{bound.rstrip()} {measure.where}".rstrip()
        lines: list[Line] = [
            [Segment(" " * min(_VERDICT, room // 4)), Segment(piece, style)]
            for piece in at_blanks(whole, max(room - _VERDICT, 8), "  ", theme.ellipsis)
        ]
        return lines + (_dim(in_signs(reason, theme), _VERDICT, theme, room) if reason else [])
    line: Line = [
        Segment(" " * _VERDICT + measure.name.ljust(longest) + "  "),
        Segment(number, style),
        Segment(bound, DIM),
    ]
    told = in_signs(reason, theme)
    if room - used - places - 4 >= max(_REASON, 0) and room - used - places - 4 >= width(told) // 2:
        line.append(Segment(f"  {measure.where:<{places}}  "))
        pieces = at_blanks(told, room - used - places - 4, "", theme.ellipsis)
        start = " " * (used + places + 4)
        line.append(Segment(pieces[0], DIM))
        return [line, *([Segment(start), Segment(piece, DIM)] for piece in pieces[1:])]
    if measure.where and used + 2 + width(measure.where) <= room:
        line.append(Segment(f"  {measure.where}"))
    elif measure.where:
        told = f"{measure.where}; {told}" if told else measure.where
    return [line, *(_dim(told, _VERDICT + 2, theme, room) if told else [])]


def _dim(text: str, indent: int, theme: Theme, room: int) -> list[Line]:
    indent = min(indent, room // 4)
    safe = visible(text, theme.encoding)
    return [
        [Segment(" " * indent), Segment(piece, DIM)]
        for piece in at_blanks(safe, room - indent, "", theme.ellipsis)
    ]
