"""Pictures through matplotlib: whole, repeatable, without a warning (they are errors here)."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from attnviz.errors import LoadError, UsageError
from attnviz.render.export import plot_fonts
from attnviz.render.export.heads_plot import _figure, write_heads_plot
from attnviz.render.export.plot_fonts import Pen
from attnviz.render.export.plot_layout import Layout, resolution
from attnviz.render.palette import colour_table
from attnviz.render.scale import weight_steps


def _picture(report, form="png", text="a text", target=None):
    stream = io.BytesIO()
    write_heads_plot(report, text, target, "viridis", stream, form)
    return stream.getvalue()


def test_png_shows_every_cell_in_its_colour(make):
    report = make(layers=1, heads=1, selected=True)
    figure = _figure(report, "a text", None, "viridis")
    axes = figure.axes[0]
    image = np.asarray(Image.open(io.BytesIO(_picture(report))).convert("RGB"))
    figure.canvas.draw()
    steps = weight_steps(report.weights(0, 0))
    table = colour_table("viridis")
    for row in range(7):
        for column in range(7):
            x, y = axes.transData.transform((column - 0.4, row - 0.4))  # beside the value
            pixel = tuple(image[image.shape[0] - 1 - int(y), int(x)].tolist())
            blank = (238, 240, 243)
            assert pixel == (blank if column > row else table[steps[row, column]])


def test_labels_values_and_names(make):
    report = make(layers=1, heads=2, kv_heads=1, selected=True, index_base=1)
    figure = _figure(report, "a text", "a target", "blues")
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_xticklabels()] == [
        "<s>", "The", "cat", "sat", "on", "the", "cat",
    ]  # fmt: skip
    assert [label.get_text() for label in first.get_yticklabels()][1] == "The"
    shown = [text.get_text() for text in first.texts]
    assert "L1H1 kv1" in shown
    assert sum(text.startswith(".") or text == "1.0" for text in shown) == 7 * 8 // 2
    assert len(figure.axes) == 3  # two heads and the colour bar
    bar = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    assert bar == ["0", ".05", ".25", ".50", "1"]
    heights = figure.axes[-1].get_yticks()
    np.testing.assert_allclose(heights, np.sqrt([0, 0.05, 0.25, 0.5, 1]))
    heading = [text.get_text() for text in figure.texts]
    assert heading[0] == "a text | target: a target"
    assert any("revision 0123456789ab" in line for line in heading)


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


def test_long_text(make):
    report = make(texts=tuple(f"w{place}" for place in range(211)), layers=1, heads=2)
    figure = _figure(report, "long", None, "grey")
    assert len(figure.axes[0].get_xticklabels()) < 80
    assert any("is named" in text.get_text() for text in figure.texts)
    image = Image.open(io.BytesIO(_picture(report)))
    assert max(image.size) < 4000


def test_cross_attention(make):
    report = make(texts=("der", "Hund"), keys=("the", "old", "dog"), kind="cross", selected=True)
    axes = _figure(report, "the old dog", "der Hund", "grey").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "old", "dog"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["der", "Hund"]


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
        "import io, sys; from attnviz.render.export import heads_plot, plot_fonts; "
        "from matplotlib.backends.backend_agg import FigureCanvasAgg; "
        "plot_fonts.Pen.for_texts(['x']); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_matplotlib_one_line_says_what_to_install(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(LoadError, match=r"pip install 'attnviz\[plot\]'") as caught:
        _picture(report)
    assert "\n" not in str(caught.value)


def test_many_heads_are_drawn_coarser_and_too_many_are_refused():
    labels = ["w"] * 211
    assert resolution(Layout(labels, labels, 2)) == 150
    assert 20 < resolution(Layout(labels, labels, 144)) < 150
    with pytest.raises(UsageError, match="choose fewer with --head"):
        resolution(Layout(labels, labels, 4000))
