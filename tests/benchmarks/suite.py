"""Runs the suite once and prints what its processor time is spent on.

Seconds of processor time (user and system, processes that tests start included) by folder, by
test file, by fixture, and by kind of work: importing heavy packages, processes that tests start,
collection. A second counts once: work inside other work is taken from it. Run it as
``python tests/benchmarks/suite.py [ARGUMENTS OF PYTEST]``, such as ``-m "long or not long"``;
``--durations=0`` is added, and ``-n 2`` unless ``-n`` is given.
The durations of all tests are left in the file that ``ATTNVIZ_DURATIONS`` names.
"""

import builtins
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "ATTNVIZ_SUITE_FOLDER"
HEAVY = ("torch", "transformers", "attnviz", "keras", "matplotlib", "textual")
COSTS = {kind: Counter() for kind in ("tests", "fixtures", "work")}
_inner = []


def _children_time():
    spent = os.times()
    return spent.children_user + spent.children_system


def _time():
    """Return the seconds of user and system time of this process and of those it waited for."""
    return time.process_time() + _children_time()


@contextmanager
def _counted(kind, name):
    """Count the time inside this context for `name`, less what is counted inside it."""
    start = _time()
    _inner.append(0.0)
    try:
        yield
    finally:
        whole = _time() - start
        COSTS[kind][name] += whole - _inner.pop()
        if _inner:
            _inner[-1] += whole


def _timed_imports():
    """Count the time of importing a heavy package, while it is not yet imported."""
    plain = builtins.__import__

    def importing(name, *arguments, **keywords):
        if name in sys.modules or name.partition(".")[0] not in HEAVY:
            return plain(name, *arguments, **keywords)
        with _counted("work", f"importing {name.partition('.')[0]}"):
            return plain(name, *arguments, **keywords)

    builtins.__import__ = importing


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start, children = _time(), _children_time()
    with _counted("work", "the tests and their fixtures"):
        result = yield
    started = _children_time() - children
    COSTS["work"]["processes that tests start"] += started
    COSTS["work"]["the tests and their fixtures"] -= started
    COSTS["tests"][item.nodeid] += _time() - start
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    start, before = _time(), COSTS["fixtures"].total()
    result = yield
    nested = COSTS["fixtures"].total() - before
    name = f"{fixturedef.argname} ({fixturedef.scope}) {fixturedef.baseid or 'tests'}"
    COSTS["fixtures"][name] += _time() - start - nested
    return result


def pytest_sessionfinish(session):
    alone = hasattr(session.config, "workerinput") or session.config.option.dist == "no"
    if FOLDER in os.environ and alone:
        COSTS["work"]["start of a worker and collection"] = _time() - COSTS["work"].total()
        text = json.dumps(COSTS)
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(text, encoding="utf-8")


def _table(title, costs, most):
    print(f"\n{title}: {costs.total():.0f} s, {len(costs)} rows")
    for name, seconds in costs.most_common(most):
        print(f"{seconds:8.1f}  {name}")


def main(arguments):
    workers = [] if any(word.startswith("-n") for word in arguments) else ["-n", "2"]
    command = [sys.executable, "-m", "pytest", "-p", "suite", "-q", "--durations=0", *workers]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, FOLDER: folder, "PYTHONPATH": os.pathsep.join(paths)}
        start = time.perf_counter()
        done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment)
        wall, whole = time.perf_counter() - start, _children_time()
        for file in Path(folder).glob("*.json"):
            for kind, spent in json.loads(file.read_text(encoding="utf-8")).items():
                COSTS[kind].update(spent)
    if "ATTNVIZ_DURATIONS" in os.environ:
        text = json.dumps(COSTS["tests"], indent=0)
        Path(os.environ["ATTNVIZ_DURATIONS"]).write_text(text, encoding="utf-8")
    folders, files = Counter(), Counter()
    for test, seconds in COSTS["tests"].items():
        file_name = test.partition("::")[0]
        files[file_name] += seconds
        folders[file_name.rpartition("/")[0]] += seconds
    _table("By folder", folders, 100)
    _table("By file", files, 40)
    _table("By fixture", COSTS["fixtures"], 40)
    _table("By kind of work", COSTS["work"], 20)
    print(f"\n{whole / 60:.1f} CPU minutes in {wall / 60:.1f} minutes, {len(COSTS['tests'])} tests")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
    _timed_imports()
