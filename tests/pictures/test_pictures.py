"""The README's pictures are what the commands draw today."""

from __future__ import annotations

import re

import pytest

from ..conftest import POSIX
from .terminal import HERE, PICTURES, picture


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


@POSIX
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_says_what_the_screen_says(name: str) -> None:
    """Colours may differ by the last bit of a weight between machines; words may not."""
    kept = (HERE / f"{name}.svg").read_text(encoding="utf-8")
    assert texts(picture(name)) == texts(kept)
    assert "href" not in kept
