"""What the document of heads holds, on the outlets that a person opens."""

import dataclasses
import re
from itertools import cycle, product
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len

import attnviz
from attnviz.draw.document import Group, Table
from attnviz.draw.figure import document_drawing
from attnviz.draw.html import document_html
from attnviz.draw.labels import token_labels
from attnviz.draw.svg import svg_document
from attnviz.draw.theme import Theme
from attnviz.engine.capture import capture
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsView, compare_heads
from attnviz.measures.words import Word, find_word
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention

from .conftest import screen

SVG = "{http://www.w3.org/2000/svg}"
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
MARY = "When Mary and John went to the shop, John gave a drink to Mary. Then Mary and"
SENTENCE = "The cat sat on the mat because it was tired."
KEYS, QUERIES = "the cat sat on the mat", "vier Wörter der mat"
PLAIN = Theme(colour=False)
EXPLAINED = ("values_80", "compare_mask_80", "compare_score_60_ascii")
SHOWN = {"explain": {"explain": True, "hints": True}}
TEXTS = {"text": "한국어 🎉 \x1b[2J", "target": "[red]"}


def document(*reports, **view):
    return dataclasses.replace(compare_heads(reports), view=HeadsView(**view)).document()


def parts(found, kind):
    def inside(group):
        for part in group.parts:
            yield from inside(part) if isinstance(part, Group) else [part]

    return [part for group in found.groups for part in inside(group) if isinstance(part, kind)]


def svg_texts(*reports, **view):
    drawing = document_drawing(document(*reports, **view))
    root = ElementTree.fromstring(svg_document(drawing, "viridis"))
    return [element.text for element in root.iter(f"{SVG}text")]


def test_the_figure_names_and_draws_every_head(reports):
    report = reports(heads=(5, 5), index_base=1)
    texts = svg_texts(report)
    for layer, head, _ in report.record:
        assert report.name(layer, head) in texts
    assert "L0H0" not in texts
    assert "All heads" in texts
    for token in ("The", "cat", "saw", "the"):
        assert token in texts
    assert {"0", ".05", ".25", ".50", "1"} <= set(texts)
    provenance = next(text for text in texts if text is not None and text.startswith("made · "))
    for words in ("revision 0123456789ab", "2 layers × 5 heads", "7 tokens"):
        assert words in provenance


def test_small_maps_have_every_score_in_their_tip_and_pool_long_texts(reports):
    report = reports([f"w{place}" for place in range(131)], heads=(2,))
    drawing = document_drawing(document(report))
    markup = svg_document(drawing, "viridis")
    root = ElementTree.fromstring(markup)
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any(tip.startswith("L0H0 · ") and "entropy" in tip for tip in tips)
    assert any("downsampled" in (text or "") for text in svg_texts(report))
    assert "1 token in 3 is named" in svg_texts(report)
    assert len(markup) < 1_000_000


def test_the_table_has_every_score(reports):
    report = reports(heads=(4, 4), kv_heads=2)
    (table,) = parts(document(report), Table)
    titles = [column.title for column in table.columns]
    assert titles[:5] == ["head", "key/value head", "label", "score", "uniform"]
    assert len(table.rows) == 8
    scores, cells = report.heads[5], table.rows[5].cells
    assert cells[:3] == ["L1H1", "0", scores.label.name]
    assert cells[titles.index("entropy")] == f"{scores.scores['entropy']:.3f}"
    assert cells[titles.index("next token")] == "–"
    nan = np.full((1, 3, 3), np.nan, np.float32)
    (table,) = parts(document(reports(["a", "b", "c"], weights=[nan])), Table)
    assert "nan" not in " ".join(table.rows[0].cells)


def test_links_of_the_table_lead_to_heads_of_the_page(reports):
    report = reports(heads=(5, 5))
    page = "\n".join(document_html(document(report), "viridis"))
    links = set(re.findall(r'<a href="#([^"]*)">\1</a>', page))
    assert links == {report.name(layer, head) for layer, head, _ in report.record}


@pytest.mark.parametrize("text", [MARY, "The cat sat on the mat because it was tired."])
def test_a_chip_has_a_label_only_on_a_link_that_shows_it(text):
    page = attnviz.heads("tiny", text).document().page
    shown = page()
    tokens = shown.captures[0].queries
    labelled = [look for look in shown.look if re.match(r"[a-z ]+ [.\d]+: ", look.says)]
    assert labelled
    for look in labelled:
        label, earlier = look.says.split(" .")[0], tokens.texts[: look.query]
        place = {
            "previous token": look.key == look.query - 1,
            "current token": look.key == look.query,
            "local": abs(look.key - look.query) <= 2,
            "induction": tokens.texts[look.key - 1] == tokens.texts[look.query]
            and look.key <= len(earlier),
            "punctuation": not re.search(r"\w", token_labels(tokens)[look.key]),
            "peaked": True,
        }
        assert place[label], look.says


