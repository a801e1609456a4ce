"""The page answers the hand: every control, by pointer and by key, in a real browser."""

import csv
import io

import numpy as np
import pytest

import attnviz
from attnviz.draw.labels import running_pieces
from attnviz.draw.page import data
from attnviz.records import PAIR, Tokens

from .conftest import MARY

FOCUSED = "[...document.querySelectorAll('{0} button')].indexOf(document.activeElement)"


def test_a_link_restores_the_view_and_is_written(opened, mary):
    shown = opened(mary, "#L1H0&q=10&k=3&lock&mode=sinkless&pins=L1H2")
    assert shown.text("#name") == "L1H0"
    assert shown.text("#readout").split(None, 1)[1].startswith("Mary (10) → and")
    assert "held" in shown.text("#readout")
    assert shown.page.locator("#pins button").count() == 2
    assert shown.text("#mode [aria-pressed=true]") == "without sink"
    shown.press("k", "s", "r", "p")
    shown.wait("location.hash.endsWith('L0H3')")
    link = shown.js("location.hash")[1:]
    assert link == ("L0H3&q=10&k=3&lock&mode=sinkless&scope=layer&direction=from&pins=L1H2,L0H3")
    again = opened(mary, f"#{link}")
    assert again.js("({...state, labels: []})") == shown.js("({...state, labels: []})")


def test_a_link_that_is_pasted_into_an_open_page_is_the_whole_view(opened, mary):
    shown = opened(mary, "#L1H0&q=10&mode=value&scope=all&direction=from&sort=score&pins=L1H2")
    shown.js("location.hash = '#L3H1&q=9'")
    shown.wait("shown.names[state.head] === 'L3H1'")
    kept = shown.js("[state.mode, state.scope, state.direction, state.sort, state.pins.length]")
    assert kept == ["raw", "head", "to", "layer", 0]
    shown.js("set({ mode: 'sinkless' }, 'head')")
    shown.js("location.hash = '#L3H2'")  # as tables have it: another head in the same view
    shown.wait("shown.names[state.head] === 'L3H2'")
    assert shown.js("state.mode") == "sinkless"


@pytest.mark.parametrize(
    "link",
    ["#L9H9&q=999&mode=__proto__", "#%E0%A4%A", "#L0H0&capture=7&labels=%zz",
     "#constructor=1&sort=toString", "#L0H0&zoom=-4&q=x&k=1e9", "#&&=&"],
)  # fmt: skip
def test_a_wrong_link_is_ignored(opened, mary, link):
    shown = opened(mary, link)
    assert shown.text("#name").startswith("L")
    assert shown.js("state.query < shown.n && state.key < shown.m && state.mode") == "raw"


KEYS = [
    ("j", "shown.names[state.head]", "L1H1"),
    ("k", "shown.names[state.head]", "L0H3"),
    ("ArrowDown", "shown.names[state.head]", "L2H0"),
    ("ArrowUp", "shown.names[state.head]", "L0H0"),
    ("ArrowRight", "shown.names[state.head]", "L1H1"),
    ("PageDown", "shown.names[state.head]", "L2H0"),
    ("w", "state.mode", "sinkless"),
    ("w w", "state.mode", "value"),
    ("w w w", "state.mode", "raw"),
    ("s", "state.scope", "layer"),
    ("s s", "state.scope", "all"),
    ("r", "state.direction", "from"),
    ("o", "state.sort", "label"),
    ("p", "state.pins.length", 1),
    ("p p", "state.pins.length", 0),
    ("+", "state.zoom", 1),
    ("+ -", "state.zoom", 0),
    ("+ 0", "state.zoom", 0),
    ("t", "$('weights').open", True),
    ("d", "document.documentElement.dataset.theme", "dark"),
    ("?", "$('keys').open", True),
    ("Escape", "$('keys').open", False),
]


def test_a_key_does_what_the_list_says(opened, mary):
    """One page, which goes back to the same view before each row of the table."""
    shown = opened(mary, "#L1H0")
    shown.js("window.begun = structuredClone(state), 1")
    for keys, script, value in KEYS:
        shown.js("set(structuredClone(window.begun), 'head')")
        shown.press(*keys.split())
        assert shown.js(script) == value, keys
    shown.press("?")
    listed = shown.text("#keys dl").splitlines()
    assert {"j", "k", "p", "w", "s", "r", "o", "+", "-", "0", "t", "d", "Escape", "?"} <= {*listed}


