"""What goes on beside the panes: work in threads, an end in order, and what is kept in files."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import numpy as np
from rich.errors import StyleSyntaxError
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from attnviz.cli.options import EVERY
from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.files import check_path, save, text_file
from attnviz.draw.labels import visible
from attnviz.draw.report import report_files
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.draw.whole_file import check_writable
from attnviz.errors import AttnvizError, LoadError, UsageError
from attnviz.inspect.explore.pane import Lines
from attnviz.inspect.explore.scene import View, Written
from attnviz.inspect.generate.data import write_run_lines
from attnviz.inspect.generate.records import Ending, Run
from attnviz.inspect.heads.data import array_files, heads_rows, write_heads_json
from attnviz.inspect.heads.document import heads_document
from attnviz.inspect.heads.report import HeadsComparison, compare_heads
from attnviz.inspect.heads.report import View as HeadsView
from attnviz.reading import parse_json, read_bytes
from attnviz.records import LayerWeights

Found = TypeVar("Found")
Waited = Callable[[], bool]
"""Whether somebody still waits for what a thread does."""

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer


class DroppedError(Exception):
    """Nobody waits any more for what a thread does."""


class Background(App[None]):
    """An app whose slow work runs in threads and that always leaves the terminal as it was.

    interrupted: whether Ctrl-C or a signal ended it. failure: what nobody expected, if anything.
    """

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.set_reactive(App.theme, "ansi-dark")
        self.animation_level = "none"
        self.interrupted = False
        self.failure: Exception | None = None
        self.recorder: Recorder | None = None
        self._tickets: dict[str, object] = {}

    def say(self, note: str) -> None:
        raise NotImplementedError

    def later(
        self, name: str, work: Callable[[Waited], Found], then: Callable[[Found], None]
    ) -> None:
        """Do ``work`` in a thread, then ``then`` here; a later one of this name takes its place.

        work: is given what tells whether somebody still waits for it.
        """
        ticket = object()
        self._tickets[name] = ticket

        def run() -> None:
            worker = get_current_worker()

            def waited() -> bool:
                return self._tickets.get(name) is ticket and not worker.is_cancelled

            try:
                found = work(waited)
            except DroppedError:
                return
            except AttnvizError as error:
                ended = partial(self.failed, name, error)
            else:
                ended = partial(then, found)
            if waited():
                self.call_from_thread(self._ended, name, ticket, ended)

        self.run_worker(run, thread=True, group=name, exclusive=True)

    def _ended(self, name: str, ticket: object, then: Callable[[], None]) -> None:
        if self._tickets.get(name) is ticket:
            del self._tickets[name]
            then()

    def drop(self, name: str) -> bool:
        """Nobody waits for the work of this name any more; whether somebody did."""
        return self._tickets.pop(name, None) is not None

    def failed(self, name: str, error: AttnvizError) -> None:
        """What a thread could not do."""
        self.say(str(error))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            self.say("")
            self.call_after_refresh(self.keep, event.key)
            if not await self._check_bindings(event.key, priority=True):
                await self.answer(event)
        else:
            await super().on_event(event)

    async def answer(self, event: events.Key) -> None:
        """Do what a key is for, here, before the next is looked at.

        A widget would do it later, when keys that were typed ahead have gone past what it opens.
        """
        await self._check_bindings(event.key)

    def keep(self, key: str = "") -> None:
        """Record the screen as it is, and the key that made it."""
        if self.recorder is not None:
            strips = self.screen._compositor.render_strips()
            self.recorder.add(key, [list(strip) for strip in strips])

    def end_on_signals(self) -> None:
        """A terminal that closes, or ``kill``, ends the app as Ctrl-C does."""
        loop = asyncio.get_running_loop()
        for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                loop.add_signal_handler(getattr(signal, name), self.action_interrupt)

    def action_leave(self) -> None:
        self.exit()

    def action_interrupt(self) -> None:
        """Ctrl-C, SIGTERM, a terminal that closes."""
        self.interrupted = True
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """What nobody expected ends the app; the command line says it in its own way."""
        self.failure = self.failure or error
        super()._handle_exception(error)
        self._exit_renderables.clear()


# Recording -----------------------------------------------------------------------------------

SCHEMA = "attnviz.explore/1"

_RECORDED = 2**28
_LARGEST = 1000  # columns, and lines
_LONGEST_WAIT = 2.0


class Recorder:
    """Writes keys and screens as JSON lines: of each screen the rows that changed.

    A row is a list of (text, style), a style in rich's words, such as ``bold #ffffff on #440154``.
    """

    def __init__(self, path: Path, model: str, text: str) -> None:
        """Raises UsageError or LoadError for what cannot be written."""
        check_writable(path)
        self._path, self._began = path, time.monotonic()
        self._rows: dict[int, list[tuple[str, str]]] = {}
        self._stream = _refusing(path, lambda: path.open("w", encoding="utf-8"))
        self._write({"schema": SCHEMA, "model": model, "text": text})

    def add(self, key: str, lines: Sequence[Line]) -> None:
        """A screen, after a key or by itself; nothing where nothing changed."""
        rows = {
            place: [(text, str(style or "")) for text, style, _ in line]
            for place, line in enumerate(lines)
        }
        changed = {place: row for place, row in rows.items() if self._rows.get(place) != row}
        gone = [place for place in self._rows if place not in rows]
        if changed or gone or key:
            self._rows = rows
            at = round(time.monotonic() - self._began, 3)
            self._write({"at": at, "key": key, "lines": len(lines), "rows": changed})

    def _write(self, entry: Mapping[str, object]) -> None:
        line = json.dumps(entry, ensure_ascii=True, separators=(",", ":"))
        _refusing(self._path, lambda: self._stream.write(line + "\n"))

    def close(self) -> None:
        _refusing(self._path, self._stream.close)


def _refusing(path: Path, act: Callable[[], Found]) -> Found:
    try:
        return act()
    except OSError as error:
        raise LoadError(f"cannot write {visible(str(path))}: {error.strerror}") from error


_DAMAGED = (LoadError, KeyError, TypeError, ValueError, AttributeError, StyleSyntaxError)


class Screenshot(NamedTuple):
    """A recorded screen: when it was, the key that made it, and its lines."""

    at: float
    key: str
    lines: tuple[tuple[Segment, ...], ...]


def read_recording(path: Path) -> tuple[Screenshot, ...] | None:
    """The screens of a recording; None for a file that is something else.

    Raises LoadError for one that cannot be read or is damaged.
    """
    name = visible(str(path))
    content = read_bytes(path, name=name, most=_RECORDED)
    first, _, rest = content.partition(b"\n")
    if f'"schema":"{SCHEMA}"'.encode() not in first[:200]:
        return None
    screens: list[Screenshot] = []
    rows: dict[int, tuple[Segment, ...]] = {}
    for number, line in enumerate(rest.splitlines(), start=2):
        try:
            entry = parse_json(line, name)
            rows |= {int(place): _row(row) for place, row in entry["rows"].items()}
            count = int(entry["lines"])
            if not 0 <= count <= _LARGEST or any(not 0 <= place < _LARGEST for place in rows):
                raise ValueError("a screen of more lines than there are")
            kept = tuple(rows.get(place, ()) for place in range(count))
            screens.append(Screenshot(float(entry["at"]), str(entry["key"])[:40], kept))
        except (
            LoadError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            StyleSyntaxError,
        ) as error:
            raise LoadError(f"{name} line {number} is damaged: record it again") from error
    if not screens:
        raise LoadError(f"{name} has no screens: record it again")
    return tuple(screens)


def _row(row: Sequence[Sequence[str]]) -> tuple[Segment, ...]:
    """A row of a stranger's file: nothing in it acts on the terminal."""
    if sum(len(text) for text, _ in row) > 2 * _LARGEST:
        raise ValueError("a line of more columns than there are")
    return tuple(Segment(visible(text), _style(style)) for text, style in row)


