"""The worked examples of the page on the design work as they stand, in a copy of the package."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnviz

PACKAGE = Path(attnviz.__file__).parent
PAGE = (PACKAGE / "docs" / "design.md").read_text(encoding="utf-8")
TEXT = "The cat sat on the mat."


def blocks(heading):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def files(block):
    """Return the pieces of a block by the paths in the comments above them."""
    _, *pieces = re.split(r"^# (attnviz/\S+\.py)\n", block, flags=re.MULTILINE)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


@pytest.fixture
def copied(tmp_path):
    """A copy of the package's modules; its data are the same."""
    shutil.copytree(PACKAGE, tmp_path / "attnviz", ignore=shutil.ignore_patterns("data", "*.pyc"))
    (tmp_path / "attnviz" / "data").symlink_to(PACKAGE / "data")
    return tmp_path


@pytest.fixture
def python(copied, environment):
    def run(code):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=copied,
            env=environment | {"PYTHONPATH": os.fspath(copied)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def write_below(path, anchor, added):
    source = path.read_text(encoding="utf-8")
    assert source.count(anchor) == 1
    path.write_text(source.replace(anchor, anchor + added), encoding="utf-8")


def edited(copied):
    """The modules of the package that an example has changed, without those that it adds."""
    names = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    return {
        name
        for name in names
        if (PACKAGE / name).read_bytes() != (copied / "attnviz" / name).read_bytes()
    }


def command_line(*arguments):
    return f"import sys; from attnviz.cli.main import main; sys.argv[1:] = {arguments!r}; main()"


def test_a_column(copied, python):
    (block,) = blocks("Change a sentence, add a column")
    ((name, column),) = files(block).items()
    above = (
        '        ("weight if removed", _known(probability, [part.without for part in parts])),\n'
    )
    write_below(copied / name, above, column)
    assert edited(copied) == {"inspect/link/screen.py"}
    screen = python(command_line("link", TEXT, "--controls", "0", "--full", "--width", "160"))
    assert re.search(r"weight if removed +of the sum +from$", screen, re.MULTILINE)


def test_a_command(copied, python):
    (new,) = blocks("Add a command")
    for name, content in files(new).items():
        (copied / name).parent.mkdir(exist_ok=True)
        (copied / name).write_text(content, encoding="utf-8")
    line = '        "entropy": "Show how evenly each head attends.",\n'
    write_below(copied / "attnviz/cli/app.py", '    "Look": {\n', line)
    assert edited(copied) == {"cli/app.py"}

    printed = json.loads(python(command_line("entropy", TEXT, "--head", "L0H1", "--json")))
    (head,) = printed["heads"]
    heads = json.loads(python(command_line("heads", TEXT, "--head", "L0H1", "--json")))["heads"]
    assert (head["layer"], head["head"]) == (0, 1)
    assert head["entropy"] == pytest.approx(heads[0]["entropy"])
    assert "L0H1" in python(command_line("entropy", TEXT))
    assert "entropy" in python(command_line("--help"))
    assert "--head" in python(command_line("entropy", "--help"))


def test_a_measure(copied, python):
    (both,) = blocks("Add a measure of a head")
    pieces = files(both)
    registry, rows = "attnviz/measures/registry.py", "attnviz/measures/rows.py"
    table = "    for measure in (\n"
    write_below(copied / registry, table, pieces[registry])
    write_below(copied / rows, "FORMULAS: Mapping[str, Formula] = {\n", pieces[rows])
    arguments = ("heads", TEXT, "--head", "L0H1", "--sort", "second", "--json")
    (head,) = json.loads(python(command_line(*arguments)))["heads"]
    second = [row[1] for row in head["weights"][1:]]
    assert head["second"] == pytest.approx(sum(second) / len(second), rel=1e-4)
