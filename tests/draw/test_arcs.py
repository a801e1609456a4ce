"""Arcs over one line of text: each line is followed with the finger, from word to word."""

import numpy as np
import pytest

from attnviz.draw.arcs import arc_words, arcs_block, arcs_figure, arcs_lines, text_columns
from attnviz.draw.document import Arc, Arcs
from attnviz.draw.drawing import Stroke, Tip
from attnviz.draw.labels import width
from attnviz.draw.markdown import part_markdown
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def tokens(*texts):
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


def arcs(ends, *texts, lines=0):
    found = [Arc(range(q, q + 1), range(k, k + 1), weight) for q, k, weight in ends]
    return Arcs(tokens(*texts), found, [("L0H1", True)], lines)


def middle(texts, place):
    """The column above the middle of a token, in a line that begins with the first."""
    start = sum(width(text) for text in texts[:place])
    blank = len(texts[place]) - len(texts[place].lstrip())
    return (2 * start + blank + width(texts[place]) - 1) // 2


def columns(line):
    return "".join(letter + " " * (width(letter) - 1) for letter in line)


def followed(lines, column):
    """The column where the line that rises from the sign-free ``column`` comes down."""
    row = len(lines) - 1
    while lines[row][column] in "│┃┼╋":
        row -= 1
    step = {"╮": -1, "┓": -1, "╭": 1, "┏": 1}[lines[row][column]]
    column += step
    while lines[row][column] in "─━┼╋":
        column += step
    assert lines[row][column] in "╮┓╭┏"
    for lower in lines[row + 1 : -1]:
        assert lower[column] in "│┃┼╋"
    assert lines[-1][column] == "▾"
    return column


@pytest.mark.parametrize("seed", range(6))
def test_each_arc_leads_from_its_word_to_the_other(seed):
    generator = np.random.default_rng(seed)
    words = ["나는", " 👩\u200d🚀", " Old", " x", "ly", " 학교에", " sat", " it", " sea", "."]
    order = generator.permutation(len(words)).tolist()
    ends = [
        (q, k, float(generator.uniform(0.1, 1)))
        for q, k in zip(order[::2], order[1::2], strict=True)
    ]
    part = arcs(ends, *words)
    *drawn, text, _ = arcs_block(part, PLAIN, 80).plain.splitlines()
    assert text == "나는 👩🚀 Old xly 학교에 sat it sea."
    assert len(drawn) + 2 == arcs_lines(part)
    canvas = [columns(line).ljust(60) for line in drawn[1:]]
    shown = [*words]
    shown[1] = " 👩🚀"
    for query, key, _ in ends:
        assert followed(canvas, middle(shown, query)) == middle(shown, key)


def test_a_heavy_line_is_at_least_a_half():
    light, heavy = (
        arcs_block(arcs([(2, 0, weight)], "a", " b", " c"), PLAIN, 80).plain
        for weight in (0.4, 0.5)
    )
    assert light.splitlines()[1:4] == ["╭───╮", "▾   │", "a b c"]
    assert heavy.splitlines()[1:4] == ["┏━━━┓", "▾   ┃", "a b c"]
    plain = arcs_block(arcs([(2, 0, 0.5)], "a", " b", " c"), ASCII, 80).plain
    assert plain.splitlines()[1:] == [
        "+===+", "v   |", "a b c", "- from .10  = from .50  v attended to",
    ]  # fmt: skip


def test_few_lines_leave_out_the_weakest_and_a_narrow_screen_lists_words():
    words = ["a", " b", " c", " d", " e"]
    part = arcs([(4, 0, 0.9), (3, 1, 0.2), (2, 1, 0.3)], *words)
    assert arcs_lines(part) == 7
    shown = arcs_block(part._replace(lines=6), PLAIN, 80).plain.splitlines()
    assert len(shown) == 6
    assert shown[-1].endswith(" · 1 weaker left out")
    part = arcs([(2, 0, 0.4), (1, 0, 0.75)], "Old", " Tom", " sat")
    assert text_columns(part.tokens) == 11
    assert arcs_block(part, PLAIN, 10).plain.splitlines()[1] == "Tom → Old"
    assert arc_words(part) == ["Tom → Old .75", "sat → Old .40"]
    assert "Tom → Old .75 · sat → Old .40" in part_markdown(part)


def test_paper_has_a_curve_and_a_tip_for_each():
    drawing = arcs_figure(arcs([(2, 0, 0.4), (1, 0, 0.75)], "Old", " Tom", " sat"))
    curves = [item for item in drawing.items if isinstance(item, Stroke) and not item.dots]
    assert sorted(curve.dashed for curve in curves) == [False, True]
    ends = [item.points[0][0] for item in drawing.items if isinstance(item, Stroke) and item.dots]
    assert len(set(ends)) == 1  # both lead to the first word
    tips = [item.content for item in drawing.items if isinstance(item, Tip)]
    assert tips == ["Tom → Old .75", "sat → Old .40"]
