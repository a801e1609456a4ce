"""Amounts as they are typed: ``30s`` or ``20`` of a budget, ``2GB`` of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnviz.errors import UsageError

__all__ = ["Budget", "read_budget", "read_bytes"]

_NUMBER = r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BYTES |= {f"{prefix}i": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)}


@dataclass(frozen=True)
class Budget:
    """How much may be measured exactly: a time, or a number of removals; one of them is None."""

    seconds: float | None = None
    count: int | None = None


def read_budget(typed: str) -> Budget:
    """``30s``, ``5m``, ``1h``, ``20`` or ``20 heads``; UsageError for anything else."""
    match = re.fullmatch(rf"{_NUMBER}\s*(s|m|min|h|heads?)?", typed.strip().lower())
    unit = match[2] if match is not None else None
    if match is None or (unit not in _SECONDS and not match[1].isdigit()):
        raise UsageError(
            f"cannot read --budget {typed!r}: expected a time such as 30s or 5m, or a number of "
            "heads such as 20"
        )
    amount = float(match[1])
    if amount == 0:
        raise UsageError(
            "--budget 0 leaves nothing to measure: expected a time such as 30s or a number of "
            "heads such as 20; --method gradient measures nothing exactly"
        )
    if unit in _SECONDS:
        return Budget(seconds=amount * _SECONDS[unit])
    return Budget(count=int(match[1]))


def read_bytes(typed: str) -> int:
    """``2GB``, ``512MiB`` or plain bytes; UsageError for anything else."""
    match = re.fullmatch(rf"{_NUMBER}\s*([kmgt]i?)?b?", typed.strip().lower())
    if match is None:
        raise UsageError(
            f"cannot read --max-memory {typed!r}: expected a size such as 2GB or 512MiB"
        )
    size = int(float(match[1]) * _BYTES[match[2] or ""])
    if size == 0:
        raise UsageError("--max-memory 0 leaves no room: expected a size such as 2GB or 512MiB")
    return size
