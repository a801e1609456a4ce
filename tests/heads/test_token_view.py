"""One word through all heads, as query and as key."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attnviz.heads.token_view import Word, looked_at_by, looks_at, token_view
from rich.cells import cell_len

from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]
PLAIN = Theme(colour=False)


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
    screen = look(token_view(report, word, word, Theme(), 80, False), 80)
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
    plain = token_view(report, word, word, PLAIN, 120, False).plain
    assert "what “tired” (tokens 1-2; also at 3) looks at" in plain
    ascii_theme = Theme(colour=False, ascii=True, encoding="ascii")
    plain = token_view(report, word, word, ascii_theme, 120, False).plain
    assert 'what looks at "tired" (tokens 1-2; also at 3)' in plain
    assert plain.isascii()


def test_a_word_of_bytes_is_named_by_its_characters(reports: Reports) -> None:
    report = reports(["<0xEC>", "<0x98>", "<0xA4>", " a"])
    assert (
        "what “오” (tokens 0-2)" in token_view(report, Word(range(3)), None, PLAIN, 80, False).plain
    )


def test_a_word_of_one_axis_has_one_map(reports: Reports) -> None:
    report = reports(["q0", "q1"], keys=["k0", "k1", "k2"], kind="cross")
    as_query = token_view(report, Word(range(1)), None, PLAIN, 80, False).plain
    assert "what “q0” (token 0) looks at" in as_query
    assert "what looks at" not in as_query
    assert "k2" in as_query
    as_key = token_view(report, None, Word(range(2, 3)), PLAIN, 80, False).plain
    assert "what looks at “k2” (token 2)" in as_key
    assert "q1" in as_key


@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_what_does_not_fit_is_chosen_by_weight_and_said(reports: Reports, room: int) -> None:
    report = reports([f"w{i}" for i in range(100)], heads=(2,))
    block = token_view(report, Word(range(99, 100)), None, PLAIN, room, False)
    plain = " ".join(block.plain.split())
    kept = (room - 5) // 5
    assert (f"the {kept} of 100 tokens with the most weight" in plain) == (kept < 100)
    assert max(map(cell_len, block.plain.split("\n"))) <= room


def test_kept_tokens_are_those_with_the_most_weight(reports: Reports) -> None:
    weights = np.full((1, 30, 30), 1e-3, np.float32)
    weights[0, :, [5, 11, 23]] = 0.3
    report = reports([f"w{i}" for i in range(30)], weights=[weights], causal=False)
    plain = token_view(report, Word(range(1)), None, PLAIN, 20, False).plain
    assert re.search(r"w5 +w11 +w23\n", plain)


def test_what_a_query_cannot_see_is_not_chosen(reports: Reports) -> None:
    report = reports([f"w{i}" for i in range(60)], heads=(2,))
    plain = token_view(report, Word(range(3, 4)), None, PLAIN, 60, False).plain
    assert "the 4 of 60 tokens" in plain
    assert re.search(r"w0 +w1 +w2 +w3\n", plain)


def test_weights_that_are_no_numbers_stay_blank(reports: Reports) -> None:
    weights = np.full((2, 30, 30), np.nan, np.float32)
    report = reports([f"w{i}" for i in range(30)], weights=[weights])
    word = Word(range(4, 6))
    assert "nan" not in token_view(report, word, word, PLAIN, 40, True).plain
