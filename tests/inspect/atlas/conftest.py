"""One atlas of the bundled model over a small corpus, which is measured once."""

from typing import Any

import pytest

import attnviz
from attnviz.inspect.atlas.report import AtlasReport

from .corpus import TEXTS, TOP


@pytest.fixture(scope="session")
def tiny() -> Any:
    return attnviz.load("tiny")


@pytest.fixture(scope="session")
def whole(tiny: Any) -> AtlasReport:
    return attnviz.atlas(tiny, TEXTS, top=TOP)
