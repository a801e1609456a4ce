"""Draw the screen of a command, run in a real terminal, as a self-contained SVG.

usage: python tests/pictures/terminal.py OUT.svg COLUMNS COMMAND...
"""

from __future__ import annotations

import os
import sys
from html import escape
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char

CELL, LINE, MARGIN = 8.4, 17.0, 14.0
INK, PAPER = "#d4d4d4", "#16181d"
ROWS = 200
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK KR', monospace"


def run(columns: int, command: list[str]) -> list[list[Char]]:
    """The lines that a command leaves on a truecolor terminal, without the empty ones below."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    child = pexpect.spawn(command[0], command[1:], dimensions=(ROWS, columns), env=environment)
    screen = pyte.Screen(columns, ROWS)
    pyte.ByteStream(screen).feed(child.read())
    child.close()
    if child.exitstatus:
        raise SystemExit(f"{command} ended with {child.exitstatus}")
    lines = [[screen.buffer[row][column] for column in range(columns)] for row in range(ROWS)]
    while lines and not any(cell.data.strip() or cell.bg != "default" for cell in lines[-1]):
        lines.pop()
    return lines


def colour(name: str, default: str) -> str:
    return default if name == "default" else f"#{name}"


def rectangle(x: float, y: float, cells: int, height: float, fill: str) -> str:
    width = cells * CELL + 0.3  # a hair more, so that neighbours leave no seam
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'
    )


def drawn_line(cells: list[Char], y: float) -> list[str]:
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


def drawing(lines: list[list[Char]]) -> str:
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


if __name__ == "__main__":
    out, columns, *command = sys.argv[1:]
    Path(out).write_text(drawing(run(int(columns), command)), encoding="utf-8")
