"""An app that always restores the terminal when it ends, and finishes files that it is writing."""

from __future__ import annotations

import signal
from types import FrameType

from textual.app import App
from textual.worker import WorkerFailed

from attnviz.errors import AttnvizError
from attnviz.inspect.explore.jobs import Jobs

_SAVE = "save"
"""The name of the job that an end waits for."""

_ENDS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
_STOPS = ("SIGTSTP", "SIGCONT")


class TerminalApp(App[None]):
    """A terminal app with background jobs, which always restores the terminal at its end.

    jobs: the slow work in threads. interrupted: whether Ctrl-C or a signal ended it.
    failure: the unexpected error that ended it, or the error of a save that it waited for.
    """

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.set_reactive(App.theme, "ansi-dark")
        self.animation_level = "none"
        self.interrupted = False
        self.failure: Exception | None = None
        self.jobs = Jobs(self, self._refused, self._job_ended)
        self._leaves = False

    def failed(self, name: str, error: AttnvizError) -> None:
        """Show the error of a failed job. name: the name of the job."""

    def _refused(self, name: str, error: AttnvizError) -> None:
        if self._leaves:  # this screen is closing
            self.failure = error
        self.failed(name, error)

    def _job_ended(self) -> None:
        if self._leaves and not self.jobs.runs(_SAVE):
            self.exit()

    def run_to_its_end(self) -> None:
        """Run the app; raise the error that ended it, or KeyboardInterrupt for a signal.

        A terminal that closes, and ``kill``, end it as Ctrl-C does. The signal handlers are
        Python's own: those of asyncio lose a signal while much is typed ahead. All are restored, or
        Textual would draw again on a SIGCONT after its end.
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
        """End the app once a save in progress has ended; at once if called a second time."""
        if self.jobs.runs(_SAVE) and not self._leaves:
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
