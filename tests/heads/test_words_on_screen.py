"""Legend, provenance, titles and the reading for newcomers: what the screen says in words."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from attnviz.heads.explain import explain
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.legend import legend, trait_legend
from attnviz.draw.provenance import head_title, provenance, share, trait_text, wrapped
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme
from attnviz.measures.registry import label_named
from attnviz.records import HeadsReport, Trait

Reports = Callable[..., HeadsReport]
PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def texts(lines: list[list]) -> list[str]:
    return ["".join(segment.text for segment in line) for line in lines]


def said(block: Block) -> str:
    return " ".join(block.plain.split())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, ".00"),
        (0.004, ".00"),
        (0.07, ".07"),
        (0.5, ".50"),
        (0.994, ".99"),
        (0.9999, "1.0"),
        (1.0, "1.0"),
        (1.0000002, "1.0"),
        (-1e-09, ".00"),
    ],
)
def test_a_share_takes_three_characters(value: float, shown: str) -> None:
    assert share(value) == shown


def test_a_trait_is_a_letter_where_its_name_does_not_fit() -> None:
    trait = Trait("duplicate", "D", 0.98, 0.1)
    assert trait_text(trait, 13) == "duplicate .98"
    assert trait_text(trait, 12) == "D .98"


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 33, 80])
def test_parts_are_joined_while_they_fit(theme: Theme, room: int) -> None:
    parts = ["one", "two words", "a sentence that is much longer than a line", "end", "x" * 90]
    lines = texts(wrapped([(part, False) for part in parts], room, theme))
    assert all(cell_len(line) <= room for line in lines)
    whole = " ".join(lines).replace(theme.dot, " ").split()
    assert whole[:-1] == " ".join(parts[:-1]).split()
    assert whole[-1] == "x" * (room - 1) + theme.ellipsis if room < 90 else "x" * 90


def test_the_legends_samples_have_the_colours_of_their_weights() -> None:
    line = legend(Theme(), 80).lines[0]
    samples = [
        (float(before.text), cell.style)
        for before, cell in itertools.pairwise(line)
        if re.fullmatch(r"[\d.]+ ", before.text)
    ]
    assert [weight for weight, _ in samples] == [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
    for weight, style in samples:
        step = int(weight_steps(np.array(weight)))
        assert style == Theme().cells(step, 2).style


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
def test_the_legends_glyphs_start_where_it_says(theme: Theme) -> None:
    shown = re.findall(r"(\S)\1 from ([\d.]+)", legend(theme, 200).plain)
    assert "".join(glyph for glyph, _ in shown) == theme.ramp
    for glyph, start in shown:
        weight = float(start)
        near = {theme.glyph(int(s)) for s in weight_steps(np.array([weight, weight + 0.006]))}
        assert glyph in near
        if weight:
            below = int(weight_steps(np.array(weight - 0.006)))
            assert theme.ramp.index(theme.glyph(below)) < theme.ramp.index(glyph)


@pytest.mark.parametrize("theme", [Theme(), Theme(ascii=True, encoding="ascii"), PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_the_legend_fits(theme: Theme, room: int) -> None:
    block = legend(theme, room)
    assert max(map(cell_len, block.plain.split("\n"))) <= room
    assert all(block.lines)
    assert not theme.ascii or block.plain.isascii()
    assert "weight" in block.plain
    assert not theme.colour or "colour: " in block.plain


def test_values_below_a_hundredth_are_explained() -> None:
    assert "· below .005" in said(legend(PLAIN, 80, values=True))
    assert ". below .005" in said(legend(ASCII, 80, values=True))
    assert "below .005" not in said(legend(PLAIN, 80))


def test_the_trait_legend_counts_every_head(reports: Reports) -> None:
    report = reports(heads=(5, 5))
    counted = re.findall(r"(\S) (\w+) in (\d+)", trait_legend(report, 200, PLAIN).plain)
    assert sum(int(count) for _, _, count in counted) == 10
    assert all(label_named(name).letter == letter for letter, name, _ in counted)
    assert [int(c) for *_, c in counted] == sorted((int(c) for *_, c in counted), reverse=True)


def test_provenance_names_what_a_rerun_needs(reports: Reports) -> None:
    report = reports(kv_heads=1)
    plain = said(provenance(report, "The cat", None, 200, PLAIN))
    assert plain == (
        "made · revision 0123456789ab · trained weights · float32 · "
        "2 layers × 3 heads on 1 key/value heads · 7 tokens · no seed used text The cat"
    )
    cross = reports(["a", "b"], keys=["c", "d", "e"], kind="cross", heads=(1,), revision=None)
    plain = said(provenance(cross, "c d e", "a b", 200, ASCII))
    assert "no revision - " in plain
    assert "1 layer x 1 heads - cross attention - 2 queries, 3 keys" in plain
    assert plain.endswith("text c d e target a b")


@pytest.mark.parametrize("room", [20, 40, 80])
def test_names_and_texts_of_strangers_do_nothing(reports: Reports, room: int) -> None:
    report = reports(name="../[red]\x1b[2J\u202e/" + "한" * 40)
    block = provenance(report, "a\x1b]0;x\x07\u2028b [/]\n" * 9, "t\x9b", room, PLAIN)
    assert not set("\x1b\x07\x9b\u202e\u2028") & set(block.plain)
    assert max(map(cell_len, block.plain.split("\n"))) <= room


def test_titles_say_group_trait_and_what_is_sorted_by(reports: Reports) -> None:
    report = reports(kv_heads=1, index_base=1, sorted_by="distance")
    entry = report.heads[0]
    title = " ".join(texts(head_title(report, entry, 200, PLAIN)))
    assert title.startswith(f"{report.name(entry.layer, entry.head)} · key/value head 1 · ")
    assert f"{entry.trait.name} {share(entry.trait.score)}" in title
    assert f"entropy {entry.scores['entropy']:.2f} nats" in title
    assert f"distance {entry.scores['distance']:.2f}" in title
    assert "-0.00" not in title


def test_a_title_without_measures(reports: Reports) -> None:
    nan = np.full((1, 3, 3), np.nan, np.float32)
    report = reports(["a", "b", "c"], weights=[nan], sorted_by="previous")
    title = " ".join(texts(head_title(report, report.heads[0], 200, PLAIN)))
    assert "previous not measured" in title
    assert "nan" not in title


@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_the_reading_explains_what_is_on_the_screen(reports: Reports, room: int) -> None:
    report = reports(heads=(4, 4))
    block = explain(report, PLAIN, room)
    assert max(map(cell_len, block.plain.split("\n"))) <= min(room, 100)
    words = said(block)
    assert "that half is blank" in words
    assert "The glyph grows" in words
    for name in {entry.trait.name for entry in report.heads}:
        strongest = max(
            (e for e in report.heads if e.trait.name == name), key=lambda e: e.trait.score
        )
        assert (
            f"{name} ({label_named(name).letter}): {label_named(name).meaning}; clearest of those named so: "
            in words
        )
        assert f"{report.name(strongest.layer, strongest.head)}, {share(strongest.trait.score)}."


def test_an_encoder_has_no_blank_half(reports: Reports) -> None:
    words = said(explain(reports(causal=False), Theme(), 80))
    assert "blank" not in words
    assert "The colour grows" in words
