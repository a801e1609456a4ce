"""Prints the size of the package and its tests, and what a start costs against ``import torch``.

Starts are whole processes, in turn, in seconds of processor time, so that a busy machine counts
little. Run it as ``python tests/benchmarks/house.py [ROUNDS]``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-c", "from attnviz.cli.main import main; main()")
TORCH = "import torch"
RUNS = {
    "--help": (*PROGRAM, "--help"),
    "heads --help": (*PROGRAM, "heads", "--help"),
    "params --json": (*PROGRAM, "params", "--d-model", "4096", "--heads", "32", "--json"),
    "params": (*PROGRAM, "params", "llama-2-70b", "--tokens", "4096"),
    "heads": (*PROGRAM, "heads", "The cat sat on the mat because it was tired."),
    TORCH: (sys.executable, "-c", TORCH),
}
TARGETS = {"params --json": 0.13, "heads": 0.18}


def sizes(folder: str) -> str:
    """The lines and modules of a folder, ``__init__`` files counted, and the longest ones."""
    lines = {path: path.read_bytes().count(b"\n") for path in (ROOT / folder).rglob("*.py")}
    longest = sorted(lines, key=lines.__getitem__)[-3:]
    told = ", ".join(f"{path.relative_to(ROOT)} {lines[path]}" for path in reversed(longest))
    total = sum(lines.values())
    return f"{total:,} lines in {len(lines)} modules, median {median(lines.values()):g}; {told}"


def seconds(command: tuple[str, ...], environment: dict[str, str]) -> float:
    """The processor time of one process that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def starts(rounds: int) -> dict[str, float]:
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
    for folder in ("attnviz", "tests"):
        print(f"{folder:<8} {sizes(folder)}")
    medians = starts(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    for name, took in medians.items():
        target = f"   target {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name:<14} {1000 * took:6.0f} ms   ratio {took / medians[TORCH]:.3f}{target}")


if __name__ == "__main__":
    main()
