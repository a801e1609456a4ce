"""Handlers for Ctrl-C and signals, for work that may only be stopped between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from attnviz.ranks import EndsTogether, is_together


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
    """Let SIGTERM and the closing of the terminal interrupt the block as Ctrl-C does.

    In one of several processes, all three raise EndsTogether.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise EndsTogether if is_together() else KeyboardInterrupt

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