BUNDLED = {
    "all_80": (HeadsView(), PLAIN, 80, None),
    "all_200": (HeadsView(), PLAIN, 200, None),
    "all_80_ascii": (HeadsView(), ASCII, 80, None),
    "top_80": (HeadsView(top=3), PLAIN, 80, None),
    "token_80": (HeadsView(), PLAIN, 80, None),
    "values_80": (HeadsView(values=True), PLAIN, 80, {1: {0}}),
}
COMPARED = {
    "compare_mask_80": (HeadsView(values=True), PLAIN, 80, [{}, {"causal": True}]),
    "compare_kind_80": (HeadsView(values=True), PLAIN, 80, [{}, {"target": QUERIES}]),
    "compare_score_200": (
        HeadsView(),
        PLAIN,
        200,
        [{"score": score} for score in ("additive", "dot", "scaled-dot")],
    ),
    "compare_score_60_ascii": (
        HeadsView(),
        ASCII,
        60,
        [{"score": score} for score in ("additive", "dot")],
    ),
}
GOLDEN = [*BUNDLED, *COMPARED]


def own(text=KEYS, target=None, **options):
    """A run of the library's own attention."""
    model = OwnAttention(32, **{"heads": 2, **options})
    tokens = model.encode(text)
    asking = None if target is None else model.encode_queries(target, tokens)
    kind = "self" if target is None else "cross"
    record = capture(model, tokens, kind=kind, target=asking)
    return heads_report(record, selected=False, text=text, target=target)


@pytest.fixture(scope="module")
def drawn():
    """The screen of a name; ``factor`` nudges the weights' last bits."""
    model = Bundled()

    def draw(name, factor=None):
        explain = name in EXPLAINED
        if name in COMPARED:
            view, theme, width, runs = COMPARED[name]
            found = [own(**options) for options in runs]
            runs = [nudged(each, factor) for each in found]
            return screen(runs, view, theme, width, explain=explain).plain
        view, theme, width, heads = BUNDLED[name]
        record = capture(model, model.encode(SENTENCE), kind="self", heads=heads)
        if name.startswith("token"):
            view = view._replace(words=[find_word(record, "cat")])
        report = heads_report(record, heads is not None, text=SENTENCE)
        return screen(nudged(report, factor), view, theme, width, explain=explain).plain

    return draw


def nudged(report, factor):
    if factor is None:
        return report
    layers = tuple(
        dataclasses.replace(layer, weights=layer.weights.astype(float) * factor)
        for layer in report.record.layers
    )
    record = dataclasses.replace(report.record, layers=layers)
    return heads_report(record, report.selected, text=report.text, target=report.target)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name, drawn, golden):
    golden(name, drawn(name))


@pytest.mark.parametrize(("name", "factor"), [*zip(GOLDEN, cycle((1 - 1e-6, 1 + 1e-6)))])
def test_the_last_bits_of_a_weight_change_nothing(name, factor, drawn):
    """Or the screens would differ between machines: no number sits on an edge of rounding."""
    assert drawn(name, factor) == drawn(name)


THEMES = {
    "colour": Theme(),
    "plain": Theme(colour=False),
    "coloured ascii": Theme(ascii=True, encoding="ascii"),
    "plain ascii": Theme(colour=False, ascii=True, encoding="ascii"),
}
VIEWS = {
    "all": HeadsView(),
    "values": HeadsView(values=True),
    "top": HeadsView(top=3),
    "token": HeadsView(words=[(Word(range(1)), Word(range(1)))]),
    "explain": HeadsView(),
}


def nan_maps():
    maps = np.tril(np.full((3, 5, 5), 0.2, np.float32))
    maps[1] = np.nan
    maps[2, 3] = np.nan
    return [maps]


REPORTS = {
    "sentence": {},
    "chosen": {"selected": True},
    "one token": {"texts": ["hi"]},
    "two tokens": {"texts": ["hi", " you"]},
    "200 tokens": {"texts": [f" w{i % 150}" for i in range(200)], "heads": (2,)},
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


@pytest.mark.parametrize(
    ("kind", "theme"),
    [*zip(REPORTS, cycle(THEMES)), *product(("hostile", "wide"), ("colour", "plain ascii"))],
)
def test_every_screen_fits_and_can_be_written(reports, kind, theme):
    """Every report in one theme, in turn; what strangers write also in the first and the last.

    Every view at 80 columns, and by turns at the least and the most.
    """
    report, means = compare_heads([reports(**REPORTS[kind], **TEXTS)]), THEMES[theme]
    for at, (name, view) in enumerate(VIEWS.items()):
        for width in (80, (20, 200)[at % 2]):
            block = screen(report, view, means, width, 45, **SHOWN.get(name, {}))
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


def test_which_parts_a_screen_has(reports):
    """Few heads over few tokens are all drawn in full; a choice always is."""

    def titles(view, **wishes):
        shown = SHOWN.get(view, {})
        return screen(reports(**wishes), VIEWS[view], THEMES["plain"], 80, 45, **shown).plain

    everything = titles("all", heads=(5, 5))
    assert "The most distinctive heads" in everything
    assert "Label and score of each head" in everything
    assert "links · by p, none significant" in everything
    assert "All heads" not in titles("all", heads=(3, 3))
    assert "All heads" not in titles("all", heads=(5, 5), selected=True)
    assert "strongest pairs" in titles("top", heads=(5, 5))
    assert "weight  ··" not in titles("top", heads=(5, 5))
    assert "attention to" in titles("token", heads=(5, 5))
    assert "How to read this" in titles("explain")
    assert "--token WORD" in titles("explain")
    by_entropy = titles("all", heads=(5, 5), sorted_by="entropy")
    assert "All heads by entropy" in by_entropy
    assert "The first 3 by entropy" in by_entropy
