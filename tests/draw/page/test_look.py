"""The look of a page: room for the map and all heads, thumbnails, paper, the grid of heads."""

import numpy as np
import pytest

import attnviz
from attnviz.draw.svg import safe

from ..test_palette import luminance
from .test_numbers import made

PLACES = """(() => { const text = $("readout").firstChild, range = document.createRange();
return [...text.data].map((letter, at) => {
  range.setStart(text, at); range.setEnd(text, at + 1);
  return [letter, range.getBoundingClientRect().left]; }); })()"""
SIDES = "cells.map((cell) => cell.firstChild.clientWidth)"
CAT = "The cat sat on the mat because it was tired."


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
    attnviz.heatmap(weights, ("ذهبت", "مريم", "إلى", "السوق")).save(tmp_path / "page.html")
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


@pytest.fixture(scope="module")
def dozen(tmp_path_factory):
    path = tmp_path_factory.mktemp("dozen") / "page.html"
    made(12, 12, 40).save(path)
    return path


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (1600, 1000)])
def test_144_heads_have_room_and_names(opened, dozen, width, height):
    shown = opened(dozen, width=width, height=height)
    assert shown.js("state.view") == "all"
    assert min(shown.js(SIDES)) >= 60
    assert shown.js("cells.every((cell) => /H\\d+ /.test(cell.textContent))")
    assert shown.js("$('grid').scrollWidth - $('grid').clientWidth") <= 1
    assert shown.js("document.documentElement.scrollWidth") == width
    top = shown.js("$('grid').getBoundingClientRect().top")
    shown.page.hover("[data-head='5']")  # what is told above the heads has the same height
    shown.js("1")
    assert shown.js("$('grid').getBoundingClientRect().top") == top


def test_a_pointer_looks_into_a_head_and_a_click_keeps_it(opened, dozen):
    shown = opened(dozen)
    first = shown.text("#name")
    shown.do("hover", "[data-head='30']")
    assert [shown.text("#name"), shown.page.locator("#map").is_visible()] == ["L2H6", True]
    shown.do("mouse.move", 5, 5)
    assert [shown.text("#name"), shown.page.locator("#map").is_visible()] == [first, False]
    shown.page.click("[data-head='30']")
    shown.page.mouse.move(5, 5)
    shown.wait("location.hash.startsWith('#L2H6')")
    assert [shown.text("#name"), shown.page.locator("#map").is_visible()] == ["L2H6", True]
    shown.press("Escape")
    assert not shown.page.locator("#map").is_visible()
    shown.page.dblclick("[data-head='31']")
    shown.wait("location.hash.includes('view=one')")
    assert [shown.text("#name"), shown.page.locator("#grid").is_visible()] == ["L2H7", False]
    shown.page.go_back()
    shown.wait("state.view === 'all'")
    shown.page.go_back()
    shown.wait(f"$('name').textContent === '{first}'")


def test_heads_of_many_layers_are_chosen_and_enlarged(opened, tmp_path):
    made(26, 32, 8).save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert shown.page.locator("#layers button").all_inner_texts() == [
        "all layers", "L0–L11", "L12–L23", "L24–L25",
    ]  # fmt: skip
    shown.page.locator("#layers button").nth(3).click()
    shown.js("1")
    assert shown.page.locator("#grid button").count() == 64
    shown.press("+", "+")
    assert shown.js("cells[800].firstChild.clientWidth") >= 60
    assert shown.js("sheet.width * sheet.height") <= 16.1e6


def test_the_finding_is_marked_with_its_number(opened, mary):
    shown = opened(mary)
    assert shown.js("[state.query, state.key, state.locked]") == [8, 5, False]
    told = "[...document.querySelectorAll('[data-told]')].map((one) => [one.id, one.dataset.told])"
    assert shown.js(told) == [["queries-5", ".71"]]
    assert ".71 means 71% of its attention; uniform attention: .11." in shown.text("#guide")
    assert "Made by attnviz heads" in shown.text("#facts")
    shown.press("j")
    assert shown.js(told) == []


