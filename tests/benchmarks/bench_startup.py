"""Prints the time of the commands that need no torch against that of ``import torch``.

Whole processes, one after the other in turn, so that a busy machine slows all. Run it as
``python tests/benchmarks/bench_startup.py [ROUNDS]``; the target is a ratio below 0.25.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

SENTENCE = "The cat sat on the mat because it was tired."
PROGRAM = (sys.executable, "-c", "from attnviz.cli.main import main; main()")
TORCH = "import torch"
RUNS = {
    "heads": (*PROGRAM, "heads", SENTENCE),
    "params of a shape": (*PROGRAM, "params", "--d-model", "4096", "--heads", "32"),
    "params of a name": (*PROGRAM, "params", "llama-2-70b", "--tokens", "4096"),
    TORCH: (sys.executable, "-c", TORCH),
}
TARGET = 0.25


def seconds(command: tuple[str, ...], environment: dict[str, str]) -> float:
    """The wall-clock time of one process that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, float]:
    """The median seconds of each run; a first round, not counted, fills the caches."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    for counted in range(-1, rounds):
        for name, command in RUNS.items():
            took = seconds(command, environment)
            if counted >= 0:
                times[name].append(took)
    return {name: median(taken) for name, taken in times.items()}


def main() -> None:
    medians = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    for name, took in medians.items():
        print(f"{name:<18} {1000 * took:6.0f} ms   ratio {took / medians[TORCH]:.3f}")
    print(f"target: ratios below {TARGET}")


if __name__ == "__main__":
    main()
