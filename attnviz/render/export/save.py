"""``--save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from attnviz.errors import UsageError
from attnviz.records import HeadsReport
from attnviz.render.export.heads_arrays import write_heads_npz, write_heads_safetensors
from attnviz.render.export.heads_csv import write_heads_csv
from attnviz.render.export.heads_html import write_heads_html
from attnviz.render.export.heads_json import write_heads_json
from attnviz.render.export.heads_plot import require_matplotlib, write_heads_plot
from attnviz.render.export.heads_svg import write_heads_svg
from attnviz.render.export.whole_file import check_writable, whole_file
from attnviz.render.labels import visible

__all__ = ["SAVE_FORMATS", "SaveRequest", "Saver", "check_save_path", "save", "saver", "write_text"]


@dataclass(frozen=True)
class SaveRequest:
    """What a file may hold besides the weights.

    text, target: what was read.
    palette: the colours of figures.
    screen_text: the terminal's screen without colour, for ``.txt``.
    """

    text: str
    target: str | None = None
    palette: str = "viridis"
    screen_text: str = ""


Saver = Callable[[HeadsReport, SaveRequest, BinaryIO], None]
"""Writes one kind of file to a stream."""


def _text(stream: BinaryIO) -> codecs.StreamWriter:
    """UTF-8 text on a binary stream; half of a surrogate pair is written as an escape."""
    return codecs.getwriter("utf-8")(stream, "backslashreplace")


def _json(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_json(report, request.text, request.target, _text(stream))


def _csv(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_csv(report, _text(stream))


def _npz(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_npz(report, request.text, request.target, stream)


def _safetensors(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_safetensors(report, request.text, request.target, stream)


def _svg(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_svg(report, request.text, request.target, request.palette, _text(stream))


def _html(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    write_heads_html(report, request.text, request.target, request.palette, _text(stream))


def _plot(form: Literal["png", "pdf"]) -> Saver:
    def write(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
        write_heads_plot(report, request.text, request.target, request.palette, stream, form)

    return write


def _txt(report: HeadsReport, request: SaveRequest, stream: BinaryIO) -> None:
    stream.write(_plain(request.screen_text))


SAVE_FORMATS: Mapping[str, Saver] = {
    ".json": _json,
    ".csv": _csv,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".svg": _svg,
    ".html": _html,
    ".txt": _txt,
    ".png": _plot("png"),
    ".pdf": _plot("pdf"),
}
"""What writes a file, by the ending of its name in lower case."""

_PLOTTED = {".png", ".pdf"}


def saver(path: str | os.PathLike[str]) -> Saver:
    """What writes files that end like ``path``. UsageError for an unknown ending."""
    found = SAVE_FORMATS.get(Path(path).suffix.lower())
    if found is None:
        known = ", ".join(SAVE_FORMATS)
        shown = visible(str(path))
        raise UsageError(
            f"cannot tell from the name {shown} what to save: end it in one of {known}"
        )
    return found


def check_save_path(path: str | os.PathLike[str]) -> None:
    """Raise one line if ``save`` could not write ``path``; cheap, so that it can come first.

    UsageError for an unknown ending or something that is no file; LoadError for a missing or
    closed directory, a closed file, or a picture without matplotlib.
    """
    saver(path)
    if Path(path).suffix.lower() in _PLOTTED:
        require_matplotlib()
    check_writable(Path(path))


def save(
    report: HeadsReport,
    path: str | os.PathLike[str],
    *,
    text: str,
    target: str | None = None,
    palette: str = "viridis",
    screen_text: str = "",
) -> None:
    """Write a report to a file whose ending says how, whole or not at all.

    ``screen_text`` is what a ``.txt`` holds; the other formats do not need it. Raises what
    ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    request = SaveRequest(text, target, palette, screen_text)
    with whole_file(Path(path)) as stream:
        saver(path)(report, request, stream)


def _plain(text: str) -> bytes:
    return (text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a screen as plain UTF-8 text, whole or not at all."""
    check_writable(Path(path))
    with whole_file(Path(path)) as stream:
        stream.write(_plain(text))
