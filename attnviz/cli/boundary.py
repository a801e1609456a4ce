"""The one place where an error becomes a line on standard error and an exit code."""

from __future__ import annotations

import os
import re
import sys

import typer

from attnviz.cli.app import app
from attnviz.cli.streams import discard_output, steady_streams
from attnviz.errors import AttnvizError
from attnviz.render.labels import cut, visible, width

__all__ = ["run"]

_INTERRUPTED = 130

_QUOTED = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|(?<!\w)"(?:[^"\\]|\\.)*"|[^\s'"]+""")
"""Texts in quotes as ``repr`` writes them, and words, for not all that is quoted is in quotes."""

_LONGEST_QUOTE, _LONGEST_PATH, _LONGEST_LINE = 80, 255, 1000
"""Columns, and of a path and of the line those that are let through."""


def run() -> int:
    """Run the command line; the documented exit code. Ctrl-C passes as KeyboardInterrupt."""
    steady_streams()
    try:
        command = typer.main.get_command(app)
        code = command.main(prog_name="attnviz", standalone_mode=False)
        sys.stdout.flush()
    except AttnvizError as error:
        return _say(str(error), error.exit_code)
    except typer.TyperException as error:
        return _usage(error)
    except MemoryError as error:
        return _say(
            f"out of memory: {error or 'none is left'}; ask for less, or shorten the text", 2
        )
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as end:  # typer and rich end a process whose reader is gone with exit code 1
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    except Exception as error:  # the boundary: whatever happens, a person gets a line
        if os.environ.get("ATTNVIZ_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _say(f"unexpected {kind}: {error} (ATTNVIZ_TRACEBACK=1 shows where)", 1)
    if code == _INTERRUPTED:  # typer's own reading of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _reader_gone() -> int:
    """A pipe closed by its reader, as ``head`` does, has got what it wanted."""
    discard_output()
    return 0


def _say(message: str, code: int) -> int:
    """One line on standard error, harmless and of bounded length whatever it quotes."""
    encoding = sys.stderr.encoding or "ascii"
    line = _QUOTED.sub(_cut, visible(" ".join(message.split())))
    line = visible(cut(line, _LONGEST_LINE), encoding)
    print(f"attnviz: {line}", file=sys.stderr)
    return code


def _cut(quoted: re.Match[str]) -> str:
    """What a message quotes, in 80 columns; a path whole as long as systems make names."""
    text = quoted[0]
    mark = text[0] if text[0] in "'\"" else ""
    longest = _LONGEST_PATH if "/" in text else _LONGEST_QUOTE
    return text if width(text) <= longest else cut(text, longest - len(mark)) + mark


def _usage(error: typer.TyperException) -> int:
    """A mistake on the command line itself, in the words of typer, and where to read on."""
    message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attnviz"
    if "unexpected extra argument" in message:
        message += " (put the text in quotes)"
    return _say(f"{message.rstrip('.')}; see '{command} --help'", 2)
