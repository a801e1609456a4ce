"""Whole screens at fixed widths, compared with the ones that a person has looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnviz.ablate.screen import ablation_screen
from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.engine.effects import Effect, Variant

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")
JOINT = Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")
THREE = [*(Variant(((layer, 3),)) for layer in range(3)), JOINT]

CASES: dict[str, tuple[dict[str, Any], int, Theme]] = {
    "all_80": ({}, 80, PLAIN),
    "all_120": ({"view": {"source": "built in: no text was given"}}, 120, PLAIN),
    "all_200": ({"layers": 4, "heads": 19}, 200, PLAIN),
    "narrow_40": ({"view": {"by_token": True}}, 40, PLAIN),
    "ascii_80": ({"view": {"by_token": True}}, 80, ASCII),
    "chosen_80": ({"variants": THREE}, 80, PLAIN),
    "by_token_100": ({"variants": THREE, "view": {"by_token": True, "top": 1}}, 100, PLAIN),
    "explained_100": ({"view": {"explain": True, "hints": ("next: --by-token",)}}, 100, PLAIN),
    "many_texts_120": (
        {
            "texts": 6,
            "mode": "mean",
            "reference": "the 6 measured texts",
            "view": {"source": "six.txt"},
        },
        120,
        PLAIN,
    ),
    "many_heads_80": ({"layers": 2, "heads": 47, "patterns": False}, 80, PLAIN),
    "kl_80": ({"metric": "kl"}, 80, PLAIN),
    "flips_80": ({"metric": "flip_rate"}, 80, PLAIN),
    "gradient_80": (
        {
            "variants": [],
            "method": "gradient",
            "gradients": {(la, h): (la + 2 * h) / 700 for la in range(3) for h in range(5)},
        },
        80,
        PLAIN,
    ),
    "budget_80": (
        {
            "variants": [Variant(((2, 4),)), Variant(((1, 4),)), Variant(((0, 4),))],
            "method": "budget",
            "rank_correlation": 0.5,
            "gradients": {(la, h): (la + 2 * h) / 700 for la in range(3) for h in range(5)},
        },
        80,
        PLAIN,
    ),
    "incomplete_80": ({"texts": 2, "complete": False, "view": {"texts_wanted": 7}}, 80, PLAIN),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, scans: Callable[..., Any], golden: Callable[[str, str], None]) -> None:
    options, room, theme = CASES[name]
    scan = scans(**options)
    drawn = ablation_screen(scan.report, scan.view, theme, room)
    golden(name, drawn.plain)


@pytest.mark.parametrize("room", [20, 33, 47, 80, 120, 200])
@pytest.mark.parametrize("colour", [True, False])
def test_no_line_is_too_wide(scans: Callable[..., Any], room: int, colour: bool) -> None:
    theme = Theme("viridis", colour=colour)
    scan = scans(
        variants=[Variant(((0, head),)) for head in range(5)] + [JOINT],
        texts=5,
        view={"by_token": True, "explain": True, "source": "a/very/long/path/of/texts.jsonl"},
        notes=("a note of some length that has to be broken where the screen ends",),
    )
    drawn = ablation_screen(scan.report, scan.view, theme, room)
    for line in drawn.plain.splitlines():
        assert width(line) <= room, line


def test_tokens_and_names_cannot_act_on_the_terminal(scans: Callable[..., Any]) -> None:
    evil = "\x1b[31m[/]\x9b\u202e"
    scan = scans(
        pieces=("<s>", evil, "\n", " \u200b"),
        view={"source": evil, "text": evil, "by_token": True, "answer": evil, "foil": evil},
        reference=evil,
        mode="mean",
        notes=(evil,),
    )
    named = Effect(Variant(((0, 1), (1, 1)), evil), loss_delta=0.1)
    report = type(scan.report)(**{**vars(scan.report), "effects": (*scan.report.effects, named)})
    drawn = ablation_screen(report, scan.view, Theme("viridis", colour=False), 90).plain
    assert not {"\x1b", "\x9b", "\u202e", "\u200b"} & set(drawn)
