"""Ctrl-C and SIGTERM during work that must not be left in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["as_interrupt", "between_steps"]


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """A function that tells whether the process was asked to stop; the block decides when.

    A second Ctrl-C interrupts at once. Off the main thread, which alone gets signals, nothing is
    changed.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    with _handled(ask, signal.SIGINT, signal.SIGTERM):
        yield lambda: asked


@contextmanager
def as_interrupt() -> Iterator[None]:
    """SIGTERM, and a terminal that closes, interrupt the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    endings = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
    # What is ignored stays ignored: nohup asks for that.
    heeded = {one for one in endings if signal.getsignal(one) is not signal.SIG_IGN}
    with _handled(interrupt, *heeded):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What the caller ignores stays ignored, as Ctrl-C of a job that runs behind a script.
    heeded = [one for one in signals if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, handler) for one in heeded}
    try:
        yield
    finally:
        for one, old in before.items():
            signal.signal(one, old)
