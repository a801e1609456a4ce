"""The document of a command: parts in groups, the same for every outlet.

A part is data: words, cells, matrices, curves. Terminal, pages, pictures and Markdown each draw it
in their own way (``terminal``, ``html``, ``figure``, ``markdown``), so that a part knows no theme
and no palette. There are ten kinds of part; everything else is a combination of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from attnviz.draw.palette import Tint as Tint  # parts are made of these: doc.Tint
from attnviz.draw.theme import Tone as Tone
from attnviz.draw.theme import Words as Words

if TYPE_CHECKING:  # documents without maps need no NumPy
    import numpy as np
    from numpy.typing import NDArray

    from attnviz.draw.page.data import Page
    from attnviz.records import Floats, Tokens


Entry = TypeVar("Entry")

# Words ---------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Short statements joined by dots: the facts to repeat a run, or a heading with remarks.

    name: a label drawn faintly before them, ``lead`` characters wide; further lines are indented by
        as much. tone: the style of all words without a tone of their own.
    """

    words: Words
    name: str = ""
    lead: int = 0
    tone: Tone = "plain"

    @property
    def line(self) -> str:
        """Return the statements behind their name in one line without styles."""
        words = " · ".join(text.strip() for text, _ in self.words)
        return f"{self.name}: {words}" if self.name else words


class Quote(NamedTuple):
    """A text that the user gave, in one terminal line behind its name, ``lead`` characters wide."""

    name: str
    content: str
    lead: int = 7

    @property
    def line(self) -> str:
        """Return the text behind its name in one line without styles."""
        return f"{self.name}: {' '.join(self.content.split())}"


class Note(NamedTuple):
    """A sentence next to the result, such as a warning; ``longest``: of a line, 0 for what fits."""

    text: str
    longest: int = 0

    @property
    def line(self) -> str:
        return self.text


class Say(NamedTuple):
    """A sentence of the result, bold before its first colon; ``longest``: see ``Note``."""

    text: str
    longest: int = 0


class Meaning(NamedTuple):
    """A glossary entry: what words of a screen mean. words: several forms of one term."""

    words: Sequence[str]
    meaning: str


class Explanation(NamedTuple):
    """The glossary below a screen, for someone new to it.

    page: the page of the manual whose terms are explained if they are on the screen.
    measured: a sentence on the data that the numbers were measured on.
    terms: further entries, after those of the page.
    """

    page: str
    measured: str
    terms: Sequence[Meaning] = ()


# Tables --------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column of a table.

    title: its heading. right: whether cells are aligned at the right, as numbers are.
    tone: of its heading, and of cells if neither row nor cell has a tone.
    keep: if the width is short, columns with the lowest numbers are left out first, those up to 3
        even in favour of bars; columns with 9 always stay.
    wraps: whether its words are broken into lines in the remaining width, or below the row if that
        is too little. Only the last column may wrap; bars stand before it.
    cuts: whether its cells are cut if the width is short, so that a row stays one line.
    """

    title: str
    right: bool = True
    tone: Tone = "plain"
    keep: int = 9
    wraps: bool = False
    cuts: bool = False


class Row(NamedTuple):
    """One line of a table.

    cells: one for each column; a single cell is a heading across all columns.
    bar: a value, and the value of a full bar.
    tint: the colour of the bar; None for the colour of the value's sign.
    tone: the style of the whole row; ``plain`` leaves it to the columns.
    tones: the styles of single cells, by their index. below: sentences under the row.
    ruled: whether a line is drawn above the row. spaced: whether an empty line stands above it.
    depth: by how many levels the first cell is indented.
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
    ranked: whether rows are compared. If so, a bar stands behind each name, and columns are left
        out from the right if the width is short. Else a bar stands at the end of its row, columns
        are left out by their ``keep``, and a table that is still too wide is broken into bands.
    lead: how many columns at the left are repeated in each band.
    bars: what the bars' length means, written above them.
    more: a remark on what is left out, written below the table. least: how many rows remain on a
        terminal with few lines, 0 for all. hidden: how many rows were left out for that reason.
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
        """Return the remark on the rows that are left out of the table, and how to see them."""
        return f"{self.hidden} more: --full" if self.hidden else self.more


class ColumnOf(NamedTuple, Generic[Entry]):
    """A column of a table of entries: its title, and the text that an entry has in it.

    write: returns the cell of an entry. right, tone, keep, wraps, cuts: those of ``Column``.
    """

    title: str
    write: Callable[[Entry], str]
    right: bool = True
    tone: Tone = "plain"
    keep: int = 9
    wraps: bool = False
    cuts: bool = False


