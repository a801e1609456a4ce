"""Full maps, read back from the screen: each cell's colour or glyph is its weight's."""

import re
import unicodedata
from itertools import pairwise, product

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.heatmap import Axes, heatmap
from attnviz.draw.labels import token_labels
from attnviz.draw.palette import PALETTES
from attnviz.draw.theme import Theme

ASCII = Theme(colour=False, ascii=True, encoding="ascii")
TEXTS = {
    "latin": ("<s>", " The", " cat", " saw", " the", " unbelievable", "."),
    "cjk": ("<s>", "나는", " 오늘", "漢字仮名", " a", "학교에", "."),
    "emoji": ("🎉", " 👩\u200d🚀", "🇰🇷", "e\u0301", "❤\ufe0f", "ab"),
    "bytes": ("<0xED>", "<0x95>", "<0x9C>", "\n", "\t", " ", ""),
    "hostile": ("[red]", ":smile:", "[/]", "\x1b[31m", "\u202e", "\x9b"),
}


def axes_of(report, encoding="utf-8"):
    record = report.record
    return Axes(
        token_labels(record.queries, encoding), token_labels(record.keys, encoding), record.causal
    )


def lines_of(block):
    return block.plain.split("\n")[:-1]


def nfc(text):
    """As the terminal composes it."""
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(("text", "palette"), [*zip(TEXTS, [*PALETTES, "viridis"], strict=True)])
@pytest.mark.parametrize("causal", [True, False])
def test_every_cell_has_its_colour_and_place(reports, look, step_of, palette, values, text, causal):
    report = reports(TEXTS[text], causal=causal)
    weights, axes, room = report.weights(1, 2), axes_of(report), 80
    screen = look(heatmap(weights, axes, Theme(palette), room, values), room, palette)
    cells = axes.cells(room, values)
    top, left = (0, 0) if causal else (1, axes.label_width)
    for query in range(len(axes.queries)):
        for x in range(left, room):
            key = (x - left) // cells.wide
            upper, lower = screen.cell(top + query, x)
            assert upper == lower
            if key < len(axes.keys) and (key <= query or not causal):
                assert step_of(weights[query, key]) in upper
            else:
                assert upper is None


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("room", [30, 40, 60, 80, 200])
def test_each_row_of_a_causal_map_ends_in_its_token(reports, look, text, room):
    report = reports(TEXTS[text])
    axes = axes_of(report)
    screen = look(heatmap(report.weights(0, 0), axes, Theme(), room), room)
    assert len(screen.rows) == len(axes.queries)
    for query, label in enumerate(axes.queries):
        row = screen.rows[query]
        assert screen.cell(query, 2 * query + 1)[0] is not None
        assert screen.cell(query, 2 * query + 2)[0] is None
        shown = "".join(c.data for c in row[2 * query + 2 :])
        assert nfc(shown).strip() == nfc(label)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("room", [40, 60, 80, 200])
def test_other_maps_have_words_or_numbers_over_their_columns(reports, look, text, room):
    report = reports(TEXTS[text], causal=False)
    axes = axes_of(report)
    cells = axes.cells(room, values=False)
    screen = look(heatmap(report.weights(0, 0), axes, Theme(), room), room)
    assert len(screen.rows) == len(axes.queries) + 1
    numbered = cells.header == "numbers"
    left = axes.label_width + (axes.digits + 1) * numbered
    for query, label in enumerate(axes.queries):
        shown = "".join(c.data for c in screen.rows[query + 1][:left])
        assert nfc(shown).split() == [*[str(query)] * numbered, *nfc(label).split()]
    for key, label in enumerate(axes.keys):
        cell = "".join(c.data for c in screen.rows[0][left + key * cells.wide :][: cells.wide])
        if numbered:
            assert cell.strip() == str(key)
        else:
            kept = nfc(cell).strip().rstrip("… ")
            assert nfc(label).startswith(kept)
            assert cell_len(kept) >= min(cell_len(nfc(label)), 4) or "…" in cell


