"""What holds of every command's first screen, whatever the terminal."""

import re
import shlex
from pathlib import Path
from string import Template

import yaml
from rich.cells import cell_len

from attnviz.draw.terminal import first_screen

_TEXTS = {
    "CAT": "'The cat sat on the mat because it was tired.'",
    "BEGUN": "'The cat sat on the mat because it w'",
    "WORDS": "'the cat sat on the mat'",
    "MET": "'When Nancy met John, nobody knew why Nancy met'",
    "MANY": " John. ".join(["When Nancy met John, nobody knew why Nancy met"] * 21),
    "MARY": "'When Mary and John went to the shop, John gave a drink to Mary. Then Mary and'",
}
SIZES = ((80, 24), (120, 40), (200, 60))
"""Columns and lines of terminals."""

_START, _REST = re.compile(r"^(╭─ ?|│ |\+- ?|\| )"), re.compile(r"[╭╮╰╯│]|─{3,}|-{3,}|\+-|\|( |$)")
"""The frames of a screen, at the start of a line and behind it."""


def unframed(line):
    """A line of a screen without what belongs to frames."""
    return _REST.sub("  ", _START.sub("", line)).rstrip()


def fitting(document, theme, columns, lines):
    """The lines of a first screen without frames: none too wide, the finding in the second.

    There is room for a prompt below them.
    """
    shown = first_screen(document, theme, columns, lines - 1).plain.splitlines()
    assert len(shown) < lines
    assert max(map(cell_len, shown)) <= columns
    assert all(line == line.rstrip() for line in shown)
    answer, said = theme.spell(document.finding), " ".join(shown[1:4])
    assert said.startswith(answer[:60]) or answer.startswith(shown[1])
    return [*map(unframed, shown)] if columns >= 120 else shown


def command_lines(kind):
    """Return the command lines of one kind in ``screens.yaml``, as words, by name."""
    table = yaml.safe_load(Path(__file__).with_name("screens.yaml").read_text(encoding="utf-8"))
    lines = {name: Template(line).substitute(_TEXTS) for name, line in table[kind].items()}
    return {name: tuple(shlex.split(line)) for name, line in lines.items()}
