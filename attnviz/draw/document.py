"""What a command has to say, before anybody draws it: parts in groups, the same for every outlet.

A part is data: words, cells, matrices, curves. The terminal, pages, pictures and Markdown each draw
it in their own way (``terminal``, ``html``, ``figure``, ``markdown``), so that a part knows no
theme and no palette. There are eight kinds; what needs a ninth is a combination of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnviz.draw.palette import Tint as Tint  # parts are made of these: doc.Tint
from attnviz.draw.theme import Tone as Tone
from attnviz.draw.theme import Words as Words

if TYPE_CHECKING:  # documents without maps need no NumPy
    import numpy as np
    from numpy.typing import NDArray

    from attnviz.records import Tokens


# Words ---------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Words joined by dots: what a reader needs to repeat the run, or a heading with remarks.

    name: stands faint before them, in ``lead`` columns; further lines are indented as far.
    tone: of all words that have none of their own.
    """

    words: Words
    name: str = ""
    lead: int = 0
    tone: Tone = "plain"


class Quote(NamedTuple):
    """A text of a stranger behind its name, in one line of a terminal.

    lead: the columns that the name takes.
    """

    name: str
    content: str
    lead: int = 7


class Note(NamedTuple):
    """A sentence next to the result. longest: columns of a line at most, 0 for all there are."""

    text: str
    longest: int = 0


class Say(NamedTuple):
    """A sentence of the result; what stands before its first colon is strong.

    longest: columns of a line at most, 0 for all there are.
    """

    text: str
    longest: int = 0


# Tables --------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column of a table.

    title: its heading.
    right: numbers stand at the right, words at the left.
    tone: of its heading and its cells, where row and cell have none.
    keep: columns with the lowest numbers are left out first where the room is short, up to 3
        already for the sake of bars; those with 9 stay.
    wraps: its words are broken within the room that is left; below the row where that is too
        little. The last column alone; bars stand before it.
    cuts: its cells are cut where the room is short, so that a row stays one line.
    """

    title: str
    right: bool = True
    tone: Tone = "plain"
    keep: int = 9
    wraps: bool = False
    cuts: bool = False


class Row(NamedTuple):
    """One line of a table.

    cells: as many as there are columns; a single one is a heading across all of them.
    bar: a value and where a bar is full.
    tint: of the bar; None for the colour of the value's sign.
    tone: of the whole row; ``plain`` leaves it to the columns.
    tones: of single cells, by their place.
    below: sentences under the row.
    ruled: whether a line is drawn above. spaced: whether a line is left empty above.
    depth: by how many steps the first cell is indented.
    """

    cells: Sequence[str]
    bar: tuple[float, float] | None = None
    tint: Tint | None = None
    tone: Tone = "plain"
    tones: Mapping[int, Tone] | None = None
    below: Sequence[str] = ()
    ruled: bool = False
    spaced: bool = False
    depth: int = 0


class Table(NamedTuple):
    """Rows of cells; the first column names the rows.

    title: a heading and remarks.
    ranked: rows are compared: a bar stands behind each name, and columns are left out from the
        right where the room is short. Else a bar stands at the end of its row, columns are left
        out by ``keep``, and what is still too wide is broken into bands.
    lead: how many columns at the left are repeated in each band. bars: what their length is, above
        them.
    more: what is left out, in words below.
    least: the rows that stay where a first screen is short of lines, 0 for all; hidden: how many
        were left out so.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: Words = ()
    ranked: bool = False
    lead: int = 1
    bars: str = ""
    more: str = ""
    least: int = 0
    hidden: int = 0

    @property
    def left_out(self) -> str:
        """Return what is left out, and how to see it."""
        return f"{self.hidden} more: --full" if self.hidden else self.more


# Grids, maps and plots -----------------------------------------------------------------------


class Key(NamedTuple):
    """What one colour of a picture means: a sample with a letter in it, and words."""

    tint: Tint | None
    words: str
    letter: str = ""


class Scale(NamedTuple):
    """A colour bar: steps of a palette from left to right.

    ticks: (place from 0 to 1, text). words: what is measured, before the bar; after: behind it.
    """

    ticks: Sequence[tuple[float, str]]
    words: str = ""
    after: str = ""
    first: int = 0
    last: int = 255
    palette: str = ""


WEIGHTS = Scale(
    [(weight**0.5, text) for weight, text in
     ((0.0, "0"), (0.05, ".05"), (0.25, ".25"), (0.5, ".50"), (1.0, "1"))],
    "weight",
    "colour: √weight",
)  # fmt: skip
"""The scale of every attention map."""


class Cell(NamedTuple):
    """One cell of a grid.

    strength: how strongly it stands out where there is no colour, from 0 to 1, or from −1 with a
        tint of either sign; NaN is blank.
    tint: its colour; without one it is faint. text: such as a number, where there is room.
    letter: a label of one to four letters, which is always written and cut where it must be.
    tip: all that is known of it.
    """

    strength: float
    tint: Tint | None = None
    text: str = ""
    letter: str = ""
    tip: str = ""


