"""Slow work in threads next to the panes: only the answer to what was asked last is heard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from textual.app import App
from textual.worker import get_current_worker

from attnviz.errors import AttnvizError

Found = TypeVar("Found")


class DroppedError(Exception):
    """Nobody waits any more for what a thread does."""


class Waiting:
    """Tells a thread whether its result is still awaited, and lets it report before its end."""

    def __init__(self, jobs: Jobs, name: str, ticket: object) -> None:
        self._jobs, self._name, self._ticket = jobs, name, ticket
        self._worker = get_current_worker()

    def __call__(self) -> bool:
        """Return whether the result is still awaited."""
        return self._jobs.waits(self._name, self._ticket) and not self._worker.is_cancelled

    def tell(self, then: Callable[[], Any]) -> None:
        """Call ``then`` in the app's own thread if the result is still awaited there.

        Raises DroppedError if it is not.
        """

        def told() -> bool:
            waits = self._jobs.waits(self._name, self._ticket)
            if waits:
                then()
            return waits

        if not self() or not self._jobs.app.call_from_thread(told):
            raise DroppedError


class Jobs:
    """The work that runs in threads of an app, by name; a later job takes an earlier one's place.

    refused: is called with the name and the error of a job that could not be done.
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
        """Do ``work`` in a thread, then call ``then`` with its result in the app's thread."""
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
        """Return whether the result of the job with this name and ticket is awaited."""
        return self._tickets.get(name) is ticket

    def runs(self, name: str) -> bool:
        """Return whether a job of this name runs."""
        return name in self._tickets

    def drop(self, name: str) -> bool:
        """Ignore the result of the job of this name; return whether there was one."""
        return self._tickets.pop(name, None) is not None

    def _end(self, name: str, then: Callable[[], None]) -> None:
        del self._tickets[name]
        then()
        self._ended()
