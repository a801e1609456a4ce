"""The first screen of ``attnviz why``: no taller than the terminal, the finding in line 2."""

from __future__ import annotations

from typing import Any

import pytest

from attnviz.draw.labels import width

from ...first_screens import SIZES
from .test_why import PROMPT, names

LONG = " ".join([PROMPT + " John."] * 20) + " " + PROMPT


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("colour", ["always", "never"])
@pytest.mark.parametrize(
    "asked",
    [
        [PROMPT],
        [PROMPT, "--head", "L1H2,L1H0"],
        [PROMPT, "--answer", "table", "--foil", "Nancy"],
        [LONG],
        ["나는 오늘 학교에 갔다. 나는 오늘"],
        ["👩‍👩‍👧 a 🎈 b 👩‍👩‍👧 a"],
        ["--texts", "names.txt"],
        ["the cat sat on the", "--model", "gpt2"],
        ["the cat sat on the", "--model", "t5"],
    ],
    ids=["one", "maps", "foil", "long", "korean", "emoji", "many", "gpt2", "t5"],
)
def test_it_fits(
    redrawn: Any,
    checkpoint: Any,
    tmp_path: Any,
    asked: list[str],
    colour: str,
    columns: int,
    lines: int,
) -> None:
    (tmp_path / "names.txt").write_text("\n".join(names()), encoding="utf-8")
    words = [str(checkpoint(word)) if word in ("gpt2", "t5") else word for word in asked]
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    result = redrawn("why", *words, "--no-full", "--color", colour, env=size)
    assert result.code == 0, result.err
    plain = redrawn("why", *words, "--no-full", env=size).lines if colour == "never" else []
    assert len(result.lines) < lines
    for line in plain:
        assert width(line) <= columns
    if plain:
        assert plain[1].startswith(("Next: “", "20 prompts"))
        assert plain[-1].endswith("--full: everything")
        assert any(line.startswith("L0") for line in plain)
        assert "sum" in result.out


@pytest.mark.parametrize("lines", [16, 18, 20])
def test_the_grid_stays_whole_where_the_ranking_goes(redrawn: Any, lines: int) -> None:
    shown = redrawn("why", PROMPT, "--no-full", env={"COLUMNS": "80", "LINES": str(lines)}).lines
    assert len(shown) < lines
    assert [line[:2] for line in shown if line[:3] in {f"L{layer} " for layer in range(6)}] == [
        f"L{layer}" for layer in range(6)
    ]


def test_a_position_and_maps_without_room_are_said(run: Any) -> None:
    small = {"COLUMNS": "80", "LINES": "24"}
    placed = run("why", PROMPT, "--position", "4", "--no-full", env=small).out
    assert "at “John” (4) predicts" in placed
    shown = run("why", PROMPT, "--head", "L1H0,L1H2", "--no-full", env=small).out
    assert "1 more map: --full" in shown


def test_a_short_screen_has_the_grid_and_the_ranking(redrawn: Any) -> None:
    shown = redrawn("why", PROMPT, "--no-full", env={"COLUMNS": "80", "LINES": "24"}).lines
    rows = [line.split()[0] for line in shown if line.strip()]
    assert [row for row in rows if row in {f"L{layer}" for layer in range(6)}] == [
        f"L{layer}" for layer in range(6)
    ]
    ranked = [line.split()[0] for line in shown if "━" in line]
    assert ranked[:3] == ["L1H2", "L1H0", "L1H3"]
    assert any("predicts John" in line for line in shown)
