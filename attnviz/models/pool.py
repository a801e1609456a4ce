"""Deals tasks out to several threads, each with a BLAS of one thread.

Threads of one small matrix product wait for each other; threads that each have a text, or rows, of
their own do not. The calling thread works too, so that Ctrl-C reaches it at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from threading import Condition, Thread, local
from typing import Any, Generic, TypeVar

from attnviz.models.threads import blas_alone, workers

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")

_WORTH = 1e9
"""Operations below which one thread is sooner done than others are woken (about 10 ms)."""

_thread = local()


class _StoppedError(Exception):
    """Nobody waits any more for what a thread works on."""


def spread(
    run: Callable[[_Task], _Found], tasks: Iterable[_Task], operations: float = _WORTH
) -> list[_Found]:
    """Return what ``run`` returns for each task; see ``in_turn``."""
    return list(in_turn(run, tasks, operations))


def in_turn(
    run: Callable[[_Task], _Found], tasks: Iterable[_Task], operations: float = _WORTH
) -> Iterator[_Found]:
    """Yield what ``run`` returns for each task, in the order of the tasks, from several threads.

    run: NumPy code that may run in several threads at once; what it raises is raised in the task's
        turn, and the tasks after it are given up. Within it, ``in_turn`` deals nothing out again.
    operations: of all tasks together, as ``models.operations`` counts them.
    """
    given = list(tasks)
    shared: _Shared[Any, Any] | None = getattr(_thread, "shared", None)
    number = 1 if shared is not None or operations < _WORTH else workers(len(given))
    if number > 1:
        yield from _Shared(run, given).results(number)
        return
    for task in given:
        if shared is not None and shared.stopped:
            raise _StoppedError
        yield run(task)


class _Shared(Generic[_Task, _Found]):
    """Tasks that several threads take from, and what they found.

    stopped: whether what is not done yet is given up.
    """

    def __init__(self, run: Callable[[_Task], _Found], tasks: list[_Task]) -> None:
        self.stopped = False
        self.failed: dict[int, Exception] = {}
        self._run = run
        self._waiting = deque(enumerate(tasks))
        self._count = len(tasks)
        self._found: dict[int, _Found] = {}
        self._more = Condition()

    def results(self, number: int) -> Iterator[_Found]:
        """Yield the results in the order of the tasks; this thread is one of ``number`` at work."""
        # A thread begins without the context, such as what NumPy is to do where numbers overflow.
        others = [
            Thread(target=copy_context().run, args=(self._work,), daemon=True)
            for _ in range(number - 1)
        ]
        with blas_alone():
            try:
                for other in others:
                    other.start()
                for place in range(self._count):
                    yield self._result(place)
            finally:
                self.stopped = True
                self._waiting.clear()
                for other in others:
                    other.join()

    def _result(self, place: int) -> _Found:
        """Return the result of a task, working on others until it is there."""
        while not self._is_done(place):
            if not self._step():
                with self._more:
                    self._more.wait_for(lambda: self._is_done(place))
        if place in self.failed:
            raise self.failed[place]
        return self._found.pop(place)

    def _is_done(self, place: int) -> bool:
        return place in self._found or place in self.failed

    def _work(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Do a task; return whether there was one."""
        try:
            place, task = self._waiting.popleft()
        except IndexError:
            return False
        with _Turn(self, place):
            self._found[place] = self._run(task)
        with self._more:
            self._more.notify()
        return True


class _Turn:
    """Marks a thread as one of those at work; keeps an error for the one who waits for the task."""

    def __init__(self, shared: _Shared[Any, Any], place: int) -> None:
        self._shared, self._place = shared, place

    def __enter__(self) -> None:
        _thread.shared = self._shared

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        _thread.shared = None
        if isinstance(error, Exception):
            self._shared.failed[self._place] = error
        return isinstance(error, Exception)
