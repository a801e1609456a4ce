"""How much longer commands take on a busy machine, next to what a plain program suffers there.

Run as ``python tests/benchmarks/bench_busy.py [--rounds N] [NAME...]`` on an idle machine;
everything runs on two of its processors. Next to four processes that keep a processor busy each,
and next to two whose torch has threads of its own on tiny matrices, each command is timed, and a
plain single-threaded program of Python and NumPy that takes as long on the idle machine. What is
printed is how many times as long the command takes, over how many times as long the plain program
does: the goal is at most 1.5.
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
from house import COMMANDS, PROGRAM

NAMES = (
    *("heads", "why", "patterns", "heads --cut", "ablate", "ablate TEXT", "ablate --head 3"),
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
LOADS: dict[str, tuple[str, ...]] = {
    "four busy processes": (SPINNING,) * 4,
    "two with torch's threads": (TORCH,) * 2,
}


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


def wall(command: Sequence[str], rounds: int) -> float:
    """Return the median wall time of a command that must succeed."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"} if command[2] == PLAIN else os.environ
    taken = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            start = time.perf_counter()
            subprocess.run(
                command,
                env={**environment, "XDG_CACHE_HOME": cache},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            taken.append(time.perf_counter() - start)
    return median(taken)


def plain(seconds: float) -> tuple[str, ...]:
    return sys.executable, "-c", PLAIN, str(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("names", nargs="*", default=NAMES)
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = {name: (*PROGRAM, *COMMANDS[name]) for name in chosen.names}
    for run in runs.values():
        wall(run, 1)  # writes bytecode
    idle = {name: wall(run, chosen.rounds) for name, run in runs.items()}
    alone = {name: wall(plain(took), chosen.rounds) for name, took in idle.items()}
    for load, programs in LOADS.items():
        print(f"next to {load}, times as long as idle: the command, a plain program; their ratio")
        with busy(programs):
            for name, run in runs.items():
                ours = wall(run, chosen.rounds) / idle[name]
                theirs = wall(plain(idle[name]), chosen.rounds) / alone[name]
                missed = " ***" if ours > GOAL * theirs else ""
                print(
                    f"  {name:<16} {idle[name]:5.2f} s idle {ours:6.2f} {theirs:6.2f}   "
                    f"ratio {ours / theirs:.2f}   goal {GOAL}{missed}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
