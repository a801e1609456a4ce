"""Whole screens of the bundled model, compared line by line and re-read for their invariants.

``ATTNVIZ_GOLDEN=write pytest tests/heads`` writes them anew.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

import pytest
from attnviz.heads.screen import View, heads_screen
from attnviz.heads.token_view import Word
from rich.cells import cell_len

from attnviz.draw.theme import Theme
from attnviz.engine.capture import capture
from attnviz.measures.one_text import head_scores, telling_heads
from attnviz.measures.words import word_spans
from attnviz.models.bundled import Bundled
from attnviz.records import AttentionRecord, HeadsReport

SENTENCE = "The cat sat on the mat because it was tired."
PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
ONE_HEAD = {1: {0}}

View_ = tuple[View, Theme, int, Mapping[int, set[int]] | None]

SCREENS: dict[str, View_] = {
    "all_80": (View(SENTENCE), PLAIN, 80, None),
    "all_200": (View(SENTENCE), PLAIN, 200, None),
    "all_80_ascii": (View(SENTENCE), ASCII, 80, None),
    "top_80": (View(SENTENCE, top=3), PLAIN, 80, None),
    "token_80": (View(SENTENCE), PLAIN, 80, None),
    "values_80": (View(SENTENCE, values=True, explain=True), PLAIN, 80, ONE_HEAD),
}


@pytest.fixture(scope="module")
def model() -> Bundled:
    return Bundled()


def record_of(model: Bundled, heads: Mapping[int, set[int]] | None) -> AttentionRecord:
    return capture(model, model.encode(SENTENCE), kind="self", heads=heads)


def draw(record: AttentionRecord, name: str) -> str:
    view, theme, width, heads = SCREENS[name]
    if name.startswith("token"):
        word = Word(word_spans(record.queries, "cat")[0])
        view = dataclasses.replace(view, token=(word, word))
    scores = head_scores(record)
    report = HeadsReport(record, scores, telling_heads(scores, 3), heads is not None)
    return heads_screen(report, view, theme, width, 45).plain


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str, model: Bundled, golden: Callable[[str, str], None]) -> None:
    golden(name, draw(record_of(model, SCREENS[name][3]), name))


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
def test_the_last_bits_of_a_weight_change_nothing(name: str, factor: float, model: Bundled) -> None:
    """Or the screens would differ between machines: no number sits on an edge of rounding."""
    record = record_of(model, SCREENS[name][3])
    nudged = dataclasses.replace(
        record,
        layers=tuple(
            dataclasses.replace(layer, weights=layer.weights.astype(float) * factor)
            for layer in record.layers
        ),
    )
    assert draw(nudged, name) == draw(record, name)


@pytest.mark.parametrize("name", SCREENS)
def test_the_width_is_kept(name: str, model: Bundled) -> None:
    screen = draw(record_of(model, SCREENS[name][3]), name)
    assert max(map(cell_len, screen.split("\n"))) <= SCREENS[name][2]
    assert screen.isascii() or SCREENS[name][1] is not ASCII


def test_printed_rows_sum_to_one(model: Bundled) -> None:
    """Re-read from the screen: as many values as the query sees tokens, and their sum is one."""
    screen = draw(record_of(model, ONE_HEAD), "values_80")
    maps = screen.partition("weight  ")[0]
    rows = [
        re.findall(r"(?<= )(?:1\.0|\.\d\d|·|0)(?= |$)", line)
        for line in maps.split("\n")
        if re.search(r"(1\.0|\.\d\d)$|·$", line) and "entropy" not in line
    ]
    assert [len(row) for row in rows] == list(range(1, len(model.encode(SENTENCE)) + 1))
    for row in rows:
        total = sum(0.0 if value == "·" else float(value) for value in row)
        assert total == pytest.approx(1, abs=0.005 * len(row))


def test_every_head_and_token_is_on_the_screen(model: Bundled) -> None:
    info = model.info
    screen = draw(record_of(model, None), "all_80")
    overview = screen.partition("The most telling heads")[0]
    assert re.findall(r"\bH\d+\b", overview) == [f"H{head}" for head in range(info.heads)]
    assert re.findall(r"^L\d+\b", overview, re.MULTILINE) == [f"L{at}" for at in range(info.layers)]
    maps = screen.partition("The most telling heads")[2]
    for word in ("The", "cat", "sat", "because", "tired"):
        assert len(re.findall(rf"^ *{word} ", maps, re.MULTILINE)) >= 3
