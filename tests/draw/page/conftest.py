"""A real browser for pages, and pages that were written once.

Where no browser is found the tests are skipped, in one line that says so.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import attnviz

MARY = "When Mary and John went out, John gave Mary a book."
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUICK = "test_every_head_is_what_it_is"
"""The test that opens a page without ``-m long`` too, where a browser is found."""

_PATIENCE = 300_000
"""The milliseconds after which a browser that says nothing is lost, on a machine under any load."""

_DRAWN = """new Promise((done) => { const wait = () => requestAnimationFrame(() =>
  typeof due !== "undefined" && due.size ? wait() : setTimeout(done, 20)); wait(); })"""
"""A promise that is kept once the page has drawn what was due."""

_FRAMES = 3000
"""How many times a page is drawn anew before something that should happen is said not to."""


@dataclass
class Opened:
    """A page in a browser, with all that went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector):
        return str(self.page.locator(selector).inner_text())

    def js(self, script, *given):
        """What the script says once all that is due is drawn; what it changes is drawn after it."""
        self.page.evaluate(_DRAWN)
        value = self.page.evaluate(script, *given)
        self.page.evaluate(_DRAWN)
        return value

    def wait(self, script):
        """Return once the script is true; the page forbids Playwright to wait by itself."""
        for _ in range(_FRAMES):
            if self.js(script):
                return
        raise AssertionError(f"never true: {script}")

    def do(self, act, *given):
        """Click, hover or move the mouse as Playwright's page does, and wait until it is drawn."""
        attrgetter(act)(self.page)(*given)
        self.js("1")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.js("1")

    def press_button(self, box, at):
        """Press Enter on a button of a box, and wait until what it does is drawn."""
        self.page.locator(f"{box} button").nth(at).press("Enter")
        self.js("1")

    def cell(self, query, key):
        """Where a cell of the map is on the screen."""
        box = self.page.locator("#map").bounding_box()
        at = self.js("mapView.places")
        return (
            box["x"] + at["left"] + (key + 0.5) * at["cell"],
            box["y"] + at["top"] + (query + 0.5) * at["cell"],
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What opens a browser is long, but for the values of one page: a browser takes seconds."""
    for item in items:
        here = item.path.parent == Path(__file__).parent and item.name.partition("[")[0] != QUICK
        if here and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of one module: while it runs, an event loop does, too.

    A test of another module that starts an event loop of its own would fail next to it.
    """
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pages were not opened")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no browser was found: pages were not opened")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=_PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def blank(browser):
    """``blank(width=1000, height=1000)``: an empty tab, for frames and for pages that fail."""
    contexts = []

    def call(width=1000, height=1000):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        contexts[-1].set_default_timeout(_PATIENCE)
        return contexts[-1].new_page()

    yield call
    for context in contexts:
        context.close()


@pytest.fixture
def opened(browser):
    """``opened(path, link="", width=1440, height=900, scheme="light", scripts=True)``.

    ready: whether to wait until an interactive page is drawn.

    At the end nothing may have been requested, and nothing may have failed.
    """
    contexts, pages = [], []

    def call(
        path, link="", *, width=1440, height=900, scheme="light", scripts=True, ready=True, **more
    ):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=scripts,
            accept_downloads=True,
            **more,
        )
        context.set_default_timeout(_PATIENCE)
        contexts.append(context)
        shown = Opened(context.new_page())
        pages.append(shown)
        shown.page.on("pageerror", lambda error: shown.errors.append(str(error)))
        shown.page.on("dialog", lambda dialog: (shown.errors.append("a dialog"), dialog.dismiss()))
        shown.page.on(
            "console", lambda said: shown.errors.append(said.text) if said.type == "error" else None
        )
        shown.page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("file:", "data:", "blob:"))
                else shown.requests.append(asked.url)
            ),
        )
        shown.page.goto(f"{path.as_uri()}{link}")
        if scripts and ready:
            shown.page.wait_for_selector("body[data-painted]", state="attached")
            shown.page.wait_for_selector("body[data-ready]", state="attached")
        return shown

    yield call
    for context in contexts:
        context.close()
    for shown in pages:
        assert shown.errors == []
        assert shown.requests == []


@pytest.fixture(scope="session")
def mary(tmp_path_factory):
    """The page of the bundled model over one sentence, with all that it can show."""
    path = tmp_path_factory.mktemp("page") / "mary.html"
    attnviz.heads("tiny", MARY, vectors=True).save(path)
    return path
