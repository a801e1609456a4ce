"""What is shown over the panes: the line of keys or of a question, all keys, all commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, stack, widest
from attnviz.draw.labels import cut, fit, visible, width
from attnviz.draw.prose import one_line
from attnviz.draw.theme import Theme
from attnviz.inspect.explore.keys import HINTS, KEYS, POOLED, WINDOW, WRITING, KeyBinding
from attnviz.inspect.explore.panes import Lines, Pane

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


class KeysPane(Pane):
    """The lowest line of explore: the keys that can be used now, a note, or a question.

    asked: the question that is open, or None.
    """

    asked: AskedLine | None = None

    def ask(self, asked: AskedLine | None) -> None:
        """Show a question in the line, or end it for None."""
        self.asked = asked
        self.redraw()

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        theme = self.look
        if self.asked is not None:
            question = theme.spell(cut(self.asked.question, columns * 3 // 4))
            return [
                [Segment(question, BOLD), *self.asked.field.line(columns - width(question), theme)]
            ]
        if self.note:
            return [one_line([(self.note, "strong")], theme, columns)]
        line: Line = []
        used, part = 0, self.view.frame.long
        hints = HINTS if part is None else POOLED if part.pooled else WINDOW
        for key, said in hints if self.view.written is None else WRITING:
            taken = width(key) + 1 + width(said) + (2 if line else 0)
            if used + taken > columns:
                continue
            line += [Segment("  ")] if line else []
            line += [Segment(theme.spell(key), theme.tone(True)), Segment(f" {said}", DIM)]
            used += taken
        return [line]


class Help(ModalScreen[None]):
    """The sheet of every key, grouped by purpose; any key closes it."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._look = theme

    def compose(self) -> ComposeResult:
        groups = [self._group(group) for group in dict.fromkeys(key.group for key in KEYS)]
        sheet = beside([stack(groups[:3]), stack(groups[3:])], 3)
        if sheet.width > self.app.size.width - 6:
            sheet = stack(groups)
        yield Vertical(Lines("help", sheet.lines), id="sheet")

    def _group(self, group: str) -> Block:
        rows: dict[str, list[str]] = {}
        for key in KEYS:
            if key.group == group:
                rows.setdefault(key.listed or key.said, []).append(key.shown)
        look = self._look
        lines: list[Line] = [[Segment(group, BOLD)]]
        for said, shown in rows.items():
            name = look.spell(" ".join(shown)).ljust(8)
            lines.append([Segment(f"{name} ", look.accent()), Segment(look.spell(said))])
        return Block(tuple(lines), widest(lines))

    def on_click(self) -> None:
        self.dismiss()


class Palette(ModalScreen[None]):
    """The dialog with every command; typing narrows the list, Enter runs the chosen command."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._look, self.field = theme, Field()
        self._found: Sequence[KeyBinding] = KEYS
        self._place = 0
        self._line, self._list = Lines("line"), Lines("commands")
        self._tell()

    def compose(self) -> ComposeResult:
        yield Vertical(self._line, self._list, id="sheet")

    def taken(self, event: events.Key) -> str | None:
        """Return the action of the command that a key chooses.

        Empty after Esc, None if no command is chosen yet. event: the key that was pressed.
        """
        if event.key == "escape":
            return ""
        if event.key == "enter":
            return self._found[self._place].action if self._found else ""
        if event.key in ("up", "down"):
            place = self._place + (1 if event.key == "down" else -1)
            self._place = max(min(place, len(self._found) - 1), 0)
            self._tell()
        else:
            self.narrow(self.field.typed(event.key, event.character))
        return None

    def narrow(self, field: Field) -> None:
        """Show the commands that contain the words typed in the field."""
        self.field, words = field, field.text.casefold().split()
        self._found = [key for key in KEYS if all(word in key.said.casefold() for word in words)]
        self._place = 0
        self._tell()

    def _tell(self) -> None:
        rows = max(self.app.size.height - 8, 1)
        first = max(min(self._place - rows // 2, len(self._found) - rows), 0)
        lines: list[Line] = []
        for place, key in enumerate(self._found[first : first + rows], start=first):
            said = f" {self._look.spell(key.said)} ".ljust(44)
            style = self._look.accent(ground=True) if place == self._place else None
            lines.append([Segment(said, style), Segment(self._look.spell(f" {key.shown}"), DIM)])
        self._line.tell([self.field.line(56, self._look)])
        self._list.tell(lines or [[Segment(" no such command", DIM)]])
        self._list.refresh(layout=True)
