"""Ctrl-C and SIGTERM during work that must not be left in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["between_steps"]


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

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
