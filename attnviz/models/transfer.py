"""Tells a callback how a download proceeds, in the place of the client's own progress bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Progress", "progress_bar"]

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(file, done, total)`` with bytes; total is None where it is not known."""

_RESTARTS = 2


def progress_bar(file: str, progress: Progress | None) -> Any:
    """A class that takes the place of tqdm for the transfer of one file, and prints nothing."""

    class Bar(_Bar):
        def _tell(self) -> None:
            if progress is not None:
                progress(file, self.n, self.total)

    return Bar


class _Bar:
    """The part of tqdm's interface that huggingface_hub uses."""

    def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
        self.total = total
        self.n = initial
        self._restarts = 0
        self._tell()

    def _tell(self) -> None:
        raise NotImplementedError

    def update(self, step: float | None = 1) -> None:
        """Count ``step`` bytes; a transfer that starts anew again and again is given up.

        The client counts its attempts from zero whenever a byte arrives, so that a server that
        breaks off and cannot resume would keep it busy for ever.
        """
        step = int(step or 0)
        if step < 0 or (self.total is not None and self.n + step > self.total):
            self._restarts += 1
            if self._restarts > _RESTARTS:
                raise ConnectionAbortedError("it broke off again and again")
        self.n = self.n + step if step < 0 else min(self.n + step, self.total or self.n + step)
        self._tell()

    def update_transfer(self, step: int) -> None:
        """Bytes on the wire, beside the bytes of the file: not shown."""

    def set_postfix_str(self, *_: object, **__: object) -> None:
        """The client's own idea of the speed: not shown."""

    set_transfer_postfix_str = set_postfix_str

    def refresh(self) -> None:
        """Nothing is drawn here."""

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
