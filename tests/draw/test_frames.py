"""Frames of wide first screens: they fill the width, have titles, and are ASCII where asked for."""

import pytest
from rich.cells import cell_len

from attnviz.draw import document as doc
from attnviz.draw.blocks import Block, Panel, framed_column, shared_widths, text_line
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme

PLAIN = Theme(colour=False)


def table(name, rows):
    cells = [doc.Row([f"{name}{row}", str(row)]) for row in range(rows)]
    return doc.Table([doc.Column("", right=False), doc.Column("n")], cells, [(name, True)])


def screen(groups, theme=PLAIN, columns=120):
    document = doc.Document(
        "", "", [], heading=[("m", True)], finding="F.", first=lambda *_: groups
    )
    return first_screen(document, theme, columns, 39).plain.splitlines()


def test_groups_stand_side_by_side_and_fill_the_width():
    lines = screen([doc.Group([table("a", 3)]), doc.Group([table("b", 2)])])
    assert [cell_len(line) for line in lines[2:]] == [120] * (len(lines) - 2)
    assert lines[2].startswith("╭─ a ─")
    assert "╮ ╭─ b ─" in lines[2]
    assert lines[-1].endswith("──╯")


def test_long_tables_continue_beside_themselves():
    lines = screen([doc.Group([table("a", 24)])])
    assert len(lines) == 2 + 2 + 1 + 8
    assert lines[4].split() == ["│", "a0", "0", "a8", "8", "a16", "16", "│"]


def test_narrow_screens_and_ascii_have_none_of_its_characters():
    groups = [doc.Group([table("a", 3)])]
    assert not {*"│╭|"} & {*"".join(screen(groups, columns=119))}
    assert "".join(screen(groups, Theme(colour=False, ascii=True))).isascii()


def test_widths_are_shared_by_need():
    assert shared_widths([10, 20], 61) == [20, 40]
    with_nothing_left = shared_widths([10, 20], 31)
    assert with_nothing_left == [10, 20]


@pytest.mark.parametrize("tall", [3, 6])
def test_the_last_frame_of_a_column_is_lengthened(tall):
    panel = Panel(Block((text_line("x"),), 1), text_line("t"))
    drawn = framed_column([panel], 9, tall, PLAIN.ascii).plain.splitlines()
    assert len(drawn) == tall
    assert drawn[:2] == ["╭─ t ───╮", "│ x     │"]
