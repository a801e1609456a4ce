"""``--save FILE.svg``: the whole report as one self-contained drawing."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from attnviz.records import HeadsReport
from attnviz.render.export.drawing import Drawing, Item, Label, Style, flow
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import map_drawing
from attnviz.render.export.overview_figure import overview_drawing, pooling_words
from attnviz.render.export.svg import svg_document
from attnviz.render.export.words import mapped_heads, run_lines, text_lines
from attnviz.render.labels import cut, visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_heads_svg"]

_MARGIN = 28
_SECTION_GAP = 22
_MAP_GAP = 32
_MAPS_ROOM = 1400
_LEAST_ROOM = 720
_LETTER = {"title": 9.0, "faint": 6.2}  # the mean width of a character
_LINE = {"title": 22.0, "heading": 18.0, "faint": 16.0}


def _paragraph(lines: list[tuple[Style, str]], room: float) -> Drawing:
    """Lines of text below each other."""
    items: list[Item] = []
    y = 0.0
    for style, line in lines:
        y += _LINE[style]
        items.append(Label(0, y - 4, line, style))
    return Drawing("text", room, y, tuple(items))


def _top(report: HeadsReport, text: str, target: str | None, room: float) -> Drawing:
    """What was read, cut to a line, and provenance, broken into lines but never cut."""
    first, *rest = text_lines(text, target)
    lines: list[tuple[Style, str]] = [("title", cut(visible(first), int(room / _LETTER["title"])))]
    cells = int(room / _LETTER["faint"])
    lines += [("faint", cut(visible(line), cells)) for line in rest]
    for line in run_lines(report):
        lines += [("faint", piece) for piece in textwrap.wrap(visible(line), cells)]
    return _paragraph(lines, room)


def _stack(name: str, sections: list[Drawing], gap: float, margin: float = 0) -> Drawing:
    parts: list[tuple[float, float, Drawing]] = []
    y = margin
    for section in sections:
        parts.append((margin, y, section))
        y += section.height + gap
    width = max(section.width for section in sections)
    return Drawing(name, width + 2 * margin, y - gap + margin, parts=tuple(parts))


def _page(report: HeadsReport, text: str, target: str | None, palette: str) -> Drawing:
    overview = None if report.selected else overview_drawing(report)
    room = max(_MAPS_ROOM, overview.width if overview else 0)
    maps = [map_drawing(report, scores, palette) for scores in mapped_heads(report)]
    body = flow("maps", maps, room, _MAP_GAP)
    room = max(_LEAST_ROOM, body.width, overview.width if overview else 0)
    sections = [_top(report, text, target, room), legend_drawing()]
    if overview:
        words: list[tuple[Style, str]] = [("heading", "All heads")]
        if pooling := pooling_words(report):
            words.append(("faint", pooling))
        sections.append(_stack("all heads", [_paragraph(words, room), overview], 10))
        telling = _paragraph([("heading", "The most telling heads")], room)
        body = _stack("telling heads", [telling, body], 12)
    name = f"attention heads of {report.record.model.name}"
    return _stack(name, [*sections, body], _SECTION_GAP, _MARGIN)


def write_heads_svg(
    report: HeadsReport, text: str, target: str | None, palette: str, stream: SupportsWrite[str]
) -> None:
    """Write provenance, a colour bar, the overview (unless heads were chosen) and full maps."""
    stream.write(svg_document(_page(report, text, target, palette), palette))
