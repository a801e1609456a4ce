"""Writes a drawing as SVG that needs nothing else: no font, script, style or file."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.drawing import Cells, Drawing, Filled, Image, Label, Rectangle, Stroke
from attnviz.draw.labels import visible
from attnviz.draw.palette import on_grounds, paper_table, to_hex, veils


def picture_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode a picture (rows, columns, 3) as a PNG image: each line as what the one above lacks."""
    rows, columns = pixels.shape[:2]
    lines = np.diff(pixels.reshape(rows, -1), axis=0, prepend=np.uint8(0))
    return _png((rows, columns), 2, np.insert(lines, 0, 2, axis=1))  # 2 means that filter


def _png(
    size: tuple[int, int],
    kind: int,
    lines: NDArray[np.uint8],
    about: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return a PNG image. size: (rows, columns). kind: of its colours. about: chunks before them.

    lines: the bytes of each line, the first of which names its filter.
    """
    written = b"\x89PNG\r\n\x1a\n"
    for name, content in (
        (b"IHDR", struct.pack(">II", *size[::-1]) + bytes((8, kind, 0, 0, 0))),
        *about,
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ):
        checksum = zlib.crc32(name + content)
        written += struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
    return written


def png_uri(steps: NDArray[np.intp], palette: str) -> str:
    """Return a map as a ``data:`` address of a PNG image, which an HTML page can contain.

    steps: (rows, columns), the colour level of each cell; −1 is transparent. palette: its name.
    An image has 256 entries, and transparency needs one: levels 0 and 1, whose colours look the
    same, share an entry.
    """
    table = bytes(np.array(paper_table(palette), dtype=np.uint8))
    entries = np.where(steps < 0, 0, np.maximum(steps, 1)).astype(np.uint8)
    lines = np.insert(entries, 0, 0, axis=1)  # 0 means no filter
    chunks = (b"PLTE", table), (b"tRNS", b"\0")
    return data_uri(_png((steps.shape[0], steps.shape[1]), 3, lines, chunks))


def data_uri(image: bytes) -> str:
    """Return a PNG image as a ``data:`` address."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")


STYLE = "\n" + (Path(__file__).parent / "page" / "drawing.css").read_text("utf-8")

_MONO = ";font:{} 16px 'DejaVu Sans Mono','Noto Sans Mono CJK KR',monospace;white-space:pre"
_FONTS = {"mono": _MONO.format(400), "mono-bold": _MONO.format(700)}
"""The fonts of a slide, which no page has."""

_VECTOR_CELLS = 128 * 128
"""Maps of more cells than this become images: as rectangles they would take megabytes."""


_FROM_THE_RIGHT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_TURNING = re.compile("[→”]")


def safe(text: str) -> str:
    """Escape any text as the content or an attribute of an element; show control characters.

    Next to a text that is written from the right, an arrow would turn round with what stands on its
    two sides, so that it pointed the wrong way: there it keeps its place.
    """
    shown = escape(visible(text), quote=True)
    return _TURNING.sub("\u200e\\g<0>\u200e", shown) if _FROM_THE_RIGHT.search(shown) else shown


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _sides(item: Rectangle) -> str:
    numbers = [_number(value) for value in (item.x, item.y, item.width, item.height)]
    return 'x="{}" y="{}" width="{}" height="{}"'.format(*numbers)


