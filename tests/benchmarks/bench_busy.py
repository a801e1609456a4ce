"""How much longer commands take on a busy machine than a plain program of the same length.

Run as ``python tests/benchmarks/bench_busy.py [--rounds N] [--load four|torch] [NAME...]``; a round
of all commands next to one load takes about 100 s, and everything runs on two processors. Next to
four processes that keep a processor busy each, and next to two whose torch has threads of its own
on tiny matrices, each command takes turns with a plain single-threaded program of Python and NumPy
that takes as many seconds of a processor. What is printed is the wall time of both and their ratio,
the median over the rounds: the goal is at most 1.5.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from house import COMMANDS, PROGRAM, seconds

NAMES = (
    *("heads", "why", "patterns", "ablate", "ablate TEXT", "ablate --head 3"),
    *("patch", "path", "prune", "diff"),
)
GOAL = 1.5

PLAIN = """
import sys, time
import numpy as np
factor = np.ones((200, 200), np.float32)
end = float(sys.argv[1])
while time.process_time() < end:
    factor @ factor
    sum(range(1000))
"""
"""Takes so many seconds of one processor."""

SPINNING = "while True: pass"
TORCH = """
import torch
torch.set_num_threads(2)
factor = torch.ones(64, 64)
large = torch.ones(40_000)
while True:
    factor @ factor
    large + large
"""
LOADS: dict[str, tuple[str, ...]] = {"four": (SPINNING,) * 4, "torch": (TORCH,) * 2}
SAID = {"four": "four busy processes", "torch": "two processes that keep torch's threads busy"}


@contextmanager
def busy(programs: Sequence[str]) -> Iterator[None]:
    """Run the programs until the block ends."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "ACTIVE"}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for code in programs]
    try:
        time.sleep(4)  # torch takes a while to begin
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def taken(command: Sequence[str]) -> tuple[float, float]:
    """Return the wall time and the processor time of a command that must succeed."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"} if command[2] == PLAIN else os.environ
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        processor = seconds(tuple(command), {**environment, "XDG_CACHE_HOME": cache})
        return time.perf_counter() - start, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--load", choices=LOADS, action="append")
    parser.add_argument("names", nargs="*", default=NAMES)
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = {name: (*PROGRAM, *COMMANDS[name]) for name in chosen.names}
    lengths = {name: taken(run)[1] for name, run in runs.items()}
    for load in chosen.load or LOADS:
        print(f"next to {SAID[load]}: wall time of the command, of a plain program; their ratio")
        with busy(LOADS[load]):
            for name, run in runs.items():
                plain = (sys.executable, "-c", PLAIN, str(lengths[name]))
                walls = [(taken(run)[0], taken(plain)[0]) for _ in range(chosen.rounds)]
                ratio = median(ours / theirs for ours, theirs in walls)
                ours, theirs = (median(each) for each in zip(*walls, strict=True))
                missed = " ***" if ratio > GOAL else ""
                print(
                    f"  {name:<16} {lengths[name]:5.2f} s of a processor {ours:6.2f} {theirs:6.2f}"
                    f"   ratio {ratio:.2f}   goal {GOAL}{missed}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
