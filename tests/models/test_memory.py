"""Sizes in words, and the limits of control groups, from trees of files like those of Linux."""

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from attnviz.models import memory
from attnviz.models.memory import byte_text


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (30_100_000, "30.10 MB"),
        (1_342_177_280, "1.34 GB"),
        (4_943_257_600_000, "4,943.26 GB"),
    ],
)
def test_a_size_is_said_in_the_largest_unit_that_it_fills(count, expected):
    assert byte_text(count) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_what_torch_keeps_for_later_counts_as_free(kind, monkeypatch):
    import torch

    card = getattr(torch, kind)
    monkeypatch.setattr(card, "mem_get_info", lambda device: (1_000, 9_000))
    monkeypatch.setattr(card, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(card, "memory_allocated", lambda device: 300)
    assert memory.free_memory(torch.device(kind)) == 1_200
    assert memory.free_memory(torch.device("meta")) is None


def test_metal_says_how_much_of_main_memory_is_for_it(monkeypatch):
    import torch

    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 9_000)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 2_000)
    assert memory.free_memory(torch.device("mps")) == 7_000


def test_freed_memory_is_kept_for_the_next_array():
    code = (
        "import resource, sys; import numpy as np; from attnviz.models.memory import keep_freed; "
        "keep_freed(); faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; "
        "np.ones(1_000_000); before = faults(); np.ones(1_000_000); print(faults() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200  # 8 MB have 2,000 pages


Lay = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def lay(tmp_path, monkeypatch):
    """Return a function that lays the tree: the lines of the process, and files with content."""

    def laid(groups, files):
        own = tmp_path / "self"
        own.write_text(groups)
        root = tmp_path / "cgroup"
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        monkeypatch.setattr(memory, "_SELF", own)
        monkeypatch.setattr(memory, "_ROOT", root)

    return laid


def v1(quota):
    """Return the files of a group of version 1 with a share of processors."""
    return {"cpu/x/cpu.cfs_quota_us": f"{quota}\n", "cpu/x/cpu.cfs_period_us": "100000\n"}


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
        ("3:cpu,cpuacct:/x\n2:memory:/y\n", v1("250000"), 2.5),
        ("3:cpuset:/x\n2:cpuacct:/x\n", v1("250000"), None),
        ("1:cpu:/x\n0::/\n", v1("-1"), None),
    ],
)
def test_the_smallest_quota_of_all_groups_counts(groups, files, expected, lay):
    lay(groups, files)
    assert memory.processors() == expected


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
def test_what_is_left_of_the_memory(groups, files, expected, lay):
    lay(groups, files)
    assert memory.memory_left() == expected


def test_a_system_without_groups_limits_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_SELF", tmp_path / "missing")
    assert memory.processors() is memory.memory_left() is None
