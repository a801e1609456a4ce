"""Every key of ``attnviz explore``, and the mouse: what is seen after them."""

import asyncio
import json
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from textual import events

from attnviz.draw.labels import visible
from attnviz.engine.generation import Sampling
from attnviz.errors import LoadError
from attnviz.inspect.explore import app as explorer_app
from attnviz.inspect.explore.app import at_finding
from attnviz.inspect.explore.panes import Size
from attnviz.inspect.explore.screen import finding_lines
from attnviz.inspect.explore.session import LiveSession, open_saved
from attnviz.inspect.explore.terminal_app import KEYS, Field
from attnviz.inspect.explore.view import ENDINGS, save_view
from attnviz.models.bundled import Bundled

from . import playing

LAST = 12  # the place of the full stop


def view(*keys, **settings):
    return playing.play(playing.explorer(**settings), *keys).view


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        (["left"], (LAST, LAST - 1)),
        (["h", "h"], (LAST, LAST - 2)),
        (["h", "right"], (LAST, LAST)),
        (["l"], (LAST, LAST)),  # the end of the row
        (["up"], (LAST - 1, LAST - 1)),  # no query sees a later key
        (["k", "k", "j"], (LAST - 1, LAST - 2)),
        (["h", "h", "k", "down"], (LAST, LAST - 2)),
        (["["], (LAST, LAST)),
        (["]"], (LAST, LAST)),
        (["<"], (LAST, LAST)),
        ([">"], (LAST, LAST)),
    ],
    ids=str,
)
def test_the_cursor_moves_by_arrows_and_letters(keys, place):
    """From the last cell of L3H1; brackets go to another head."""
    seen, steps = view(*keys), {"[": (2, 1), "]": (4, 1), "<": (3, 0), ">": (3, 2)}
    assert (seen.query, seen.key) == place
    assert seen.head == steps.get(keys[0], (3, 1))


def test_tab_changes_the_pane_and_arrows_then_choose_heads():
    start = view().head
    played = playing.play(playing.explorer(), "tab", "right", "down", "h", "k")
    assert played.view.head == start
    moved = playing.play(playing.explorer(), "tab", "up", "l").view.head
    assert moved == (start[0] - 1, start[1] + 1)


