"""All heads over the whole width: their size and names, the preview, and the way back."""

import numpy as np
import pytest

import attnviz

from .test_numbers import made

SIDES = "cells.map((cell) => cell.firstChild.clientWidth)"


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