def test_the_heads_of_a_layer_lie_over_each_other(opened, mary):
    shown = opened(mary, "#L1H3&q=8&scope=over")
    chips = shown.page.locator("#pins button")
    assert chips.all_inner_texts() == ["L1H0", "L1H1", "L1H2", "L1H3"]
    hues = shown.js("inLayer().map(lineColour)")
    assert len({*hues}) == 4
    chips.nth(1).click()
    shown.js("1")
    assert shown.js("pinned().map((head) => shown.names[head])") == ["L1H0", "L1H2"]
    assert shown.js("[...current()].slice(8 * 14)[5].toFixed(2)") == "0.71"  # the chosen head's
    again = opened(mary, shown.js("location.hash"))
    assert again.js("[...state.off]") == [5]
    again.js("$('pins').children[2].dispatchEvent(new MouseEvent('click', { detail: 2 }))")
    assert again.js("[shown.names[state.head], pinned().length]") == ["L1H2", 0]


def test_links_from_one_region_to_another_are_shown_alone(opened, tmp_path):
    weights = np.random.default_rng(3).dirichlet(np.ones(6), size=(2, 6))
    attnviz.heatmap(weights, list("abcdef")).save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert not shown.page.locator("#between").is_visible()
    shown.js("shown.queries.regions = [['one', 0], ['two', 2], ['', 5]], set({}, 'head')")
    assert shown.page.locator("#between option").count() == 5
    shown.page.select_option("#between", "two → one")
    left = np.array(shown.js("[...current()].map((v) => v === v ? v : 0)")).reshape(6, 6)
    wanted = np.zeros((6, 6))
    wanted[2:5, :2] = weights[0, 2:5, :2]
    assert np.abs(left - wanted).max() < 3e-5


def test_colours_are_full_at_a_smaller_weight_and_a_map_has_the_whole_width(opened, mary):
    shown = opened(mary, "#L1H3&q=8&k=5")
    before = shown.js("[step(0.2), $('map').clientWidth]")
    shown.page.locator("#contrast select").select_option(".2")
    shown.do("click", "#wide-map")
    step, wide = shown.js("[step(0.2), $('map').clientWidth]")
    assert (before[0], step) == (114, 255)
    assert wide > before[1] * 1.5
    assert shown.js("mapView.places.cell") >= 30
    assert not shown.page.locator("#lines").is_visible()
    again = opened(mary, f"{shown.js('location.hash')}&full=0.2&room=map")
    assert again.js("[state.full, state.room]") == ["0.2", "map"]


def test_numbers_stand_in_large_cells_and_a_long_text_opens_at_the_finding(opened, dozen, mary):
    script = """(() => { const written = [], fill = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
      written.push(text); return fill.call(this, text, ...at); };
    drawMap(); CanvasRenderingContext2D.prototype.fillText = fill; return written; })()"""
    shown = opened(mary, "#L1H3&q=8&k=5", width=1600, height=1000)
    assert {".71", ".44", ".92"} <= {*shown.js(script)}
    made(4, 4, 60).save(dozen.parent / "long.html")
    shown = opened(dozen.parent / "long.html")
    assert shown.js("state.zoom") == 4
    box = "$('map').scrollTop / mapView.places.cell <= state.query"
    assert shown.js(box)
    shown.press("0")
    assert "3 best" in shown.js(script)  # names that are no neighbours have their places


def test_what_regions_give_to_regions_is_a_table(opened, tmp_path):
    weights = np.random.default_rng(3).dirichlet(np.ones(6), size=(2, 6))
    attnviz.heatmap(weights, list("abcdef")).save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    shown.js("shown.queries.regions = [['one', 0], ['two', 2], ['one', 5]], set({}, 'head')")
    one, two = [0, 1, 5], [2, 3, 4]
    wanted = [weights[0][np.ix_(a, b)].sum(1).mean() for a in (one, two) for b in (one, two)]
    found = shown.page.locator("#regions td").all_inner_texts()[1:]
    assert [float(cell) for cell in found] == pytest.approx(wanted, abs=0.0051)


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "ablate.html"
    report = attnviz.ablate("tiny", CAT)
    report.save(path)
    return path, report


