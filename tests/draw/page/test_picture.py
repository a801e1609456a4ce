"""A page of pictures: a patch answers pointer and keys, and shows the weights that it has."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from attnviz.draw import document as doc
from attnviz.draw.html import document_html
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.records import Tokens
from attnviz.token_layout import Grid, TokenLayout

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8)


def written(path, *, pictures=(PIXELS,), box=(0.0, 0.0, 1.0, 1.0)):
    """The page of two heads over CLS and 2 × 3 patches; head h of token q looks at token q + h."""
    rows, columns = np.divmod(np.arange(6), 3)
    grid, row, column = (np.concatenate([[-1], axis]) for axis in (rows * 0, rows, columns))
    kinds = ("cls", *["patch"] * 6)
    layout = TokenLayout(kinds, (Grid(0, 2, 3, box),), grid, row, column, pictures)
    special = tuple(kind == "cls" for kind in kinds)
    tokens = Tokens(tuple(range(7)), layout.names(), special, layout=layout)
    heads = [PageHead(0, head, f"L0H{head}") for head in range(2)]
    weights = [np.roll(np.eye(7), head, 1) * 0.75 + 0.25 / 7 for head in range(2)]
    capture = PageCapture("", "encoder", False, heads, weights, tokens, tokens, ("", ""), [0, 1])
    document = doc.Document(
        "a picture", "t", [doc.Group([doc.Say("It looks.")])], page=lambda: Page("m", [capture])
    )
    path.write_text("\n".join(document_html(document, "viridis")), encoding="utf-8")
    return path


PIXEL = """([x, y]) => [...panes[0].canvas.getContext("2d").getImageData(
  (x + 0.5) / 3 * panes[0].canvas.width, (y + 0.5) / 2 * panes[0].canvas.height, 1, 1).data]"""


def hover(shown, x, y):
    box = shown.page.locator(".pane canvas").bounding_box()
    shown.page.mouse.move(
        box["x"] + (x + 0.5) / 3 * box["width"], box["y"] + (y + 0.5) / 2 * box["height"]
    )
    shown.js("1")


def test_a_patch_answers_pointer_and_keys(opened, tmp_path):
    shown = opened(written(tmp_path / "page.html"), "#L0H1&q=0")
    strong = shown.js(PIXEL, [0, 0])  # CLS looks at patch 0,0
    assert strong[3] == 255
    assert shown.js(PIXEL, [2, 1])[3] < 200
    hover(shown, 1, 1)
    assert shown.js("shown.queries.names[state.query]") == "1,1"
    assert shown.js(PIXEL, [2, 1]) == strong  # the next token
    assert ".96 on patches" in shown.text("#patch")  # all but what CLS gets
    shown.page.locator(".pane").focus()
    shown.press("ArrowUp", "ArrowLeft", "ArrowLeft", "Enter")
    assert shown.js("[shown.queries.names[state.query], state.locked]") == ["0,0", True]
    hover(shown, 2, 1)
    assert shown.js("state.query") == 1  # it is held
    shown.js("$('veil').value = 0; $('veil').oninput()")
    assert shown.js(PIXEL, [2, 1])[3] == 0
    assert shown.page.locator("#words [data-at]:visible").count() == 1  # CLS
    pytest.importorskip("axe_playwright_python")
    from axe_playwright_python.sync_playwright import Axe

    assert not Axe().run(shown.page).response["violations"]


def test_patches_lie_in_their_part_of_the_picture(opened, tmp_path):
    shown = opened(written(tmp_path / "page.html", box=(0.25, 0.5, 1.0, 1.0)), width=390)
    image, canvas = (
        shown.page.locator(f".pane {name}").bounding_box() for name in ("img", "canvas")
    )
    assert canvas["x"] - image["x"] == pytest.approx(image["width"] / 4, abs=1)
    assert canvas["height"] == pytest.approx(image["height"] / 2, abs=1)
    assert shown.js("document.documentElement.scrollWidth") <= 390
    with shown.page.expect_download() as saved:
        shown.page.locator("#picture-svg").click()
    content = re.search(r'href="data:image/png;base64,([^"]+)"', saved.value.path().read_text())
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(content[1])))) == PIXELS).all()
    with shown.page.expect_download() as saved:
        shown.page.locator("#picture-png").click()
    assert Image.open(io.BytesIO(saved.value.path().read_bytes())).width >= 80


def test_a_layout_without_its_pictures_is_a_text(opened, tmp_path):
    shown = opened(written(tmp_path / "page.html", pictures=()))
    assert shown.page.locator(".pane").count() == 0
    assert shown.page.locator("#words [data-at]:visible").count() == 7
