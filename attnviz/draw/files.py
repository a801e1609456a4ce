"""A report in a file, whole or not at all, in the format that the ending of the name says."""

from __future__ import annotations

import codecs
import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attnviz.draw.labels import visible
from attnviz.draw.whole_file import check_writable, whole_file
from attnviz.errors import LoadError, UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document

__all__ = [
    "TextWriter",
    "Writer",
    "check_path",
    "document_files",
    "save",
    "table_file",
    "text_file",
]

Writer = Callable[[BinaryIO], object]
"""Writes one kind of file."""

TextWriter = Callable[["SupportsWrite[str]"], object]
"""Writes one kind of text."""

_PLOTTED = (".png", ".pdf")


def text_file(write: TextWriter) -> Writer:
    """A file in UTF-8; half of a surrogate pair is written as an escape."""
    return lambda stream: write(codecs.getwriter("utf-8")(stream, "backslashreplace"))


def table_file(rows: Callable[[], Iterable[Iterable[object]]]) -> Writer:
    """A CSV file; the first row is the header."""

    def write(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.values import CsvTable

        CsvTable(stream).writerows(rows())

    return text_file(write)


def document_files(document: Callable[[], Document], palette: str) -> dict[str, Writer]:
    """What writes a document, by the ending of the name; each imports what it draws with."""

    def lines(pieces: Callable[[], Iterable[str]], stream: SupportsWrite[str]) -> None:
        for piece in pieces():
            stream.write(f"{piece}\n")

    def html() -> Iterator[str]:
        from attnviz.draw.html import document_html

        return document_html(document(), palette)

    def markdown() -> Iterator[str]:
        from attnviz.draw.markdown import document_markdown

        return document_markdown(document())

    def svg(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.figure import document_drawing
        from attnviz.draw.svg import svg_document

        stream.write(svg_document(document_drawing(document()), palette))

    def plot(stream: BinaryIO, form: str) -> None:
        from attnviz.draw.drawing_plot import write_drawing
        from attnviz.draw.figure import document_drawing

        write_drawing(document_drawing(document()), palette, stream, form)

    return {
        ".html": text_file(partial(lines, html)),
        ".md": text_file(partial(lines, markdown)),
        ".svg": text_file(svg),
        **{ending: partial(plot, form=ending.removeprefix(".")) for ending in _PLOTTED},
    }


def check_path(path: Path, endings: Collection[str]) -> None:
    """Raise one line if ``path`` could not be written; cheap, so that it can come first.

    UsageError for an ending that is not among ``endings`` or something that is no file; LoadError
    for a missing or closed directory, a closed file, or a picture without matplotlib.
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
    check_writable(path)


def save(path: Path, writers: Mapping[str, Writer]) -> None:
    """Write a file by the ending of its name, whole or not at all.

    Raises what ``check_path`` raises, and LoadError where the system refuses on the way.
    """
    check_path(path, writers)
    with whole_file(path) as stream:
        writers[path.suffix.lower()](stream)
