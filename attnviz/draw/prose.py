"""Breaks sentences, and parts joined by dots, to the width of the screen; chooses the glossary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line, text_line
from attnviz.draw.document import Explanation, Meaning, Say
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.theme import Theme, Words
from attnviz.measures.registry import LABELS, UNLABELLED
from attnviz.records import SINKS


def faint_lines(text: str, theme: Theme, max_width: int) -> list[Line]:
    """Break a text, which must be safe to print, at blanks into faint lines; [] for no words."""
    pieces = at_blanks(text, max_width, "", theme.ellipsis)
    return [text_line((piece, DIM)) for piece in pieces if piece]


def paragraph(text: str, max_width: int, theme: Theme, style: Style | None = None) -> Block:
    """Break text at blanks, indented by two; without a style bold before the first colon."""
    lines = at_blanks(text, max_width, "  ", theme.ellipsis)
    if style is not None:
        return Block(tuple(text_line((line, style)) for line in lines), max_width)
    head, colon, rest = lines[0].partition(":")
    first = text_line((head + colon, BOLD), rest) if colon else text_line(lines[0])
    return Block((first, *(text_line(line) for line in lines[1:])), max_width)


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


def words_lines(words: Words, theme: Theme, max_width: int) -> list[Line]:
    """Return lines with attnviz's own words, as the console can show them, joined by dots."""
    return wrapped([(theme.spell(text), tone) for text, tone in words if text], max_width, theme)


def words_block(words: Words, theme: Theme, max_width: int) -> Block:
    """Return the lines of ``words_lines`` as a block, which is empty without words."""
    return Block(tuple(words_lines(words, theme, max_width)), max_width)


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


# What an explanation says about what is on the screen above it ----------------------------------
#
# The sentences stand in the manual's glossary, under the name of the command, or under the words
# that every screen shares. An entry is ``- **a word**, **another**: what they mean``.

LINES = 20
"""The most lines below a screen of ``_COLUMNS``, an empty one among them; a wider one has fewer."""

_COLUMNS, _OF_LABELS = 80, 11
_GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
_SHARED = "Words of every screen"


def said_about(
    explanation: Explanation, screen: str, spell: Callable[[str], str] = str
) -> Iterator[Say]:
    """Yield the sentences of an explanation: the data measured, the terms, the manual page.

    Of the terms on the screen the first that fit are explained, in their order on the page; labels
    of heads and the terms of the explanation itself share one sentence behind the first.
    screen: all characters of the screen. spell: writes a text as the screen does.
    """
    measured = f"How to read this: {explanation.measured}"
    more = f"More: attnviz docs {explanation.page}."
    room = LINES - 1 - _lines(measured, spell) - _lines(more, spell)
    yield Say(measured)
    labels = [sentence for term in explanation.terms if (sentence := _shown(term, screen, spell))]
    labels += _labels(explanation, screen)
    while labels and _lines(_together(labels), spell) > _OF_LABELS:
        labels.pop()
    terms = manual_terms(explanation.page)
    sentences = [sentence for term in terms if (sentence := _shown(term, screen, spell))]
    sentences[1:1] = [_together(labels)] * bool(labels)
    for sentence in sentences:
        if (size := _lines(sentence, spell)) <= room:
            room -= size
            yield Say(sentence)
    yield Say(more)


def _shown(term: Meaning, screen: str, spell: Callable[[str], str]) -> str:
    """Return what those words of a term mean that stand on the screen; empty if none does."""
    forms = {word: re.escape(spell(word)) for word in term.words}
    there = [word for word, form in forms.items() if re.search(rf"(?<![\w-]){form}(?!\w)", screen)]
    longest = [word for word in there if not any(word in other for other in {*there} - {word})]
    return f"{', '.join(longest)}: {term.meaning}" if there else ""


def _labels(explanation: Explanation, screen: str) -> Iterator[str]:
    """Yield what labels on the screen mean: names that a score follows, or that are in brackets.

    Sinks and the labels among the terms of the explanation itself are left out.
    """
    known = {word for term in explanation.terms for word in term.words}
    for label in (*LABELS.values(), *UNLABELLED.values()):
        stands = re.search(rf"(?<!\w)({label.said}|{label.short})(\)| +(\.\d|1\.0))", screen)
        if stands and label.said not in known and label.name not in SINKS:
            yield f"{stands[1]}: {label.meaning}."


def _together(sentences: Sequence[str]) -> str:
    """Return the meanings of labels as one sentence, so that more of them fit."""
    return "; ".join(sentence.removesuffix(".") for sentence in sentences) + "." * bool(sentences)


@cache
def manual_terms(page: str) -> Sequence[Meaning]:
    """Return the glossary entries of a command's screens, its own first, no word twice."""
    text = _GLOSSARY.read_text(encoding="utf-8")
    terms = list[Meaning]()
    for title in (page, _SHARED):
        known = {word for term in terms for word in term.words}
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for entry in re.split(r"^- ", section, flags=re.MULTILINE)[1:]:
            words, _, meaning = " ".join(entry.split()).partition("**: ")
            new = [word for word in words.strip("*").split("**, **") if word not in known]
            if new:
                terms.append(Meaning(new, re.sub("[*`]{1,2}", "", meaning)))
    return terms


def _lines(text: str, spell: Callable[[str], str]) -> int:
    return len(at_blanks(spell(text), _COLUMNS, "  "))
