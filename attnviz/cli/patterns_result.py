"""Labelled heads, ready for the screen, for a program or for a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.patterns import PatternReport
from attnviz.render.blocks import Block
from attnviz.render.patterns.screen import patterns_screen
from attnviz.render.patterns.view import PatternView
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Labelled", "check_path"]


@dataclass(frozen=True)
class Labelled:
    """A report and how it is to be seen."""

    report: PatternReport
    view: PatternView

    def screen(self, theme: Theme, console: Console) -> Block:
        return patterns_screen(self.report, self.view, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.patterns_json import write_patterns_json

        write_patterns_json(self.report, self.view, stream)

    def save(self, path: Path, palette: str, screen_text: str) -> None:
        from attnviz.render.export.patterns_save import save_patterns

        save_patterns(self.report, self.view, path, palette, screen_text)


def check_path(path: Path) -> None:
    """Refuse a file that the report cannot be saved in."""
    from attnviz.render.export.patterns_save import check_save_path

    check_save_path(path)
