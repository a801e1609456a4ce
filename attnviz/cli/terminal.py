"""The consoles that commands write to: their width and their colours."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from attnviz.cli.output import ColourChoice
from attnviz.errors import UsageError

__all__ = ["LEAST_WIDTH", "MOST_WIDTH", "messages", "open_console"]

LEAST_WIDTH, MOST_WIDTH = 20, 1000


def open_console(width: int | None, colour: ColourChoice) -> Console:
    """The console on standard output.

    width: columns, or None for the terminal's own (80 in a pipe).
    colour: ``auto`` obeys NO_COLOR, FORCE_COLOR and whether a terminal listens.

    Raises UsageError where the width is below 20 or above 1,000 columns.
    """
    forced = os.environ.get("FORCE_COLOR", "")
    force = colour == "always" or (colour == "auto" and forced not in ("", "0", "false"))
    console = Console(
        width=width,
        force_terminal=True if force else None if sys.stdout.isatty() else False,
        no_color=True if colour == "never" else False if colour == "always" else None,
        color_system="truecolor" if force and not sys.stdout.isatty() else "auto",
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )
    if not LEAST_WIDTH <= console.width <= MOST_WIDTH:
        source = "--width is" if width is not None else "this terminal is"
        raise UsageError(
            f"{source} {console.width} columns: a map needs {LEAST_WIDTH} to {MOST_WIDTH} "
            "(set another --width, or use --json)"
        )
    return console


def messages(quiet: bool) -> Console:
    """The console on standard error, for progress and notices."""
    return Console(
        stderr=True,
        quiet=quiet,
        force_terminal=None if sys.stderr.isatty() else False,  # FORCE_COLOR makes no terminal
        markup=False,
        emoji=False,
        highlight=False,
    )
