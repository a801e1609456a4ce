"""Pictures through matplotlib: whole, repeatable, without a warning (they are errors here)."""

import io
import sys

import numpy as np
import pytest
from attnviz.heads.page import heads_page
from PIL import Image

from attnviz.draw import plot_fonts
from attnviz.draw.drawing import Cells
from attnviz.draw.drawing_plot import write_drawing
from attnviz.draw.page import page_drawing
from attnviz.draw.palette import colour_table
from attnviz.draw.plot_fonts import Pen
from attnviz.draw.scale import weight_steps
from attnviz.errors import UsageError


def _drawn(report, text="a text", target=None):
    return page_drawing(heads_page(report, text, target, "viridis"))


def _picture(report, form="png", text="a text", target=None):
    stream = io.BytesIO()
    write_drawing(_drawn(report, text, target), "viridis", stream, form)
    return stream.getvalue()


def _cells(drawing, x=0.0, y=0.0):
    """The maps of a drawing, each with the corner that it is drawn at."""
    yield from ((x + item.x, y + item.y, item) for item in drawing.items if isinstance(item, Cells))
    for right, down, part in drawing.parts:
        yield from _cells(part, x + right, y + down)


def test_png_shows_every_cell_in_its_colour(make):
    report = make(layers=1, heads=1, selected=True)
    drawing = _drawn(report)
    image = np.asarray(Image.open(io.BytesIO(_picture(report))).convert("RGB"))
    scale = image.shape[1] / drawing.width
    steps = weight_steps(report.weights(0, 0))
    table = colour_table("viridis")
    (left, top, cells) = next(each for each in _cells(drawing) if each[2].steps.shape == (7, 7))
    for row in range(7):
        for column in range(7):
            x = left + (column + 0.08) * cells.width / 7  # beside the value
            y = top + (row + 0.08) * cells.height / 7
            pixel = tuple(image[int(y * scale), int(x * scale)].tolist())
            blank = (238, 240, 243)
            assert pixel == (blank if column > row else table[steps[row, column]])


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-")])
def test_the_same_report_gives_the_same_bytes(report, form, magic):
    picture = _picture(report, form)
    assert picture.startswith(magic)
    assert 5_000 < len(picture) < 2_000_000
    assert picture == _picture(report, form)


@pytest.mark.parametrize("form", ["png", "pdf"])
def test_tokens_of_all_kinds(make, hostile, form):
    texts = (
        *hostile,
        "나는",
        "😀",
        "\U0001f469\u200d\U0001f467",
        "<0xED><0x95>",
        "ไทย",
        "\U00012000",
    )
    report = make(texts=texts, keys=("$\\frac{", "\\alpha", "_"), kind="cross", layers=1)
    assert _picture(report, form, text="".join(hostile))


def test_a_character_without_a_font_is_written_out(monkeypatch):
    monkeypatch.setattr(plot_fonts, "_upright_fonts", lambda: iter(()))
    pen = Pen.for_texts(["나\x1b"])
    assert pen.text("a나\x1b") == "a<U+B098><U+001B>"
    assert pen.families == ["DejaVu Sans"]


def test_no_other_font_is_looked_for_without_need(monkeypatch):
    def refuse():
        raise AssertionError("plain text needs no other font")

    monkeypatch.setattr(plot_fonts, "_upright_fonts", refuse)
    assert Pen.for_texts(["Grüße, мир"]).missing == frozenset()


def test_a_readers_own_settings_change_nothing(report):
    import matplotlib

    plain = _picture(report)
    with matplotlib.rc_context({"axes.grid": True, "text.usetex": True, "savefig.bbox": "tight"}):
        assert _picture(report) == plain
        assert matplotlib.rcParams["axes.grid"] is True


def test_pyplot_is_not_imported():
    import subprocess

    code = (
        "import io, sys; from attnviz.draw import drawing_plot, plot_fonts; "
        "from matplotlib.backends.backend_agg import FigureCanvasAgg; "
        "plot_fonts.Pen.for_texts(['x']); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_too_many_heads_for_a_picture_are_refused(make):
    with pytest.raises(UsageError, match="too large: choose fewer heads"):
        _picture(make(texts=tuple(f"w{n}" for n in range(99)), layers=9, heads=19, selected=True))
