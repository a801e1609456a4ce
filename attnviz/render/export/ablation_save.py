"""``attnviz ablate --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from attnviz.ablation import AblationReport
from attnviz.render.ablation.view import AblationView
from attnviz.render.export.ablation_csv import write_ablation_csv
from attnviz.render.export.ablation_json import write_ablation_json
from attnviz.render.export.ablation_page import write_ablation_html, write_ablation_svg
from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_text

__all__ = ["SAVED", "check_save_path", "save_ablation"]

SAVED = (".json", ".csv", ".svg", ".html", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_ablation`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def save_ablation(
    report: AblationReport, view: AblationView, path: Path, palette: str, screen_text: str
) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_ablation_json, report, view),
        ".csv": partial(write_ablation_csv, report),
        ".svg": partial(write_ablation_svg, report, view, palette),
        ".html": partial(write_ablation_html, report, view, palette),
        ".txt": lambda out: out.write(screen_text),
    }
    save_text(path, writers[path.suffix.lower()])
