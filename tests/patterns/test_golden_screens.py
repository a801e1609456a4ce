"""Whole screens at fixed widths, compared with the ones that a person has looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attnviz.heads.rollout_screen import rollout_screen

from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.measures.records import Probe
from attnviz.patterns.screen import patterns_screen
from attnviz.patterns.view import PatternView

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")
TEXT = "Old Tom saw Ann, and Ann saw Tom."
NO_REPEATS = {"missing": ("duplicate", "induction")}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, Theme]] = {
    "all_80": ({}, {}, 80, PLAIN),
    "all_120": ({"control": True}, {"hints": ("next: --watch self", "--explain")}, 120, PLAIN),
    "all_200": ({"layers": 12, "heads": 12}, {}, 200, PLAIN),
    "narrow_40": ({"view": "without-first"}, {}, 40, PLAIN),
    "ascii_80": ({"layers": 2, "heads": 19, **NO_REPEATS}, {}, 80, ASCII),
    "many_heads_80": ({"layers": 2, "heads": 47}, {}, 80, PLAIN),
    "own_text_80": (
        {**NO_REPEATS, "probes": (Probe("text", 1, 13, 13, ("previous", "first")),)},
        {"text": TEXT, "explain": True},
        80,
        PLAIN,
    ),
    "stats_80": ({}, {"stats": True}, 80, PLAIN),
    "watch_80": ({"control": True}, {"watch": "previous", "top": 3}, 80, PLAIN),
    "watch_140": ({"layers": 12, "heads": 12}, {"watch": "induction"}, 140, PLAIN),
    "watch_unmeasured_80": (NO_REPEATS, {"watch": "induction", "explain": True}, 80, PLAIN),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(
    name: str, pattern_reports: Callable[..., Any], golden: Callable[[str, str], None]
) -> None:
    fields, view, room, theme = CASES[name]
    golden(name, patterns_screen(pattern_reports(**fields), PatternView(**view), theme, room).plain)


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
    rollouts: Callable[..., Any],
    golden: Callable[[str, str], None],
) -> None:
    golden(name, rollout_screen(rollouts(), TEXT, PLAIN, room, **more).plain)


@pytest.mark.parametrize("room", [20, 31, 47, 80, 101, 199])
@pytest.mark.parametrize(
    "theme", [Theme("viridis"), PLAIN, ASCII], ids=["colour", "plain", "ascii"]
)
@pytest.mark.parametrize("view", [{}, {"watch": "self"}], ids=["all", "watch"])
def test_no_line_is_too_wide(
    pattern_reports: Callable[..., Any], room: int, theme: Theme, view: dict[str, Any]
) -> None:
    report = pattern_reports(
        layers=2,
        heads=13,
        control=True,
        missing=("rare",),
        notes=("a note of some length that has to be broken where the screen ends",),
    )
    shown = PatternView(text=TEXT, source="a/very/long/path/of/pairs.tsv", explain=True, **view)
    stats = PatternView(stats=True, hints=("next: --watch previous ranks every head",), **view)
    for wish in (shown, stats):
        for line in patterns_screen(report, wish, theme, room).plain.splitlines():
            assert width(line) <= room, line


@pytest.mark.parametrize("room", [20, 47, 80, 150])
@pytest.mark.parametrize("count", [1, 2, 13, 60])
def test_no_line_of_a_rollout_is_too_wide(
    rollouts: Callable[..., Any], room: int, count: int
) -> None:
    rollout = rollouts(pieces=[f"t{place}" for place in range(count)])
    for theme in (Theme("viridis"), PLAIN):
        for line in rollout_screen(rollout, TEXT, theme, room, explained=True).plain.splitlines():
            assert width(line) <= room, line


def test_tokens_and_names_cannot_act_on_the_terminal(
    pattern_reports: Callable[..., Any], rollouts: Callable[..., Any]
) -> None:
    evil = "\x1b[31m[/]\x9b\u202e"
    pieces = ("<s>", evil, "\n", " \u200b")
    report = pattern_reports(
        names=("previous", evil),
        layers=5,
        pieces=pieces,
        missing=(evil,),
        notes=(evil,),
        probes=(Probe(evil, 1, 4, 4, (evil,), skipped=(evil,)),),
        not_measured={evil: evil},
    )
    drawn = ""
    for watch in (None, "previous", evil):
        view = PatternView(evil, evil, evil, watch=watch, stats=True, explain=True)
        drawn += patterns_screen(report, view, PLAIN, 90).plain
    drawn += rollout_screen(rollouts(pieces=pieces), evil, PLAIN, 90, target=evil).plain
    assert not {"\x1b", "\x9b", "\u202e", "\u200b"} & set(drawn)
