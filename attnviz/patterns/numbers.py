"""Scores, rates and statistics as short texts; what was not measured says so, it is never 0."""

from __future__ import annotations

__all__ = ["NOT_MEASURED", "percent", "plain", "score", "short", "signed"]

NOT_MEASURED = "n/m"
"""Stands where there is no number."""


def _bare(text: str) -> str:
    """``-0.12`` as ``-.12``; ``-0.000`` as ``.000``."""
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("-")
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def score(value: float | None) -> str:
    """A score, such as ``.982``."""
    return NOT_MEASURED if value is None else _bare(f"{value:.3f}")


def short(value: float | None) -> str:
    """A score in three columns, four below zero: ``.98``, ``1.0``, ``-.12``."""
    if value is None:
        return NOT_MEASURED
    return "1.0" if value >= 0.995 else _bare(f"{value:.2f}")


def signed(value: float | None) -> str:
    """A difference of scores, such as ``+.862``; without a sign where it rounds to nothing."""
    if value is None:
        return NOT_MEASURED
    text = f"{value:+.3f}"
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
        return text.removeprefix("0")
    return text.replace("0.", ".", 1) if text[1:].startswith("0.") else text


def percent(value: float | None) -> str:
    """A share of texts, such as ``92%``."""
    return NOT_MEASURED if value is None else f"{value:.0%}"


def plain(value: float | None) -> str:
    """A number of nats or tokens, such as ``1.23`` or ``104.1``."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}" if abs(value) < 99.995 else f"{value:.1f}"
