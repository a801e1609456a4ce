"""How the numbers of a sweep are written."""

from __future__ import annotations

from attnviz.sweep.records import Spread

__all__ = ["heads_name", "milliseconds", "nats", "of_seeds", "percent", "with_spread"]

_SMALL = 0.0005


def nats(value: float) -> str:
    """A loss, such as ``0.066``; one that would round to nothing as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < _SMALL else f"{value:.3f}"


def percent(value: float) -> str:
    """A share, such as ``97.9%``."""
    return f"{value:.1%}"


def milliseconds(seconds: float) -> str:
    """A time, such as ``12.4``."""
    return f"{1000 * seconds:.1f}"


def with_spread(spread: Spread, sign: str = "±") -> str:
    """A mean loss and its standard deviation over seeds, such as ``0.066 ± 0.012``."""
    if spread.deviation is None:
        return nats(spread.mean)
    return f"{nats(spread.mean)} {sign} {nats(spread.deviation)}"


def heads_name(heads: int) -> str:
    """Such as ``1 head`` or ``4 heads``."""
    return f"{heads} head{'s' * (heads != 1)}"


def of_seeds(found: int, seeds: int) -> str:
    """Such as ``2 of 3 seeds``."""
    return f"{found} of {seeds} seed{'s' * (seeds != 1)}"
