"""Every key of ``attnviz explore``, and the state of the screen that the keys change.

The state is one ``View``. A change makes another one, and the app draws the differences.
Everything that may take long is a job, and only the result of the latest request is shown.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, stack, widest
from attnviz.draw.labels import cut, fit, visible, width
from attnviz.draw.prose import one_line
from attnviz.draw.theme import Theme
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.scan.run import Effects
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.explore.panes import Lines, MapPane, Pane
from attnviz.inspect.explore.session import (
    Frame,
    LiveSession,
    Mode,
    Session,
    is_saved,
    open_saved,
    weigh,
)
from attnviz.inspect.explore.terminal_app import TerminalApp, Waiting
from attnviz.inspect.explore.view import SIDES, View, Written, command_line, places_of, save_view
from attnviz.measures.words import joined

_SEEN = 4  # how many characters are looked at per column, since some characters take none


class KeyBinding(NamedTuple):
    """One key of explore: its names, its action, and its description.

    keys: the names that textual has for it, with commas between. shown: the name that is drawn.
    action: the call of a method of ``Actions``, or of the app. meaning: its line on the sheet of
        keys, which several keys may share. group: its heading there. hint: a word for the line of
        keys.
    """

    keys: str
    shown: str
    action: str
    meaning: str
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
        theme, asked = self.look, self.asked
        if asked is not None:
            question = theme.spell(cut(asked.question, columns * 3 // 4))
            return [[Segment(question, BOLD), *asked.field.line(columns - width(question), theme)]]
        if self.note:
            return [one_line([(self.note, "strong")], theme, columns)]
        line, used = list[Segment](), 0
        for key, hint in _HINTS if self.view.written is None else _WRITING:
            taken = width(key) + 1 + width(hint) + (2 if line else 0)
            if used + taken <= columns:
                line += [Segment("  ")] if line else []
                line += [Segment(theme.spell(key), theme.tone(True)), Segment(f" {hint}", DIM)]
                used += taken
        return [line]


class Help(ModalScreen[None]):
    """The sheet of every key, grouped by purpose; any key closes it."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._look = theme

    def compose(self) -> ComposeResult:
        look, groups = self._look, list[Block]()
        for group in dict.fromkeys(key.group for key in KEYS):
            rows: dict[str, list[str]] = {}
            for key in KEYS:
                if key.group == group:
                    rows.setdefault(key.meaning, []).append(key.shown)
            lines: list[Line] = [[Segment(group, BOLD)]]
            for meaning, shown in rows.items():
                name = look.spell(" ".join(shown)).ljust(8)
                lines.append([Segment(f"{name} ", look.accent()), Segment(look.spell(meaning))])
            groups.append(Block(tuple(lines), widest(lines)))
        sheet = beside([stack(groups[:3]), stack(groups[3:])], 3)
        if sheet.width > self.app.size.width - 6:
            sheet = stack(groups)
        yield Vertical(Lines("help", sheet.lines), id="sheet")

    def on_click(self) -> None:
        self.dismiss()


_LONG = 200  # the most characters of a text that goes without saying in a copied command
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # the name of a model on the Hub


@dataclass(frozen=True)
class SideSource:
    """One of the two compared sides of explore: a model or a saved file, and its first text.

    text: the first text; empty for a second side that uses the text of the first side. options: the
        options of the command line that chose the model. file: that the text was read from.
    """

    session: Session
    text: str
    options: tuple[str, ...] = ()
    file: Path | None = None


def second_side(
    typed: str, first: SideSource, live: Callable[[str, str], LiveSession]
) -> SideSource:
    """Return the second side of explore: a saved file, another model, or another text."""
    if is_saved(typed):
        saved = open_saved(Path(typed))
        return SideSource(saved, saved.seen.text)
    if _NAME.fullmatch(typed) or Path(typed).is_dir() or typed in ("tiny", "mha"):
        session = live(typed, first.text)
        return SideSource(session, "" if session.text == first.text else session.text)
    if not first.session.live:
        raise UsageError(f"--with {typed!r} is a text, and what was saved reads no other one")
    return SideSource(first.session, typed)


