"""The README's pictures are what the commands draw today."""

import re
import shutil
import struct

import pytest

from ..terminals import POSIX
from .page import HIGH, WIDE, WORDS, opened
from .terminal import HERE, PICTURES, picture


def texts(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


@POSIX
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "heads" else pytest.mark.long) for name in PICTURES],
)
def test_a_picture_says_what_the_screen_says(name):
    """Colours may differ by the last bit of a weight between machines; words may not."""
    kept = (HERE / f"{name}.svg").read_text(encoding="utf-8")
    assert texts(picture(name)) == texts(kept)
    assert "href" not in kept


def test_the_readme_shows_every_picture():
    readme = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^!\[[^]]+\]\(tests/pictures/([^)]+)\)$", readme, re.M)
    assert shown[1] == "page.png"
    assert {*shown} == {path.name for path in HERE.iterdir() if path.suffix in (".svg", ".png")}


def test_the_picture_of_the_page_is_small():
    content = (HERE / "page.png").read_bytes()
    assert struct.unpack(">II", content[16:24]) == (WIDE, HIGH)
    assert len(content) < 200_000


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser: no page was opened")
def test_the_picture_of_the_page_says_what_the_page_says():
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("playwright")
    with image.open(HERE / "page.png") as kept, opened() as tab:
        assert tab.inner_text("body").splitlines() == kept.text[WORDS].splitlines()
