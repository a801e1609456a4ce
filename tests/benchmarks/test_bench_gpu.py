"""The benchmark of a GPU runs through on a processor, so that it will on a card."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_every_table_of_the_benchmark_is_filled():
    script = Path(__file__).with_name("bench_gpu.py")
    ran = subprocess.run(
        [sys.executable, str(script), "--device", "cpu", "--tiny", "--dtype", "float32"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "failed" not in ran.stdout
    assert "left out" not in ran.stdout
    rows = [len(part.splitlines()) - 3 for part in re.split(r"\n\*\*.*\*\*\n", ran.stdout)[1:]]
    assert [min(count, 2) for count in rows] == [2] * 5
    errors = [float(each) for each in re.findall(r"\d\.\de-\d\d", ran.stdout)]
    assert len(errors) == 3 * 13 + 2
    assert max(errors) < 1e-5
