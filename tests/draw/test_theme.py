"""What each kind of terminal is given."""

import io

import pytest
from rich.console import Console

from attnviz.draw.palette import STEPS
from attnviz.draw.theme import Theme


def console(encoding="utf-8", **environ):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=stream, force_terminal=True, width=80, _environ=environ)


@pytest.mark.parametrize(
    ("environ", "colour"),
    [
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm"}, False),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_needs_a_terminal_with_256_and_no_objection(environ, colour):
    theme = Theme.of(console(**environ), "viridis", ascii_only=False)
    assert theme.colour is colour
    assert theme.half_blocks is colour
    assert not theme.ascii


def test_streams_without_blocks_get_ascii_and_pipes_no_colour():
    class Odd(Console):
        @property
        def encoding(self):
            return "teletext"

    for encoding in ("ascii", "latin-1", "cp1252", "cp437", "cp850", "shift-jis"):
        theme = Theme.of(console(encoding, TERM="xterm-256color"), "viridis", ascii_only=False)
        assert theme.ascii
        assert theme.encoding == "ascii"
        assert theme.colour
        assert not theme.half_blocks
    assert Theme.of(Odd(file=io.StringIO(), width=80), "grey", ascii_only=False).ascii
    piped = Console(file=io.StringIO(), force_terminal=False, width=80)
    assert not Theme.of(piped, "viridis", ascii_only=False).colour


def test_ascii_on_request():
    theme = Theme.of(console(TERM="xterm-256color"), "magma", ascii_only=True)
    assert (theme.ascii, theme.encoding, theme.palette) == (True, "ascii", "magma")
    drawn = theme.ramp + theme.ellipsis + theme.dot + theme.trace
    assert drawn.isascii()


def test_the_ramp_grows_and_uses_every_glyph_and_blank_is_blank():
    for theme in (Theme(colour=False, ascii=True), Theme(colour=False)):
        places = [theme.ramp.index(theme.glyph(step)) for step in range(STEPS)]
        assert places == sorted(places)
        assert set(places) == set(range(len(theme.ramp)))
        assert " " not in theme.ramp  # blank is what no query sees
    for theme in (Theme(), Theme(colour=False), Theme(colour=False, ascii=True)):
        cell = theme.cells(-1, 3, "1.0")
        assert (cell.text, cell.style) == ("   ", None)


def test_half_blocks_show_two_rows_and_merge_equal_neighbours():
    line = Theme().stacked([0, 0, 9, -1, -1], [255, 255, -1, 7, -1])
    assert [segment.text for segment in line] == ["▀▀", "▀", "▄", " "]
    upper = line[0].style
    assert upper.color is not None
    assert upper.bgcolor is not None
    assert line[1].style.bgcolor is None
    assert line[3].style is None
