"""What a look at the page found: text from the right, room for the map, thumbnails, paper."""

import numpy as np
import pytest

import attnviz
from attnviz.draw.svg import safe

from ..test_palette import luminance
from .test_numbers import made

FROM_THE_RIGHT = ("ذهبت", "مريم", "إلى", "السوق")

PLACES = """(() => { const text = $("readout").firstChild, range = document.createRange();
return [...text.data].map((letter, at) => {
  range.setStart(text, at); range.setEnd(text, at + 1);
  return [letter, range.getBoundingClientRect().left]; }); })()"""


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    path = tmp_path_factory.mktemp("thousand") / "page.html"
    made(32, 32, 64).save(path)
    return path


def test_the_heads_that_the_finding_names_are_marked(opened, tmp_path):
    maps = attnviz.heads("tiny", "When Nancy met John, nobody knew why Nancy met")
    assert "L5H2" in maps.finding
    assert "L1H2" in maps.finding
    maps.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert [cell.inner_text() for cell in shown.page.locator("#grid .found small").all()[::2]] == [
        "L1H2",
        "L5H2",
    ]


def test_a_text_from_the_right_reads_from_the_right_and_arrows_point_to_the_key(opened, tmp_path):
    weights = np.random.default_rng(3).dirichlet(np.ones(4), size=(3, 4))
    attnviz.heatmap(weights, FROM_THE_RIGHT).save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html", "#q=1&k=0&lock")
    words = shown.js("words.queries.map((span) => span.getBoundingClientRect().left)")
    assert words == sorted(words, reverse=True)
    assert shown.js("getComputedStyle(words.queries[0]).unicodeBidi") == "normal"  # letters join
    places = shown.js(PLACES)
    left = {letter: at for letter, at in places if letter in "م→ذ."}
    assert left["."] < left["م"] < left["→"] < left["ذ"]
    assert safe("“مريم” → ذهبت") == "“مريم\u200e”\u200e \u200e→\u200e ذهبت"
    assert safe("“Mary” → went") == "“Mary” → went"


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_the_whole_map_is_in_view_and_thumbnails_are_square(opened, thousand, mary, width, height):
    for path in (thousand, mary):
        shown = opened(path, "#view=both&zoom=0", width=width, height=height)
        assert shown.js("$('map').scrollHeight - $('map').clientHeight") <= 1
        assert shown.js("$('map').scrollWidth - $('map').clientWidth") <= 1
        if path == mary:
            tops = set()  # another head moves nothing
            for head in range(0, 24, 3):
                shown.js(f"choose({head})")
                tops.add(shown.js("$('map').getBoundingClientRect().top + scrollY"))
            assert len(tops) == 1
            continue
        box = "(at) => { const { x, y } = cells[at].getBoundingClientRect(); return [x, y]; }"
        first, right, below = (shown.js(box, at) for at in (0, 1, 32))
        assert right[0] - first[0] == pytest.approx(below[1] - first[1], abs=0.6)
        assert shown.js("$('grid').scrollWidth - $('grid').clientWidth") <= 1
        names = shown.page.locator("#grid > span").all_inner_texts()
        assert {"L0", "L16", "0", "24"} <= {*names}


@pytest.mark.parametrize(("width", "head"), [(1440, 3), (390, 13), (390, 22)])
def test_the_chosen_head_is_in_view(opened, mary, width, head):
    shown = opened(mary, "#sort=label", width=width, height=844 if width < 500 else 500)
    for at in (head, 0, head):
        shown.js(f"choose({at})")
        top, bottom, first, last = shown.js(
            "(() => { const cell = cells[state.head].getBoundingClientRect(),"
            " grid = $('grid').getBoundingClientRect();"
            " return [cell.top, cell.bottom, grid.top, grid.bottom]; })()"
        )
        assert first <= top < bottom <= last


def test_what_is_read_first_stands_first(opened, mary):
    """Long tables and pictures stand behind the scripts, so that they hold up nothing."""
    content = mary.read_text()
    parts = ("<h1>", '<main id="app"', 'id="data"', 'id="code"', 'id="static"', 'id="document"')
    places = [content.index(part) for part in parts]
    assert places == sorted(places)
    assert opened(mary).page.locator("#document details[open]").count() == 0


def test_paper_has_all_maps_and_all_lines(opened, thousand):
    shown = opened(thousand, width=1024, height=768)
    inked = shown.js(
        """(() => { print(true); const { offsetLeft, offsetTop, clientWidth } = cells[1023];
        const pixels = sheet.getContext("2d").getImageData(
          offsetLeft * 4, offsetTop * 4, clientWidth * 4, clientWidth * 4).data;
        return new Set(new Uint32Array(pixels.buffer)).size; })()"""
    )
    assert inked > 4
    for panel in ("map", "lines"):
        drawn, whole = shown.js(
            f"(([room]) => [room.firstElementChild.height, parseFloat(room.style.height) * 4])"
            f"($('{panel}').children)"
        )
        assert drawn == pytest.approx(whole, abs=2)
    shown.page.emulate_media(media="print")
    assert shown.text("#mode").split() == ["Weights", "raw"]
    assert shown.page.locator("#legend button").count() == 3
    assert shown.page.locator("#look b").first.is_visible()
    first, then = (shown.page.locator(each).bounding_box()["y"] for each in ("#map", "#grid"))
    assert first < then
    shown.js("print(false)")
    assert shown.js("paper") is False


@pytest.mark.parametrize("sizes", [(12, 12), (24, 16), (32, 8)])
def test_all_heads_are_on_one_sheet(opened, tmp_path, sizes):
    """A sheet of A4 between margins of 14 mm has 1,017 pixels from top to bottom."""
    made(*sizes, 8).save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html", width=1024)
    shown.js("print(true)")
    shown.page.emulate_media(media="print")
    shown.page.set_viewport_size({"width": 688, "height": 1017})
    assert shown.page.locator("#heads").bounding_box()["height"] < 1017
    assert shown.page.locator("h1").bounding_box()["width"] > 600
    assert shown.js("$('grid').scrollWidth - $('grid').clientWidth") <= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_shaded_word_is_readable_at_every_weight(opened, mary, scheme):
    shown = opened(mary, scheme=scheme)
    found = shown.js(
        "[...colour.map, ...colour.signed].map((word) =>"
        " [[word & 255, (word >> 8) & 255, (word >> 16) & 255], inkOn(word)])"
    )
    for ground, ink in found:
        low, high = sorted([luminance(ground), 1.0 if ink == "#ffffff" else 0.0])
        assert (high + 0.05) / (low + 0.05) >= 4.5
