"""The strongest pairs of each head, against sorting by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from attnviz.heads.top_pairs import strongest_pairs, top_pairs
from rich.cells import cell_len

from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]
PLAIN = Theme(colour=False)


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
