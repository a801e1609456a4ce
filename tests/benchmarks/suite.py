"""Runs the suite once and prints what its processor time is spent on.

Seconds of processor time (user and system, processes that tests start included) by folder, by
test file, by fixture, and by kind of work: imports of torch and transformers, building models,
measuring reports, drawing screens, processes. A second counts once: work inside other work is
taken from it. Run it as ``python tests/benchmarks/suite.py [ARGUMENTS OF PYTEST]``, such as
``-m "long or not long"``; ``--durations=0`` is added, and ``-n 2`` unless ``-n`` is given.
The durations of all tests are left in the file that ``ATTNVIZ_DURATIONS`` names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "ATTNVIZ_SUITE_FOLDER"
OTHER = "calls and assertions of the tests themselves"
COLLECTING = "start of a worker and collection"
PROCESSES = "processes that tests start"
WORK = {
    "building models": (
        ("transformers.modeling_utils", "PreTrainedModel.from_pretrained"),
        ("transformers.modeling_utils", "PreTrainedModel.__init__"),
        ("transformers.modeling_utils", "PreTrainedModel.save_pretrained"),
        ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase.from_pretrained"),
    ),
    "drawing screens": (
        ("attnviz.cli.outlet", "Outlet.show"),
        ("attnviz.draw.document", "Document.text"),
    ),
    "measuring reports, by the command line": (("attnviz.cli.boundary", "run"),),
}
"""Kinds of work, and the functions whose time is counted for them."""


def _processor_time() -> float:
    """Return the seconds of user and system time of this process."""
    return time.process_time()


def _children_time() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


class Costs:
    """What one worker has spent, by test, by fixture and by kind of work."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.fixtures: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self._inner: list[float] = []

    @contextmanager
    def counted(self, counter: Counter[str], name: str) -> Iterator[None]:
        """Count the time inside this context for `name`, less what is counted inside it."""
        start = _processor_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = _processor_time() - start
            counter[name] += whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.counted(self.work, name):
                return function(*arguments, **keywords)

        return call


COSTS = Costs()


class _TimedImports(importlib.abc.MetaPathFinder):
    """Times the modules of heavy packages while they are executed, and wraps counted functions."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if top not in ("torch", "transformers", "attnviz", "keras", "matplotlib", "textual"):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def timed(module: Any) -> None:
            with COSTS.counted(COSTS.work, f"importing {top}"):
                execute(module)
            for work, functions in WORK.items():
                for where, dotted in functions:
                    if where == name:
                        _wrap(module, dotted, work)

        spec.loader.exec_module = timed
        return spec


def _wrap(module: Any, dotted: str, work: str) -> None:
    owner = module
    *path, last = dotted.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    function = vars(owner).get(last) if owner is not None else None
    if isinstance(function, classmethod):
        setattr(owner, last, classmethod(COSTS.wrapped(work, function.__func__)))
    elif callable(function):
        setattr(owner, last, COSTS.wrapped(work, function))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start, children = _processor_time(), _children_time()
    with COSTS.counted(COSTS.work, OTHER):
        result = yield
    started = _children_time() - children
    COSTS.work[PROCESSES] += started
    COSTS.tests[item.nodeid] += _processor_time() - start + started
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[Any]:
    children = _children_time()
    name = f"{fixturedef.argname} ({fixturedef.scope}) {fixturedef.baseid or 'tests'}"
    start, inner = _processor_time(), COSTS.fixtures.total()
    result = yield
    nested = COSTS.fixtures.total() - inner
    COSTS.fixtures[name] += _processor_time() - start + _children_time() - children - nested
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = os.environ.get(FOLDER)
    if folder is None or (
        not hasattr(session.config, "workerinput") and session.config.option.dist != "no"
    ):
        return
    tests = COSTS.work.total()
    COSTS.work[COLLECTING] = _processor_time() + _children_time() - tests
    written = {"tests": COSTS.tests, "fixtures": COSTS.fixtures, "work": COSTS.work}
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(written), encoding="utf-8")


def table(title: str, costs: Counter[str], most: int) -> None:
    print(f"\n{title}: {costs.total():.0f} s, {len(costs)} rows")
    for name, seconds in costs.most_common(most):
        print(f"{seconds:8.1f}  {name}")


def main(arguments: list[str]) -> int:
    workers = [] if any(word.startswith("-n") for word in arguments) else ["-n", "2"]
    command = [sys.executable, "-m", "pytest", "-p", "suite", "-q", "--durations=0"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, FOLDER: folder}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        start = time.perf_counter()
        done = subprocess.run(
            [*command, *workers, *arguments],
            cwd=ROOT,
            env=environment,
        )
        wall, whole = time.perf_counter() - start, _children_time()
        costs = {kind: Counter[str]() for kind in ("tests", "fixtures", "work")}
        for file in Path(folder).glob("*.json"):
            for kind, spent in json.loads(file.read_text(encoding="utf-8")).items():
                costs[kind].update(spent)
    if "ATTNVIZ_DURATIONS" in os.environ:
        text = json.dumps(costs["tests"], indent=0)
        Path(os.environ["ATTNVIZ_DURATIONS"]).write_text(text, encoding="utf-8")
    folders, files = Counter[str](), Counter[str]()
    for test, seconds in costs["tests"].items():
        file = test.partition("::")[0]
        files[file] += seconds
        folders[str(Path(file).parent)] += seconds
    table("By folder", folders, 100)
    table("By file", files, 40)
    table("By fixture", costs["fixtures"], 40)
    table("By kind of work", costs["work"], 20)
    print(f"\n{whole / 60:.1f} CPU minutes in {wall / 60:.1f} minutes, {len(costs['tests'])} tests")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
    sys.meta_path.insert(0, _TimedImports())
