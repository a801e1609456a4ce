"""Every kind of page: regions, two stacks, variants, generation, rollout, two models, files."""

import base64
import io
import itertools
import re
import tempfile
import webbrowser
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.draw import document as doc
from attnviz.draw.html import document_html
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.inspect.rollout import rollout
from attnviz.inspect.rollout import screen as rollout_screen
from attnviz.records import Tokens
from attnviz.token_layout import Grid, TokenLayout

from .test_numbers import on_page, page_json, worst

CAT = "The cat sat on the mat because it was tired."
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8)


def test_word_pieces_are_joined_by_the_tokenizer(opened, trained_bert, tmp_path):
    text = "the cat  saw,the dog ."
    attnviz.capture(str(trained_bert), text).save(tmp_path / "page.html")
    pieces = opened(tmp_path / "page.html").js("shown.queries.pieces")
    assert "".join(pieces[1:-1]) == text


def test_bytes_of_a_character_are_named(opened, tmp_path):
    attnviz.capture("tiny", "나는 학교에 갔다 שלום").save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html", width=390)
    assert shown.js("document.documentElement.scrollWidth") <= 390
    assert "שלום"[0] in shown.text("#words")
    assert shown.page.locator("#words [data-at]").count() == shown.js("shown.n")
    assert shown.text("#words").replace("\u2009·\u2009", "").replace("␣", " ").split() == [
        "<bos>", "나는", "학교에", "갔다", "שלום"
    ]  # fmt: skip


def test_regions_are_bands_below_the_running_text(opened, run, tmp_path):
    run("heads", CAT, "--span", "who=The cat", "--span", "it=7:8", "--save", "page.html")
    shown = opened(tmp_path / "page.html")
    assert {"who", "it"} <= {*shown.page.locator("#words sup").all_inner_texts()}
    given = ("--span", "who=The cat", "--tokens", "4")
    run("generate", "The cat sat on the mat because", *given, "--save", "page.html")
    shown = opened(tmp_path / "page.html")
    assert "who" in shown.page.locator("#words sup").all_inner_texts()
    assert shown.js("shown.queries.regions.find(([name]) => name === 'who')[1]") == 1


def test_cross_attention_has_two_texts(opened, checkpoint, tmp_path):
    maps = attnviz.capture(
        str(checkpoint("t5")), "the cat saw the dog .", kind="cross", target="a man"
    )
    maps.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    assert shown.page.locator("#words h3").count() == 2
    for at, place in enumerate(maps):
        assert worst(on_page(shown, at, "raw"), maps[place]) < 3e-5
    shown.page.locator("#words [data-side=keys] [data-at='2']").hover()
    shown.js("1")
    assert shown.js("[state.direction, state.key]") == ["from", 2]


def test_what_a_model_does_not_show_is_said(opened, checkpoint, tmp_path):
    """T5 adds a bias to query × key, so that no dimensions make its weights."""
    report = attnviz.heads(str(checkpoint("t5")), "the cat saw .", kind="encoder", vectors=True)
    report.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    shown.page.click("#neurons summary")
    assert shown.text("#neuron-notes").startswith("Without query × key: the weights of ")
    assert not shown.page.locator("#neuron").is_visible()
    assert [*shown.js("Object.keys(modes())")][-1] == "value"


def test_variants_are_chosen_and_stand_side_by_side(opened, run, tmp_path):
    own = ("--model", "mha", "--d-model", "16", "--heads", "4", "--compare-mask")
    assert run("heads", "the cat sat on the mat", *own, "--save", "page.html").code == 0
    shown = opened(tmp_path / "page.html", "#L0H2&q=3&k=1&lock")
    assert shown.page.locator("#capture option").count() == 2
    assert shown.page.locator("#beside button").count() == 2
    values = shown.page.locator("#beside b").all_inner_texts()
    shown.press("c")
    assert shown.js("[state.capture, state.query, state.key, shown.names[state.head]]") == [
        1, 3, 1, "L0H2",
    ]  # fmt: skip
    assert shown.js("share(weight(3, 1))") == values[1] != values[0]


