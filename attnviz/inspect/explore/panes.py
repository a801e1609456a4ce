"""The panes of the screen; each draws one ``View``, and sends only the lines that have changed.

In every function, ``theme`` has the colours and characters; ``columns`` counts characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import events, geometry
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, widest
from attnviz.draw.document import WEIGHTS
from attnviz.draw.grid import GridPicture, draw_part, scale_samples
from attnviz.draw.heatmap import MapPart, MapPicture, map_part
from attnviz.draw.labels import at_blanks, wrap
from attnviz.draw.maps import Fit, Place, pooling
from attnviz.draw.palette import STEPS
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme
from attnviz.inspect.explore import screen
from attnviz.inspect.explore.session import Frame
from attnviz.inspect.explore.view import SIDES, View
from attnviz.inspect.heads.links import Link, links_table, strongest_links
from attnviz.records import LayerWeights

_PLAIN = Style.null()  # textual's filters want one
LEAST_COLUMNS, LEAST_ROWS = 40, 12
"""The smallest terminal in which anything but a note is drawn."""


class Act(Message):
    """The message to the app to carry out an action, given as a call such as ``head(1)``."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action


class Pane(Widget):
    """The base of the panes of explore: draws its ``lines``, and sends only changed ones.

    wheel: the action of the mouse wheel, with ``{}`` for its steps: 1 down, −1 up.
    """

    wheel = ""

    def __init__(self, name: str, view: View, theme: Theme) -> None:
        super().__init__(id=name)
        self.view, self.look = view, theme
        self.note = ""
        self._strips: list[Strip] = []
        self._drawn_for: geometry.Size | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        """Return the lines to show; every pane has its own."""
        raise NotImplementedError  # Textual's widgets have a metaclass that no ABC can share

    def show(self, view: View) -> None:
        self.view = view
        self.redraw()

    def redraw(self) -> None:
        """Draw every line anew and send the changed ones."""
        columns, rows = self.size
        if self._drawn_for != self.size or not columns or not rows:
            return  # all of it is drawn when it is shown
        before = self._strips
        self._strips = self._draw()
        for row, (old, new) in enumerate(zip(before, self._strips, strict=True)):
            if old != new:  # from the left: textual sends a line from its first column on
                self.refresh(Region(0, row, columns - _same_end(old, new), 1))

    def _draw(self) -> list[Strip]:
        columns, rows = self.size
        across, down = self.app.size
        if across >= LEAST_COLUMNS and down >= LEAST_ROWS:
            lines = self.lines(columns, rows)[:rows]
        elif self.id == "heading":
            note = f"too small: {LEAST_COLUMNS} columns, {LEAST_ROWS} lines"
            lines = [[Segment(note, BOLD)]][:rows]
        else:
            lines = []
        return [strip_of(line, columns) for line in (*lines, *[[]] * (rows - len(lines)))]

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._drawn_for, self._strips = self.size, self._draw()
        return self._strips[y]

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    # The mouse -------------------------------------------------------------------------------

    def clicked(self, column: int, line: int) -> str:
        """Return the action of a click at a position in the pane; empty if it has none."""
        return ""

    def on_click(self, event: events.Click) -> None:
        self._act(self.clicked(event.x, event.y))

    def on_mouse_scroll_down(self) -> None:
        self._act(self.wheel.format(1))

    def on_mouse_scroll_up(self) -> None:
        self._act(self.wheel.format(-1))

    def _act(self, action: str) -> None:
        if action:
            self.post_message(Act(action))


def strip_of(line: Line, columns: int) -> Strip:
    """Return a line as textual's strip of exactly this width; equal styles are joined."""
    kept = [Segment(text, style or _PLAIN) for text, style, _ in line if text]
    return Strip(kept, Segment.get_line_length(kept)).simplify().adjust_cell_length(columns, _PLAIN)


