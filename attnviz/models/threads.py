"""The number of threads of torch and NumPy, by the size of the model.

As soon as another program keeps a processor busy, the threads of a small model wait for each other
far longer than they compute: it runs on one. A larger one uses the processors that the process may
use. ``OMP_NUM_THREADS`` takes precedence, and a requested number before that.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from attnviz.models import memory

if TYPE_CHECKING:  # the entry point imports this module before all others
    from attnviz.models.model import Model

_SMALL = 20_000_000  # weights without embeddings below which threads gain little when idle

ASKED: WeakKeyDictionary[Model, int] = WeakKeyDictionary()
"""The number of threads that a Python program requested when it loaded a model."""


class _Process:
    """The thread settings that attnviz has changed in this process.

    own: for each library the number of threads before attnviz changed it.
    asked: the number that the user requested, or None.
    users: how many threads of a Python program are running a function of attnviz.
    alone: how many blocks of ``blas_alone`` are open. before: BLAS's threads before the first.
    """

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.asked: int | None = None
        self.users = 0
        self.alone = 0
        self.before = 1


_process, _lock, _thread = _Process(), Lock(), local()


def wait_passively() -> None:
    """Let waiting threads sleep; call this before torch is imported, which reads the setting."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("KMP_BLOCKTIME", "0")


def allowed_processors(rounded: Callable[[float], int] = math.floor) -> int:
    """Return how many processors this process may use: by its affinity and its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = memory.processors()
    return count if quota is None else max(1, min(count, rounded(quota)))


def suit(model: Model, asked: int | None = None) -> None:
    """Set torch, if it is imported, and NumPy to the number of threads that suits a model."""
    from attnviz.models.work import sizes_of

    ask_for(asked or ASKED.get(model))
    use_threads(threads_for(sizes_of(model).weights))


def threads_for(weights: float) -> int:
    """Return the number of threads for a model with this many parameters, without embeddings."""
    return 1 if weights < _SMALL else allowed_processors()


def ask_for(number: int | None) -> None:
    """Set the number of threads that the user requested; it holds until ``threads_kept`` ends."""
    _process.asked = number or _process.asked


def use_threads(number: int) -> None:
    """Set torch and NumPy to at most ``number`` threads, or to as many as were requested."""
    asked = _process.asked
    for name, (get, put) in _libraries().items():
        own = _process.own.setdefault(name, get())
        if asked is not None:
            put(min(asked, allowed_processors()))
        elif _in_environment() is None:
            put(min(own, number))


def workers() -> int:
    """Return how many threads should share tasks: as requested, else the processors NumPy had."""
    most = allowed_processors(math.ceil)
    wanted = _process.asked or _in_environment()
    if wanted is None and (blas := _libraries().get("blas")) is not None:
        wanted = _process.own.get("blas") or (_process.before if _process.alone else blas[0]())
    return max(1, min(most, wanted or most))


@contextmanager
def blas_alone() -> Iterator[None]:
    """Run NumPy's matrix products on the calling thread alone, until no such context is open."""
    blas = _libraries().get("blas")
    with _lock:
        if blas is not None and not _process.alone:
            _process.before = blas[0]()
            blas[1](1)
        _process.alone += 1
    try:
        yield
    finally:
        with _lock:
            _process.alone -= 1
            if blas is not None and not _process.alone:
                blas[1](_process.before)


def _in_environment() -> int | None:
    """Return the first number in ``OMP_NUM_THREADS``; None if it does not begin with one."""
    number = re.match(r"\s*([1-9]\d*)", os.environ.get("OMP_NUM_THREADS", ""))
    return None if number is None else int(number[1])


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restore the numbers of threads of torch and NumPy at the end of this context."""
    if getattr(_thread, "inside", False):
        yield
        return
    _thread.inside = True
    with _lock:
        _process.users += 1
    try:
        yield
    finally:
        _thread.inside = False
        with _lock:
            for name, number in _process.own.items():
                _libraries()[name][1](number)
            _process.users -= 1
            if not _process.users:
                _process.own, _process.asked = {}, None


Functions = tuple[Callable[[], int], Callable[[int], Any]]
"""The functions that get and set a library's number of threads."""


def _libraries() -> dict[str, Functions]:
    """Return the functions that get and set the threads of torch and OpenBLAS, if imported."""
    libraries = {}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        libraries["torch"] = (torch.get_num_threads, torch.set_num_threads)
    if "numpy" in sys.modules and (blas := _openblas()) is not None:
        libraries["blas"] = blas
    return libraries


@cache
def _openblas() -> Functions | None:
    """Return the functions that get and set the threads of NumPy's OpenBLAS; None without it."""
    import ctypes

    linked = getattr(sys.modules.get("numpy._core._multiarray_umath"), "__file__", None)
    if linked is None:
        return None
    library = ctypes.CDLL(linked)
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if get is not None and put is not None:
            return get, put
    return None
