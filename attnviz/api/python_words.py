"""Errors in the words of Python: the layers below name an option as the command line does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.errors import AttnvizError

__all__ = ["in_python_words"]

_FLAGS = {"truncate", "causal", "offline", "trust_remote_code", "allow_pickle"}
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@contextmanager
def in_python_words() -> Iterator[None]:
    """Let the same error pass: ``head=`` for ``--head``, ``truncate=True`` for ``--truncate``."""
    try:
        yield
    except AttnvizError as error:
        error.args = (_OPTION.sub(_keyword, str(error)), *error.args[1:])
        raise


def _keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return f"{name}=True" if name in _FLAGS else f"{name}="