@lru_cache(maxsize=4096)
def _style(words: str) -> Style:
    style = Style.parse(words)
    if style.link or style.meta:
        raise ValueError("a style that is more than a look")
    return style


class Player(Background):
    """Shows a recording at its own pace."""

    CSS = "Screen { layout: vertical; } #screen { height: 1fr; } #state { height: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "pause", "pause"),
        ("left,h", "walk(-1)", "back"),
        ("right,l", "walk(1)", "on"),
        ("q,escape", "leave", "quit"),
        Binding("ctrl+c", "interrupt", priority=True),
    ]

    def __init__(self, screens: Sequence[Screenshot]) -> None:
        super().__init__()
        self._screens, self._place, self._runs = screens, 0, True

    def compose(self) -> ComposeResult:
        yield Lines("screen")
        yield Lines("state")

    def on_mount(self) -> None:
        self.end_on_signals()
        self._show()

    def say(self, note: str) -> None:
        """Nothing is said but where it stands."""

    def _show(self) -> None:
        shown = self._screens[self._place]
        self.query_one("#screen", Lines).tell([list(line) for line in shown.lines])
        state = "plays" if self._runs else "paused"
        key = f" · key {visible(shown.key)}" if shown.key else ""
        words = (
            f"replay {self._place + 1} of {len(self._screens)} · {shown.at:.1f} s{key} · {state}"
        )
        keys = "Space pause  ← → step  q quit"
        self.query_one("#state", Lines).tell([[Segment(words, BOLD), Segment(f"  {keys}", DIM)]])
        if self._runs and self._place + 1 < len(self._screens):
            wait = self._screens[self._place + 1].at - shown.at
            self.set_timer(min(max(wait, 0.02), _LONGEST_WAIT), partial(self._next, self._place))

    def _next(self, place: int) -> None:
        if self._runs and place == self._place:
            self.action_walk(1, by_hand=False)

    def action_walk(self, step: int, by_hand: bool = True) -> None:
        self._runs = self._runs and not by_hand
        self._place = min(max(self._place + step, 0), len(self._screens) - 1)
        self._show()

    def action_pause(self) -> None:
        self._runs = not self._runs
        self._show()