def test_tab_reaches_every_region(opened, mary):
    shown, seen = opened(mary), set()
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        seen.add(
            shown.js(
                "(() => { let e = document.activeElement; while (e && !e.id) e = e.parentElement;"
                " return e?.id ?? '' })()"
            )
        )
    wanted = {"look", "theme", "help", "sort", "legend", "grid", "scope", "mode", "direction"}
    assert wanted | {"words", "top", "map", "lines", "save-png", "neurons", "weights"} <= seen


def test_the_map_is_read_by_keys(opened, mary):
    shown = opened(mary, "#L1H0&q=5")
    shown.page.focus("#map")
    shown.press("ArrowDown", "ArrowLeft", "Enter")
    assert shown.text("#readout").split(None, 1)[1].startswith("out → went")
    assert "held" in shown.text("#readout")
    shown.wait("$('say').textContent.includes('out attends to')")
    shown.press("Escape")
    assert "held" not in shown.text("#readout")


def test_the_pointer_reads_an_exact_weight(opened, mary):
    shown = opened(mary, "#L1H0")
    weights = attnviz.capture("tiny", MARY)["L1H0"]
    shown.do("mouse.move", *shown.cell(10, 3))
    assert shown.text("#readout") == f"{weights[10, 3]:.4f} Mary (10) → and".removeprefix("0")
    shown.page.mouse.click(*shown.cell(10, 3))
    shown.do("mouse.move", *shown.cell(12, 1))
    assert "Mary (10) → and" in shown.text("#readout")
    shown.page.mouse.click(*shown.cell(10, 3))
    shown.do("mouse.move", *shown.cell(12, 1))
    assert shown.text("#readout").split(None, 1)[1].startswith("book → When")
    shown.page.mouse.move(*shown.cell(-1.2, 3))  # the name of a column
    shown.js("1")
    assert shown.js("[state.direction, state.key]") == ["from", 3]


def test_words_and_lines_are_looked_at(opened, mary):
    shown = opened(mary, "#L1H3")
    shown.do("hover", "#words [data-at='4']")
    assert shown.text("#top").startswith("John (4) attends to")
    shown.press("r")
    shown.do("hover", "#words [data-at='5']")
    assert shown.text("#top").startswith("went is attended by")
    box = shown.page.locator("#lines").bounding_box()
    row = shown.js("lineView")
    shown.do("mouse.move", box["x"] + 60, box["y"] + row["start"] + 3.5 * row["row"])
    assert shown.text("#top").startswith("and attends to")
    shown.do("mouse.click", box["x"] + 60, box["y"] + row["start"] + 3.5 * row["row"])
    assert shown.js("state.locked")
    again = opened(mary, "#L1H3&q=8")
    again.page.locator("#top button").first.click()
    again.js("1")
    assert again.js("[state.locked, state.key]") == [True, 5]


def test_what_to_look_at_is_the_librarys_finding_and_goes_there(opened, mary):
    report = attnviz.heads("tiny", MARY)
    shown = opened(mary)
    assert shown.text("h1") == report.finding
    assert shown.page.locator("#look b").first.inner_text() in report.finding
    for place in range(shown.page.locator("#look button").count()):
        button = shown.page.locator("#look button").nth(place)
        button.click()
        shown.js("1")
        assert button.inner_text().startswith(shown.text("#name"))
        assert "held" in shown.text("#readout")


def test_heads_are_ordered_and_filtered(opened, mary):
    shown, tops = opened(mary), set()
    for query in range(14):  # nothing above the map changes its height on hover
        shown.do("mouse.move", *shown.cell(query, 0))
        tops.add(shown.page.locator("#map").bounding_box()["y"])
    assert len(tops) == 1
    scores = {row["head"]: row for row in attnviz.heads("tiny", MARY).to_dict()["heads"]}
    assert scores
    for order in shown.js("Object.keys(orders())"):
        shown.do("select_option", "#sort", order)
        if order in ("entropy", "previous", "induction", "sink_weight"):
            values = shown.js(f"sorted().map((i) => shown.heads.values.{order}[i])")
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=True)
    shown.page.select_option("#sort", "label")
    shown.page.locator("#legend button", has_text="induction").click()
    shown.js("1")
    assert shown.page.locator("#grid button").count() == 3
    assert shown.text("#count") == "3 of 24"
    shown.press("j", "j", "j")
    assert shown.js("shown.label(state.head).name") == "induction"
    shown.do("select_option", "#sort", "layer")
    assert shown.page.locator("#grid button.off").count() == 21