def test_zoom_and_the_whole_map():
    app = playing.explorer("the cat sat on the mat " * 12)
    sizes, note = playing.noting(lambda: Size.of(app.map_pane.drawn.plan))

    playing.play(app, note, "+", note, "plus", note, "+", note, "-", note, "0", note)
    assert sizes[0].zoom > 1
    assert sizes[1].zoom == -(-sizes[0].zoom // 2)
    assert sizes[3] > Size(1, 0)
    assert sizes[4] < sizes[3]
    assert sizes[5] == sizes[0]


def test_the_map_moves_with_the_cursor():
    app = playing.explorer("the cat sat on the mat " * 12)
    corners, note = playing.noting(lambda: app.map_pane.drawn.corner)

    playing.play(app, "+", "+", "+", note, *["left"] * 30, note, *["up"] * 40, note)
    assert corners[0].key > corners[1].key
    assert corners[1].query > corners[2].query
    assert all(place >= 0 for corner in corners for place in corner)


def test_find_goes_to_a_token_while_it_is_typed():
    tokens = playing.SESSION.frame(playing.SENTENCE).report.record.queries.texts
    app = playing.explorer()
    played = playing.play(app, "/", *playing.typed("beca"))
    assert tokens[played.view.query] == " because"
    assert view("/", *playing.typed("sat"), "enter").query == tokens.index(" sat")
    assert view("/", *playing.typed("sat"), "escape").query == LAST
    again = view("/", *playing.typed("the"), "enter", "/", "enter").query
    assert (
        "no token has “zzz” in it"
        in playing.play(playing.explorer(), "/", *playing.typed("zzz"), "enter").lines[-1]
    )
    assert tokens[again].strip().lower() == "the"
    assert again != view("/", *playing.typed("the"), "enter").query


def test_every_key_is_on_the_sheet_and_any_closes_it():
    sheet = playing.play(playing.explorer(), "?", size=(80, 24)).screen
    for key in KEYS:
        assert key.meaning in sheet, key
        assert key.shown in sheet
    closed = playing.play(playing.explorer(), "?", "w")
    assert "weights as they are" not in closed.screen
    for key in KEYS:
        name = key.action.partition("(")[0]
        assert hasattr(closed.app.desk, name) or hasattr(closed.app, f"action_{name}")


def test_a_mode_that_cannot_be_had_is_said():
    frame = replace(playing.SESSION.frame(playing.SENTENCE), measure_norms=dict)

    class Bare(LiveSession):
        def frame(self, text, removed=frozenset()):
            return frame

    played = playing.play(playing.explorer(session=Bare(Bundled())), "3")
    assert played.view.mode == "raw"
    assert "what values move is not known here" in played.lines[-1]


def test_a_removed_head_goes_dark_and_everything_follows():
    app = playing.explorer()
    head = app.desk.view.head
    played = playing.play(app, "x", size=(120, 40))
    expected = playing.SESSION.frame(playing.SENTENCE, frozenset({head}))
    assert played.view.frame.loss == expected.loss
    assert f"Without L{head[0]}H{head[1]}: loss" in played.lines[1]
    later = (head[0] + 1, 0)
    np.testing.assert_array_equal(played.view.frame.weights(later), expected.weights(later))
    assert "ablated" in played.screen
    (row,) = (shown for shown in played.lines if shown.startswith(f"L{head[0]} "))
    assert "×" in row
    assert playing.play(playing.explorer(), "x", "x").view.frame.removed == frozenset()
    restored = playing.play(playing.explorer(), "x", ">", "x", "X").view
    assert restored.removed == restored.frame.removed == frozenset()


def test_the_scan_is_made_once_and_heads_are_walked_by_importance():
    asked = []

    class Counting(LiveSession):
        def effects(self, text, advance):
            asked.append(text)
            return super().effects(text, advance)

    app = playing.explorer(session=Counting(Bundled()))
    walked, note = playing.noting(lambda: app.desk.view.head)

    played = playing.play(app, "x", "i", note, "i", note, "i", note, "I", note, "v", size=(120, 40))
    ranking = playing.SESSION.effects(playing.SENTENCE, lambda share: None).ranking()
    assert walked == [ranking[0], ranking[1], ranking[2], ranking[1]]
    assert asked == [playing.SENTENCE]
    assert not played.view.by_effect
    assert "2 of 24" in played.screen


def test_keys_are_answered_while_a_scan_runs_and_escape_stops_it():
    going, stopped = threading.Event(), threading.Event()

    class Slow(LiveSession):
        def effects(self, text, advance):
            for step in range(10_000):
                going.set()
                time.sleep(0.002)
                try:
                    advance(step / 10_000)
                except Exception:
                    stopped.set()
                    raise
            raise AssertionError("nobody stopped it")

    app = playing.explorer(session=Slow(Bundled()))

    async def run():
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("i")
            while not going.is_set():
                await pilot.pause(0.005)
            before = app.desk.view.key
            await pilot.press("left")
            assert app.desk.view.key == before - 1
            assert app.desk.view.scanned is not None
            await pilot.press("escape")
            await playing.settled(pilot)
            assert app.desk.view.scanned is None

    asyncio.run(run())
    assert stopped.wait(5)


def test_a_difference_by_ablation_is_the_third_map():
    app = playing.explorer()
    head = app.desk.view.head
    played = playing.play(app, "x", "]", "d", "d")
    removed = playing.SESSION.frame(playing.SENTENCE, frozenset({head}))
    after = (head[0] + 1, head[1])
    expected = removed.weights(after) - playing.SESSION.frame(playing.SENTENCE).weights(after)
    np.testing.assert_array_equal(played.view.weights, expected)
    assert "change by ablation" in played.screen
    assert "one side only" in playing.play(playing.explorer(), "d").lines[-1]


def test_another_text_is_typed_and_the_maps_follow():
    text = playing.SENTENCE[:-7] + " big"
    played = playing.play(
        playing.explorer(), "e", *["backspace"] * 7, *playing.typed(" big"), "enter"
    )
    assert played.view.frame.text == text
    np.testing.assert_array_equal(
        played.view.weights, playing.SESSION.frame(text).weights(played.view.head)
    )
    left = playing.play(playing.explorer(), "e", playing.line("abc"), "escape")
    assert left.view.frame.text == playing.SENTENCE
    assert left.view == view()


def test_the_model_writes_on_and_the_map_grows():
    played = playing.play(playing.explorer(), "g", size=(120, 40))
    written = played.view.written
    steps = list(playing.SESSION.generation(playing.SENTENCE, Sampling(tokens=8)))
    assert [step.id for step in written.steps] == [step.id for step in steps]
    assert not written.running
    count = LAST + 1 + len(steps)
    assert played.view.weights.shape == (count, count)
    layer, head = played.view.head
    np.testing.assert_array_equal(
        played.view.weights[steps[-1].query, : count - 1], steps[-1].rows[layer][head]
    )
    assert np.isnan(played.view.weights[-1]).all()
    assert "token 8 of 8" in played.lines[1]


def test_steps_back_and_on_and_leaving():
    played = playing.play(playing.explorer(), "g", "left", "h", "right")
    assert played.view.written.at == 7
    assert playing.play(playing.explorer(), "g", "escape").view.written is None
    assert len(playing.play(playing.explorer(), "g", "g").view.record.queries) == LAST + 1


def test_space_pauses_and_goes_on():
    gate = threading.Semaphore(2)

    class Gated(LiveSession):
        def generation(self, text, sampling, removed=frozenset()):
            for step in super().generation(text, sampling, removed):
                gate.acquire()
                yield step

    app = playing.explorer(session=Gated(Bundled()))

    async def run():
        async with app.run_test() as pilot:
            await pilot.press("g")
            while not (app.desk.view.written and len(app.desk.view.written.steps) == 2):
                await pilot.pause(0.005)
            await pilot.press("space")
            assert app.desk.view.written.paused
            gate.release(app.desk.tokens)
            await pilot.pause(0.1)
            assert len(app.desk.view.written.steps) == 2
            await pilot.press("space")
            await playing.settled(pilot)
            assert len(app.desk.view.written.steps) == app.desk.tokens

    asyncio.run(run())


def test_what_is_seen_is_saved(tmp_path):
    paths = [tmp_path / f"seen{ending}" for ending in ENDINGS if ending not in (".png", ".pdf")]
    said = []

    async def note(pilot):
        said.append(pilot.app.keys_pane.note or pilot.app.query_one("#words").note)

    acts = [act for path in paths for act in ("s", playing.line(str(path)), "enter", note)]
    played = playing.play(playing.explorer(), "x", *acts)
    assert said == [f"saved {path}" for path in paths]
    assert all(path.stat().st_size > 100 for path in paths)
    saved = json.loads((tmp_path / "seen.json").read_text())
    np.testing.assert_allclose(saved["heads"][0]["weights"], played.view.weights, atol=1e-6)
    assert saved["ablated"] == [[3, 1]]


def test_a_file_that_is_there_is_replaced_only_where_that_is_wanted(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text("kept")
    asked = playing.play(playing.explorer(), "s", playing.line(str(path)), "enter")
    assert asked.lines[-1].startswith("kept.json already exists: replace it?")
    for answer in ("escape", "n", "enter"):
        playing.play(playing.explorer(), "s", playing.line(str(path)), "enter", answer, "enter")
        assert path.read_text() == "kept"
    playing.play(playing.explorer(), "s", playing.line(str(path)), "enter", "y", "enter")
    assert "weights" in path.read_text()


EDITS = [
    (["a", "b", "left", "c"], "acb"),
    (["a", "b", "home", "c", "end", "d"], "cabd"),
    (["a", "b", "left", "backspace"], "b"),
    (["a", "b", "home", "delete"], "b"),
    ([*"ab", "space", *"cd", "ctrl+w"], "ab "),
    ([*"ab", "left", "ctrl+u"], "b"),
    ([*"ab", "left", "ctrl+k"], "a"),
    ([*"ab", "tab", "f1", "up"], "ab"),
]


@pytest.mark.parametrize(("keys", "left"), EDITS, ids=str)
def test_a_line_is_edited(keys, left):
    field = Field()
    for key in keys:
        field = field.typed(key, " " if key == "space" else key if len(key) == 1 else None)
    assert field.text == left


def test_a_long_line_shows_its_cursor():
    for text in ("abc " * 40, "한국어 " * 40, "\x1b[31m" * 40):
        for place in (0, 7, len(text) // 2, len(text)):
            drawn = Field(text[:place], text[place:]).line(20, playing.COLOUR)
            assert 1 <= sum(cell_len(segment.text) for segment in drawn) <= 20
            assert drawn[1].text
            assert all(segment.text.isprintable() for segment in drawn)


async def pasted(pilot):
    pilot.app.post_message(events.Paste("x q\n\x1b[31m"))


def test_what_is_pasted_is_text_and_never_keys():
    assert playing.play(playing.explorer(), pasted).lines == playing.play(playing.explorer()).lines
    played = playing.play(playing.explorer(), "e", playing.line(""), pasted)
    assert played.lines[-1].rstrip() == f"text x q {visible(chr(27))}[31m"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("~nosuchuser/x.svg", "cannot "),
        (f"{'x' * 300}.svg", "cannot "),
        ("locked/x.svg", "cannot "),
        ("there.svg/x.svg", "cannot "),
        ("", "Tab pane"),
    ],
)
def test_a_name_that_the_system_refuses_is_said(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").touch()
    (tmp_path / "there.svg").touch()
    played = playing.play(playing.explorer(), "s", playing.line(name), "enter", size=(200, 40))
    assert said in played.screen
    assert played.app.failure is None


def test_an_answer_to_an_earlier_question_is_dropped():
    """Steps of a first generation, in flight while another text is written on."""
    release, begun = threading.Event(), threading.Event()

    class Slow(LiveSession):
        def generation(self, text, sampling, removed=frozenset()):
            for step in super().generation(text, sampling, removed):
                if text == playing.SENTENCE:
                    begun.set()
                    release.wait(20)
                yield step

    app = playing.explorer(session=Slow(Bundled()))

    async def run():
        async with app.run_test() as pilot:
            await playing.settled(pilot)
            await pilot.press("g")
            await asyncio.to_thread(begun.wait, 20)
            await pilot.press("e", "ctrl+u", *playing.typed("Tom saw"), "enter")
            release.set()
            await playing.settled(pilot)
            assert app.desk.view.frame.text == "Tom saw"
            assert app.desk.view.written is None
            await pilot.press("g")
            await playing.settled(pilot)

    asyncio.run(run())
    assert app.failure is None
    written = app.desk.view.written
    assert written.steps[0].query == len(app.desk.view.frame.report.record.queries) - 1


@pytest.mark.parametrize("full", [False, True])
def test_leaving_waits_for_a_save_that_was_begun_and_tells_if_it_fails(tmp_path, monkeypatch, full):
    path, release = tmp_path / "seen.json", threading.Event()

    def slow(*given):
        release.wait(20)
        if full:
            raise LoadError("the disk is full")
        save_view(*given)

    monkeypatch.setattr(explorer_app, "save_view", slow)
    app = playing.explorer()

    async def run():
        async with app.run_test() as pilot:
            await pilot.press("s", "ctrl+u", *playing.typed(str(path)), "enter", "q")
            await pilot.pause()
            assert app.is_running
            release.set()
            while app.is_running:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    if full:
        assert str(app.failure) == "the disk is full"
    else:
        assert app.failure is None
        assert json.loads(path.read_text())["schema"] == "attnviz.heads/1"


def test_clicks_and_the_wheel():
    async def head(pilot):
        await pilot.click("#grid", offset=(5, 3))

    async def cell(pilot):
        await pilot.click("#map", offset=(4, 6))

    played = playing.play(playing.explorer(), head, cell)
    assert played.view.head == (2, 0)
    assert (played.view.query, played.view.key) == (5, 2)

    def wheel(name, kind):
        async def turn(pilot):
            widget = pilot.app.query_one(name)
            widget.post_message(kind(widget, 1, 1, 0, 0, 0, False, False, False))

        return turn

    down, up = events.MouseScrollDown, events.MouseScrollUp
    before = view("k", "k")
    moved = playing.play(playing.explorer(), "k", "k", wheel("#map", down)).view
    assert moved.query == before.query + 1
    assert playing.play(playing.explorer(), wheel("#grid", up)).view.head == (3, 0)


def test_a_smaller_terminal_and_back():
    async def smaller(pilot):
        await pilot.resize_terminal(80, 24)

    resized = playing.play(playing.explorer(), smaller, size=(200, 60))
    assert resized.lines == playing.play(playing.explorer(), size=(80, 24)).lines


@pytest.mark.parametrize("key", ["x", "e", "i", "v"])
def test_what_was_saved_has_no_model(run, tmp_path, key):
    path = tmp_path / "heads.npz"
    assert run("heads", playing.SENTENCE, "--save", str(path)).code == 0
    session = open_saved(path)
    played = playing.play(playing.explorer(session.seen.text, session=session), key, size=(120, 40))
    assert "explore the model itself" in played.lines[-1]
    np.testing.assert_array_equal(
        played.view.weights, playing.SESSION.frame(playing.SENTENCE).weights(played.view.head)
    )


@pytest.mark.parametrize(
    ("text", "look"),
    [
        ("a\x1b[31mb\x07 [red]x[/red] [/]", playing.GLYPHS),
        ("\u202e한국어 😀 \ud7ff\ufffd a", playing.ASCII),
    ],
)
def test_tokens_of_strangers_are_harmless(text, look):
    app = playing.explorer(text, look=look)
    played = playing.play(app, "left", "g", "escape", "y")
    asked = playing.play(playing.explorer(text, look=look), "e", "home")
    for shown in (*played.lines, *asked.lines, played.app.clipboard):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    if look is playing.ASCII:
        assert played.screen.isascii()


def test_it_opens_on_its_finding():
    mary = "When Mary and John went out, John gave Mary a book."
    begun = at_finding(playing.explorer(mary).desk.view)
    assert begun.name(begun.head) == "L1H3"
    labels = begun.record.queries.texts
    assert [labels[begun.query], labels[begun.key]] == [" John", " went"]
    first, _ = finding_lines(begun, playing.GLYPHS, 80, 2)
    assert first[0].text.startswith("Induction: L1H3 attends (.71) from “John” (8) to “went”")
    (cut,) = finding_lines(begun, playing.GLYPHS, 50, 1)
    assert cut[0].text.endswith("…")
    other = playing.SESSION.frame(mary, frozenset({(1, 3)}))
    both = at_finding(replace(begun, other=other))
    moved = finding_lines(both, playing.GLYPHS, 200, 1)[0][0].text
    assert moved.startswith(f"{both.name(both.head)} moved most")


def test_a_suggestion_is_replaced_by_typing_and_a_line_feed_is_enter(tmp_path):
    given = Field("L3H1.svg", suggested=True)
    assert given.typed("s", "s").text == "s"
    assert given.with_text("seen.svg").text == "seen.svg"
    assert given.typed("backspace", None).text == ""
    assert given.typed("left", None).typed("x", "x").text == "L3H1.svxg"
    path = tmp_path / "sx.json"
    played = playing.play(playing.explorer(), "s", *playing.typed(str(path)), "ctrl+j")
    assert path.exists()
    assert played.app.keys_pane.asked is None
