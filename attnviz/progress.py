"""How a run tells whoever waits for it how far it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Advance = Callable[[float], None]
"""Is called with the share of the work that is done, from 0 to 1."""


class Watch:
    """Shows the progress of a run to a person; this base class shows nothing.

    Calling it, as an ``Advance``, reports a share.
    """

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
    """Return the share of the layers ``wanted`` that has been read when ``layer`` has been.

    wanted: in rising order, at least one.
    """
    return bisect_right(wanted, layer) / len(wanted)


def shares_of(total: float, advance: Advance) -> Callable[[float], None]:
    """Return a function that adds up finished costs and reports their share of ``total``.

    advance: is called with that share, from 0 to 1.
    """
    done = 0.0

    def add(cost: float) -> None:
        nonlocal done
        done += cost
        advance(min(done / total, 1.0) if total else 1.0)

    return add
