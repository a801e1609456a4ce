"""Where the result of a command goes, and what it may use there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.terminal import ColourChoice

__all__ = ["SCREEN_ENDING", "Output"]

SCREEN_ENDING = ".txt"
"""The file that holds the screen itself."""


@dataclass(frozen=True)
class Output:
    """The options of the same names."""

    json: bool = False
    save: tuple[Path, ...] = ()
    palette: str = "viridis"
    colour: ColourChoice = "auto"
    ascii: bool = False
    width: int | None = None
    quiet: bool = False

    @property
    def drawn(self) -> bool:
        """Whether a screen is needed at all."""
        return not self.json or any(path.suffix.lower() == SCREEN_ENDING for path in self.save)
