"""The entry point: as little as possible before Ctrl-C is heeded."""

from __future__ import annotations

import gc
import os
import sys

# NumPy's own threads cost more than they give on the small arrays of one sentence; the variable
# is read when NumPy is imported and does not touch torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Typer brings pydantic, which would search every installed package for plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

# The package of this name fetches code from the hub; transformers uses it wherever it is there.
vars(sys)["modules"]["kernels"] = None

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave with the documented exit code."""
    try:
        from attnviz.cli.boundary import run  # takes long enough to be interrupted
        from attnviz.interrupts import as_interrupt

        with as_interrupt():  # a file that was begun is thrown away
            code = run()
    except KeyboardInterrupt:
        print("attnviz: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    gc.freeze()  # or a tenth of the run is a last search for cycles in all that was imported
    sys.exit(code)
