"""Calls third-party loaders on untrusted files: silently, with any failure as one LoadError."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from attnviz.errors import AttnvizError, LoadError

_TALKATIVE = ("transformers", "huggingface_hub", "accelerate")
_SILENT = logging.NullHandler()
_LONGEST = 300  # characters kept of a library's message: some list every tensor of a model

_RUNNING = ("transformers", "torch", "attnviz.", "peft", "bitsandbytes")
"""Beginnings of the names of modules that run in a forward pass: a model's own code too, and ours,
which replaces its attention and gets masks and queries that may not fit."""

_STDERR = 2
_PIPE_BYTES = 2**16
_redirecting = threading.Lock()


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the logs and warnings of the Hugging Face libraries off the user's screen."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [(logger.propagate, [*logger.handlers]) for logger in loggers]
    # To set a level takes longer than a small forward pass where a thousand loggers stand.
    for logger, (_, handlers) in zip(loggers, before, strict=True):
        for handler in handlers:
            logger.removeHandler(handler)
        logger.addHandler(_SILENT)
        logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.removeHandler(_SILENT)
            for handler in handlers:
                logger.addHandler(handler)
            logger.propagate = propagate


class ErrorsAs(AbstractContextManager[None]):
    """A context in which an error of library code is replaced by what ``translate`` returns for it.

    ``translate`` gets every error, since untrusted files and servers can raise any; it returns None
    to suppress the error.
    """

    def __init__(self, translate: Callable[[Exception], Exception | None]) -> None:
        self._translate = translate

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):  # Ctrl-C, or the end of the process
            return False
        translated = self._translate(error)
        if translated is not None and translated is not error:
            raise translated from error
        return translated is None


@contextmanager
def third_party(failure: str) -> Iterator[None]:
    """Run library code silently; its errors become ``LoadError("<failure>: <why>")``."""

    def translate(error: Exception) -> Exception:
        return error if isinstance(error, AttnvizError) else LoadError(f"{failure}: {_why(error)}")

    try:
        with quietly(), ErrorsAs(translate):
            yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise LoadError(f"{failure}: {one_line(error)}") from error


@contextmanager
def tokenizing(name: str) -> Iterator[None]:
    """Run a tokenizer silently; errors become a LoadError, lines of Rust panics are hidden."""
    with third_party(f"the tokenizer of {name!r} cannot be used"), _without_panic_lines():
        yield


@contextmanager
def _without_panic_lines() -> Iterator[None]:
    # Another thread that redirects at the same time would put back the wrong descriptor.
    if not _redirecting.acquire(blocking=False):
        yield
        return
    try:
        shown = None if os.name == "nt" else os.dup(_STDERR)
    except OSError:  # it is closed
        shown = None
    if shown is None:
        _redirecting.release()
        yield
        return
    held, end = os.pipe()
    for descriptor in (held, end):
        os.set_blocking(descriptor, False)  # only a panic overfills the pipe
    panicked = False
    os.dup2(end, _STDERR)
    try:
        yield
    except BaseException as error:
        panicked = _is_panic(error)
        raise
    finally:
        os.dup2(shown, _STDERR)
        for descriptor in (shown, end):
            os.close(descriptor)
        with suppress(BlockingIOError):  # a child process may still hold the pipe open
            written = os.read(held, _PIPE_BYTES)
            if written and not panicked:
                os.write(_STDERR, written)
        os.close(held)
        _redirecting.release()


@contextmanager
def running(model: object, *passing: type[Exception]) -> Iterator[None]:
    """Run a model's forward pass uncompiled; errors but ``passing`` ones become a LoadError."""

    def translate(error: Exception) -> Exception:
        trace, module = error.__traceback__, ""
        while trace is not None:  # down to the module that raised it
            module, trace = str(trace.tb_frame.f_globals.get("__name__")), trace.tb_next
        ours = type(error).__module__.startswith("attnviz.")
        if ours or isinstance(error, passing) or not module.startswith(_RUNNING):
            return error
        own = module.startswith(("transformers", "torch.", "attnviz."))
        library = "" if own else f" (in {module})"
        return LoadError(
            f"{type(model).__name__} cannot run over this text: {_why(error)}{library}"
        )

    with quietly(), ErrorsAs(translate), uncompiled():
        yield


_uncompiled: list[ExitStack] = []


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled modules as written; the last of overlapping contexts restores the stance."""
    stances = ExitStack()
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        if not _uncompiled:
            compiler: Any = sys.modules["torch"].compiler
            stances.enter_context(compiler.set_stance("force_eager"))
        _uncompiled.append(stances)
    try:
        yield
    finally:
        if stances in _uncompiled:
            _uncompiled.remove(stances)
            if _uncompiled:
                _uncompiled[-1].push(stances.pop_all())
            stances.close()


def _is_panic(error: BaseException) -> bool:
    """Return whether Rust code panicked; each library has its own class for that."""
    return type(error).__name__ == "PanicException" and type(error).__module__ == "pyo3_runtime"


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it does not fit the free memory"
    return one_line(error)


def one_line(error: BaseException) -> str:
    """Return a library's message without line breaks and control characters, truncated."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(character if character.isprintable() else "\ufffd" for character in words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
