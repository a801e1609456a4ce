"""Changes the package in seeded places, one at a time, and counts what the tests notice.

A mutant is one small fault: a comparison turned or its bound moved, a constant changed, an argument
dropped, an early return, a sign, a wrong axis. `choose` draws them from all folders of the package.
`reach` runs the suite once on a copy in which every chosen statement tells which test executes it.
`kill` then runs, for each mutant, the tests that execute its statement, the nearest and quickest
first, until one fails: the mutant is killed. A test counts only if it passes without the fault.
Outcomes are added to KILLED.jsonl line by line: a run that was stopped goes on where it was.

    python tests/benchmarks/mutants.py choose MUTANTS.json [--count 200] [--seed 48]
    python tests/benchmarks/mutants.py reach MUTANTS.json REACH.json [ARGUMENTS OF PYTEST]
    python tests/benchmarks/mutants.py kill MUTANTS.json REACH.json KILLED.jsonl [--processes 2]

The quick tests of a mutant come first, then the `long` ones; either group takes at most `--seconds`
(60): a mutant that survives them is counted as a survivor, with the number of tests asked. Tests
that read the source text itself (`READ_SOURCE`) are not asked: they would notice any change.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

ROOT = Path(__file__).parents[2]
READ_SOURCE = ("tests/test_house.py", "tests/test_docstrings.py", "tests/test_imports.py")
READ_SOURCE += ("tests/test_words.py", "tests/test_import_hygiene.py", "tests/docs/")
PROBE = '''
"""Tells which test executes a statement of a mutant."""
import os
_told = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _told:
        _told.add((number, test))
        with open(os.environ["ATTNVIZ_REACHED"], "a", encoding="utf-8") as file:
            file.write(f"{number}\\t{test}\\n")
'''

TURNED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
MOVED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}


@dataclass(frozen=True)
class Mutant:
    """One fault: bytes `start` to `end` of a file become `text`.

    line: of the statement around it, which the probe stands before; 0 at the top of a module or
    class, which importing executes.
    """

    file: str
    kind: str
    start: int
    end: int
    text: str
    line: int
    before: str


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a node of the syntax tree could become, by the kind of the fault."""
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=right):
            yield "comparison turned", ast.Compare(left, [TURNED[type(operator)]()], right)
            if type(operator) in MOVED:
                yield "bound moved", ast.Compare(left, [MOVED[type(operator)]()], right)
        case ast.BinOp(op=ast.Add() | ast.Sub() as sign, left=left, right=right) if not isinstance(
            left, ast.JoinedStr | ast.List | ast.Tuple
        ):
            yield "sign", ast.BinOp(left, SIGNS[type(sign)](), right)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield "sign", operand
        case ast.Constant(value=bool(value)):
            yield "constant changed", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "± 1", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant changed", ast.Constant(value * 2 + 0.1)
        case ast.Call(func=func, args=arguments, keywords=keywords):
            for at, keyword in enumerate(keywords):
                others = keywords[:at] + keywords[at + 1 :]
                axis = keyword.value
                if keyword.arg in ("axis", "dim"):
                    if isinstance(axis, ast.Constant) and isinstance(axis.value, int):
                        wrong = ast.keyword(keyword.arg, ast.Constant(-1 if axis.value == 0 else 0))
                    elif isinstance(axis, ast.UnaryOp):
                        wrong = ast.keyword(keyword.arg, ast.Constant(0))
                    else:
                        continue
                    yield "wrong axis", ast.Call(func, arguments, [*others, wrong])
                elif keyword.arg is not None:
                    yield "argument dropped", ast.Call(func, arguments, others)
            if len(arguments) > 1 and not isinstance(arguments[-1], ast.Starred):
                yield "argument dropped", ast.Call(func, arguments[:-1], keywords)