def table(
    entries: Iterable[Entry],
    *columns: ColumnOf[Entry],
    row: Callable[[Entry], Mapping[str, Any]] = lambda entry: {},
    **fields: Any,
) -> Table:
    """Return a table with a row for each entry.

    row: returns the fields of an entry's ``Row`` besides its cells, such as its bar. fields: those
    of ``Table``, such as its title.
    """
    rows = [Row([column.write(entry) for column in columns], **row(entry)) for entry in entries]
    titles = [Column(column.title, *column[2:]) for column in columns]
    return Table(titles, rows, **fields)


# Grids, maps and plots -----------------------------------------------------------------------


class Key(NamedTuple):
    """A legend entry: a sample of one colour with a letter in it, and what it means."""

    tint: Tint | None
    words: str
    letter: str = ""


class Scale(NamedTuple):
    """A colour bar: the colour levels ``first`` to ``last`` of a palette from left to right.

    ticks: (position from 0 to 1, label). words: the measured quantity, before the bar. after: a
        remark behind the bar.
    """

    ticks: Sequence[tuple[float, str]]
    words: str = ""
    after: str = ""
    first: int = 0
    last: int = 255
    palette: str = ""


SHADE = "shade: score 0–1"
"""The legend of cells whose shade is the score that they show."""

WEIGHTS = Scale(
    [(weight**0.5, text) for weight, text in
     ((0.0, "0"), (0.05, ".05"), (0.25, ".25"), (0.5, ".50"), (1.0, "1"))],
    "weight",
    "colour: √weight",
)  # fmt: skip
"""The scale of every attention map."""


class Cell(NamedTuple):
    """One cell of a grid.

    strength: how strongly it stands out without colour, in [0, 1], or in [−1, 1] for values of
        either sign; NaN is blank.
    tint: its colour; a cell without one is faint. text: such as a number, written if it fits.
    letter: a label of one to four letters, which is always written, cut if necessary.
    tip: everything that is known about the cell.
    values: the numbers by which a page can order cells, by their names.
    label, hue: what the head is known to do, in words, and that label's colour as RRGGBB.
    """

    strength: float
    tint: Tint | None = None
    text: str = ""
    letter: str = ""
    tip: str = ""
    values: Mapping[str, float] = {}
    label: str = ""
    hue: str = ""

    @property
    def content(self) -> str:
        """Return the letter and the text of the cell."""
        return f"{self.letter} {self.text}".strip()


_MOST_WRITTEN = 16  # the most columns of a grid whose cells have their texts written


