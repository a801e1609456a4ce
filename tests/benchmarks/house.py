"""Prints the size of the package and its tests, and what commands cost against ``import torch``.

Commands are whole processes, in turn, in seconds of processor time, of which the best is taken, so
that a busy machine counts little. The bundled model answers; nothing that an earlier run kept is
found again. The target stands next to each figure: whoever raises one says why in the commit.
Run it as ``python tests/benchmarks/house.py [ROUNDS]``.
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-c", "from attnviz.cli.main import main; main()")
TORCH = "import torch"
SENTENCE = "The cat sat on the mat because it was tired."
COMMANDS = {
    "--help": ("--help",),
    "heads --help": ("heads", "--help"),
    "params --json": ("params", "--d-model", "4096", "--heads", "32", "--json"),
    "params": ("params", "llama-2-70b", "--tokens", "4096"),
    "heads": ("heads", SENTENCE),
    "why": ("why", SENTENCE),
    "patterns": ("patterns",),
    "generate": ("generate", "Once there was", "--tokens", "20"),
    "ablate": ("ablate",),
    "ablate TEXT": ("ablate", SENTENCE),
    "ablate --head 3": ("ablate", "--head", "3"),
    "patch": ("patch",),
    "path": ("path", "L1H2"),
    "prune": ("prune",),
    "diff": ("diff", "tiny", "tiny", "--dtype-b", "float64"),
}
RUNS = {
    **{name: (*PROGRAM, *words) for name, words in COMMANDS.items()},
    TORCH: (sys.executable, "-c", TORCH),
}
TARGETS = {
    "params --json": 0.13,
    "heads": 0.20,
    "why": 0.3,
    "patterns": 0.6,
    "ablate": 1.1,
    "ablate TEXT": 0.3,
    "ablate --head 3": 0.7,
    "patch": 1.3,
    "path": 1.0,
    "prune": 1.8,
    "diff": 1.4,
}


def sizes(folder):
    """The lines and modules of a folder, ``__init__`` files counted, and the longest ones."""
    lines = {path: path.read_bytes().count(b"\n") for path in (ROOT / folder).rglob("*.py")}
    longest = sorted(lines, key=lines.__getitem__)[-3:]
    told = ", ".join(f"{path.relative_to(ROOT)} {lines[path]}" for path in reversed(longest))
    total = sum(lines.values())
    return f"{total:,} lines in {len(lines)} modules, median {median(lines.values()):g}; {told}"


def seconds(command, environment):
    """The processor time of one process that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def starts(rounds):
    """The fewest seconds of each run; a first round, not counted, fills the caches."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
    best = dict.fromkeys(RUNS, math.inf)
    for counted in range(-1, rounds):
        for name, command in RUNS.items():
            with tempfile.TemporaryDirectory() as cache:
                took = seconds(command, {**environment, "XDG_CACHE_HOME": cache})
            if counted >= 0:
                best[name] = min(took, best[name])
    return best


def main():
    for folder in ("attnviz", "tests"):
        print(f"{folder:<8} {sizes(folder)}")
    best = starts(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    for name, took in best.items():
        ratio, target = took / best[TORCH], TARGETS.get(name)
        beside = "" if target is None else f"   target {target:.2f}{' ***' * (ratio > target)}"
        print(f"{name:<16} {1000 * took:6.0f} ms   ratio {ratio:.3f}{beside}")


if __name__ == "__main__":
    main()
