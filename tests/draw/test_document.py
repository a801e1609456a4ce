"""Every kind of part on every outlet: what is said arrives, nothing is cut, nothing acts."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw import document as doc
from attnviz.draw.drawing import Label
from attnviz.draw.figure import document_drawing
from attnviz.draw.html import document_html, plain_parts
from attnviz.draw.markdown import document_markdown
from attnviz.draw.svg import svg_document
from attnviz.draw.terminal import part_block, terminal_block
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

HOSTILE = '</svg><script>alert(1)</script>\x1b[31m\u202e"&|*_'
PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
THEMES = [PLAIN, ASCII, Theme(), Theme(ascii=True, encoding="ascii")]


def _tokens(*texts):
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


def _maps(**changes):
    words = _tokens("The", " cat", " sat", HOSTILE)
    weights = np.tril(np.full((4, 4), 0.25))
    names = ("L0H1", "L1H1", "L2H1")
    titles = [[(name, True), ("found .50", False)] for name in names]
    shown = [
        doc.Map(name, weights, words, words, title, causal=True)
        for name, title in zip(names, titles, strict=True)
    ]
    return doc.Maps(shown, [("All maps", True), ("a remark", False)])._replace(**changes)


RANKED = doc.Table(
    [doc.Column("", right=False), doc.Column("loss"), doc.Column("label", right=False)],
    [
        doc.Row(["L0H1", "+0.52", "induction"], (0.52, 0.6)),
        doc.Row(["L0H2", "-0.11", HOSTILE], (-0.11, 0.6), tones={1: "bad"}),
        doc.Row(["What harms"], tone="strong", spaced=True),
        doc.Row(["L1H0", "-0.60", "±"], (-0.6, 0.6), doc.Tint(200)),
    ],
    [("Ranking", True), ("nats", False)],
    ranked=True,
    more="and 3 more",
)
LISTED = doc.Table(
    [
        doc.Column("part", right=False),
        doc.Column("count"),
        doc.Column("share", keep=2),
        doc.Column("where", False),
    ],
    [
        doc.Row(["total", "1,000", "100%", "all"], (1000, 1000), tone="strong", below=["of all"]),
        doc.Row(["queries", "300", "30%", HOSTILE], (300, 1000), doc.Tint(225), depth=1),
        doc.Row(["rest", "700", "70%", "×"], (700, 1000), ruled=True),
    ],
    [("Parameters", True)],
)
NOTED = doc.Table(
    [
        doc.Column("", right=False),
        doc.Column("", tone="strong"),
        doc.Column("", False, "faint", wraps=True),
    ],
    [
        doc.Row(["Running"], tone="strong"),
        doc.Row(
            ["cache", "12 kB", "two matrices of every layer, kept for each token that was read"]
        ),
        doc.Row(["flops", "3", ""], depth=1),
    ],
)
GRID = doc.HeadGrid(
    ["L0", "L1"],
    ["H0", "H1", "H2"],
    {
        (0, 0): doc.Cell(0.9, doc.Tint(255), ".90", "I", "all of it"),
        (0, 1): doc.Cell(-0.5, doc.Tint(20), "-.50", "D"),
        (1, 2): doc.Cell(0.0, None, "n/m", "-"),
        (1, 0): doc.Cell(math.nan),
    },
    [("What each head does", True), ("a letter a label", False)],
    [doc.Key(doc.Tint(255), "induction in 1", "I"), doc.Key(None, "in none: first")],
    doc.Scale([(0.0, "0"), (1.0, "1")], "strength"),
)
PLOT = doc.Plot(
    [("Loss", True), ("nats", False)],
    [
        doc.Curve("one", [(0, 8.0), (32, 4.0), (64, 5.0)]),
        doc.Curve("two", [(0, 7.0), (64, 6.0)], True),
    ],
    "tokens",
    marks=[doc.Mark(32, "phase two")],
    levels=[doc.Level(5.5, "limit 5.5")],
)
BARS = doc.Plot(
    [("Weights", True)],
    histograms=[
        doc.Histogram(
            "with the scale",
            [0.25, 0.5, 0.25],
            [0, 0.01, 0.1, 1],
            0.5,
            doc.Tint(112),
            [(1, ".01")],
            "words",
        )
    ],
)
PICTURE = doc.Picture(np.full((4, 6, 3), 99, np.uint8), np.eye(2), contour=1.0, mark=(0, 1),
                      box=(0.0, 0.0, 1.0, 0.5), words=[("L1H2", True)],
                      below=[("a remark", False)], alternative=HOSTILE)  # fmt: skip
PARTS = {
    "facts": doc.Facts([("tiny", True), ("6 layers × 4 heads", False)], "model", 7),
    "quote": doc.Quote("text", HOSTILE),
    "note": doc.Note("one text ± decides"),
    "say": doc.Say("Cost: without 6 of 24 heads √4 goes"),
    "ranked": RANKED,
    "listed": LISTED,
    "noted": NOTED,
    "grid": GRID,
    "maps": _maps(),
    "values": _maps(values=True),
    "small maps": _maps(small=(3, 8), across=2),
    "strip": doc.Maps(
        [doc.Map("L0", np.array([[0.5, -0.5]]), _tokens("a"), _tokens("b", "c"), limit=0.5)]
    ),
    "pictures": doc.Pictures([PICTURE], [("On the picture", True)]),
    "plot": PLOT,
    "falling plot": PLOT._replace(
        curves=[doc.Curve("one", [(64, 8.0), (32, 4.0), (0, 5.0)])], ends=(64.0, 0.0), marks=()
    ),
    "bars": BARS,
}
ALL = doc.Document(
    "every part",
    f"All of them {HOSTILE}",
    [doc.Group([part]) for part in PARTS.values()],
    doc.Explanation("heads", "so"),
    [doc.Facts([("next: more", False)], tone="faint")],
)


def _texts(drawing):
    yield from (item.content for item in drawing.items if isinstance(item, Label))
    for _, _, part in drawing.parts:
        yield from _texts(part)


def _cells(part):
    """Texts that must arrive wherever the part is drawn."""
    match part:
        case doc.Table():
            return [cell for row in part.rows for cell in row.cells if cell.isascii()]
        case doc.HeadGrid():
            return [*part.rows, *part.columns, ".90", "induction in 1"]
        case doc.Plot():
            return [each.name for each in (*part.curves, *part.levels, *part.histograms)]
        case doc.Maps():
            return [shown.name for shown in part.maps]
        case doc.Pictures():
            return ["L1H2", "a remark"]
    return []


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_says_arrives_on_every_outlet(name):
    part = PARTS[name]
    document = doc.Document("name", "title", [doc.Group([part])])
    drawn = " ".join(_texts(document_drawing(document)))
    page = "\n".join(document_html(document, "viridis"))
    text = "\n".join(document_markdown(document))
    for cell in _cells(part):
        if HOSTILE not in cell:
            assert cell in drawn
            assert cell in page
            assert cell in text
    for outlet in (drawn, page, text):
        assert "\x1b" not in outlet
        assert "\u202e" not in outlet


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("room", [20, 60, 100, 160])
def test_no_line_of_a_terminal_is_too_wide(theme, room):
    """Where only ASCII can be written signs are spelled out."""
    screen = terminal_block(ALL, theme, room).plain
    assert all(cell_len(line) <= room for line in screen.splitlines())
    assert all(line == line.rstrip() for line in screen.splitlines())
    assert "\x1b" not in screen
    assert not theme.ascii or screen.isascii()
    if theme.ascii and room == 100:
        for spelled in ("6 layers x 4 heads", "one text +- decides", "sqrt(4) goes"):
            assert spelled in screen


def test_a_picture_is_whole_and_harmless():
    drawing = document_drawing(ALL)
    root = ElementTree.fromstring(svg_document(drawing, "magma"))
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    for item, x, y in _placed(drawing, 0.0, 0.0):
        assert 0 <= x <= drawing.width, item.content
        assert 0 <= y <= drawing.height, item.content


def _placed(drawing, x, y):
    for item in drawing.items:
        if isinstance(item, Label):
            yield item, x + item.x, y + item.y
    for right, down, part in drawing.parts:
        yield from _placed(part, x + right, y + down)


def test_a_page_is_well_formed_and_loads_nothing():
    page = "\n".join(document_html(ALL, "viridis"))
    assert page.count("<script") == 2  # light or dark, and what answers the pointer
    assert "<script>alert" not in page
    assert "default-src 'none'" in page
    body = page.split("<body>")[1].split("<script>")[0]
    ElementTree.fromstring(f"<body>{body}</body>")
    assert 'id="L0H1"' in page
    assert '<a href="#L0H1">' in page


def test_a_table_leaves_columns_out_by_what_they_are_worth():
    wide = part_block(LISTED, PLAIN, 120).plain
    assert "━" in wide
    narrow = part_block(LISTED._replace(rows=LISTED.rows[:1]), PLAIN, 24).plain
    assert "count" in narrow
    assert "share" not in narrow
    ranked = part_block(RANKED, PLAIN, 22).plain
    assert "+0.52" in ranked
    assert "label" not in ranked
    table = RANKED._replace(bars="loss below")  # the caption of its bars
    assert "loss below" in part_block(table, PLAIN, 100).plain.splitlines()[1]
    document = doc.Document("name", "title", [doc.Group([table])])
    assert "loss below" in _texts(document_drawing(document))
    assert 'class="word">loss below</th>' in "".join(document_html(document, "viridis"))


def test_words_that_wrap_stand_beside_or_below():
    beside = part_block(NOTED, PLAIN, 60).plain.splitlines()
    assert beside[1].startswith("cache    12 kB  two matrices")
    assert beside[2].startswith(" " * 16 + "token")
    below = part_block(NOTED, PLAIN, 30).plain.splitlines()
    assert below[1].strip() == "cache    12 kB"
    assert below[2].startswith("    two matrices")


def _lines(group, room):
    return terminal_block(doc.Document("", "", [group]), PLAIN, room).plain.splitlines()


def test_groups_stand_side_by_side_where_there_is_room():
    parts = [doc.Group([doc.Note("left"), doc.Note("more")]), doc.Group([doc.Note("right")])]
    apart, below = "left" + " " * 20 + "right", ["left", "more", "", "right"]
    assert _lines(doc.Group(parts, beside=doc.Beside(20, gap=4)), 44) == [apart, "more"]
    assert _lines(doc.Group(parts, beside=doc.Beside(20, gap=4)), 43) == below
    assert _lines(doc.Group(parts, beside=doc.Beside(0, gap=4)), 20) == ["left    right", "more"]
    assert _lines(doc.Group(parts, spaced=True), 20) == below
    columns = [doc.Column("", right=False), doc.Column("loss")]
    table = doc.Table(columns, [doc.Row(["L0H0", "1.0"])], ranked=True)
    grid = GRID._replace(key=(), scale=None)
    group = doc.Group([grid, table], beside=doc.Beside(20, 4, yields=True))
    for room, beside in ((60, True), (24, False)):  # the grid yields to the table
        (line,) = [line for line in _lines(group, room) if "loss" in line]
        assert ("H0" in line or "What" in line) == beside


def test_a_finding_stands_under_the_title_of_files_and_is_that_of_pages():
    """What is full stands on pages and in Markdown alone."""
    groups = [doc.Group([doc.Note("facts")]), doc.Group([doc.Note("every number")], full=True)]
    document = doc.Document("name", "title", groups, finding="The answer.")
    assert [*_texts(document_drawing(document))] == ["title", "The answer.", "facts"]
    page = "".join(document_html(document, "viridis"))
    assert page.index("<h1>The answer.") < page.index(">title</p>") < page.index(">facts<")
    assert "every number" in page
    assert list(document_markdown(document))[:2] == ["## title\n", "**The answer.**\n"]
    assert "every number" in "".join(document_markdown(document))
    assert "every number" not in terminal_block(document, PLAIN, 80).plain


def test_a_document_shows_only_what_is_asked_for():
    glossary = doc.Explanation("heads", "measured here.")
    steps = doc.next_steps(["--values", "--explain: how to read this"])
    document = doc.Document("name", "title", [], glossary, steps)
    assert document.shown(explain=False, hints=True) == document._replace(explain=None)
    assert document.shown(explain=True, hints=False) == document._replace(hints=[])
    assert document.shown(explain=True, hints=True).hints == doc.next_steps(["--values"])
    alone = document._replace(hints=doc.next_steps(["--explain"]))
    assert list(alone.shown(explain=True, hints=True).hints) == []


def test_a_table_without_a_title_is_named_by_its_columns_or_rows():
    """An interactive page folds tables: nine of one report were called Table."""
    columns = [doc.Column(""), doc.Column("score"), doc.Column("chance")]
    scored = doc.Table(columns, [doc.Row(["L0H1", ".8", ".1"])])
    bare = doc.Table([doc.Column("")], [doc.Row(["attention"]), doc.Row(["MLP"])])
    parts = [doc.Say("L0H1: previous token."), scored, bare]
    document = doc.Document("name", "title", [doc.Group([]), doc.Group(parts)])
    page = "".join(plain_parts(document, "viridis", {"L0H1"}))
    assert "<h2>L0H1</h2>" in page
    assert "<summary>score, chance</summary>" in page
    assert "<summary>attention, MLP</summary>" in page


@pytest.mark.parametrize("bars", [0, 1, 2])
def test_a_table_on_a_page_has_a_column_of_bars_only_with_bars(bars):
    rows = [doc.Row(["a", "1"], bar=(1.0, 2.0) if at < bars else None) for at in range(2)]
    table = doc.Table([doc.Column("name", right=False), doc.Column("score")], rows)
    page = "".join(document_html(doc.Document("t", "h", [doc.Group([table])]), "viridis"))
    rows = re.findall(r"<tr.*?</tr>", page)
    assert {len(re.findall("<t[hd]", row)) for row in rows} == {2 + (bars > 0)}