class HeadGrid(NamedTuple):
    """A cell for each head, or for other things that have a row and a column.

    rows, columns: their names, such as ``L2`` and ``H5``. cells: by (row, column), counted from 0.
    key, scale: what the colours mean.
    halved: whether two rows share a line, as colours without texts, on a terminal with few lines.
    hidden: how many further rows did not fit on the terminal.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]
    title: Words = ()
    key: Sequence[Key] = ()
    scale: Scale | None = None
    hidden: int = 0
    halved: bool = False

    @property
    def written(self) -> bool:
        """Return whether pages and pictures write the text of each cell, not its letter alone."""
        contents = [cell.content for cell in self.cells.values()]
        return len(self.columns) <= _MOST_WRITTEN or all(len(text) < 3 for text in contents)

    def name(self, cell: tuple[int, int]) -> str:
        """Return the name of a cell, such as ``L2H5``. cell: its (row, column)."""
        row, column = self.rows[cell[0]], self.columns[cell[1]]
        return f"{row}{column}" if row[1:].isdigit() else f"{row} {column}".strip()

    def with_known(self, labels: Mapping[str, tuple[str, str]], measure: str = "") -> HeadGrid:
        """Return the grid with the labels of its heads, and with a new name for its numbers.

        labels: the label of a head and its colour, by the name of the cell. measure: the new name
            of the only number of each cell; empty keeps the name that it has.
        """
        cells = dict(self.cells)
        for position, cell in self.cells.items():
            label, hue = labels.get(self.name(position), ("", ""))
            values = {measure or name: number for name, number in cell.values.items()}
            cells[position] = cell._replace(label=label, hue=hue, values=values)
        return self._replace(cells=cells)


def head_grid(cells: Mapping[tuple[int, int], Cell], base: int, **fields: Any) -> HeadGrid:
    """Return a grid with a row for each layer and a column for each head that has a cell.

    cells: by (layer, head), from 0. base: the number of the first layer and head in their names.
    fields: those of ``HeadGrid``, such as its title.
    """
    layers, heads = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    return HeadGrid(
        [f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        {(layers.index(at), heads.index(head)): cell for (at, head), cell in cells.items()},
        **fields,
    )


class Map(NamedTuple):
    """The weights (query, key) of one head, NaN where there is no weight.

    name: the head's name, which tables link to. words: the whole title, by default the name.
    below: the head's scores, written below the title or, for a small map, below the map. causal:
        whether later keys stay blank. full: the weight that has the full colour in a coloured text.
    tip: everything that is known about the map, by default ``below``.
    """

    name: str
    weights: Floats
    queries: Tokens
    keys: Tokens
    words: Words = ()
    below: Words = ()
    causal: bool = False
    limit: float = 0.0
    tip: str = ""
    full: float = 1.0


class Maps(NamedTuple):
    """Attention maps with tokens on both axes, side by side if they stay readable.

    texts: whether each map has one query, and is drawn as the text of its keys, each token on a
        background in the colour of its value.
    small: (lines, width in characters) on a terminal of each map if it is drawn without tokens,
        else None. rows: the most rows of small maps on a terminal, 0 for all; pages show all.
        across: how many maps make a row of a page, 0 for as many as fit.
    lines: the most lines of a full map on a terminal, 0 for forty; or of a text, which is cut to
        the lines with the largest values, 0 for all.
    values: whether weights are written into cells. scale: what the colours mean; None if another
        part, perhaps one without maps, says so.
    hidden: how many further maps did not fit on the terminal.
    """

    maps: Sequence[Map]
    title: Words = ()
    small: tuple[int, int] | None = None
    rows: int = 0
    across: int = 0
    lines: int = 0
    values: bool = False
    texts: bool = False
    scale: Scale | None = WEIGHTS
    hidden: int = 0

    @property
    def labelled(self) -> bool:
        """Return whether the maps have tokens on both axes."""
        return self.small is None and not self.texts


LEAST_ARC, STRONG_ARC = 0.1, 0.5
"""The weight from which an arc is drawn, and that from which its line is heavy."""


class Arc(NamedTuple):
    """An arc of a drawing: the attention weight of a head from one word to another.

    query: the token indices of the word that attends. key: those of the word that is attended to.
    """

    query: range
    key: range
    weight: float


class Arcs(NamedTuple):
    """Arcs of one head over one line of text.

    tokens: the text. arcs: one for each query word and key word. title: a heading and remarks.
    lines: the most lines on a terminal, 0 for any number.
    """

    tokens: Tokens
    arcs: Sequence[Arc]
    title: Words = ()
    lines: int = 0


class Picture(NamedTuple):
    """A picture, with the weights of one query on its patches.

    pixels: (height, width, 3), from 0 to 255: what the model saw, upright.
    weights: (row, column) of the grid over ``box``; NaN where there is no token; None for the
        picture alone. full: the weight that has the full colour; 0 for the largest on the picture.
    box: the part of the picture under the grid: left, top, right, bottom as shares of its sizes.
    contour: patches with at least this weight lie inside a line; NaN for no line.
    mark: (row, column) of the query itself, if it is a patch. words: the title. below: a remark.
    alternative: the sentence that replaces the picture for people who do not see it.
    """

    pixels: NDArray[np.uint8]
    weights: Floats | None = None
    full: float = 0.0
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    contour: float = math.nan
    mark: tuple[int, int] | None = None
    words: Words = ()
    below: Words = ()
    alternative: str = ""


class Pictures(NamedTuple):
    """Pictures with maps on them, side by side if they stay readable.

    small: whether they are drawn small, a head each, as many as fit beside each other; then
        ``rows`` limits the rows of pictures on a terminal, 0 for all; pages show all.
    lines: the most lines of a picture on a terminal that is not small, 0 for what fits.
    scale: what the colours mean. hidden: how many further ones did not fit on the terminal.
    """

    pictures: Sequence[Picture]
    title: Words = ()
    small: bool = False
    rows: int = 0
    lines: int = 0
    scale: Scale | None = None
    hidden: int = 0


class Curve(NamedTuple):
    """A curve of a plot.

    points: (position, value), at least one, from left to right, all finite.
    marked: whether only the points are drawn, as signs, without a line through them.
    """

    name: str
    points: Sequence[tuple[float, float]]
    marked: bool = False


class Mark(NamedTuple):
    """A vertical line in a plot ``at`` which something begins, and its name for the legend."""

    at: float
    name: str


class Level(NamedTuple):
    """A horizontal line in a plot at a value that curves are compared with, named in the legend."""

    value: float
    name: str


class Histogram(NamedTuple):
    """One histogram: the share of all measured items in each bin.

    edges: the borders of the bins, one more than ``shares``; the first bin may begin at 0.
    top: the share at which a bar is full. ticks: (bin, label) below the bars.
    words: a remark below its name. mark: a position, counted in bins, and its label.
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

    across: the unit of the horizontal axis. ends: of that axis, left first; None for 0 and the
        largest position. marks: vertical lines. levels: horizontal lines.
    rows: the lines of a terminal that the curves take, or the most lines of histograms' bars.
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

