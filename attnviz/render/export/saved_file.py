"""A result in a file, whole or not at all: as text, or as a page that is drawn."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.render.export.drawing_plot import write_drawing_png
from attnviz.render.export.sections import Page, page_drawing, page_html
from attnviz.render.export.svg import svg_document
from attnviz.render.export.whole_file import whole_file

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["TextWriter", "save_page", "save_text"]

TextWriter = Callable[["SupportsWrite[str]"], object]
"""Writes one kind of text to a stream."""


def save_text(path: Path, write: TextWriter) -> None:
    """A file in UTF-8; half of a surrogate pair is written as an escape.

    Raises LoadError where the system refuses.
    """
    with whole_file(path) as stream:
        write(codecs.getwriter("utf-8")(stream, "backslashreplace"))


def save_page(path: Path, page: Page, palette: str, tables: Sequence[str] = ()) -> None:
    """A ``.html``, ``.svg`` or ``.png``, as the name says; ``tables`` are for HTML alone.

    Raises LoadError where the system refuses, or matplotlib is missing for a ``.png``.
    """
    ending = path.suffix.lower()
    if ending == ".png":
        with whole_file(path) as stream:
            write_drawing_png(page_drawing(page), palette, stream)
    elif ending == ".html":
        pieces = [f"{piece}\n" for piece in page_html(page, palette, tables)]
        save_text(path, lambda out: out.write("".join(pieces)))
    else:
        save_text(path, lambda out: out.write(svg_document(page_drawing(page), palette)))