def test_the_map_zooms_at_the_pointer(opened, mary):
    shown = opened(mary, "#L0H0&q=3", width=700)
    wide = shown.js("mapView.places.cell")
    shown.page.click("#zoom-in")
    assert shown.js("mapView.places.cell") > wide
    shown.page.click("#zoom-fit")
    assert shown.js("mapView.places.cell") == pytest.approx(wide)
    assert shown.page.locator("#zoom-out").is_disabled()
    shown.page.locator("#map").scroll_into_view_if_needed()
    shown.page.mouse.move(*shown.cell(5, 2))
    shown.page.keyboard.down("Control")
    shown.page.mouse.wheel(0, -100)
    shown.page.keyboard.up("Control")
    shown.js("1")
    assert shown.js("state.zoom") == 1


def test_the_tables_are_there(opened, mary):
    shown = opened(mary, "#L1H3")
    shown.do("click", "#weights summary")
    assert shown.page.locator("#weights td").count() == 196
    weights = attnviz.capture("tiny", MARY)["L1H3"]
    row = shown.page.locator("#weights tbody tr").nth(8).locator("td").all_inner_texts()
    assert [float(cell.replace("<", "")) for cell in row[:9]] == pytest.approx(
        weights[8, :9], abs=1.01e-3
    )
    assert row[9:] == ["–"] * 5
    shown.page.locator("#document summary", has_text="Scores").click()
    assert shown.page.locator("#document details[open] tbody tr").count() == 24
    shown.page.locator("#document details[open] a", has_text="L2H3").click()
    shown.wait("$('name').textContent === 'L2H3'")


def test_query_times_key_is_what_the_softmax_reads(opened, mary):
    shown = opened(mary, "#L2H3&q=9&k=8&lock")
    shown.do("click", "#neurons summary")
    assert shown.text("#neuron-words").startswith("gave · John (8) = ")
    worst = shown.js(
        """(() => { const { dimensions: d, scale, factor } = shown.query_key, n = shown.n;
        let worst = 0;
        for (let h = 0; h < shown.count; h++) {
          const map = shown.map([h], "raw");
          for (let i = 0; i < n; i++) {
            const e = [];
            for (let j = 0; j <= i; j++) {
              let s = 0;
              for (let c = 0; c < d; c++)
                s += (shown.vectors[(h * n + i) * d + c] / 32767) * scale[h][0]
                  * (shown.vectors[((shown.count + h) * n + j) * d + c] / 32767) * scale[h][1];
              e.push(Math.exp(s * factor));
            }
            const z = e.reduce((a, b) => a + b);
            e.forEach((v, j) => { worst = Math.max(worst, Math.abs(v / z - map[i * n + j])); });
          }
        } return worst; })()"""
    )
    assert worst < 2e-3


def saved(shown, kind, folder):
    with shown.page.expect_download() as waited:
        shown.page.click(f"#save-{kind}")
    waited.value.save_as(folder / "saved")
    return waited.value.suggested_filename, (folder / "saved").read_bytes()


def test_files_have_the_numbers_and_the_pictures(opened, mary, tmp_path):
    shown = opened(mary, "#L1H3")
    name, content = saved(shown, "csv", tmp_path)
    assert name == "attnviz-tiny-L1H3-raw.csv"
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    maps = attnviz.capture("tiny", MARY)
    assert len(rows) == 14 * 15 // 2
    for row in rows:
        there = maps["L1H3"][int(row["query"]), int(row["key"])]
        assert float(row["weight"]) == pytest.approx(there, abs=3e-5)
    for scope, some in (("layer", maps.heads(layer=1)), ("all", maps)):
        shown.js(f"set({{scope: '{scope}'}}, 'head')")
        found = np.array(shown.js("[...current()].map((v) => v === v ? v : 0)")).reshape(14, 14)
        assert np.abs(found - np.tril(np.array(some).mean(0))).max() < 3e-5
    shown.js("set({scope: 'layer', mode: 'value'}, 'head')")
    name, content = saved(shown, "png", tmp_path)
    assert name == "attnviz-tiny-Mean-of-L1-value.png"
    assert content.startswith(b"\x89PNG")
    name, content = saved(shown, "svg", tmp_path)
    assert content.startswith(b"<svg")
    assert content.count(b"<title>") == 14 * 15 // 2


