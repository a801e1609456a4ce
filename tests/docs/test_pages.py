"""What a page says of options, sizes, numbers and files is so, whatever its outputs are."""

import re
from functools import cache
from pathlib import Path

import click
import pytest
import typer

import attnviz
from attnviz.cli.app import COMMANDS, app

from ..manual_pages import PAGES, README, blocks

OTHERS = {"--version", "--help", "--install-completion"}
FOREIGN = ("venv", "pip", "pytest", "torchrun", "sbatch", "benchmarks")
TEXT = (Path(attnviz.__file__).parent / "docs" / "circuit.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d*\.\d+|\d{2,3}\b)%?")
ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("attnviz", "configs", "tests", ".github", ".ci")
PATH = re.compile(r"(?<![\w/.-])(?:attnviz|tests|\.github|\.ci)/[\w./-]*\w")
EXAMPLES = ("entropy",)
"""Words of the files that the worked examples of the page on the design make up."""


@cache
def options():
    group = typer.main.get_group(app)
    found = set(OTHERS)
    for name in COMMANDS:
        _, command, _ = group.resolve_command(click.Context(group), [name])
        for parameter in command.params:
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_no_option_that_is_not_there(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    ours = [line for line in lines if not any(name in line for name in FOREIGN)]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(ours)))
    assert named <= options()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_screens_on_a_page_fit_a_small_terminal(page):
    """The prompt needs a line; what ``--full`` or ``--json`` asked for may be longer."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.kind == "console" and block.reason is None:
            for step in block.steps:
                if "--full" not in step.command and "--json" not in step.command:
                    assert len(step.output) < 24, step.command
                    assert max(map(len, step.output), default=0) <= 80, step.command


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= 1200


def test_every_number_of_the_prose_is_printed():
    printed = {number for block in blocks(TEXT) for number in NUMBER.findall(block.body)}
    said = NUMBER.findall(re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE))
    assert len(said) > 8
    assert not set(said) - printed


def written():
    found = [*ROOT.glob("*.md"), *ROOT.glob(".*.toml")]
    for folder in FOLDERS:
        for ending in ("md", "toml", "txt", "yml"):
            found += (ROOT / folder).rglob(f"*.{ending}")
    return sorted(found)


def named(text):
    return {path for path in PATH.findall(text) if not any(word in path for word in EXAMPLES)}


def test_a_path_that_is_named_is_there():
    text = "As `tests/oracle/lines.txt` says (attnviz/draw), x/tests/y and https://h/attnviz/z not."
    assert named(text) == {"tests/oracle/lines.txt", "attnviz/draw"}
    missing = {
        (str(page.relative_to(ROOT)), path)
        for page in written()
        for path in named(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert missing == set()
