"""Whole screens of ``attnviz explore``: as text in ``golden/``, their colours as a digest.

``ATTNVIZ_PICTURES=FOLDER`` writes the picture of each as SVG, to be looked at where one differs.
"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.theme import Theme
from attnviz.engine.capture import Choice
from attnviz.engine.generation import Sampling
from attnviz.inspect.explore import screen
from attnviz.inspect.explore.app import SideSource
from attnviz.inspect.explore.screen import heads_of
from attnviz.inspect.explore.session import Frame, LiveSession, SavedSession
from attnviz.inspect.heads.heads import heads_report
from attnviz.models.own import OwnAttention
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

from .playing import ASCII, COLOUR, GLYPHS, SENTENCE, SESSION, explorer, line, play

STORY = (
    "Buck did not read the newspapers, or he would have known that trouble was brewing, not "
    "alone for himself, but for every dog, strong of muscle and with warm, long hair, from Puget "
    "Sound to San Diego. Because men, groping in the Arctic darkness, had found a yellow metal, "
    "thousands of men were rushing into the Northland."
)
KOREAN = "나는 오늘 학교에 갔다 . 😀 나는 오늘"
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)
SIZES = {"80": SMALL, "120": MIDDLE, "200": LARGE}
LOOKS = {"colour": COLOUR, "glyphs": GLYPHS, "ascii": ASCII}
THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"
"""As many tokens of another model as the sentence has of the bundled one."""


def own(text, **settings):
    """Over the library's own attention, which takes any words."""
    shape = {"d_model": 32, "heads": 4, "causal": True} | settings
    choice = Choice(kind=shape.pop("kind", None), target=shape.pop("target", None))
    session = LiveSession(OwnAttention(**shape), choice)
    return lambda look: explorer(text, session=session, look=look)


