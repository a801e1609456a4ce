"""Pictures with the weights of their patches: exact pixels, every colour depth, any shape."""

import io
from itertools import pairwise, product
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from attnviz.draw import document as doc
from attnviz.draw import picture
from attnviz.draw.html import document_html, plain_parts
from attnviz.draw.map_figure import outlines
from attnviz.draw.markdown import part_markdown
from attnviz.draw.palette import DEFAULT, accent_colour, colour_table, veils
from attnviz.draw.picture import pictures_block, resampled, sampled
from attnviz.draw.svg import picture_png
from attnviz.draw.terminal import first_screen, part_block
from attnviz.draw.theme import Theme

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
PLAIN, ASCII = Theme(colour=False), Theme(colour=False, ascii=True, encoding="ascii")
SQUARE = np.zeros((16, 16, 3), np.uint8)
SQUARE[:8, :8] = 255
WEIGHTS = np.zeros((4, 4), np.float32)
WEIGHTS[2, 2] = 0.5
HOT = doc.Picture(SQUARE, WEIGHTS, words=[("L0H1", True)], alternative="A square.")


def pictures(*shown, **fields):
    return doc.Pictures(shown, **{"lines": 4, **fields})


def pixels(part, theme=None, room=80):
    """The colours (row, column) of both halves of the characters of a drawn picture."""
    rows = []
    for line in pictures_block(part, theme or Theme(), room).lines:
        blocks = [(one.style, len(one.text)) for one in line if one.text[0] == "▀"]
        for side in ("color", "bgcolor"):
            inks = [[getattr(style, side)] * times for style, times in blocks]
            rows.append([tuple(ink.get_truecolor()) for run in inks for ink in run])
    return [row for row in rows if row]


def test_the_strongest_patch_hides_the_picture_and_weak_ones_darken_it():
    shown = pixels(pictures(HOT))
    assert (len(shown), len(shown[0])) == (8, 8)
    darkened = tuple(round(255 * (1 - veils(DEFAULT)[0][3])) for _ in range(3))
    for row, column in product(range(8), range(8)):
        hot = 4 <= row < 6 and 4 <= column < 6
        white = row < 4 and column < 4
        known = colour_table(DEFAULT)[255] if hot else darkened if white else BLACK
        assert shown[row][column] == known
    alone = pixels(pictures(doc.Picture(SQUARE)))
    assert {(r, c) for r, c in product(range(8), range(8)) if alone[r][c] == WHITE} == {
        *product(range(4), range(4))
    }


def test_the_contour_lies_round_its_patches_and_the_mark_on_its_own(monkeypatch):
    unmarked = np.array(pixels(pictures(HOT)))
    darker = np.array(pixels(pictures(HOT._replace(contour=0.5))))
    hot = np.zeros((8, 8), bool)
    hot[4:6, 4:6] = True  # too small for a line: what is outside is darker
    assert (darker[hot] == unmarked[hot]).all()
    assert (darker[~hot] <= unmarked[~hot]).all()
    assert (darker[~hot].sum(1) < unmarked[~hot].sum(1)).any()
    monkeypatch.setattr(picture, "_OUTLINED", 2)
    shown = pixels(pictures(HOT._replace(contour=0.5, mark=(0, 0))))
    ring = {(r, c) for r, c in product(range(8), range(8)) if shown[r][c] == WHITE}
    assert ring == {*product((4, 5), (3, 6)), *product((3, 6), (4, 5))}
    marked = {
        (r, c) for r, c in product(range(8), range(8)) if shown[r][c] == accent_colour(DEFAULT)
    }
    assert marked == {*product(range(2), range(2))}