class Lines(Widget):
    """A widget that shows the lines that it is given."""

    def __init__(self, name: str, told: Sequence[Line]) -> None:
        super().__init__(id=name)
        self._told = told

    def render_line(self, y: int) -> Strip:
        return strip_of(self._told[y] if y < len(self._told) else [], self.size.width)

    def get_content_width(self, container: geometry.Size, viewport: geometry.Size) -> int:
        return max((Segment.get_line_length(line) for line in self._told), default=0)

    def get_content_height(
        self, container: geometry.Size, viewport: geometry.Size, width: int
    ) -> int:
        return len(self._told)


def _same_end(old: Strip, new: Strip) -> int:
    """Return how many characters at the ends of two equally long lines look alike."""
    same = 0
    for before, after in zip(reversed([*old]), reversed([*new]), strict=False):
        if before.style != after.style:
            break
        if before.text != after.text:
            texts = before.text, after.text
            return same + min(len(text) - len(text.rstrip(" ")) for text in texts)
        same += before.cell_length
    return same


BETWEEN = 3
"""The columns between two panes or two maps."""

_LABELS = 12  # the columns that the tokens of a map take as a rule
_LEAST_LIST, MOST_LIST = 3, 12
"""The fewest lines in which a list of links is drawn, and the most that it takes."""

_SORTED = 2**25  # the most weights among which the strongest links are searched


class HeadingPane(Pane):
    """The top of the screen: the model and the text, then the finding."""

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view, theme = self.view, self.look
        finding = screen.finding_lines(view, theme, columns, rows - 1)
        return [screen.heading(view, theme, columns), *finding]


class GridPane(Pane, can_focus=True):
    """The grid of all heads, and below it their strongest links or effects if there is room."""

    wheel = "head({})"
    _drawn: GridPicture | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view, theme, heads = self.view, self.look, screen.heads_of(self.view)
        size = heads.thumbnail(view.shown, theme, rows, columns)
        if size is not None and view.written is None:
            self._drawn = heads.small_maps(view.shown, theme, size, self.has_focus)
            return self._drawn.lines
        self._drawn = draw_part(heads.part, theme, rows, columns, self.has_focus)
        drawn = list(self._drawn.lines)
        left = rows - len(drawn) - 1
        if left > _LEAST_LIST and view.written is None:
            by_effect = view.effects is not None and view.by_effect
            lines_of = screen.effect_lines if by_effect else links_lines
            drawn += [[], *lines_of(view, theme, columns, min(left, MOST_LIST))]
        return drawn

    def clicked(self, column: int, line: int) -> str:
        drawn, heads = self._drawn, screen.heads_of(self.view)
        head = None if drawn is None else heads.head_at(drawn, column, line)
        return "" if head is None else f"choose{head}"


