"""Which link is told first, on maps in which it is planted, shuffled maps and random ones."""

import math
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.measures.registry import label_named
from attnviz.measures.telling import LEAST, is_content, is_worth_adding, told
from attnviz.measures.word_links import agreed_links
from attnviz.records import HeadLabel, Tokens

from .test_word_links import random_maps, record

REPEAT = ["<s>", "When", "Mary", "saw", "Tom", ",", "nobody", "knew", "why", "Mary"]
GHOST = ["<s>", "the", "ghost", "left", "because", "it", "was", "tired", "of", "the", "attic"]
KEYS = ["<s>", "the", "keys", "to", "the", "old", "cabinet", "are", "missing"]


def known(name, source="card"):
    measure = label_named(name)
    return HeadLabel(name, measure.letter, 0.9, 0.1, measure.short, measure.said, source)


def tellings_of(words, planted, labels, heads=12):
    """What is told of random heads, in one of which some cells (query, key) have most weight."""
    texts = [words[0], *(f" {word}" for word in words[1:])]
    weights = random_maps(heads, len(words), seed=3, sharpness=0.3)
    for query, key in planted:
        weights[2, query] = 0.1 / query
        weights[2, query, query + 1 :] = 0
        weights[2, query, key] += 0.85
        weights[2, query] /= weights[2, query].sum()
    made = record([weights], texts)
    ids = tuple(words.index(word) for word in words)
    tokens = Tokens(ids, tuple(texts), made.queries.special)
    made = replace(made, queries=tokens, keys=tokens)
    found = told(made, agreed_links(made), {(0, 2): labels})
    return made, [telling for telling in found if telling.why != "nearest"]


def test_an_induction_head_that_follows_a_repetition_comes_first():
    _, found = tellings_of(REPEAT, [(9, 3), (8, 7)], known("induction"))
    first = found[0]
    assert (first.why, first.link.query, first.link.key) == ("induction", range(9, 10), range(3, 4))
    assert (first.copy, first.link.layer, first.link.head) == (range(2, 3), 0, 2)
    assert first.weight > 0.8


def test_the_last_word_comes_before_a_stronger_repetition():
    words = ["<s>", "When", "Mary", "met", "Tom", ",", "nobody", "knew", "why", "Mary", "met"]
    _, found = tellings_of(words, [(10, 4), (9, 3)], known("induction"))
    assert (found[0].link.query.start, found[0].link.key.start) == (10, 4)


def test_a_label_from_the_text_itself_is_no_evidence_for_the_same_text():
    assert not tellings_of(REPEAT, [(9, 3)], known("induction", "text"))[1]
    assert not tellings_of(REPEAT, [(9, 3)], known("previous"))[1]


def test_what_only_looks_like_a_repetition_is_not_told():
    """The key is the neighbour, or too light."""
    neighbours = ["<s>", "one", "Mary", "Mary", "two"]
    assert not tellings_of(neighbours, [(3, 3)], known("induction"))[1]
    assert not tellings_of(REPEAT, [], known("induction"))[1]


def test_a_mark_is_what_followed_where_no_word_did():
    """As in code, where “width” is followed by “,” twice; after function words it is no news."""
    code = ["<s>", "area", "(", "width", ",", "height", ")", "return", "width", "*", "height"]
    _, found = tellings_of(code, [(8, 4)], known("induction"))
    assert (found[0].link.query.start, found[0].link.key.start) == (8, 4)
    words = ["<s>", "the", ",", "and", "then", "the"]
    assert not tellings_of(words, [(5, 2)], known("induction"))[1]


@pytest.mark.parametrize(
    ("words", "label", "query", "key"), [(GHOST, "coreference", 5, 2), (KEYS, "subject", 7, 2)]
)
def test_a_labelled_head_does_what_its_label_says(words, label, query, key):
    _, found = tellings_of(words, [(query, key), (3, 2)], known(label))
    assert [(one.why, one.link.query.start, one.link.key.start) for one in found] == [
        ("label", query, key)
    ]


def test_a_neighbour_is_told_where_no_word_further_away_is_linked():
    words = ["<s>", "the", "old", "captain", "told", "his", "crew", "that", "they", "slept"]
    _, (one,) = tellings_of(words, [(4, 3)], known("subject"))
    assert (one.link.query.start, one.link.key.start) == (4, 3)
    _, (one,) = tellings_of(words, [(4, 3), (9, 3)], known("subject"))
    assert (one.link.query.start, one.link.key.start) == (9, 3)


