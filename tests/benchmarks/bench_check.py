"""What a check of some twenty rules costs beside one run of ``patterns``, on the bundled model.

Run as ``python tests/benchmarks/bench_check.py``; prints ratios. The rules are those of ``--init``
(scores, labels, a baseline, the loss, sums of rows, sizes). Each turn starts both as processes of
their own, with ``--json``; printed are the medians of the ratios within a turn, of wall time and of
processor time, which other programs disturb less. At most 1.2 is asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(*arguments: str, folder: Path) -> tuple[float, float]:
    """Wall and processor time of a run of attnviz."""
    program = (sys.executable, "-c", "from attnviz.cli.main import main; main()", *arguments)
    before, began = os.times(), time.perf_counter()
    subprocess.run(program, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    processor = after.children_user + after.children_system
    return wall, processor - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds("check", "c.toml", "--init", "--quiet", "--json", folder=folder)
        rules = (folder / "c.toml").read_text(encoding="utf-8").count("[[check]]")
        ratios = []
        for _ in range(turns):
            one = seconds("patterns", "--json", folder=folder)
            other = seconds("check", "c.toml", "--json", folder=folder)
            ratios.append([b / a for a, b in zip(one, other, strict=True)])
    wall, processor = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(json.dumps({"rules": rules, "wall": round(wall, 3), "processor": round(processor, 3)}))


if __name__ == "__main__":
    main()
