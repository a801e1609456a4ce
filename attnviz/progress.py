"""How a run tells whoever waits for it how far it is, and how it is stopped between two steps."""

from __future__ import annotations

import signal
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType

from attnviz.ranks import EndsTogether, is_together

Advance = Callable[[float], None]
"""Is called with the share of the work that is done, from 0 to 1."""


class Watch:
    """Shows the progress of a run to a person, as an ``Advance``; this base class shows nothing."""

    def begin(self, words: str) -> None:
        """Show a description of the run, or of its next part: ``ablating 24 heads × 10 texts``."""

    def __call__(self, share: float) -> None:
        """Show the share of all operations that is done, from 0 to 1."""

    def found(self, words: Callable[[], str]) -> None:
        """Show, if the screen allows it, a result that is complete before the run ends.

        words: returns the result as one line; called only if it is shown.
        """

    def aside(self, words: str) -> None:
        """Show the name of a task that takes a while and is not a step of the run."""


UNWATCHED = Watch()

_CURRENT: ContextVar[Watch] = ContextVar("watch", default=UNWATCHED)


def current_watch() -> Watch:
    """Return the ``Watch`` of the run that this code is part of."""
    return _CURRENT.get()


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Make ``watch`` the ``current_watch`` until the block ends."""
    before = _CURRENT.set(watch)
    try:
        yield watch
    finally:
        _CURRENT.reset(before)


def share_read(layer: int, wanted: Sequence[int]) -> float:
    """Return the share of the layers ``wanted``, in rising order, that is read after ``layer``."""
    return bisect_right(wanted, layer) / len(wanted)


def shares_of(total: float, advance: Advance) -> Callable[[float], None]:
    """Return a function that adds up finished costs and advances to their share of ``total``."""
    done = 0.0

    def add(cost: float) -> None:
        nonlocal done
        done += cost
        advance(min(done / total, 1.0) if total else 1.0)

    return add


# Ctrl-C and signals ----------------------------------------------------------------------------


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Give the block a function that returns True once the process was asked to stop.

    The block decides when to stop. A second Ctrl-C interrupts at once. Nothing is changed outside
    the main thread, since only the main thread gets signals, nor in one of several processes, of
    which each would stop after another step.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    with nullcontext() if is_together() else _handled(ask, signal.SIGINT, signal.SIGTERM):
        yield lambda: asked


@contextmanager
def as_interrupt() -> Iterator[None]:
    """Let SIGTERM and the closing of the terminal interrupt the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise EndsTogether if is_together() else KeyboardInterrupt  # several processes end together

    closed = getattr(signal, "SIGHUP", signal.SIGTERM)
    with _handled(interrupt, *{signal.SIGINT, signal.SIGTERM, closed}):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # An ignored signal stays ignored: nohup asks for that, or a script for a background job.
    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
