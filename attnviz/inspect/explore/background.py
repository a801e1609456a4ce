"""Slow work in threads, and an end of the app that loses nothing."""

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
    """The result of a thread is no longer wanted."""


class Waiting:
    """What a thread asks whether its result is still wanted, and through which it reports.

    Every report of a thread comes through here, so that those to an earlier request are dropped.
    """

    def __init__(self, app: Background, name: str, ticket: object) -> None:
        self._app, self._name, self._ticket = app, name, ticket
        self._worker = get_current_worker()

    def __call__(self) -> bool:
        """Return whether the result is still wanted."""
        return self._app.waits(self._name, self._ticket) and not self._worker.is_cancelled

    def tell(self, then: Callable[[], Any]) -> None:
        """Call ``then`` in the app's own thread; DroppedError if the result is no longer wanted."""

        def told() -> bool:
            waits = self._app.waits(self._name, self._ticket)
            if waits:
                then()
            return waits

        if not self() or not self._app.call_from_thread(told):
            raise DroppedError


class Background(App[None]):
    """An app whose slow work runs in threads and that always leaves the terminal as it was.

    interrupted: whether Ctrl-C or a signal ended it. failure: the unexpected error that ended it,
    or the error of a save before its end.
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
        """Do ``work`` in a thread, then ``then`` here; later work of the same name replaces it.

        work: is given a ``Waiting``, which says whether its result is still wanted.
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
        """Return whether the work of this name and ticket is still wanted."""
        return self._tickets.get(name) is ticket

    def _ended(self, name: str, then: Callable[[], None]) -> None:
        del self._tickets[name]
        then()
        if self._leaves and "save" not in self._tickets:
            self.exit()

    def drop(self, name: str) -> bool:
        """Drop the work of this name; return whether there was any."""
        return self._tickets.pop(name, None) is not None

    def _refused(self, name: str, error: AttnvizError) -> None:
        if self._leaves:  # nobody would read it on this screen
            self.failure = error
        self.failed(name, error)

    def failed(self, name: str, error: AttnvizError) -> None:
        """Show the error of the work of this name."""
        self.say(str(error))

    async def on_event(self, event: events.Event) -> None:
        if self._exit:  # keys typed after the end would only delay it
            return
        if isinstance(event, events.Key) and not event.is_forwarded:
            await asyncio.sleep(0)  # or a signal waits for all that was typed ahead
            self.say("")
            if not await self._check_bindings(event.key, priority=True):
                await self.answer(event)
        else:
            await super().on_event(event)

    async def answer(self, event: events.Key) -> None:
        """Do what a key is for at once, before the next key is handled.

        A widget would do it later, when keys typed ahead have already passed what it opens.
        """
        await self._check_bindings(event.key)

    def run_to_its_end(self) -> None:
        """Run the app; raise the error that ended it, or KeyboardInterrupt for a signal.

        A terminal that closes, and ``kill``, end it as Ctrl-C does. The handlers are Python's own:
        those of asyncio lose a signal while much is typed ahead. All are put back, or Textual would
        draw again on a SIGCONT after its end.
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
        """Leave when a running save has ended; at once if called a second time."""
        if "save" in self._tickets and not self._leaves:
            self._leaves = True
        else:
            self.exit()

    def action_interrupt(self) -> None:
        """Leave as after Ctrl-C, SIGTERM or a terminal that closes."""
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
