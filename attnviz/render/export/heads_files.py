"""What writes the heads of one run to a file, by the ending of its name."""

from __future__ import annotations

from functools import partial

from attnviz.records import HeadsReport
from attnviz.render.export.files import Writer, page_files, text_file
from attnviz.render.export.heads_arrays import write_heads_npz, write_heads_safetensors
from attnviz.render.export.heads_csv import write_heads_csv
from attnviz.render.export.heads_json import write_heads_json
from attnviz.render.export.heads_page import heads_page

__all__ = ["heads_files"]


def heads_files(
    report: HeadsReport, text: str, target: str | None, palette: str
) -> dict[str, Writer]:
    """All but the screen; ``palette`` colours the pictures."""
    return {
        ".json": text_file(partial(write_heads_json, report, text, target)),
        ".csv": text_file(partial(write_heads_csv, report)),
        ".npz": partial(write_heads_npz, report, text, target),
        ".safetensors": partial(write_heads_safetensors, report, text, target),
        **page_files(partial(heads_page, report, text, target, palette), palette),
    }
