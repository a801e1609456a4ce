"""What prune shows, read back: points where they belong, nothing too wide, numbers that add up."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.document import HeadGrid, Plot
from attnviz.draw.terminal import part_block, terminal_block
from attnviz.draw.theme import Theme
from attnviz.prune.data import prune_data, prune_rows
from attnviz.prune.document import prune_document
from attnviz.prune.records import Half, PrunedModel, PruneReport, PruneStep, RandomLoss
from attnviz.records import ModelInfo

_PLAIN = Theme(colour=False)
_ASCII = Theme(colour=False, ascii=True, encoding="ascii")
_COLOUR = Theme()


def _report(layers: int = 3, heads: int = 5, count: int = 4, **changes: object) -> PruneReport:
    """Head (i mod layers, i // layers) goes at step i; the loss rises by 0.1 a step, twice at
    random."""
    total = layers * heads
    steps = tuple(
        PruneStep(
            i % layers, i // layers, 0.1, total - i - 1, 2.0 + 0.1 * (i + 1), 1.5 + 0.05 * (i + 1)
        )
        for i in range(count)
    )
    random = tuple(
        RandomLoss(step.heads_left, 2 * step.loss - 2.0, step.loss, 3 * step.loss) for step in steps
    )
    info = ModelInfo("a\x1b[31mmodel", None, "LlamaForCausalLM", "float32", layers, heads, heads, 2)
    report = PruneReport(
        model=info,
        layers=tuple(range(layers)),
        text="A text with [red]markup[/] in it.",
        source="",
        texts=1,
        tokens=11,
        ranking=Half(1, 5, 1.5),
        held_out=Half(1, 6, 2.0),
        loss_name="loss",
        method="exact",
        rerank=False,
        asked="--fraction 0.3",
        uniform=False,
        empty_layers=False,
        limit=None,
        steps=steps,
        random=random,
        draws=5,
        seed=7,
        parameters_before=1000,
        pruned=PrunedModel("cut", heads - 1, heads - 1, "LlamaForCausalLM", 900, ((0, 1),)),
        seconds=0.5,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


def prune_screen(
    report: PruneReport, theme: Theme, room: int, hints: tuple[str, ...] = (), explain: bool = False
) -> Block:
    return terminal_block(prune_document(report, hints, explain), theme, room)


def _part(report: PruneReport, kind: type[Plot] | type[HeadGrid]) -> Plot | HeadGrid:
    parts = [part for group in prune_document(report).groups for part in group.parts]
    (found,) = (part for part in parts if isinstance(part, kind))
    return found


def test_the_curves_are_what_was_measured() -> None:
    plot = _part(_report(limit=2.5), Plot)
    assert isinstance(plot, Plot)
    order, chance = plot.curves
    assert [left for left, _ in order.points] == [15, 14, 13, 12, 11]
    assert [loss for _, loss in order.points] == pytest.approx([2.0, 2.1, 2.2, 2.3, 2.4])
    assert [loss for _, loss in chance.points] == pytest.approx([2.0, 2.2, 2.4, 2.6, 2.8])
    assert (plot.ends, [level.value for level in plot.levels]) == ((15, 11), [2.5])
    lines = part_block(plot, _PLAIN, 80).plain.splitlines()
    assert lines[-4].split() == ["15", "14", "13", "12", "11"]
    assert lines[-1] == "┈┈┈ limit 2.5000"


@pytest.mark.parametrize("theme", [_PLAIN, _ASCII, _COLOUR])
@pytest.mark.parametrize("room", [20, 41, 80, 120, 200])
def test_nothing_is_wider_than_the_screen(theme: Theme, room: int) -> None:
    reports = (
        _report(),
        _report(12, 12, 43),
        _report(2, 32, 60, limit=3.3),
        _report(random=(), draws=0),
        _report(steps=(), random=(), notes=("none can go",)),
        _report(steps=(*_report().steps[:2], PruneStep(2, 4, 0.1, 12, math.nan, 1.6))),
        _report(
            pruned=PrunedModel(
                "masked", 5, 5, "GPT2LMHeadModel", 1000, path="/tmp/x", difference=0.0, note="why"
            )
        ),
    )
    for report in reports:
        screen = prune_screen(report, theme, room, hints=("a hint",), explain=True)
        for line in screen.plain.splitlines():
            assert cell_len(line) <= room
        assert "\x1b" not in screen.plain
        if theme.ascii:
            assert screen.plain.isascii()


@pytest.mark.parametrize("rise", [0.0, 1e-9, 1e-3, 0.07, 3.0, 12345.0, math.inf, math.nan])
def test_the_axis_has_round_numbers_whatever_the_range(rise: float) -> None:
    report = _report(random=(), draws=0)
    steps = tuple(replace(step, loss=2.0 + rise * (i + 1)) for i, step in enumerate(report.steps))
    plot = _part(replace(report, steps=steps), Plot)
    lines = [line.split("▕") for line in part_block(plot, _PLAIN, 80).plain.splitlines()]
    ticks = [float(line[0]) for line in lines if len(line) == 2 and line[0].strip()]
    assert 2 <= len(ticks) <= 6
    assert ticks == sorted(set(ticks), reverse=True)


def _left(report: PruneReport, theme: Theme, room: int) -> Block:
    return part_block(_part(report, HeadGrid), theme, room)


def test_the_map_says_when_each_head_went() -> None:
    lines = _left(_report(), _PLAIN, 80).plain.splitlines()
    assert lines[1].split() == ["0", "1", "2", "3", "4"]
    assert lines[5] == "█ stays"
    assert [line.split() for line in lines[2:5]] == [
        ["L0", "1", "4", "██", "██", "██"],
        ["L1", "2", "██", "██", "██", "██"],
        ["L2", "3", "██", "██", "██", "██"],
    ]
    from_one = _left(replace(_report(), index_base=1), _ASCII, 80).plain.splitlines()
    assert from_one[1].split() == ["1", "2", "3", "4", "5"]
    assert from_one[2].split() == ["L1", "1", "4", "##", "##", "##"]


def test_a_map_that_does_not_fit_is_broken_into_parts() -> None:
    block = _left(_report(2, 64, 5), _PLAIN, 30)
    assert all(cell_len(line) <= 30 for line in block.plain.splitlines())
    body = "".join(line[3:] for line in block.plain.splitlines() if line.startswith("L"))
    assert (body.count("█"), body.count("·")) == (2 * 64 - 5, 5)


def test_what_is_said_agrees_with_the_numbers() -> None:
    text = " ".join(prune_screen(_report(), _PLAIN, 200).plain.split())
    assert "without 4 of 15 heads (27%) the loss goes from 2.0000 to 2.4000" in text
    assert "(×1.200); in random order to 2.8000 (2.4000 to 7.2000 in 5 draws)" in text
    assert "1,000 to 900 (−10.0%); every layer can be cut to 4 of 5 heads, 1 removed head" in text
    masked = PrunedModel("masked", 5, 5, "M", 1000, path="out", difference=2e-7, note="the reason")
    text = " ".join(prune_screen(_report(pruned=masked), _PLAIN, 200).plain.split())
    assert "1,000, nothing got smaller: the reason" in text
    assert "Written: out (masked, with zeroed output rows; M)" in text
    assert "(largest difference 2e-07 in float32)" in text


def test_many_steps_are_listed_where_random_orders_stand_beside_them() -> None:
    report = _report(12, 12, 100)
    report = replace(report, random=report.random[9::10])
    text = prune_screen(report, _PLAIN, 120).plain
    assert "90 steps between are in --json" in text
    rows = re.findall(r"^ *(\d+) L\d+H\d+", text, re.MULTILINE)
    assert rows == [str(number) for number in range(10, 101, 10)]


def test_the_document_and_the_table_hold_every_number() -> None:
    report = _report(limit=2.5)
    document = json.loads(json.dumps(prune_data(report), allow_nan=False))
    assert next(iter(document)) == "schema"
    assert document["schema"] == "attnviz.prune/1"
    assert (document["parameters_before"], document["parameters_after"]) == (1000, 900)
    assert document["removed"] == [
        {"layer": 0, "head": 0},
        {"layer": 1, "head": 0},
        {"layer": 2, "head": 0},
        {"layer": 0, "head": 1},
    ]
    assert [step["heads_left"] for step in document["steps"]] == [14, 13, 12, 11]
    assert document["steps"][-1]["loss_ratio"] == pytest.approx(1.2)
    assert document["baseline"] == {"loss": 2.0}
    header, *lines = prune_rows(report)
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["heads_left"] for row in rows] == [15, 14, 13, 12, 11]
    assert [row["loss"] for row in rows[1:]] == [step.loss for step in report.steps]
    assert rows[-1]["random_high"] == report.random[-1].high


def test_numbers_that_json_lacks_are_null() -> None:
    broken = replace(_report(), limit=math.nan, held_out=Half(1, 6, math.inf))
    document = json.dumps(prune_data(broken), allow_nan=False)
    assert json.loads(document)["baseline"] == {"loss": None}
