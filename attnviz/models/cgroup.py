"""The limits that Linux control groups, as used by containers, set for this process.

Version 1 has a tree of folders for each resource, version 2 has one for all. Both are read, since a
machine may have either; a file that is missing or unreadable sets no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def processors() -> float | None:
    """Return the number of processors that the process may use, or None if there is no limit."""
    found = []
    for group in _groups("cpu"):
        most, period = [*_words(group / "cpu.max"), "", ""][:2]
        if not most:
            most, period = (
                "".join(_words(group / f"cpu.cfs_{name}_us")) for name in ("quota", "period")
            )
        if most.isdecimal() and period.isdecimal() and int(period):
            found.append(int(most) / int(period))
    return min(found, default=None)


def memory() -> int | None:
    """Return how many bytes of memory the control groups leave, or None for no limit.

    Cached file pages count as free.
    """
    found = []
    for group in _groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
        ):
            most, now = ("".join(_words(group / name)) for name in (limit, used))
            if most.isdecimal() and now.isdecimal():
                pages = _words(group / "memory.stat")
                dropped = dict(zip(pages[::2], pages[1::2], strict=False)).get(cached, "0")
                found.append(int(most) - int(now) + int(dropped))
    return min(found, default=None)


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, and of the groups around them.

    controller: the resource that the groups limit, such as ``memory``.
    A container may see its own group as the root of the tree, or the whole path to it.
    """
    for line in _text(_SELF).splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        tree = _ROOT / controller if names else _ROOT
        inner = tree / path.lstrip("/")
        yield from (group for group in (inner, *inner.parents) if group.is_relative_to(tree))
