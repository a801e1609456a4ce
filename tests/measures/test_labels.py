"""From scores to a label, and from a person's word to a label."""

import pytest

from attnviz.errors import UsageError
from attnviz.measures.labels import best_label, clear_deviations, strength, strengths
from attnviz.measures.registry import LABELS, find_label, label_named


def label(scores, base, measured=None, floors=None):
    found = strengths(scores, scores, base, floors or {})
    return best_label(found, scores, base, measured or {})


@pytest.mark.parametrize(
    ("score", "floors", "expected"),
    [(1, (0.5,), 1), (0.75, (0.5,), 0.5), (0.25, (0.5,), -0.5), (0.75, (0.2, 0.5), 0.5),
     (None, (0.5,), None), (0.5, (None,), None), (1, (1,), None), (0.6, (None, 0.2), 0.5)],
)  # fmt: skip
def test_strength_is_the_share_of_what_could_be_gained(score, floors, expected):
    assert strength(score, *floors) == (None if expected is None else pytest.approx(expected))


def test_the_largest_gain_names_a_head():
    assert label({"previous": 0.7, "first": 0.75}, {"previous": 0.1, "first": 0.7}) == "previous"
    assert label({"previous": 0.2}, {"previous": 0.1}) is None


def test_a_head_that_rests_on_the_first_token_is_named_for_what_it_seeks():
    base = {"first": 0.1, "duplicate": 0.1, "induction": 0.1}
    assert label({"first": 0.8, "duplicate": 0.6, "induction": 0.3}, base) == "induction"
    assert label({"first": 0.8, "duplicate": 0.6, "induction": 0.2}, base) == "first"
    assert label({"first": 0.5, "duplicate": 0.6, "induction": 0.3}, base) == "duplicate"


def test_ties_and_controls():
    assert label({"self": 0.5, "previous": 0.5}, {"self": 0.1, "previous": 0.1}) == "previous"
    scores, base = {"self": 0.6}, {"self": 0.1}
    assert label(scores, base) == "self"
    assert label(scores, base, floors={"self": 0.55}) is None
    # The standard error of a base rate of one half is 1/6 of 9 pairs, and 1/60 of 900.
    scores, base = {"subject": 0.75}, {"subject": 0.5}
    assert label(scores, base, {"subject": 9}) is None
    assert label(scores, base, {"subject": 900}) == "subject"


def test_a_first_token_head_is_not_called_a_delimiter_head():
    base = {"first": 0.05, "delimiter": 0.15}
    assert label({"first": 0.6, "delimiter": 0.8}, base) == "first"
    assert label({"first": 0.3, "delimiter": 0.8}, base) == "delimiter"


def test_local_is_the_broadest_label_and_needs_more_than_others():
    base = {"local": 0.2, "previous": 0.1, "first": 0.1}
    assert label({"local": 0.45}, base) == "local"
    assert label({"local": 0.43}, base) is None
    assert label({"local": 0.9, "previous": 0.3}, base) == "previous"
    assert label({"local": 0.7, "first": 0.3}, base) == "first"


def test_names_and_letters_are_one_to_one():
    letters = [entry.letter for entry in LABELS.values()]
    assert len(set(letters)) == len(letters)
    assert not {"-", "^", "r"} & set(letters)
    assert label_named("case") == label_named("case")
    assert label_named("case").family == "relation"


@pytest.mark.parametrize(
    ("typed", "found"),
    [("induction", "induction"), (" Induction ", "induction"), ("ind", "induction"),
     ("I", "induction"), ("s", "subject"), ("S", "self"), ("prev", "previous"),
     ("previous-token", "previous"), ("sink", "first"), ("first", "first"),
     ("Punctuation", "delimiter"),
     ("punc", "delimiter"), ("current token", "self"), ("curr", "self"), ("self", "self")],
)  # fmt: skip
def test_a_label_is_found(typed, found):
    assert find_label(typed) == found


@pytest.mark.parametrize("typed", ["inductoin", "indution", "INDUKTION"])
def test_the_nearest_label_is_named(typed):
    with pytest.raises(UsageError, match="did you mean induction"):
        find_label(typed)


@pytest.mark.parametrize("typed", ["", "s?", "zzz"])
def test_what_resembles_nothing_lists_them_all(typed):
    with pytest.raises(UsageError, match="labels are previous token, sink") as raised:
        find_label(typed)
    assert "did you mean" not in str(raised.value)


def test_the_more_is_tried_the_clearer_a_relation_must_be():
    assert clear_deviations(1) == clear_deviations(7) == 3.0  # never less
    assert clear_deviations(100) == pytest.approx(3.719, abs=1e-3)  # of a table: one tail, 1e-4
    assert clear_deviations(1000) == pytest.approx(4.265, abs=1e-3)


def test_what_chance_gives_one_of_many_heads_is_no_label():
    """144 random heads and six relations once gave .80 over .65 of 153 determiners: 3.9 errors."""
    scores, base, pairs = {"determiner": 0.804}, {"determiner": 0.6536}, {"determiner": 153}
    found = strengths(scores, scores, base, {})
    assert best_label(found, scores, base, pairs) == "determiner"
    many = clear_deviations(144 * 6)
    assert best_label(found, scores, base, pairs, deviations=many) is None
