"""What ``attnviz verify`` says: whole screens, widths, colours, tables, JSON."""

import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme

from .conftest import model_found, own_found

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")

SCREENS = {
    "own_80": ({}, {"hints": True}, 80, ASCII),
    "own_44": ({"broken": True}, {}, 44, PLAIN),
    "own_steps_80": ({"steps": True}, {}, 80, PLAIN),
    "model_150": ({"broken": True}, {}, 150, PLAIN),
}


def screen_of(found, theme, room, **options):
    return terminal_block(found.document(**options), theme, room)


@pytest.mark.parametrize("name", SCREENS)
def test_golden(name, golden):
    fields, options, room, theme = SCREENS[name]
    found = (model_found if name == "model_150" else own_found)(**fields)
    golden(name, screen_of(found, theme, room, **options).plain)


def test_verdicts_are_coloured_and_written_out():
    for found, words in ((own_found(True), ("PASS", "FAIL", "SKIP")), (model_found(), ("N/A",))):
        screen = screen_of(found, Theme("viridis"), 100)
        styles = {
            segment.text.strip(): segment.style
            for line in screen.lines
            for segment in line
            if segment.style is not None
        }
        colours = {str(styles[word].color) for word in words}
        assert len(colours) == len(words)
        for word in words:
            assert word in screen.plain
    plain = screen_of(own_found(True), PLAIN, 100)
    assert not any(s.style and s.style.color for line in plain.lines for s in line)


@pytest.mark.parametrize("name", ["first_own_80", "first_steps_80", "first_model_80"])
def test_golden_first(name, golden):
    report = model_found() if "model" in name else own_found(steps="steps" in name)
    golden(name, first_screen(report.document(hints=True), PLAIN, 80, 23).plain)
