"""A line to type in, whose control characters are drawn in words and never act on the terminal.

Textual's own ``Input`` does not serve here. It has the focus only after the app has been through
its queue, so that the letters of ``/quit`` that are typed ahead would be commands, and it sends the
control characters of a text to the terminal as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rich.segment import Segment

from attnviz.draw.blocks import Line
from attnviz.draw.labels import fit, visible, width
from attnviz.draw.theme import Theme

_SEEN = 4
"""How many characters are looked at per column, since some characters take none."""


@dataclass(frozen=True)
class Field:
    """The text in an input line. before, behind: its parts before and behind the cursor.

    suggested: whether the text is a suggestion, which is selected: typing replaces it, and any
        other key keeps it.
    """

    before: str = ""
    behind: str = ""
    suggested: bool = False

    @property
    def text(self) -> str:
        return self.before + self.behind

    def typed(self, key: str, character: str | None) -> Field:
        """Return the field after a key was pressed; unchanged if the key does nothing in a line.

        key: its name in Textual. character: what it types, or None.
        """
        before, behind = self.before, self.behind
        stem = before.rstrip()
        edits = {
            "left": (before[:-1], before[-1:] + behind),
            "right": (before + behind[:1], behind[1:]),
            "home": ("", before + behind),
            "end": (before + behind, ""),
            "backspace": ("" if self.suggested else before[:-1], behind),
            "delete": (before, behind[1:]),
            "ctrl+w": (stem[: len(stem) - len(stem.split(" ")[-1])], behind),
            "ctrl+u": ("", behind),
            "ctrl+k": (before, ""),
        }
        if key in edits:
            return Field(*edits[key])
        return self.with_text(character) if character and character.isprintable() else self

    def with_text(self, text: str) -> Field:
        """Return the field with text inserted at the cursor, in one line."""
        line = " ".join(text.splitlines())
        return Field(line) if self.suggested else Field(self.before + line, self.behind)

    def line(self, max_width: int, theme: Theme) -> Line:
        """Return the part of the text around the cursor that fits in the line.

        max_width: in characters. theme: colours and characters. Control characters are escaped.
        """
        typed, rest = self.before[-_SEEN * max_width :], self.behind[: _SEEN * max_width]
        text = visible(typed + rest, theme.encoding)
        before = visible(typed, theme.encoding)
        here = visible(typed + rest[:1], theme.encoding)[len(before) :] or " "
        start, left = len(before), max_width - width(here)
        while start and width(before[start - 1]) <= left:
            start, left = start - 1, left - width(before[start - 1])
        behind = text[len(before) + len(here) :]
        behind = fit(behind, left, theme.ellipsis) if width(behind) > left else behind
        cursor = theme.accent(ground=True)
        look = cursor if self.suggested else None
        return [Segment(before[start:], look), Segment(here, cursor), Segment(behind)]


class AskedLine(NamedTuple):
    """A question to the user in the line of keys, which receives every key until Enter or Esc.

    question: its words. field: the text typed so far. answered: is called with the text after
        Enter. typing: is called with the text after every change. left: is called after Esc.
    """

    question: str
    field: Field
    answered: Callable[[str], None]
    typing: Callable[[str], None] = lambda typed: None
    left: Callable[[], None] = lambda: None