def _runs(steps: NDArray[np.intp]) -> dict[int, list[str]]:
    """Return by colour level the SVG paths of runs of equal cells, each one unit wide."""
    pieces: dict[int, list[str]] = defaultdict(list)
    for row, line in enumerate(steps):
        starts = np.flatnonzero(np.diff(line, prepend=-2))
        ends = np.append(starts[1:], len(line))
        runs = zip(line[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
        for step, start, end in runs:
            if step >= 0:
                pieces[step].append(f"M{start} {row}.5h{end - start}")
    return pieces


def _cells(cells: Cells, palette: str) -> Iterator[str]:
    sides = _sides(cells)
    rows, columns = cells.steps.shape
    corner = f"{_number(cells.x)} {_number(cells.y)}"
    scale = f"{cells.width / columns:.6g} {cells.height / rows:.6g}"
    look = f'transform="translate({corner}) scale({scale})" fill="none"'
    if cells.veil:
        veil = veils(palette, paper=True)
        yield f'<g class="veil" {look} shape-rendering="crispEdges">'
        for step, pieces in sorted(_runs(cells.steps % len(veil)).items()):  # −1 has the last
            ink = f'stroke="{to_hex(veil[step][:3])}" opacity="{veil[step][3]}"'
            yield f'<path {ink} d="{"".join(pieces)}"/>'
        yield "</g>"
        return
    yield f'<rect class="blank" {sides}/>'
    if rows * columns > _VECTOR_CELLS:
        # Enlarged here, because some viewers smooth what they enlarge themselves.
        large = cells.steps.repeat(round(cells.height / rows), 0)
        address = png_uri(large.repeat(round(cells.width / columns), 1), palette)
        yield (
            f'<image {sides} preserveAspectRatio="none" image-rendering="optimizeSpeed" '
            f'style="image-rendering:pixelated" href="{address}"/>'
        )
        return
    yield f'<g {look} shape-rendering="crispEdges">'
    table = paper_table(palette)
    for step, pieces in sorted(_runs(cells.steps).items()):
        look = on_grounds("stroke", step, palette)
        yield f'<path stroke="{to_hex(table[step])}" style="{look}" d="{"".join(pieces)}"/>'
    yield "</g>"


def _image(image: Image, known: set[str]) -> Iterator[str]:
    """Yield a picture; one that is in ``known`` already, by its name, is only referred to."""
    size = f'width="{_number(image.width)}" height="{_number(image.height)}"'
    name = f"p{hashlib.sha256(image.pixels.tobytes() + size.encode()).hexdigest()[:12]}"
    if name not in known:
        known.add(name)
        look = f'preserveAspectRatio="none" href="{data_uri(picture_png(image.pixels))}"'
        yield f'<defs><image id="{name}" {size} {look}/></defs>'
    x, y, words = _number(image.x), _number(image.y), safe(image.content)
    yield f'<use href="#{name}" x="{x}" y="{y}"><title>{words}</title></use>'


def _label(label: Label, palette: str) -> str:
    x, y = _number(label.x), _number(label.y)
    position = f'x="{x}" y="{y}"'
    if label.anchor != "start":
        position += f' text-anchor="{label.anchor}"'
    if label.turn:
        position += f' transform="rotate({_number(label.turn)} {x} {y})"'
    look = f"fill:{label.ink}" if label.ink else ""
    if label.on is not None:
        look = on_grounds("fill", label.on.step, label.on.palette or palette, True)
    if look:
        position += f' style="{look}{_FONTS.get(label.style, "")}"'
    return f'<text class="{label.style}" {position}>{safe(label.content)}</text>'


def _stroke(stroke: Stroke) -> Iterator[str]:
    look = 'class="rule"' if stroke.ink is None else f'class="curve" stroke="{stroke.ink}"'
    if stroke.dots:
        for x, y in stroke.points:
            centre = f'cx="{_number(x)}" cy="{_number(y)}"'
            yield f'<circle {centre} r="{_number(stroke.dots)}" fill="{stroke.ink}"/>'
        return
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in stroke.points)
    dashes = ' stroke-dasharray="4 3"' if stroke.dashed else ""
    yield f'<polyline {look}{dashes} points="{points}"/>'


def _content(drawing: Drawing, palette: str, known: set[str]) -> Iterator[str]:
    for item in drawing.items:
        if isinstance(item, Cells):
            yield from _cells(item, item.palette or palette)
        elif isinstance(item, Image):
            yield from _image(item, known)
        elif isinstance(item, Filled):
            yield f'<rect {_sides(item)} fill="{item.ink}" shape-rendering="crispEdges"/>'
        elif isinstance(item, Label):
            yield _label(item, palette)
        elif isinstance(item, Stroke):
            yield from _stroke(item)
        else:
            lines = "\n".join(safe(line) for line in item.content.split("\n"))
            yield f'<rect class="tip" {_sides(item)}><title>{lines}</title></rect>'
    for x, y, part in drawing.parts:
        yield f'<g transform="translate({_number(x)} {_number(y)})">'
        yield from _content(part, palette, known)
        yield "</g>"


def _opening(drawing: Drawing, attributes: str) -> str:
    width, height = _number(drawing.width), _number(drawing.height)
    return (
        f'<svg {attributes}class="attnviz" role="img" aria-label="{safe(drawing.name)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    )


def svg_element(drawing: Drawing, palette: str) -> str:
    """Return a drawing as an SVG element for a page with ``STYLE``; palette: that of its cells."""
    return "\n".join([_opening(drawing, ""), *_content(drawing, palette, set()), "</svg>"])


def svg_document(drawing: Drawing, palette: str) -> str:
    """Return a drawing as an SVG file, on white, or on dark if the viewer prefers that."""
    namespace = 'xmlns="http://www.w3.org/2000/svg" '
    pieces = [
        _opening(drawing, namespace),
        f"<title>{safe(drawing.name)}</title>",
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        *_content(drawing, palette, set()),
        "</svg>",
    ]
    return "\n".join(pieces) + "\n"