@cache
def made(layers, heads, tokens):
    """Weights of random scores, with a sink, and every eighth head on the token before."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(layers * heads, tokens, tokens)).astype(np.float32)
    scores[..., 0] += 2
    before = np.arange(1, tokens)
    scores[::8, before, before - 1] += 6
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    words = ("<s>", *(f" w{place}" for place in range(1, tokens)))
    text = Tokens(tuple(range(tokens)), words, (True, *[False] * (tokens - 1)))
    kept = weights.reshape(layers, heads, tokens, tokens)
    every = tuple(range(heads))
    record = AttentionRecord(
        ModelInfo("made", None, "Made", "float32", layers, heads, heads, 8, "checkpoint"),
        *("self", True, text, text),
        tuple(LayerWeights(layer, every, each) for layer, each in enumerate(kept)),
    )
    return SavedSession(Frame("", heads_report(record, False, text="made")))


def saved(layers, heads, tokens):
    session = made(layers, heads, tokens)
    return lambda look: explorer("", session=session, look=look)


def sentence(look):
    return explorer(look=look)


def story(look):
    return explorer(STORY, look=look)


def two(look):
    return explorer(look=look, second=SideSource(SESSION, SENTENCE.replace("cat", "dog")))


CASES = {
    "sentence": (sentence, ("left", "left", "left"), "80c 120c 200c 120g 80a"),
    "grid": (sentence, ("tab", "up"), "80g"),
    "ablated": (sentence, ("]", "x"), "80c 80g"),
    "effects": (sentence, ("i", "i"), "80c 120g"),
    "change": (sentence, ("[", "[", "[", "x", "]", "]", "d", "d"), "80g 200c"),
    "written": (sentence, ("g",), "120c 200c 80g"),
    "two": (two, (), "80c 200g"),
    "difference": (two, ("d", "d"), "80a"),
    "keys": (sentence, ("question_mark",), "80c"),
    "find": (sentence, ("slash", "m"), "80c"),
    "edit": (sentence, ("e",), "80c"),
    "story": (story, ("up", "up", "left"), "80c 200c 120a"),
    "story-near": (story, ("plus", "plus", "plus", *["left"] * 12, *["up"] * 3), "80c 120c"),
    "no-sink": (sentence, ("2",), "80c"),
    "values": (sentence, ("3", "plus"), "120c"),
    "korean": (own(KOREAN), (), "80c 120c 80g"),
    "one": (own("Hello"), (), "80c"),
    "encoder": (own(SENTENCE, causal=False), ("up", "left"), "200c"),
    "cross": (own(SENTENCE, causal=False, kind="cross", target="four of a query"), (), "80c"),
    "long": (saved(1, 2, 1024), ("left", *["up"] * 2), "80c"),
    "many": (saved(32, 32, 10), ("]", ">"), "80c 200c 80a"),
}  # fmt: skip
SCREENS = [
    pytest.param(name, size, marks=pytest.mark.long if place else ())
    for name, (_, _, sizes) in CASES.items()
    for place, size in enumerate(sizes.split())
]
"""Each case in its first form always, in the others with ``-m long``."""


@pytest.mark.parametrize(("name", "form"), SCREENS, ids="-".join)
def test_screen(name, form, golden):
    opened, keys, _ = CASES[name]
    size = SIZES[form[:-1]]
    look = LOOKS[{"c": "colour", "g": "glyphs", "a": "ascii"}[form[-1]]]
    folder = os.environ.get("ATTNVIZ_PICTURES")
    played = play(opened(look), *keys, size=size, picture=folder is not None)
    if folder is not None:
        (Path(folder) / f"{name}-{form}.svg").write_text(played.svg, encoding="utf-8")
    assert len(played.lines) == size[1]
    assert max(map(cell_len, played.lines)) <= size[0]
    golden(f"{name}-{form}", f"{played.screen}\n\n{played.digest}\n")


def own_source(text, **settings):
    shape = {"d_model": 24, "heads": 4, "causal": True} | settings
    return SideSource(LiveSession(OwnAttention(**shape), Choice(), text), text)


def test_two_models_are_compared_only_over_the_same_tokens():
    played = play(explorer(second=own_source(THIRTEEN)), "d", "d", size=(200, 60))
    assert len(played.view.against.report.record.queries) == len(
        played.view.frame.report.record.queries
    )
    assert played.view.side == "a"
    assert played.lines[-1] == "no difference: tiny and mha have other tokens"
    assert "No difference: tiny and mha have other tokens" in played.lines[1]
    assert "second less first" not in played.screen


def test_a_causal_model_has_no_difference_to_one_that_is_not():
    first, second = own_source(SENTENCE), own_source(SENTENCE, heads=8, causal=False)
    played = play(explorer(session=first.session, second=second), "d", "d")
    assert played.lines[-1] == "no difference: the sides are of other kinds of attention"
    alike = own_source(SENTENCE, d_model=48)
    same = play(explorer(session=first.session, second=alike), "d", "d").view
    weights = [frame.weights(same.head) for frame in (same.frame, same.other)]
    np.testing.assert_array_equal(same.weights, weights[1] - weights[0])


def test_texts_of_as_many_tokens_are_compared_by_position():
    other = SENTENCE.replace("cat", "dog")
    played = play(explorer(second=SideSource(SESSION, other)), "d", "d", size=(120, 40))
    assert "second less first, by position" in played.screen
    longer = play(explorer(second=SideSource(SESSION, f"{other} So")), "d", "d")
    assert longer.lines[-1] == "no difference: one text has 13 tokens, the other 14 tokens"


@pytest.mark.parametrize("ending", [".json", ".svg"])
def test_a_difference_is_not_saved_as_weights(tmp_path, ending):
    path = tmp_path / f"seen{ending}"
    played = play(explorer(), "x", "d", "d", "s", line(str(path)), "enter")
    assert played.lines[-1].startswith("a difference is not saved")
    assert not path.exists()


@pytest.mark.parametrize("key", ["x", "X"])
def test_a_text_is_not_shown_with_heads_that_it_was_not_written_with(key):
    before = ["x"] if key == "X" else []
    played = play(explorer(), *before, "g", "up", key)
    assert played.view.written is None
    assert played.lines[-1].startswith("what was written with other heads is gone")
    removed = frozenset({(3, 1)}) if key == "x" else frozenset()
    assert played.view.removed == played.view.frame.removed == removed
    assert played.view.weights.shape == (13, 13)


@pytest.mark.parametrize("key", ["3", "d"])
def test_a_written_text_has_one_side_and_weights_as_they_are(key):
    played = play(explorer(), "x", "2", "d", "g", key, size=(120, 40))
    assert (played.view.mode, played.view.side) == ("raw", "a")
    assert "weights as they are: Esc leaves it" in played.lines[-1]
    assert played.lines[1].startswith("Generating without L3H1, done")
    steps = list(SESSION.generation(SENTENCE, Sampling(tokens=8), frozenset({(3, 1)})))
    np.testing.assert_array_equal(played.view.weights[12, :13], steps[0].rows[3][1])


def test_an_ablated_head_is_dark_and_links_nothing():
    before, after = play(explorer()), play(explorer(), "x", size=(80, 24))
    name = f" {after.view.name(after.view.head)}"
    assert any("ablated · object" in each for each in after.lines)
    listed = [each for each in after.lines if "→" in each[:20]]
    assert listed
    assert not any(each.endswith(name) for each in listed)
    assert any(name in each[:40] for each in before.lines if "→" in each[:20])
    whole = play(explorer(), "x", "d")
    assert "whole model · object" in whole.screen
    assert "ablated ·" not in whole.screen
    other = play(explorer(), "x", "]")
    assert "without L3H1" in other.screen
    assert after.view.dark
    assert not whole.view.dark
    part = heads_of(after.view).part
    assert part.crossed == {part.cursor}


def test_a_pair_of_next_tokens_is_whole_or_not_there():
    view = play(explorer(), "x").view
    for columns in range(60, 100):
        lines = screen.finding_lines(view, Theme(), columns, 2)
        told = " ".join("".join(text for text, *_ in line) for line in lines)
        assert told.endswith(".")
        assert ("Next" in told) == ("→ “" in told)
    rare = tuple(each._replace(probability=0.001) for each in view.frame.likely)
    none = replace(view, frame=replace(view.frame, likely=rare))
    said = "".join(text for text, *_ in screen.finding_lines(none, Theme(), 120, 1)[0])
    assert said.endswith(" <.005.")
    both = replace(none, whole=replace(view.whole, likely=rare))
    said = "".join(text for text, *_ in screen.finding_lines(both, Theme(), 120, 1)[0])
    assert said.endswith("nats/token).")
