"""An app with slow work in threads, which restores the terminal and finishes files at its end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from textual.app import App
from textual.worker import Worker, WorkerFailed, get_current_worker

from attnviz.errors import AttnvizError
from attnviz.inspect.explore.view import View

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

    def draw(self, before: View) -> None:
        """Draw the screen state. before: the state that was drawn before it."""

    def say(self, note: str) -> None:
        """Show a note until the next key is pressed."""

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
                    result = work(waiting)
                except AttnvizError as error:
                    end = partial(self._refused, name, error)
                else:
                    end = partial(then, result)
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
