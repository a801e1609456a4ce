"""The keys that move: the cursor, from head to head, and between the ways to see the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnviz.inspect.explore.desk import Desk
from attnviz.inspect.explore.jobs import Waiting
from attnviz.inspect.explore.panes import MapPane
from attnviz.inspect.explore.scene import SIDES
from attnviz.inspect.explore.session import weighed
from attnviz.inspect.explore.writing import Writing


class Moves:
    """The key actions of explore that move the cursor or change head, mode or side.

    Each public method is one action. in_grid: returns whether the cursor keys move in the grid of
    heads, not in the map.
    """

    def __init__(
        self, desk: Desk, writing: Writing, map_pane: MapPane, in_grid: Callable[[], bool]
    ) -> None:
        self._desk, self._writing, self._map, self._in_grid = desk, writing, map_pane, in_grid

    def move(self, right: int, down: int) -> None:
        desk, scene = self._desk, self._desk.view.scene
        if desk.view.written is not None and right:
            self._writing.walk(right)
            return
        if self._in_grid():
            desk.see(scene.in_layer(right) if right else scene.next_layer(down))
            return
        picture = self._map.drawn
        zoom = picture.plan.factors[0] if picture is not None else 1
        self.point(scene.query + down * zoom, scene.key + right * zoom)

    def point(self, query: int, key: int) -> None:
        """Put the cursor on a cell of the map; in a causal map, not on a key after its query.

        query, key: their indices.
        """
        part = self._desk.view.frame.long
        if part is not None and not part.pooled:
            place = part.place(query, key)
            cell = part.cell(*place)
            if cell is None:
                self._desk.open(*place)
                return
            query, key = cell
        key = min(key, max(query, 0)) if self._desk.view.record.causal else key
        self._desk.see(self._desk.view.scene.at(query, key))

    def open(self) -> None:
        """Open the cell of a long text's pooled map in full resolution (the key Enter)."""
        part, scene = self._desk.view.frame.long, self._desk.view.scene
        if part is None:
            self._desk.say("every map is shown whole: Enter opens cells of a long text's map")
        elif part.pooled:
            self._desk.open(*part.place(scene.query, scene.key))

    def layer(self, step: int) -> None:
        self._desk.see(self._desk.view.scene.next_layer(step))

    def head(self, step: int) -> None:
        self._desk.see(self._desk.view.scene.next_head(step))

    def same(self, step: int) -> None:
        scene = self._desk.view.scene.next_same_label(step)
        if scene == self._desk.view.scene:
            self._desk.say("no other head has this label")
        self._desk.see(scene)

    def zoom(self, step: int) -> None:
        """Make cells larger (step 1) or smaller (−1), or go a page of the text on or back."""
        if self._map.as_text:
            self.point(self._desk.view.scene.query, self._map.page(step))
        else:
            self._map.zoom(step)

    def text(self) -> None:
        """Show the text in the colours of what the cursor's query attends to, or the map again."""
        part = self._desk.view.frame.long
        if part is not None and part.pooled:
            self._desk.say("the text of a cell: open it with Enter first")
            return
        self._map.as_text = not self._map.as_text
        self._map.redraw()

    def fit(self) -> None:
        self._map.zoom(0)

    def mode(self, mode: Any) -> None:
        """Show the attention weights in another mode; value-weighted ones need one more pass.

        mode: ``raw``, ``no-sink`` or the name of another ``Mode``.
        """
        if self._writes():
            return
        view = self._desk.view
        scene, frames = replace(view.scene, mode=mode), (view.frame, view.against)

        def work(waiting: Waiting) -> None:
            for frame in frames:
                weighed(frame, scene.head, scene.mode)

        def then(_: None) -> None:
            self._desk.see(replace(self._desk.view.scene, mode=mode))

        self._desk.jobs.later("mode", work, then)

    def side(self) -> None:
        view = self._desk.view
        if view.against is None:
            self._desk.say("one side only: ablate a head, or start with --with TEXT|MODEL")
            return
        if self._writes():
            return
        step = 1 if view.comparable or view.scene.side == "a" else 2
        side = SIDES[(SIDES.index(view.scene.side) + step) % len(SIDES)]
        self._desk.say(view.unlike if step == 2 else "")
        self._desk.put(replace(view, scene=replace(view.scene, side=side)).fitted())

    def _writes(self) -> bool:
        """Return True if a generated text is shown; then show a note that it has one mode only."""
        if writes := self._desk.view.written is not None:
            self._desk.say(
                "a text that is written has one side, weights as they are: Esc leaves it"
            )
        return writes

    def palette(self) -> None:
        self._desk.see(self._desk.view.scene.next_palette())