def grid_columns(view: View, theme: Theme, columns: int, lines: int) -> int:
    """Return the width in characters of the grid of heads on the screen.

    The map gets the width that it needs first; what is over goes to the links below the grid.
    """
    keys = len(view.shown.report.record.keys)
    keys += 0 if view.written is None else view.written.sampling.tokens
    wanted = 2 * keys + _LABELS
    if keys > lines - 2:  # it is not seen whole at this size anyway
        wanted = min(keys + 2 * _LABELS, columns // 2)
    heads = screen.labelled(view)
    small = heads.thumbnail(view.shown, theme, lines, columns)
    forms = (*([] if small is None else [heads.wide(small)]), *heads.part.widths())
    most = min(columns - BETWEEN - wanted, columns * 11 // 20)
    form = next((form for form in forms if form <= most), min(forms[-1], columns // 2))
    if small is not None or view.written is not None or most <= form:
        return form
    listed = links_lines(view, theme, most, MOST_LIST)
    return max(form, *map(Segment.get_line_length, listed), 0)


def links_lines(view: View, theme: Theme, columns: int, rows: int) -> Sequence[Line]:
    """Return the table of the strongest links of all heads, in at most ``rows`` lines."""
    links = _strongest(view.shown, rows - 1)
    table = links_table(view.shown.report, links, "strongest links", False)
    return part_block(table, theme, columns).lines[:rows]


@lru_cache(maxsize=4)
def _strongest(frame: Frame, count: int) -> Sequence[Link]:
    """Return the strongest links of all heads; empty if there are too many weights to sort."""
    record = frame.report.record
    if sum(layer.weights.size for layer in record.layers) > _SORTED:
        return []
    there = tuple(
        LayerWeights(layer, (head,), weights[None])
        for layer, head, weights in record
        if (layer, head) not in frame.removed
    )
    return strongest_links(replace(frame.report, record=replace(record, layers=there)), count)


class WordsPane(Pane):
    """The pane of facts in words: the cursor's cell, row and column, and the prediction.

    A long note replaces them until the next key.
    """

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        if self.note:
            note, end = self.look.spell(self.note), self.look.ellipsis
            told = at_blanks(note, columns, "", end)
            told = told if " ".join(told) == note else wrap(note, columns, rows, end)
            return [[Segment(line, BOLD)] for line in told[:rows]]
        return screen.word_lines(self.view, self.look, columns, rows)


# The map ---------------------------------------------------------------------------------------


_BESIDE = 40  # the fewest free columns at the right of a map in which lists are drawn
_LEAST_NAME = 8  # the columns that the tokens of a map take at least
NEAREST = 4
"""The largest ``near`` of cells."""


class Size(NamedTuple):
    """The size of the cells of the map in explore.

    zoom: how many tokens share a cell. near: with one token per cell, 0 for the smallest cells,
        else the height of a cell in lines, which is half its width in characters.
    """

    zoom: int
    near: int = 0

    @classmethod
    def of(cls, plan: Fit) -> Size:
        """Return the size of the cells in the layout ``plan`` of a map."""
        return cls(plan.factors[0], plan.wide // 2)

    def plan(self, theme: Theme) -> Fit:
        """Return the layout of a map with cells of this size."""
        if self.near:
            return Fit(2 * self.near, False, (1, 1), self.near)
        return Fit(1, theme.half_blocks, (self.zoom, self.zoom))

    def changed(self, step: int, whole: bool) -> Size:
        """Return the next larger size (step is 1), or the next smaller one (step is −1).

        whole: whether all of the map is visible; then cells of more tokens are not offered.
        """
        zoom, near = self
        if step > 0:
            return Size((zoom + 1) // 2) if zoom > 1 else Size(1, min(near + 1, NEAREST))
        if near:
            return Size(1, near - 1)
        return self if whole else Size(zoom * 2)


def draw_map(
    part: MapPart, size: Size | None, theme: Theme, lines: int, columns: int
) -> MapPicture:
    """Return the drawn map, as much of it as fits.

    size: of the cells; None for the largest with which the whole map is visible.
    """
    theme = theme.signed if part.limit else theme
    if size is None:
        sizes = [Size(1, near) for near in range(NEAREST, 0, -1)]
        for own in sizes:
            plan = own.plan(theme)
            if part.ends_on_diagonal(plan, lines, columns):
                return map_part(part, plan, theme, lines, columns)
        queries, keys = len(part.axes.queries), len(part.axes.keys)
        high, wide = lines - 1, columns - part.gutter(columns)
        whole = [own for own in sizes if own.near * queries <= high and 2 * own.near * keys <= wide]
        down = math.ceil(queries / (max(high, 1) * Size(1).plan(theme).rows))
        size = whole[0] if whole else Size(max(down, math.ceil(keys / max(wide, 1))))
    return map_part(part, size.plan(theme), theme, lines, columns)


@lru_cache(maxsize=1024)
def _darker(segment: Segment) -> Segment:
    """Return a segment of a map at half its brightness; the cursor, which is bold, stays bright."""
    style = segment.style or DIM
    if style.bold:
        return segment
    text, ground = (
        Color.from_rgb(*(part // 2 for part in colour.triplet))
        if colour and colour.triplet
        else None
        for colour in (style.color, style.bgcolor)
    )
    return Segment(segment.text, style + Style(color=text, bgcolor=ground))


class MapPane(Pane, can_focus=True):
    """The pane of the chosen head: its name and label, its map, its pattern scores.

    size_chosen: the size of cells that the user chose; None for the largest with which the whole
        map fits.
    """

    wheel = "move(0, {})"
    size_chosen: Size | None = None

    corner = Place(0, 0)
    drawn: MapPicture | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view = self.view
        across = (columns + BETWEEN) // 3 - BETWEEN  # of both sides and their difference
        asked = view.other is not None or view.side != "a"
        wanted = 2 * len(view.record.keys) + _LEAST_NAME
        if not asked or not view.comparable or wanted > across:
            self.drawn, drawn = self._one(view, columns, rows, self.has_focus)
            self.corner = self.drawn.corner
            left = columns - widest(self.drawn.lines) - BETWEEN
            return self._with_lists(drawn, left, columns) if left >= _BESIDE else drawn
        blocks: list[Block] = []
        for side in SIDES:
            chosen = side == view.side
            picture, drawn = self._one(replace(view, side=side), across, rows, chosen)
            if chosen:
                self.drawn = picture._replace(left=picture.left + len(blocks) * (across + BETWEEN))
                self.corner = picture.corner
            blocks.append(Block(tuple(drawn), across))
        return beside(blocks, BETWEEN).lines

    def zoom(self, step: int) -> None:
        """Make map cells larger (step 1) or smaller (−1); with step 0 the whole map just fits."""
        if self.drawn is not None:
            size = Size.of(self.drawn.plan)
            self.size_chosen = size.changed(step, self.drawn.whole) if step else None
            self.redraw()

    def _with_lists(self, drawn: Sequence[Line], left: int, columns: int) -> Sequence[Line]:
        """Return a map with strongest links and effects at its right, if the grid has none."""
        view, rows = self.view, len(drawn) - 4
        grid = self.app.query_one("#grid").size.width
        small = screen.heads_of(view).thumbnail(view.shown, self.look, len(drawn), grid)
        if view.written is not None or small is None:
            return drawn
        lists = [*links_lines(view, self.look, left, min(rows, MOST_LIST))]
        if view.effects is not None:
            most = min(rows - len(lists) - 1, MOST_LIST)
            lists += [[], *screen.effect_lines(view, self.look, left, most)]
        blocks = Block(tuple(drawn), columns - left), Block(([], *lists), left)
        return beside(blocks, 0).lines

    def _one(
        self, view: View, columns: int, rows: int, strong: bool
    ) -> tuple[MapPicture, Sequence[Line]]:
        """Return the map of one side, and its lines: title, map, legend and scores."""
        theme, room = self.look, rows - 2
        part = MapPart(
            weights=view.weights,
            axes=view.axes(theme.encoding),
            cursor=Place(view.query, view.key),
            corner=self.corner,
            limit=view.limit,
        )
        picture = draw_map(part, self.size_chosen, theme, room, columns)
        body = list(picture.lines[:room])
        if view.dark:
            body = [[_darker(segment) for segment in line] for line in body]
        body += [[]] * (room - len(body))
        legend = self._legend(view, picture, columns)
        if room - len(picture.lines) > 1 and Segment.get_line_length(legend) <= columns:
            body[-1] = legend
        top = screen.head_line(view, theme, columns, strong)
        return picture, [top, *body, screen.score_line(view, theme, columns)]

    def _legend(self, view: View, picture: MapPicture, columns: int) -> Line:
        """Return the line on the meaning of colours or glyphs, and how many tokens share a cell."""
        theme = self.look
        if view.limit:
            words = ["blue −, orange +"] * theme.colour + [f"full at ±{view.limit:.2g}"]
            return [Segment(theme.spell(theme.dot.join(words)), DIM)]
        samples = scale_samples(
            WEIGHTS, theme, columns, lambda share: theme.glyph(round(share * (STEPS - 1)))
        )
        line = [segment for sample in samples for segment in (*sample, Segment("  "))][:-1]
        caption = pooling(picture.plan.factors)
        return [*line, Segment("  " + theme.spell(caption), DIM)] if caption else line

    def clicked(self, column: int, line: int) -> str:
        cell = None if self.drawn is None else self.drawn.cell_at(column, line - 1)
        return "" if cell is None else f"point({cell.query}, {cell.key})"
