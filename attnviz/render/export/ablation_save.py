"""``attnviz ablate --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

from attnviz.ablation import AblationReport
from attnviz.errors import UsageError
from attnviz.render.ablation.view import AblationView
from attnviz.render.export.ablation_csv import write_ablation_csv
from attnviz.render.export.ablation_json import write_ablation_json
from attnviz.render.export.ablation_page import write_ablation_html, write_ablation_svg
from attnviz.render.export.whole_file import check_writable, whole_file
from attnviz.render.labels import visible

__all__ = ["SAVED", "check_save_path", "save_ablation"]

SAVED: Sequence[str] = (".json", ".csv", ".svg", ".html", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_ablation`` could not write ``path``; cheap, so it can come first.

    UsageError for an unknown ending or something that is no file; LoadError for a missing or closed
    directory or a closed file.
    """
    if path.suffix.lower() not in SAVED:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(SAVED)}"
        )
    check_writable(path)


def save_ablation(
    report: AblationReport, view: AblationView, path: Path, palette: str, screen_text: str
) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        text = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_ablation_json(report, view, text)
        elif ending == ".csv":
            write_ablation_csv(report, text)
        elif ending == ".svg":
            write_ablation_svg(report, view, palette, text)
        elif ending == ".html":
            write_ablation_html(report, view, palette, text)
        else:
            text.write(screen_text)
