"""What people missed on the page: focus, clamps, paper, forced colours, selection, means, names."""

import numpy as np

import attnviz
from attnviz.draw.labels import running_pieces
from attnviz.draw.page import data
from attnviz.records import PAIR, Tokens

FOCUSED = "[...document.querySelectorAll('{0} button')].indexOf(document.activeElement)"


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


# Without a browser ---------------------------------------------------------------------------


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
