"""Hand-made heads whose name is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.registry import OF_ONE_TEXT, label_named
from attnviz.measures.sinks import uniform_weights
from attnviz.records import HeadLabel, HeadScores

N = 7


def looking_at(*keys, size=N):
    """A head whose query i puts all of its weight on keys[i]."""
    weights = np.zeros((len(keys), size))
    weights[np.arange(len(keys)), keys] = 1
    return weights


LONG = (0, *range(4, 14), *range(4, 14))
"""The first token, ten others, and these once more."""

M = len(LONG)


def perfect(name):
    """A head that does nothing but what its name says, over ``LONG``."""
    early = range(11)
    keys = {
        "previous": [0, *range(M - 1)],
        "first": [0] * M,
        "self": range(M),
        "duplicate": [*(0 for _ in early), *range(1, 11)],
        "induction": [*(0 for _ in early), *range(2, 12)],
    }
    return uniform_weights(M, M, True) if name == "spread" else looking_at(*keys[name], size=M)


PERFECT = ("previous", "first", "self", "duplicate", "induction", "spread")


@pytest.mark.parametrize("name", PERFECT)
def test_a_perfect_head_has_its_name(name, make_record):
    label = head_scores(make_record([perfect(name)], LONG))[0].label
    measure = label_named(name)
    assert (label.name, label.letter) == (name, measure.letter)
    assert (label.short, label.said) == (measure.short, measure.said)
    assert label.score == pytest.approx(1)
    assert label.source == ("none" if name in ("first", "spread") else "text")
    assert label.is_finding == (label.source == "text")


@pytest.mark.parametrize("name", PERFECT)
def test_random_weights_get_no_name_but_are_described(name, make_record):
    record = make_record([perfect(name)], LONG)
    drawn = replace(record, model=replace(record.model, weights="random", seed=0))
    label = head_scores(drawn)[0].label
    assert not label.is_finding
    assert label.name in ("first", "spread", "peaked")


def test_what_was_measured_before_names_a_head(make_record):
    heads = [perfect("previous"), perfect("previous"), perfect("first"), perfect("self")]
    labels = {
        (0, 0): KnownLabel("induction", 0.87),
        (0, 1): KnownLabel(None, math.nan),
        (0, 2): KnownLabel("object", 0.9),
    }
    found = head_scores(make_record(heads, LONG), KnownLabels("card", labels))
    first, second, third, fourth = (entry.label for entry in found)
    assert (first.name, first.source, first.score) == ("induction", "card", 0.87)
    assert (first.on_text, first.events) == (0, 10)  # it attends to none of these keys here
    assert (second.name, second.source) == ("peaked", "none")
    assert (third.name, third.score, third.events) == ("object", 0.9, 0)
    assert math.isnan(third.on_text)
    assert not fourth.is_finding  # a head that nobody measured


def test_a_head_measured_as_a_sink_is_one_here_only_where_it_rests(make_record):
    heads = [perfect("first"), perfect("previous")]
    labels = {(0, 0): KnownLabel("first", 0.9), (0, 1): KnownLabel("first", 0.9)}
    found = head_scores(make_record(heads, LONG), KnownLabels("patterns", labels))
    first, second = (entry.label for entry in found)
    assert (first.name, first.source, first.score) == ("first", "none", 1)  # of this text alone
    assert (second.name, second.source) == ("peaked", "none")


def test_a_next_token_head_needs_to_see_the_future(make_record):
    ahead = looking_at(*range(1, M), M - 1, size=M)
    scores = head_scores(make_record([ahead], LONG, causal=False))[0]
    assert (scores.label.name, scores.label.score) == ("next", 1)
    assert scores.label.base_rate == pytest.approx(1 / M)
    causal = head_scores(make_record([perfect("first")], LONG))[0]
    assert causal.scores["next"] is None


@pytest.mark.parametrize("size", [7, 8, 9])
def test_eight_events_name_a_head(size, make_record):
    """``size`` tokens before which the first token is special: as many that attend to another."""
    count = size + 2
    keys = [0, *range(count - 1)]
    entry = head_scores(make_record([looking_at(*keys, size=count)], range(count)))[0]
    assert (entry.label.name == "previous") == (size >= 8)


def test_what_is_no_pattern(make_record):
    ids = [0, *[4, 5] * 10]
    head = looking_at(*[0, *range(len(ids) - 1)], size=len(ids))
    assert not head_scores(make_record([head], ids))[0].label.is_finding
    # One cell of a column of .9 stands for induction; others attend to the same key as much.
    weights = 0.1 * perfect("spread")
    weights[2:, 2] += 0.9
    entry = head_scores(make_record([weights], LONG))[0]
    assert not entry.label.is_finding
    scattered = looking_at(0, 0, 1, 1, 2, 1, 2)
    scattered[3:] = looking_at(1, 2, 1, 2)
    trait = head_scores(make_record([scattered], range(N)))[0].label
    assert trait.name == "peaked"
    assert trait.score == 1


@pytest.mark.parametrize(("share", "name"), [(0.15, "spread"), (0.35, "previous")])
def test_a_name_needs_a_fifth_of_what_it_could_gain(share, name, make_record):
    mixed = share * perfect("previous") + (1 - share) * perfect("spread")
    assert head_scores(make_record([mixed], range(M)))[0].label.name == name


def test_one_token_that_comes_again_does_not_name_a_head_that_rests(make_record):
    ids = (0, 4, 5, 6, 4, 7, 8)
    weights = looking_at(*[0] * N)
    weights[4] = (looking_at(0, size=N)[0] + looking_at(2, size=N)[0]) / 2
    entry = head_scores(make_record([weights], ids))[0]
    assert (entry.label.name, entry.scores["induction"]) == ("first", 0.5)


def test_the_base_rate_is_uniform_attention(make_record):
    label = head_scores(make_record([perfect("previous")], LONG))[0].label
    assert label.base_rate == pytest.approx(np.mean([1 / (i + 1) for i in range(1, M)]))
    label = head_scores(make_record([perfect("duplicate")], LONG))[0].label
    assert label.base_rate == pytest.approx(np.mean([1 / (i + 1) for i in range(11, M)]))


def test_every_measure_has_its_place_and_order(make_record):
    record = make_record([perfect(name) for name in PERFECT], LONG)
    found = head_scores(record)
    assert [(entry.layer, entry.head) for entry in found] == [(0, h) for h in range(len(PERFECT))]
    for entry in found:
        assert tuple(entry.scores) == OF_ONE_TEXT
        assert all(value is None or type(value) is float for value in entry.scores.values())


def test_what_cannot_be_scored_is_left_out(make_record):
    scores = head_scores(make_record([looking_at(*[0] * N)], range(N)))[0].scores
    assert scores["duplicate"] is None
    assert scores["induction"] is None
    # Queries and keys are different texts: position i of one says nothing of the other.
    record = make_record([looking_at(0, 1, 2, 3, size=6)], causal=False, kind="cross")
    scores = head_scores(record)[0].scores
    known = {name for name, value in scores.items() if value is not None}
    assert known == {"first", "entropy", "normalised_entropy", "confidence"}
    for causal in (True, False):
        entry = head_scores(make_record([np.ones((1, 1))], causal=causal))[0]
        assert entry.label.name in ("spread", "peaked")
        assert entry.scores["previous"] is None
    entry = head_scores(make_record([np.full((N, N), np.nan)]))[0]
    assert set(entry.scores.values()) == {None}


def _entry(head, name, score, base=0.2):
    return HeadScores(0, head, {}, HeadLabel(name, label_named(name).letter, score, base))


def test_notable_heads_show_each_trait_before_a_second_of_one():
    heads = [
        _entry(0, "first", 0.99),
        _entry(1, "first", 0.98),
        _entry(2, "previous", 0.6),
        _entry(3, "self", 0.7),
        _entry(4, "spread", 0.9, 1.0),
        _entry(5, "peaked", 0.8),
    ]
    chosen = [head for _, head in notable_heads(heads, 6)]
    assert chosen == [2, 3, 5, 0, 1, 4]  # sinks after what is peaked, the most even last
    assert notable_heads(heads, 2) == ((0, 2), (0, 3))


def test_notable_heads_weigh_the_gain_and_are_no_more_than_there_are():
    heads = [_entry(0, "next", 0.75, 0.7), _entry(1, "previous", 0.7, 0.1)]
    assert notable_heads(heads, 1) == ((0, 1),)
    assert notable_heads([_entry(0, "first", 0.5)], 3) == ((0, 0),)
    assert notable_heads([], 3) == ()
