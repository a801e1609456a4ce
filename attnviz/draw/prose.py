"""Breaks sentences, and parts joined by dots, to the width of the screen."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line, text_line
from attnviz.draw.labels import at_blanks, cut, fit, visible, width
from attnviz.draw.theme import Theme, Words


def paragraph(text: str, max_width: int, theme: Theme, style: Style | None = None) -> Block:
    """Break text at blanks, with later lines indented by two; the text must be safe to print.

    style: of all words; None draws those before the first colon bold.
    """
    lines = at_blanks(text, max_width, "  ", theme.ellipsis)
    if style is not None:
        return Block(tuple(text_line((line, style)) for line in lines), max_width)
    head, colon, rest = lines[0].partition(":")
    first = text_line((head + colon, BOLD), rest) if colon else text_line(lines[0])
    return Block((first, *(text_line(line) for line in lines[1:])), max_width)


def quoted_line(name: str, content: str, max_width: int, theme: Theme, lead: int = 7) -> Line:
    """Return a text in one line behind its name, which has ``lead`` characters, cut at the end."""
    shown = visible(" ".join(content.split()), theme.encoding)
    return text_line((name.ljust(lead), DIM), cut(shown, max_width - lead, theme.ellipsis))


def spelled_parts(parts: Words, theme: Theme) -> Words:
    """Return the parts in characters that the console can show."""
    return [(theme.spell(text), tone) for text, tone in parts]


def wrapped(parts: Words, max_width: int, theme: Theme) -> list[Line]:
    """Return lines with the parts (text, tone) joined by dots, broken between two parts.

    A part longer than a line is broken at blanks.
    """
    lines: list[Line] = []
    used = 0
    for text, tone in parts:
        style = theme.tone(tone)
        if lines and used + width(theme.dot + text) <= max_width:
            lines[-1] += [Segment(theme.dot, DIM), Segment(text, style)]
            used += width(theme.dot + text)
            continue
        whole = width(text) <= max_width
        pieces = [text] if whole else at_blanks(text, max_width, "", theme.ellipsis)
        lines += [[Segment(piece, style)] for piece in pieces]
        used = width(pieces[-1])
    return lines


def one_line(parts: Words, theme: Theme, max_width: int) -> Line:
    """Return a line with as many parts (text, tone) as fit; only the first one may be cut."""
    line: Line = []
    used, dot = 0, theme.dot
    for text, tone in parts:
        spelled, style = theme.spell(text), theme.tone(tone)
        if not line:
            if width(spelled) > max_width:
                return [Segment(cut_at_word(spelled, max_width, theme), style)]
        elif used + width(dot) + width(spelled) > max_width:
            break
        elif style == line[-1].style:
            spelled = dot + spelled
        else:
            line.append(Segment(dot))
            used += width(dot)
        line.append(Segment(spelled, style))
        used += width(spelled)
    return line


def cut_at_word(text: str, max_width: int, theme: Theme) -> str:
    """Return as many whole words of a text as fit in ``max_width`` characters, then an ellipsis."""
    kept = fit(text, max_width, theme.ellipsis)
    whole = kept.removesuffix(theme.ellipsis).rstrip()
    if " " in whole and not text.startswith(f"{whole} "):
        whole = whole.rpartition(" ")[0]
    return f"{whole} {theme.ellipsis}" if width(whole) + 2 <= max_width else kept