@dataclass(eq=False)
class Actions:
    """The screen state of explore, with a method for each action of ``KEYS`` not the app's own.

    map, line: the panes of the map and of questions. going: set unless a generation is paused.
    tokens: how many tokens are generated at a time. pace: the least seconds from one generated
        token to the next, so that a person can follow.
    """

    source: SideSource
    view: View
    look: Theme
    second: SideSource | None
    app: TerminalApp
    map: MapPane
    line: KeysPane
    going: threading.Event = field(default_factory=threading.Event)
    tokens: ClassVar[int] = 40
    pace: ClassVar[float] = 0.08
    _searched: str = ""

    def show(self, **changed: Any) -> None:
        """Replace fields of the screen state, and draw it."""
        self.put(replace(self.view, **changed))

    def put(self, view: View) -> None:
        """Replace the screen state; every pane draws what has changed."""
        before, self.view = self.view, view
        self.app.draw(before)

    def see(self, view: View) -> None:
        """Show a view with another head, cursor or mode; run the model if its heads differ."""
        removed = view.removed != self.view.removed
        if removed and view.written is not None:
            self.app.drop("write")
            view = replace(view, written=None)
            self.app.say("what was written with other heads is gone: g writes again")
        self.put(view if view.written is not None else view.fitted(view.removed))
        if removed:
            self.read(view.frame.text)

    def live(self, cannot: str) -> bool:
        """Return whether there is a model that can run; if not, show a note that says so."""
        if not self.source.session.live:
            self.app.say(f"what was saved {cannot}: explore the model itself")
        return self.source.session.live

    def leave_written(self) -> None:
        """Stop generating, and show the prompt alone again."""
        self.app.drop("write")
        if self.view.written is not None:
            self.put(replace(self.view, written=None).fitted())

    def failed(self, name: str, error: AttnvizError) -> None:
        """Show the error of the job called ``name``, and return to the screen state before it."""
        if name == "scan":
            self.show(scanned=None)
        elif name == "write":
            self.leave_written()
        elif name == "frame":  # what is seen is still the frame before
            self.put(self.view.fitted())
        self.app.say(str(error).replace(repr(self.source.session.info.name), "this model"))

    def read(self, text: str) -> None:
        """Run the model on a text with the view's heads ablated, and show the result.

        This takes one pass, and one more for a second side.
        """
        view, source, second = self.view, self.source, self.second
        if text != view.frame.text and self.app.drop("scan"):
            self.show(scanned=None)

        def work(waiting: Waiting) -> tuple[Frame, Frame, Frame | None]:
            frame, other = source.session.frame(text, view.removed), None
            if second is not None:
                heads = view.removed if second.session.live else frozenset()
                other = second.session.frame(second.text or text, heads)
            weigh((frame, other), view.head, view.mode)
            if not view.removed:
                return frame, frame, other
            whole = view.whole if view.whole.text == text else source.session.frame(text)
            return frame, whole, other

        def then(frames: tuple[Frame, Frame, Frame | None]) -> None:
            frame, whole, other = frames
            effects = self.view.effects if frame.text == self.view.frame.text else None
            after = replace(self.view, frame=frame, whole=whole, other=other, effects=effects)
            self.put(after.fitted())

        self.app.later("frame", work, then)

    # Move ------------------------------------------------------------------------------------

    def move(self, right: int, down: int) -> None:
        view, focused = self.view, self.app.focused
        if view.written is not None and right:
            self.going.clear()  # one more generated token, or one less
            at = min(max(view.written.at + right, 0), len(view.written.steps))
            self._change(replace(view.written, at=at, paused=True))
        elif focused is not None and focused.id == "grid":
            self.see(view.next_in_layer(right) if right else view.next_layer(down))
        else:
            drawn = self.map.drawn
            zoom = 1 if drawn is None else drawn.plan.factors[0]
            self.point(view.query + down * zoom, view.key + right * zoom)

    def point(self, query: int, key: int) -> None:
        """Put the cursor on a cell of the map; in a causal map, not on a key after its query."""
        causal = self.view.record.causal
        self.see(self.view.at(query, min(key, max(query, 0)) if causal else key))

    def layer(self, step: int) -> None:
        self.see(self.view.next_layer(step))

    def head(self, step: int) -> None:
        self.see(self.view.next_in(self.view.shown.heads, step))

    def choose(self, layer: int, head: int) -> None:
        self.see(self.view.with_head((layer, head)))

    def zoom(self, step: int) -> None:
        """Make cells larger (step 1) or smaller (−1); 0 shows the whole map."""
        self.map.zoom(step)

    def find(self) -> None:
        start = self.view

        def typing(typed: str) -> None:
            view = self.view.at(start.query, start.key)
            self.see(view.search(typed) if typed else view)

        def answered(typed: str) -> None:
            if not typed and self._searched:
                typing(self._searched)
            if typed and not places_of(self.view.record.queries, typed):
                self.app.say(f"no token has “{visible(typed)}” in it")
            self._searched = typed or self._searched

        self.line.ask(AskedLine("/", Field(), answered, typing, lambda: typing("")))

    # See -------------------------------------------------------------------------------------

    def mode(self, mode: Mode) -> None:
        """Show the attention weights in another mode; value-weighted ones need one more pass."""
        view = self.view
        if not self._writes():
            self.app.later(
                "mode",
                lambda _: weigh((view.frame, view.against), view.head, mode),
                lambda _: self.see(replace(self.view, mode=mode)),
            )

    def side(self) -> None:
        view = self.view
        if view.against is None:
            self.app.say("one side only: ablate a head, or start with --with TEXT|MODEL")
        elif not self._writes():
            step = 1 if view.comparable or view.side == "a" else 2
            side = SIDES[(SIDES.index(view.side) + step) % len(SIDES)]
            self.app.say(view.unlike if step == 2 else "")
            self.put(replace(view, side=side).fitted())

    def _writes(self) -> bool:
        """Return True if a generated text is shown; then show a note that it has one mode only."""
        if writes := self.view.written is not None:
            self.app.say("a text that is written has one side, weights as they are: Esc leaves it")
        return writes

    # Ablate ----------------------------------------------------------------------------------

    def ablate(self) -> None:
        if self.live("removes no heads"):
            self.see(replace(self.view, removed=self.view.removed ^ {self.view.head}))
            self._scan()

    def restore(self) -> None:
        self.see(replace(self.view, removed=frozenset()))

    def _scan(self) -> None:
        """Start measuring the effect of each single ablation, unless that was already started."""
        text = self.view.frame.text
        if self.view.effects is not None or self.view.scanned is not None:
            return

        def work(waiting: Waiting) -> Effects:
            told = 0

            def advance(share: float) -> None:
                nonlocal told
                if not waiting() or int(100 * share) > told:
                    told = int(100 * share)
                    waiting.tell(lambda: self.show(scanned=share))

            return self.source.session.effects(text, advance)

        def then(effects: Effects) -> None:
            self.show(effects=effects, scanned=None)
            if self.view.by_effect:
                self.see(self.view.with_head(effects.ranking()[0]))

        self.show(scanned=0.0)
        self.app.later("scan", work, then)

    def important(self, step: int) -> None:
        effects = self.view.effects
        if effects is None:
            if self.live("has no effects of removals"):
                self.show(by_effect=True)
                self._scan()
        elif self.view.by_effect:
            self.see(self.view.next_in(effects.ranking(), step))
        else:
            self.see(replace(self.view, by_effect=True).with_head(effects.ranking()[0]))

    def by_effect(self) -> None:
        if self.view.effects is None and self.live("has no effects of removals"):
            self._scan()
        self.show(by_effect=not self.view.by_effect)

    def stop(self) -> None:
        """Stop measuring the ablations, or leave the generated text (the key Esc)."""
        if self.app.drop("scan"):
            self.show(scanned=None)
            self.app.say("the scan was stopped; i starts it again")
        else:
            self.leave_written()

    # Write -----------------------------------------------------------------------------------

    def generate(self) -> None:
        """Let the model continue the text from its first new token on, or leave what it wrote."""
        if self.view.written is not None:
            self.leave_written()
            return
        text, removed, going = self.view.frame.text, self.view.removed, self.going
        sampling = self.source.session.sampling or Sampling(tokens=self.tokens)
        going.set()
        self.app.drop("mode")
        self.put(replace(self.view, mode="raw", side="a", written=Written(sampling)).fitted())

        def stepped(step: Step) -> None:
            if (written := self.view.written) is not None:
                at = written.at + (written.at == len(written.steps))
                self._change(replace(written, steps=(*written.steps, step), at=at))

        def work(waiting: Waiting) -> None:
            began = time.monotonic()
            for step in self.source.session.generation(text, sampling, removed):
                time.sleep(max(self.pace - (time.monotonic() - began), 0))
                while not going.wait(0.05) and waiting():
                    pass
                waiting.tell(partial(stepped, step))
                began = time.monotonic()

        def then(_: None) -> None:
            if self.view.written is not None:
                self._change(replace(self.view.written, running=False))

        self.app.later("write", work, then)

    def _change(self, written: Written) -> None:
        self.put(self.view.with_written(written))

    def pause(self) -> None:
        written = self.view.written
        if written is not None and written.running:
            (self.going.clear if self.going.is_set() else self.going.set)()
            paused = not self.going.is_set()
            self._change(replace(written, paused=paused, at=len(written.steps)))

    # Change the text, keep it ----------------------------------------------------------------

    def edit(self) -> None:
        view = self.view

        def answered(typed: str) -> None:
            self.leave_written()
            if self.second is not None and self.second.text and self.view.side == "b":
                self.second = replace(self.second, text=typed)
                typed = self.view.frame.text
            self.read(typed)

        if self.live("has no other text"):
            text = view.shown.text if view.written is None else joined(view.record.queries)
            self.line.ask(AskedLine("text ", Field(text), answered))

    def save(self) -> None:
        def write(path: Path) -> None:
            view, look, columns = self.view, self.look, self.app.size.width
            self.app.later(
                "save",
                lambda _: save_view(path, view, look, columns),
                lambda _: self.app.say(f"saved {visible(str(path))}"),
            )

        def answered(typed: str) -> None:
            path = Path(os.path.expanduser(typed.strip()))
            if typed.strip() and os.path.exists(path):
                question = f"{visible(path.name)} already exists: replace it? y, or Esc "
                self.line.ask(
                    AskedLine(question, Field(), lambda yes: write(path) if yes == "y" else None)
                )
            elif typed.strip():
                write(path)

        view = self.view
        name = f"{view.name(view.head)}.svg" if view.written is None else "written.jsonl"
        self.line.ask(AskedLine("save as ", Field(name, suggested=True), answered))

    def yank(self) -> None:
        source, shown = self.source, self.view.shown
        file = source.file if shown.text == source.text else None
        line = command_line(self.view, source.options, file)
        self.app.copy_to_clipboard(line)
        whole = f" with the whole text, {len(shown.text):,} characters"
        self.app.say(f"copied{whole * (file is None and len(shown.text) > _LONG)}: {line}")
