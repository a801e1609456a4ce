"""The one place where an error becomes a line on standard error and an exit code."""

from __future__ import annotations

import os
import sys

import typer

from attnviz.cli.app import app
from attnviz.cli.streams import discard_output, steady_streams
from attnviz.errors import AttnvizError
from attnviz.render.labels import visible

__all__ = ["run"]

_INTERRUPTED = 130


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
    """One line on standard error, harmless whatever it quotes."""
    line = visible(" ".join(message.split()), sys.stderr.encoding or "ascii")
    print(f"attnviz: {line}", file=sys.stderr)
    return code


def _usage(error: typer.TyperException) -> int:
    """A mistake on the command line itself, in the words of typer, and where to read on."""
    message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attnviz"
    if "unexpected extra argument" in message:
        message += " (put the text in quotes)"
    return _say(f"{message.rstrip('.')}; see '{command} --help'", 2)
