"""The rules of the layout: who knows the command line, one class a name, sizes by folder."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from .test_imports import PATHS, ROOT, imports, tree

SIZES = Path(__file__).with_name("house.toml")

KNOWS_THE_COMMAND_LINE: set[str] = set()
"""Modules outside ``cli`` that still import it or typer; none may be added."""

SEVERAL_CLASSES: set[str] = set()
"""Public class names that still stand in several modules; none may be added."""


def part(module: str) -> str:
    """Return the folder whose lines are counted together, such as ``inspect/heads`` or ``draw``."""
    parts = module.split(".")[1:]
    deep = parts[:1] and parts[0] in ("inspect", "count", "learn")
    return "/".join(parts[: 2 if deep else 1]) or "__init__"


def test_only_the_command_line_knows_typer() -> None:
    found = {
        module
        for module in PATHS
        if part(module) not in ("cli", "__main__")
        and any(name == "typer" or name.startswith("attnviz.cli") for name in imports(module))
    }
    assert found <= KNOWS_THE_COMMAND_LINE


def test_inspecting_and_counting_do_not_know_learning() -> None:
    wrong = {
        (module, name)
        for module in PATHS
        if module.startswith(("attnviz.inspect", "attnviz.count"))
        for name in imports(module)
        if name.startswith("attnviz.learn")
    }
    assert wrong == set()


def test_a_public_class_name_stands_once() -> None:
    count = Counter(
        node.name
        for module in PATHS
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in count.items() if times > 1} <= SEVERAL_CLASSES


def test_no_part_grows_without_a_word() -> None:
    lines: dict[str, int] = defaultdict(int)
    for module, path in PATHS.items():
        lines[part(module)] += path.read_bytes().count(b"\n")
    allowed = tomllib.loads(SIZES.read_text(encoding="utf-8"))
    assert set(lines) == set(allowed), ROOT
    assert {name: count for name, count in lines.items() if count > allowed[name]} == {}


def test_a_call_of_many_arguments_names_them() -> None:
    calls = [
        f"{module}:{node.lineno}"
        for module in PATHS
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call)
        and sum(not isinstance(argument, ast.Starred) for argument in node.args) >= 7
    ]
    assert not calls, calls


def test_no_class_has_many_methods() -> None:
    wrong = {
        f"{module}:{node.name}"
        for module in PATHS
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body) > 25
    }
    assert wrong == set()
