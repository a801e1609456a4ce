"""The README's picture of the interactive page, as a browser shows it.

Renewed by

    python tests/pictures/page.py

which needs Playwright and a Chromium, as the tests of pages do.
"""

import io
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import attnviz

HERE = Path(__file__).parent
TEXT = "When Mary and John went to the shop, John gave a drink to Mary."
VIEW = "#L1H2&q=10&k=5&lock&mode=sinkless&pins=L3H1"
WIDE, HIGH = 1440, 900
WORDS = "words on the page"
"""Under which the file of the picture keeps the text that the page showed."""

_COLOURS = 250


@contextmanager
def opened():
    """Yield the browser's tab with the page, at the view that the picture shows."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        attnviz.heads("tiny", TEXT, vectors=True).save(page)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": WIDE, "height": HIGH}, color_scheme="light")
        tab.goto(f"{page.as_uri()}{VIEW}")
        tab.wait_for_selector("body[data-ready]", state="attached")
        tab.wait_for_timeout(500)
        yield tab
        browser.close()


def main():
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    said = PngInfo()
    with opened() as tab:
        taken = Image.open(io.BytesIO(tab.screenshot()))
        said.add_itxt(WORDS, tab.inner_text("body"))  # what the test compares
    picture = taken.convert("RGB").quantize(_COLOURS)
    picture.save(HERE / "page.png", optimize=True, pnginfo=said)


if __name__ == "__main__":
    main()
