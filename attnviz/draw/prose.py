"""Breaks sentences, and parts joined by dots, to the width of the screen."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line, text_line
from attnviz.draw.labels import at_blanks, fit, visible, width
from attnviz.draw.theme import Theme, Words


def paragraph(text: str, room: int, theme: Theme, style: Style | None = None) -> Block:
    """Break text at blanks, with later lines indented by two; the text must be safe to print.

    room: the available width in characters; a wider word is cut.
    style: of all words; None draws those before the first colon bold.
    """
    lines = at_blanks(text, room, "  ", theme.ellipsis)
    if style is not None:
        return Block(tuple(text_line((line, style)) for line in lines), room)
    head, colon, rest = lines[0].partition(":")
    first = text_line((head + colon, BOLD), rest) if colon else text_line(lines[0])
    return Block((first, *(text_line(line) for line in lines[1:])), room)


def quoted_line(name: str, content: str, room: int, theme: Theme, lead: int = 7) -> Line:
    """Return a text in one line behind its name, cut at the end of the line.

    room: the available width in characters. lead: the width of the name in characters.
    """
    shown = visible(" ".join(content.split()), theme.encoding)
    shown = fit(shown, room - lead, theme.ellipsis) if width(shown) > room - lead else shown
    return text_line((name.ljust(lead), DIM), shown)


def spelled_parts(parts: Words, theme: Theme) -> Words:
    """Return the parts in characters that the console can show."""
    return [(theme.spell(text), tone) for text, tone in parts]


def wrapped(parts: Words, room: int, theme: Theme) -> list[Line]:
    """Return lines with the parts (text, tone) joined by dots, broken between two parts.

    room: the available width in characters. A part longer than a line is broken at blanks.
    """
    lines: list[Line] = []
    used = 0
    for text, tone in parts:
        style = theme.tone(tone)
        if lines and used + width(theme.dot + text) <= room:
            lines[-1] += [Segment(theme.dot, DIM), Segment(text, style)]
            used += width(theme.dot + text)
            continue
        pieces = [text] if width(text) <= room else at_blanks(text, room, "", theme.ellipsis)
        lines += [[Segment(piece, style)] for piece in pieces]
        used = width(pieces[-1])
    return lines


def one_line(parts: Words, theme: Theme, room: int) -> Line:
    """Return one line with as many of the parts (text, tone) as fit, joined by dots.

    room: the available width in characters. Only the first part may be cut.
    """
    line: Line = []
    used, dot = 0, theme.dot
    for text, tone in parts:
        spelled, style = theme.spell(text), theme.tone(tone)
        if not line:
            if width(spelled) > room:
                return [Segment(cut_at_word(spelled, room, theme), style)]
        elif used + width(dot) + width(spelled) > room:
            break
        elif style == line[-1].style:
            spelled = dot + spelled
        else:
            line.append(Segment(dot))
            used += width(dot)
        line.append(Segment(spelled, style))
        used += width(spelled)
    return line


def cut_at_word(text: str, room: int, theme: Theme) -> str:
    """Return as many whole words of a text as fit in ``room`` characters, then an ellipsis."""
    kept = fit(text, room, theme.ellipsis)
    whole = kept.removesuffix(theme.ellipsis).rstrip()
    if " " in whole and not text.startswith(f"{whole} "):
        whole = whole.rpartition(" ")[0]
    return f"{whole} {theme.ellipsis}" if width(whole) + 2 <= room else kept
