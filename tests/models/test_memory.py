"""Sizes of memory in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
def test_a_size_is_said_in_the_largest_unit_that_it_fills(count: int, expected: str) -> None:
    assert byte_text(count) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_is_kept_for_the_next_array() -> None:
    code = (
        "import resource, sys; import numpy as np; from attnviz.models.memory import keep_freed; "
        "keep_freed(); faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; "
        "np.ones(1_000_000); before = faults(); np.ones(1_000_000); print(faults() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200  # 8 MB have 2,000 pages
