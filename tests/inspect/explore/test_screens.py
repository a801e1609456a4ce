"""Whole screens of ``attnviz explore``: as text in ``golden/``, their colours as a digest.

``ATTNVIZ_PICTURES=FOLDER`` writes the picture of each as SVG, to be looked at where one differs.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.engine.capture import Choice
from attnviz.inspect.explore.app import SideSource
from attnviz.inspect.explore.session import Frame, LiveSession, SavedSession
from attnviz.inspect.heads.heads import heads_report
from attnviz.models.own import OwnAttention
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

from .playing import ASCII, COLOUR, GLYPHS, SENTENCE, SESSION, explorer, play

STORY = (
    "Buck did not read the newspapers, or he would have known that trouble was brewing, not "
    "alone for himself, but for every dog, strong of muscle and with warm, long hair, from Puget "
    "Sound to San Diego. Because men, groping in the Arctic darkness, had found a yellow metal, "
    "thousands of men were rushing into the Northland."
)
KOREAN = "나는 오늘 학교에 갔다 . 😀 나는 오늘"


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


SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)
SIZES = {"80": SMALL, "120": MIDDLE, "200": LARGE}
LOOKS = {"colour": COLOUR, "glyphs": GLYPHS, "ascii": ASCII}

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
