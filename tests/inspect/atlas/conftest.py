"""One atlas of the bundled model over a small corpus, which is measured once."""

import pytest

import attnviz

from .corpus import TEXTS, TOP


@pytest.fixture(scope="session")
def tiny():
    return attnviz.load("tiny")


@pytest.fixture(scope="session")
def whole(tiny):
    return attnviz.atlas(tiny, TEXTS, top=TOP)