def mutants(file: Path) -> list[Mutant]:
    """Return all mutants of one module."""
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = str(file.relative_to(ROOT))
    made: list[Mutant] = []

    def place(node: Any) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def add(node: Any, kind: str, text: str, line: int) -> None:
        start, end = place(node)
        before = source[start:end].decode()
        # As many lines as before, for tests that count them.
        made.append(Mutant(name, kind, start, end, text, line, before))

    def visit(node: ast.AST, line: int, inside: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            simple = body and isinstance(
                body[0], ast.Assign | ast.Expr | ast.Return | ast.AugAssign
            )
            generator = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
            bare = isinstance(body[0], ast.Return) and body[0].value is None if body else True
            if simple and not generator and not bare:
                start, end = place(body[0])
                text = source[start:end].decode()
                made.append(
                    Mutant(
                        name, "early return", start, start, "return None; ", body[0].lineno, text
                    )
                )
            for child in node.body:
                visit(child, child.lineno, True)
            return
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                visit(child, 0, False)
            return
        if isinstance(node, ast.JoinedStr):
            return  # text for people
        if isinstance(node, ast.expr):
            for kind, changed in changes(node):
                lines = "\n" * (node.end_lineno - node.lineno)  # type: ignore[operator]
                add(node, kind, f"({ast.unparse(ast.fix_missing_locations(changed))}{lines})", line)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_comment", "pattern"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    # A statement after `elif` begins with that word: its probe stands before `if`.
                    chained = field == "orelse" and isinstance(child, ast.If) and len(value) == 1
                    visit(child, line if chained else child.lineno if inside else 0, inside)
                elif isinstance(child, ast.AST):
                    visit(child, line, inside)

    for statement in ast.parse(source).body:
        if isinstance(statement, ast.If | ast.Import | ast.ImportFrom):
            continue  # what only type checkers read
        if isinstance(statement, ast.Assign | ast.AnnAssign) and "__all__" in ast.dump(statement):
            continue
        visit(statement, 0, False)
    return made


def choose(count: int, seed: int) -> list[Mutant]:
    """Draw mutants: one at least of each folder, the rest by the number of a folder's lines."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((ROOT / "attnviz").rglob("*.py")):
        folders[str(file.parent)].append(file)
    random_ = random.Random(seed)
    lines = {
        name: sum(len(f.read_bytes().splitlines()) for f in files)
        for name, files in folders.items()
    }
    drawn = Counter({name: 1 for name, number in lines.items() if number > 20})
    weights = list(lines.values())
    while drawn.total() < count:
        drawn[random_.choices(list(lines), weights)[0]] += 1
    chosen: list[Mutant] = []
    for name, number in drawn.items():
        by_kind: dict[str, list[Mutant]] = defaultdict(list)
        for file in folders[name]:
            for mutant in mutants(file):
                by_kind[mutant.kind].append(mutant)
        for _ in range(number):
            kind = random_.choice(sorted(by_kind))
            chosen.append(random_.choice(by_kind[kind]))
    return chosen


def copy(folder: Path) -> None:
    """Copy what git knows of the working tree."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def reach(chosen: Sequence[Mutant], words: Sequence[str]) -> dict[str, Any]:
    """Run the suite on a copy with probes: the tests that execute each mutant, and durations."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        copy(folder)
        (folder / "attnviz" / "_probe.py").write_text(PROBE, encoding="utf-8")
        by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, mutant in enumerate(chosen):
            if mutant.line:
                by_file[mutant.file].append((mutant.line, number))
        for file, hits in by_file.items():
            lines = (folder / file).read_text(encoding="utf-8").split("\n")
            for line, number in sorted(hits, reverse=True):
                text = lines[line - 1]
                space = text[: len(text) - len(text.lstrip())]
                call = f'__import__("attnviz._probe", fromlist=["hit"]).hit({number})'
                lines.insert(line - 1, space + call)
            (folder / file).write_text("\n".join(lines), encoding="utf-8")
        told = Path(name, "reached.txt")
        told.touch()
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "ATTNVIZ_REACHED": str(told),
            "ATTNVIZ_DURATIONS": str(Path(name, "durations.json")),
        }
        script = folder / "tests" / "benchmarks" / "suite.py"
        subprocess.run([sys.executable, script, *words], cwd=folder, env=environment)
        tests: dict[str, list[str]] = defaultdict(list)
        for line in told.read_text(encoding="utf-8").splitlines():
            number, _, test = line.partition("\t")
            if test not in tests[number]:
                tests[number].append(test)
        words = ["-m", "pytest", "--collect-only", "-q", "-n", "0"]
        listed = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True
        )
        return {
            "quick": [line for line in listed.stdout.splitlines() if "::" in line],
            "reached": tests,
            "durations": json.loads(Path(name, "durations.json").read_text(encoding="utf-8")),
        }


class _Only:
    """Keeps the tests that are asked for, in their order, and notes the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: at for at, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid or "collection"


def first_failure(folder: Path, tests: Sequence[str], seconds: float) -> str:
    """Run tests in a child of this process; return the first that fails, or an empty string.

    Whoever does not end within `seconds` of processor time has failed: "endless".
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import pytest

        only = _Only(tests)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        name = "collection"
        words = ["-x", "-q", "-n", "0", "-m", "long or not long", "--tb=no"]
        words += ["-W", "ignore:Module already imported"]  # what the parent has imported
        try:
            pytest.main([*words, *files], plugins=[only])
            name = only.failed
        finally:
            os.write(writing, (name + "\n").encode())
            os.killpg(0, signal.SIGKILL)
    os.close(writing)
    os.set_blocking(reading, False)
    limit = time.monotonic() + seconds * 4 + 60
    answer = b""
    while time.monotonic() < limit:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            answer = os.read(reading, 10_000)
            break
        time.sleep(0.02)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(reading)
    return answer.decode().strip() if answer else "endless"


def outcomes(
    chosen: list[Mutant], reached: dict[str, Any], numbers: Sequence[int], seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield what became of each mutant: the test that killed it, or how many it survived."""
    # Imported once, here, and not by each child.
    for name in (
        "hypothesis",
        "numpy",
        "pexpect",
        "pyte",
        "pytest",
        "rich",
        "torch",
        "transformers",
    ):
        importlib.import_module(name)
    durations: dict[str, float] = reached["durations"]
    known = [test for test in durations if not test.startswith(READ_SOURCE)]
    quick = {*reached["quick"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        copy(folder)
        # A changed module is told by its content: within a second, its time and size may be equal.
        compileall.compile_dir(
            folder / "attnviz", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
        for number in numbers:
            mutant = chosen[number]
            near = mutant.file.replace("attnviz/", "tests/").split("/")[:-1]

            def distance(test: str, near: Sequence[str] = near) -> tuple[int, float]:
                pairs = zip(test.partition("::")[0].split("/"), near, strict=False)
                shared = takewhile(lambda pair: pair[0] == pair[1], pairs)
                return -len([*shared]), durations[test]

            tests = [test for test in reached["reached"].get(str(number), ()) if test in durations]
            if not mutant.line:  # executed by importing: the tests of its folder
                here = "/".join(near) + "/"
                tests = [test for test in known if test.startswith(here)] or known
            tests = sorted(
                (test for test in tests if not test.startswith(READ_SOURCE)), key=distance
            )
            stages: list[list[str]] = []
            for group in ([t for t in tests if t in quick], [t for t in tests if t not in quick]):
                kept, spent = [], 0.0
                for test in group:
                    if spent + durations[test] <= seconds:
                        kept.append(test)
                        spent += durations[test]
                stages += [kept[:20], kept[20:]]
            source = (folder / mutant.file).read_bytes()
            changed = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
            (folder / mutant.file).write_bytes(changed)
            killer = ""
            for few in stages:
                if few and not killer:
                    limit = sum(durations[test] for test in few) * 3 + 30
                    killer = first_failure(folder, few, limit)
            (folder / mutant.file).write_bytes(source)
            yield {
                "number": number,
                **asdict(mutant),
                "reaching": len(tests),
                "asked": sum(map(len, stages)),
                "killer": killer,
                "quick": killer in quick or killer not in (*durations, ""),
            }


def unsound(tests: Sequence[str]) -> list[str]:
    """Return those tests that fail without a fault too; each is asked alone after a failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        copy(folder)
        failing: list[str] = []
        rest = [*tests]
        while rest and (failed := first_failure(folder, rest, 3600)):
            failing.append(failed)
            rest = rest[rest.index(failed) + 1 :] if failed in rest else []
        return failing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=["choose", "reach", "kill", "_kill"])
    parser.add_argument("mutants", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", type=int, default=0)
    given, rest = parser.parse_known_args()
    if given.step == "choose":
        drawn = choose(given.count, given.seed)
        given.mutants.write_text(json.dumps([asdict(each) for each in drawn], indent=0))
        print(*Counter(each.kind for each in drawn).most_common(), sep="\n")
        return
    chosen = [Mutant(**each) for each in json.loads(given.mutants.read_text(encoding="utf-8"))]
    if given.step == "reach":
        given.files[0].write_text(json.dumps(reach(chosen, rest), indent=0), encoding="utf-8")
        return
    reached = json.loads(given.files[0].read_text(encoding="utf-8"))
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the tests: threads would wait for each other
    done = given.files[1].read_text(encoding="utf-8") if given.files[1].exists() else ""
    rows = [json.loads(line) for line in done.splitlines()]
    left = sorted({*range(len(chosen))} - {row["number"] for row in rows})
    random.Random(given.seed).shuffle(left)  # a run that is stopped has asked a fair sample
    if given.step == "_kill":
        numbers = left[given.part :: given.processes]
        for row in outcomes(chosen, reached, numbers, given.seconds):
            print(json.dumps(row), flush=True)
        return
    words = [sys.executable, __file__, "_kill", *map(str, (given.mutants, *given.files))]
    words += ["--seconds", str(given.seconds), "--processes", str(given.processes)]

    def part(at: int) -> None:
        command = [*words, "--part", str(at)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                row = json.loads(line)
                rows.append(row)
                with given.files[1].open("a", encoding="utf-8") as file:
                    file.write(line)
                print(f"{row['number']} {row['file']} {row['kind']} {row['killer'] or 'SURVIVED'}")

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(part, range(given.processes)))
    killers = {row["killer"] for row in rows} & {*reached["durations"]}
    wrong = unsound(sorted(killers))
    killed = sum(bool(row["killer"]) and row["killer"] not in wrong for row in rows)
    soon = sum(row["quick"] and row["killer"] not in ("", *wrong) for row in rows)
    print(f"\n{killed} of {len(rows)} mutants killed, {soon} by tests that are not long")
    print(f"tests that fail without a fault too, which count for nothing: {wrong}")


if __name__ == "__main__":
    main()
