"""Share tasks among several threads, each with a BLAS of one thread.

Threads that share a small matrix product wait for each other; threads that each have their own text
or rows do not. The calling thread works too, so that Ctrl-C reaches it at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from threading import Condition, Thread, local
from typing import Any, Generic, TypeVar

from attnviz.models.third_party import ErrorsAs
from attnviz.models.threads import blas_alone, workers

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_WORTH = 5e8  # the operations below which another thread does not pay (about 5 ms)
_thread = local()  # the current thread: ``inside`` holds its pool and the depth of its tasks


class _StoppedError(Exception):
    """Raised in a thread whose result is no longer wanted, to end its work."""


def spread(
    run: Callable[[_Task], _Result], tasks: Iterable[_Task], operations: float = _WORTH
) -> list[_Result]:
    """Return the results of ``run`` for all tasks, in their order, computed by several threads."""
    return list(in_turn(run, tasks, operations))


def in_turn(
    run: Callable[[_Task], _Result], tasks: Iterable[_Task], operations: float = _WORTH
) -> Iterator[_Result]:
    """Yield the result of ``run`` for each task, in the order of the tasks, from several threads.

    run: NumPy code for several threads. Its exception is raised in the task's turn, and later tasks
        are dropped. If it calls this function itself, the same threads run those tasks.
    operations: of all tasks together; for few of them no threads are started.
    """
    given = list(tasks)
    pool, depth = getattr(_thread, "inside", (None, 0))
    if len(given) < 2 or operations < _WORTH or (pool is None and workers() == 1):
        for task in given:
            if pool is not None:
                pool.check()
            yield run(task)
    elif pool is not None:
        yield from pool.results(_Batch(run, given, depth))
    else:
        with _Pool().open() as pool:
            yield from pool.results(_Batch(run, given, depth))


class _Batch(Generic[_Task, _Result]):
    """The tasks that one call shares among threads, with the results to come in their order.

    depth: how many calls with tasks are around it. waiting: the tasks that no thread has begun.
    """

    def __init__(self, run: Callable[[_Task], _Result], tasks: list[_Task], depth: int) -> None:
        self.depth = depth
        self.results = deque(Future[_Result]() for _ in tasks)
        self.waiting = deque(zip(self.results, tasks, strict=True))
        self._run = run
        # Another thread lacks the context of this one, such as NumPy's handling of overflow.
        self._context = copy_context()

    def do(self, result: Future[_Result], task: _Task) -> None:
        """Run a task, and store its result or error for the thread that waits for it."""
        with ErrorsAs(result.set_exception):
            result.set_result(self._context.copy().run(self._run, task))


class _Pool:
    """The threads that share all tasks of one outermost call, including the calling thread."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._batches: list[_Batch[Any, Any]] = []
        self._threads: list[Thread] = []
        self._most = workers()  # reads the limits of the container
        self._stopped = False

    @contextmanager
    def open(self) -> Iterator[_Pool]:
        """Start the threads for this context; they end with it, also after an exception."""
        with blas_alone():
            try:
                yield self
            finally:
                with self._changed:
                    self._stopped = True
                    self._changed.notify_all()
                for thread in self._threads:
                    thread.join()

    def check(self) -> None:
        """Raise ``_StoppedError`` if the result of this thread's work is no longer wanted."""
        if self._stopped:
            raise _StoppedError

    def results(self, batch: _Batch[_Task, _Result]) -> Iterator[_Result]:
        """Yield the results of a batch in order; this thread runs tasks of it as well."""
        with self._changed:
            self._batches.append(batch)
            waiting = sum(len(other.waiting) for other in self._batches)
            while len(self._threads) + 1 < min(self._most, waiting):
                self._threads.append(Thread(target=self._work, daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()
        try:
            while batch.results:
                while not batch.results[0].done():
                    self.check()
                    self._step(batch)
                yield batch.results.popleft().result()
        finally:
            with self._changed:
                self._batches.remove(batch)

    def _work(self) -> None:
        while not self._stopped:
            self._step()

    def _step(self, own: _Batch[Any, Any] | None = None) -> None:
        """Run a waiting task, of ``own`` or within it if given; else wait for a change."""
        with self._changed:
            # Only deeper batches are allowed besides, so that tasks do not pile up on a thread.
            for batch in reversed(self._batches):
                if batch.waiting and (own is None or batch is own or batch.depth > own.depth):
                    break
            else:
                if not self._stopped and (own is None or not own.results[0].done()):
                    self._changed.wait()
                return
            result, task = batch.waiting.popleft()
        before = getattr(_thread, "inside", (None, 0))
        _thread.inside = self, batch.depth + 1
        try:
            batch.do(result, task)
        finally:
            _thread.inside = before
        with self._changed:
            self._changed.notify_all()
