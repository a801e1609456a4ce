"""What ``attnviz.capture`` and ``attnviz.heatmap`` return: choosing, looking, saving."""

import html
import io
import json
import re
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import attnviz
from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled

TEXT = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads


@pytest.fixture(scope="module")
def maps():
    return attnviz.capture("tiny", TEXT)


def drawn(content, width=80, **options):
    stream = io.StringIO()
    Console(file=stream, width=width, **options).print(content)
    return stream.getvalue()


def unpadded(screen):
    """Without the blanks at line ends."""
    return "".join(f"{line.rstrip()}\n" for line in screen.splitlines())


def names(maps):
    return [maps.report.name(*head) for head in maps]


@pytest.mark.parametrize(
    ("choice", "layer", "expected"),
    [
        (["L1H0"], None, ["L1H0"]),
        (["L0H3", "2.1"], None, ["L0H3", "L2H1"]),
        ([3], None, [f"L{layer}H3" for layer in range(LAYERS)]),
        ([(1, 0)], None, ["L1H0"]),
        ([(np.int64(1), np.int64(0))], None, ["L1H0"]),
        (["h2"], "-1", [f"L{LAYERS - 1}H2"]),
    ],
)
def test_heads_are_chosen_as_on_the_command_line(maps, choice, layer, expected):
    chosen = maps.heads(*choice, layer=layer)
    assert names(chosen) == expected
    assert len(chosen) == len(expected)
    for head in expected:
        assert np.array_equal(chosen[head], maps[head])
        assert chosen.scores(head) == maps.scores(head)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (f"L{LAYERS}H0", f"no layer {LAYERS}: this model has layers 0 to {LAYERS - 1} "),
        (1.5, "no head 5"),
        (None, "cannot read 'None' as a head"),
    ],
)
def test_no_choice(maps, choice, said):
    with pytest.raises(UsageError, match=said):
        maps.heads(choice)


def test_what_names_no_single_head_that_was_kept(maps):
    some = maps.heads("0.*", "1.0")
    with pytest.raises(UsageError, match=r"none of .* kept: here are L0H0, .*, L0H3, …$"):
        some["L3H3"]
    assert names(some.heads(0)) == ["L0H0", "L1H0"]
    assert len(maps) == LAYERS * HEADS  # a choice leaves them alone
    assert maps.heads() is not maps
    with pytest.raises(ValueError, match=r"'2.\*' names 4 heads: name one, such as L2H0, or take"):
        maps["2.*"]
    with pytest.raises(UsageError, match=f"3 names {LAYERS} heads: name one, such as L0H3"):
        maps.scores(3)
    with pytest.raises(UsageError, match="--head L1H0 names no head of --layer 2"):
        maps.heads("L1H0", layer=2)


def test_weights_by_layer_and_head_and_as_an_array(maps):
    weights = maps.weights
    assert list(weights) == list(maps)
    assert np.array_equal(weights[2, 1], maps["L2H1"])
    with pytest.raises(TypeError):
        weights[0, 0] = None  # a view that cannot be written
    with pytest.raises(FrozenInstanceError):
        maps.text = "other"  # that is what is tested
    stacked = np.asarray(maps)
    assert stacked.shape == (LAYERS * HEADS, 13, 13)
    assert np.array_equal(stacked[HEADS * 2 + 1], maps["L2H1"])
    assert np.asarray(maps, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.array(maps, copy=False)
    assert attnviz.heatmap(maps, maps.tokens).limit == 1
    assert repr(maps) == f"<HeadMaps of tiny: {LAYERS * HEADS} heads, 13 tokens>"
    assert repr(maps.heads("L0H1", "2.0")) == "<HeadMaps of tiny: L0H1, L2H0, 13 tokens>"


def test_it_is_drawn_and_saved_as_by_the_command(maps, run, tmp_path):
    files = [tmp_path / f"command{ending}" for ending in (".json", ".csv", ".svg", ".txt")]
    saved = [word for file in files for word in ("--save", str(file))]
    for options, shown in (saved, maps), (["--head", "L0H2,1.3"], maps.heads("L0H2,1.3")):
        assert str(shown) + "\n" == unpadded(run("heads", TEXT, "--quiet", *options).out)
    for file in files:
        own = tmp_path / f"own{file.suffix}"
        maps.save(own)
        assert own.read_bytes() == file.read_bytes()
    document = json.loads((tmp_path / "own.json").read_text())
    assert document["text"] == TEXT
    assert document["tokens"] == list(maps.tokens)


def test_plain_in_a_string_coloured_in_rich(maps, monkeypatch):
    head = maps.heads("L1H0")
    assert "\x1b" not in str(head)
    coloured = drawn(head, force_terminal=True, color_system="truecolor")
    assert "\x1b[48;2;207;230;255m" in coloured  # the last of blues: a weight of one
    full = coloured.count("207;230;255")
    coloured = drawn(head.view(contrast=0.2), force_terminal=True, color_system="truecolor")
    assert coloured.count("207;230;255") > full
    with pytest.raises(UsageError, match="a contrast above 0 and up to 1, got 2"):
        head.view(contrast=2)
    assert unpadded(drawn(head, no_color=True)) == str(head) + "\n"
    for width in (24, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = list(map(cell_len, str(maps).splitlines()))
        assert width * 0.7 < max(lines) <= width
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert str(maps).isascii()


@pytest.mark.parametrize("width", [10, 20, 33, 80])
def test_inside_other_renderables(maps, width):
    table = Table("maps", "words")
    table.add_row(maps.heads("0.0"), "beside")
    for content in (Panel(maps.heads("0.0")), table):
        lines = drawn(content, width).splitlines()
        assert {cell_len(line.rstrip()) for line in lines if line.strip()} == {width}


def test_views(maps):
    head = maps.heads("L0H1")
    assert f"\n{maps['L0H1'][1, 0]:.2f} ".replace("\n0.", "\n.") in str(head.view(values=True))
    assert "3 strongest pairs" in str(head.view(top=3))
    assert "How to read this" in str(head.view(explain=True))
    assert str(head.view(ascii=True)).isascii()
    grey = head.view(palette="grey")
    assert "\x1b[48;2;250;250;250m" in drawn(grey, force_terminal=True, color_system="truecolor")
    assert str(head.view(values=True).heads("L0H1")) == str(head.view(values=True))
    with pytest.raises(UsageError, match="no palette 'jet': expected one of viridis, magma"):
        head.view(palette="jet")
    with pytest.raises(UsageError, match="at least one pair"):
        head.view(top=0)


class Frame:
    """The page inside the frame of ``_repr_html_``."""

    def __init__(self, element):
        sandbox = "allow-scripts allow-downloads"
        match = re.fullmatch(
            rf'<iframe sandbox="{sandbox}" [^<>]*srcdoc="([^"<>]*)"[^<>]*></iframe>', element
        )
        self.page = html.unescape(match[1])
        self.height = int(re.search(r"100%; height: (\d+)px", element)[1])


def test_a_notebook_shows_the_saved_page(maps, tmp_path):
    for shown in (maps, maps.heads("L1H0"), attnviz.heatmap(np.eye(3), title="<b>")):
        shown.save(tmp_path / "maps.html")
        frame = Frame(shown._repr_html_())
        assert frame.page == (tmp_path / "maps.html").read_text()
        assert 360 <= frame.height <= 1000
        assert not re.search(r"\s(?:src|href)=\"(?!#|data:|\$)", frame.page)
