"""One word through all heads, as query and as key; the strongest pairs, against sorting by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.heads.report import Word
from attnviz.heads.token_pairs import (
    looked_at_by,
    looks_at,
    pairs_table,
    strongest_pairs,
    token_maps,
)
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]
PLAIN = Theme(colour=False)


def token_view(
    report: HeadsReport,
    query: Word | None,
    key: Word | None,
    theme: Theme,
    room: int,
    values: bool = False,
) -> Block:
    drawn = token_maps(report, query, key, values).screen
    assert drawn is not None
    return drawn(theme, room)


def top_pairs(report: HeadsReport, count: int, theme: Theme, room: int) -> Block:
    drawn = pairs_table(report, count).screen
    assert drawn is not None
    return drawn(theme, room)


def test_from_a_split_word_is_the_mean_and_to_it_the_sum(reports: Reports) -> None:
    report = reports()
    span = range(2, 4)
    for at, weights in enumerate(report.weights(layer, head) for layer, head, _ in report.record):
        by_hand = [(weights[2, key] + weights[3, key]) / 2 for key in range(7)]
        np.testing.assert_allclose(looks_at(report, span)[at], by_hand, rtol=1e-6)
        by_hand = [weights[query, 2] + weights[query, 3] for query in range(7)]
        np.testing.assert_allclose(looked_at_by(report, span)[at], by_hand, rtol=1e-6)
    assert looks_at(report, span).sum(1) == pytest.approx(1)


def test_cells_are_the_weights_and_the_rest_is_blank(
    reports: Reports, look: Callable[..., Any], step_of: Callable[[float], int]
) -> None:
    report = reports()
    word = Word(range(3, 4))
    screen = look(token_view(report, word, word, Theme(), 80), 80)
    tops = [screen.find("what “saw” (token 3) looks at"), screen.find("what looks at “saw”")]
    labels, cell = 5, 4
    for row, (layer, head, weights) in enumerate(report.record):
        as_query, as_key = tops[0][0] + 2 + row, tops[1][0] + 2 + row
        for y in (as_query, as_key):
            assert screen.text(y).startswith(f"L{layer}H{head}")
        for token in range(7):
            x = labels + token * cell
            seen, seeing = screen.cell(as_query, x)[0], screen.cell(as_key, x)[0]
            assert (seen is not None) == (token <= 3)
            assert (seeing is not None) == (token >= 3)
            assert seen is None or step_of(weights[3, token]) in seen
            assert seeing is None or step_of(weights[token, 3]) in seeing


def test_titles_name_the_word_and_its_places(reports: Reports) -> None:
    report = reports(["<s>", " tire", "d", " tired"])
    word = Word(range(1, 3), (3,))
    plain = token_view(report, word, word, PLAIN, 120).plain
    assert "what “tired” (tokens 1-2; also at 3) looks at" in plain
    ascii_theme = Theme(colour=False, ascii=True, encoding="ascii")
    plain = token_view(report, word, word, ascii_theme, 120).plain
    assert 'what looks at "tired" (tokens 1-2; also at 3)' in plain
    assert plain.isascii()


def test_a_word_of_bytes_is_named_by_its_characters(reports: Reports) -> None:
    report = reports(["<0xEC>", "<0x98>", "<0xA4>", " a"])
    assert "what “오” (tokens 0-2)" in token_view(report, Word(range(3)), None, PLAIN, 80).plain


def test_a_word_of_one_axis_has_one_map(reports: Reports) -> None:
    report = reports(["q0", "q1"], keys=["k0", "k1", "k2"], kind="cross")
    as_query = token_view(report, Word(range(1)), None, PLAIN, 80).plain
    assert "what “q0” (token 0) looks at" in as_query
    assert "what looks at" not in as_query
    assert "k2" in as_query
    as_key = token_view(report, None, Word(range(2, 3)), PLAIN, 80).plain
    assert "what looks at “k2” (token 2)" in as_key
    assert "q1" in as_key


@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_what_does_not_fit_is_chosen_by_weight_and_said(reports: Reports, room: int) -> None:
    report = reports([f"w{i}" for i in range(100)], heads=(2,))
    block = token_view(report, Word(range(99, 100)), None, PLAIN, room)
    plain = " ".join(block.plain.split())
    kept = (room - 5) // 5
    assert (f"the {kept} of 100 tokens with the most weight" in plain) == (kept < 100)
    assert max(map(cell_len, block.plain.split("\n"))) <= room


def test_kept_tokens_are_those_with_the_most_weight(reports: Reports) -> None:
    weights = np.full((1, 30, 30), 1e-3, np.float32)
    weights[0, :, [5, 11, 23]] = 0.3
    report = reports([f"w{i}" for i in range(30)], weights=[weights], causal=False)
    plain = token_view(report, Word(range(1)), None, PLAIN, 20).plain
    assert re.search(r"w5 +w11 +w23\n", plain)


def test_what_a_query_cannot_see_is_not_chosen(reports: Reports) -> None:
    report = reports([f"w{i}" for i in range(60)], heads=(2,))
    plain = token_view(report, Word(range(3, 4)), None, PLAIN, 60).plain
    assert "the 4 of 60 tokens" in plain
    assert re.search(r"w0 +w1 +w2 +w3\n", plain)


def test_weights_that_are_no_numbers_stay_blank(reports: Reports) -> None:
    weights = np.full((2, 30, 30), np.nan, np.float32)
    report = reports([f"w{i}" for i in range(30)], weights=[weights])
    word = Word(range(4, 6))
    assert "nan" not in token_view(report, word, word, PLAIN, 40, True).plain


def test_pairs_are_the_largest_weights_but_the_first_query(reports: Reports) -> None:
    report = reports()
    weights = report.weights(0, 1)
    every = sorted(
        ((q, k, float(weights[q, k])) for q in range(1, 7) for k in range(7)),
        key=lambda pair: -pair[2],
    )
    assert strongest_pairs(report, 0, 1, 5) == every[:5]


def test_encoders_keep_their_first_query(reports: Reports) -> None:
    weights = np.zeros((1, 3, 3), np.float32)
    weights[0, 0, 2] = 1
    report = reports(["a", "b", "c"], weights=[weights], causal=False)
    assert strongest_pairs(report, 0, 0, 5) == [(0, 2, 1.0)]


def test_one_token_has_its_one_pair(reports: Reports) -> None:
    report = reports(["hi"], weights=[np.ones((1, 1, 1), np.float32)])
    assert strongest_pairs(report, 0, 0, 3) == [(0, 0, 1.0)]


def test_neither_zeros_nor_holes_are_pairs(reports: Reports) -> None:
    weights = np.array([[[1, 0, 0], [np.nan, np.nan, 0], [0.25, 0, 0.75]]], np.float32)
    report = reports(["a", "b", "c"], weights=[weights])
    assert [pair[:2] for pair in strongest_pairs(report, 0, 0, 9)] == [(2, 2), (2, 0)]


def test_a_row_a_head(reports: Reports) -> None:
    report = reports(["<s>", " a", " b"], heads=(2, 2))
    lines = top_pairs(report, 2, PLAIN, 80).plain.split("\n")[:-1]
    assert lines[0] == "2 strongest pairs of each head, query → key and weight"
    assert [line.split()[0] for line in lines[1:]] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    labels = ["<s>", "a", "b"]
    for line, (layer, head, _) in zip(lines[1:], report.record, strict=True):
        pairs = re.findall(r"(\S+) → (\S+) (1\.0|\.\d\d)", line)
        for (query, key, weight), (q, k, w) in zip(
            pairs, strongest_pairs(report, layer, head, 2), strict=True
        ):
            assert (query, key) == (labels[q], labels[k])
            assert float(weight) == pytest.approx(w, abs=0.006)


def test_tokens_that_repeat_carry_their_place(reports: Reports) -> None:
    report = reports([" the", " cat", " the", " end"], heads=(3,))
    title, rows = top_pairs(report, 4, PLAIN, 120).plain.split("\n", 1)
    assert "#n: place of a token that repeats" in title
    for name in re.findall(r"(\S+) → (\S+)", rows):
        for label in name:
            assert label in ("the#0", "the#2", "cat", "end")


@pytest.mark.parametrize("theme", [Theme(), Theme(colour=False, ascii=True, encoding="ascii")])
@pytest.mark.parametrize("room", [20, 40, 80, 300])
@pytest.mark.parametrize("texts", [("<|endoftext|>", "한국어한국어한국어", "🎉"), ("w",) * 12])
def test_lines_fit_and_end_without_blanks(
    reports: Reports, theme: Theme, room: int, texts: tuple[str, ...]
) -> None:
    report = reports(texts, heads=(2, 2))
    lines = top_pairs(report, 9, theme, room)
    for line in lines.lines:
        text = "".join(segment.text for segment in line)
        assert text == text.rstrip()
        assert cell_len(text) <= room
        assert not theme.ascii or text.isascii()


def test_files_have_the_same_pairs_and_maps_in_full(reports: Reports) -> None:
    report = reports([" the", " cat", " the", " end"], heads=(3,))
    table = pairs_table(report, 4)
    for row, (layer, head, _) in zip(table.rows, report.record, strict=True):
        assert row.cells[0] == report.name(layer, head)
        best = strongest_pairs(report, layer, head, 1)[0]
        labels = ("the#0", "cat", "the#2", "end")
        assert row.cells[1].startswith(f"{labels[best[0]]} → {labels[best[1]]} ")
    as_query, as_key = token_maps(report, Word(range(1, 2)), Word(range(1, 2)), False).maps
    np.testing.assert_array_equal(as_query.weights[:, :2], looks_at(report, range(1, 2))[:, :2])
    assert np.isnan(as_query.weights[:, 2:]).all()
    assert np.isnan(as_key.weights[:, 0]).all()
    assert as_key.queries.texts == ("L0H0", "L0H1", "L0H2")
