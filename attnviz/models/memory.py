"""Measures free memory, so that what cannot fit is refused before it is allocated.

Linux control groups, as used by containers, limit memory and processors. Version 1 has a tree of
folders for each resource, version 2 one for all. Both are read; a missing file sets no limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.errors import LoadError, UsageError

if TYPE_CHECKING:  # the bundled model uses this module without torch
    import torch

_MEMINFO = Path("/proc/meminfo")

_KEPT = {-1: 1 << 29, -2: 1 << 26, -3: 1 << 25}
"""By a parameter of ``mallopt`` its bytes: free memory is returned beyond 512 MB, memory is fetched
64 MB at a time, and only arrays of 32 MB and more have pages of their own."""


def byte_text(count: int) -> str:
    """Return a number of bytes in a suitable unit, such as ``1.34 GB`` or ``512 bytes``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count} bytes"


def require_memory(name: str, needed: int, device: torch.device) -> None:
    """Raise LoadError if fewer than ``needed`` bytes are free for parameters on ``device``."""
    free = free_memory(device)
    if free is not None and needed > free:
        raise LoadError(
            f"the weights of {name!r} need {byte_text(needed)}, and {byte_text(free)} are "
            f"free on {device}: choose a narrower --dtype, another --device or a smaller model"
        )


def require_room(start: str, needed: int, advice: str, device: torch.device | None = None) -> None:
    """Raise UsageError if fewer than ``needed`` bytes of memory are free.

    start: a sentence's beginning up to the number of bytes. advice: what to choose instead. device:
    whose memory; None for main memory.
    """
    free = free_memory(device)
    if free is not None and needed > free:
        where = "" if device is None else f" on {device}"
        raise UsageError(
            f"{start} {byte_text(needed)}, {byte_text(free)} are free{where}: {advice}"
        )


def free_memory(device: torch.device | None = None) -> int | None:
    """Return the free bytes on ``device`` (None: in main memory), or None if they are unknown."""
    if device is not None and device.type != "cpu":
        import torch

        card: Any = getattr(torch, device.type, None)
        if device.type == "mps":  # shares main memory, of which Metal recommends a part
            return int(card.recommended_max_memory() - card.current_allocated_memory())
        if not hasattr(card, "mem_get_info"):
            return None
        kept = card.memory_reserved(device) - card.memory_allocated(device)
        return int(card.mem_get_info(device)[0] + kept)
    lines = _MEMINFO.read_text().splitlines() if _MEMINFO.is_file() else []
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if not sizes and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]  # all memory
    left = memory_left()
    return min(sizes + ([] if left is None else [left]), default=None)


def keep_freed() -> None:
    """Make glibc keep freed memory for new arrays: to return it took a tenth of a scan's time."""
    import ctypes  # only to run a model

    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        for parameter, size in _KEPT.items():
            tune(parameter, size)


# Control groups ---------------------------------------------------------------------------------

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def processors() -> float | None:
    """Return the number of processors that the process may use, or None if there is no limit."""
    limits = []
    for group in _groups("cpu"):
        shares = [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota = (_text(group / "cpu.max") or " ".join(shares)).split()
        most, period = [*quota, "", ""][:2]
        if most.isdecimal() and period.isdecimal() and int(period):
            limits.append(int(most) / int(period))
    return min(limits, default=None)


def memory_left() -> int | None:
    """Return the bytes that control groups still allow, with cached pages; None without a limit."""
    rooms = []
    for group in _groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
        ):
            most, now = (_text(group / name).strip() for name in (limit, used))
            if most.isdecimal() and now.isdecimal():
                pages = _text(group / "memory.stat").split()
                dropped = dict(zip(pages[::2], pages[1::2], strict=False)).get(cached, "0")
                rooms.append(int(most) - int(now) + int(dropped))
    return min(rooms, default=None)


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _groups(controller: str) -> Iterator[Path]:
    """Yield the control groups' folders of this process; a container's own may be the root."""
    for line in _text(_SELF).splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        tree = _ROOT / controller if names else _ROOT
        inner = tree / path.lstrip("/")
        yield from (group for group in (inner, *inner.parents) if group.is_relative_to(tree))