def _names(shown):
    script = "[...document.querySelectorAll('.heads td[title]')].map((one) => one.dataset.name)"
    return list(shown.js(script))


def _order(shown, by):
    shown.page.locator(".order select").first.select_option(by)
    return _names(shown)


def test_heads_are_ordered_by_the_effect_of_ablation(opened, ablated):
    path, report = ablated
    shown = opened(path, ready=False)
    before = _names(shown)
    effects = {
        report.name(each.variant): each.shown(report.metric).value for each in report.effects
    }
    assert before == [*effects]
    assert _order(shown, "effect of ablation") == sorted(effects, key=lambda name: -effects[name])
    assert shown.js("document.querySelector('.heads').classList.contains('ordered')")
    labels = {report.head_name(head): label.said for head, label in report.labels.items()}
    by_label = _order(shown, "label")
    found = [labels[name] for name in by_label if name in labels]
    assert found == sorted(found, key=str.lower)
    assert {*by_label[len(found) :]}.isdisjoint(labels)
    assert _order(shown, "layer") == before


def test_a_cell_says_name_label_and_value(opened, ablated):
    shown = opened(ablated[0], ready=False)
    shown.page.locator(".heads td[data-name=L0H0]").hover()
    assert shown.text(".order span").startswith("L0H0: 0.24")
    assert "previous token" in shown.text(".order span")
    high = shown.page.locator(".heads").first.bounding_box()
    shown.page.locator(".heads td[data-name=L0H0]").focus()
    shown.press("ArrowRight", "ArrowDown")
    assert shown.text(".order span").startswith("L1H1: ")
    assert shown.page.locator(".heads").first.bounding_box() == high
    assert shown.js("document.querySelectorAll('.heads [tabindex=\"0\"]').length") == 1
    api = pytest.importorskip("axe_playwright_python.sync_playwright")
    for theme in ("light", "dark"):
        assert shown.js("document.documentElement.dataset.theme") == theme
        found = api.Axe().run(shown.page)
        assert found.violations_count == 0, found.generate_report()
        shown.page.locator("#theme").click()


def test_the_grid_stands_without_scripts_and_fits_a_phone(opened, ablated):
    shown = opened(ablated[0], ready=False, scripts=False, width=390, height=844)
    cells = shown.page.locator(".heads td[title]")
    assert cells.count() == 24
    assert cells.first.inner_text() == "+.24"
    box = shown.page.locator(".heads").first.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert shown.page.locator(".order").count() == 0


def test_every_document_with_a_grid_has_it(opened, run, tmp_path):
    asked = {
        "patterns": ["--seed", "0"],
        "why": [CAT],
        "ablate": [CAT],
        "patch": [
            "When Mary and John went out, John gave a book to",
            "When Mary and John went out, Mary gave a book to",
        ],
    }
    for command, given in asked.items():
        assert run(command, *given, "--save", f"{command}.html").code == 0
        shown = opened(tmp_path / f"{command}.html", ready=False)
        kinds = shown.page.locator(".order select").first.locator("option").all_inner_texts()
        assert kinds[0] == "layer"
        before = _names(shown)
        after = _order(shown, kinds[-1])
        assert sorted(after) == sorted(before)
        assert after != before
        assert shown.js("document.querySelectorAll('.heads td[title]').length") == len(before)
        shown.page.set_viewport_size({"width": 320, "height": 700})
        assert shown.js("document.documentElement.scrollWidth") == 320


def test_maps_answer_the_pointer_and_the_theme_is_chosen(opened, run, tmp_path):
    run("head", "L1H2", CAT, "--save", "head.html")
    shown = opened(tmp_path / "head.html", ready=False, scheme="dark", width=390)
    shown.page.locator(".maps .tip").nth(4).hover()
    assert shown.text("#told").startswith("cat (2) → The (1): 0.0")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert shown.js(ground) == "rgb(14, 18, 23)"
    shown.page.locator("#theme").click()
    assert shown.js(ground) == "rgb(255, 255, 255)"
    assert shown.page.locator(".maps > div").first.get_attribute("tabindex") == "0"  # it scrolls
