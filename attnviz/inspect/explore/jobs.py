"""Slow work in threads next to the panes; only the result of the latest request is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from textual.app import App
from textual.worker import get_current_worker

from attnviz.errors import AttnvizError

Found = TypeVar("Found")


class DroppedError(Exception):
    """Raised in a thread whose result is no longer wanted, to end its work."""


class Waiting:
    """Tells a thread whether its result is still wanted, and passes its reports on to the app.

    Every report of a thread goes through it, so that reports of earlier requests are dropped.
    """

    def __init__(self, jobs: Jobs, name: str, ticket: object) -> None:
        self._jobs, self._name, self._ticket = jobs, name, ticket
        self._worker = get_current_worker()

    def __call__(self) -> bool:
        """Return whether the result of the thread is still wanted."""
        return self._jobs.waits(self._name, self._ticket) and not self._worker.is_cancelled

    def tell(self, then: Callable[[], Any]) -> None:
        """Call ``then`` in the app's thread, to report the progress of this thread.

        Raises DroppedError if the result of this thread is no longer wanted.
        """

        def told() -> bool:
            waits = self._jobs.waits(self._name, self._ticket)
            if waits:
                then()
            return waits

        if not self() or not self._jobs.app.call_from_thread(told):
            raise DroppedError


class Jobs:
    """Runs slow work in threads of an app; a later job replaces an earlier one of its name.

    refused: is called with the name and the error of a job that failed.
    ended: is called after each job whose result was awaited.
    """

    def __init__(
        self,
        app: App[None],
        refused: Callable[[str, AttnvizError], None],
        ended: Callable[[], None],
    ) -> None:
        self.app = app
        self._refused, self._ended = refused, ended
        self._tickets: dict[str, object] = {}

    def later(
        self, name: str, work: Callable[[Waiting], Found], then: Callable[[Found], None]
    ) -> None:
        """Run ``work`` in a thread, then pass its result to ``then`` in the app's thread.

        name: later work of the same name replaces it. work: gets a ``Waiting``, which says whether
            its result is still wanted.
        """
        ticket = object()
        self._tickets[name] = ticket

        def run() -> None:
            waiting = Waiting(self, name, ticket)
            try:
                try:
                    found = work(waiting)
                except AttnvizError as error:
                    end = partial(self._refused, name, error)
                else:
                    end = partial(then, found)
                waiting.tell(partial(self._end, name, end))
            except DroppedError:
                return

        self.app.run_worker(run, thread=True, group=name, exclusive=True)

    def waits(self, name: str, ticket: object) -> bool:
        """Return whether the work of this name and ticket is still wanted.

        ticket: the object that ``later`` made for one piece of work.
        """
        return self._tickets.get(name) is ticket

    def runs(self, name: str) -> bool:
        """Return whether a job of this name runs."""
        return name in self._tickets

    def drop(self, name: str) -> bool:
        """Drop the job called ``name``; return True if it was running."""
        return self._tickets.pop(name, None) is not None

    def _end(self, name: str, then: Callable[[], None]) -> None:
        del self._tickets[name]
        then()
        self._ended()