def test_places_without_a_token_are_grey():
    weights = WEIGHTS.copy()
    weights[0, 0] = np.nan
    shown = pixels(pictures(HOT._replace(weights=weights)))
    red, green, blue, opacity = veils(DEFAULT)[-1]
    assert red == green == blue
    assert shown[0][0] == (round(255 * (1 - opacity) + red * opacity),) * 3
    half = pixels(pictures(HOT._replace(box=(0.5, 0.0, 1.0, 1.0))))
    assert half[7][3] == (round(red * opacity),) * 3  # the model does not see the left half
    assert half[4][6] == half[5][6] == colour_table(DEFAULT)[255]
    nowhere = np.full((4, 4), np.nan)
    assert set(pixels(pictures(HOT._replace(weights=nowhere)))[7]) == {(round(red * opacity),) * 3}


def test_a_weight_above_full_has_the_full_colour():
    shown = pixels(pictures(HOT._replace(full=0.25)))
    assert shown[4][4] == colour_table(DEFAULT)[255]
    faint = pixels(pictures(HOT._replace(full=2.0)))
    *colour, opacity = veils(DEFAULT)[128]  # √(.5 / 2)
    assert faint[4][4] == tuple(round(part * opacity) for part in colour)


def test_every_patch_is_seen_on_few_cells_and_none_grows_on_many():
    weights = np.arange(24.0).reshape(4, 6)
    shown = HOT._replace(weights=weights)
    few = sampled(shown, weights, 2, 3)
    assert few.tolist() == [[7, 9, 11], [19, 21, 23]]
    assert sampled(shown, weights, 8, 12).tolist() == weights.repeat(2, 0).repeat(2, 1).tolist()
    assert resampled(SQUARE, 3, 3)[..., 0].round().tolist() == [
        [255, 128, 0], [128, 64, 0], [0, 0, 0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("system", "sign"), [("truecolor", "38;2;"), ("256", "38;5;"), ("standard", ""), (None, "")]
)
def test_every_colour_depth_draws_what_it_can(system, sign):
    console = Console(color_system=system, width=60, file=io.StringIO(), force_terminal=True,
                      legacy_windows=False, _environ={})  # fmt: skip
    theme = Theme.of(console, DEFAULT, False)
    console.print(pictures_block(pictures(doc.Picture(SQUARE), HOT), theme, 60))
    drawn = console.file.getvalue()
    assert ("▀" in drawn) == bool(sign)
    assert sign in drawn
    if system == "256":
        assert "48;5;231" in drawn or "38;5;231" in drawn  # white
    assert ("image itself is left out" in drawn) != bool(sign)


@pytest.mark.parametrize("theme", [PLAIN, ASCII, Theme(ascii=True, encoding="ascii")])
def test_without_colour_the_weights_stand_alone(theme):
    part = pictures(doc.Picture(SQUARE), HOT._replace(contour=0.5, mark=(0, 0)))
    lines = pictures_block(part, theme, 80).plain.splitlines()
    across, upright, dot, full = "_|.@" if theme.ascii else "─│·█"
    assert lines[0] == "L0H1"
    assert lines[1] == "QQ" + dot * 6
    assert lines[2] == lines[4] == dot * 4 + across * 2 + dot * 2
    assert lines[3] == dot * 3 + upright + full * 2 + upright + dot
    assert "image itself is left out" in lines[5]
    assert not theme.ascii or "".join(lines).isascii()
    only = doc.Pictures([doc.Picture(SQUARE, alternative="A white square.")])
    assert "A white square." in pictures_block(only, theme, 80).plain


@pytest.mark.parametrize("theme", [Theme(), Theme(coarse=True), PLAIN, ASCII])
@pytest.mark.parametrize(
    ("size", "room", "drawn"),
    [((1, 1), 80, (4, 8)), ((20, 300), 80, (3, 80)), ((20, 300), 20, (1, 20)),
     ((300, 20), 80, (4, 1)), ((16, 16), 3, (2, 3))],
)  # fmt: skip
def test_the_shape_of_a_picture_is_kept(theme, size, room, drawn):
    shown = doc.Picture(np.zeros((*size, 3), np.uint8), np.full((1, 1), 0.5))
    block = pictures_block(pictures(shown), theme, room)
    lines = [line for line in block.plain.splitlines() if not line[1:].strip("▀█@")]
    assert (len(lines), len(lines[0])) == drawn
    for ending in (document_html, plain_parts):
        document = doc.Document("", "", [doc.Group([pictures(shown)])])
        more = ((),) if ending is plain_parts else ()
        assert "".join(ending(document, "magma", *more))


def test_pictures_stand_side_by_side_while_they_are_readable():
    def starts(count, room, **fields):
        shown = [HOT._replace(words=[(f"H{place}", True)]) for place in range(count)]
        lines = part_block(pictures(*shown, **fields), Theme(), room).plain.splitlines()
        assert max(map(len, lines)) <= room
        return [line.split() for line in lines if "H" in line]

    assert starts(3, 80, lines=12) == [["H0", "H1", "H2"]]
    assert starts(3, 40, lines=12) == [["H0", "H1"], ["H2"]]
    assert starts(3, 30, lines=12) == [["H0"], ["H1"], ["H2"]]
    assert starts(5, 80, small=True, lines=0) == [["H0", "H1", "H2", "H3", "H4"]]
    assert starts(9, 30, small=True, rows=1) == [["H0", "H1"]]
    few = part_block(pictures(*[HOT] * 9, small=True, rows=1), Theme(), 30).plain
    assert "7 more maps: --full" in few


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (80, 16), (200, 12)])
def test_a_first_screen_has_as_many_pictures_as_fit(small, columns, lines):
    shown = [HOT._replace(words=[(f"H{place}", True)]) for place in range(60 if small else 6)]
    many = doc.Pictures(shown, [("Where", True)], small=small)
    rows = [doc.Row([f"token {place}", "1"]) for place in range(9)]
    table = doc.Table([doc.Column("", right=False), doc.Column("n")], rows, least=2)
    groups = [doc.Group([many]), doc.Group([table])]
    document = doc.Document(
        "", "", groups, finding="So.", heading=[("m", True)], first=lambda *_: groups
    )
    block = first_screen(document, Theme(), columns, lines)
    assert len(block.lines) <= lines
    assert "token 1" in block.plain
    assert "▀" in block.plain
    assert not small or "more maps: --full" in block.plain


