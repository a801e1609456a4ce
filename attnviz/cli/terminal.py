"""The terminal or pipe of a command: its streams, its width and its colours."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from attnviz.errors import LoadError, UsageError
from attnviz.ranks import follows

if TYPE_CHECKING:
    from rich.console import Console

ColourChoice = Literal["auto", "always", "never"]

_LEAST_WIDTH, _MOST_WIDTH = 20, 1000


def steady_streams() -> None:
    """Replace closed output streams; characters that streams cannot encode become escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in ``>&-``
            sink = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(sink, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__:
        own: Any = sys.stderr
        raw = io.BufferedWriter(_Messages(own.fileno(), "w", closefd=False))
        encoding, errors = own.encoding, own.errors
        sys.stderr = io.TextIOWrapper(raw, encoding, errors, line_buffering=True)


class _Messages(io.FileIO):
    """Standard error, where what cannot be written is lost: that changes no result."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:  # a full disk, a terminal that is gone
            return len(content)


def discard_output() -> None:
    """Discard the pending standard output, so that the interpreter's last flush succeeds."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


@contextmanager
def printing() -> Iterator[None]:
    """Flush standard output after the block; LoadError if the system cannot write."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise LoadError(f"cannot write to standard output: {error.strerror}") from error


def open_console(width: int | None, colour: ColourChoice) -> Console:
    """Return the console on standard output that results are drawn on; see ``text_console``.

    width: in characters, or None for the terminal's own. colour: when colours are used.
    Raises UsageError if the width is below 20 or above 1,000 characters.
    """
    console = text_console(width, colour)
    if not _LEAST_WIDTH <= console.width <= _MOST_WIDTH:
        source = "--width is" if width is not None else "this terminal is"
        raise UsageError(
            f"{source} {console.width} columns: a map needs {_LEAST_WIDTH} to {_MOST_WIDTH} "
            "(set another --width, or use --json)"
        )
    return console


def text_console(width: int | None, colour: ColourChoice) -> Console:
    """Return the console on standard output, of any width.

    width: in characters, or None for the terminal's own (80 in a pipe).
    colour: ``auto`` obeys NO_COLOR, FORCE_COLOR and whether the output is a terminal.

    Moving output is drawn only if ``is_interactive``: a pipe may get colours, never a cursor.
    """
    from rich.console import Console  # takes 20 ms, not needed for help and errors

    forced = os.environ.get("FORCE_COLOR", "")
    force = colour == "always" or (colour == "auto" and forced not in ("", "0", "false"))
    return Console(
        quiet=follows(),
        width=width,
        force_terminal=True if force else None if sys.stdout.isatty() else False,
        force_interactive=None if sys.stdout.isatty() else False,  # colours alone are forced
        no_color=True if colour == "never" else False if colour == "always" else None,
        color_system="truecolor" if force and not sys.stdout.isatty() else "auto",
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def messages(quiet: bool) -> Console:
    """Return the console on standard error, for progress and notices."""
    from rich.console import Console

    return Console(
        stderr=True,
        quiet=quiet or follows(),
        force_terminal=None if sys.stderr.isatty() else False,  # not FORCE_COLOR
        force_interactive=None if sys.stderr.isatty() else False,
        markup=False,
        emoji=False,
        highlight=False,
    )
