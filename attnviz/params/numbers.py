"""Counts, shares, sizes and factors as people write them, computed in integers only."""

from __future__ import annotations

__all__ = ["bytes_text", "count", "factor", "share", "short", "times"]

_SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_SCALES = ("", "k", "M", "G", "T", "P", "E")
_EXACT_BYTES = 1_000_000


def count(number: int) -> str:
    """An exact whole number: ``16,777,216``."""
    return f"{number:,}"


def _rounded(part: int, whole: int, decimals: int) -> str:
    """``part / whole`` rounded half up; exact however large the two are."""
    scaled = (2 * part * 10**decimals + whole) // (2 * whole)
    left, right = divmod(scaled, 10**decimals)
    return f"{left:,}.{right:0{decimals}d}" if decimals else f"{left:,}"


def share(part: int, whole: int) -> str:
    """A part of a whole as ``25.0 %``; a dash where the whole is nothing."""
    if not whole:
        return "–"
    shown = _rounded(100 * part, whole, 1)
    return f"<{'0.1'} %" if part and shown == "0.0" else f"{shown} %"


def _scaled(number: int, names: tuple[str, ...]) -> str:
    """Three or four digits and a unit; what no unit reaches as a power of ten."""
    place = max((len(str(number)) - 1) // 3, 0)
    if place >= len(names):
        power = len(str(number)) - 1
        shown = _rounded(number, 10**power, 2)
        if shown == "10.00":
            shown, power = "1.00", power + 1
        return f"{shown}e{power} {names[0]}".strip()
    unit = 1000**place
    for decimals in (2, 1, 0) if number % unit else (0,):
        shown = _rounded(number, unit, decimals)
        if len(shown) <= 5 or not decimals:
            break
    if shown == "1,000" and place and place + 1 < len(names):
        return _scaled(1000 * unit, names)
    return f"{shown} {names[place]}".strip()


def short(number: int) -> str:
    """A large number in three or four digits, in powers of a thousand: ``137.9 G``."""
    return _scaled(number, _SCALES)


def bytes_text(number: int) -> str:
    """A size: exact up to six digits (``16,384 bytes``), then ``1.34 GB``, GB being 10⁹ bytes."""
    if number < _EXACT_BYTES:
        return f"{number:,} byte{'s' * (number != 1)}"
    return _scaled(number, _SIZES)


def factor(part: int, whole: int) -> str:
    """How ``part`` compares with ``whole``: ``× 4``, ``÷ 8``, ``× 1.5``; a dash for nothing."""
    if not part or not whole:
        return "–"
    large, small, sign = (part, whole, "×") if part >= whole else (whole, part, "÷")
    exact = large % small == 0
    return f"{sign} {large // small:,}" if exact else f"{sign} {_rounded(large, small, 2)}"


def times(part: int, whole: int) -> str:
    """How many times ``whole`` goes into ``part``: ``54.15 ×``; a dash for nothing."""
    return f"{_rounded(part, whole, 2 if part % whole else 0)} ×" if whole else "–"