Part = Facts | Quote | Note | Say | Table | HeadGrid | Maps | Pictures | Arcs | Plot


class Beside(NamedTuple):
    """How the members of a group stand side by side if there is room.

    columns: the width in characters that each member needs; 0 for its full width. gap: the
        characters between two members. most: members in a row, 0 for any number.
    yields: whether the second member gets its full width and the first one the rest. They stand
        side by side only if that rest is at least ``columns`` and the first one's full width.
    tight: whether drawings of words are made as narrow as their longest line, so that members with
        words stand side by side in pictures too.
    """

    columns: int
    gap: int = 3
    most: int = 0
    yields: bool = False
    tight: bool = False
    halves: bool = False


class Group(NamedTuple):
    """Parts, or groups of parts, that belong together; no empty line separates them on a terminal.

    spaced: whether an empty line separates them after all. beside: how they may stand side by side,
        or None. full: whether only pages and Markdown show the group.
    yields: the order of omission on a terminal with few lines: groups with the highest number are
        left out first, those with 0 never.
    """

    parts: Sequence[Part | Group]
    spaced: bool = False
    beside: Beside | None = None
    full: bool = False
    yields: int = 0


def leaves(part: Part | Group) -> Iterator[Part]:
    """Yield a part itself, or the parts of a group and of the groups in it, in their order."""
    if isinstance(part, Group):
        for member in part.parts:
            yield from leaves(member)
    else:
        yield part


class Ways(NamedTuple):
    """Layouts for the short form of a document, the best first: the first that fits is drawn.

    A layout fits if members that are side by side have their natural width, and if nothing must be
    left out. The last one is drawn if none fits.
    """

    ways: Sequence[Sequence[Group]]


def beside(*parts: Part | Group | list[Part | Group]) -> Group:
    """Return parts side by side in columns of one width; a list of parts is one column."""
    members = [Group(part, spaced=True) if isinstance(part, list) else part for part in parts]
    return Group(members, beside=Beside(0, halves=True))


First = Callable[[int, int], Sequence[Group] | Ways]
"""Returns the first screen, below the finding, for a number of columns and of lines."""


class Document(NamedTuple):
    """Everything that one run shows, as parts that each output format draws.

    name: a description for people who cannot see it. title: the heading of pages and pictures.
    groups: all groups of parts, separated by empty lines. explain: an explanation for newcomers, if
        requested.
    hints: what to try next, shown on a terminal only.
    heading: one line with the model, its shape and the amount measured. quoted: the text, at the
        end of that line.
    finding: the answer in a sentence. first: makes the short form, never taller than the terminal;
        None if everything is shown at once.
    page: returns what a page shows interactively in place of maps and head grids; None for a page
        of all parts.
    command: what it answers, such as ``heads``. glossary: the explanation, also if it was not
        requested, which a page has folded.
    """

    name: str
    title: str
    groups: Sequence[Group]
    explain: Explanation | None = None
    hints: Sequence[Facts] = ()
    heading: Words = ()
    quoted: str = ""
    finding: str = ""
    first: First | None = None
    page: Callable[[], Page] | None = None
    command: str = ""
    glossary: Explanation | None = None

    @property
    def whole(self) -> Sequence[Group]:
        """Return all groups, with the finding after the group that says what was measured."""
        answer = [Group([Say(self.finding)])] if self.finding else []
        return [*self.groups[:1], *answer, *self.groups[1:]]

    def shown(self, *, explain: bool, hints: bool) -> Document:
        """Return the document with a glossary only if ``explain``, and hints only if ``hints``."""
        steps: Sequence[Facts] = self.hints if hints else ()
        if not explain:
            return self._replace(explain=None, hints=steps)
        # The hint on ``--explain`` is left out beside the glossary.
        rest = [[word for word in step.words if word[0][:9] != "--explain"] for step in steps]
        kept = zip(steps, rest, strict=True)
        return self._replace(hints=[step._replace(words=words) for step, words in kept if words])


def next_steps(words: Iterable[str], tone: Tone = "plain") -> Sequence[Facts]:
    """Return the hints of a document, in one line; none if there are no words."""
    steps = [(word, False) for word in words]
    return [Facts(steps, tone=tone)] if steps else ()
