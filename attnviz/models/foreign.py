"""Runs other libraries on files of strangers: in silence, and with each failure as one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.errors import AttnvizError, LoadError

__all__ = ["foreign", "one_line", "quietly"]

_TALKATIVE = ("transformers", "huggingface_hub")
_LONGEST = 300
"""Characters kept of a library's message: some list every tensor of a model."""


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the logs and warnings of the Hugging Face libraries off the user's screen."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def foreign(failure: str) -> Iterator[None]:
    """Run library code quietly; whatever it raises becomes ``LoadError("<failure>: <why>")``."""
    try:
        with quietly():
            yield
    except AttnvizError:
        raise
    except Exception as error:  # a damaged file raises anything, tokenizers even Exception itself
        raise LoadError(f"{failure}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """A library's message without line breaks and controls, cut where it grows too long."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(character if character.isprintable() else "\ufffd" for character in words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
