"""What benchmarks that compare ways of doing one thing share: turns, medians, arguments.

A script of this folder that needs modules of the tests imports this first: the repository is on
the path then.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def median_seconds(cases, repeats, *, warming=1):
    """Return the median seconds of each case.

    All take turns so that drift hits them alike; the first `warming` turns are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warming + repeats):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if turn >= warming:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(times) for name, times in seconds.items()}


def parser(description, *, repeats, threads=1):
    """Return a parser that knows --repeats and --threads, and says the first line of a text."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--threads", type=int, default=threads)
    return made
