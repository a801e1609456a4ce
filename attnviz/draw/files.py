"""Writes a report to a file, whole or not at all, in the format of the file name's ending.

A text in CSV stays as it is, so that a reader gets it back, even if a spreadsheet would take it for
a formula: nothing is put before ``=cmd``. Only characters that act on a terminal through ``cat``,
or that break a row, are written as in JSON: ``\\u001b`` for escape, ``\\u000d`` for a carriage
return, and ``\\u005c`` for a backslash that begins such a text by itself. ``\\u`` and four
hexadecimal digits always mean that, so that replacing them gives every text back. Line feeds and
tabs stay.
"""

from __future__ import annotations

import codecs
import csv
import importlib.util
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attnviz.draw.labels import visible
from attnviz.draw.whole_file import check_writable, whole_file
from attnviz.errors import LoadError, UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.drawing import Drawing

Writer = Callable[[BinaryIO], object]
"""Writes one kind of file."""

TextWriter = Callable[["SupportsWrite[str]"], object]
"""Writes one kind of text."""

_PLOTTED = (".png", ".pdf")
_SLIDE = 1920  # the columns of pixels of a slide


_ACTING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    r"|\\(?=u[0-9a-f]{4})"
)


def csv_text(text: str) -> str:
    """Return a text with control and direction characters escaped, such as ``\\u202e``."""
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class CsvTable:
    """Writes rows of CSV to a stream; strings in them are escaped by ``csv_text``."""

    def __init__(self, stream: SupportsWrite[str]) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")

    def writerow(self, cells: Iterable[object]) -> None:
        self._writer.writerow(csv_text(cell) if isinstance(cell, str) else cell for cell in cells)

    def writerows(self, rows: Iterable[Iterable[object]]) -> None:
        for row in rows:
            self.writerow(row)


def text_file(write: TextWriter) -> Writer:
    """Return a function that writes text to a binary stream in UTF-8, half surrogates escaped."""
    return lambda stream: write(codecs.getwriter("utf-8")(stream, "backslashreplace"))


def document_files(
    document: Callable[[], Document], palette: str, slide: bool = False
) -> dict[str, Writer]:
    """Return by file ending the functions that write a document to a stream.

    document: returns the document, when it is needed. slide: whether a picture is a slide of 16 to
        9, not the whole document. palette: the name of the colours of cells.
    """

    def drawing() -> Drawing:
        from attnviz.draw.figure import document_drawing, slide_drawing

        return slide_drawing(document(), palette) if slide else document_drawing(document())

    def html(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.html import document_html

        for piece in document_html(document(), palette):
            stream.write(f"{piece}\n")

    def markdown(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.markdown import document_markdown

        for piece in document_markdown(document()):
            stream.write(f"{piece}\n")

    def svg(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.svg import svg_document

        stream.write(svg_document(drawing(), palette))

    def plot(stream: BinaryIO, form: str) -> None:
        from attnviz.draw.drawing_plot import write_drawing

        write_drawing(drawing(), palette, stream, form, wide=_SLIDE if slide else 0)

    return {
        ".html": text_file(html),
        ".md": text_file(markdown),
        ".svg": text_file(svg),
        **{ending: partial(plot, form=ending.removeprefix(".")) for ending in _PLOTTED},
    }


def check_path(path: Path, endings: Collection[str]) -> None:
    """Raise an error if ``path`` could not be written; this is cheap, so that it can come first.

    endings: the allowed endings of file names, such as ``.json``.
    Raises UsageError for another ending or a path that is not a file, LoadError for a directory
    that is missing or not writable, a file that is not writable, or a picture without matplotlib.
    """
    ending = path.suffix.lower()
    if ending not in endings:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(endings)}"
        )
    if ending in _PLOTTED and importlib.util.find_spec("matplotlib") is None:
        raise LoadError(
            "PNG and PDF are drawn by matplotlib, which is not installed: "
            "pip install 'attnviz[plot]', or save as .svg or .html"
        )
    check_writable(path, named=True)


def save(path: Path, writers: Mapping[str, Writer]) -> None:
    """Write a file in the format of its name's ending, whole or not at all.

    writers: by ending, the functions that write to a stream.
    Raises what ``check_path`` raises, and LoadError if writing fails.
    """
    check_path(path, writers)
    with whole_file(path, named=True) as stream:
        writers[path.suffix.lower()](stream)
