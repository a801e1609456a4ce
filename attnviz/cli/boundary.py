"""Runs the command line and turns every error into a line on standard error and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import typer

from attnviz.cli.app import COMMANDS, app
from attnviz.cli.terminal import discard_output, steady_streams
from attnviz.draw.labels import cut, visible, width
from attnviz.errors import AttnvizError, LoadError
from attnviz.models.threads import threads_kept
from attnviz.ranks import is_together, join, tells_its_end

_INTERRUPTED = 130
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

_TORCH_SPACE = 10**9
"""Bytes of address space that torch and transformers need to start; with less, torch ends the
process without an error that could be caught. Measured: 0.7 GB never suffice, 0.8 often do."""

_READ_BY = {
    "huggingface_hub": ("HF_",),
    "keras": ("KERAS_",),
    "torch": ("TORCH", "PYTORCH"),
    "transformers": ("TRANSFORMERS_",),
}
"""Prefixes of the environment variables that a library reads while it is imported."""

_QUOTED = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|(?<!\w)"(?:[^"\\]|\\.)*"|[^\s'"]+""")
"""Matches texts in quotes as ``repr`` writes them, and single words."""

_LOST = re.compile("gloo|nccl", re.IGNORECASE)
"""Matches what the libraries that join processes say if one of them is gone."""

_MOST_TOLD = 120  # most characters shown of torch's long messages on memory
_LONGEST_QUOTE, _LONGEST_PATH, _LONGEST_LINE = 80, 255, 1000
"""Most columns of a quote, of a path and of the whole message."""


def run() -> int:
    """Run the command line and return the exit code; KeyboardInterrupt passes through."""
    steady_streams()
    _guard_torch()
    if "--tp" in sys.argv[1:]:
        join()
    try:
        command = typer.main.get_command(app)
        with threads_kept():
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
    except SystemExit as end:  # typer and rich exit with 1 if the reader of the output is gone
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    except Exception as error:
        # This is the last resort, and the only place that catches everything: an error that nobody
        # expected becomes one line and exit code 1, and is never passed over in silence.
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            discard_output()
            return _say(f"cannot write to standard output: {error.strerror}", LoadError.exit_code)
        if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
            return _say(
                f"the device is out of memory: {str(error)[:_MOST_TOLD]}; ask for less, shorten "
                "the text, or take --device cpu",
                2,
            )
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("attnviz"):
            lacks = str(error.name).partition(".")[0]
            return _say(
                f"this command needs {lacks}, which is not installed: pip install {lacks}",
                LoadError.exit_code,
            )
        if (library := _importing(error)) is not None:
            return _say(_unusable(library, error), LoadError.exit_code)
        if os.environ.get("ATTNVIZ_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _say(f"unexpected {kind}: {error} (ATTNVIZ_TRACEBACK=1 shows where)", 1)
    if code == _INTERRUPTED:  # typer's code for Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _importing(error: BaseException) -> str | None:
    """Return the name of the library whose import failed; None for an error of another kind."""
    library, step = None, error.__traceback__
    while step is not None:
        top = str(step.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if step.tb_frame.f_code.co_name == "<module>" and top != "attnviz":
            library = top
        step = step.tb_next
    return library


def _unusable(library: str, error: Exception) -> str:
    """Return a message for a failed import, with the environment variables that may cause it."""
    reason = f"{library} cannot be imported: {' '.join(str(error).split())[:300]}"
    read = {
        name: text
        for name, text in sorted(os.environ.items())
        if name.startswith(_READ_BY.get(library, ("?",)))
    }
    # Only the names are shown: a value may be an access token.
    blamed = [name for name, text in read.items() if text and text in str(error)] or list(read)
    if sys.flags.optimize > 1:
        return f"{reason}; it needs its docstrings: unset PYTHONOPTIMIZE, run Python without -OO"
    if blamed:
        return f"{reason}; correct or unset what it reads here: {', '.join(blamed)}"
    return f"{reason}; install it again, or see where with ATTNVIZ_TRACEBACK=1"


class _TorchGuard:
    """An import finder that refuses torch if the address space is too small."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch":
            raise LoadError(
                f"torch needs {_TORCH_SPACE / 1e9:g} GB of address space, and this shell allows "
                f"{self.allowed / 1e9:.2g} GB: raise the limit (ulimit -v)"
            )
        return None


def _guard_torch() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    guarded = any(isinstance(finder, _TorchGuard) for finder in sys.meta_path)
    if allowed != resource.RLIM_INFINITY and allowed < _TORCH_SPACE and not guarded:
        sys.meta_path.insert(0, _TorchGuard(allowed))


def _reader_gone() -> int:
    """Discard the pending output and return 0, since the reader of the pipe has ended."""
    discard_output()
    return 0


def _say(message: str, code: int) -> int:
    """Print one line, with unsafe characters escaped, to standard error; return ``code``."""
    if not tells_its_end():
        return code
    if is_together() and _LOST.search(message):
        message = "another of the processes that run this command has ended: all end with it"
    encoding = sys.stderr.encoding or "ascii"
    line = _QUOTED.sub(_cut, visible(" ".join(message.split())))
    line = visible(cut(line, _LONGEST_LINE), encoding)
    print(f"attnviz: {line}", file=sys.stderr)
    return code


def _cut(quoted: re.Match[str]) -> str:
    """Return a quoted text of a message cut to 80 characters, or a path cut to 255."""
    text = quoted[0]
    mark = text[0] if text[0] in "'\"" else ""
    longest = _LONGEST_PATH if "/" in text else _LONGEST_QUOTE
    kept = text[: 2 * longest]  # combining marks take no column
    if kept == text and width(text) <= longest:
        return text
    return cut(kept, longest - len(mark)).removesuffix("…") + "…" + mark


def _usage(error: Any) -> int:
    """Print typer's message on a wrong command line, with a pointer to ``--help``; return 2."""
    message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
    if "extra argument" in message and not any(" " in a and a in message for a in sys.argv):
        # What was most likely typed without quotes is an option's value, or else the text.
        extra = message.partition(" (")[2].removesuffix(")").split(" ")[0]
        before = sys.argv[: sys.argv.index(extra)] if extra in sys.argv else []
        options = [param for param in error.ctx.command.params if param.param_type_name == "option"]
        takes = {name for param in options for name in param.opts if not param.is_flag}
        unquoted = f"value of {before[-2]}" if len(before) > 3 and before[-2] in takes else "text"
        message += f" (put the {unquoted} in quotes)"
    named = [word for word in sys.argv[1:2] if word in COMMANDS]
    if named == ["head"] and "No such option: --head" in message:
        message = 'the head comes first: attnviz head L1H2 "The cat sat on the mat."'
    return _say(f"{message.rstrip('.')}; see '{' '.join(['attnviz', *named])} --help'", 2)
