"""Whole screens on every kind of terminal: nothing too wide, nothing that cannot be written."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attnviz.heads.screen import View, heads_screen
from attnviz.heads.token_view import Word
from rich.cells import cell_len
from rich.console import Console

from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

Reports = Callable[..., HeadsReport]

WIDTHS = (20, 40, 80, 120, 200, 300)
THEMES = {
    "colour": Theme(),
    "plain": Theme(colour=False),
    "coloured ascii": Theme(ascii=True, encoding="ascii"),
    "plain ascii": Theme(colour=False, ascii=True, encoding="ascii"),
}
VIEWS = {
    "all": View("The cat saw the cat."),
    "values": View("The cat saw the cat.", values=True),
    "top": View("The cat saw the cat.", top=3),
    "token": View("The cat", token=(Word(range(1)), Word(range(1)))),
    "explain": View(
        "한국어 🎉 \x1b[2J", target="[red]", explain=True, hints=("a hint to read",) * 3
    ),
}


def nan_maps() -> list[np.ndarray]:
    maps = np.tril(np.full((3, 5, 5), 0.2, np.float32))
    maps[1] = np.nan
    maps[2, 3] = np.nan
    return [maps]


REPORTS: dict[str, dict[str, Any]] = {
    "sentence": {},
    "chosen": {"selected": True},
    "one token": {"texts": ["hi"]},
    "two tokens": {"texts": ["hi", " you"]},
    "400 tokens": {"texts": [f" w{i % 150}" for i in range(400)], "heads": (2, 2)},
    "twelve": {"texts": [f" w{i}" for i in range(15)], "heads": (12,) * 12},
    "one head": {"heads": (1,), "selected": True},
    "uneven heads": {"heads": (9, 2, 5), "texts": [f" w{i}" for i in range(20)]},
    "cross": {"texts": list("abcd"), "keys": list("uvwxyz"), "kind": "cross"},
    "many keys": {"texts": ["a"], "keys": [f"k{i}" for i in range(99)], "kind": "cross"},
    "encoder": {"causal": False},
    "wide": {"texts": ["<s>", "나는", " 오늘", "👩\u200d🚀", "🇰🇷", "e\u0301", "学校" * 12]},
    "hostile": {"texts": ["[red]", "\x1b[31m", "\u202e", ":smile:", "[/]"], "name": "\x9b[/]"},
    "holes": {"texts": list("abcde"), "weights": nan_maps()},
    "sorted": {"heads": (6, 6), "sorted_by": "normalised_entropy"},
    "from one, in groups": {"heads": (6, 6), "kv_heads": 2, "index_base": 1},
    "notes": {"notes": ("a note of \x1b[1m quite some words, and " + "one" * 99,) * 2},
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", REPORTS)
def test_every_screen_fits_and_can_be_written(reports: Reports, kind: str, theme: str) -> None:
    report, means = reports(**REPORTS[kind]), THEMES[theme]
    for name, view in VIEWS.items():
        for width in WIDTHS:
            block = heads_screen(report, view, means, width, 45)
            plain = block.plain
            assert block.width <= width, (name, width)
            assert max(map(cell_len, plain.split("\n"))) <= width, (name, width)
            for line in block.lines:
                assert sum(segment.cell_length for segment in line) <= width, (name, width)
            assert not set("\x1b\x9b\u202e\t\r") & set(plain)
            assert "nan" not in plain
            assert "-0.00" not in plain
            if means.ascii:
                assert plain.isascii(), (name, width)


def test_thirty_two_by_thirty_two_heads(reports: Reports) -> None:
    report = reports([f" w{i}" for i in range(9)], heads=(32,) * 32)
    for theme in THEMES.values():
        block = heads_screen(report, VIEWS["all"], theme, 80, 45)
        assert max(map(cell_len, block.plain.split("\n"))) <= 80


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "euc-kr", "utf-8"])
@pytest.mark.parametrize("kind", ["sentence", "wide", "hostile", "cross", "sorted"])
def test_any_stream_can_carry_its_screen(reports: Reports, kind: str, encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    console = Console(
        file=stream, force_terminal=True, color_system="truecolor", width=60, legacy_windows=False
    )
    theme = Theme.of(console, "viridis", ascii_only=False)
    for view in VIEWS.values():
        console.print(
            heads_screen(reports(**REPORTS[kind]), view, theme, 60, 45), end="", soft_wrap=True
        )
    stream.flush()
    assert len(raw.getvalue().decode(encoding)) > 1000


def test_no_colour_codes_without_colour(reports: Reports) -> None:
    for environ in ({"TERM": "dumb"}, {"TERM": "xterm-256color", "NO_COLOR": "1"}):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=True, width=80, _environ=environ)
        theme = Theme.of(console, "viridis", ascii_only=False)
        console.print(heads_screen(reports(), VIEWS["all"], theme, 80, 45), end="", soft_wrap=True)
        assert not re.search(r"\x1b\[[0-9;]*[34]8;", stream.getvalue())
        assert "█" in stream.getvalue()
        assert "▀" not in stream.getvalue()


def test_which_parts_a_screen_has(reports: Reports) -> None:
    """Few heads over few tokens are all drawn in full; a choice always is."""

    def titles(view: str, **wishes: Any) -> str:
        return heads_screen(reports(**wishes), VIEWS[view], THEMES["plain"], 80, 45).plain

    everything = titles("all", heads=(5, 5))
    assert "The most telling heads" in everything
    assert "traits · " in everything
    assert "traits · " not in titles("all", heads=(3, 3))
    assert "traits · " not in titles("all", heads=(5, 5), selected=True)
    assert "strongest pairs" in titles("top", heads=(5, 5))
    assert "weight  ··" not in titles("top", heads=(5, 5))
    assert "looks at" in titles("token", heads=(5, 5))
    assert "How to read this" in titles("explain")
    assert "a hint to read" in titles("explain")
    by_entropy = titles("all", heads=(5, 5), sorted_by="entropy")
    assert "heads by entropy" in by_entropy
    assert "The first 3 by entropy" in by_entropy


def test_chosen_heads_are_drawn_in_their_order_side_by_side(reports: Reports) -> None:
    report = reports(heads=(2, 2), selected=True)
    plain = heads_screen(report, VIEWS["all"], THEMES["plain"], 200, 45).plain
    [line] = [line for line in plain.split("\n") if "L0H0" in line]
    assert re.findall(r"L\dH\d", line) == ["L0H0", "L0H1", "L1H0", "L1H1"]


def test_a_taller_terminal_gives_larger_maps(reports: Reports) -> None:
    report = reports([f" w{i}" for i in range(30)], heads=(3,) * 6)
    above = [
        heads_screen(report, VIEWS["all"], Theme(), 160, height).plain.partition("The most")[0]
        for height in (10, 45, 90)
    ]
    assert above[0] == above[1]
    assert above[1].count("\n") <= 45 < above[2].count("\n") <= 90
