"""What is asked and told over the panes: a line to type in, all keys, all commands."""

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
from attnviz.draw.theme import Theme
from attnviz.inspect.explore import facts
from attnviz.inspect.explore.pane import Lines, Pane


class KeyBinding(NamedTuple):
    """A key and what it does.

    keys: as textual names them, with commas. shown: as a person reads them. action: of the app.
    said: what it does. group: the heading it stands under. hint: a word for the line of keys.
    listed: its line on the sheet of keys, which several keys may share; ``said`` by default.
    """

    keys: str
    shown: str
    action: str
    said: str
    group: str
    hint: str = ""
    listed: str = ""


_MOVES = "cursor, also h j k l"
_LAYER, _HEAD, _SAME = "layer before, after", "head before, after", "same label: last, next"
_RANK, _SIZE, _WARM = "importance: up, down", "smaller, larger cells", "temperature down, up"

KEYS = (
    KeyBinding("left,h", "←", "move(-1, 0)", "cursor left", "Move", listed=_MOVES),
    KeyBinding("down,j", "↓", "move(0, 1)", "cursor down", "Move", listed=_MOVES),
    KeyBinding("up,k", "↑", "move(0, -1)", "cursor up", "Move", listed=_MOVES),
    KeyBinding("right,l", "→", "move(1, 0)", "cursor right", "Move", listed=_MOVES),
    KeyBinding("tab", "Tab", "pane", "grid or map", "Move", "pane"),
    KeyBinding("slash", "/", "find", "find a token", "Move", "find"),
    KeyBinding("minus", "-", "zoom(-1)", "smaller cells", "Move", listed=_SIZE),
    KeyBinding("plus,equals_sign", "+", "zoom(1)", "larger cells", "Move", listed=_SIZE),
    KeyBinding("0", "0", "fit", "the whole map", "Move"),
    KeyBinding("left_square_bracket", "[", "layer(-1)", "layer before", "Heads", listed=_LAYER),
    KeyBinding("right_square_bracket", "]", "layer(1)", "layer after", "Heads", listed=_LAYER),
    KeyBinding("less_than_sign", "<", "head(-1)", "head before", "Heads", listed=_HEAD),
    KeyBinding("greater_than_sign", ">", "head(1)", "head after", "Heads", listed=_HEAD),
    KeyBinding("N", "N", "same(-1)", "last head with the same label", "Heads", listed=_SAME),
    KeyBinding("n", "n", "same(1)", "next head with the same label", "Heads", listed=_SAME),
    KeyBinding("I", "I", "important(-1)", "head before by importance", "Heads", listed=_RANK),
    KeyBinding("i", "i", "important(1)", "next head by importance", "Heads", "rank", listed=_RANK),
    KeyBinding("v", "v", "by_effect", "grid: labels or effects", "Heads"),
    KeyBinding("1", "1", "mode('raw')", "weights as they are", "View"),
    KeyBinding("2", "2", "mode('no-sink')", "without the sink", "View"),
    KeyBinding("3", "3", "mode('value-weighted')", "weighted by value norms", "View"),
    KeyBinding("d", "d", "side", "first, second, difference", "View"),
    KeyBinding("p", "p", "palette", "next palette", "View"),
    KeyBinding("x", "x", "ablate", "ablate the head, or not", "Change", "ablate"),
    KeyBinding("X", "X", "restore", "put every head back", "Change"),
    KeyBinding("e", "e", "edit", "edit the text", "Change", "edit"),
    KeyBinding("g", "g", "generate", "let the model write on", "Change", "generate"),
    KeyBinding("space", "Space", "pause", "pause; ← → step", "Change"),
    KeyBinding("T", "T", "temperature(-0.1)", "temperature down", "Change", listed=_WARM),
    KeyBinding("t", "t", "temperature(0.1)", "temperature up", "Change", listed=_WARM),
    KeyBinding("r", "r", "reseed", "another seed", "Change"),
    KeyBinding("s", "s", "save", "save what is seen", "Keep", "save"),
    KeyBinding("y", "y", "yank", "copy this command", "Keep"),
    KeyBinding("question_mark", "?", "keys", "all keys", "Keep", "keys"),
    KeyBinding("colon", ":", "commands", "all commands", "Keep"),
    KeyBinding("escape", "Esc", "stop", "stop, leave", "Keep"),
    KeyBinding("q", "q", "leave", "quit", "Keep", "quit"),
)

