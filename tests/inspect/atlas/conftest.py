"""One atlas of the bundled model over a small corpus, which is measured once."""

import pytest

import attnviz
from attnviz.texts import natural_texts

PIECES = [
    " ".join(words[start : start + 14])
    for words in map(str.split, natural_texts())
    for start in range(0, len(words) - 14, 5)
]
TEXTS = [*PIECES[:75], *PIECES[:15], *PIECES[75:]]
"""Two blocks of 64 texts, of which fifteen are there twice."""

TOP = 3
"""The places of each head that are kept."""


@pytest.fixture(scope="session")
def tiny():
    return attnviz.load("tiny")


@pytest.fixture(scope="session")
def whole(tiny):
    return attnviz.atlas(tiny, TEXTS, top=TOP)
