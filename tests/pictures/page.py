"""The manual's picture of the interactive page, as a browser shows it.

Renewed by

    python -m tests.pictures.page

which needs Playwright and a Chromium, as the tests of pages do.
"""

import io
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import attnviz

PICTURE = Path(attnviz.__file__).parent / "docs" / "pictures" / "page.png"
TEXT = "When Mary and John went to the shop, John gave a drink to Mary."
VIEW = "#L1H2&q=10&k=5&lock&mode=sinkless&pins=L3H1"
SIZE = (1440, 900)
WORDS = "words on the page"
"""Under which the file of the picture keeps the text that the page showed."""

_COLOURS = 250


@contextmanager
def opened(text=TEXT, view=VIEW, size=SIZE, scheme="light"):
    """Yield the browser's tab with the page of a text, at the view that the picture shows."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        attnviz.heads("tiny", text, vectors=True).save(page)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        viewport = {"width": size[0], "height": size[1]}
        tab = browser.new_page(viewport=viewport, color_scheme=scheme)
        tab.goto(f"{page.as_uri()}{view}")
        tab.wait_for_selector("body[data-ready]", state="attached")
        tab.wait_for_timeout(500)
        yield tab
        browser.close()


def saved(tab, target):
    """Write what a tab shows as a small PNG that keeps the words of the page."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    said = PngInfo()
    said.add_itxt(WORDS, tab.inner_text("body"))  # what the test compares
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(_COLOURS)
    picture.save(target, format="PNG", optimize=True, pnginfo=said)


if __name__ == "__main__":
    with opened() as shown:
        saved(shown, PICTURE)