HINTS = tuple((key.shown, key.hint) for key in KEYS if key.hint)
WRITING = (
    *(("Space", "pause"), ("← →", "step"), ("T t", "temperature"), ("r", "seed")),
    *(("e", "edit"), ("Esc", "leave"), ("?", "keys"), ("q", "quit")),
)
"""What the line of keys shows while a text is written; ``HINTS`` is what it shows else."""


_SEEN = 4
"""How many characters are looked at per column, since some characters take none."""


@dataclass(frozen=True)
class Field:
    """The text in an input line, before and behind its cursor."""

    before: str = ""
    behind: str = ""

    @property
    def text(self) -> str:
        return self.before + self.behind

    def typed(self, key: str, character: str | None) -> Field:
        """Return the field after a key; unchanged if the key does nothing in a line."""
        before, behind = self.before, self.behind
        stem = before.rstrip()
        edits = {
            "left": (before[:-1], before[-1:] + behind),
            "right": (before + behind[:1], behind[1:]),
            "home": ("", before + behind),
            "end": (before + behind, ""),
            "backspace": (before[:-1], behind),
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
        return Field(self.before + " ".join(text.splitlines()), self.behind)

    def line(self, room: int, theme: Theme) -> Line:
        """Return what fits in so many columns with the cursor, control characters escaped."""
        typed, rest = self.before[-_SEEN * room :], self.behind[: _SEEN * room]
        text = visible(typed + rest, theme.encoding)
        before = visible(typed, theme.encoding)
        here = visible(typed + rest[:1], theme.encoding)[len(before) :] or " "
        start, left = len(before), room - width(here)
        while start and width(before[start - 1]) <= left:
            start, left = start - 1, left - width(before[start - 1])
        behind = text[len(before) + len(here) :]
        behind = fit(behind, left, theme.ellipsis) if width(behind) > left else behind
        return [Segment(before[start:]), Segment(here, theme.accent(ground=True)), Segment(behind)]


class AskedLine(NamedTuple):
    """A question in the line of keys, which receives every key until Enter or Esc.

    answered: is called with the text at Enter, typing: at every change. left: is called at Esc.
    """

    question: str
    field: Field
    answered: Callable[[str], None]
    typing: Callable[[str], None] = lambda typed: None
    left: Callable[[], None] = lambda: None


class KeysPane(Pane):
    """The line of keys: the keys of use now, a note, or a question."""

    asked: AskedLine | None = None

    def ask(self, asked: AskedLine | None) -> None:
        """Show a question, or with None end it."""
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
            return [facts.parts([(self.note, "strong")], theme, columns)]
        line: Line = []
        used = 0
        for key, said in HINTS if self.view.written is None else WRITING:
            taken = width(key) + 1 + width(said) + (2 if line else 0)
            if used + taken > columns:
                continue
            line += [Segment("  ")] * bool(line)
            line += [Segment(theme.spell(key), theme.tone(True)), Segment(f" {said}", DIM)]
            used += taken
        return [line]


class Help(ModalScreen[None]):
    """The sheet of every key, grouped by purpose; any key closes it."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._look = theme

    def compose(self) -> ComposeResult:
        yield Vertical(Lines("help", self._lines()), id="sheet")

    def _lines(self) -> Sequence[Line]:
        groups = [self._group(group) for group in dict.fromkeys(key.group for key in KEYS)]
        sides = [stack(groups[:3]), stack(groups[3:])]
        if sum(side.width for side in sides) + 3 > self.app.size.width - 6:
            return stack(groups).lines
        return beside(sides, 3).lines

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
    """The list of every command; typing narrows it, Enter runs the chosen one."""

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
        """Return the action that a key chooses, empty for Esc; None while nothing is chosen."""
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
        """Show the commands that have the words of the field."""
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