def test_a_written_text_is_walked_through(opened, tmp_path):
    report = attnviz.generate("tiny", "The cat sat on the mat because", tokens=6)
    report.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    seen = []
    for step in report:
        assert f"generated {step.text.strip()}" in shown.text("#step").replace("\n", " ")
        shown.press("ArrowRight")
        shown.page.locator("#step button").nth(1).click() if len(seen) < 5 else None
        shown.js("1")
        seen.append(step.query)
    run = report.run
    for at, (layer, head) in enumerate(run.heads):
        rows = on_page(shown, at, "raw")[run.start :]
        assert worst(rows, run.weights(layer)[head]) < 3e-5


@pytest.mark.parametrize(("name", "columns"), [("gpt2", 5), ("bert", 1024)])
def test_rollout_of_a_long_text_has_sums_over_keys(
    opened, checkpoint, tmp_path, monkeypatch, name, columns
):
    monkeypatch.setattr(rollout_screen, "_PAGE", columns)
    monkeypatch.setattr(rollout, "_SAMPLED", 5)
    text = "the cat saw the dog . a man saw ."
    report = attnviz.rollout(str(checkpoint(name)), text, reduce="fused")
    assert report.sampled is not None
    report.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    count, named = len(report.tokens), shown.js("shown.keys.tokens")
    ends = {*range(0, count, -(-count // columns)), count}
    ends |= {at + more for at in np.flatnonzero(report.at_sink) for more in (0, 1)}
    groups = [slice(*two) for two in itertools.pairwise(sorted(ends))]
    assert len(named) == len(groups)
    for said, group in zip(named, groups, strict=True):
        last = f"–{group.stop - 1}" if group.stop - group.start > 1 else ""
        assert said.endswith(f"({group.start}{last})") or report.tokens.special[group.start]
    for at, matrix in enumerate((report.matrix, report.raw)):
        sums = np.stack([matrix[:, group].sum(1) for group in groups], 1)
        assert worst(on_page(shown, at, "raw"), sums) < 3e-5
    bare = np.nan_to_num(report.without_sink())
    sums = np.stack([bare[:, group].sum(1) for group in groups], 1)
    assert worst(on_page(shown, 0, "sinkless"), sums) < 3e-4
    assert shown.js("shown.queries.tokens[state.query]").endswith(f"({report.query})")
    words = shown.text("#words [data-side=keys]")
    assert text in words


def test_words_of_several_tokens_keep_their_weight(tmp_path):
    text = "Kobayashi thanked Vaswani because Vaswani invented attention."
    report = attnviz.heads("tiny", text)
    report.save(tmp_path / "page.html")
    says = page_json((tmp_path / "page.html").read_text())["look"][0]["says"]
    ends, weight = says.split(", usual")[0].rsplit(" ", 1)
    assert all(end in report.finding for end in ends.split(" → "))
    assert weight in report.finding


def test_open_shows_the_page_or_says_why_not(run, refused, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: asked.append(uri) or True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    result = run("heads", "A cat.", "--open")
    assert result.code == 0
    (page,) = tmp_path.glob("attnviz-*.html")
    assert asked == [page.as_uri()]
    assert str(page) in result.err
    assert "attnviz.page/1" in page.read_text()
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    assert run("heads", "A cat.", "--open").code == 3
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSH_TTY", "/dev/pts/1")
    refused(2, "heads", "A cat.", "--open")


def test_heads_count_as_asked_and_tokens_from_zero(opened, run, tmp_path):
    asked = (CAT, "--layer", "2", "--index-base", "1", "--save", "page.html")
    assert run("heads", *asked).code == 0
    shown = opened(tmp_path / "page.html", "#L2H1&scope=layer")
    assert shown.page.locator("#grid > span").first.inner_text() == "L2"
    assert shown.text("#name") == "Mean of L2"
    repeated = "the cat saw the dog"
    assert run("heads", repeated, "--index-base", "1", "--save", "page.html").code == 0
    shown = opened(tmp_path / "page.html", "#L1H1&q=1")
    assert shown.js("shown.queries.names").count("the (1)") == 1
    assert shown.js("(() => { $('weights').open = true; drawWeights(); })()") is None
    assert shown.page.locator("#weights tbody th").first.inner_text() == "<bos> (0)"


def test_ablated_heads_of_several_texts_stand_before_and_after(opened, run, tmp_path):
    texts = [CAT, "Mary gave John a book."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    given = ("--texts", "texts.txt", "--ablate", "L0H1", "--save", "page.html")
    assert run("heads", *given).code == 0
    shown = opened(tmp_path / "page.html")
    said = ["every head", "without L0H1", "difference: without − with"]
    assert shown.js("captures.map(({ name }) => name.split(': ').slice(1).join(': '))") == 2 * said
    assert {look["capture"] for look in shown.js("data.look")} >= {2, 5}
    for at, text in enumerate(texts):
        before, after = (
            attnviz.heads("tiny", text, ablate=heads).reports[0] for heads in ((), ("L0H1",))
        )
        changes = []
        for head, entry in enumerate(before.heads):
            a, b = (each.weights(entry.layer, entry.head) for each in (before, after))
            changes.append(np.nanmax(np.abs(b - a)))
            for place, wanted in enumerate((a, b, b - a)) if 4 <= head < 12 else ():
                shown.js(f"switchTo({3 * at + place})")
                assert worst(on_page(shown, head, "raw"), wanted) < 6e-5
        shown.js(f"switchTo({3 * at + 2})")
        assert set(shown.js("shown.heads.facts")) == {""}  # those of a side are of no difference
        assert list(shown.js("shown.heads.values")) == ["largest_change"]
        assert shown.js("shown.heads.values.largest_change") == pytest.approx(changes, abs=1e-5)


def _played(*given):
    """Play keys in a thread of their own: the browser has an event loop in this one."""
    from ...inspect.explore.playing import play

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(play, *given).result()


def test_explore_saves_both_sides_and_their_difference(opened, tmp_path):
    from attnviz.inspect.explore.app import SideSource

    from ...inspect.explore.playing import SENTENCE, SESSION, explorer, line

    path = tmp_path / "sides.html"
    other = SideSource(SESSION, SENTENCE.replace("cat", "dog"))
    _played(explorer(second=other), "d", "d", "s", line(str(path)), "enter")
    shown = opened(path)
    assert [name[0] for name in shown.js("captures.map(({ name }) => name)")] == ["A", "B", "B"]
    a, b = (SESSION.frame(text) for text in (SENTENCE, other.text))
    assert list(shown.js("shown.heads.values")) == ["largest_change"]
    assert shown.js("shown.given") == "difference"
    for at, entry in enumerate(a.report.heads):
        head = entry.layer, entry.head
        assert worst(on_page(shown, at, "raw"), b.weights(head) - a.weights(head)) < 6e-5


def test_pinned_heads_stay_next_to_a_mean_and_heads_next_to_the_text(opened, mary):
    shown = opened(mary, "#L1H0&q=10&scope=layer&pins=L1H2,L1H0")
    assert shown.page.locator("#pins button").all_inner_texts() == [
        "Mean of L1", "L1H2 ×", "L1H0 ×"
    ]  # fmt: skip
    assert shown.js("[heads(), ...pinned().map((head) => [head])].length") == 3
    shown.press("s", "s", "s")
    assert shown.js("state.scope") == "head"
    assert shown.page.locator("#pins button").all_inner_texts() == ["L1H0", "L1H2 ×"]
    shown.page.emulate_media(media="print")
    shown.js("print(true)")
    heads, words = (shown.page.locator(name).bounding_box() for name in ("#heads", "#words"))
    assert heads["x"] + heads["width"] <= words["x"]
    assert abs(heads["y"] - words["y"]) < 200


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
