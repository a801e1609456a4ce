"""A finished scan, ready for the screen, for a program or for a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.ablation import AblationReport
from attnviz.render.ablation.screen import ablation_screen
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import Block
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["Scanned"]


@dataclass(frozen=True)
class Scanned:
    """A report and how it is to be seen."""

    report: AblationReport
    view: AblationView

    def screen(self, theme: Theme, console: Console) -> Block:
        return ablation_screen(self.report, self.view, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.ablation_json import write_ablation_json

        write_ablation_json(self.report, self.view, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.ablation_csv import write_ablation_csv
        from attnviz.render.export.ablation_page import ablation_page
        from attnviz.render.export.files import page_files, text_file

        csv = text_file(partial(write_ablation_csv, self.report))
        page = partial(ablation_page, self.report, self.view, palette)
        return {".csv": csv, **page_files(page, palette)}
