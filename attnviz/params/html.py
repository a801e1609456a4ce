"""``--save FILE.html``: the sheet as one page that loads nothing, light or dark as one reads."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from attnviz.draw.labels import visible
from attnviz.draw.palette import colour_table, to_hex
from attnviz.params.sheet import Grid, Row, Sheet
from attnviz.params.table import TINTS

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_params_html"]

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; padding: 0 1.5rem; max-width: 70rem; background: #ffffff; color: #1f2328;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
p { margin: .3rem 0; max-width: 55rem; overflow-wrap: anywhere; }
.faint { color: #667080; }
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid #e3e6ea;
  white-space: nowrap; vertical-align: top; }
th { font-weight: 600; }
.word { text-align: left; }
.strong { font-weight: 600; }
td.note { text-align: left; white-space: normal; color: #667080; }
.below { display: block; color: #667080; font-weight: 400; font-size: 12px; white-space: normal; }
td.bar { min-width: 10rem; text-align: left; }
td.bar div { height: .75rem; margin-top: .3rem; border-radius: 2px; min-width: 1px; }
@media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #e8ebf0; }
  .faint, td.note, .below { color: #98a2b0; }
  th, td { border-color: #2b323b; }
}
"""

# A second lock: even a name that got past the escaping could load and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)


def _row(row: Row, grid: Grid, palette: str) -> str:
    cells = []
    for place, (column, text) in enumerate(zip(grid.columns, row.cells, strict=True)):
        tone = row.tone if row.tone != "plain" else column.tone
        names = [*(["word"] if not column.right else []), *([tone] if tone != "plain" else [])]
        inner = _safe(text)
        if not place:
            inner += "".join(f'<span class="below">{_safe(line)}</span>' for line in row.below)
        indent = f' style="padding-left:{0.8 + 1.2 * row.depth:.1f}rem"' if not place else ""
        cells.append(f'<td class="{" ".join(names)}"{indent}>{inner}</td>')
    if any(other.bar for other in grid.rows):
        cells.append(f'<td class="bar">{_bar(row, palette)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _bar(row: Row, palette: str) -> str:
    if row.bar is None or not row.bar[1]:
        return ""
    part, whole = row.bar
    colour = to_hex(colour_table(palette)[TINTS[row.role]])
    return f'<div style="width:{100 * part / whole:.2f}%;background:{colour}"></div>'


def _grid(grid: Grid, palette: str) -> Iterator[str]:
    if grid.heading:
        yield f"<h2>{_safe(grid.heading)}</h2>"
    titles = [
        f'<th class="{"" if column.right else "word"}">{_safe(column.title)}</th>'
        for column in grid.columns
    ]
    if any(row.bar for row in grid.rows):
        titles.append("<th></th>")
    yield f'<div class="scroll"><table>\n<thead><tr>{"".join(titles)}</tr></thead>\n<tbody>'
    for row in grid.rows:
        yield _row(row, grid, palette)
    yield "</tbody>\n</table></div>"


def _facts(sheet: Sheet) -> Iterator[str]:
    for heading, section in sheet.sections.items():
        yield f'<h2>{_safe(heading)}</h2>\n<div class="scroll"><table>\n<tbody>'
        for fact in section:
            indent = f' style="padding-left:{0.8 + 1.2 * fact.depth:.1f}rem"'
            yield (
                f'<tr><td class="word"{indent}>{_safe(fact.label)}</td>'
                f'<td class="strong">{_safe(fact.value)}</td>'
                f'<td class="note">{_safe(fact.note)}</td></tr>'
            )
        yield "</tbody>\n</table></div>"


def _page(sheet: Sheet, palette: str) -> Iterator[str]:
    name, *facts = sheet.title
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>what {_safe(name)} costs</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_safe(name)}</h1>"
    yield f"<p>{' · '.join(_safe(fact) for fact in facts)}</p>"
    for line in sheet.lines:
        yield f'<p class="faint">{_safe(line)}</p>'
    for grid in sheet.grids:
        yield from _grid(grid, palette)
    yield from _facts(sheet)
    for sentence in sheet.sentences:
        yield f"<p>{_safe(sentence)}</p>"
    yield "</body>\n</html>"


def write_params_html(sheet: Sheet, palette: str, stream: SupportsWrite[str]) -> None:
    """Write the title, the tables with their bars, the facts and the sentences."""
    for piece in _page(sheet, palette):
        stream.write(piece + "\n")
