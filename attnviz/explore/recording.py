"""What goes on beside the panes: work in threads, an end in order, and what is kept in files."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual import events
from textual.app import App
from textual.worker import get_current_worker

from attnviz.cli.options import EVERY
from attnviz.cli.outlet import report_files
from attnviz.draw.files import check_path, save
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.explore.scene import View
from attnviz.heads.data import array_files, heads_rows, write_heads_json
from attnviz.heads.document import heads_document
from attnviz.heads.report import HeadsComparison, compare_heads
from attnviz.heads.report import View as HeadsView
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
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.interrupted = False
        self.failure: Exception | None = None
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
        await super().on_event(event)

    def end_on_signals(self) -> None:
        """A terminal that closes, or ``kill``, ends the app as Ctrl-C does."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                loop.add_signal_handler(getattr(signal, name), self.action_interrupt)

    def action_interrupt(self) -> None:
        """Ctrl-C, SIGTERM, a terminal that closes."""
        self.interrupted = True
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """What nobody expected ends the app; the command line says it in its own way."""
        self.failure = self.failure or error
        super()._handle_exception(error)
        self._exit_renderables.clear()


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
    """Write the head that is seen, by the ending of the name.

    Raises UsageError for an ending that is none, LoadError where the system refuses.
    """
    check_path(path, ENDINGS)
    report, scene = view.shown.report, view.scene
    layer, head = scene.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(scene.head,),
        selected=True,
        sink=scene.mode != "no-sink",
    )
    seen = _Seen(compare_heads([chosen]), HeadsView())

    def screen() -> str:
        plain = Theme(theme.palette, colour=False, ascii=theme.ascii)
        return terminal_block(seen.document(), plain, width).plain

    save(path, report_files(seen, seen.document, theme.palette, screen))
