"""The panes of the screen: the heading, the grid of heads, the map of one head, the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message

from attnviz.draw.blocks import BOLD, DIM, Block, Line, beside, widest
from attnviz.draw.coloured_text import page_starts, text_block
from attnviz.draw.document import WEIGHTS, Map
from attnviz.draw.grid import scale_samples
from attnviz.draw.grid_part import GridPicture, draw_part
from attnviz.draw.labels import at_blanks, wrap
from attnviz.draw.map_part import MapPart, MapPicture
from attnviz.draw.maps import Place, pooling
from attnviz.draw.palette import STEPS
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme
from attnviz.engine.head_run import Head
from attnviz.inspect.explore import facts, heading
from attnviz.inspect.explore.grid import heads_of, labelled
from attnviz.inspect.explore.map import Size, draw_map
from attnviz.inspect.explore.pane import LEAST_COLUMNS, LEAST_ROWS, Pane
from attnviz.inspect.explore.scene import SIDES
from attnviz.inspect.explore.session import Frame
from attnviz.inspect.explore.view import View
from attnviz.inspect.heads.links import Link, strongest_links
from attnviz.inspect.heads.listed import links_table
from attnviz.records import LayerWeights

_BESIDE = 40
"""The fewest free columns at the right of a map in which lists are drawn."""

_BETWEEN = 3
"""The columns between two panes or two maps."""

_LEAST_NAME, _LABELS = 8, 12
"""The columns that the tokens of a map take at least, and those that they take as a rule."""

_LEAST_LIST, _MOST_LIST = 3, 12
"""The fewest lines in which a list of links is drawn, and the most that it takes."""

_SORTED = 2**25
"""The most weights among which the strongest links are searched."""


class HeadingPane(Pane):
    """The top of the screen: the model and the text, then the finding."""

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view, theme = self.view, self.look
        return [
            heading.heading(view, theme, columns),
            *heading.finding_lines(view, theme, columns, rows - 1),
        ]

    def too_small(self) -> Sequence[Line]:
        return [[Segment(f"too small: {LEAST_COLUMNS} columns, {LEAST_ROWS} lines", BOLD)]]


class GridPane(Pane, can_focus=True):
    """The grid of all heads, and below it their strongest links or effects if there is room."""

    class Chosen(Message):
        """The message to the app that a head of the grid was clicked."""

        def __init__(self, head: Head) -> None:
            super().__init__()
            self.head = head

    class Wheeled(Message):
        """The message to the app that the mouse wheel was turned over the grid of heads.

        steps: 1 for down, −1 for up.
        """

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

    _drawn: GridPicture | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view, theme = self.view, self.look
        heads = heads_of(view)
        size = None
        if view.written is None:
            size = heads.thumbnail(view.shown, theme, rows, columns)
        if size is not None:
            self._drawn = heads.small_maps(view.shown, theme, size, self.has_focus)
            return self._drawn.lines
        self._drawn = draw_part(heads.part, theme, rows, columns, self.has_focus)
        drawn = list(self._drawn.lines)
        left = rows - len(drawn) - 1
        if left > _LEAST_LIST and view.written is None:
            by_effect = view.effects is not None and view.by_effect
            lines_of = facts.effect_lines if by_effect else _links
            drawn += [[], *lines_of(view, theme, columns, min(left, _MOST_LIST))]
        return drawn

    def on_click(self, event: events.Click) -> None:
        if self._drawn is not None:
            head = heads_of(self.view).head_at(self._drawn, event.x, event.y)
            if head is not None:
                self.post_message(self.Chosen(head))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(self.Wheeled(1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.Wheeled(-1))


def grid_columns(view: View, theme: Theme, columns: int, lines: int) -> int:
    """Return the width in characters of the grid of heads on the screen.

    theme: colours and characters. columns, lines: the size of the screen in characters and lines.
        The map gets the width that it needs first; what is over goes to the links below the grid.
    """
    keys = len(view.shown.report.record.keys)
    keys += 0 if view.written is None else view.written.sampling.tokens
    wanted = 2 * keys + _LABELS
    if keys > lines - 2:  # it is not seen whole at this size anyway
        wanted = min(keys + 2 * _LABELS, columns // 2)
    heads = labelled(view)
    forms = heads.part.widths()
    small = heads.thumbnail(view.shown, theme, lines, columns)
    if small is not None:
        forms = (heads.wide(small), *forms)
    most = min(columns - _BETWEEN - wanted, columns * 11 // 20)
    form = next((form for form in forms if form <= most), min(forms[-1], columns // 2))
    if small is not None or view.written is not None or most <= form:
        return form
    listed = _links(view, theme, most, _MOST_LIST)
    return max(form, *(sum(segment.cell_length for segment in line) for line in listed), 0)


def _links(view: View, theme: Theme, columns: int, rows: int) -> Sequence[Line]:
    if view.shown.long is not None:  # its cells are no links, or only a part of them
        return []
    links = _strongest(view.shown, rows - 1)
    table = links_table(view.shown.report, links, "strongest links", False)
    return part_block(table, theme, columns).lines[:rows]


@lru_cache(maxsize=1024)
def _darker(segment: Segment) -> Segment:
    """Return a segment of a map at half its brightness; the cursor, which is bold, stays bright."""
    style = segment.style or DIM
    if style.bold:
        return segment
    found = [
        None
        if colour is None or colour.triplet is None
        else Color.from_rgb(*(part // 2 for part in colour.triplet))
        for colour in (style.color, style.bgcolor)
    ]
    return Segment(segment.text, style + Style(color=found[0], bgcolor=found[1]))


@lru_cache(maxsize=4)
def _strongest(frame: Frame, count: int) -> Sequence[Link]:
    """Return the ``count`` strongest links (query, key) of all heads.

    frame: the result of the pass. Empty if there are too many weights to sort.
    """
    record = frame.report.record
    if sum(layer.weights.size for layer in record.layers) > _SORTED:
        return []
    there = tuple(
        LayerWeights(layer, (head,), weights[None])
        for layer, head, weights in record
        if (layer, head) not in frame.removed
    )
    return strongest_links(replace(frame.report, record=replace(record, layers=there)), count)


class MapPane(Pane, can_focus=True):
    """The pane of the chosen head: its name and label, its map, its pattern scores.

    size_chosen: the size of cells that the user chose; None for the largest with which the whole
        map fits. drawn: the map as it was drawn last. as_text: whether the text is shown in place
        of the map, coloured by what the cursor's query attends to.
    """

    class Pointed(Message):
        """The message to the app that a cell of the map was clicked."""

        def __init__(self, cell: Place) -> None:
            super().__init__()
            self.cell = cell

    class WheelTurned(GridPane.Wheeled):
        """The message to the app that the mouse wheel was turned over the map."""

    size_chosen: Size | None = None
    as_text = False

    def show(self, view: View, theme: Theme) -> None:
        before, after = (each.shown.long for each in (self.view, view))
        windows = [each is not None and not each.pooled for each in (before, after)]
        if windows[0] != windows[1]:
            self.size_chosen, self.as_text = Size(1, 1) if windows[1] else None, False
        super().show(view, theme)

    _pages: Sequence[int] = (0,)
    corner = Place(0, 0)
    drawn: MapPicture | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view = self.view
        part = view.shown.long
        if self.as_text and view.written is None and not (part is not None and part.pooled):
            return self._text(view, columns, rows)
        across = (columns + _BETWEEN) // 3 - _BETWEEN
        if not self._fits(across, rows):
            self.drawn, drawn = self._one(view, columns, rows, self.has_focus)
            self.corner = self.drawn.corner
            left = columns - widest(self.drawn.lines) - _BETWEEN
            return self._with_lists(drawn, left, columns) if left >= _BESIDE else drawn
        blocks: list[Block] = []
        for side in SIDES:
            chosen = side == view.scene.side
            one = replace(view, scene=replace(view.scene, side=side))
            picture, drawn = self._one(one, across, rows, chosen)
            if chosen:
                self.drawn = picture._replace(left=picture.left + len(blocks) * (across + _BETWEEN))
                self.corner = picture.corner
            blocks.append(Block(tuple(drawn), across))
        return beside(blocks, _BETWEEN).lines

    def page(self, step: int) -> int:
        """Return the first token of the page of the text ``step`` pages on, within the text."""
        key = self.view.scene.key
        here = max(place for place, start in enumerate(self._pages) if start <= key)
        return self._pages[min(max(here + step, 0), len(self._pages) - 1)]

    def _text(self, view: View, columns: int, rows: int) -> Sequence[Line]:
        """Return the page of the text with the cursor's key, coloured by the cursor's query."""
        theme = self.look.signed if view.limit else self.look
        row, tokens = view.weights[view.scene.query], view.record.keys
        full = float(np.nanmax(np.abs(row), initial=0.0)) or 1.0
        shown = Map("", row[None], tokens, tokens, limit=full if view.limit else 0.0, full=full)
        self._pages, self.drawn = page_starts(shown, theme, columns, rows - 2), None
        body = list(text_block(shown, theme, columns, rows - 2, page=self.page(0)).lines)
        top = facts.head_line(view, theme, columns, self.has_focus)
        body += [[]] * (rows - 2 - len(body))
        return [top, *body, facts.score_line(view, theme, columns)]

    def zoom(self, step: int) -> None:
        """Make map cells larger (step 1) or smaller (−1); with step 0 the whole map just fits."""
        if self.drawn is not None:
            size = Size.of(self.drawn.plan)
            self.size_chosen = size.changed(step, self.drawn.whole) if step else None
            self.redraw()

    def _with_lists(self, drawn: Sequence[Line], left: int, columns: int) -> Sequence[Line]:
        """Return the lines of a map with tables at its right: the strongest links and the effects.

        They are added only if small maps in the grid of heads leave no space for them there. drawn:
        the lines of the map. left: the free width in characters at the right. columns: the width of
        the pane.
        """
        view, rows = self.view, len(drawn) - 4
        heads = heads_of(view)
        grid = self.app.query_one("#grid").size.width
        small = heads.thumbnail(view.shown, self.look, len(drawn), grid)
        if view.written is not None or small is None:
            return drawn
        lists = [*_links(view, self.look, left, min(rows, _MOST_LIST))]
        if view.effects is not None:
            most = min(rows - len(lists) - 1, _MOST_LIST)
            lists += [[], *facts.effect_lines(view, self.look, left, most)]
        blocks = Block(tuple(drawn), columns - left), Block(([], *lists), left)
        return beside(blocks, 0).lines

    def _fits(self, columns: int, rows: int) -> bool:
        """Return whether both sides and their difference fit next to each other in the pane."""
        view = self.view
        asked = view.other is not None or view.scene.side != "a"
        return asked and view.comparable and 2 * len(view.record.keys) + _LEAST_NAME <= columns

    def _one(
        self, view: View, columns: int, rows: int, strong: bool
    ) -> tuple[MapPicture, Sequence[Line]]:
        """Return the map of one compared model, and its lines: title, map, legend and scores.

        view: the screen state for that side. columns, rows: the available width in characters and
            lines. strong: whether its title stands out.
        """
        theme = self.look
        room = rows - 2
        part = MapPart(
            weights=view.weights,
            axes=view.axes(theme.encoding),
            cursor=Place(view.scene.query, view.scene.key),
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
        top = facts.head_line(view, theme, columns, strong)
        return picture, [top, *body, facts.score_line(view, theme, columns)]

    def _legend(self, view: View, picture: MapPicture, columns: int) -> Line:
        """Return the line on the meaning of colours or glyphs, and how many tokens share a cell.

        picture: the drawn map. columns: the width of the line in characters.
        """
        theme = self.look
        if view.limit:
            signs = "blue −, orange +" if theme.colour else ""
            words = ([signs] if signs else []) + [f"full at ±{view.limit:.2g}"]
            return [Segment(theme.spell(theme.dot.join(words)), DIM)]
        samples = scale_samples(
            WEIGHTS, theme, columns, lambda share: theme.glyph(round(share * (STEPS - 1)))
        )
        line = [segment for sample in samples for segment in (*sample, Segment("  "))][:-1]
        caption = pooling(picture.plan.factors)
        return [*line, Segment("  " + theme.spell(caption), DIM)] if caption else line

    def on_click(self, event: events.Click) -> None:
        if self.drawn is not None:
            cell = self.drawn.cell_at(event.x, event.y - 1)
            if cell is not None:
                self.post_message(self.Pointed(cell))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(self.WheelTurned(1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.WheelTurned(-1))


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
        return facts.word_lines(self.view, self.look, columns, rows)
