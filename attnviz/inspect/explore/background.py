"""Slow work in threads next to the panes, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from textual import events
from textual.app import App
from textual.worker import WorkerFailed, get_current_worker

from attnviz.errors import AttnvizError

Found = TypeVar("Found")


_ENDS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
_STOPS = ("SIGTSTP", "SIGCONT")


class DroppedError(Exception):
    """Nobody waits any more for what a thread does."""


class Waiting:
    """Whether somebody still waits for what a thread does, and a way to give news before its end.

    Every answer of a thread comes through here, so that one to an earlier question is dropped.
    """

    def __init__(self, app: Background, name: str, ticket: object) -> None:
        self._app, self._name, self._ticket = app, name, ticket
        self._worker = get_current_worker()

    def __call__(self) -> bool:
        """Return whether somebody still waits."""
        return self._app.waits(self._name, self._ticket) and not self._worker.is_cancelled

    def tell(self, then: Callable[[], Any]) -> None:
        """Call ``then`` in the app's own thread, if somebody still waits there.

        Raises DroppedError if nobody does.
        """

        def told() -> bool:
            waits = self._app.waits(self._name, self._ticket)
            if waits:
                then()
            return waits

        if not self() or not self._app.call_from_thread(told):
            raise DroppedError


class Background(App[None]):
    """An app whose slow work runs in threads and that always leaves the terminal as it was.

    interrupted: whether Ctrl-C or a signal ended it. failure: what ended it without being expected,
    or what could not be saved before it ended.
    """

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.set_reactive(App.theme, "ansi-dark")
        self.animation_level = "none"
        self.interrupted = False
        self.failure: Exception | None = None
        self._tickets: dict[str, object] = {}
        self._leaves = False

    def say(self, note: str) -> None:
        raise NotImplementedError

    def later(
        self, name: str, work: Callable[[Waiting], Found], then: Callable[[Found], None]
    ) -> None:
        """Do ``work`` in a thread, then ``then`` here; a later one of this name takes its place.

        work: is given what tells whether somebody still waits for it.
        """
        ticket = object()
        self._tickets[name] = ticket

        def run() -> None:
            waiting = Waiting(self, name, ticket)
            try:
                try:
                    found = work(waiting)
                except AttnvizError as error:
                    ended = partial(self._refused, name, error)
                else:
                    ended = partial(then, found)
                waiting.tell(partial(self._ended, name, ended))
            except DroppedError:
                return

        self.run_worker(run, thread=True, group=name, exclusive=True)

    def waits(self, name: str, ticket: object) -> bool:
        """Return whether somebody waits for the work of this name and ticket."""
        return self._tickets.get(name) is ticket

    def _ended(self, name: str, then: Callable[[], None]) -> None:
        del self._tickets[name]
        then()
        if self._leaves and "save" not in self._tickets:
            self.exit()

    def drop(self, name: str) -> bool:
        """Let nobody wait for the work of this name any more; return whether somebody did."""
        return self._tickets.pop(name, None) is not None

    def _refused(self, name: str, error: AttnvizError) -> None:
        if self._leaves:  # nobody would read it on this screen
            self.failure = error
        self.failed(name, error)

    def failed(self, name: str, error: AttnvizError) -> None:
        """Say what a thread could not do."""
        self.say(str(error))

    async def on_event(self, event: events.Event) -> None:
        if self._exit:  # what was typed behind the end would only delay it
            return
        if isinstance(event, events.Key) and not event.is_forwarded:
            await asyncio.sleep(0)  # or a signal waits for all that was typed ahead
            self.say("")
            if not await self._check_bindings(event.key, priority=True):
                await self.answer(event)
        else:
            await super().on_event(event)

    async def answer(self, event: events.Key) -> None:
        """Do what a key is for, here, before the next is looked at.

        A widget would do it later, when keys that were typed ahead have gone past what it opens.
        """
        await self._check_bindings(event.key)

    def run_to_its_end(self) -> None:
        """Run, and raise what ended it, if that was not a key: KeyboardInterrupt for a signal.

        A terminal that closes, and ``kill``, end it as Ctrl-C does. The handlers are Python's own:
        those of asyncio lose a signal while much is typed ahead. All are put back, or Textual would
        begin to draw anew on a SIGCONT after its end.
        """
        ends = [getattr(signal, name) for name in _ENDS if hasattr(signal, name)]
        stops = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
        before = {each: signal.getsignal(each) for each in (*ends, *stops)}
        try:
            for each in ends:
                signal.signal(each, self._interrupted)
            self.run()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
        if self.failure is not None:
            raise self.failure
        if self.interrupted:
            raise KeyboardInterrupt

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self.is_running or self._loop is None:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self.action_interrupt)

    def action_leave(self) -> None:
        """Leave, once a save that was begun has ended; at once if asked a second time."""
        if "save" in self._tickets and not self._leaves:
            self._leaves = True
        else:
            self.exit()

    def action_interrupt(self) -> None:
        """Leave as after Ctrl-C, SIGTERM or a terminal that closes."""
        self.interrupted = True
        self.action_leave()

    def _handle_exception(self, error: Exception) -> None:
        """End the app at once after what nobody expected; the command line says it in a line.

        Textual's own way draws a traceback with all locals first, which takes seconds.
        """
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.failure = self.failure or (cause if isinstance(cause, Exception) else error)
        self._return_code = 1
        if self._exception is None:  # a test that drives the app raises it again
            self._exception = self.failure
            self._exception_event.set()
        self._close_messages_no_wait()
