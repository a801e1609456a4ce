"""The options of ``attnviz check``, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option


@dataclass(frozen=True)
class Rules(Options):
    """The file of rules, and what is done with it."""

    file: Path = argument("FILE", "Rules in TOML; see attnviz docs check.", ...)
    init: bool = flag("Write FILE and its baseline from what the model does now.")
    force: bool = flag("With --init: overwrite both.")
    update: bool = flag("Renew the baselines that FILE names; FILE stays.")

    def __post_init__(self) -> None:
        if self.init and self.update:
            raise UsageError("--init writes rules, --update renews baselines: give one of the two")
        if self.force and not self.init:
            raise UsageError("--force is for --init, which overwrites nothing without it")


@dataclass(frozen=True)
class CheckedModel(Options, panel="Model"):
    """The model that is checked."""

    model: str | None = option(
        "NAME",
        "In place of the file's model: tiny, mha, a directory, a Hugging Face id.",
        short="-m",
        autocompletion=shared.complete_model,
    )
    seed: int = option("N", "Random seed (weights, random tokens).", 0, min=0)


@dataclass(frozen=True)
class Junit(Options, panel="Output"):
    """A file for CI."""

    junit: Path | None = option("FILE", "Write JUnit XML, a test case a rule.")
