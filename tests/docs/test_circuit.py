"""The page on the induction circuit says no number in its prose that its commands do not print.

That the commands print what stands on the page is tested in ``tests/test_readme.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import attnviz

from ..manual_pages import blocks

TEXT = (Path(attnviz.__file__).parent / "docs" / "circuit.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d*\.\d+|\d{2,3}\b)%?")
COMMANDS = ["heads", "link", "path", "lens", "ablate"]


def test_every_number_of_the_prose_is_printed() -> None:
    printed = {number for block in blocks(TEXT) for number in NUMBER.findall(block.body)}
    said = NUMBER.findall(re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE))
    assert len(said) > 15
    assert not set(said) - printed


def test_every_block_is_run_and_the_commands_are_those_of_the_circuit() -> None:
    found = blocks(TEXT)
    assert not any(block.reason for block in found)
    run = [
        step.command.split()[1]
        for block in found
        if block.kind == "console"
        for step in block.steps
    ]
    assert list(dict.fromkeys(run)) == COMMANDS
