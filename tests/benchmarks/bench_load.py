"""How much longer commands take beside busy processes, and how much longer a program of one thread.

Run as ``python tests/benchmarks/bench_load.py``; prints ratios of wall time, loaded to idle, as
medians over the turns. The yardstick is a loop of one thread that takes as much processor time as
the command. At most twice its ratio is asked for. OMP_NUM_THREADS and its like are taken out of the
environment, for a command is to choose by itself; the processes of ``--beside torch`` keep as many
threads busy as torch takes by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_COMMANDS = {
    "ablate": ["ablate"],
    "patch": ["patch"],
    "prune": ["prune"],
}
_OURS = "from attnviz.cli.main import main; main()"
_YARDSTICK = """
import sys, time
n = 0
while time.process_time() < float(sys.argv[1]):
    n += 1
"""
_BUSY = {
    "loops": "while True: pass",
    "torch": """
import torch
a = torch.rand(384, 384)
while True: a = (a @ a).relu_().div_(a.norm())
""",
}
_CHOSEN_BY_HAND = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")


def wall(environment: dict[str, str], program: str, *arguments: str) -> float:
    """Return the seconds that a Python program takes."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


@contextmanager
def busy(environment: dict[str, str], kind: str, count: int) -> Iterator[None]:
    """Keep ``count`` processes busy until the end of the block."""
    others = [
        subprocess.Popen([sys.executable, "-c", _BUSY[kind]], env=environment) for _ in range(count)
    ]
    try:
        time.sleep(3 if kind == "torch" else 0.5)  # until torch is imported
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def processor(environment: dict[str, str], arguments: Sequence[str]) -> float:
    """Return the processor time of a run of attnviz."""
    before = os.times()
    wall(environment, _OURS, *arguments)
    after = os.times()
    user, system = (
        after.children_user - before.children_user,
        after.children_system - before.children_system,
    )
    return user + system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--beside", choices=_BUSY, default="loops")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--only", choices=_COMMANDS, action="append")
    asked = parser.parse_args()
    environment = {name: text for name, text in os.environ.items() if name not in _CHOSEN_BY_HAND}
    for name in asked.only or _COMMANDS:
        arguments = [*_COMMANDS[name], "--json", "--quiet"]
        length = str(processor(environment, arguments))
        times: dict[str, list[float]] = {"idle": [], "loaded": [], "one": [], "one loaded": []}
        for _ in range(asked.turns):
            times["idle"].append(wall(environment, _OURS, *arguments))
            times["one"].append(wall(environment, _YARDSTICK, length))
            with busy(environment, asked.beside, asked.processes):
                times["loaded"].append(wall(environment, _OURS, *arguments))
                times["one loaded"].append(wall(environment, _YARDSTICK, length))
        middle = {what: statistics.median(found) for what, found in times.items()}
        ratio = middle["loaded"] / middle["idle"]
        yardstick = middle["one loaded"] / middle["one"]
        told = {"command": name, "processor": float(length), **middle}
        told |= {"ratio": ratio, "yardstick": yardstick, "times yardstick": ratio / yardstick}
        print(
            json.dumps({k: v if isinstance(v, str) else round(v, 2) for k, v in told.items()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
