"""Runs a stranger's program in a child process, with limits of time, memory and output."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from attnviz import errors
from attnviz.reading import TEXT_BYTES

_SECONDS, _PATIENCE = 1, 60
"""Seconds of processor time, and of waiting for them on a busy computer."""

_BYTES = 2**28
"""Memory beyond that of this process; the text of a long chat takes a thousandth."""


def confined(name: str, program: Callable[[], str]) -> str:
    """Return the text that a program returns, run in a copy of this process that ends with it.

    name: of the program, for messages. An error of attnviz that it raises is raised here. Raises
    LoadError if it takes too much time or memory. Systems without ``fork`` run it without limits.
    """
    if not hasattr(os, "fork"):
        return program()
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads wait; the copy does without them
        child = os.fork()
    if child == 0:
        _answer(program, sink)
    os.close(sink)
    try:
        with open(source, "rb") as stream:
            told = stream.read()
    finally:
        os.kill(child, signal.SIGKILL)  # it may have ended, but waits for this process
        os.waitpid(child, 0)
    kind, text = json.loads(told or '["", ""]')
    if kind == "text":
        return str(text)
    if kind:
        raise getattr(errors, kind)(text)
    raise errors.LoadError(
        f"{name} takes more than {_SECONDS} second, {_BYTES // 10**6} MB of memory or "
        f"{TEXT_BYTES:,} characters: give the finished text instead"
    )


def _answer(program: Callable[[], str], sink: int) -> NoReturn:
    """Write the text or the error of a program to a pipe, and end this process."""
    told = ["", ""]
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        _limit()
        told = ["text", program()]
    except errors.AttnvizError as error:
        told = [type(error).__name__, str(error)]
    finally:
        if len(told[1]) <= TEXT_BYTES:
            with open(sink, "w", encoding="ascii") as stream:
                json.dump(told, stream)
        os._exit(0)


def _limit() -> None:
    """Limit the memory and the processor time of this process; its memory on Linux only."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    pages = Path("/proc/self/statm")
    if pages.exists():
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + _BYTES
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