def test_a_pronoun_comes_before_a_verb_and_may_be_the_subject_itself():
    words = ["<s>", "the", "nurse", "called", "Tom", "before", "she", "had", "eaten"]
    _, found = tellings_of(words, [(6, 2), (7, 2)], known("subject"))
    assert (found[0].link.query.start, found[0].link.key.start) == (6, 2)
    _, found = tellings_of(words, [(7, 6)], known("subject"))
    assert (found[0].link.query.start, found[0].link.key.start) == (7, 6)
    words = ["<s>", "the", "old", "boss", "of", "them", "did", "not", "answer"]
    _, found = tellings_of(words, [(8, 3)], known("subject"))  # a verb, as it follows “did”
    assert (found[0].link.query.start, found[0].link.key.start) == (8, 3)


def test_one_head_answers_what_a_person_would_ask_but_claims_nothing():
    _, found = tellings_of(GHOST, [(5, 2)], known("previous"))
    assert [(one.why, one.link.query.start, one.link.key.start) for one in found] == [
        ("asked", 5, 2)
    ]
    assert not tellings_of(GHOST, [(9, 2)], known("previous"))[1]  # the, which asks for nothing


def test_a_closing_mark_asks_for_the_mark_that_it_closes():
    words = ["<s>", "call", "(", "one", "[", "two", "]", "now", ")", "done"]
    _, (one,) = tellings_of(words, [(8, 2)], known("previous"))
    assert (one.why, one.link.query.start, one.link.key.start) == ("asked", 8, 2)
    assert not tellings_of(words, [(8, 4)], known("previous"))[1]  # another bracket's
    quotes = ["<s>", '"', "yes", '"', "said", "he", "and", '"', "no", '"']
    assert tellings_of(quotes, [(9, 7)], known("previous"))[1]
    assert not tellings_of(quotes, [(7, 3)], known("previous"))[1]  # it opens


def test_another_word_of_the_same_head_is_not_what_the_label_says():
    assert not tellings_of(GHOST, [(9, 2)], known("coreference"))[1]  # the, no pronoun
    assert not tellings_of(KEYS, [(6, 2)], known("subject"))[1]  # cabinet, no verb


def agreeing(words, query, key, heads=12):
    """Maps in which all heads agree on one pair of words."""
    weights = random_maps(heads, len(words), seed=5, sharpness=0.3)
    weights[:, query] = np.tril(np.ones((len(words),) * 2))[query] * 0.02
    weights[:, query, key] = 1
    weights /= weights.sum(-1, keepdims=True)
    return record([weights], [words[0], *(f" {word}" for word in words[1:])])


@pytest.mark.parametrize(
    ("query", "key", "why"),
    [
        (5, 2, "reference"),
        (6, 2, "reference"),  # a verb and the noun before it
        (10, 2, "apart"),
        (7, 5, "function"),
        (3, 2, "local"),
    ],
)
def test_links_that_beat_chance_are_sorted_by_their_words(query, key, why):
    made = agreeing(GHOST, query, key)
    found = told(made, agreed_links(made), {})
    assert found[0].link.beats_chance
    assert (found[0].why, found[0].link.query.start, found[0].link.key.start) == (why, query, key)


def test_content_words_come_before_function_words():
    one, other = agreeing(GHOST, 10, 2), agreeing(GHOST, 8, 4)
    more = tuple(replace(layer, layer=1) for layer in other.layers)
    both = replace(one, layers=(*one.layers, *more))
    found = told(both, agreed_links(both), {})
    order = [(one.link.query.start, one.link.key.start) for one in found]
    assert order.index((10, 2)) < order.index((8, 4))
    assert is_worth_adding(both, found[order.index((10, 2))])
    assert not is_worth_adding(both, found[order.index((8, 4))])


def test_random_and_shuffled_maps_tell_of_chance_in_at_most_two_of_a_hundred_texts():
    claimed = 0
    for seed in range(100):
        weights = random_maps(12, len(GHOST), seed, sharpness=1.0)
        made = record([weights], [GHOST[0], *(f" {word}" for word in GHOST[1:])])
        (first, *_) = told(made, agreed_links(made), {})
        claimed += first.why not in ("nearest", "asked")  # which say that they do not beat chance
    assert claimed <= 2


def test_content_words():
    assert all(map(is_content, ["ghost", "Ellery", "1997", "나는", "🍕"]))
    assert not any(map(is_content, ["the", "It", ",", "…"]))
    assert 0 < LEAST < 1
    assert math.isfinite(LEAST)


def test_a_labelled_head_is_told_only_above_what_it_gives_elsewhere():
    """L5H2, which links subjects, gives “is” → “trophy” .22 here, and .25 to words as far away."""
    found = attnviz.heads(
        "tiny", "The trophy does not fit into the suitcase because it is too big."
    )
    assert "L5H2" not in found.finding
    assert "L5H2 (subject)" in attnviz.heads("tiny", "The cat sat because it was tired.").finding
