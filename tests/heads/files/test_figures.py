"""SVG and HTML: well-formed, complete, self-contained, whatever the tokens hold."""

import re
import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from attnviz.heads.page import heads_page

from attnviz.draw.page import page_drawing, page_html
from attnviz.draw.palette import colour_table, to_hex
from attnviz.draw.scale import weight_steps
from attnviz.draw.svg import svg_document

SVG = "{http://www.w3.org/2000/svg}"


def _svg(report, text="a text", target=None, palette="viridis"):
    return svg_document(page_drawing(heads_page(report, text, target, palette)), palette)


def _html(report, text="a text", target=None, palette="viridis"):
    return "\n".join(page_html(heads_page(report, text, target, palette), palette))


def _texts(markup):
    return [element.text for element in ElementTree.fromstring(markup).iter(f"{SVG}text")]


class _Page(HTMLParser):
    """What a browser would meet."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.content = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.content.append(data)


def _assert_self_contained(markup):
    page = _Page(markup)
    assert not {"script", "link", "iframe", "object", "foreignobject", "base"} & set(page.tags)
    for _, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))
    assert "@import" not in markup
    assert "url(" not in markup
    assert "xlink" not in markup
    addresses = re.findall(r"\w+://[^\"' >]*", markup)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


def _assert_harmless(markup):
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert {c for c in markup if unicodedata.category(c) in hidden} <= {"\n"}


CASES = {
    "overview": {},
    "selected": {"selected": True, "kept": (1,)},
    "grouped": {"heads": 4, "kv_heads": 2, "index_base": 1},
    "cross": {"kind": "cross", "keys": ("x", "나는", "😀", "<0xED><0x95>")},
    "sorted": {"sorted_by": "entropy"},
    "one token": {"texts": ("only",)},
    "rows with tips": {"texts": tuple(f"w{n}" for n in range(43)), "layers": 1, "heads": 2},
    "images": {"texts": tuple(f"w{n}" for n in range(131)), "layers": 1, "heads": 2},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("write", [_svg, _html])
def test_well_formed_and_self_contained(make, write, options):
    markup = write(make(**options))
    ElementTree.fromstring(markup)
    _assert_self_contained(markup)
    _assert_harmless(markup)


@pytest.mark.parametrize("write", [_svg, _html])
def test_hostile_texts_are_only_text(make, write, hostile):
    report = make(
        texts=hostile, name="</title><script>x\x1b", notes=("<b onload='x'>\u202e",), causal=False
    )
    markup = write(report, "".join(hostile), '"><image href="file:///etc">')
    ElementTree.fromstring(markup)
    page = _Page(markup)
    _assert_harmless(markup)
    assert not {"script", "image", "b"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "</svg><script>a…" in "".join(page.content)


def test_svg_names_and_draws_every_head(make):
    report = make(index_base=1)
    texts = _texts(_svg(report))
    for layer, head in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]:
        assert f"L{layer}H{head}" in texts
    assert "L0H0" not in texts
    assert "All heads" in texts
    for token in ("The", "cat", "sat", "on", "the"):
        assert token in texts
    assert {"0", ".05", ".25", ".50", "1"} <= set(texts)
    provenance = next(text for text in texts if text.startswith("tiny · "))
    assert "revision 0123456789ab" in provenance
    assert "2 layers × 3 heads" in provenance
    assert "7 tokens" in provenance


def test_chosen_heads_are_all_drawn_without_an_overview(make):
    texts = _texts(_svg(make(heads=5, kept=(1, 3), selected=True)))
    assert "All heads" not in texts
    assert {"L0H1", "L0H3", "L1H1", "L1H3"} <= set(texts)


def test_grouped_heads_name_their_key_value_head(make):
    texts = _texts(_svg(make(heads=4, kv_heads=2, index_base=1, selected=True)))
    assert {"L1H1 kv1", "L1H2 kv1", "L1H3 kv2", "L1H4 kv2"} <= set(texts)


def test_cross_attention_has_each_text_on_its_axis(make):
    report = make(
        texts=("der", "Hund"),
        keys=("the", "old", "dog"),
        kind="cross",
        layers=1,
        heads=1,
        selected=True,
    )
    texts = _texts(_svg(report, "the old dog", "der Hund"))
    assert "target: der Hund" in texts
    assert [text for text in texts if text in ("der", "Hund", "the", "old", "dog")] == [
        "der",
        "Hund",
        "the",
        "old",
        "dog",
    ]


def _drawn_cells(markup, rows, columns):
    """The colours of the largest vector map of a drawing, '' where nothing is drawn."""
    groups = [
        group
        for group in ElementTree.fromstring(markup).iter(f"{SVG}g")
        if group.get("shape-rendering")
    ]
    cells = np.full((rows, columns), "", dtype="U7")
    for path in groups[-1]:
        for column, row, length in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path.get("d")):
            cells[int(row), int(column) : int(column) + int(length)] = path.get("stroke")
    return cells


@pytest.mark.parametrize("causal", [True, False])
def test_every_cell_has_the_colour_of_its_weight(make, causal):
    report = make(layers=1, heads=1, selected=True, causal=causal)
    cells = _drawn_cells(_svg(report, palette="magma"), 7, 7)
    table = colour_table("magma")
    steps = weight_steps(report.weights(0, 0))
    for (row, column), colour in np.ndenumerate(cells):
        future = causal and column > row
        assert colour == ("" if future else to_hex(table[steps[row, column]]))


def test_tips_tell_the_weights(make):
    report = make(layers=1, heads=1, selected=True)
    root = ElementTree.fromstring(_svg(report))
    tips = [title.text for title in root.iter(f"{SVG}title")][1:]
    weight = report.weights(0, 0)[3, 1]
    assert f"sat (3) → The (1): {weight:.4f}" in tips
    assert len(tips) == 7 * 8 // 2


def test_large_maps_are_one_image_and_say_which_tokens_are_named(make):
    texts = tuple(f"w{place}" for place in range(257))
    markup = _svg(make(texts=texts, layers=1, heads=1, causal=False))
    root = ElementTree.fromstring(markup)
    assert len(list(root.iter(f"{SVG}image"))) == 1
    assert "1 token in 3 is named" in _texts(markup)
    assert any(text.startswith("Small maps are pooled") for text in _texts(markup))
    assert len(markup) < 1_000_000


def test_weights_that_are_no_numbers_are_left_blank(make):
    report = make(layers=1, heads=1, selected=True)
    report.record.layers[0].weights[0, 4, 2] = np.nan
    cells = _drawn_cells(_svg(report), 7, 7)
    assert cells[4, 2] == ""
    assert cells[4, 1] != ""


def test_page_lists_every_score(make):
    report = make(heads=4, kv_heads=2)
    root = ElementTree.fromstring(_html(report))
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert rows[0][:5] == ["head", "key/value head", "trait", "score", "even spread"]
    assert len(rows) == 1 + 8
    scores = report.heads[5]
    assert rows[6][:3] == ["L1H1", "0", scores.trait.name]
    assert rows[6][rows[0].index("entropy")] == f"{scores.scores['entropy']:.3f}"
    assert rows[6][rows[0].index("next")] == "–"


def test_links_of_the_table_lead_to_maps(report):
    root = ElementTree.fromstring(_html(report))
    targets = {element.get("id") for element in root.iter() if element.get("id")}
    links = {element.get("href").removeprefix("#") for element in root.iter("a")}
    assert links == targets == {report.name(*place) for place in report.telling}
