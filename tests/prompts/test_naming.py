"""A predicted token is said alone, as a piece where it may be one, and never as a guessed word."""

import pytest

from attnviz.prompts.naming import next_word
from attnviz.records import Tokens


@pytest.mark.parametrize(
    ("texts", "predicted", "said"),
    [
        ((" the", " p", "ier", " and", " the"), " p", "piece “p”"),
        ((" the", " p", "ier", " and", " the"), " road", "“road”"),
        ((" the", " p", " and", " the"), " p", "“p”"),
        ((" the", " old", " sail"), "or", "“sail·or”"),
    ],
)
def test_no_word_of_the_text_stands_for_a_piece(texts, predicted, said):
    """What the model goes on to write after “p” is not known: perhaps “park”, not “pier”."""
    tokens = Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))
    assert next_word(tokens, len(texts) - 1, predicted) == said
