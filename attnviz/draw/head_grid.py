"""Writes a grid of heads for a page: a table, the cells of which a script puts in order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from attnviz.draw.document import HeadGrid
from attnviz.draw.figure import grid_legends
from attnviz.draw.palette import on_grounds
from attnviz.draw.svg import safe, svg_element


def grid_element(grid: HeadGrid, palette: str) -> Iterator[str]:
    """Yield the table of a grid, and below it what its colours mean."""
    names = [*dict.fromkeys(name for cell in grid.cells.values() for name in cell.values)]
    yield f'<div class="scroll"><table class="heads" data-measures="{safe(json.dumps(names))}">'
    titles = "".join(f'<th scope="col">{safe(name)}</th>' for name in grid.columns)
    yield f"<thead><tr><td></td>{titles}</tr></thead><tbody>"
    for row, name in enumerate(grid.rows):
        cells = [_cell(grid, (row, column), names, palette) for column in range(len(grid.columns))]
        yield f'<tr><th scope="row">{safe(name)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"
    for legend in grid_legends(grid):
        yield f'<div class="scroll">{svg_element(legend, palette)}</div>'


def _cell(grid: HeadGrid, place: tuple[int, int], names: list[str], palette: str) -> str:
    cell = grid.cells.get(place)
    if cell is None or math.isnan(cell.strength):
        return "<td></td>"
    name = grid.name(place)
    tip = " · ".join((cell.tip or f"{name}: {cell.content}").split("\n"))
    look = [f"border-color:#{cell.hue}"] * bool(cell.hue)
    if cell.tint is not None:
        step, own = cell.tint.step, cell.tint.palette or palette
        look += [on_grounds("background-color", step, own), on_grounds("color", step, own, True)]
    numbers = [f"{cell.values.get(measure, math.nan):.6g}" for measure in names]
    facts = {
        "title": tip if cell.label in tip else f"{tip} · {cell.label}",
        "style": ";".join(look),
        "data-name": name,
        "data-label": cell.label,
        "data-values": ",".join("" if number == "nan" else number for number in numbers),
    }
    written = "".join(f' {key}="{safe(value)}"' for key, value in facts.items() if value)
    return f"<td{written}>{safe(cell.content if grid.written else cell.letter)}</td>"
