"""The options of ``check``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.options import Options, Seed, flag


@dataclass(frozen=True)
class _Writing(Options):
    init: bool = flag("Write FILE and its baseline from the model as it is now.")
    force: bool = flag("With --init: overwrite FILE and its baseline.")
    update: bool = flag("Update the baselines that FILE names; FILE is not changed.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init and self.update:
            raise UsageError("--init writes rules, --update renews baselines: give one of the two")
        if self.force and not self.init:
            raise UsageError("--force is for --init, which overwrites nothing without it")


@dataclass(frozen=True)
class CheckRequest(_Writing, Seed):
    """All options of ``check``."""
