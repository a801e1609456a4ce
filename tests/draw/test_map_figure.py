"""Maps as pictures: every cell in its colour, as SVG and through matplotlib, without a warning."""

import io
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.draw import drawing_plot
from attnviz.draw.document import Document, Group, Map, Maps
from attnviz.draw.drawing import Cells, Label
from attnviz.draw.drawing_plot import Pen, write_drawing
from attnviz.draw.figure import document_drawing, slide_drawing
from attnviz.draw.maps import weight_steps
from attnviz.draw.palette import colour_table, to_hex
from attnviz.draw.svg import svg_document
from attnviz.errors import UsageError
from attnviz.records import Tokens

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = ("<s>", " The", " cat", " sat", " on", " the", " cat")
HOSTILE = ("</svg><script>", "\x1b[31m", "\u202e", "nul\x00", "$x^2$", "]]>-->", "\x9bC1\ufffe")


def tokens(texts):
    return Tokens(tuple(range(len(texts))), tuple(texts), tuple(text == "<s>" for text in texts))


def drawn(texts=TEXTS, *, keys=None, causal=True, hole=None, heads=1):
    """The weights and the drawing of a document of maps."""
    columns = len(texts if keys is None else keys)
    causal = causal and keys is None
    weights = np.random.default_rng(7).dirichlet(np.full(columns, 0.2), len(texts))
    weights = np.tril(weights + 1e-9) if causal else weights
    if hole is not None:
        weights[hole] = np.nan
    axes = tokens(texts), tokens(texts if keys is None else keys)
    maps = [Map(f"L0H{head}", weights, *axes, causal=causal) for head in range(heads)]
    document = Document("maps", "".join(texts), [Group([Maps(maps)])])
    return weights, document_drawing(document)


def svg(drawing, palette="viridis"):
    return ElementTree.fromstring(svg_document(drawing, palette))


def picture(drawing, form="png"):
    stream = io.BytesIO()
    write_drawing(drawing, "viridis", stream, form)
    return stream.getvalue()


def svg_cells(root, rows, columns):
    """The colours of the last vector map of a drawing, '' where nothing is drawn."""
    groups = [group for group in root.iter(f"{SVG}g") if group.get("shape-rendering")]
    cells = np.full((rows, columns), "", dtype="U7")
    for path in groups[-1]:
        for column, row, length in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path.get("d") or ""):
            cells[int(row), int(column) : int(column) + int(length)] = path.get("stroke")
    return cells


@pytest.mark.parametrize("causal", [True, False])
def test_every_cell_has_the_colour_and_the_tip_of_its_weight(causal):
    """One that is no number is blank, as the future is."""
    weights, drawing = drawn(causal=causal, hole=(4, 2))
    root = svg(drawing, "magma")
    table, steps = colour_table("magma"), weight_steps(weights)
    for (row, column), colour in np.ndenumerate(svg_cells(root, 7, 7)):
        blank = (causal and column > row) or (row, column) == (4, 2)
        assert colour == ("" if blank else to_hex(table[steps[row, column]]))
    tips = [title.text for title in root.iter(f"{SVG}title")][1:]
    assert f"sat (3) → The (1): {weights[3, 1]:.4f}" in tips


def test_large_maps_are_one_image_and_say_which_tokens_are_named():
    _, drawing = drawn([f"w{place}" for place in range(257)], causal=False)
    root = svg(drawing)
    assert len(list(root.iter(f"{SVG}image"))) == 1
    assert "1 token in 3 is named" in [text.text for text in root.iter(f"{SVG}text")]
    assert len(svg_document(drawing, "viridis")) < 1_000_000


def values(part):
    """What is written into the cells of a file's maps."""
    drawing = document_drawing(Document("maps", "", [Group([part])]))
    labels = svg(drawing).iter(f"{SVG}text")
    return [each.text or "" for each in labels if each.get("class") == "value"]


def test_what_rounds_to_zero_is_a_dot_and_zero_is_nothing():
    weights = np.array([[1.0, 0.0, 0.0], [0.996, 0.004, 0.0], [0.5, 0.005, 0.495]])
    axes = tokens(TEXTS[:3]), tokens(TEXTS[:3])
    assert values(Maps([Map("L0H0", weights, *axes, causal=True)])) == (
        ["1.0", "1.0", "·", ".50", ".01", ".49"]
    )
    changes = np.array([[0.2, -0.004], [0.0, -0.1]])
    signed = Map("L0H0", changes, tokens("ab"), tokens("ab"), limit=1.0)
    assert values(Maps([signed])) == ["+0.20", "·", "", "-0.10"]


