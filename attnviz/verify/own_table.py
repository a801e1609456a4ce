"""The comparisons of the own attention: a block a case, a row a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, flow, stack
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.verify.records import Check, Measure, Verification
from attnviz.verify.signs import in_signs
from attnviz.verify.words import bound_words, difference, verdict, verdict_style

__all__ = ["own_table"]

_NUMBER = 8
_VERDICT, _NAME = 6, 7
_ROOMY = 62
"""Columns below which a row is broken into two."""


def own_table(found: Verification, theme: Theme, room: int) -> Block:
    """Every case under its heading, side by side where there is room."""
    groups = dict.fromkeys(check.group for check in found.checks if check.group)
    against = max((width(check.against) for check in found.checks), default=0)
    wide = min(room, max(_VERDICT + _NAME + against + 2 + 2 * _NUMBER + 2, _ROOMY))
    blocks = [
        _case(name, found.cases.get(name, ""), _of(found, name), theme, wide) for name in groups
    ]
    loose = [_line(check, theme, room, against) for check in found.checks if not check.group]
    return stack([flow(blocks, room, 4), *loose])


def _of(found: Verification, group: str) -> list[Check]:
    return [check for check in found.checks if check.group == group]


def _case(name: str, words: str, checks: Sequence[Check], theme: Theme, room: int) -> Block:
    lines = wrapped([(name, True), *([(words, False)] if words else [])], room, theme)
    against = max(room - _VERDICT - _NAME - 2 * _NUMBER - 2, 1)
    measured = next((check for check in checks if len(check.measures) == 2), None)
    if measured is not None and room >= _ROOMY:
        lines.append(_titles(measured.measures, room))
        bounds = [bound_words(measure.tolerance) for measure in measured.measures]
        told = in_signs(f"at most {' and '.join(dict.fromkeys(bounds))}", theme)
        lead = _VERDICT + _NAME + against
        numbers = [difference(measure.tolerance.value) for measure in measured.measures]
        pieces = at_blanks(told, lead - _VERDICT, "", theme.ellipsis)
        lines += [[Segment(" " * _VERDICT), Segment(piece, DIM)] for piece in pieces[:-1]]
        lines.append(_numbers(" " * _VERDICT + pieces[-1], lead, numbers))
    elif measured is not None:
        for measure in measured.measures:
            told = in_signs(
                f"{measure.name} at most {difference(measure.tolerance.value)} "
                f"({bound_words(measure.tolerance)})",
                theme,
            )
            lines += [
                [Segment(piece, DIM)] for piece in at_blanks(told, room, "  ", theme.ellipsis)
            ]
    rows = [_line(check, theme, room, against) for check in checks]
    return stack([Block(tuple(lines), room), *rows], gap=0)


def _titles(measures: Sequence[Measure], room: int) -> Line:
    cells = "".join(f"  {measure.name:>{_NUMBER - 1}}" for measure in measures)
    names = " " * _VERDICT + "ours".ljust(_NAME) + "against"
    return [Segment(names + cells.rjust(room - len(names)), DIM)]


def _numbers(text: str, lead: int, numbers: Sequence[str]) -> Line:
    cells = "".join(f"  {number:>{_NUMBER - 1}}" for number in numbers)
    return [Segment(fit(text, lead), DIM), Segment(cells, DIM)]


def _line(check: Check, theme: Theme, room: int, against: int) -> Block:
    """One comparison in a row, or where the room is short in several lines."""
    word = Segment(f"{verdict(check):<{_VERDICT}}", verdict_style(check.verdict, theme))
    if check.skipped is not None:
        name = check.against or check.name
        told = in_signs(f"{name}: {check.skipped}", theme)
        pieces = at_blanks(told, max(room - _VERDICT, 8), "", theme.ellipsis)
        lines = [
            [word if not place else Segment(" " * _VERDICT), Segment(piece, DIM)]
            for place, piece in enumerate(pieces)
        ]
        return Block(tuple(lines), room)
    if room >= _ROOMY:
        line: Line = [word, Segment(f"{check.name:<{_NAME}}")]
        line.append(Segment(fit(check.against, against, theme.ellipsis)))
        for measure in check.measures:
            line.append(_cell(measure, theme))
        return Block((line,), room)
    told = f"{check.name}, {check.against}"
    pieces = at_blanks(told, max(room - _VERDICT, 8), "", theme.ellipsis)
    lines = [
        [word if not place else Segment(" " * _VERDICT), Segment(piece)]
        for place, piece in enumerate(pieces)
    ]
    values = ", ".join(f"{m.name} {difference(m.difference)}" for m in check.measures)
    lines += [
        [Segment(" " * _VERDICT), Segment(piece, DIM)]
        for piece in at_blanks(values, max(room - _VERDICT, 8), "", theme.ellipsis)
    ]
    return Block(tuple(lines), room)


def _cell(measure: Measure, theme: Theme) -> Segment:
    text = f"  {difference(measure.difference):>{_NUMBER - 1}}"
    return Segment(text, None if measure.passed else verdict_style("fail", theme) + BOLD)
