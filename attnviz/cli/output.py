"""Where the result of a command goes, and what it may use there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from attnviz.cli.groups import Options, flag, option

__all__ = ["EVERY", "SCREEN_ENDING", "ColourChoice", "Output", "saved"]

SCREEN_ENDING = ".txt"
"""The file that holds the screen itself."""

EVERY = ".json .csv .md .txt .html .svg .png .pdf"
"""What every report can be written as."""

ColourChoice = Literal["auto", "always", "never"]


def saved(endings: str) -> Any:
    """``--save`` of a command that writes files of these endings."""
    told = f"Write a file by its ending: {endings}; may be repeated."
    return option("FILE", told, (), endings=tuple(endings.split()))


@dataclass(frozen=True)
class Output(Options, panel="Output"):
    """The options of the same names."""

    json: bool = flag("Print one JSON object.")
    save: tuple[Path, ...] = saved(EVERY)
    palette: Literal["viridis", "magma", "blues", "grey"] = option(
        "NAME", "Colours: viridis, magma, blues or grey.", "viridis"
    )
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR and pipes), always or never.", "auto", name="--color"
    )
    ascii: bool = flag("Draw with ASCII only.")
    width: int | None = option(
        "COLUMNS", "Columns to draw in (default: the terminal's, 80 in a pipe)."
    )
    explain: bool = flag("Add a reading for newcomers.")
    quiet: bool = flag("No progress, notices or hints.", short="-q")

    @property
    def endings(self) -> tuple[str, ...]:
        """Those of the files that the command writes."""
        (found,) = (one.metadata["endings"] for one in fields(self) if one.name == "save")
        return tuple(found)

    @property
    def drawn(self) -> bool:
        """Whether a screen is needed at all."""
        return not self.json or any(path.suffix.lower() == SCREEN_ENDING for path in self.save)
