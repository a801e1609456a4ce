"""Labelled heads, ready for the screen, for a program or for a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.patterns import PatternReport
from attnviz.render.blocks import Block
from attnviz.render.patterns.screen import patterns_screen
from attnviz.render.patterns.view import PatternView
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["Labelled"]


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

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.files import page_files, text_file
        from attnviz.render.export.patterns_csv import write_patterns_csv
        from attnviz.render.export.patterns_page import patterns_page

        csv = text_file(partial(write_patterns_csv, self.report, self.view))
        page = partial(patterns_page, self.report, self.view, palette)
        return {".csv": csv, **page_files(page, palette)}
