"""Terminals of tests: the command line as a process, in a terminal, and what its screen shows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console

from attnviz.draw.palette import colour_table, to_hex

SPEAKING = (
    *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"),
    *("TERM", "ATTNVIZ_TRACEBACK", "ATTNVIZ_MODEL"),
)
"""Variables that change what the command line writes."""
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals, shells or files of POSIX")


@pytest.fixture(scope="session")
def program():
    return (sys.executable, "-c", "from attnviz.cli.main import main; main()")


@pytest.fixture
def environment():
    """The variables of a process that nobody has set up for colour or width."""
    kept = {name: value for name, value in os.environ.items() if name not in SPEAKING}
    return kept | {"PYTHONUNBUFFERED": ""}


@pytest.fixture
def start(program, environment, tmp_path):
    """Starts the command line in a terminal of its own, which has colours."""
    pexpect = pytest.importorskip("pexpect")
    if not hasattr(pexpect, "spawn"):
        pytest.skip("pexpect opens terminals of POSIX alone")
    children = []

    def spawn(*arguments, columns=80, rows=24, **env):
        child = pexpect.spawn(
            program[0],
            [*program[1:], *arguments],
            env=environment | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | env,
            dimensions=(rows, columns),
            cwd=tmp_path,
            timeout=60,
            encoding="utf-8",
            codec_errors="replace",  # the terminal's own ^C may stand inside a character
        )
        children.append(child)
        return child

    yield spawn
    for child in children:
        child.close(force=True)


def interrupted(child):
    """What a process says from Ctrl-C to its end, which tells of the interruption."""
    child.sendintr()
    output = child.read()
    child.wait()
    assert child.exitstatus == 130, output
    assert "Traceback" not in output
    return output


def finished(child):
    """What a process writes until it ends well."""
    output = child.read()
    child.wait()
    assert child.exitstatus == 0, output
    return output


def on_screen(output, columns=80):
    """What output leaves on a screen so tall that nothing scrolls away."""
    shown = pyte.Screen(columns, 400)
    pyte.Stream(shown).feed(output)
    return shown


@pytest.fixture
def screen(start):
    def show(*arguments, columns=80, **settings):
        return on_screen(finished(start(*arguments, columns=columns, **settings)), columns)

    return show


def rows(screen):
    return [line.rstrip() for line in screen.display]


def console(terminal, quiet=False):
    """Standard error, on a terminal or not; ``printed`` says what was written to it."""
    return Console(
        file=io.StringIO(),
        width=100,
        force_terminal=terminal,
        quiet=quiet,
        markup=False,
        emoji=False,
        _environ={"TERM": "xterm"},
    )


def printed(shown):
    return shown.file.getvalue()


def in_fresh_process(code, modules, *arguments, folder=None):
    """Runs code in a process of its own: its standard output, and standard error.

    At the end of standard error stand those of the modules that have been imported by then.
    """
    telling = f"import sys; sys.stderr.write(','.join(sorted({{*{modules!r}}} & {{*sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{telling}", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@dataclass(frozen=True)
class Terminal:
    """What a terminal shows after a block was printed on it, cell by cell."""

    rows: list[list[pyte.screens.Char]]
    steps: dict[str, set[int]]

    def text(self, y):
        return "".join(cell.data for cell in self.rows[y]).rstrip()

    def find(self, text):
        for y in range(len(self.rows)):
            if text in self.text(y):
                return y, cell_len(self.text(y).partition(text)[0])
        raise AssertionError(f"{text!r} is not on the screen")

    def cell(self, y, x):
        """The steps of the palette that the upper and the lower half show; None is blank."""
        cell = self.rows[y][x]
        back = None if cell.bg == "default" else self.steps[cell.bg]
        if cell.data == "▀":
            return self.steps[cell.fg], back
        if cell.data == "▄":
            return back, self.steps[cell.fg]
        return back, back


@pytest.fixture(scope="session")
def look():
    """Prints a block on a truecolor terminal and reads the screen back."""

    def show(block, columns, palette="blues"):
        stream = io.StringIO()
        console = Console(
            file=stream, force_terminal=True, color_system="truecolor", width=columns, height=9
        )
        console.print(block, end="", soft_wrap=True)
        screen = pyte.Screen(columns, len(block.lines) + 1)
        screen.set_mode(pyte.modes.LNM)
        pyte.Stream(screen).feed(stream.getvalue())
        rows = [[screen.buffer[y][x] for x in range(columns)] for y in range(len(block.lines))]
        steps = {}
        for step, colour in enumerate(colour_table(palette)):
            steps.setdefault(to_hex(colour)[1:], set()).add(step)
        return Terminal(rows, steps)

    return show


@pytest.fixture(scope="session")
def step_of():
    """A weight's step, from the sentence in the legend: colour is the square root."""
    return lambda weight: round(float(weight) ** 0.5 * 255)
