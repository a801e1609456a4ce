"""Words are found in whatever pieces a tokenizer leaves them."""

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.measures.words import find_in, word_spans
from attnviz.records import Tokens


def tokens(*texts):
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


def byte_tokens(text):
    return [f"<0x{byte:02X}>" for byte in text.encode()]


@pytest.mark.parametrize(
    ("texts", "word", "spans"),
    [
        (["<s>", " The", " cat", " sat"], "cat", [range(2, 3)]),
        ([" tire", "d", "."], "tired", [range(2)]),
        ([" un", "be", "liev", "able"], "unbelievable", [range(4)]),
        ([" cat", " and", " cat"], "cat", [range(1), range(2, 3)]),
        (["c", "a", "c", "at"], "cat", [range(2, 4)]),
        (["ca", "ca", "t"], "cat", [range(1, 3)]),
        (["un", "##afford", "##able"], "unaffordable", [range(3)]),
        ([" the", " rap", "ist"], "therapist", []),
        ([" category"], "cat", []),
        ([" cat", " "], "", []),
        (["[CLS]", "cat"], "[CLS]", [range(1)]),
        (["cafe", "[SEP]"], "café", [range(1)]),  # a tokenizer dropped the accent
        (["Es", " schön"], "schon", []),  # another word: this tokenizer keeps accents
        (["कल"], "कुल", []),  # vowel signs are no accents
        ([" caf", "é"], "cafe", []),
        (["👨👩👧"], "👨\u200d👩\u200d👧", [range(1)]),
        ([" 나는", " 간", "다. "], "간다", [range(1, 3)]),
        ([" the cat", " mat.", " mat,"], "mat", [range(1, 2), range(2, 3)]),
        ([" bob", "cat.", "<s>"], "cat", []),
    ],
)
def test_spans(texts, word, spans):
    assert word_spans(tokens(*texts), word) == spans


def test_no_word_is_inside_a_special_token():
    assert word_spans(Tokens((0, 1), ("<s>", " cat."), (True, False)), "s") == []


def test_case_and_whole_words_count_where_they_help():
    text = tokens(" The", " cat", " the", " THE")
    assert word_spans(text, "the") == [range(2, 3)]
    assert word_spans(text, "tHE") == [range(1), range(2, 3), range(3, 4)]
    assert word_spans(tokens(" STRASSE"), "Straße") == [range(1)]
    text = tokens(" The", " m", "at", " at", " home", ".", " AT", " at", "om")
    assert word_spans(text, "at") == [range(3, 4)]
    assert word_spans(text, "AT") == [range(6, 7)]
    assert word_spans(text, "m") == [range(1, 2)]  # a part is better than nothing
    assert word_spans(tokens(" m", "at", " At"), "at") == [range(2, 3)]
    assert word_spans(tokens("at", "home", "at", "."), "at") == [range(1), range(2, 3)]


def test_words_of_bytes():
    text = tokens("<s>", *byte_tokens("나"), " ", *byte_tokens("오늘"), " ok", *byte_tokens("🎉"))
    assert word_spans(text, "나") == [range(1, 4)]
    assert word_spans(text, "오늘") == [range(5, 11)]  # without the blank before it
    assert word_spans(text, "🎉") == [range(12, 16)]
    assert word_spans(text, "늘") == [range(8, 11)]
    assert word_spans(text, "눌") == []
    assert word_spans(tokens(*byte_tokens("É"), "t", "é"), "ét") == [range(3)]
    assert word_spans(tokens(*byte_tokens("나")[:2]), "나") == []


@given(st.lists(st.text("ab한", min_size=1, max_size=3), min_size=1, max_size=5), st.data())
def test_however_a_word_is_cut_it_is_found(words, data):
    """Cut each word anywhere, even inside a character: a word of the text is where it was put."""
    texts = []
    places = {}
    for word in words:
        start = len(texts)
        if data.draw(st.booleans()):
            pieces = byte_tokens(word)
        else:
            cuts = sorted(data.draw(st.sets(st.integers(1, max(len(word) - 1, 1)))))
            edges = [0, *[cut for cut in cuts if cut < len(word)], len(word)]
            pieces = [word[a:b] for a, b in itertools.pairwise(edges)]
        texts += [" ", *pieces]
        places.setdefault(word, []).append(range(start + 1, len(texts)))
    for word, spans in places.items():
        found = word_spans(tokens(*texts), word)
        assert any(text.startswith(" ") for text in texts)
        assert set(spans) <= set(found)


def test_a_word_is_found_whether_its_letters_are_composed_or_not():
    word = "\ub9e4\ud2b8"
    apart = unicodedata.normalize("NFD", word)
    pieces = (apart[0], *(f"##{letter}" for letter in apart[1:]), "on")
    tokens = Tokens((0,) * len(pieces), pieces, (False,) * len(pieces))
    assert word_spans(tokens, word) == word_spans(tokens, apart) == [range(len(apart))]


@pytest.mark.parametrize("typed", ["cat (3)", "“cat” (3)", "cat#3", "cat:2", "3", "-1", "CAT (3)"])
def test_a_token_is_typed_as_screens_show_it(typed):
    word = find_in(tokens("<s>", " cat", " and", " cat"), typed)
    assert word.span == range(3, 4)


@pytest.mark.parametrize("typed", ["cat (2)", "dog (3)", "cat#0", "cat:3", "cat (9)"])
def test_a_number_that_is_not_of_the_word_finds_nothing(typed):
    assert find_in(tokens("<s>", " cat", " and", " cat"), typed) is None


def test_a_sign_of_the_text_is_no_number():
    found = find_in(tokens("f", " (", "1", ")", " c#4"), "c#4")
    assert found.span == range(4, 5)