def test_a_png_has_the_pixels_of_the_picture():
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert (np.asarray(Image.open(io.BytesIO(picture_png(noise)))) == noise).all()


def test_outlines_enclose_exactly_the_cells():
    mask = np.zeros((4, 5), bool)
    mask[1:3, 1:4] = mask[3, 4] = True
    mask[1, 2] = False
    paths = list(outlines(mask))
    area = sum((x * b - a * y) / 2 for path in paths for (x, y), (a, b) in pairwise(path))
    assert abs(area) == mask.sum()
    assert all(path[0] == path[-1] for path in paths)


def test_a_page_has_an_image_with_its_sentence_and_a_choice_of_opacity():
    part = pictures(doc.Picture(SQUARE, alternative="A <square>."), HOT._replace(contour=0.5))
    page = "\n".join(document_html(doc.Document("", "t", [doc.Group([part])]), DEFAULT))
    body = ElementTree.fromstring(f"<main>{page.split('<main>')[1].split('</main>')[0]}</main>")
    assert [image.get("alt") for image in body.iter("img")] == ["A <square>.", "A square."]
    assert [field.get("value") for field in body.iter("input")] == ["100", "50", "0"]
    assert "2,2: 0.5" in page
    assert "img-src data:" in page


def test_markdown_lists_the_strongest_patches():
    written = part_markdown(pictures(HOT))
    assert "A square." in written
    assert written.splitlines()[6] == "| 2 | 2 | 0.5 |"
    assert len([line for line in written.splitlines() if line[:3] != "|--"]) == 10
    assert "|" not in part_markdown(pictures(HOT, small=True))
