"""Words are found in the tokens of every kind of tokenizer."""

from __future__ import annotations

import pytest

from attnviz.inspect.patterns.relations import word_pieces
from attnviz.records import Tokens


def tokens(*texts: str, special: tuple[int, ...] = ()) -> Tokens:
    marked = tuple(place in special for place in range(len(texts)))
    return Tokens(tuple(range(len(texts))), texts, marked)


def ranges(text: str, *words: str) -> list[range]:
    return [range(text.index(word), text.index(word) + len(word)) for word in words]


@pytest.mark.parametrize(
    ("texts", "special", "expected"),
    [
        (("The", " ani", "mal", " didn", "'t", " sleep", "."), (), ((0,), (1, 2), (3, 4), (5,))),
        (("[CLS]", "the", "ani", "##mal", "didn", "'", "t", "sleep", ".", "[SEP]"), (0, 9),
         ((1,), (2, 3), (4, 5, 6), (7,))),
        ((" The", " anim", "al", " did", "n't", " sleep", "."), (), ((0,), (1, 2), (3, 4), (5,))),
        (("The", "[UNK]", "didn't", "sleep."), (), ((0,), (1,), (2,), (3,))),
        (("The", "animal", "[UNK]", "sleep", "."), (), ((0,), (1,), (2,), (3,))),
        (("[UNK]", "animal", "didn't", "[UNK]"), (), ((0,), (1,), (2,), (3,))),
    ],
    ids=["byte-level", "wordpiece", "metaspace", "unknown", "unknown word", "unknown ends"],
)  # fmt: skip
def test_words_of_a_sentence(texts, special, expected) -> None:
    text = "The animal didn't sleep."
    words = ranges(text, "The", "animal", "didn't", "sleep")
    assert word_pieces(tokens(*texts, special=special), text, words) == expected


def test_accents_and_case_that_a_tokenizer_took_away() -> None:
    text = "Élève fatigué"
    words = ranges(text, "Élève", "fatigué")
    assert word_pieces(tokens("eleve", "fat", "##igue"), text, words) == ((0,), (1, 2))


def test_bytes_that_are_no_characters_alone() -> None:
    text = "猫が寝た"
    words = ranges(text, "猫", "が", "寝た")
    found = word_pieces(
        tokens("<0xE7><0x8C>", "<0xAB>", "が", "寝", "<0xE3><0x81>", "<0x9F>"), text, words
    )
    assert found == ((0, 1), (2,), (3, 4, 5))


def test_a_token_of_two_words_is_the_firsts() -> None:
    text = "New York is big"
    words = ranges(text, "New", "York", "is", "big")
    assert word_pieces(tokens("New York", " is", " big"), text, words) == ((0,), (), (1,), (2,))


def test_other_tokens_are_refused() -> None:
    text = "The animal"
    words = ranges(text, "The", "animal")
    assert word_pieces(tokens("one", "two", "three"), text, words) is None
    assert word_pieces(tokens("The"), text, words) is None
