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
import multiprocessing
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
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from py_compile import PycInvalidationMode

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
HIT = '__import__("attnviz._probe", fromlist=["hit"]).hit({})'

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


def changes(node):
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
                if keyword.arg not in ("axis", "dim", None):
                    yield "argument dropped", ast.Call(func, arguments, others)
                elif keyword.arg and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
                    wrong = ast.Constant(-1 if ast.unparse(keyword.value) == "0" else 0)
                    changed = [*others, ast.keyword(keyword.arg, wrong)]
                    yield "wrong axis", ast.Call(func, arguments, changed)
            if len(arguments) > 1 and not isinstance(arguments[-1], ast.Starred):
                yield "argument dropped", ast.Call(func, arguments[:-1], keywords)


def nodes(parent, line=0):
    """Yield functions and expressions below a node, with the line of the statement around them.

    The line is 0 outside functions. Texts for people (f-strings), types and decorators are left
    out.
    """
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "pattern"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr | ast.arguments) or not isinstance(child, ast.AST):
                continue
            here = line
            # A statement after `elif` begins with that word: its probe stands before `if`.
            chained = field == "orelse" and isinstance(child, ast.If) and len(value) == 1
            inside = line or isinstance(parent, ast.FunctionDef)
            if isinstance(child, ast.stmt) and inside and not chained:
                here = child.lineno
            if isinstance(child, ast.FunctionDef | ast.expr):
                yield child, here
            yield from nodes(child, here)


def mutants(file):
    """Yield all mutants of one module."""
    source = file.read_bytes()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    name = str(file.relative_to(ROOT))
    tree = ast.parse(source)
    tree.body = [
        statement
        for statement in tree.body  # without what only type checkers and readers need
        if not isinstance(statement, ast.If | ast.Import | ast.ImportFrom)
        and "'__all__'" not in ast.dump(statement)
    ]
    for node, line in nodes(tree):
        function = isinstance(node, ast.FunctionDef)
        at = node
        if function:  # its first statement that is no docstring
            at = node.body[min(len(node.body) - 1, int(ast.get_docstring(node) is not None))]
        start = starts[at.lineno - 1] + at.col_offset
        end = starts[at.end_lineno - 1] + at.end_col_offset
        before = source[start:end].decode()
        if not function:
            for kind, changed in changes(node):
                # As many lines as before, for tests that count them.
                lines = "\n" * (node.end_lineno - node.lineno)
                text = f"({ast.unparse(ast.fix_missing_locations(changed))}{lines})"
                yield Mutant(name, kind, start, end, text, line, before)
        elif isinstance(at, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) and not any(
            isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)
        ):
            yield Mutant(name, "early return", start, start, "return None; ", at.lineno, before)


def choose(count, seed):
    """Draw mutants: one at least of each folder, the rest by the number of a folder's lines."""
    lines = Counter()
    for file in sorted((ROOT / "attnviz").rglob("*.py")):
        lines[file.parent] += len(file.read_bytes().splitlines())
    draw = random.Random(seed)
    folders = [folder for folder, number in lines.items() if number > 20]
    folders += draw.choices([*lines], [*lines.values()], k=max(0, count - len(folders)))
    chosen = []
    for folder in folders:
        by_kind = defaultdict(list)
        for file in sorted(folder.glob("*.py")):
            for mutant in mutants(file):
                by_kind[mutant.kind].append(mutant)
        chosen.append(draw.choice(by_kind[draw.choice(sorted(by_kind))]))
    return chosen


def copy(folder):
    """Copy what git knows of the working tree."""
    words = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def reach(chosen, words):
    """Run the suite on a copy with probes: the tests that execute each mutant, and durations."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        copy(folder)
        (folder / "attnviz" / "_probe.py").write_text(PROBE, encoding="utf-8")
        hits = [(mutant.line, at, mutant.file) for at, mutant in enumerate(chosen) if mutant.line]
        for line, number, file in sorted(hits, reverse=True):  # the last line of a file first
            rows = (folder / file).read_text(encoding="utf-8").split("\n")
            text = rows[line - 1]
            rows.insert(line - 1, text[: len(text) - len(text.lstrip())] + HIT.format(number))
            (folder / file).write_text("\n".join(rows), encoding="utf-8")
        told, durations = Path(name, "reached.txt"), Path(name, "durations.json")
        told.touch()
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        environment |= {"ATTNVIZ_REACHED": str(told), "ATTNVIZ_DURATIONS": str(durations)}
        script = folder / "tests" / "benchmarks" / "suite.py"
        subprocess.run([sys.executable, script, *words], cwd=folder, env=environment)
        tests = defaultdict(list)
        for row in dict.fromkeys(told.read_text(encoding="utf-8").splitlines()):
            number_, _, test = row.partition("\t")
            tests[number_].append(test)
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0"]
        listed = subprocess.run(collect, cwd=folder, capture_output=True, text=True).stdout
        quick = [row for row in listed.splitlines() if "::" in row]
        return {"quick": quick, "reached": tests, "durations": json.loads(durations.read_text())}


class _Only:
    """Keeps the tests that are asked for, in their order, and notes the first that fails."""

    def __init__(self, tests):
        self.order = {test: at for at, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items):
        kept = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(kept, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.failed:
            self.failed = report.nodeid or "collection"

    pytest_collectreport = pytest_runtest_logreport


def first_failure(folder, tests, seconds):
    """Run tests in a child of this process; return the first that fails, or an empty string.

    Whoever does not end within `seconds` of processor time has failed: "endless".
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
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
    limit = time.monotonic() + seconds * 4 + 60
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < limit:
        time.sleep(0.02)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.set_blocking(reading, False)
    with open(reading, "rb", buffering=0) as pipe:
        answer = pipe.read(10_000) if ended else b""
    return answer.decode().strip() if answer else "endless"


