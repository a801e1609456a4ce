"""Measures free memory, so that what cannot fit is refused before it is allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import LoadError, UsageError
from attnviz.models import cgroup

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
    """Raise LoadError if fewer than ``needed`` bytes are free for parameters on ``device``.

    name: of the model, for the message.
    """
    free = free_memory(device)
    if free is not None and needed > free:
        raise LoadError(
            f"the weights of {name!r} need {byte_text(needed)}, and {byte_text(free)} are "
            f"free on {device}: choose a narrower --dtype, another --device or a smaller model"
        )


def require_room(what: str, needed: int, advice: str) -> None:
    """Raise UsageError if fewer than ``needed`` bytes of main memory are free.

    what: a sentence's beginning up to the number of bytes, such as ``these sizes take``.
    advice: what to choose instead.
    """
    free = free_memory()
    if free is not None and needed > free:
        raise UsageError(f"{what} {byte_text(needed)}, {byte_text(free)} are free: {advice}")


def free_memory(device: torch.device | None = None) -> int | None:
    """Return the free bytes on ``device`` (None: in main memory), or None if they are unknown."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if device is not None and device.type != "cpu":
        return None
    known = [size for size in (_available(), cgroup.memory()) if size is not None]
    return min(known, default=None)


def keep_freed() -> None:
    """Let the C library keep freed memory for the next arrays, on glibc.

    Returning it to the system took a tenth of a scan's time. Another C library is left as it is.
    """
    import ctypes  # only to run a model

    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        for parameter, size in _KEPT.items():
            tune(parameter, size)


def _available() -> int | None:
    """Return the bytes of memory available without swapping.

    On systems other than Linux, return the size of all memory.
    """
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
