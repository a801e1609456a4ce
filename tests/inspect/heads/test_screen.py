"""What the document of heads holds, on the outlets that a person opens."""

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import attnviz
from attnviz.draw.document import Group, Table
from attnviz.draw.figure import document_drawing
from attnviz.draw.html import document_html
from attnviz.draw.labels import token_labels
from attnviz.draw.svg import svg_document
from attnviz.draw.theme import Theme
from attnviz.inspect.heads.report import HeadsView, compare_heads

SVG = "{http://www.w3.org/2000/svg}"
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


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


# The page ------------------------------------------------------------------------------------

MARY = "When Mary and John went to the shop, John gave a drink to Mary. Then Mary and"


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
