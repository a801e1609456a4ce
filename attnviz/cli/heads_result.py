"""What ``attnviz heads`` has found, ready for the screen, for a program or for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.records import HeadsComparison, HeadsReport
from attnviz.render.blocks import Block
from attnviz.render.screen import View, heads_screen
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["Compared", "Single"]


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

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.heads_files import heads_files

        return heads_files(self.report, self.view.text, self.view.target, palette)


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

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.comparison_page import comparison_files

        return comparison_files(self.comparison, self.views[0].text, self._target, palette)

    @property
    def _target(self) -> str | None:
        """The text of the runs that have one."""
        return next((view.target for view in self.views if view.target is not None), None)
