"""What ``attnviz heads`` has found, ready for the screen, for a program or for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.records import HeadsComparison, HeadsReport
from attnviz.render.blocks import Block
from attnviz.render.screen import View, heads_screen
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Compared", "Single", "check_path"]


@dataclass(frozen=True)
class Single:
    """One run."""

    report: HeadsReport
    view: View

    def screen(self, theme: Theme, console: Console) -> Block:
        return heads_screen(self.report, self.view, theme, console.width, console.height)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.heads_json import write_heads_json

        write_heads_json(self.report, self.view.text, self.view.target, stream)

    def save(self, path: Path, palette: str, screen_text: str) -> None:
        from attnviz.render.export.save import save

        save(
            self.report,
            path,
            text=self.view.text,
            target=self.view.target,
            palette=palette,
            screen_text=screen_text,
        )


@dataclass(frozen=True)
class Compared:
    """Several runs; a view of each."""

    comparison: HeadsComparison
    views: Sequence[View]

    def screen(self, theme: Theme, console: Console) -> Block:
        from attnviz.render.comparison import comparison_screen

        return comparison_screen(self.comparison, self.views, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.comparison_data import write_comparison_json

        write_comparison_json(self.comparison, self.views[0].text, self._target, stream)

    def save(self, path: Path, palette: str, screen_text: str) -> None:
        from attnviz.render.export.comparison_save import save_comparison

        save_comparison(
            self.comparison,
            path,
            text=self.views[0].text,
            target=self._target,
            palette=palette,
            screen_text=screen_text,
        )

    @property
    def _target(self) -> str | None:
        """The text of the runs that have one."""
        return next((view.target for view in self.views if view.target is not None), None)


def check_path(path: Path) -> None:
    """Refuse a file that heads cannot be saved in."""
    from attnviz.render.export.save import check_save_path

    check_save_path(path)
