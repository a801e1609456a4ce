"""The manual's pictures: screens of commands in a real terminal, as self-contained SVG.

Renewed by

    python -m tests.pictures.terminal

which draws all of them, or those that are named, into the folder of the manual.
"""

import os
import shlex
import sys
import time
from contextlib import contextmanager
from html import escape
from itertools import groupby
from pathlib import Path

import pexpect
import pyte

import attnviz

CELL, LINE, MARGIN = 8.4, 17.0, 14.0
INK, PAPER = "#d4d4d4", "#16181d"
COLUMNS, ROWS = 80, 24

PATIENCE = 300
"""Seconds for a command on a machine that is busy."""

PICTURES = {
    "heads": 'heads "The cat sat on the mat because it was tired."',
    "patterns": "patterns --watch induction",
    "ablate": "ablate",
    "by-token": "ablate --head L1H2 --by-token",
    "params": "params llama-3-8b --tokens 32768 --memory 24GB",
}
"""What is typed after ``attnviz``, by the name of the picture."""

FOLDER = Path(attnviz.__file__).parent / "docs" / "pictures"
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK KR', monospace"


@contextmanager
def started(command, columns, rows):
    """Yield a process on a truecolor terminal, and the screen and the stream that it draws on."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        environment.pop(variable, None)
    program = str(Path(sys.executable).with_name("attnviz"))
    child = pexpect.spawn(
        program, shlex.split(command), dimensions=(rows, columns), env=environment, timeout=PATIENCE
    )
    screen = pyte.Screen(columns, rows)
    yield child, screen, pyte.ByteStream(screen)
    child.close(force=True)


def run(command):
    """The lines that a command leaves on a terminal, without the empty ones below."""
    with started(command, COLUMNS, ROWS) as (child, screen, stream):
        stream.feed(child.read())
        lines = cells(screen)
        child.close()
    if child.exitstatus:
        raise SystemExit(f"{command} ended with {child.exitstatus}")
    while lines and not any(cell.data.strip() or cell.bg != "default" for cell in lines[-1]):
        lines.pop()
    return lines


def cells(screen):
    """The screen's lines, each a list of its cells."""
    return [
        [screen.buffer[row][column] for column in range(screen.columns)]
        for row in range(screen.lines)
    ]


def recorded(command, columns, rows, scenes):
    """Yield the lines of what is live, once for each scene: the keys pressed, what it then says."""
    with started(command, columns, rows) as (child, screen, stream):
        for keys, wanted in scenes:
            for key in keys:
                child.send(key)
                _until_quiet(child, screen, stream, ())
            _until_quiet(child, screen, stream, wanted)
            yield cells(screen)


def _until_quiet(child, screen, stream, wanted):
    """Read until nothing has come for a second and the screen says what is wanted."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            stream.feed(child.read_nonblocking(1 << 16, timeout=1))
        except pexpect.TIMEOUT:
            shown = "\n".join(screen.display)
            if shown.strip() and all(text in shown for text in wanted):
                return
    raise SystemExit(f"the screen never said {wanted}: {screen.display}")


def ink(name):
    """The attribute of a colour; the terminal's own is that of the whole picture."""
    return "" if name == "default" else f' fill="#{name}"'


def rectangle(x, y, cells, height, fill):
    width = cells * CELL + 0.3  # a hair more, so that neighbours leave no seam
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{fill}/>'


def drawn_line(line, y):
    """One line: its backgrounds and half blocks as rectangles, the rest as text."""
    parts = []
    column = 0
    for style, run_of_cells in groupby(line, key=lambda c: (c.fg, c.bg, c.bold, c.data in "▀▄")):
        fore, back, bold, block = style
        run = list(run_of_cells)
        x = MARGIN + column * CELL
        if back != "default":
            parts.append(rectangle(x, y, len(run), LINE + 0.3, ink(back)))
        if block:
            top = y if run[0].data == "▀" else y + LINE / 2
            parts.append(rectangle(x, top, len(run), LINE / 2 + 0.3, ink(fore)))
        elif text := "".join(cell.data for cell in run).rstrip():
            weight = ' font-weight="bold"' if bold else ""
            start = x + (len(text) - len(text.lstrip())) * CELL
            parts.append(
                f'<text x="{start:.1f}" y="{y + 13:.1f}"{ink(fore)}{weight} '
                f'xml:space="preserve">{escape(text.lstrip())}</text>'
            )
        column += len(run)
    return parts


def drawing(lines):
    width = len(lines[0]) * CELL + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="{FONTS}" font-size="14" fill="{INK}">',
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
    ]
    for row, drawn in enumerate(lines):
        parts += drawn_line(drawn, MARGIN + row * LINE)
    return "\n".join([*parts, "</svg>", ""])


def picture(name):
    return drawing(run(PICTURES[name]))


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")
