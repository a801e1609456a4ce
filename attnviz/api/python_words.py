"""Errors in the words of Python: the layers below name an option as the command line does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.errors import AttnvizError

__all__ = ["in_python_words"]

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@contextmanager
def in_python_words() -> Iterator[None]:
    """Let the same error pass with ``truncate=`` in its message where ``--truncate`` stood."""
    try:
        yield
    except AttnvizError as error:
        error.args = (_OPTION.sub(_keyword, str(error)), *error.args[1:])
        raise


def _keyword(option: re.Match[str]) -> str:
    return option[1].replace("-", "_") + "="