def test_all_maps_of_a_file_have_values_or_none():
    short = [f"w{place}" for place in range(14)]
    long = [f"w{place}" for place in range(17)]

    def shown(texts):
        return Map("L0H0", np.full((len(texts),) * 2, 0.5), tokens(texts), tokens(texts))

    assert len(values(Maps([shown(short), shown(short)]))) == 2 * 14**2
    assert values(Maps([shown(short), shown(long)])) == []


def placed(drawing, x=0.0, y=0.0):
    """The maps of a drawing, each with the corner that it is drawn at."""
    yield from ((x + item.x, y + item.y, item) for item in drawing.items if isinstance(item, Cells))
    for right, down, part in drawing.parts:
        yield from placed(part, x + right, y + down)


def test_png_shows_every_cell_in_its_colour():
    weights, drawing = drawn()
    image = np.asarray(Image.open(io.BytesIO(picture(drawing))).convert("RGB"))
    scale = image.shape[1] / drawing.width
    steps, table = weight_steps(weights), colour_table("viridis")
    left, top, cells = next(each for each in placed(drawing) if each[2].steps.shape == (7, 7))
    for row in range(7):
        for column in range(7):
            x = left + (column + 0.08) * cells.width / 7  # beside the value
            y = top + (row + 0.08) * cells.height / 7
            pixel = tuple(image[int(y * scale), int(x * scale)].tolist())
            blank = (238, 240, 243)
            assert pixel == (blank if column > row else table[steps[row, column]])


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-")])
def test_the_same_document_gives_the_same_bytes(form, magic):
    """Settings of the reader's own change nothing."""
    _, drawing = drawn()
    content = picture(drawing, form)
    assert content.startswith(magic)
    assert 5_000 < len(content) < 2_000_000
    with matplotlib.rc_context({"axes.grid": True, "text.usetex": True, "savefig.bbox": "tight"}):
        assert picture(drawing, form) == content
        assert matplotlib.rcParams["axes.grid"] is True


@pytest.mark.parametrize("form", ["png", "pdf"])
def test_tokens_of_all_kinds(form):
    more = ("나는", "😀", "\U0001f469\u200d\U0001f467", "<0xED><0x95>", "ไทย", "\U00012000")
    _, drawing = drawn((*HOSTILE, *more), keys=("$\\frac{", "\\alpha", "_"))
    assert picture(drawing, form)


def test_other_fonts_are_looked_for_at_need_and_what_has_none_is_written_out(monkeypatch):
    def refuse():
        raise AssertionError("plain text needs no other font")

    monkeypatch.setattr(drawing_plot, "_upright_fonts", refuse)
    assert Pen.for_texts(["Grüße, мир"]).missing == frozenset()
    monkeypatch.setattr(drawing_plot, "_upright_fonts", lambda: iter(()))
    pen = Pen.for_texts(["나\x1b"])
    assert pen.text("a나\x1b") == "a<U+B098><U+001B>"
    assert pen.families == ["DejaVu Sans"]


def test_too_many_maps_for_a_picture_are_refused():
    _, drawing = drawn([f"w{n}" for n in range(99)], heads=171)
    with pytest.raises(UsageError, match="too large: choose fewer heads"):
        picture(drawing)


@pytest.fixture(scope="module")
def report():
    return attnviz.heads("tiny", "The cat sat on the mat.")


def test_it_has_the_finding_inside_16_to_9(report):
    drawing = slide_drawing(report.document(), "viridis")
    assert drawing.width / drawing.height == 16 / 9
    words = " ".join(item.content for item in drawing.items if isinstance(item, Label))
    assert " ".join(report.finding.split()[:6]) in " ".join(words.split())
    assert all(
        0 <= item.x <= drawing.width and 0 <= item.y <= drawing.height for item in drawing.items
    )
    assert all(label.ink for label in drawing.items if isinstance(label, Label))


def test_pictures_of_it(report, tmp_path):
    report.save(tmp_path / "s.svg", slide=True)
    assert 'viewBox="0 0 1024 576"' in (tmp_path / "s.svg").read_text()
    image = pytest.importorskip("matplotlib.image")
    report.save(tmp_path / "s.png", slide=True)
    assert image.imread(tmp_path / "s.png").shape[:2] == (1080, 1920)
