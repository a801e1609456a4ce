"""Heads that link two words against shuffled texts, held against models whose answer is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.heads.links import DRAWS, pair_links, pair_table
from attnviz.measures.words import find_word
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.records import ModelInfo, Tokens

from ...small_models import ShowsWeights

NAMED = SimpleNamespace(name="L{}H{}".format)
"""In place of a run: gives heads their names."""

SENTENCE = "The cat sat on the mat because it was tired."
TEXT = "the old cat sat on a mat near it"


class Known(ShowsWeights):
    """A causal model with two heads: one by place alone, one by the token before the key.

    Head 0 gives each query's weight to the key two places back. Head 1 gives all weight to a key
    that stands behind the token ``cue``, else to the query itself.
    """

    def __init__(self, cue):
        self._cue = cue
        self.info = ModelInfo("known", None, "None", "float32", 1, 2, 2, 4)
        self.kinds = ("self",)
        self.context = None
        self.runs = 0
        self._words = []

    def encode(self, text, limit=None):
        words = self._words = text.split()[:limit]
        return Tokens(tuple(range(len(words))), tuple(words), (False,) * len(words))

    def notes_for(self, tokens):
        return ()

    def run_rows(self, ids, rows, wants, observe, *, norms=False):
        self.runs += len(ids)
        count = len(ids[0])
        weights = np.zeros((len(ids), 2, count, count), np.float32)
        for text, order in enumerate(ids):
            place = list(order).index(self._words.index(self._cue)) + 1
            for query in range(count):
                weights[text, 0, query, max(query - 2, 0)] = 1
                weights[text, 1, query, place if place <= query else query] = 1
        for start in range(0, count, rows):
            observe(0, start, weights[:, :, start : start + rows], None)


def links(model, text, words, draws=DRAWS, **options):
    record = capture(model, model.encode(text), kind="self", **options)
    places = find_word(record, words[0]), find_word(record, words[1])
    return pair_links(model, record, places, model.encode(text), draws)


def test_what_depends_on_place_alone_is_reached_by_every_text():
    found = links(Known("old"), TEXT, ("it", "mat"))
    assert found.names == ["it → mat"]
    assert [(link.head, link.weight, link.chance, link.reached) for link in found.links[:1]] == [
        (0, 1.0, 1.0, 1.0)
    ]


def test_what_depends_on_a_neighbour_is_chance_as_often_as_it_stands_there():
    """``old`` stands before ``cat`` in one of seven permutations of the other seven tokens."""
    model = Known("old")
    found = links(model, TEXT, ("it", "cat"), 700)
    assert model.runs == 701
    assert found.moved == 7
    (link,) = [link for link in found.links if link.head == 1]
    assert link.weight == 1.0
    assert link.chance == link.reached
    assert link.chance == pytest.approx(1 / 7, abs=0.05)
    assert found.links[0] is link


def test_weights_are_those_of_the_text():
    model = Bundled()
    tokens = model.encode("The cat sat on the mat because it was tired.")
    record = capture(model, tokens, kind="self")
    word = find_word(record, "mat"), find_word(record, "tired")
    found = pair_links(model, record, word, tokens, 3)
    assert found.names == ["tired → mat"]
    assert len(found.links) == 24
    order = [(link.reached, -link.weight) for link in found.links]
    assert order == sorted(order)
    for link in found.links:
        (weights,) = [w for at, head, w in record if (at, head) == link[:2]]
        assert link.weight == pytest.approx(float(weights[11, 6] + weights[11, 7]))  # m|at
        assert 0 <= link.chance <= 1
    again = pair_links(model, record, word, tokens, 3)
    assert again == found


@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_has_both_directions(causal):
    found = links(OwnAttention(16, 2, causal=causal), TEXT, ("cat", "it"), 2)
    assert found.names == (["it → cat"] if causal else ["cat → it", "it → cat"])


def test_across_two_texts():
    model = OwnAttention(16, 2)
    keys = model.encode("the cat sat on")
    queries = model.encode_queries("a dog ran", keys)
    record = capture(model, keys, kind="cross", target=queries)
    words = find_word(record, "dog"), find_word(record, "sat")
    found = pair_links(model, record, words, keys, 4)
    assert found.names == ["dog → sat"]
    assert found.moved == 2 + 3
    assert found.links[0].weight == pytest.approx(
        max(float(weights[1, 2]) for _, _, weights in record)
    )
    both = find_word(record, "dog"), find_word(record, "ran")
    with pytest.raises(UsageError, match="one word must be in each text"):
        pair_links(model, record, both, keys, 4)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("a b c d", ("b", "b"), "both words are the same one"),
        ("a b c", ("a", "c"), "has 1 to shuffle"),
        ("a b c d", ("a", "z"), "no token 'z' in the text"),
    ],
)
def test_what_cannot_be_measured(text, words, message):
    with pytest.raises(UsageError, match=message):
        links(Known("b"), text, words)


def test_what_beats_chance_stands_before_what_is_large():
    model = Bundled()
    found = links(model, SENTENCE, ("it", "cat"))
    first, second = found.links[:2]
    assert (first.layer, first.head, first.reached) == (5, 1, 0)
    largest = max(found.links, key=lambda link: link.weight)
    assert (largest.layer, largest.head) == (5, 2)
    assert found.reached(largest) == "5 of 50"
    assert second.reached > 0
    assert [link.beats_chance for link in found.links] == [True] + [False] * 23
    tones = [row.tone for row in pair_table(NAMED, found).rows]
    assert tones == ["plain"] + ["faint"] * 23


def test_weights_that_are_no_numbers_beat_nothing_and_stand_last():
    class Broken(Known):
        def run_rows(self, ids, rows, wants, observe, **options):
            def take(layer, start, weights, norms):
                weights[:, 0] = math.nan
                observe(layer, start, weights, norms)

            super().run_rows(ids, rows, wants, take, **options)

    found = links(Broken("old"), TEXT, ("it", "cat"), 3)
    assert [link.head for link in found.links] == [1, 0]
    lost = found.links[1]
    assert math.isnan(lost.reached)
    assert not lost.beats_chance
    assert found.reached(lost) == "? of 3"
    assert len(pair_table(NAMED, found).rows) == 1


# The command ---------------------------------------------------------------------------------

PAIR = ("--pair", "it", "cat")


def test_the_screen(run):
    result = run("heads", SENTENCE, *PAIR)
    said = "it → cat: L5H1 .11, reached by 0 of 50 texts with the other words shuffled (mean .05)."
    assert said in " ".join(result.out.split())
    assert "mean over 50 texts with the other 10 tokens shuffled" in result.out
    both = run("heads", SENTENCE, *PAIR, "--token", "it")
    assert (both.code, both.out) == (2, "")
    assert "expected one list: give --token or --pair" in both.err
