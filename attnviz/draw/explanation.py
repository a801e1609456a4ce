"""Chooses what an explanation says: at most twenty lines, about what is on the screen above it.

The sentences stand in the manual's glossary, under the name of the command, or under the words
that every screen shares. An entry is ``- **a word**, **another**: what they mean``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from attnviz.draw.document import Explanation, Meaning, Say
from attnviz.draw.labels import at_blanks

LINES = 20
"""The most lines below a screen of ``_COLUMNS``, an empty one among them; a wider one has fewer."""

_COLUMNS, _OF_LABELS = 80, 11
_GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
_SHARED = "Words of every screen"


def said_about(
    explanation: Explanation, screen: str, spell: Callable[[str], str] = str
) -> Iterator[Say]:
    """Yield the sentences of an explanation: the data measured, the terms, the manual page.

    Of the terms on the screen the first that fit are explained, in their order on the page; those
    of the explanation itself, such as labels, share one sentence behind the first.
    screen: all characters of the screen. spell: writes a text as the screen does.
    """
    measured = f"How to read this: {explanation.measured}"
    more = f"More: attnviz docs {explanation.page}."
    room = LINES - 1 - _lines(measured, spell) - _lines(more, spell)
    yield Say(measured)
    labels = [sentence for term in explanation.terms if (sentence := _shown(term, screen, spell))]
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


def _together(sentences: Sequence[str]) -> str:
    """Return the meanings of labels as one sentence, so that more of them fit."""
    return "; ".join(sentence.removesuffix(".") for sentence in sentences) + "." * bool(sentences)


@cache
def manual_terms(page: str) -> Sequence[Meaning]:
    """Return the glossary entries of a command's screens, its own first.

    page: the name of the command. A word that it explains itself is not explained twice.
    """
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
