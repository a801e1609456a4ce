"""The result of a training run as a person reads it, and as files hold it.

``ATTNVIZ_GOLDEN=write pytest tests/train`` writes the screens anew.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from attnviz.draw.files import save, text_file
from attnviz.draw.theme import Theme
from attnviz.train.csv import write_train_csv
from attnviz.train.json import train_document, write_train_json
from attnviz.train.records import TrainedModel, bits_per_byte
from attnviz.train.screen import train_screen
from attnviz.train.session import TrainReport

THEMES = {
    "plain": Theme(colour=False),
    "ascii": Theme(colour=False, ascii=True, encoding="ascii"),
}
HINTS = ('next: attnviz heads --model m "A cat." shows where its heads look', "another hint")


@pytest.mark.parametrize("room", [60, 100])
@pytest.mark.parametrize("name", THEMES)
def test_the_screen_is_as_it_was(
    result: TrainedModel, golden: Callable[[str, str], None], name: str, room: int
) -> None:
    text = train_screen(result, THEMES[name], room, HINTS, explain=room == 60).plain
    golden(f"{name}_{room}", text)


@pytest.mark.parametrize("room", [20, 33, 60, 80, 100, 200])
@pytest.mark.parametrize("theme", [*THEMES.values(), Theme()])
def test_nothing_is_cut_or_acts(result: TrainedModel, theme: Theme, room: int) -> None:
    text = train_screen(result, theme, room, HINTS, explain=True).plain
    assert max(map(cell_len, text.splitlines())) <= room
    assert "\x1b" not in text
    assert not theme.ascii or text.isascii()


def test_its_numbers_are_those_of_the_run(result: TrainedModel) -> None:
    text = " ".join(train_screen(result, THEMES["plain"], 200).plain.split())
    bits = 4.0 * 100_000 / (400_000 * math.log(2))
    for words in (
        "1,234,567 · 4,096 tokens in the vocabulary · stored in float16",
        "1,000,000 tokens in 1,000 steps · 2.5 min · 6,667 tokens/s · matrix products in bfloat16",
        f"4.000 nats per token · perplexity {math.exp(4):.1f} · {bits:.3f} bits per byte",
        "70% text · 25% uniform random tokens that repeat",
        "phase text from 200 k on",
        "previous token",
        "0.90 L1H2 0.05 0.001",
        "9.50 nats per token on the first copy, 0.250 ± 0.020 on the second",
        "trained on one.txt and [red]two.txt · 4,000,000 bytes · 1,000,000 tokens",
    ):
        assert words in text, words


def test_bits_per_byte_by_hand(result: TrainedModel) -> None:
    assert bits_per_byte(math.log(2), result.valid) == pytest.approx(0.25)


def test_the_document_has_every_number(result: TrainedModel) -> None:
    document = train_document(result)
    stream = io.StringIO()
    write_train_json(result, stream)
    assert json.loads(stream.getvalue()) == json.loads(json.dumps(document))
    assert stream.getvalue().isascii()
    assert list(document)[:2] == ["schema", "model"]
    assert len(document["curve"]) == 100
    assert document["curve"][0]["valid_loss"] == 8.95
    assert document["curve"][1]["valid_loss"] is None
    assert document["valid_perplexity"] == pytest.approx(math.exp(4))
    best = [
        (one["layer"], one["head"])
        for one in document["scores"]["text"]["heads"]
        if one["scores"]["previous"] > 0.5
    ]
    assert best == [(1, 2)]
    assert document["scores"]["random"]["second_copy_loss"] == {"mean": 0.25, "error": 0.02}


def test_the_curve_as_a_table(result: TrainedModel) -> None:
    stream = io.StringIO()
    write_train_csv(result.points, stream)
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    for row, point in zip(rows, result.points, strict=True):
        assert (int(row["step"]), float(row["loss"])) == (point.step, point.loss)
        assert row["valid_loss"] == ("" if point.valid_loss is None else repr(point.valid_loss))
        assert row["phase"] == point.phase


def test_the_ending_says_which_file_is_written(result: TrainedModel, tmp_path: Path) -> None:
    trained = TrainReport(result, False, ())
    files = {".json": text_file(trained.write_json), **trained.files("viridis")}
    for ending in files:
        save(tmp_path / f"run{ending}", files)
    assert json.loads((tmp_path / "run.json").read_text())["schema"] == "attnviz.train/1"
    assert (tmp_path / "run.csv").read_text().startswith("step,tokens,seconds")


def test_a_loss_beyond_all_bounds_is_said(result: TrainedModel) -> None:
    """exp of it is too large for a number."""
    lost = replace(result, valid_loss=3264.0)
    text = " ".join(train_screen(lost, THEMES["plain"], 200).plain.split())
    assert "validation 3264.000 nats per token · " in text
    assert "perplexity" not in text
    assert "worse than that: a smaller learning_rate" in text
    assert train_document(lost)["valid_perplexity"] is None
    assert "worse" not in train_screen(result, THEMES["plain"], 200).plain


def test_a_directory_is_named_as_it_is(result: TrainedModel) -> None:
    text = train_screen(replace(result, directory="a; b"), THEMES["plain"], 200).plain
    assert "a; b · weights and tokenizer" in text
