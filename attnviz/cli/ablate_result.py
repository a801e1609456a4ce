"""A finished scan, ready for the screen, for a program or for a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.ablation import AblationReport
from attnviz.render.ablation.screen import ablation_screen
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import Block
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Scanned", "check_path"]


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

    def save(self, path: Path, palette: str, screen_text: str) -> None:
        from attnviz.render.export.ablation_save import save_ablation

        save_ablation(self.report, self.view, path, palette, screen_text)


def check_path(path: Path) -> None:
    """Refuse a file that the report cannot be saved in."""
    from attnviz.render.export.ablation_save import check_save_path

    check_save_path(path)
