"""Every key of explore and what it does, the line of keys or of a question, the sheet of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, stack, widest
from attnviz.draw.labels import cut, fit, visible, width
from attnviz.draw.prose import one_line
from attnviz.draw.theme import Theme
from attnviz.inspect.explore.panes import Lines, Pane

_SEEN = 4
"""How many characters are looked at per column, since some characters take none."""


class KeyBinding(NamedTuple):
    """One key of explore: its names, its action, and its description.

    keys: the names that textual has for it, with commas between. shown: the name that is drawn.
    action: the call of a method of ``Actions``, or of the app. said: its line on the sheet of keys,
        which several keys may share. group: its heading there. hint: a word for the line of keys.
    """

    keys: str
    shown: str
    action: str
    said: str
    group: str
    hint: str = ""


_MOVES = "cursor, also h j k l"
_LAYER, _HEAD = "layer before, after", "head before, after"
_RANK, _SIZE = "importance: up, down", "smaller, larger, fitting"

KEYS = (
    KeyBinding("left,h", "←", "move(-1, 0)", _MOVES, "Move"),
    KeyBinding("down,j", "↓", "move(0, 1)", _MOVES, "Move"),
    KeyBinding("up,k", "↑", "move(0, -1)", _MOVES, "Move"),
    KeyBinding("right,l", "→", "move(1, 0)", _MOVES, "Move"),
    KeyBinding("tab", "Tab", "pane", "grid or map", "Move", "pane"),
    KeyBinding("slash", "/", "find", "find a token", "Move", "find"),
    KeyBinding("minus", "-", "zoom(-1)", _SIZE, "Move"),
    KeyBinding("plus,equals_sign", "+", "zoom(1)", _SIZE, "Move"),
    KeyBinding("0", "0", "zoom(0)", _SIZE, "Move"),
    KeyBinding("left_square_bracket", "[", "layer(-1)", _LAYER, "Heads"),
    KeyBinding("right_square_bracket", "]", "layer(1)", _LAYER, "Heads"),
    KeyBinding("less_than_sign", "<", "head(-1)", _HEAD, "Heads"),
    KeyBinding("greater_than_sign", ">", "head(1)", _HEAD, "Heads"),
    KeyBinding("I", "I", "important(-1)", _RANK, "Heads"),
    KeyBinding("i", "i", "important(1)", _RANK, "Heads", "rank"),
    KeyBinding("v", "v", "by_effect", "grid: labels or effects", "Heads"),
    KeyBinding("1", "1", "mode('raw')", "weights as they are", "View"),
    KeyBinding("2", "2", "mode('no-sink')", "without the sink", "View"),
    KeyBinding("3", "3", "mode('value-weighted')", "weighted by value norms", "View"),
    KeyBinding("d", "d", "side", "first, second, difference", "View"),
    KeyBinding("x", "x", "ablate", "ablate the head, or not", "Change", "ablate"),
    KeyBinding("X", "X", "restore", "put every head back", "Change"),
    KeyBinding("e", "e", "edit", "edit the text", "Change", "edit"),
    KeyBinding("g", "g", "generate", "let the model generate", "Change", "generate"),
    KeyBinding("space", "Space", "pause", "pause; ← → step", "Change"),
    KeyBinding("s", "s", "save", "save what is seen", "Keep", "save"),
    KeyBinding("y", "y", "yank", "copy this command", "Keep"),
    KeyBinding("question_mark", "?", "keys", "all keys", "Keep", "keys"),
    KeyBinding("escape", "Esc", "stop", "stop, leave", "Keep"),
    KeyBinding("q", "q", "leave", "quit", "Keep", "quit"),
)

_HINTS = tuple((key.shown, key.hint) for key in KEYS if key.hint)
_WRITING = (
    *(("Space", "pause"), ("← →", "step"), ("e", "edit"), ("Esc", "leave")),
    *(("?", "keys"), ("q", "quit")),
)
"""What the line of keys shows while a text is written; ``_HINTS`` is what it shows else."""


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
        """Return the field after a key was pressed; unchanged if the key does nothing in a line."""
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
        """Return the part of the text around the cursor that fits, control characters escaped."""
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

    answered: is called with the text after Enter. typing: is called with the text after every
        change. left: is called after Esc.
    """

    question: str
    field: Field
    answered: Callable[[str], None]
    typing: Callable[[str], None] = lambda typed: None
    left: Callable[[], None] = lambda: None


class KeysPane(Pane):
    """The lowest line of explore: the keys that can be used now, a note, or a question."""

    asked: AskedLine | None = None

    def ask(self, asked: AskedLine | None) -> None:
        """Show a question in the line; None ends the question that is open."""
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
        used = 0
        for key, said in _HINTS if self.view.written is None else _WRITING:
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
                rows.setdefault(key.said, []).append(key.shown)
        look = self._look
        lines: list[Line] = [[Segment(group, BOLD)]]
        for said, shown in rows.items():
            name = look.spell(" ".join(shown)).ljust(8)
            lines.append([Segment(f"{name} ", look.accent()), Segment(look.spell(said))])
        return Block(tuple(lines), widest(lines))

    def on_click(self) -> None:
        self.dismiss()