def test_a_button_keeps_the_focus_when_it_acts(opened, mary):
    shown = opened(mary, "#L1H3&q=8&pins=L1H2,L2H3")
    for box, at in (("#mode", 1), ("#direction", 1), ("#legend", 0), ("#top", 1), ("#scope", 1)):
        shown.press_button(box, at)
        assert shown.js(FOCUSED.format(box)) == at, box
    shown.js("shown.steps = [3, 4, 5, 6].map((at) => [at, 'a', 0.5, []])")
    shown.js("set({ query: 3 }, 'head')")
    forward = shown.page.locator("#step button").nth(1)
    forward.focus()
    shown.press(*["Enter"] * 4)
    assert shown.js("state.query") == 6
    assert shown.js(FOCUSED.format("#step")) == 1
    shown.page.focus("#zoom-in")
    shown.press("Enter")
    shown.page.focus("#zoom-out")
    shown.press("Enter", "Enter")
    assert shown.js("[document.activeElement.id, state.zoom]") == ["zoom-out", 0]
    shown.js("cells[state.head].focus()")
    shown.press("o", "j")
    assert shown.js("document.activeElement === cells[state.head]")
    shown.press_button("#pins", 1)
    shown.press_button("#pins", 1)
    assert shown.js("document.activeElement.id") == "pin"


def test_the_view_stays_on_cells_that_can_be_seen(opened, mary):
    shown = opened(mary, "#L0H0&q=2&zoom=12", width=500, height=500)
    assert shown.js("state.zoom === mapView.places.most && state.zoom < 12")
    shown.js("set({ query: 2, key: 13 }, 'token'); zoomBy(0); zoomBy(1); zoomBy(1); zoomBy(1);")
    left = shown.js("$('map').scrollLeft / mapView.places.cell")
    assert left < 3  # a key that query 2 attends to is in view
    assert shown.js("moveToken('ArrowRight')") == {"query": 2, "key": 2}
    shown.js("zoomBy(1, { query: -1, key: -1 })")
    assert shown.js("$('map').scrollLeft / mapView.places.cell") < 3


def test_a_mean_says_how_many_heads_are_in_it(opened, mary):
    shown = opened(mary, "#L1H3")
    found = shown.js(
        """(() => { shown.kept.clear(); state.scope = "all"; const names = [];
        for (let known = 1; known < 24; known = shown.add(heads(), "raw")) {
          names.push([scopeName(known, 24), [...current()].map((v) => v === v ? v : 0)]); }
        return [names[4], scopeName(24, 24)]; })()"""
    )
    (name, mean), whole = found
    assert (name, whole) == ("Mean, 5 of 24 heads", "Mean of 24 heads")
    maps = attnviz.capture("tiny", "When Mary and John went out, John gave Mary a book.")
    wanted = np.mean([maps[place] for place in [*maps][:5]], 0)
    assert np.abs(np.reshape(mean, (14, 14)) - np.tril(wanted)).max() < 3e-5


def test_two_texts_are_joined_by_nothing_that_they_have_not():
    texts = ("[CLS]", "tired", ".", "[SEP]", "It", "is", "[SEP]")
    special = tuple(text[0] == "[" for text in texts)
    tokens = Tokens(tuple(range(7)), texts, special, regions=("a",) * 7)
    wanted = ["[CLS]", "tired", ".", "[SEP]", "It", " is", "[SEP]"]
    assert running_pieces(tokens, "tired.\nIt is") == wanted
    bare = Tokens((0, 1), ("tired.", "It"), (False, False), regions=PAIR)
    assert running_pieces(bare, "tired.\nIt") == ["tired.", "It"]
    own = Tokens((0, 1), ("tired.", "It"), (False, False))
    assert running_pieces(own, "tired.\nIt") == ["tired.", "\nIt"]


def test_a_place_has_its_number_if_the_token_repeats():
    tokens = Tokens((0, 1, 2), ("a", "b", "a"), (False,) * 3)
    capture = data.PageCapture("", "self", True, [], [], tokens, tokens, ("", ""), [])
    assert capture.link(2, 1) == "a (2) → b"
