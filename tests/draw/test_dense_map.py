"""Maps of long texts: the caption's numbers, the indices and the pooled cells are right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import Block, text_line
from attnviz.draw.heatmap import dense_map
from attnviz.draw.labels import token_labels
from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]
Look = Callable[..., Any]

PLAIN = Theme(colour=False)


@pytest.fixture(scope="module")
def long(reports: Reports) -> HeadsReport:
    return reports([f" w{i}" for i in range(400)], heads=(1,))


def axes_of(report: HeadsReport) -> Axes:
    record = report.record
    return Axes(token_labels(record.queries), token_labels(record.keys), record.causal)


def draw(report: HeadsReport, theme: Theme, room: int) -> Block:
    return dense_map(report.weights(0, 0), axes_of(report), theme, [], room)


def lines_of(block: Block) -> list[str]:
    return block.plain.split("\n")[:-1]


def pooled_by_hand(weights: np.ndarray, rows: list[int], columns: list[int]) -> np.ndarray:
    """Blocks start at the given tokens: summed over keys, mean over queries."""
    row_ends = [*rows[1:], weights.shape[0]]
    column_ends = [*columns[1:], weights.shape[1]]
    return np.array(
        [
            [
                np.mean([weights[i, left:right].sum() for i in range(top, bottom)])
                for left, right in zip(columns, column_ends, strict=True)
            ]
            for top, bottom in zip(rows, row_ends, strict=True)
        ]
    )


@pytest.mark.parametrize("room", [40, 80, 200])
def test_the_pooled_map_and_its_caption(
    long: HeadsReport, look: Look, step_of: Callable[[float], int], room: int
) -> None:
    block = draw(long, Theme(), room)
    screen = look(block, room)
    indent = len(screen.text(0)) - len(screen.text(0).lstrip())
    columns = room - indent
    body = [y for y in range(1, len(block.lines)) if re.match(r" *\d+ w\d", screen.text(y))]
    caption = " ".join(screen.text(y) for y in range(body[-1] + 1, len(block.lines)))
    rows = 2 * len(body)
    said = re.search(r"([\d.]+) queries by ([\d.]+) keys a cell", caption)
    assert said is not None
    assert float(said[1]) == pytest.approx(400 / rows, abs=0.051)
    assert float(said[2]) == pytest.approx(400 / columns, abs=0.051)
    starts = [b * 400 // rows for b in range(rows)], [b * 400 // columns for b in range(columns)]
    pooled = pooled_by_hand(long.weights(0, 0), *starts)
    for line, y in enumerate(body):
        for half in (0, 1):
            row = 2 * line + half
            last_query = [*starts[0][1:], 400][row] - 1
            for column in range(columns):
                steps = screen.cell(y, indent + column)[half]
                if starts[1][column] > last_query:
                    assert steps is None
                else:
                    wanted = step_of(pooled[row, column])
                    assert steps is not None
                    assert min(abs(step - wanted) for step in steps) <= 1  # float32 sums


@pytest.mark.parametrize("theme", [Theme(), PLAIN])
@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_lines_name_their_first_query(long: HeadsReport, theme: Theme, room: int) -> None:
    block = draw(long, theme, room)
    named = [re.match(r" *(\d+) (w\d+)", line) for line in lines_of(block)]
    numbers = [int(match[1]) for match in named if match]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    for match in named:
        assert match is None or match[2] == f"w{match[1]}"
    rows = len(numbers) * (2 if theme.half_blocks else 1)
    step = 2 if theme.half_blocks else 1
    assert numbers == [min(r, rows) * 400 // rows for r in range(0, rows, step)]


@pytest.mark.parametrize("theme", [Theme(), PLAIN, Theme(colour=False, ascii=True)])
@pytest.mark.parametrize("room", [20, 21, 40, 80, 120, 200, 300])
def test_nothing_reaches_beyond_the_room(long: HeadsReport, theme: Theme, room: int) -> None:
    block = draw(long, theme, room)
    assert max(map(cell_len, lines_of(block))) <= room
    assert block.width <= room
    ticks = lines_of(block)[0].split()
    assert int(ticks[-1]) < 400


def test_long_labels_leave_half_of_the_room_to_the_map(reports: Reports) -> None:
    report = reports([f" unbelievable{i}" for i in range(60)], heads=(1,))
    ticks = lines_of(draw(report, PLAIN, 20))[0]
    assert len(ticks) - len(ticks.lstrip()) <= 10


def test_two_queries_a_line_are_said_where_nothing_is_pooled(reports: Reports) -> None:
    report = reports([f" w{i}" for i in range(50)], heads=(1,))
    block = draw(report, Theme(), 80)
    assert lines_of(block)[-1] == "two queries a line, the upper one is named"
    assert len(block.lines) == 1 + 25 + 1


def test_a_line_a_query_needs_no_caption(reports: Reports, look: Look) -> None:
    """Few queries over many keys, as in cross attention."""
    report = reports(["a", "b", "c"], keys=[f"k{i}" for i in range(60)], heads=(1,), kind="cross")
    block = draw(report, Theme(), 80)
    assert [line.split()[:2] for line in lines_of(block)[1:]] == [
        ["0", "a"],
        ["1", "b"],
        ["2", "c"],
    ]
    screen = look(block, 80)
    assert all(sum(screen.cell(y, x)[0] is not None for x in range(80)) == 60 for y in (1, 2, 3))


def test_thirteen_queries_without_colour_are_not_pooled_into_twelve(reports: Reports) -> None:
    report = reports(
        [f"q{i}" for i in range(13)], keys=[f"k{i}" for i in range(60)], heads=(1,), kind="cross"
    )
    assert "pooled" not in draw(report, PLAIN, 80).plain


def test_titles_stand_above(long: HeadsReport) -> None:
    block = dense_map(long.weights(0, 0), axes_of(long), PLAIN, [text_line("a title")], 80)
    assert lines_of(block)[0] == "a title"