class HeadGrid(NamedTuple):
    """A cell for each head, or whatever else has a row and a column.

    rows, columns: their names, such as ``L2`` and ``H5``. cells: by (row, column), counted from 0.
    key, scale: what the colours mean.
    halved: two rows share a line, in colour without texts, where a first screen is short of lines.
    hidden: how many rows more there are, for which it had no lines even so.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]
    title: Words = ()
    key: Sequence[Key] = ()
    scale: Scale | None = None
    hidden: int = 0
    halved: bool = False


class Map(NamedTuple):
    """Weights (query, key) of one head, NaN for what is not there.

    name: of the head, which tables link to. words: the title in full, the name by default.
    below: its scores, below the title or, of a small map, below the map.
    causal: later keys stay blank. limit: of values of either sign, where colours are full; 0 for
    weights. full: in a coloured text, the weight that has the full colour.
    tip: all that is known of it, ``below`` by default.
    """

    name: str
    weights: NDArray[np.floating]
    queries: Tokens
    keys: Tokens
    words: Words = ()
    below: Words = ()
    causal: bool = False
    limit: float = 0.0
    tip: str = ""
    full: float = 1.0


class Maps(NamedTuple):
    """Attention maps with tokens on both axes, side by side where they can be read so.

    texts: maps of one query each, drawn as the text of their keys, each token on the ground of its
        value.
    small: without tokens, in so many lines and columns of a terminal. rows: of small maps at most
        on a terminal, 0 for all; pages have all. across: how many make a row of a page, 0 for as
        many as there is room for.
    lines: of a terminal that a full map takes at most, 0 for forty; or a text, of which those
        with the largest values stay, 0 for all of it.
    values: write weights into cells. scale: what the colours mean; None where another part says
        it, which may be one without maps.
    hidden: how many maps more there are, for which a first screen had no lines.
    """

    maps: Sequence[Map]
    title: Words = ()
    small: tuple[int, int] | None = None
    rows: int = 0
    across: int = 0
    lines: int = 0
    values: bool = False
    index_base: int = 0
    texts: bool = False
    scale: Scale | None = WEIGHTS
    hidden: int = 0


class Curve(NamedTuple):
    """A curve of a plot.

    points: (place, value), at least one, from left to right; none infinite or NaN.
    marked: only its points are drawn, as signs, not a line through them.
    """

    name: str
    points: Sequence[tuple[float, float]]
    marked: bool = False


class Mark(NamedTuple):
    """A place on the axis where something begins. name: what, in the legend."""

    at: float
    name: str


class Level(NamedTuple):
    """A value that curves are compared with. name: what it is, in the legend."""

    value: float
    name: str


class Histogram(NamedTuple):
    """Shares of a whole by size.

    edges: of the bins, one more than ``shares``; the first bin may begin at 0.
    top: the share at which a bar is full. ticks: (bin, name) below the bars.
    words: what is to be said of it, below its name. mark: a place, counted in bins, and its name.
    """

    name: str
    shares: Sequence[float]
    edges: Sequence[float]
    top: float
    tint: Tint
    ticks: Sequence[tuple[float, str]] = ()
    words: str = ""
    mark: tuple[float, str] | None = None


class Plot(NamedTuple):
    """Curves over one axis, or histograms next to each other.

    across: the unit of the horizontal axis. ends: of that axis, left first; from 0 to the largest
    place where there are none. marks: vertical lines, levels: horizontal ones.
    rows: the lines of a terminal that the curves take, or the bars of histograms at most.
    """

    title: Words
    curves: Sequence[Curve] = ()
    across: str = ""
    ends: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()
    levels: Sequence[Level] = ()
    histograms: Sequence[Histogram] = ()
    rows: int = 12


# The whole -----------------------------------------------------------------------------------

Part = Facts | Quote | Note | Say | Table | HeadGrid | Maps | Plot


class Beside(NamedTuple):
    """How the members of a group stand side by side, where there is room.

    columns: what each needs; 0 for what its content takes in the whole room.
    gap: between two. most: of them in a row, 0 for any number.
    yields: instead both are as wide as their contents, if what the last one leaves of the room is
        ``columns``, or the first one's full width.
    """

    columns: int
    gap: int = 3
    most: int = 0
    yields: bool = False


class Group(NamedTuple):
    """Parts, or groups of parts, that belong together: no empty line parts them on a terminal.

    spaced: yet an empty line does. beside: they may stand side by side.
    full: only pages and Markdown have them, for which there is room.
    yields: on a first screen that is short of lines the groups with the highest number are left
        out first; 0 stays.
    """

    parts: Sequence[Part | Group]
    spaced: bool = False
    beside: Beside | None = None
    full: bool = False
    yields: int = 0


First = Callable[[int, int], Sequence[Group]]
"""What a first screen shows in so many columns and lines, below the finding."""


class Document(NamedTuple):
    """All that one run shows.

    name: what it is, for those who cannot see it. title: the heading of pages and pictures.
    groups: everything; an empty line parts them. explain: a reading for newcomers, where wanted.
    hints: what to try next, on a terminal alone.
    heading: what was measured, in one line: model, shape, amount; quoted: the text, at its end.
    finding: the answer, in a sentence. first: the first screen, which is never taller than the
    terminal; None where everything is shown.
    """

    name: str
    title: str
    groups: Sequence[Group]
    explain: Sequence[Part] = ()
    hints: Sequence[Part] = ()
    heading: Words = ()
    quoted: str = ""
    finding: str = ""
    first: First | None = None

    @property
    def whole(self) -> Sequence[Group]:
        """Return all groups, with the finding after the group that says what was measured."""
        answer = [Group([Say(self.finding)])] if self.finding else []
        return [*self.groups[:1], *answer, *self.groups[1:]]
