"""Words of our own that a researcher would not say: none is on a screen, in a file or in a page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

import attnviz

from .test_imports import PATHS, nodes

ROOT = Path(attnviz.__file__).parent
REPLACED = yaml.safe_load(Path(__file__).with_name("replaced_words.yaml").read_text("utf-8"))
"""What was written, and what is said instead."""


@cache
def texts():
    """Every text that the package can show, in small letters, with the file that it stands in."""
    return tuple((place, " ".join(text.lower().split())) for place, text in _texts())


def _texts():
    """Its strings but the docstrings, and the manual."""
    for module, path in PATHS.items():
        said = {
            id(node.value)
            for node in nodes(module)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        said -= {id(node.body[0].value) for node in nodes(module) if _is_command(node)}
        for node in nodes(module):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in said:
                yield str(path.relative_to(ROOT)), text
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _is_command(node):
    """Whether it is a function whose docstring is its help."""
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(each).startswith("command(") for each in node.decorator_list
    )


def test_nobody_reads_these_words():
    whole = "\n".join(text for _, text in texts())
    written = [words for words in REPLACED if words in whole]
    shown = [(place, words) for place, text in texts() for words in written if words in text]
    assert [(*each, f"say {REPLACED[each[1]]!r}") for each in shown] == []


@pytest.mark.parametrize("written", [r"[0-9}] %(?![a-z0-9(])", r"(?<!\w)−[0-9{]", r"[^\W_]#[0-9]"])
def test_numbers_are_written_by_one_rule(written):
    """``53%`` without a blank, the minus of the keyboard (see ``attnviz.draw.numbers``), and a
    token's number as in ``her (12)``.
    """
    found = {place for place, text in texts() if re.search(written, text)}
    assert not found
