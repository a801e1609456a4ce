"""Full maps, read back from the screen: each cell's colour or glyph is its weight's."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import Block, text_line
from attnviz.draw.heatmap import heatmap, heatmap_width
from attnviz.draw.labels import token_labels
from attnviz.draw.palette import PALETTES
from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]
Look = Callable[..., Any]

TEXTS = {
    "latin": ("<s>", " The", " cat", " saw", " the", " unbelievable", "."),
    "cjk": ("<s>", "나는", " 오늘", "漢字仮名", " a", "학교에", "."),
    "emoji": ("🎉", " 👩\u200d🚀", "🇰🇷", "e\u0301", "❤\ufe0f", "ab"),
    "bytes": ("<0xED>", "<0x95>", "<0x9C>", "\n", "\t", " ", ""),
    "hostile": ("[red]", ":smile:", "[/]", "\x1b[31m", "\u202e", "\x9b"),
}


def axes_of(report: HeadsReport, encoding: str = "utf-8") -> Axes:
    record = report.record
    return Axes(
        token_labels(record.queries, encoding), token_labels(record.keys, encoding), record.causal
    )


def lines_of(block: Block) -> list[str]:
    return block.plain.split("\n")[:-1]


def nfc(text: str) -> str:
    """As the terminal composes it."""
    return unicodedata.normalize("NFC", text)


def visible_cells(report: HeadsReport) -> list[tuple[int, int]]:
    record = report.record
    return [
        (query, key)
        for query in range(len(record.queries))
        for key in range(len(record.keys))
        if key <= query or not record.causal
    ]


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("causal", [True, False])
def test_every_cell_has_its_colour_and_place(
    reports: Reports,
    look: Look,
    step_of: Callable[[float], int],
    palette: str,
    values: bool,
    text: str,
    causal: bool,
) -> None:
    report = reports(TEXTS[text], causal=causal)
    weights, axes = report.weights(1, 2), axes_of(report)
    room = 80
    block = heatmap(weights, axes, Theme(palette), [], room, values)
    screen = look(block, room, palette)
    cell = axes.cell_width(room, values)
    top = len(block.lines) - len(axes.queries)
    drawn = visible_cells(report)
    for query in range(len(axes.queries)):
        for x in range(axes.label_width, room):
            key = (x - axes.label_width) // cell
            upper, lower = screen.cell(top + query, x)
            assert upper == lower
            if (query, key) in drawn:
                assert upper is not None
                assert step_of(weights[query, key]) in upper
            else:
                assert upper is None


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("room", [30, 40, 60, 80, 200])
def test_tokens_stand_on_both_axes(reports: Reports, look: Look, text: str, room: int) -> None:
    report = reports(TEXTS[text])
    axes, theme = axes_of(report), Theme()
    cell = axes.cell_width(room, values=False)
    assert cell >= 2
    block = heatmap(report.weights(0, 0), axes, theme, [], room)
    screen = look(block, room)
    top = len(block.lines) - len(axes.queries)
    for query, label in enumerate(axes.queries):
        row = screen.rows[top + query][: axes.label_width]
        shown = "".join(c.data for c in row).strip()
        assert nfc(shown) == nfc(label) or (
            shown.endswith("…") and label.startswith(shown[:-1].rstrip())
        )
        assert row[-1].data == " "
    for key, label in enumerate(axes.keys):
        left = axes.label_width + key * cell
        pieces = [
            "".join(c.data for c in screen.rows[y][left : left + cell]).strip() for y in range(top)
        ]
        shown = "".join(pieces)
        plain = label.replace(" ", "")
        assert nfc(shown).replace(" ", "") == nfc(plain) or (
            shown.endswith("…") and plain.startswith(shown[:-1].replace(" ", ""))
        )


def test_narrow_labels_leave_a_blank_between_columns(reports: Reports, look: Look) -> None:
    """Two columns a cell: labels run down, or neighbours would read as one word."""
    report = reports()
    axes = axes_of(report)
    room = axes.label_width + 2 * len(axes.keys)
    block = heatmap(report.weights(0, 0), axes, Theme(), [], room)
    screen = look(block, room)
    for y in range(len(block.lines) - len(axes.queries)):
        assert all(screen.rows[y][x].data == " " for x in range(axes.label_width + 1, room, 2))


def test_no_ellipsis_stands_alone() -> None:
    """A special token's name is cut to eight columns; one column less cuts it again."""
    axes = Axes(["a", "b"], ["<|endof…", "b"])
    weights = np.full((2, 2), 0.5)
    room = axes.label_width + 2 * 8
    header = lines_of(heatmap(weights, axes, Theme(colour=False), [], room))[:-2]
    assert " ".join(header).split() == ["<|endo…", "b"]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_without_colour_each_cell_has_its_glyph(
    reports: Reports, step_of: Callable[[float], int], ascii_only: bool
) -> None:
    report = reports()
    weights, axes = report.weights(0, 1), axes_of(report)
    theme = Theme(colour=False, ascii=ascii_only, encoding="ascii" if ascii_only else "utf-8")
    block = heatmap(weights, axes, theme, [], 80)
    cell = axes.cell_width(80, False)
    rows = lines_of(block)[-len(axes.queries) :]
    for query, row in enumerate(rows):
        cells = row[axes.label_width :]
        glyphs = [cells[x : x + cell] for x in range(0, len(cells), cell)]
        assert len(glyphs) == query + 1
        for key, glyph in enumerate(glyphs):
            assert set(glyph) == {theme.ramp[step_of(weights[query, key]) * len(theme.ramp) // 256]}


@pytest.mark.parametrize("theme", [Theme(), Theme(colour=False, ascii=True, encoding="ascii")])
def test_values_are_the_weights_and_a_row_sums_to_one(reports: Reports, theme: Theme) -> None:
    report = reports()
    weights, axes = report.weights(0, 0), axes_of(report)
    block = heatmap(weights, axes, theme, [], 120, values=True)
    for query, row in enumerate(lines_of(block)[-len(axes.queries) :]):
        printed = row[axes.label_width :].split()
        assert len(printed) == query + 1
        numbers = [0.0 if text == theme.trace else float(text) for text in printed]
        np.testing.assert_allclose(numbers, weights[query, : query + 1], atol=0.005001)
        assert sum(numbers) == pytest.approx(1, abs=0.005 * len(numbers))


@pytest.mark.parametrize(
    ("weight", "shown"),
    [(0.0, "0"), (0.004, "·"), (0.005, ".01"), (0.074, ".07"), (0.994, ".99"), (0.996, "1.0")],
)
def test_values_by_hand(weight: float, shown: str) -> None:
    axes = Axes(["q"], ["k"])
    block = heatmap(np.array([[weight]]), axes, Theme(colour=False), [], 40, values=True)
    assert lines_of(block)[-1].split() == ["q", shown]


def test_values_without_room_are_refused_in_words(reports: Reports) -> None:
    report = reports()
    axes = axes_of(report)
    room = axes.label_width + 3 * len(axes.keys)
    needed = axes.label_width + 4 * len(axes.keys)
    said = " ".join(heatmap(report.weights(0, 0), axes, Theme(), [], room, True).plain.split())
    assert f"values need {needed} columns (--width {needed})" in said
    enough = heatmap(report.weights(0, 0), axes, Theme(), [], needed, True).plain
    assert "values need" not in enough


def test_a_dense_map_says_what_values_need(reports: Reports) -> None:
    report = reports([f" w{i}" for i in range(60)])
    plain = heatmap(report.weights(0, 0), axes_of(report), Theme(), [], 80, values=True).plain
    assert "values need 244 columns" in plain


def test_what_is_no_number_stays_blank(reports: Reports, look: Look) -> None:
    report = reports(causal=False)
    weights = report.weights(0, 0).copy()
    weights[2, 3] = np.nan
    axes = axes_of(report)
    for values in (True, False):
        block = heatmap(weights, axes, Theme(), [], 80, values)
        screen = look(block, 80)
        top = len(block.lines) - len(axes.queries)
        cell = axes.cell_width(80, values)
        blank = screen.cell(top + 2, axes.label_width + 3 * cell)
        beside = screen.cell(top + 2, axes.label_width + 4 * cell)
        assert blank == (None, None)
        assert beside != (None, None)
        assert "nan" not in block.plain


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (2, 2), (1, 6), (6, 1), (4, 6)])
def test_any_shape(reports: Reports, look: Look, queries: int, keys: int) -> None:
    report = reports(
        [f"q{i}" for i in range(queries)], keys=[f"k{i}" for i in range(keys)], kind="cross"
    )
    axes = axes_of(report)
    block = heatmap(report.weights(0, 0), axes, Theme(), [text_line("title")], 80)
    screen = look(block, 80)
    assert screen.text(0) == "title"
    assert [label for label in axes.keys if label not in screen.text(1)] == []
    for query in range(queries):
        cells = [screen.cell(2 + query, x)[0] for x in range(80)]
        assert sum(cell is not None for cell in cells) == keys * axes.cell_width(80, False)


@pytest.mark.parametrize("room", [20, 26, 33, 40, 80, 300])
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("count", [1, 2, 7, 13, 61])
def test_the_stated_width_is_kept(reports: Reports, room: int, values: bool, count: int) -> None:
    report = reports([f" word{i}한" for i in range(count)])
    axes = axes_of(report)
    block = heatmap(report.weights(0, 0), axes, Theme(colour=False), [], room, values)
    assert max(map(cell_len, lines_of(block))) <= block.width <= room
    assert block.width <= heatmap_width(axes, room, values) or count > 1


def test_ticks_are_the_indices_of_their_columns(reports: Reports) -> None:
    """A dense map: each number stands over the first key of its column."""
    report = reports([f" w{i}" for i in range(60)])
    block = heatmap(report.weights(0, 0), axes_of(report), Theme(colour=False), [], 80)
    ticks = lines_of(block)[0]
    indent = len(ticks) - len(ticks.lstrip())
    numbers = [int(number) for number in ticks.split()]
    assert numbers[0] == 0
    for number in numbers[1:]:
        assert ticks.index(f" {number}") + 1 - indent == number
    assert all(b > a for a, b in pairwise(numbers))
