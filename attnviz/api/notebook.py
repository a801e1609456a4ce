"""A page in a notebook: in a frame of its own, so that neither's styles reach the other."""

from __future__ import annotations

from html import escape

from attnviz.draw.document import Document, Group, Table
from attnviz.draw.figure import document_drawing
from attnviz.draw.html import document_html
from attnviz.draw.map_figure import map_drawing
from attnviz.draw.page import page_html
from attnviz.draw.words import mapped_heads
from attnviz.heads.overview_figure import overview_drawing
from attnviz.heads.page import heads_page
from attnviz.records import HeadsReport

__all__ = ["framed_document", "framed_page"]

_ABOUT, _TABLE_ROW, _GAP = 260, 30, 40
_WIDTH = 1000  # of a notebook's output, about
_LEAST, _MOST = 360, 1000


def framed_document(document: Document, palette: str) -> str:
    """The page of a document as an element that runs no script and loads nothing.

    It is as high as its content, within reason, and can be pulled larger.
    """
    page = "".join(f"{piece}\n" for piece in document_html(document, palette))
    lines = sum(_lines(group) for group in document.groups if group.full)
    height = document_drawing(document).height + _TABLE_ROW * lines
    return (
        f'<iframe sandbox="" title="{escape(document.name)}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {int(min(max(height, _LEAST), _MOST))}px; border: 0; '
        'resize: vertical; overflow: auto"></iframe>'
    )


def _lines(group: Group) -> int:
    """Of the tables that only pages have."""
    return sum(len(part.rows) + 2 for part in group.parts if isinstance(part, Table))


def framed_page(report: HeadsReport, text: str, target: str | None, palette: str) -> str:
    """The page of ``--save FILE.html`` as an element that runs no script and loads nothing.

    It is as high as its figures, within reason, and can be pulled larger.
    """
    pieces = page_html(heads_page(report, text, target, palette), palette)
    page = "".join(f"{piece}\n" for piece in pieces)
    return (
        f'<iframe sandbox="" title="attention heads" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {_height(report, palette)}px; border: 0; '
        'resize: vertical; overflow: auto"></iframe>'
    )


def _height(report: HeadsReport, palette: str) -> int:
    """About the pixels of the page: its figures in rows, and the table's lines."""
    height, across = float(_ABOUT), 0.0
    if not report.selected:
        height += overview_drawing(report).height + _GAP
    for scores in mapped_heads(report):
        drawn = map_drawing(report, scores, palette)
        if across == 0.0 or across + drawn.width > _WIDTH:
            height, across = height + drawn.height + _GAP, 0.0
        across += drawn.width + _GAP
    height += _TABLE_ROW * (len(report.heads) + 2)
    return int(min(max(height, _LEAST), _MOST))
