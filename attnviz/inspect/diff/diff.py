"""``diff``: from two sides to a report; two models are measured in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.inspect.diff.from_saved import compared_saved
from attnviz.inspect.diff.live import Open, Scanning, compared
from attnviz.inspect.diff.records import DiffReport
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.diff.sides import LiveSide, Side
from attnviz.models.model import Model
from attnviz.models.resolve import load
from attnviz.progress import Advance


def opened(side: LiveSide) -> Model:
    """Return the model of one side of a comparison, loaded if it was given by its name."""
    return side.loaded if side.loaded is not None else load(side.name, side.options)


@contextmanager
def unwatched() -> Iterator[Advance]:
    """Yield a function for the progress of a measurement that does nothing."""
    yield lambda done: None


def diff(
    a: Side,
    b: Side,
    request: DiffRequest,
    *,
    open_model: Open = opened,
    scanning: Scanning = unwatched,
) -> DiffReport:
    """Compare two models head by head, beyond a noise floor that is measured in the same run.

    a, b: the two sides, as ``sides.both_sides`` returns them; the second model is loaded after the
        first is measured.
    open_model: returns the model of a side. scanning: a context manager that gives a function,
    which is called with the share of the work that is done.

    Raises UsageError if the sides cannot be compared, LoadError for a model that cannot be read,
    UnsupportedError if its attention cannot be observed.
    """
    if isinstance(a, LiveSide) and isinstance(b, LiveSide):
        return compared(request, a, b, open_model, scanning)
    return compared_saved(request, a, b, open_model, scanning)
