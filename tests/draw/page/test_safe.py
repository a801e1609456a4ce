"""The page is inert and honest: strangers' tokens, no scripts, frames, readers, paper, phones."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import attnviz
from attnviz.draw import html

from .conftest import MARY

NASTY = [
    "<img src=x onerror=alert(1)>", "</script><script>window.hacked=1</script>", "\u202eevil",
    "=HYPERLINK(1)", "a\nb", "\x1b[31m", "日本語", "👩‍👩‍👧", "'\"&amp;", "{{script}}", "x" * 120,
    "<!--",
]  # fmt: skip
OPERATED = {"button", "checkbox", "combobox", "DisclosureTriangle", "image", "link", "option"}
"""Roles of what a reader of the screen is told by name."""


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    path = tmp_path_factory.mktemp("nasty") / "page.html"
    rng = np.random.default_rng(1)
    weights = rng.gamma(0.2, size=(3, 12, 12)) + 1e-6
    weights /= weights.sum(-1, keepdims=True)
    title = "<b>bold</b></script><script>window.hacked=2</script>{{blocks}}"
    attnviz.heatmap(weights, NASTY, title=title).save(path)
    return path


def test_strangers_tokens_are_inert(opened, nasty, tmp_path):
    shown = opened(nasty)
    for state in ("{}", "{direction: 'from', key: 2}", "{scope: 'all'}", "{locked: true, key: 1}"):
        shown.js(f"set({state}, 'head')")
    shown.do("click", "#weights summary")
    assert shown.js("window.hacked === undefined")
    bad = "img[onerror], #words img, #words script, h1 b, #document b, #weights b, #top img"
    assert shown.page.locator(bad).count() == 0
    assert "\u202e" not in shown.text("body")
    for kind in ("svg", "csv"):
        with shown.page.expect_download() as waited:
            shown.page.click(f"#save-{kind}")
        waited.value.save_as(tmp_path / kind)
    drawn = (tmp_path / "svg").read_text()
    assert not re.search(r"<script|<img|\u202e", drawn)
    assert '"\'=HYPERLINK(1)"' in (tmp_path / "csv").read_text()


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, "", ""), *((tag, name, value or "") for name, value in attrs)]


def test_the_policy_allows_what_is_there_and_nothing_else(mary, nasty):
    for path in (mary, nasty):
        content = path.read_text()
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', content)
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for tag in ("script", "style"):
            for text in re.findall(rf"<{tag}>(.*?)</{tag}>", content, re.S):
                digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                assert f"'sha256-{digest}'" in policy
        tags = Tags()
        tags.feed(content)
        assert {"img", "canvas", "table"} <= {tag for tag, _, _ in tags.found}
        for tag, name, value in tags.found:
            assert name != "style"
            assert not name.startswith("on")
            assert name not in ("src", "href") or value.startswith(("#", "data:")), tag


def test_a_page_is_small(mary):
    served = sum(len(html.source(name).encode()) for name in ("early.js", "unpack.js"))
    served += len(html.style("page.css").encode())
    served += len(html.packed_scripts()) + len((html._HERE / "page.html").read_bytes())
    assert served <= 60_000
    assert mary.stat().st_size <= 155_000


def test_without_scripts_there_is_a_picture_and_a_table(opened, mary):
    shown = opened(mary, scripts=False)
    assert shown.page.locator("#static img").is_visible()
    assert shown.page.locator("#document tbody tr").count() >= 24
    assert shown.page.locator("#document td", has_text="previous token").first.is_visible()
    assert not shown.page.locator("#app").is_visible()


@pytest.mark.parametrize("sandbox", [None, "allow-scripts", "allow-scripts allow-downloads", ""])
def test_a_frame_shows_the_page(blank, mary, sandbox):
    """A frame has no address, so that no link is written there; a notebook trusts it or not."""
    page, errors = blank(height=700), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content("<body></body>")
    page.evaluate(
        """([html, sandbox]) => { const frame = document.createElement("iframe");
        if (sandbox !== null) frame.sandbox = sandbox;
        frame.style = "width: 100%; height: 640px; border: 0";
        frame.srcdoc = html; document.body.append(frame); }""",
        [mary.read_text(), sandbox],
    )
    if sandbox == "":
        page.frame_locator("iframe").locator("#static img").wait_for()
    else:
        frame = page.frame_locator("iframe")
        frame.locator("body[data-ready]").wait_for(state="attached")
        before = frame.locator("#name").inner_text()
        frame.locator("#next").click()
        frame.locator("#name").filter(has_not_text=before).wait_for()
        if sandbox == "allow-scripts allow-downloads":
            with page.expect_download() as waited:
                frame.locator("#save-csv").click()
            assert waited.value.suggested_filename.endswith(".csv")
    assert errors == []
    if sandbox is None:
        maps = attnviz.capture("tiny", "The cat sat.").show(head="L3H1")
        page.set_content(f"<body>{maps._repr_html_()}</body>")
        frame = page.frame_locator("iframe")
        frame.locator("body[data-ready]").wait_for(state="attached")
        assert frame.locator("#name").inner_text() == "L3H1"


def test_a_reader_of_the_screen_is_told_each_control_and_the_cell(opened, mary):
    shown = opened(mary, "#L1H3")
    browser = shown.page.context.new_cdp_session(shown.page)

    def told():
        nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    controls = [(role, name.strip()) for role, name in told() if role in OPERATED]
    assert len(controls) > 60
    assert [role for role, name in controls if not name] == []
    names = [name for _, name in controls]
    assert (
        "L1H3 ind .60" in names
    )  # the words that are seen; the label in full is their description
    assert "went .71" in names
    assert any(name.startswith("L1H3 “John” (8)") for name in names)
    assert shown.page.locator("#legend [aria-pressed=false]").count() == len(
        shown.js("[...$('legend').children]")
    )
    assert [role for role, _ in told()].count("application") == 2  # where arrows are the page's own
    assert ("region", "L1H3") in told()
    shown.js("set({ query: 3, key: 1, locked: true, hover: true }, 'token')")
    weight = attnviz.capture("tiny", MARY)["L1H3"][3, 1]
    said = f"{f'{weight:.4f}'.removeprefix('0')}  and → When"
    shown.wait(f"$('say').textContent.includes({json.dumps(said)})")
    assert shown.page.locator("#say").get_attribute("role") == "status"
    assert any("and" in name and "attends to" in name for _, name in told())


@pytest.mark.parametrize(("which", "scheme"), [("mary", "light"), ("nasty", "dark")])
def test_axe_finds_nothing(opened, request, scheme, which):
    api = pytest.importorskip("axe_playwright_python.sync_playwright")
    shown = opened(request.getfixturevalue(which), scheme=scheme)
    shown.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = api.Axe().run(shown.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(("which", "width"), [("mary", 390), ("nasty", 320)])
def test_a_phone_scrolls_down_only(opened, request, width, which):
    shown = opened(
        request.getfixturevalue(which), "#q=10&k=3&lock&mode=sinkless&pins=L0H1,L0H2,L2H2",
        width=width, height=844, has_touch=True, is_mobile=True,
    )  # fmt: skip
    assert shown.js("document.documentElement.scrollWidth") <= width
    shown.do("tap", "#next")
    assert shown.js("document.documentElement.scrollWidth") <= width


def test_paper_is_white_and_has_no_buttons(opened, mary):
    shown = opened(mary, scheme="dark")
    shown.js("print(true)")
    shown.page.emulate_media(media="print")
    assert shown.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.page.locator("#theme").is_visible()
    assert not shown.page.locator("#mode [aria-pressed=false]").first.is_visible()
    assert shown.page.locator("#map canvas").is_visible()
    shown.page.emulate_media(media="screen")
    shown.js("print(false)")
    assert shown.js("document.documentElement.dataset.theme") == "dark"


def test_what_cannot_be_unpacked_is_said(blank, mary, tmp_path):
    broken = re.sub(r'(id="block-0">)[^<]{40}', r"\1AAAA", mary.read_text())
    (tmp_path / "broken.html").write_text(broken)
    page = blank()
    page.goto((tmp_path / "broken.html").as_uri())
    page.locator("#failed").wait_for()
    assert "could not start" in page.locator("#failed").inner_text()
    assert page.locator("#static img").is_visible()
