"""Links between tokens, of one word, and each head's strongest pairs, against sorting by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.heads.links import (
    DRAWS,
    attention_from,
    attention_to,
    head_links,
    links_table,
    named_word,
    pair_links,
    pair_table,
    pairs_table,
    strongest_links,
    word_links,
    word_maps,
)
from attnviz.measures.words import Word, find_word
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.records import ModelInfo, Tokens

from ...small_models import ShowsWeights

SENTENCE = "The cat sat on the mat because it was tired."
NAMED = SimpleNamespace(name="L{}H{}".format)
"""In place of a run: gives heads their names."""
TEXT = "the old cat sat on a mat near it"
PAIR = ("--pair", "it", "cat")


def test_links_are_the_largest_weights_between_words(reports):
    """Sorted by hand: no special token, no token to itself, a pair once, a head at most twice."""
    report = reports(heads=(3, 3))  # <s> The cat saw the cat .
    every = sorted(
        (
            (float(weights[q, k]), layer, head, q, k)
            for layer, head, weights in report.record
            for q in range(1, 7)
            for k in range(1, 7)
            if q != k and weights[q, k] > 0
        ),
        reverse=True,
    )
    expected = []
    for _, layer, head, q, k in every:
        often = sum(link[:2] == (layer, head) for link in expected)
        if often < 2 and (q, k) not in [link[2:] for link in expected]:
            expected.append((layer, head, q, k))
    assert [link[:4] for link in strongest_links(report, 5)] == expected[:5]
    for link in strongest_links(report, 5):
        weights = report.weights(link.layer, link.head)
        assert link.weight == pytest.approx(float(weights[link.query, link.key]))


def test_an_unusual_link_is_further_above_the_weights_of_its_head(reports):
    """A head of previous tokens with one other link, and one that attends to the same word."""
    size = 12
    follower, faithful = np.full((2, size, size), 0.01, np.float32)
    follower[np.arange(1, size), np.arange(size - 1)] = 0.9
    follower[9, 4] = 0.6
    faithful[3:, 2] = 0.95
    weights = np.tril(np.stack([follower, faithful]))
    report = reports([f"w{place}" for place in range(size)], weights=[weights])
    (found,) = strongest_links(report, 1, unusual=True)
    assert found[:4] == (0, 0, 9, 4)
    assert found.weight == pytest.approx(0.6)
    assert strongest_links(report, 1)[0].head == 1


def test_unusual_links_are_those_that_single_cells_give(reports):
    """Of each cell, one by one, the mean of its distance and that of its key are taken off."""
    size = 20
    weights = np.tril(np.random.default_rng(3).dirichlet(np.full(size, 0.2), size))
    report = reports([f"w{place}" for place in range(size)], weights=[weights[None]])
    cells = [(q, k) for q in range(1, size) for k in range(1, size) if q != k]
    above = {}
    for q, k in cells:
        far = [weights[a, b] for a, b in cells if a - b == q - k]
        to_key = [weights[a, b] for a, b in cells if b == k]
        above[q, k] = weights[q, k] - max(np.mean(far), np.mean(to_key))
    found = [link[2:4] for link in strongest_links(report, 9, of_each=9, unusual=True)]
    assert found == sorted(above, key=lambda cell: -above[cell])[:9]


def test_cross_attention_has_links_on_the_diagonal(reports):
    weights = np.array([[[0.9, 0.1], [0.2, 0.8]]], np.float32)
    report = reports(["q", "r"], keys=["k", "l"], kind="cross", weights=[weights])
    assert [link[2:4] for link in strongest_links(report, 2)] == [(0, 0), (1, 1)]


def test_many_weights_give_the_same_as_few(reports):
    """Beyond 2**14 weights the largest are selected, not sorted."""
    report = reports([f"w{place}" for place in range(150)], heads=(1,))
    weights = report.weights(0, 0).copy()
    weights[0] = 0
    np.fill_diagonal(weights, 0)
    weights[:, 0] = 0
    best = np.argsort(-weights.ravel())[:2]
    assert [150 * link.query + link.key for link in strongest_links(report, 2)] == best.tolist()


def test_from_a_split_word_is_the_mean_and_to_it_the_sum(reports):
    report = reports()
    span = range(2, 4)
    for at, weights in enumerate(report.weights(layer, head) for layer, head, _ in report.record):
        by_hand = [(weights[2, key] + weights[3, key]) / 2 for key in range(7)]
        np.testing.assert_allclose(attention_from(report, span)[at], by_hand, rtol=1e-6)
        by_hand = [weights[query, 2] + weights[query, 3] for query in range(7)]
        np.testing.assert_allclose(attention_to(report, span)[at], by_hand, rtol=1e-6)
    assert attention_from(report, span).sum(1) == pytest.approx(1)


def test_each_head_has_its_strongest_link_of_a_word(reports):
    report = reports(heads=(4,))
    word = Word(range(3, 4))
    found = word_links(report, (word, word))
    for links, of in zip(found, ("from", "to"), strict=True):
        assert [link.weight for link in links] == sorted(
            (link.weight for link in links), reverse=True
        )
        for link in links:
            weights = report.weights(link.layer, link.head)
            values = weights[3, 1:3] if of == "from" else weights[4:, 3]
            assert link.weight == pytest.approx(float(values.max()))
            assert (link.query if of == "from" else link.key) == 3


def test_a_word_of_one_axis_has_one_list_and_one_map(reports):
    report = reports(["q0", "q1"], keys=["k0", "k1", "k2"], kind="cross")
    word = Word(range(1)), None
    from_word, to_word = word_links(report, word)
    assert len(from_word) == 6
    assert to_word == []
    (shown,) = word_maps(report, word, False).maps
    assert shown.name == "attention from “q0” (0)"
    assert shown.weights.shape == (6, 3)
    (shown,) = word_maps(report, (None, Word(range(2, 3))), False).maps
    assert shown.name == "attention to “k2” (2)"
    assert shown.keys.texts == ("q0", "q1")


def test_a_word_is_named_with_its_places(reports):
    tokens = reports(["<s>", " tire", "d", " tired"]).record.queries
    assert named_word(tokens, Word(range(1, 3), (3,))) == "“tired” (1), also at 3"
    tokens = reports(["<0xEC>", "<0x98>", "<0xA4>", " a"]).record.queries
    assert named_word(tokens, Word(range(3))) == "“오” (0)"


def test_maps_of_a_word_are_blank_where_nothing_is_seen(reports):
    report = reports()
    as_query, as_key = word_maps(report, (Word(range(1, 2)), Word(range(1, 2))), False).maps
    np.testing.assert_array_equal(
        as_query.weights[:, :2], attention_from(report, range(1, 2))[:, :2]
    )
    assert np.isnan(as_query.weights[:, 2:]).all()
    assert np.isnan(as_key.weights[:, 0]).all()
    assert as_key.queries.texts == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")


def test_weights_that_are_no_numbers_are_no_links(reports):
    report = reports(["a", "b", "c"], weights=[np.full((2, 3, 3), np.nan, np.float32)])
    word = Word(range(1, 2))
    assert word_links(report, (word, word)) == [[], []]
    assert strongest_links(report, 3) == []


def test_a_table_of_links_says_what_it_leaves_out(reports):
    report = reports()
    table = links_table(report, strongest_links(report, 3), "links", False)
    assert table.title == [("links", True), ("sink left out", False)]
    link = strongest_links(report, 1)[0]
    assert table.rows[0].cells[2] == report.name(link.layer, link.head)
    table = links_table(report, strongest_links(report, 3, True), "links", True)
    assert table.title[1] == ("sink included", False)
    plain = reports(["a", "b"], causal=False)
    assert links_table(plain, strongest_links(plain, 3), "links", False).title == [("links", True)]


def pairs_of(report, layer, head, count):
    return [link[2:] for link in head_links(report, layer, head, count, sink=True)]


def test_pairs_are_the_largest_weights_but_the_first_query(reports):
    report = reports()
    weights = report.weights(0, 1)
    every = sorted(
        ((q, k, float(weights[q, k])) for q in range(1, 7) for k in range(7)),
        key=lambda pair: -pair[2],
    )
    assert pairs_of(report, 0, 1, 5) == every[:5]


def test_encoders_keep_their_first_query(reports):
    weights = np.zeros((1, 3, 3), np.float32)
    weights[0, 0, 2] = 1
    report = reports(["a", "b", "c"], weights=[weights], causal=False)
    assert pairs_of(report, 0, 0, 5) == [(0, 2, 1.0)]


def test_neither_zeros_nor_holes_are_pairs(reports):
    weights = np.array([[[1, 0, 0], [np.nan, np.nan, 0], [0.25, 0, 0.75]]], np.float32)
    report = reports(["a", "b", "c"], weights=[weights])
    assert [pair[:2] for pair in pairs_of(report, 0, 0, 9)] == [(2, 2), (2, 0)]


def test_without_the_sink_pairs_leave_its_keys_out(reports):
    report = reports()
    for layer, head, _ in report.record:
        assert 0 not in {link.key for link in head_links(report, layer, head, 9, sink=False)}
    assert ("sink left out", False) in pairs_table(report, 2).title


def test_without_the_sink_the_weights_are_rescaled(document):
    found = document(SENTENCE, "--no-sink")
    assert found["sink"]["left_out"] is True
    for head in found["heads"]:
        for row in head["weights"]:
            kept = [weight for weight in row if weight is not None]
            assert row[0] is None
            assert not kept or sum(kept) == pytest.approx(1, abs=1e-5)


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


def test_the_screen(run):
    result = run("heads", SENTENCE, *PAIR)
    said = "it → cat: L5H1 .11, reached by 0 of 50 texts with the other words shuffled (mean .05)."
    assert said in " ".join(result.out.split())
    assert "mean over 50 texts with the other 10 tokens shuffled" in result.out
    both = run("heads", SENTENCE, *PAIR, "--token", "it")
    assert (both.code, both.out) == (2, "")
    assert "expected one list: give --token or --pair" in both.err
