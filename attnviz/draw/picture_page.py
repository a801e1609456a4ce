"""Writes pictures with the weights of their patches for a page: images, and SVG above them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from attnviz.draw.document import Picture, Pictures
from attnviz.draw.drawing import Drawing
from attnviz.draw.map_figure import scale_figure
from attnviz.draw.picture_figure import overlay
from attnviz.draw.pixels import drawn_pixels, picture_size
from attnviz.draw.svg import data_uri, picture_png, safe, svg_element

_SHOWN = (("100", "strong"), ("50", "faint"), ("0", "hidden"))
"""How strongly weights are drawn: the values that ``document.css`` knows, and their names."""


def pictures_element(part: Pictures, palette: str) -> Iterator[str]:
    """Yield pictures that are not small with their words, and a choice how weights are drawn."""
    if part.scale is not None:
        scale = svg_element(scale_figure(part.scale), palette)
        yield f'<div class="scroll" tabindex="0">{scale}</div>'
    yield '<div class="pictures">'
    if any(shown.weights is not None for shown in part.pictures):
        words = "".join(shown.alternative for shown in part.pictures) + str(part.title)
        name = f"veil-{zlib.crc32(words.encode('utf-8', 'replace')):x}"
        yield "<fieldset><legend>Weights</legend>"
        for value, said in _SHOWN:
            checked = ' checked="checked"' * (value == _SHOWN[0][0])
            field = f'<input type="radio" name="{name}" value="{value}"{checked}/>'
            yield f"<label>{field} {said}</label>"
        yield "</fieldset>"
    yield '<div class="maps">'
    for shown in part.pictures:
        yield from _figure(shown, palette)
    yield "</div></div>"


def _figure(shown: Picture, palette: str) -> Iterator[str]:
    wide, high = size = picture_size(shown.pixels)
    address = data_uri(picture_png(drawn_pixels(shown.pixels, size)))
    sides = f'width="{wide}" height="{high}"'
    yield f'<figure style="width:{max(wide, 180)}px"><div class="picture">'
    yield f'<img alt="{safe(shown.alternative)}" src="{address}" {sides}/>'
    if shown.weights is not None:
        above = Drawing("weights", wide, high, tuple(overlay(shown, size, tips=True)))
        yield f'<div aria-hidden="true">{svg_element(above, palette)}</div>'
    title, *remarks = shown.words or [("", False)]
    rest = safe(" · ".join(text for text, _ in remarks))
    below = safe(" · ".join(text for text, _ in shown.below))
    lines = filter(None, (f"<b>{safe(title[0])}</b>" * bool(title[0]), rest, below))
    yield f"</div><figcaption>{'<br/>'.join(lines)}</figcaption></figure>"
