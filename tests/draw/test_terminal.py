"""A first screen: what was measured, the finding, as much as the terminal has lines for."""

import numpy as np
import pytest

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

PLAIN = Theme(colour=False)


def table(rows, least=0, **more):
    cells = [doc.Row([f"row {row}", "1"]) for row in range(rows)]
    columns = [doc.Column("name", right=False), doc.Column("number")]
    return doc.Table(columns, cells, least=least)._replace(**more)


def document(*groups, hints=(), **more):
    faint = [doc.Facts([(hint, False) for hint in hints], tone="faint")] if hints else []
    made = doc.Document(
        "made", "Made", [doc.Group([doc.Note("all there is")])], (), faint, [("tiny", True)]
    )
    return made._replace(finding="Heads attend.", first=lambda columns, lines: groups)._replace(
        **more
    )


def lines(shown, height=23, room=80):
    return first_screen(shown, PLAIN, room, height).plain.splitlines()


def test_the_finding_is_the_second_line_and_a_text_takes_what_room_is_left():
    found = lines(document(doc.Group([doc.Note("a note")]), quoted="The cat\nsat."))
    assert found == ["tiny · The cat sat.", "Heads attend.", "", "a note"]
    found = lines(document(quoted="word " * 40), room=40)
    assert found[0] == "tiny · " + ("word " * 40)[:32] + "…"
    assert lines(document(quoted="word " * 40), room=13)[0] == "tiny"
    assert lines(document(first=None)) == ["all there is", "", "Heads attend."]


@pytest.mark.parametrize("height", range(6, 30))
def test_it_is_never_taller_than_the_terminal(height):
    shown = document(
        doc.Group([table(9)], yields=1),
        doc.Group([table(20, 3), table(20, 3)], beside=doc.Beside(30)),
        doc.Group([doc.Note("last")], yields=2),
        hints=["--head L0H0: one head"],
    )
    found = lines(shown, height)
    assert len(found) <= height
    assert found[:2] == ["tiny", "Heads attend."]
    assert found[-1] == "--head L0H0: one head · --full: everything"


@pytest.mark.parametrize("height", range(3, 15))
def test_the_smallest_screen_has_the_finding_as_far_as_it_goes(height):
    told = document(doc.Group([table(9)]), hints=["--head L0H0"], finding="Heads attend. " * 9)
    found = lines(told, height, 20)
    assert len(found) <= height
    assert found[:2] == ["tiny", "Heads attend. Heads"]
    assert (found[-1] == "…") == (height < 10)  # the finding has nine lines
    assert ("--full: everything" in found) == (height > 11)


def test_a_table_says_how_many_rows_it_lost():
    found = lines(document(doc.Group([table(40, 3)])), 15)
    rows = [line for line in found if line.startswith("row")]
    assert len(found) == 15
    assert found[-1] == f"{40 - len(rows)} more: --full"


def test_groups_go_by_what_they_yield():
    groups = [doc.Group([table(4)], yields=rank) for rank in (1, 3, 2)]
    shown = document(doc.Group([table(4)]), *groups)
    assert sum(line.startswith("row") for line in lines(shown, 30)) == 16
    kept = lines(document(doc.Group([table(4)]), groups[0], groups[1]), 14)
    assert sum(line.startswith("row") for line in kept) == 8
    assert sum(line.startswith("row") for line in lines(shown, 16)) == 8


def test_hints_are_one_line():
    hints = ["--head L0H0: one head", "--token WORD: follows a word", "--save x.html: a page"]
    assert lines(document(hints=hints))[-1] == " · ".join([*hints[:2], "--full: everything"])
    assert lines(document(hints=hints), room=30)[-1] == "--full: everything"
    assert lines(document()) == ["tiny", "Heads attend."]


def test_of_a_long_path_the_end_is_named():
    for name, shown in (
        ("org/a-model-of-a-lab", "org/a-model-of-a-lab"),
        ("/a/long/way/to/where/models/are/bert", "…/are/bert"),
        ("/models/of-an-unusual-length/checkpoint-of-step-10000/", "…/checkpoint-of-step-10000"),
        ("a sentence of more than thirty letters", "a sentence of more than thirty letters"),
    ):
        assert lines(document(heading=[(name, True)]))[0] == shown


@pytest.mark.parametrize("height", [8, 12, 20, 30])
def test_a_grid_that_is_too_tall_says_how_many_rows_are_hidden(height):
    names = [f"L{row}" for row in range(24)]
    cells = {(row, 0): doc.Cell(0.5, doc.Tint(9), letter="prev") for row in range(24)}
    grid = doc.HeadGrid(names, ["H0"], cells)
    beside = doc.Group([doc.Group([grid]), doc.Note("right")], beside=doc.Beside(30))
    for group in (doc.Group([grid]), beside):
        found = lines(document(group), height)
        assert len(found) <= height
        rows = [line for line in found if line.startswith("L")]
        if len(rows) < 24:
            assert any(f"{24 - len(rows)} more rows: --full" in line for line in found)


def maps(count, tokens, **more):
    texts = Tokens(tuple(range(tokens)), ("because",) * tokens, (False,) * tokens)
    weights = np.full((tokens, tokens), 1 / tokens)
    shown = [doc.Map(f"run {place}", weights, texts, texts) for place in range(count)]
    return doc.Maps(shown, scale=None)._replace(**more)


@pytest.mark.parametrize("height", range(7, 60, 6))
def test_maps_that_have_no_lines_are_counted(height):
    found = lines(document(doc.Group([maps(5, 11)])), height, 40)
    drawn = sum("run " in line for line in found)
    assert len(found) <= height
    assert drawn == 5 or height < 18 or f"{counted(5 - drawn, 'more map')}: --full" in found


@pytest.mark.parametrize("theme", [PLAIN, Theme(), Theme(colour=False, ascii=True)])
def test_maps_of_several_runs_stand_side_by_side_where_they_would_be_cut_off(theme):
    shown = document(doc.Group([maps(3, 10, lines=19)]))
    found = first_screen(shown, theme, 80, 23).plain.splitlines()
    assert len(found) <= 23
    assert found[3].split() == ["run", "0", "run", "1", "run", "2"]
    assert not any("--full" in line or "downsampled" in line for line in found)
