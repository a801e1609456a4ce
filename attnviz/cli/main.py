"""The entry point; it does as little as possible before it handles Ctrl-C."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from attnviz.models.threads import wait_passively
from attnviz.ranks import EndsTogether, tells_its_end

wait_passively()

# NumPy's own threads cost more than they give on the small arrays of one sentence; the variable
# is read when NumPy is imported and does not touch torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Typer brings pydantic, which would search every installed package for plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

# The package kernels fetches code from the hub; transformers uses it if it is installed.
vars(sys)["modules"]["kernels"] = None

# A command makes objects that live to its end: searching them for cycles so often is in vain.
gc.set_threshold(20_000, 50, 50)

_INTERRUPTED = 130
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def main() -> None:
    """Run the command line, and exit with the documented exit code; the program's entry point."""
    chosen = _COMPILED in os.environ
    try:
        from attnviz.cli.boundary import run  # slow, so Ctrl-C must be caught
        from attnviz.progress import as_interrupt

        with as_interrupt():  # unfinished files are removed
            code = run()
    except (KeyboardInterrupt, EndsTogether):
        with suppress(OSError):  # the terminal may be closed
            if tells_its_end(interrupted=True):
                print("attnviz: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # discard the rest, or Python would exit with 120
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
    if not chosen and _COMPILED in os.environ:  # torch made it for what it compiles, in vain
        with suppress(OSError):  # others use it
            os.rmdir(os.environ[_COMPILED])
    gc.freeze()  # saves a last search for cycles, a tenth of the run
    sys.exit(code)
