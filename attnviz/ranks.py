"""Which of the processes of torchrun this is, and what only the first of them may do.

With ``--tp`` all processes run the same command, each with a part of a model. They make the same
calls in the same order; the first alone prints and writes files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from attnviz.errors import UnsupportedError, UsageError

ALONE = {
    "align": "it keeps the attention over all clips",
    "explore": "it is played at one keyboard",
    "prune": "it writes the weights of a smaller model",
    "verify": "it reads every weight of the model",
}
"""The commands that run in one process only, and why; all others with a model take ``--tp``."""

_OPTIONS = {
    "resume": "one file cannot be continued by several processes",
    "budget": "how much fits into a time differs between processes",
}
"""The options that one process alone takes, and why."""

_PATIENCE = 10.0  # seconds that another process waits for the first to say why all end

_together = False


class EndsTogether(BaseException):
    """Raised by Ctrl-C in one of several processes, which then ends without a report.

    It is no KeyboardInterrupt, which would show what was measured until then: the processes are
    at different steps, and a report asks the model again, for which all are needed.
    """


def rank() -> int:
    """Return the index of this process among those of torchrun, from 0."""
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return the number of processes of torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join() -> None:
    """Count this process from now on as one of those that torchrun started, if it did."""
    global _together
    _together = size() > 1


def check_together(command: str, given: Mapping[str, Any]) -> None:
    """Raise an error if several processes cannot run a command together. given: its options."""
    if not _together:
        raise UsageError(
            "--tp splits a model over processes: start them with torchrun --nproc-per-node 2 -m "
            f"attnviz {command} …"
        )
    refuse_alone(command, given)


def refuse_alone(command: str, given: Mapping[str, Any]) -> None:
    """Raise an error in one of several processes if the command, or an option, allows only one."""
    if command in ALONE:
        raise UnsupportedError(
            f"{command} runs in one process ({ALONE[command]}): load the model whole, without --tp"
        )
    for name, why in _OPTIONS.items():
        if given.get(name) is not None:
            raise UsageError(f"--{name} is for one process: {why}; leave it or --tp out")


def is_together() -> bool:
    """Return True if this command runs in several processes together."""
    return _together


def follows() -> bool:
    """Return True in a process that leaves showing and writing results to another one."""
    return _together and rank() > 0


def tells_its_end(interrupted: bool = False) -> bool:
    """Return True if this process is the one that says why the command ends early.

    Of several that end, the first to call this says it, since its end mostly causes the others'.
    Before, the first process says it. interrupted: whether Ctrl-C ended this process.
    """
    torch: Any = sys.modules.get("torch")
    if not _together or torch is None or not torch.distributed.is_initialized():
        if follows() and not interrupted:
            time.sleep(_PATIENCE)  # torchrun ends this process meanwhile
        return not (follows() and interrupted)
    try:
        ended: int = torch.distributed.distributed_c10d._get_default_store().add("attnviz/ended", 1)
    except RuntimeError:  # the store has ended with its process
        return False
    return ended == 1
