"""The entry point, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys

# NumPy's own threads cost more than they give on the small arrays of one sentence; the variable
# is read when NumPy is imported and does not touch torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import typer

from attnviz.cli.app import app
from attnviz.errors import AttnvizError
from attnviz.render.labels import visible

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave with the documented exit code."""
    sys.exit(_run())


def _run() -> int:
    try:
        command = typer.main.get_command(app)
        code = command.main(prog_name="attnviz", standalone_mode=False)
        sys.stdout.flush()
    except AttnvizError as error:
        return _say(str(error), error.exit_code)
    except typer.TyperException as error:
        return _usage(error)
    except KeyboardInterrupt:
        return _say("interrupted", _INTERRUPTED)
    except Exception as error:  # the boundary: whatever happens, a person gets a line
        if os.environ.get("ATTNVIZ_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _say(f"unexpected {kind}: {error} (ATTNVIZ_TRACEBACK=1 shows where)", 1)
    if code == _INTERRUPTED:  # typer's own reading of Ctrl-C
        return _say("interrupted", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _say(message: str, code: int) -> int:
    """One line on standard error, harmless whatever it quotes."""
    line = visible(" ".join(message.split()), sys.stderr.encoding or "ascii")
    print(f"attnviz: {line}", file=sys.stderr)
    return code


def _usage(error: typer.TyperException) -> int:
    """A mistake on the command line itself, in the words of typer, and where to read on."""
    message = getattr(error, "format_message", error.__str__)()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "attnviz"
    if "unexpected extra argument" in message:
        message += " (put the text in quotes)"
    return _say(f"{message.rstrip('.')}; see '{command} --help'", 2)