# Files ---------------------------------------------------------------------------------------

ENDINGS = (*EVERY.split(), ".npz", ".safetensors")
"""What a view can be saved as: whatever ``attnviz heads`` can."""


@dataclass(frozen=True)
class _Seen:
    """The chosen head, for every outlet of ``attnviz heads``."""

    found: HeadsComparison
    view: HeadsView

    def write_json(self, stream: SupportsWrite[str]) -> None:
        write_heads_json(self.found, stream, self.view)

    def rows(self) -> Iterator[tuple[object, ...]]:
        return heads_rows(self.found, self.view)

    def document(self) -> Document:
        return heads_document(self.found, self.view)

    def arrays(self) -> Mapping[str, Writer]:
        return array_files(self.found, self.view)


def save_view(path: Path, view: View, theme: Theme, width: int) -> None:
    """Write the head that is seen, by the ending of the name; of a written text the whole run.

    Raises UsageError for an ending that is none and for a difference, which no file has a place
    for, LoadError where the system refuses.
    """
    if view.written is not None and view.written.at:
        if path.suffix.lower() != ".jsonl":
            raise UsageError("what was written is saved as .jsonl; Esc, then s saves the prompt")
        run = _run_of(view, view.written)
        save(path, {".jsonl": text_file(partial(write_run_lines, run))})
        return
    check_path(path, ENDINGS)
    if view.scene.side == "difference" and view.against is not None:
        raise UsageError("a difference is not saved: press d for one side, which is")
    report, scene = view.shown.report, view.scene
    layer, head = scene.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(scene.head,),
        selected=True,
        ablated=tuple(sorted(view.shown.removed)),
        sink=scene.mode != "no-sink",
        norm_weighted=scene.mode == "value-weighted",
    )
    seen = _Seen(compare_heads([chosen]), HeadsView())

    def screen() -> str:
        plain = Theme(theme.palette, colour=False, ascii=theme.ascii)
        return terminal_block(seen.document(), plain, width).plain

    save(path, report_files(seen, seen.document, theme.palette, screen))


def _run_of(view: View, written: Written) -> Run:
    """What was written so far, as ``attnviz generate`` keeps it."""
    report, steps, sampling = view.frame.report, written.steps, written.sampling
    ended: Ending = "end" if steps[-1].ended else "tokens"
    if not steps[-1].ended and len(steps) < sampling.tokens:
        ended = "interrupted" if written.running else "context"
    known = report.record.layers
    return Run(
        report.record.model,
        report.record.kind,
        text=view.frame.text,
        source=None,
        begun=report.record.queries,
        prompt=known if all(np.isfinite(each.weights).all() for each in known) else (),
        sampling=sampling,
        removed=tuple(sorted(view.frame.removed)),
        steps=steps,
        ending=ended,
        index_base=report.index_base,
    )
