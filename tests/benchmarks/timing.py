"""The path and the arguments of benchmarks.

A script of this folder that needs modules of the tests imports this first: the repository is on
the path then.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def parser(description, *, repeats, threads=1):
    """Return a parser that knows --repeats and --threads, and says the first line of a text."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--threads", type=int, default=threads)
    return made
