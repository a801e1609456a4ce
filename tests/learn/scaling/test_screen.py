"""Whole screens of ``attnviz scaling``, and what must hold of each of them."""

import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme

from ...first_screens import SIZES

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")

SCREENS = {
    "random_80": ("random_report", PLAIN, 80, {"hints": True}),
    "random_80_ascii": ("random_report", ASCII, 80, {"explain": True}),
    "heads_100": ("head_report", PLAIN, 100, {"hints": True}),
    "layer_80": ("layer_report", PLAIN, 80, {"explain": True}),
}


def draw(name, request):
    fixture, theme, width, options = SCREENS[name]
    document = request.getfixturevalue(fixture).document(**options)
    return terminal_block(document, theme, width).plain


@pytest.mark.parametrize("name", SCREENS)
def test_golden(name, request, golden):
    golden(name, draw(name, request))


@pytest.mark.parametrize(("columns", "lines"), SIZES[:2])
@pytest.mark.parametrize("name", ["random_report", "head_report"])
def test_first_screens(name, columns, lines, request, golden):
    document = request.getfixturevalue(name).document(hints=True)
    shown = first_screen(document, PLAIN, columns, lines - 1)
    golden(f"first_{name.removesuffix('_report')}_{columns}", shown.plain)
