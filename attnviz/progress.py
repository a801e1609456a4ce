"""How a run tells whoever waits for it how far it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

Advance = Callable[[float], None]
"""Is called with the share of the work that is done, from 0 to 1."""


class Watch:
    """Shows the progress of a run to a person; this base class shows nothing.

    It is an ``Advance`` too.
    """

    def begin(self, words: str) -> None:
        """Show what the run, or its next part, does: such as ``ablating 24 heads × 10 texts``."""

    def __call__(self, share: float) -> None:
        """Show the share of all operations that is done, from 0 to 1."""

    def found(self, words: Callable[[], str]) -> None:
        """Show, if the screen allows it, a result that is complete before the run ends.

        words: returns the result as one line; called only if it is shown.
        """


UNWATCHED = Watch()


def share_read(layer: int, wanted: Sequence[int]) -> float:
    """Return the share of the wanted layers that is read once ``layer`` is.

    wanted: in rising order, at least one.
    """
    return bisect_right(wanted, layer) / len(wanted)
