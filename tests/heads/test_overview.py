"""All heads on one screen, down to the widths that barely hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.heads.overview import overview
from attnviz.measures.registry import label_named
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]

FIFTEEN = tuple(f" w{i}" for i in range(15))
THEMES = [Theme(), Theme(colour=False), Theme(colour=False, ascii=True, encoding="ascii")]


def lines_of(block: Block) -> list[str]:
    return block.plain.split("\n")[:-1]


@pytest.fixture(scope="module")
def twelve(reports: Reports) -> HeadsReport:
    return reports(FIFTEEN, heads=(12,) * 12)


@pytest.mark.parametrize("theme", THEMES)
def test_twelve_by_twelve_heads_fit_one_screen(
    twelve: HeadsReport, theme: Theme, screen: Callable[..., Block]
) -> None:
    above = screen(twelve, theme=theme, width=120).plain.partition("The most distinctive heads")[0]
    assert above.count("\n") <= 45
    lines = above.split("\n")
    assert max(map(cell_len, lines)) <= 120
    assert [f"H{head}" for head in range(12)] in [line.split() for line in lines]
    assert [line.split()[0] for line in lines if re.match(r"L\d", line)] == [
        f"L{layer}" for layer in range(12)
    ]


def test_pooled_cells_are_those_of_the_weights(
    twelve: HeadsReport, look: Callable[..., Any], step_of: Callable[[float], int]
) -> None:
    """15 tokens pooled to 7 columns and 6 rows, two rows a line."""
    screen = look(overview(twelve, Theme(), 120, 38), 120)
    for layer, head in ((0, 0), (5, 7), (11, 11)):
        weights = twelve.weights(layer, head)
        y, _ = screen.find(f"L{layer} ")
        _, x = screen.find(f"H{head}")
        for row in range(6):
            queries = range(row * 15 // 6, (row + 1) * 15 // 6)
            for column in range(7):
                keys = range(column * 15 // 7, (column + 1) * 15 // 7)
                steps = screen.cell(y + row // 2, x + column)[row % 2]
                if keys[0] > queries[-1]:
                    assert steps is None
                    continue
                share = np.mean([sum(weights[i, j] for j in keys) for i in queries])
                assert min(abs(step - step_of(share)) for step in steps) <= 1
        assert screen.rows[y][x + 7].data == twelve.scores(layer, head).label.letter
    y, _ = screen.find("small maps pooled")
    assert "2.5 queries by 2.1 keys a cell" in screen.text(y)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [20, 40, 80])
def test_thirty_two_heads_wrap(reports: Reports, theme: Theme, width: int) -> None:
    report = reports(FIFTEEN, heads=(32,) * 32)
    block = overview(report, theme, width, 40)
    lines = lines_of(block)
    assert max(map(cell_len, lines)) <= width
    names = [name for line in lines for name in re.findall(r"\bH\d+", line)]
    assert sorted(names) == sorted(f"H{head}" for head in range(32) for _ in range(32))
    assert len({name.split()[0] for name in lines if re.match(r"L\d", name)}) == 32


@pytest.mark.parametrize("theme", THEMES)
def test_with_room_each_map_is_named_and_has_its_trait(reports: Reports, theme: Theme) -> None:
    report = reports(heads=(4, 4))
    plain = overview(report, theme, 80, 40).plain
    assert re.findall(r"L\dH\d", plain) == [f"L{at}H{head}" for at, head, _ in report.record]
    for entry in report.heads:
        assert re.search(rf"{entry.label.name} (1\.0|\.\d\d)", plain)
    assert "pooled" not in plain


@pytest.mark.parametrize("width", [20, 80])
def test_layers_may_differ_in_their_heads(reports: Reports, width: int) -> None:
    report = reports(heads=(2, 5, 1))
    block = overview(report, Theme(colour=False), width, 40)
    assert max(map(cell_len, lines_of(block))) <= width
    if width == 80:
        assert "L1H4" in block.plain
        assert "L0H2" not in block.plain


@pytest.mark.parametrize("width", [20, 80, 300])
def test_many_heads_of_one_token_keep_their_names_apart(reports: Reports, width: int) -> None:
    report = reports(["hi"], heads=(40,))
    names = [
        name
        for line in lines_of(overview(report, Theme(colour=False), width, 40))
        for name in re.findall(r"(?<!\S)H\d+(?!\S)", line)
    ]
    assert names == [f"H{head}" for head in range(40)]


def test_names_start_at_the_index_base(reports: Reports) -> None:
    plain = overview(reports(heads=(2,), index_base=1), Theme(), 80, 40).plain
    assert "L1H1" in plain
    assert "L1H2" in plain
    assert "H0" not in plain
    grid = overview(reports(heads=(12,), index_base=1), Theme(), 80, 40).plain
    assert "H12" in grid
    assert "H0 " not in grid


def test_groups_of_key_value_heads_are_named(reports: Reports) -> None:
    plain = overview(reports(heads=(4,), kv_heads=2), Theme(), 80, 40).plain
    assert re.findall(r"L0H\d kv\d", plain) == ["L0H0 kv0", "L0H1 kv0", "L0H2 kv1", "L0H3 kv1"]


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_sorted_heads_show_the_measure_in_order(reports: Reports, width: int) -> None:
    report = reports(heads=(3, 3), sorted_by="entropy")
    lines = lines_of(overview(report, Theme(), width, 40))
    assert lines[0] == "heads by entropy"
    plain = "\n".join(lines)
    assert re.findall(r"L\dH\d", plain) == [
        report.name(entry.layer, entry.head) for entry in report.heads
    ]
    numbers = [float(number) for number in re.findall(r"\d\.\d{3}", plain)]
    assert numbers == sorted(numbers)
    assert len(numbers) == 6
    assert max(map(cell_len, lines)) <= width


def test_a_measure_that_does_not_apply_is_said_so(reports: Reports) -> None:
    report = reports([" a", " b", " c"], sorted_by="duplicate", heads=(2,))
    assert overview(report, Theme(), 80, 40).plain.count("not measured") == 2


def test_the_labels_are_counted(reports: Reports) -> None:
    report = reports(heads=(5, 5))
    counted = re.findall(r"(\S) (\w+) in (\d+)", overview(report, Theme(), 200, 40).plain)
    assert sum(int(count) for _, _, count in counted) == 10
    assert all(label_named(name).letter == letter for letter, name, _ in counted)
    assert [int(c) for *_, c in counted] == sorted((int(c) for *_, c in counted), reverse=True)


def test_thirteen_tokens_are_not_pooled_for_want_of_one_line(reports: Reports) -> None:
    report = reports([f" w{i}" for i in range(13)], heads=(4,) * 4)
    assert "pooled" not in overview(report, Theme(), 80, 38).plain
    assert "pooled" in overview(report, Theme(), 80, 30).plain
