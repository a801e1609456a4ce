"""The manual's pictures are what the commands draw today."""

import io
import re
import shutil
from base64 import b64decode

import pytest

from ..manual_pages import PAGES
from ..terminals import POSIX
from . import tour
from .page import PICTURE, WORDS, opened
from .terminal import FOLDER, PICTURES, picture


def texts(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


@POSIX
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "heads" else pytest.mark.long) for name in PICTURES],
)
def test_a_picture_says_what_the_screen_says(name):
    """Colours may differ by the last bit of a weight between machines; words may not."""
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert texts(picture(name)) == texts(kept)
    assert "href" not in kept


@POSIX
@pytest.mark.long
def test_the_moving_picture_says_what_explore_says():
    shown = tour.screens()
    for scheme in tour.SCHEMES:
        kept = (FOLDER / f"tour-{scheme}.svg").read_text(encoding="utf-8")
        assert texts(kept) == texts(tour.drawing(shown, b"", scheme))


def test_pictures_are_small_and_shown_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {*re.findall(r"pictures/([\w-]+\.(?:svg|png))", pages)} == {
        path.name for path in FOLDER.iterdir()
    }
    assert all(path.stat().st_size < 300_000 for path in FOLDER.iterdir())


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser: no page was opened")
@pytest.mark.parametrize("name", ["page.png", *(f"tour-{scheme}.svg" for scheme in tour.SCHEMES)])
def test_a_picture_of_the_page_says_what_the_page_says(name):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("playwright")
    content, view = (FOLDER / name).read_bytes(), ()
    if name != PICTURE.name:
        (inside,) = re.findall(rb'base64,([^"]+)"', content)
        content, view = b64decode(inside), (tour.TEXT, tour.VIEW, tour.SCREEN)
    with image.open(io.BytesIO(content)) as kept, opened(*view) as tab:
        assert tab.inner_text("body").splitlines() == kept.text[WORDS].splitlines()
