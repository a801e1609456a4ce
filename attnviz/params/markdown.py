"""``--save FILE.md``: the sheet as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnviz.draw.labels import visible
from attnviz.params.sheet import Grid, Sheet

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_params_markdown"]

_ACTIVE = re.compile(r"([\\`*_\[\]<>|#~])")


def _safe(text: str) -> str:
    """Text in which nothing acts as markup."""
    return _ACTIVE.sub(r"\\\1", visible(text))


def _grid(grid: Grid) -> Iterator[str]:
    if grid.heading:
        yield f"### {_safe(grid.heading)}\n"
    yield "| " + " | ".join(_safe(column.title) for column in grid.columns) + " |"
    yield "|" + "|".join("---:" if column.right else "---" for column in grid.columns) + "|"
    for row in grid.rows:
        cells = [_safe(cell) for cell in row.cells]
        if row.tone == "strong":
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        cells[0] = "&nbsp;&nbsp;" * row.depth + cells[0]
        if row.below:
            cells[0] += "".join(f"<br>{_safe(text)}" for text in row.below)
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _lines(sheet: Sheet) -> Iterator[str]:
    name, *facts = sheet.title
    yield f"## {_safe(name)}\n"
    yield " · ".join(_safe(fact) for fact in facts) + "\n"
    for line in sheet.lines:
        yield _safe(line) + "\n"
    for grid in sheet.grids:
        yield from _grid(grid)
    for heading, section in sheet.sections.items():
        yield f"### {_safe(heading)}\n"
        yield "| | | |"
        yield "|---|---:|---|"
        for fact in section:
            label = "&nbsp;&nbsp;" * fact.depth + _safe(fact.label)
            yield f"| {label} | {_safe(fact.value)} | {_safe(fact.note)} |"
        yield ""
    for sentence in sheet.sentences:
        yield _safe(sentence) + "\n"


def write_params_markdown(sheet: Sheet, stream: SupportsWrite[str]) -> None:
    """Write the title, the tables, the facts and the sentences."""
    stream.write("\n".join(_lines(sheet)).rstrip("\n") + "\n")
