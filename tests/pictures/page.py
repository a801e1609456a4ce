"""The README's picture of the interactive page, as a browser shows it.

Renewed by

    python tests/pictures/page.py

which needs Playwright and a Chromium, as the tests of pages do.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import attnviz

HERE = Path(__file__).parent
TEXT = "When Mary and John went to the shop, John gave a drink to Mary."
VIEW = "#L1H2&q=10&k=5&lock&mode=sinkless&pins=L3H1"
WIDE, HIGH = 1440, 900
_COLOURS = 250


def main() -> None:
    from PIL import Image
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
        taken = Image.open(io.BytesIO(tab.screenshot()))
        browser.close()
    taken.convert("RGB").quantize(_COLOURS).save(HERE / "page.png", optimize=True)


if __name__ == "__main__":
    main()