@pytest.mark.parametrize("ascii_only", [True, False])
def test_without_colour_each_cell_has_its_glyph(reports, step_of, ascii_only):
    report = reports()
    weights, axes = report.weights(0, 1), axes_of(report)
    theme = Theme(colour=False, ascii=ascii_only, encoding="ascii" if ascii_only else "utf-8")
    rows = lines_of(heatmap(weights, axes, theme, 80))
    for query, row in enumerate(rows):
        cells, label = row[: 2 * query + 2], row[2 * query + 2 :]
        assert label == f" {axes.queries[query]}"
        for key in range(query + 1):
            step = step_of(weights[query, key])
            glyph = theme.ramp[step * len(theme.ramp) // 256]
            assert cells[2 * key : 2 * key + 2] == 2 * glyph


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("theme", [Theme(), Theme(colour=False, ascii=True, encoding="ascii")])
def test_values_are_the_weights_and_a_row_sums_to_one(reports, theme, causal):
    report = reports(causal=causal)
    weights, axes = report.weights(0, 0), axes_of(report)
    rows = lines_of(heatmap(weights, axes, theme, 120, values=True))[-len(axes.queries) :]
    for query, row in enumerate(rows):
        count = query + 1 if causal else len(axes.keys)
        printed = row[: 4 * count].split() if causal else row[axes.label_width :].split()
        assert len(printed) == count
        numbers = [0.0 if text == theme.trace else float(text) for text in printed]
        np.testing.assert_allclose(numbers, weights[query, :count], atol=0.005001)
        assert sum(numbers) == pytest.approx(1, abs=0.005 * len(numbers))


def test_values_by_hand():
    shown = {0.0: "0", 0.004: "·", 0.005: ".01", 0.074: ".07", 0.994: ".99", 0.996: "1.0"}
    for weight, text in shown.items():
        block = heatmap(np.array([[weight]]), Axes(["q"], ["k"]), Theme(colour=False), 40, True)
        assert lines_of(block)[-1].split() == ["q", text]


def test_values_without_room_are_refused_in_words(reports):
    for causal in (True, False):
        report = reports(TEXTS["latin"] * 2, causal=causal)
        axes, weights = axes_of(report), report.weights(0, 0)
        needed = axes.value_room()
        said = " ".join(heatmap(weights, axes, Theme(), needed - 1, True).plain.split())
        assert f"values need {needed} columns (--width {needed})" in said
        assert "values need" not in heatmap(weights, axes, Theme(), needed, True).plain


def test_columns_with_numbers_are_named_where_no_row_names_them(reports):
    keys = [f"k{i}" for i in range(20)]
    axes = axes_of(reports(["a", "b"], keys=keys, kind="cross"))
    plain = heatmap(np.full((2, 20), 0.05), axes, Theme(), 60).plain
    assert "columns: 0 k0 1 k1 2 k2" in plain
    assert "columns:" not in heatmap(np.full((2, 20), 0.05), axes, Theme(), 120).plain


def test_what_is_no_number_stays_blank(reports, look):
    report = reports(causal=False)
    weights = report.weights(0, 0).copy()
    weights[2, 3] = np.nan
    axes = axes_of(report)
    for values in (True, False):
        block = heatmap(weights, axes, Theme(), 80, values)
        screen = look(block, 80)
        cells = axes.cells(80, values)
        assert screen.cell(3, axes.label_width + 3 * cells.wide) == (None, None)
        assert screen.cell(3, axes.label_width + 4 * cells.wide) != (None, None)
        assert "nan" not in block.plain


def test_a_row_without_weights_keeps_its_label_on_the_diagonal(reports):
    """As where the sink is left out: the first token sees nothing else."""
    report = reports()
    weights = report.weights(0, 0).copy()
    weights[:, 0] = np.nan
    rows = lines_of(heatmap(weights, axes_of(report), Theme(colour=False), 80))
    assert rows[0] == f"   {axes_of(report).queries[0]}"
    assert rows[1][:2] == "  "


@pytest.mark.parametrize("room", [20, 26, 33, 40, 80, 300])
@pytest.mark.parametrize("count", [1, 7, 40, 160])
def test_the_stated_width_is_kept(reports, room, count):
    """Every width with every length; themes, values and masks in turn, which widths do not read."""
    turns = product([Theme(), Theme(colour=False), ASCII], [True, False], [True, False])
    for theme, values, causal in [*turns][(room + count) % 3 :: 3]:
        report = reports([f" word{i}한" for i in range(count)], causal=causal, heads=(1,))
        axes = axes_of(report, theme.encoding)
        block = heatmap(report.weights(0, 0), axes, theme, room, values)
        assert max(map(cell_len, lines_of(block))) <= block.width <= room


@pytest.fixture(scope="module")
def long(reports):
    return reports([f" w{i}" for i in range(400)], heads=(1,))


@pytest.mark.parametrize("theme", [Theme(), Theme(colour=False), ASCII])
@pytest.mark.parametrize("room", [40, 80, 200])
@pytest.mark.parametrize("lines", [8, 14, 40])
def test_a_long_map_keeps_its_lines_and_names_their_first_query(long, theme, room, lines):
    *rows, caption = lines_of(heatmap(long.weights(0, 0), axes_of(long), theme, room, lines=lines))
    assert len(rows) <= lines
    said = re.fullmatch(r"downsampled (\d+)[×x] \(max\)", caption)
    step = int(said[1]) * (2 if theme.half_blocks else 1)
    named = [re.search(r"(\d+) w(\d+)$", row) for row in rows]
    numbers = [int(match[1]) for match in named if match and match[1] == match[2]]
    assert numbers == list(range(0, 400, step))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("room", [40, 80, 200])
def test_a_long_map_shows_the_largest_weight_of_each_block(reports, look, step_of, causal, room):
    report = reports([f" w{i}" for i in range(400)], causal=causal, heads=(1,))
    weights = report.weights(0, 0)
    block = heatmap(weights, axes_of(report), Theme(), room)
    screen = look(block, room)
    factor = int(lines_of(block)[-1].split()[1][:-1])
    top = 0 if causal else 1
    left = 0 if causal else cell_len(lines_of(block)[0]) - len(lines_of(block)[0].lstrip())
    for row in range(-(-400 // factor)):
        for column in range(-(-400 // factor)):
            steps = screen.cell(top + row // 2, left + column)[row % 2]
            if causal and column > row:
                assert steps is None
            else:
                part = weights[row * factor :, column * factor :][:factor, :factor]
                assert step_of(part.max()) in steps


def test_forty_tokens_are_never_downsampled_and_two_queries_a_line_both_named(reports):
    texts = [f" w{i}" for i in range(40)]
    for causal in (True, False):
        report = reports(texts, causal=causal, heads=(1,))
        for theme in (Theme(), Theme(colour=False)):
            block = heatmap(report.weights(0, 0), axes_of(report), theme, 80)
            assert "downsampled" not in block.plain
            assert len(block.lines) <= 41
    report = reports(texts, heads=(1,))
    rows = lines_of(heatmap(report.weights(0, 0), axes_of(report), Theme(), 80, lines=20))
    assert len(rows) == 20
    assert rows[3].split()[-3:] == ["6", "w6", "w7"]


def test_ticks_are_the_indices_of_their_columns(reports):
    """A dense map: each number stands over the first key of its column."""
    report = reports([f" w{i}" for i in range(60)], causal=False)
    block = heatmap(report.weights(0, 0), axes_of(report), Theme(), 80)
    ticks = lines_of(block)[0]
    indent = len(ticks) - len(ticks.lstrip())
    numbers = [int(number) for number in ticks.split()]
    assert numbers[0] == 0
    for number in numbers[1:]:
        assert ticks.index(f" {number}") + 1 - indent == number
    assert all(b > a for a, b in pairwise(numbers))
