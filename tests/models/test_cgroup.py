"""Limits of control groups, read from trees of files like those of Linux."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from attnviz.models import cgroup

Lay = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lay:
    """Return a function that lays the tree: the lines of the process, and files with content."""

    def laid(groups: str, files: Mapping[str, str]) -> None:
        own = tmp_path / "self"
        own.write_text(groups)
        root = tmp_path / "cgroup"
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        monkeypatch.setattr(cgroup, "_SELF", own)
        monkeypatch.setattr(cgroup, "_ROOT", root)

    return laid


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "200000\n"}, None),
        ("0::/\n", {"cpu.max": "200000 0\n"}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        ("0::/a/b c\n", {"a/b c/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/docker/1\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/../..\n", {"cpu.max": "150000 100000"}, 1.5),
        (
            "3:cpu,cpuacct:/x\n2:memory:/y\n",
            {"cpu/x/cpu.cfs_quota_us": "250000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        (
            "3:cpuset:/x\n2:cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "250000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        (
            "1:cpu:/\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
    ],
)
def test_the_smallest_quota_of_all_groups_counts(
    groups: str, files: dict[str, str], expected: float | None, lay: Lay
) -> None:
    lay(groups, files)
    assert cgroup.processors() == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "max", "memory.current": "70"}, None),
        (
            "0::/\n",
            {"memory.max": "100", "memory.current": "70", "memory.stat": "anon 5\nfile 20\n"},
            50,
        ),
        (
            "4:memory:/a\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": "1000",
                "memory/a/memory.limit_in_bytes": "100",
                "memory/a/memory.usage_in_bytes": "60",
                "memory/a/memory.stat": "cache 1\ntotal_cache 7\n",
            },
            47,
        ),
        ("0::/\n", {"memory.max": "100"}, None),
    ],
)
def test_what_is_left_of_the_memory(
    groups: str, files: dict[str, str], expected: int | None, lay: Lay
) -> None:
    lay(groups, files)
    assert cgroup.memory() == expected


def test_a_system_without_groups_limits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_SELF", tmp_path / "missing")
    assert cgroup.processors() is cgroup.memory() is None
