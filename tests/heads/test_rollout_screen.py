"""Rollouts on the screen and in files, of made-up weights."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnviz.heads.rollout_run import Followed
from attnviz.heads.rollout_screen import rollout_screen

from attnviz.draw.files import save, text_file
from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.measures.records import Rollout
from attnviz.records import ModelInfo

from ..conftest import tokens_of

PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")
PLAIN = Theme("viridis", colour=False)
TEXT = "Old Tom saw Ann, and Ann saw Tom."


def make_rollout(pieces: Sequence[str] = PIECES, **fields: Any) -> Rollout:
    """Made-up weights, followed through three layers."""
    rng = np.random.default_rng(5)
    count = len(pieces)
    raw = np.tril(rng.dirichlet(np.full(count, 0.3), count) + 1e-4)
    raw /= raw.sum(-1, keepdims=True)
    step = 0.5 * raw + 0.5 * np.eye(count)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", 3, 5, 5, 8)
    made = Rollout(info, "self", True, tokens_of(pieces), step @ step @ step, raw, 3)
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("name", "room", "more"),
    [
        ("rollout_80", 80, {}),
        ("rollout_120", 120, {"values": True, "explained": True}),
        ("rollout_40", 40, {"target": "a target"}),
    ],
)
def test_golden_rollout(
    name: str,
    room: int,
    more: dict[str, Any],
    golden: Callable[[str, str], None],
) -> None:
    golden(name, rollout_screen(make_rollout(), TEXT, PLAIN, room, **more).plain)


@pytest.mark.parametrize("room", [20, 47, 80, 150])
@pytest.mark.parametrize("count", [1, 2, 13, 60])
def test_no_line_of_a_rollout_is_too_wide(room: int, count: int) -> None:
    rollout = make_rollout(pieces=[f"t{place}" for place in range(count)])
    for theme in (Theme("viridis"), PLAIN):
        for line in rollout_screen(rollout, TEXT, theme, room, explained=True).plain.splitlines():
            assert width(line) <= room, line


def test_rollout_files_hold_both_matrices(tmp_path: Path) -> None:
    rollout = make_rollout()
    followed = Followed(rollout, "a text", None, False, False)
    files = {".json": text_file(followed.write_json), **followed.files("viridis")}
    for ending in files:
        save(tmp_path / f"a{ending}", files)
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema"] == "attnviz.rollout/1"
    assert np.array_equal(document["rollout"], rollout.matrix)
    assert np.array_equal(document["last_layer"], rollout.raw)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 13 * 14 // 2
    for row in rows:
        place = int(row["query"]), int(row["key"])
        assert float(row["rollout"]) == rollout.matrix[place]
        assert float(row["last_layer"]) == rollout.raw[place]
        assert row["query_token"] == rollout.tokens.texts[place[0]]
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "rollout through 3 layers" in drawn
    assert "last layer, mean of its heads" in drawn
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
