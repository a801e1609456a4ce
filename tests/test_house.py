"""The rules of the layout: who knows the command line, one class a name, sizes by folder."""

import ast
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from .test_imports import CAPABILITIES, PATHS, ROOT, imports, layer, nodes, tree

SIZES = Path(__file__).with_name("house.toml")

KNOWS_THE_COMMAND_LINE = set()
"""Modules outside ``cli`` that still import it or typer; none may be added."""

SEVERAL_CLASSES = set()
"""Public class names that still stand in several modules; none may be added."""

LAYERS = {"data", "document", "files", "finding", "first", "records", "words"}
"""Names of modules that say a layer: what they held stands in ``report`` and ``screen``."""

SHOWS_ANOTHER = {"head", "report"}
"""Questions whose screens are made of the parts of others: a card of a head, cards of a model."""


def part(module):
    """Return the folder whose lines are counted together, such as ``inspect/heads`` or ``draw``."""
    parts = module.split(".")[1:]
    deep = parts[:1] and parts[0] in ("inspect", "count", "learn")
    return "/".join(parts[: 2 if deep else 1]) or "__init__"


def test_only_the_command_line_knows_typer():
    found = {
        module
        for module in PATHS
        if part(module) not in ("cli", "__main__")
        and any(name == "typer" or name.startswith("attnviz.cli") for name in imports(module))
    }
    assert found <= KNOWS_THE_COMMAND_LINE


def test_inspecting_and_counting_do_not_know_learning():
    wrong = {
        (module, name)
        for module in PATHS
        if module.startswith(("attnviz.inspect", "attnviz.count"))
        for name in imports(module)
        if name.startswith("attnviz.learn")
    }
    assert wrong == set()


def test_a_public_class_name_stands_once():
    count = Counter(
        node.name
        for module in PATHS
        for node in nodes(module)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in count.items() if times > 1} <= SEVERAL_CLASSES


def test_no_part_is_larger_than_its_ceiling_or_says_why():
    """A part above its ceiling stands in the table ``above`` with its lines and the reason."""
    lines = defaultdict(int)
    for module, path in PATHS.items():
        lines[part(module)] += path.read_bytes().count(b"\n")
    sizes = tomllib.loads(SIZES.read_text(encoding="utf-8"))
    ceilings, above = sizes["ceilings"], sizes["above"]
    assert set(lines) == set(ceilings), ROOT
    assert {name for name, count in lines.items() if count > ceilings[name]} == above.keys()
    assert {name for name, told in above.items() if lines[name] > told["lines"]} == set()
    assert all(len(told["reason"].split()) > 4 for told in above.values())
    assert len(PATHS) <= sizes["modules"]


def test_a_call_of_many_arguments_names_them():
    calls = [
        f"{module}:{node.lineno}"
        for module in PATHS
        for node in nodes(module)
        if isinstance(node, ast.Call)
        and sum(not isinstance(argument, ast.Starred) for argument in node.args) >= 7
    ]
    assert not calls, calls


def test_no_class_has_many_methods():
    wrong = {
        f"{module}:{node.name}"
        for module in PATHS
        for node in nodes(module)
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body) > 25
    }
    assert wrong == set()


def questions():
    """The modules of each folder of a question, by the folder's module name."""
    asked = (module for module in PATHS if layer(module) in CAPABILITIES)
    folders = {module.rpartition(".")[0] for module in asked if module.endswith(".request")}
    return {
        folder: {module.rpartition(".")[2] for module in PATHS if module.startswith(f"{folder}.")}
        for folder in folders
    }


def test_a_question_is_a_folder_of_four_files():
    assert len(questions()) > 20
    for folder, modules in questions().items():
        name = folder.rpartition(".")[2]
        assert {"request", name, "report"} <= modules, folder
        assert "screen" in modules or name == "explore", folder
        assert not modules & LAYERS, folder


def test_a_report_is_shown_by_the_screen_of_its_folder():
    for folder, modules in questions().items():
        if "screen" in modules:
            top = {node.name for node in tree(f"{folder}.screen").body if hasattr(node, "name")}
            assert "document" in top, folder


def test_nobody_imports_the_screen_of_another_question():
    wrong = {
        (module, name)
        for module in PATHS
        for name in imports(module)
        if name.endswith(".screen")
        and name in PATHS
        and name.rpartition(".")[0] != module.rpartition(".")[0]
        and module.split(".")[-2] not in SHOWS_ANOTHER
    }
    assert wrong == set()
