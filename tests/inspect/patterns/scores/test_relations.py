"""Word-level weights and annotated pairs, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.inspect.patterns.relations import (
    AnnotatedSentence,
    FoundPair,
    WordPair,
    WordView,
    relation_base_rate,
    word_weights,
)
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.uniform import visible_keys
from attnviz.records import Tokens


def test_weight_to_a_word_is_the_sum_and_from_it_the_mean() -> None:
    """Three tokens, the last two of them one word."""
    weights = np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]])
    by_word = word_weights(weights, [[0], [1, 2]])
    assert by_word[0] == pytest.approx(np.array([[1, 0], [0.35, 0.65]]))
    assert by_word.sum(-1) == pytest.approx(1)


def sentence(*pairs: WordPair) -> AnnotatedSentence:
    text = "cats eat fish ."
    return AnnotatedSentence(text, (range(4), range(5, 8), range(9, 13)), pairs, 2)


TOKENS = Tokens(
    (0, 1, 2, 3, 4, 5),
    ("<s>", "ca", "ts", " eat", " fish", " ."),
    (True, False, False, False, False, False),
)
SUBJECT, OBJECT = WordPair("subject", 0, 1), WordPair("object", 2, 1)


def looks(**at: int) -> np.ndarray:
    weights = np.eye(6)
    for query, key in at.items():
        weights[int(query[1:])] = np.eye(6)[key]
    return weights[None]


EVERY, EARLIER = visible_keys(6, 6, False), visible_keys(6, 6, True)


def hits(view: WordView, weights: np.ndarray, seen: np.ndarray = EVERY) -> dict[str, float]:
    return {found.relation: float(found.hits[0]) for found in view.find(weights, seen)}


def test_pairs_are_read_from_the_dependent_to_its_head() -> None:
    view = WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=False)
    assert view.units == [[1, 2], [3], [4], [5]]  # the mark is a word of its own
    assert hits(view, looks(q1=3, q2=3, q4=3)) == {"subject": 1, "object": 1}
    assert hits(view, looks(q1=3, q2=3, q4=5)) == {"subject": 1, "object": 0}


def test_a_causal_model_reads_pairs_backwards_where_it_must() -> None:
    view = WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=True)
    assert view.pairs == [("subject", 1, 0), ("object", 2, 1)]
    assert hits(view, looks(q3=2, q4=3), EARLIER) == {"subject": 1, "object": 1}


def test_the_diagonal_and_special_tokens_are_left_out() -> None:
    view = WordView(sentence(OBJECT), TOKENS, causal=True)
    weights = np.zeros((1, 6, 6))
    weights[0, 4] = [0.5, 0, 0, 0.1, 0.4, 0]  # most on <s>, then on itself, then on the verb
    assert hits(view, weights, EARLIER) == {"object": 1}
    weights[0, 4] = [0.6, 0, 0, 0, 0.4, 0]
    assert hits(view, weights, EARLIER) == {"object": 0}  # nothing is left: no hit


def test_words_that_tie_share_the_hit() -> None:
    view = WordView(sentence(OBJECT), TOKENS, causal=True)
    weights = np.zeros((1, 6, 6))
    weights[0, 4] = [0, 0.25, 0.25, 0.5, 0, 0]
    assert hits(view, weights, EARLIER) == {"object": 0.5}


def test_the_best_fixed_offset_or_even_attention_is_the_base_rate() -> None:
    def found(offset: int, chance: float) -> FoundPair:
        return FoundPair("x", offset, chance, np.zeros(1))

    assert relation_base_rate([found(-1, 0), found(-1, 0), found(-2, 0)]) == pytest.approx(2 / 3)
    assert relation_base_rate([found(-1, 0.9), found(-2, 0.9), found(-3, 0)]) == pytest.approx(0.6)
    assert relation_base_rate([]) == 0


def test_even_attention_prefers_words_of_many_tokens() -> None:
    view = WordView(sentence(SUBJECT), TOKENS, causal=True)
    assert view.find(np.ones((1, 6, 6)) / 6, EARLIER)[0].by_chance == 1
    view = WordView(sentence(OBJECT), TOKENS, causal=False)
    found = view.find(np.ones((1, 6, 6)) / 6, EVERY)
    assert found[0].by_chance == 0  # the cats have two tokens


def test_words_out_of_a_window_are_no_pair_and_no_chance() -> None:
    view = WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=True)
    near = EARLIER & ~np.tri(6, k=-2, dtype=bool)  # itself and the token before
    pairs = view.find(np.ones((1, 6, 6)) / 6, near)
    assert [(found.relation, found.by_chance) for found in pairs] == [("subject", 1), ("object", 1)]
    assert view.find(np.ones((1, 6, 6)) / 6, np.eye(6, dtype=bool)) == []


def test_words_that_the_tokens_do_not_show() -> None:
    other = Tokens((1, 2), ("x", "y"), (False, False))
    assert not WordView(sentence(SUBJECT), other, causal=True).fits


def test_a_head_of_a_persons_own_relation_is_named(scripted, even_head) -> None:
    """Each text is ``a x b y``: the last word belongs to the first."""
    letters = "abcdefghijklmnop"
    own = [
        AnnotatedSentence(
            f"{letters[i]} x b y" + " z" * (i % 3),
            (range(1), range(2, 3), range(4, 5), range(6, 7)),
            (WordPair("frame", 3, 0), WordPair("frame", 2, 1)),
            i + 2,
        )
        for i in range(len(letters))
    ]

    def framing(tokens: Tokens) -> np.ndarray:
        weights = np.tril(np.ones((len(tokens),) * 2))
        weights[4, 1] = weights[3, 2] = 100
        return weights / weights.sum(1, keepdims=True)

    model = scripted([[framing, even_head]])
    text = model.encode("one two three four")
    report = score_patterns(model, [text], sentences=own)
    head, other = report.heads
    assert head.label == "frame"
    assert head.scores["frame"] == 1
    assert head.base_rate["frame"] == 0.5
    assert head.measured["frame"] == 2 * len(letters)
    assert other.label is None
    assert report.labels[-1] == "frame"


def test_weights_that_are_no_numbers_are_no_miss() -> None:
    view = WordView(sentence(OBJECT), TOKENS, causal=True)
    assert np.isnan(hits(view, np.full((1, 6, 6), np.nan))["object"])
