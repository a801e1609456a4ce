"""Rectangles keep their places when they are put together."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from attnviz.draw.blocks import Block, beside, flow, stack, text_line, without_trailing_blanks


@st.composite
def blocks(draw):
    texts = draw(st.lists(st.text("ab한", max_size=6), max_size=4))
    width = max(map(cell_len, texts), default=0) + draw(st.integers(0, 3))
    return Block(tuple(text_line(text) for text in texts), width)


def text(line):
    return "".join(segment.text for segment in line)


@given(st.lists(blocks(), max_size=5), st.integers(0, 3))
def test_beside_puts_each_block_at_its_column(parts, gap):
    row = beside(parts, gap)
    assert len(row.lines) == max((len(part.lines) for part in parts), default=0)
    for y, line in enumerate(row.lines):
        shown = text(line)
        assert cell_len(shown) <= row.width
        column = 0
        for part in parts:
            wanted = text(part.lines[y]) if y < len(part.lines) else ""
            cells = [c for character in shown for c in [character, ""][: cell_len(character)]]
            assert "".join(cells[column : column + cell_len(wanted)]) == wanted
            column += part.width + gap


@given(st.lists(blocks(), max_size=5), st.integers(0, 3))
def test_stack_leaves_lines_between_blocks_that_have_any(parts, gap):
    column = stack(parts, gap)
    full = [part for part in parts if part.lines]
    assert len(column.lines) == sum(len(part.lines) for part in full) + gap * max(len(full) - 1, 0)
    assert all(cell_len(text(line)) <= column.width for line in column.lines)


@given(st.lists(blocks(), max_size=6), st.integers(12, 40))
def test_flow_stays_within_the_width_and_keeps_everything(parts, width):
    flowed = flow(parts, width, gap=2)
    letters = sorted("".join(text(line) for part in parts for line in part.lines))
    assert sorted(flowed.plain.replace(" ", "").replace("\n", "")) == letters
    widest = max((part.width for part in parts), default=0)
    assert all(cell_len(text(line)) <= max(width, widest) for line in flowed.lines)


def test_only_unstyled_blanks_are_dropped():
    grey = Style(bgcolor="grey50")
    line = text_line("a", "  ", ("  ", grey), " ")
    assert text(without_trailing_blanks(line)) == "a    "
    assert without_trailing_blanks(text_line(" ", "")) == []


def test_plain_ends_each_line_without_blanks():
    assert Block((text_line("a  "), []), 3).plain == "a\n\n"