def start(folder):
    """Make this process's own copy of the package, and import once what every child needs."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the tests: threads would wait for each other
    for name in ("hypothesis", "numpy", "pexpect", "pyte", "rich", "torch", "transformers"):
        importlib.import_module(name)
    own = Path(folder, str(os.getpid()))
    copy(own)
    # A changed module is told by its content: within a second, its time and size may be equal.
    by_content = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(own / "attnviz", quiet=1, invalidation_mode=by_content)


def stages(mutant, reaching, known, seconds):
    """Return the tests to ask, in groups: the nearest and quickest first, the `long` ones last."""
    durations, quick = known["durations"], {*known["quick"]}
    near = mutant.file.replace("attnviz/", "tests/").split("/")[:-1]

    def distance(test):
        pairs = zip(test.partition("::")[0].split("/"), near, strict=False)
        return -len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]), durations[test]

    if not mutant.line:  # executed by importing: the tests of its folder
        here = [test for test in durations if test.startswith("/".join(near) + "/")]
        reaching = here or [*durations]
    tests = [t for t in reaching if t in durations and not t.startswith(READ_SOURCE)]
    groups = []
    for soon in (True, False):
        kept, spent = [], 0.0
        for test in sorted((test for test in tests if (test in quick) == soon), key=distance):
            if spent + durations[test] <= seconds:
                kept.append(test)
                spent += durations[test]
        groups += [kept[:20], kept[20:]]
    return groups


def outcome(task, known, seconds, folder):
    """Return what became of a mutant: the test that killed it, or how many it survived."""
    number, mutant = task
    own = Path(folder, str(os.getpid()))
    reaching = known["reached"].get(str(number), [])
    groups = stages(mutant, reaching, known, seconds)
    source = (own / mutant.file).read_bytes()
    changed = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
    (own / mutant.file).write_bytes(changed)
    killer = ""
    for tests in groups:
        if tests and not killer:
            limit = sum(known["durations"][test] for test in tests) * 3 + 30
            killer = first_failure(own, tests, limit)
    (own / mutant.file).write_bytes(source)
    quick = killer in known["quick"] or killer not in (*known["durations"], "")
    asked = sum(map(len, groups))
    return {
        "number": number, **asdict(mutant),
        "reaching": len(reaching), "asked": asked, "killer": killer, "quick": quick,
    }  # fmt: skip


def kill(chosen, known, file, given):
    """Ask the tests about all mutants that the file does not have, and print the counts."""
    file.touch()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    left = sorted({*range(len(chosen))} - {row["number"] for row in rows})
    random.Random(given.seed).shuffle(left)  # a run that is stopped has asked a fair sample
    with tempfile.TemporaryDirectory() as folder:
        ask = partial(outcome, known=known, seconds=given.seconds, folder=folder)
        fork = multiprocessing.get_context("fork")
        with fork.Pool(given.processes, start, [folder]) as pool:
            for row in pool.imap_unordered(ask, [(number, chosen[number]) for number in left]):
                rows.append(row)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(row["number"], row["file"], row["kind"], row["killer"] or "SURVIVED")
        rest = sorted({row["killer"] for row in rows} & {*known["durations"]})
        wrong = []  # what fails without a fault too; each is asked alone after a failure
        plain = Path(folder, "plain")
        copy(plain)
        while rest and (failed := first_failure(plain, rest, 3600)):
            wrong.append(failed)
            rest = rest[rest.index(failed) + 1 :] if failed in rest else []
    killed = [row for row in rows if row["killer"] not in ("", *wrong)]
    soon = sum(row["quick"] for row in killed)
    print(f"\n{len(killed)} of {len(rows)} mutants killed, {soon} by tests that are not long")
    print(f"tests that fail without a fault too, which count for nothing: {wrong}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=["choose", "reach", "kill"])
    parser.add_argument("mutants", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    given, rest = parser.parse_known_args()
    if given.step == "choose":
        drawn = choose(given.count, given.seed)
        given.mutants.write_text(json.dumps([asdict(mutant) for mutant in drawn], indent=0))
        print(*Counter(mutant.kind for mutant in drawn).most_common(), sep="\n")
        return
    chosen = [Mutant(**entry) for entry in json.loads(given.mutants.read_text(encoding="utf-8"))]
    if given.step == "reach":
        given.files[0].write_text(json.dumps(reach(chosen, rest), indent=0), encoding="utf-8")
    else:
        known = json.loads(given.files[0].read_text(encoding="utf-8"))
        kill(chosen, known, given.files[1], given)


if __name__ == "__main__":
    main()
