"""Hand-made heads whose trait is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.registry import OF_ONE_TEXT, label_named
from attnviz.measures.rows import uniform_weights
from attnviz.records import AttentionRecord, HeadLabel, HeadScores

MakeRecord = Callable[..., AttentionRecord]

IDS = (0, 4, 5, 6, 4, 5, 6)
N = len(IDS)


def looking_at(*keys: int, size: int = N) -> np.ndarray:
    """A head whose query i puts all of its weight on keys[i]."""
    weights = np.zeros((len(keys), size))
    weights[np.arange(len(keys)), keys] = 1
    return weights


PERFECT = {
    "previous": looking_at(0, 0, 1, 2, 3, 4, 5),
    "first": looking_at(0, 0, 0, 0, 0, 0, 0),
    "self": looking_at(0, 1, 2, 3, 4, 5, 6),
    "duplicate": looking_at(0, 0, 1, 1, 1, 2, 3),
    "induction": looking_at(0, 0, 1, 1, 2, 3, 4),
    "spread": uniform_weights(N, N, True),
}


@pytest.mark.parametrize("name", PERFECT)
def test_a_perfect_head_has_its_trait(name: str, make_record: MakeRecord) -> None:
    trait = head_scores(make_record([PERFECT[name]], IDS))[0].label
    assert (trait.name, trait.letter) == (name, label_named(name).letter)
    assert trait.score == pytest.approx(1)


def test_a_next_token_head_needs_to_see_the_future(make_record: MakeRecord) -> None:
    ahead = looking_at(1, 2, 3, 4, 5, 6, 6)
    scores = head_scores(make_record([ahead], IDS, causal=False))[0]
    assert (scores.label.name, scores.label.score) == ("next", 1)
    assert scores.label.base_rate == pytest.approx(1 / N)
    causal = head_scores(make_record([PERFECT["first"]], IDS))[0]
    assert causal.scores["next"] is None


def test_a_head_on_scattered_single_keys_is_peaked(make_record: MakeRecord) -> None:
    scattered = looking_at(0, 0, 1, 1, 2, 1, 2)
    scattered[3:] = looking_at(1, 2, 1, 2)
    trait = head_scores(make_record([scattered], range(N)))[0].label
    assert trait.name == "peaked"
    assert trait.score == 1


@pytest.mark.parametrize(("share", "name"), [(0.05, "spread"), (0.2, "previous")])
def test_a_trait_needs_a_tenth_of_what_it_could_gain(
    share: float, name: str, make_record: MakeRecord
) -> None:
    mixed = share * PERFECT["previous"] + (1 - share) * PERFECT["spread"]
    assert head_scores(make_record([mixed], range(N)))[0].label.name == name


@pytest.mark.parametrize(("found", "name"), [(0.2, "first"), (0.4, "induction")])
def test_a_head_that_rests_on_the_first_token_is_named_for_what_it_seeks(
    found: float, name: str, make_record: MakeRecord
) -> None:
    """Base rate of induction: the mean of 1/5, 1/6, 1/7, so a fifth of the gain is at .34."""
    weights = PERFECT["first"].copy()
    weights[4:] = found * PERFECT["induction"][4:] + (1 - found) * PERFECT["first"][4:]
    entry = head_scores(make_record([weights], IDS))[0]
    assert entry.label.name == name
    assert entry.label.score == pytest.approx({"first": 1 - found / 2, "induction": found}[name])
    assert entry.scores["first"] > entry.scores["induction"]


def test_one_token_that_comes_again_does_not_name_a_head_that_rests(
    make_record: MakeRecord,
) -> None:
    ids = (0, 4, 5, 6, 4, 7, 8)
    weights = PERFECT["first"].copy()
    weights[4] = (looking_at(0, size=N)[0] + looking_at(2, size=N)[0]) / 2
    entry = head_scores(make_record([weights], ids))[0]
    assert (entry.label.name, entry.scores["induction"]) == ("first", 0.5)


def test_resting_on_a_first_token_that_comes_again_is_no_duplicate(
    make_record: MakeRecord,
) -> None:
    entry = head_scores(make_record([PERFECT["first"]], (4, 5, 6, 4, 7, 4, 8)))[0]
    assert entry.scores["duplicate"] == pytest.approx(1)
    assert entry.label.name == "first"


def test_a_head_that_looks_back_stays_what_it_is_where_it_also_finds(
    make_record: MakeRecord,
) -> None:
    weights = PERFECT["previous"].copy()
    weights[4:] = 0.5 * (PERFECT["previous"] + PERFECT["induction"])[4:]
    assert head_scores(make_record([weights], IDS))[0].label.name == "previous"


def test_the_base_rate_is_attention_spread_evenly(make_record: MakeRecord) -> None:
    trait = head_scores(make_record([PERFECT["previous"]], IDS))[0].label
    assert trait.base_rate == pytest.approx(np.mean([1 / (i + 1) for i in range(1, N)]))
    trait = head_scores(make_record([PERFECT["duplicate"]], IDS))[0].label
    assert trait.base_rate == pytest.approx(np.mean([1 / 5, 1 / 6, 1 / 7]))


def test_every_measure_has_its_place_and_order(make_record: MakeRecord) -> None:
    record = make_record(list(PERFECT.values()), IDS)
    found = head_scores(record)
    assert [(entry.layer, entry.head) for entry in found] == [(0, h) for h in range(len(PERFECT))]
    for entry in found:
        assert tuple(entry.scores) == OF_ONE_TEXT
        assert all(value is None or type(value) is float for value in entry.scores.values())


def test_a_text_without_repeats_has_no_duplicate(make_record: MakeRecord) -> None:
    scores = head_scores(make_record([PERFECT["first"]], range(N)))[0].scores
    assert scores["duplicate"] is None
    assert scores["induction"] is None


def test_cross_attention_has_no_diagonal(make_record: MakeRecord) -> None:
    """Queries and keys are different texts: position i of one says nothing of the other."""
    record = make_record([looking_at(0, 1, 2, 3, size=6)], causal=False, kind="cross")
    scores = head_scores(record)[0].scores
    known = {name for name, value in scores.items() if value is not None}
    assert known == {"first", "entropy", "normalised_entropy", "confidence"}


def test_one_token_is_scored_without_a_warning(make_record: MakeRecord) -> None:
    for causal in (True, False):
        entry = head_scores(make_record([np.ones((1, 1))], causal=causal))[0]
        assert entry.label.name in ("spread", "peaked")
        assert entry.scores["previous"] is None


def test_weights_that_are_no_numbers_have_no_scores(make_record: MakeRecord) -> None:
    entry = head_scores(make_record([np.full((N, N), np.nan)], IDS))[0]
    assert set(entry.scores.values()) == {None}


def _entry(head: int, name: str, score: float, base: float = 0.2) -> HeadScores:
    return HeadScores(0, head, {}, HeadLabel(name, label_named(name).letter, score, base))


def test_notable_heads_show_each_trait_before_a_second_of_one() -> None:
    heads = [
        _entry(0, "first", 0.99),
        _entry(1, "first", 0.98),
        _entry(2, "previous", 0.6),
        _entry(3, "self", 0.7),
        _entry(4, "spread", 0.9, 1.0),
        _entry(5, "peaked", 0.8),
    ]
    chosen = [head for _, head in notable_heads(heads, 6)]
    assert chosen == [0, 2, 3, 5, 4, 1]  # what looks at itself comes after what looks elsewhere
    assert notable_heads(heads, 2) == ((0, 0), (0, 2))


def test_notable_heads_weigh_the_gain_over_the_base_rate() -> None:
    heads = [_entry(0, "first", 0.75, 0.7), _entry(1, "previous", 0.7, 0.1)]
    assert notable_heads(heads, 1) == ((0, 1),)


def test_notable_heads_are_no_more_than_there_are() -> None:
    assert notable_heads([_entry(0, "first", 0.5)], 3) == ((0, 0),)
    assert notable_heads([], 3) == ()
