"""Writes a drawing as SVG that needs nothing else: no font, script, style or picture."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.drawing import Cells, Drawing, Item, Label, Stroke, Tip
from attnviz.draw.labels import visible
from attnviz.draw.palette import contrasting, paper_table, to_hex


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(steps: NDArray[np.intp], palette: str) -> bytes:
    """Encode a map as a PNG image.

    steps: (rows, columns), the colour level of each cell; −1 is transparent. palette: its name.
    An image has 256 entries, and transparency needs one: levels 0 and 1, whose colours look the
    same, share an entry.
    """
    rows, columns = steps.shape
    table = bytes(np.array(paper_table(palette), dtype=np.uint8))
    entries = np.where(steps < 0, 0, np.maximum(steps, 1)).astype(np.uint8)
    lines = np.hstack([np.zeros((rows, 1), dtype=np.uint8), entries])  # 0 means no filter
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">II", columns, rows) + bytes((8, 3, 0, 0, 0))),
            _chunk(b"PLTE", table),
            _chunk(b"tRNS", b"\0"),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def png_uri(steps: NDArray[np.intp], palette: str) -> str:
    """Return a map as a ``data:`` address of a PNG image, which an HTML page can contain.

    steps: (rows, columns), the colour level of each cell; −1 is transparent. palette: its name.
    """
    return "data:image/png;base64," + base64.b64encode(png(steps, palette)).decode("ascii")


STYLE = """
.attnviz { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK KR",
  "DejaVu Sans", sans-serif; font-size: 11px; fill: #1f2328; }
.attnviz .paper { fill: #ffffff; }
.attnviz .blank { fill: #eef0f3; stroke: #d0d5dc; stroke-width: 1; }
.attnviz .title { font-size: 15px; font-weight: 600; }
.attnviz .heading { font-size: 13px; font-weight: 600; }
.attnviz .name { font-weight: 600; }
.attnviz .faint { fill: #667080; }
.attnviz .axis, .attnviz .axis-faint { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas,
  "DejaVu Sans Mono", "Noto Sans Mono CJK KR", monospace; font-size: 11px; white-space: pre; }
.attnviz .axis-faint { fill: #8a94a3; }
.attnviz .value { font-size: 10px; pointer-events: none; }
.attnviz .rule { fill: none; stroke: #c2c8d0; stroke-width: 1; }
.attnviz .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.attnviz .tip { fill: none; pointer-events: all; }
.attnviz .tip:hover { stroke: #ff7b00; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  .attnviz { fill: #e8ebf0; }
  .attnviz .paper { fill: #12161c; }
  .attnviz .blank { fill: #20262e; stroke: #39414c; }
  .attnviz .rule { stroke: #4a5360; }
  .attnviz .faint { fill: #98a2b0; }
  .attnviz .axis-faint { fill: #7d8796; }
}
"""

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


def _place(x: float, y: float, width: float, height: float) -> str:
    numbers = [_number(value) for value in (x, y, width, height)]
    return 'x="{}" y="{}" width="{}" height="{}"'.format(*numbers)


def _runs(steps: NDArray[np.intp]) -> dict[int, list[str]]:
    """Return by colour level the SVG path commands of runs of equal cells.

    A cell is one unit wide.
    """
    pieces: dict[int, list[str]] = defaultdict(list)
    for row, line in enumerate(steps):
        starts = np.flatnonzero(np.diff(line, prepend=-2))
        ends = np.append(starts[1:], len(line))
        for step, start, end in zip(
            line[starts].tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            if step >= 0:
                pieces[step].append(f"M{start} {row}.5h{end - start}")
    return pieces


def _cells(cells: Cells, palette: str) -> Iterator[str]:
    place = _place(cells.x, cells.y, cells.width, cells.height)
    yield f'<rect class="blank" {place}/>'
    rows, columns = cells.steps.shape
    if rows * columns > _VECTOR_CELLS:
        # Enlarged here, because some viewers smooth what they enlarge themselves.
        large = cells.steps.repeat(round(cells.height / rows), 0)
        address = png_uri(large.repeat(round(cells.width / columns), 1), palette)
        yield (
            f'<image {place} preserveAspectRatio="none" image-rendering="optimizeSpeed" '
            f'style="image-rendering:pixelated" href="{address}"/>'
        )
        return
    corner = f"{_number(cells.x)} {_number(cells.y)}"
    scale = f"{cells.width / columns:.6g} {cells.height / rows:.6g}"
    placed = f"translate({corner}) scale({scale})"
    yield f'<g transform="{placed}" fill="none" shape-rendering="crispEdges">'
    table = paper_table(palette)
    for step, pieces in sorted(_runs(cells.steps).items()):
        yield f'<path stroke="{to_hex(table[step])}" d="{"".join(pieces)}"/>'
    yield "</g>"


def _label(label: Label, palette: str) -> str:
    x, y = _number(label.x), _number(label.y)
    place = f'x="{x}" y="{y}"'
    if label.anchor != "start":
        place += f' text-anchor="{label.anchor}"'
    if label.turn:
        place += f' transform="rotate({_number(label.turn)} {x} {y})"'
    ink = label.ink
    if label.on is not None:
        ink = to_hex(contrasting(paper_table(label.on.palette or palette)[label.on.step]))
    if ink:
        place += f' style="fill:{ink}"'
    return f'<text class="{label.style}" {place}>{safe(label.content)}</text>'


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


def _tip(tip: Tip) -> str:
    place = _place(tip.x, tip.y, tip.width, tip.height)
    lines = "\n".join(safe(line) for line in tip.content.split("\n"))
    return f'<rect class="tip" {place}><title>{lines}</title></rect>'


def _item(item: Item, palette: str) -> Iterator[str]:
    if isinstance(item, Cells):
        yield from _cells(item, item.palette or palette)
    elif isinstance(item, Label):
        yield _label(item, palette)
    elif isinstance(item, Stroke):
        yield from _stroke(item)
    else:
        yield _tip(item)


def _content(drawing: Drawing, palette: str) -> Iterator[str]:
    for item in drawing.items:
        yield from _item(item, palette)
    for x, y, part in drawing.parts:
        yield f'<g transform="translate({_number(x)} {_number(y)})">'
        yield from _content(part, palette)
        yield "</g>"


def _opening(drawing: Drawing, attributes: str) -> str:
    width, height = _number(drawing.width), _number(drawing.height)
    return (
        f'<svg {attributes}class="attnviz" role="img" aria-label="{safe(drawing.name)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    )


def svg_element(drawing: Drawing, palette: str) -> str:
    """Return a drawing as an SVG element for a page whose style sheet contains ``STYLE``.

    palette: the name of the colours of cells.
    """
    return "\n".join([_opening(drawing, ""), *_content(drawing, palette), "</svg>"])


def svg_document(drawing: Drawing, palette: str) -> str:
    """Return a drawing as an SVG file, on white, or on dark if the viewer prefers that.

    palette: the name of the colours of cells.
    """
    namespace = 'xmlns="http://www.w3.org/2000/svg" '
    pieces = [
        _opening(drawing, namespace),
        f"<title>{safe(drawing.name)}</title>",
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        *_content(drawing, palette),
        "</svg>",
    ]
    return "\n".join(pieces) + "\n"
