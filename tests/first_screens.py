"""What holds of every command's first screen, whatever the terminal."""

from rich.cells import cell_len

from attnviz.draw.terminal import first_screen

SIZES = ((80, 24), (120, 40), (200, 60))
"""Columns and lines of terminals."""


def fitting(document, theme, columns, lines):
    """The lines of a first screen: none too wide, room for a prompt, the finding in the second."""
    shown = first_screen(document, theme, columns, lines - 1).plain.splitlines()
    assert len(shown) < lines
    assert max(map(cell_len, shown)) <= columns
    assert all(line == line.rstrip() for line in shown)
    answer, said = theme.spell(document.finding), " ".join(shown[1:4])
    assert said.startswith(answer[:60]) or answer.startswith(shown[1])
    return shown
