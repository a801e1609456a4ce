"""From scores to a label, and from a person's word to a label."""

import pytest

from attnviz.errors import UsageError
from attnviz.measures.labels import best_label, clear_deviations, strength, strengths
from attnviz.measures.registry import LABELS, find_label, label_named

FIRST = {"first": 0.1, "duplicate": 0.1, "induction": 0.1}
DELIMITER = {"first": 0.05, "delimiter": 0.15}
LOCAL = {"local": 0.2, "previous": 0.1, "first": 0.1}


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


@pytest.mark.parametrize(
    ("scores", "base", "named"),
    [
        ({"previous": 0.7, "first": 0.75}, {"previous": 0.1, "first": 0.7}, "previous"),
        ({"previous": 0.2}, {"previous": 0.1}, None),
        ({"first": 0.8, "duplicate": 0.6, "induction": 0.3}, FIRST, "induction"),
        ({"first": 0.8, "duplicate": 0.6, "induction": 0.2}, FIRST, "first"),
        ({"first": 0.5, "duplicate": 0.6, "induction": 0.3}, FIRST, "duplicate"),
        ({"first": 0.6, "delimiter": 0.8}, DELIMITER, "first"),
        ({"first": 0.3, "delimiter": 0.8}, DELIMITER, "delimiter"),
        ({"local": 0.45}, LOCAL, "local"),  # the broadest, which needs more than others
        ({"local": 0.43}, LOCAL, None),
        ({"local": 0.9, "previous": 0.3}, LOCAL, "previous"),
        ({"local": 0.7, "first": 0.3}, LOCAL, "first"),
    ],
)
def test_the_largest_gain_names_a_head(scores, base, named):
    assert label(scores, base) == named


def test_ties_and_controls():
    assert label({"self": 0.5, "previous": 0.5}, {"self": 0.1, "previous": 0.1}) == "previous"
    scores, base = {"self": 0.6}, {"self": 0.1}
    assert label(scores, base) == "self"
    assert label(scores, base, floors={"self": 0.55}) is None
    # The standard error of a base rate of one half is 1/6 of 9 pairs, and 1/60 of 900.
    scores, base = {"subject": 0.75}, {"subject": 0.5}
    assert label(scores, base, {"subject": 9}) is None
    assert label(scores, base, {"subject": 900}) == "subject"


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
