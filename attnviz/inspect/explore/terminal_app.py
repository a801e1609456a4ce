"""Every key of explore, the line of keys or of a question; an app with slow work in threads.

The app restores the terminal and finishes files at its end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.worker import Worker, WorkerFailed, get_current_worker

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, stack, widest
from attnviz.draw.labels import cut, fit, visible, width
from attnviz.draw.prose import one_line
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.inspect.explore.panes import Lines, Pane

_SAVE = "save"  # the name of the job that an end waits for
_ENDS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
_STOPS = ("SIGTSTP", "SIGCONT")

Result = TypeVar("Result")


class DroppedError(Exception):
    """Raised in a thread whose result is no longer wanted, to end its work."""


class Waiting(NamedTuple):
    """Tells a thread whether its result is still wanted, and passes its reports on to the app.

    Every report of a thread goes through it, so that reports of earlier requests are dropped.
    """

    app: TerminalApp
    worker: Worker[None]

    def __call__(self) -> bool:
        """Return whether the result of the thread is still wanted."""
        return not self.worker.is_cancelled

    def tell(self, then: Callable[[], Any]) -> None:
        """Call ``then`` in the app's thread; DroppedError if this result is no longer wanted."""

        def told() -> bool:
            if waits := self():
                then()
            return waits

        if not self() or not self.app.call_from_thread(told):
            raise DroppedError


class TerminalApp(App[None]):
    """A terminal app with background jobs, which always restores the terminal at its end.

    interrupted: whether Ctrl-C or a signal ended it.
    failure: the unexpected error that ended it, or the error of a save that it waited for.
    """

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.set_reactive(App.theme, "ansi-dark")
        self.animation_level = "none"
        self.interrupted = False
        self.failure: Exception | None = None
        self._jobs: dict[str, Worker[None]] = {}
        self._leaves = False

    def failed(self, name: str, error: AttnvizError) -> None:
        """Show the error of a failed job. name: the name of the job."""

    # Jobs ------------------------------------------------------------------------------------

    def later(
        self, name: str, work: Callable[[Waiting], Result], then: Callable[[Result], Any]
    ) -> None:
        """Run ``work`` in a thread, then pass its result to ``then`` in the app's thread.

        name: later work of the same name replaces it. work: gets a ``Waiting``, which says whether
            its result is still wanted.
        """

        def run() -> None:
            waiting = Waiting(self, get_current_worker())
            with suppress(DroppedError):
                try:
                    end = partial(then, work(waiting))
                except AttnvizError as error:
                    end = partial(self._refused, name, error)
                waiting.tell(partial(self._job_ended, name, end))

        self._jobs[name] = self.run_worker(run, thread=True, group=name, exclusive=True)

    def drop(self, name: str) -> bool:
        """Drop the job called ``name``; return True if it was running."""
        worker = self._jobs.pop(name, None)
        if worker is not None:
            worker.cancel()
        return worker is not None

    def _refused(self, name: str, error: AttnvizError) -> None:
        if self._leaves:  # this screen is closing
            self.failure = error
        self.failed(name, error)

    def _job_ended(self, name: str, then: Callable[[], None]) -> None:
        del self._jobs[name]
        then()
        if self._leaves and _SAVE not in self._jobs:
            self.exit()

    # The end ---------------------------------------------------------------------------------

    def run_to_its_end(self) -> None:
        """Run the app; raise the error that ended it, or KeyboardInterrupt for a signal.

        A terminal that closes, and ``kill``, end it as Ctrl-C does. The signal handlers are
        Python's own: those of asyncio lose a signal while much is typed ahead. All are restored, or
        Textual would draw again on a SIGCONT after its end.
        """
        ends = [getattr(signal, name) for name in _ENDS if hasattr(signal, name)]
        stops = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in (*ends, *stops)}
        try:
            for number in ends:
                signal.signal(number, self._interrupted)
            self.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.failure is not None:
            raise self.failure
        if self.interrupted:
            raise KeyboardInterrupt

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self.is_running or self._loop is None:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self.action_interrupt)

    def action_leave(self) -> None:
        """End the app once a save in progress has ended; at once if called a second time."""
        if _SAVE in self._jobs and not self._leaves:
            self._leaves = True
        else:
            self.exit()

    def action_interrupt(self) -> None:
        """End the app after Ctrl-C, SIGTERM or the closing of the terminal."""
        self.interrupted = True
        self.action_leave()

    def _handle_exception(self, error: Exception) -> None:
        """End the app at once after an unexpected error, which the command line reports in a line.

        Textual's own way draws a traceback with all locals first, which takes seconds.
        """
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.failure = self.failure or (cause if isinstance(cause, Exception) else error)
        self._return_code = 1
        if self._exception is None:  # a test that drives the app raises it again
            self._exception = self.failure
            self._exception_event.set()
        self._close_messages_no_wait()


# Keys and questions --------------------------------------------------------------------------

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
