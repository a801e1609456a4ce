"""The README's pictures: screens of commands in a real terminal, as self-contained SVG.

Renewed by

    python tests/pictures/terminal.py

which draws all of them, or those that are named, into this folder.
"""

import os
import shlex
import sys
import time
from html import escape
from itertools import groupby
from pathlib import Path

import pexpect
import pyte

CELL, LINE, MARGIN = 8.4, 17.0, 14.0
INK, PAPER = "#d4d4d4", "#16181d"
COLUMNS, ROWS = 80, 24
WIDE, HIGH = 110, 34
"""Of a picture of what is live."""

PATIENCE = 300
"""Seconds for a command on a machine that is busy."""

PICTURES = {
    "heads": 'heads "When Mary and John went to the shop, John gave a drink to Mary."',
    "patterns": "patterns --watch induction",
    "ablate": "ablate",
    "by-token": "ablate --head L1H2 --by-token",
    "params": "params llama-3-8b --tokens 32768 --memory 24GB",
    "explore": 'explore "When Nancy met John, nobody knew why Nancy met"',
}
"""What is typed after ``attnviz``, by the name of the picture."""

KEYS = {"explore": (("x",), ("Without L", " of 24"))}
"""What is pressed in what is live, and what its screen says when all is there."""

HERE = Path(__file__).parent
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK KR', monospace"


def run(command, name):
    """The lines that a command leaves on a truecolor terminal, without the empty ones below."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        environment.pop(variable, None)
    keys, wanted = KEYS.get(name, ((), ()))
    columns, rows = (WIDE, HIGH) if keys else (COLUMNS, ROWS)
    child = pexpect.spawn(
        command[0], command[1:], dimensions=(rows, columns), env=environment, timeout=PATIENCE
    )
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    if keys:
        _press(child, screen, stream, keys, wanted)
    else:
        stream.feed(child.read())
    lines = [[screen.buffer[row][column] for column in range(columns)] for row in range(rows)]
    child.close(force=bool(keys))
    if child.exitstatus and not keys:  # what is live was cut off
        raise SystemExit(f"{command} ended with {child.exitstatus}")
    while lines and not any(cell.data.strip() or cell.bg != "default" for cell in lines[-1]):
        lines.pop()
    return lines


def _press(child, screen, stream, keys, wanted):
    """Press keys, each when the screen is quiet, and read until it says what is wanted."""
    waiting = list(keys)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            stream.feed(child.read_nonblocking(1 << 16, timeout=1))
        except pexpect.TIMEOUT:
            shown = "\n".join(screen.display)
            if waiting and shown.strip():
                child.send(waiting.pop(0))
            elif not waiting and all(text in shown for text in wanted):
                return
    raise SystemExit(f"the screen never said {wanted}: {screen.display}")


def colour(name, default):
    return default if name == "default" else f"#{name}"


def rectangle(x, y, cells, height, fill):
    width = cells * CELL + 0.3  # a hair more, so that neighbours leave no seam
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'
    )


def drawn_line(cells, y):
    """One line: its backgrounds and half blocks as rectangles, the rest as text."""
    parts = []
    column = 0
    for style, run_of_cells in groupby(cells, key=lambda c: (c.fg, c.bg, c.bold, c.data in "▀▄")):
        fore, back, bold, block = style
        run = list(run_of_cells)
        x = MARGIN + column * CELL
        if back != "default":
            parts.append(rectangle(x, y, len(run), LINE + 0.3, colour(back, PAPER)))
        if block:
            top = y if run[0].data == "▀" else y + LINE / 2
            parts.append(rectangle(x, top, len(run), LINE / 2 + 0.3, colour(fore, INK)))
        elif text := "".join(cell.data for cell in run).rstrip():
            weight = ' font-weight="bold"' if bold else ""
            start = x + (len(text) - len(text.lstrip())) * CELL
            parts.append(
                f'<text x="{start:.1f}" y="{y + 13:.1f}" fill="{colour(fore, INK)}"{weight} '
                f'xml:space="preserve">{escape(text.lstrip())}</text>'
            )
        column += len(run)
    return parts


def drawing(lines):
    width = len(lines[0]) * CELL + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="{FONTS}" font-size="14">',
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
    ]
    for row, cells in enumerate(lines):
        parts += drawn_line(cells, MARGIN + row * LINE)
    return "\n".join([*parts, "</svg>", ""])


def picture(name):
    """One of the pictures, as it is drawn today."""
    program = str(Path(sys.executable).with_name("attnviz"))
    return drawing(run([program, *shlex.split(PICTURES[name])], name))


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        (HERE / f"{name}.svg").write_text(picture(name), encoding="utf-8")
