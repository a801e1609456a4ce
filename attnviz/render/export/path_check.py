"""Whether a file can be written, told by its name before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnviz.errors import UsageError
from attnviz.render.export.heads_plot import require_matplotlib
from attnviz.render.export.whole_file import check_writable
from attnviz.render.labels import visible

__all__ = ["check_path"]


def check_path(path: Path, endings: Sequence[str]) -> None:
    """Raise one line if ``path`` could not be written; cheap, so that it can come first.

    UsageError for an ending that is not among ``endings`` or something that is no file; LoadError
    for a missing or closed directory, a closed file, or a picture without matplotlib.
    """
    if path.suffix.lower() not in endings:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(endings)}"
        )
    if path.suffix.lower() == ".png":
        require_matplotlib()
    check_writable(path)
