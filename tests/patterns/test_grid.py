"""The grid read back: every head's letter, strength and score, in colour and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from attnviz.draw.palette import contrasting
from attnviz.draw.theme import Theme
from attnviz.measures.registry import LABELS, label_named
from attnviz.patterns.cells import glyph_of, label_cells, label_legend, score_cells
from attnviz.patterns.colours import label_colour, shade
from attnviz.patterns.grid import head_grid

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")


def test_letters_and_scores_stand_where_their_heads_are(
    pattern_reports: Callable[..., Any],
) -> None:
    report = pattern_reports(layers=5, heads=7)
    drawn = head_grid(label_cells(report, PLAIN), 0, PLAIN, 80).plain.splitlines()
    for entry in report.heads:
        line = drawn[entry.layer + 1]
        start = drawn[0].index(f"H{entry.head}") - 1
        cell = line[start : start + 9].strip()
        if entry.label is None:
            assert cell == "-"
            continue
        strength = entry.strength[entry.label]
        glyph = "░▒▓█"[min(int(strength * 4), 3)]
        score = "1.0" if entry.score >= 0.995 else f"{entry.score:.2f}"[1:]
        assert cell == label_named(entry.label).letter + glyph + score


@pytest.mark.parametrize(("heads", "room"), [(13, 50), (32, 80), (32, 200), (47, 60), (5, 20)])
@pytest.mark.parametrize("theme", [PLAIN, ASCII, Theme("viridis")])
def test_every_head_is_there_at_every_width(
    pattern_reports: Callable[..., Any], heads: int, room: int, theme: Theme
) -> None:
    report = pattern_reports(layers=2, heads=heads)
    drawn = head_grid(label_cells(report, theme), 0, theme, room)
    lines = [line[0].text and line[1:] for line in drawn.lines if not _is_names(line)]
    cells = [segment.text for line in lines for segment in line if segment.text.strip()]
    wanted = ["-" if e.label is None else label_named(e.label).letter for e in report.heads]
    assert [cell.strip()[0] for cell in cells] == wanted


def _is_names(line: Any) -> bool:
    return line[0].style is None


def test_a_strength_that_is_higher_has_no_weaker_glyph() -> None:
    for theme in (PLAIN, ASCII):
        ramp = "░▒▓█" if theme is PLAIN else "0123456789"
        places = [ramp.index(glyph_of(step / 100, theme)) for step in range(-5, 101)]
        assert places == sorted(places)
        assert set(places) == set(range(len(ramp)))


def test_watched_scores_say_what_was_not_measured(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(layers=2, heads=3, missing=("rare",))
    drawn = head_grid(score_cells(report, "rare", PLAIN), 0, PLAIN, 60).plain
    assert drawn.count("n/m") == 6
    assert not re.search(r"\d\.\d|\.\d\d", drawn)


def test_the_legend_counts(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(layers=7, heads=5)
    words = " ".join(label_legend(report, PLAIN, 200).plain.split())
    for name in report.labels:
        count = sum(entry.label == name for entry in report.heads)
        letter = LABELS[name].letter
        assert (f"{letter} {name} in {count}" in words) == (count > 0)
    assert f"- no label in {sum(entry.label is None for entry in report.heads)}" in words


def test_labels_without_a_head_are_told(pattern_reports: Callable[..., Any]) -> None:
    report = pattern_reports(layers=1, heads=1)
    words = " ".join(label_legend(report, PLAIN, 200).plain.split())
    assert "in none: " in words
    (entry,) = report.heads
    absent = words.partition("in none: ")[2]
    assert all(name in absent for name in report.labels if name != entry.label)


def test_every_label_has_a_meaning_and_a_letter() -> None:
    assert all(label.meaning for label in LABELS.values())
    letters = [label.letter for label in LABELS.values()]
    assert len(set(letters)) == len(letters)
    assert "annotation" in label_named("a relation of one's own").meaning


def test_colours_keep_apart_what_letters_need_not() -> None:
    single = [name for name, label in LABELS.items() if label.family != "relation"]
    for one, other in combinations([*single, "subject"], 2):
        distance = sum(
            abs(a - b) for a, b in zip(label_colour(one), label_colour(other), strict=True)
        )
        assert distance > 60, (one, other)


def _apart(one: str, other: str) -> int:
    parts = zip(label_colour(one), label_colour(other), strict=True)
    return sum(abs(a - b) for a, b in parts)


def _luminance(colour: tuple[int, int, int]) -> float:
    parts = [value / 255 for value in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", LABELS)
def test_ink_can_be_read_at_every_strength(name: str) -> None:
    brightness = []
    for strength in (0, 0.3, 0.6, 1):
        ground = shade(name, strength)
        light, dark = sorted((_luminance(ground), _luminance(contrasting(ground))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
        brightness.append(_luminance(ground))
    assert brightness == sorted(brightness)
