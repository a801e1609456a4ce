"""The screen of ``attnviz explore``: its panes, its keys, and what they change.

The screen shows one ``View``; a key makes a new one, and the panes draw what differs. Slow work
runs in a thread, and only the answer to the latest request is shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual import events, geometry
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.removals import Effects
from attnviz.errors import AttnvizError
from attnviz.inspect.explore.background import Waiting
from attnviz.inspect.explore.dialogs import KEYS, Asking, KeysPane, SideSource
from attnviz.inspect.explore.pane import (
    GridPane,
    HeadingPane,
    MapPane,
    Pane,
    WordsPane,
    grid_columns,
)
from attnviz.inspect.explore.scene import SIDES, Scene, View, Written
from attnviz.inspect.explore.session import Frame, weighed

_SPACED, _TALL = 24, 36
"""Lines of a terminal from which on empty lines part the panes, and the finding may take two."""

_WORDS = 4


class Explorer(Asking):
    """The app of ``attnviz explore``, with one side or two."""

    CSS = """
    Screen { layout: vertical; }
    #heading { height: 2; }
    #body { height: 1fr; }
    #grid { margin-right: 3; }
    #map { width: 1fr; height: 100%; }
    #keys { height: 1; }
    #line { height: 1; width: 56; }
    Help, Palette { align: center middle; }
    #sheet { width: auto; height: auto; max-width: 96%; max-height: 96%;
        border: round ansi_bright_black; padding: 0 2; }
    #help, #commands { width: auto; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key.keys, key.action, key.said) for key in KEYS if key.keys != "tab"),
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+q", "leave", priority=True),
    ]
    tokens = 40
    """How many tokens are written at a time."""
    pace = 0.08
    """Seconds at least between two written tokens, so that one can follow."""
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False

    def __init__(
        self,
        source: SideSource,
        first: Frame,
        look: Theme,
        palette: str,
        second: SideSource | None = None,
        other: Frame | None = None,
    ) -> None:
        super().__init__(source, View(Scene.of(first, palette), first, first, other), look)
        self.second = second
        self.joined = False
        self._going = threading.Event()

    # The panes -------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        drawn = self.view, self.drawn_with
        self._panes = {
            "heading": HeadingPane("heading", *drawn),
            "grid": GridPane("grid", *drawn),
            "words": WordsPane("words", *drawn),
        }
        self.map_pane, self.keys_pane = MapPane("map", *drawn), KeysPane("keys", *drawn)
        self._body = Horizontal(self._panes["grid"], self.map_pane, id="body")
        self._arrange(self.size)
        yield from (self._panes["heading"], self._body, self._panes["words"], self.keys_pane)

    def on_mount(self) -> None:
        self.map_pane.joined = self.joined
        self.map_pane.focus()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size)

    def _arrange(self, size: geometry.Size) -> None:
        """Set the size of each pane; the map takes what the others leave."""
        columns, lines = size
        view = self.view
        top = 3 if lines >= _TALL else 2
        rest = lines - top - _WORDS - 1 - 2  # the lines of a map, but for its title and its scores
        rows = len(view.shown.report.record.queries)
        spaced = lines >= _SPACED and not rest - 2 < rows <= rest
        self._body.styles.margin = (int(spaced), 0, int(spaced), 0)
        self._panes["heading"].styles.height = top
        self._panes["words"].styles.height = _WORDS
        room = lines - top - _WORDS - 1 - 2 * spaced
        self._panes["grid"].styles.width = grid_columns(view, self.drawn_with, columns, room)

    def show(self, **changed: Any) -> None:
        """Replace fields of the view."""
        self.put(replace(self.view, **changed))

    def put(self, view: View) -> None:
        """Replace the view; every pane draws what has changed."""
        before, self.view = self.view, view
        if before.shown.report is not self.view.shown.report or (
            (before.written is None) != (self.view.written is None)
        ):
            self._arrange(self.size)
        for pane in self.query(Pane):
            pane.show(self.view, self.drawn_with)

    def see(self, scene: Scene) -> None:
        """Show another scene; if its removed heads differ, read the text again without them."""
        view = replace(self.view, scene=scene)
        removed = scene.removed != self.view.scene.removed
        if removed and view.written is not None:
            self.drop("write")
            view = replace(view, written=None)
            self.say("what was written with other heads is gone: g writes anew")
        self.put(view if view.written is not None else view.fitted(scene.removed))
        if removed:
            self.read(view.frame.text)

    def say(self, note: str) -> None:
        """Show a note until the next key, in the line of keys, or in the words if it is long."""
        long = width(self.look.spell(note)) > self.size.width
        words = self._panes["words"]
        for pane, said in ((self.keys_pane, note * (not long)), (words, note * long)):
            if pane.note != said:
                pane.note = said
                pane.redraw()

    def failed(self, name: str, error: AttnvizError) -> None:
        if name == "scan":
            self.show(scanned=None)
        elif name == "write":
            self.leave_written()
        elif name == "frame":  # what is seen is still the frame before
            self.put(self.view.fitted())
        self.say(str(error).replace(repr(self.source.session.info.name), "this model"))

    def read(self, text: str) -> None:
        """Read a text without the removed heads: one pass, and one more for a second side."""
        scene, other = self.view.scene, self.second
        if text != self.view.frame.text and self.drop("scan"):
            self.show(scanned=None)
        whole = None if text != self.view.whole.text else self.view.whole

        def work(waiting: Waiting) -> tuple[Frame, Frame, Frame | None]:
            session = self.source.session
            frame, against = session.frame(text, scene.removed), None
            if other is not None:
                heads = scene.removed if other.session.live else frozenset()
                against = other.session.frame(other.text or text, heads)
            for each in (frame, against):
                weighed(each, scene.head, scene.mode)
            if not scene.removed:
                return frame, frame, against
            return frame, whole or session.frame(text), against

        self.later("frame", work, self._arrived)

    def _arrived(self, found: tuple[Frame, Frame, Frame | None]) -> None:
        frame, whole, other = found
        effects = self.view.effects if frame.text == self.view.frame.text else None
        view = replace(self.view, frame=frame, whole=whole, other=other, effects=effects)
        self.put(view.fitted())

    # Keys ------------------------------------------------------------------------------------

    def action_pane(self) -> None:
        self.screen.focus_next()

    def action_move(self, right: int, down: int) -> None:
        scene = self.view.scene
        if self.view.written is not None and right:
            self._walk(right)
            return
        if self.focused is not None and self.focused.id == "grid":
            self.see(scene.in_layer(right) if right else scene.next_layer(down))
            return
        picture = self.map_pane.drawn
        zoom = picture.size.zoom if picture is not None else 1
        self._point(scene.query + down * zoom, scene.key + right * zoom)

    def _point(self, query: int, key: int) -> None:
        """Move the cursor to a cell; in a causal map never to a hidden one."""
        key = min(key, max(query, 0)) if self.view.record.causal else key
        self.see(self.view.scene.at(query, key))

    def action_layer(self, step: int) -> None:
        self.see(self.view.scene.next_layer(step))

    def action_head(self, step: int) -> None:
        self.see(self.view.scene.next_head(step))

    def action_same(self, step: int) -> None:
        scene = self.view.scene.next_same_label(step)
        if scene == self.view.scene:
            self.say("no other head has this label")
        self.see(scene)

    def action_zoom(self, step: int) -> None:
        self.map_pane.zoom(step)

    def action_fit(self) -> None:
        self.map_pane.zoom(0)

    def action_mode(self, mode: Any) -> None:
        """Show the weights in another mode; the value-weighted one takes a pass."""
        if self._writes():
            return
        scene, frames = self.view.scene.with_mode(mode), (self.view.frame, self.view.against)

        def work(waiting: Waiting) -> None:
            for frame in frames:
                weighed(frame, scene.head, scene.mode)

        self.later("mode", work, lambda _: self.see(self.view.scene.with_mode(mode)))

    def action_side(self) -> None:
        view = self.view
        if view.against is None:
            self.say("one side only: ablate a head, or start with --with TEXT|MODEL")
            return
        if self._writes():
            return
        step = 1 if view.comparable or view.scene.side == "a" else 2
        side = SIDES[(SIDES.index(view.scene.side) + step) % len(SIDES)]
        self.say(view.unlike if step == 2 else "")
        self.put(replace(view, scene=view.scene.with_side(side)).fitted())

    def _writes(self) -> bool:
        """Return whether a text is being written, and if so say that it has only one view."""
        if writes := self.view.written is not None:
            self.say("a text that is written has one side, weights as they are: Esc leaves it")
        return writes

    def action_palette(self) -> None:
        self.see(self.view.scene.next_palette())

    # Removing heads --------------------------------------------------------------------------

    def action_ablate(self) -> None:
        if not self.live("removes no heads"):
            return
        self.see(self.view.scene.toggled())
        self._scan()

    def action_restore(self) -> None:
        self.see(self.view.scene.cleared())

    def _scan(self) -> None:
        """Measure the effect of each single removal, once per text."""
        if self.view.effects is not None or self.view.scanned is not None:
            return
        text = self.view.frame.text

        def work(waiting: Waiting) -> Effects:
            told = 0

            def advance(share: float) -> None:
                nonlocal told
                if not waiting() or int(100 * share) > told:
                    told = int(100 * share)
                    waiting.tell(lambda: self.show(scanned=share))

            return self.source.session.effects(text, advance)

        self.show(scanned=0.0)
        self.later("scan", work, self._scanned)

    def _scanned(self, effects: Effects) -> None:
        self.show(effects=effects, scanned=None)
        if self.view.by_effect:
            self.see(self.view.scene.with_head(effects.ranking()[0]))

    def action_important(self, step: int) -> None:
        effects = self.view.effects
        if effects is None:
            if self.live("has no effects of removals"):
                self.show(by_effect=True)
                self._scan()
        elif self.view.by_effect:
            self.see(self.view.scene.next_of(effects.ranking(), step))
        else:
            self.show(by_effect=True)
            self.see(self.view.scene.with_head(effects.ranking()[0]))

    def action_by_effect(self) -> None:
        if self.view.effects is None and self.live("has no effects of removals"):
            self._scan()
        self.show(by_effect=not self.view.by_effect)

    def action_stop(self) -> None:
        """Stop the scan, or leave what was written (Esc)."""
        if self.drop("scan"):
            self.show(scanned=None)
            self.say("the scan was stopped; i starts it anew")
        elif self.view.written is not None:
            self.leave_written()

    # Writing on ------------------------------------------------------------------------------

    def action_generate(self) -> None:
        if self.view.written is None:
            self._write(self.source.session.sampling or Sampling(tokens=self.tokens))
        else:
            self.leave_written()

    def _write(self, sampling: Sampling) -> None:
        """Let the model continue the text, from its first new token on."""
        text, removed = self.view.frame.text, self.view.scene.removed
        self._going.set()
        self.drop("mode")
        scene = self.view.scene.with_mode("raw").with_side("a")
        self.put(replace(self.view, scene=scene, written=Written(sampling)).fitted())

        def work(waiting: Waiting) -> None:
            began = time.monotonic()
            for step in self.source.session.generation(text, sampling, removed):
                time.sleep(max(self.pace - (time.monotonic() - began), 0))
                while not self._going.wait(0.05) and waiting():
                    pass
                waiting.tell(partial(self._stepped, step))
                began = time.monotonic()

        self.later("write", work, lambda _: self._written(running=False))

    def _stepped(self, step: Step) -> None:
        written = self.view.written
        if written is not None:
            steps = (*written.steps, step)
            last = written.at == len(written.steps)
            self._written(steps=steps, at=len(steps) if last else written.at)

    def _written(self, **changed: Any) -> None:
        """Change what is written; the cursor goes where the newest token looked."""
        if self.view.written is not None:
            self.put(self.view.with_written(replace(self.view.written, **changed)))

    def leave_written(self) -> None:
        self.drop("write")
        if self.view.written is not None:
            self.put(replace(self.view, written=None).fitted())

    def action_pause(self) -> None:
        written = self.view.written
        if written is not None and written.running:
            (self._going.clear if self._going.is_set() else self._going.set)()
            self._written(paused=not self._going.is_set(), at=len(written.steps))

    def _walk(self, step: int) -> None:
        """Go so many tokens back or forward in what was written."""
        written = self.view.written
        if written is None:
            return
        self._going.clear()
        at = min(max(written.at + step, 0), len(written.steps))
        self._written(at=at, paused=True)

    def action_temperature(self, change: float) -> None:
        self._resample(
            lambda old: replace(old, temperature=max(round(old.temperature + change, 2), 0.0))
        )

    def action_reseed(self) -> None:
        written = self.view.written
        if written is not None and not written.sampling.temperature:
            self.say("greedy: a seed changes nothing, t makes it warmer")
            return
        self._resample(lambda old: replace(old, seed=old.seed + 1))

    def _resample(self, changed: Callable[[Sampling], Sampling]) -> None:
        if self.view.written is None:
            self.say("g lets the model write; then t, T and r change how")
        elif self.live("is written already"):
            self._write(changed(self.view.written.sampling))

    # The mouse -------------------------------------------------------------------------------

    def on_grid_pane_chosen(self, message: GridPane.Chosen) -> None:
        self.see(self.view.scene.with_head(message.head))

    def on_grid_pane_wheeled(self, message: GridPane.Wheeled) -> None:
        self.see(self.view.scene.next_head(message.steps))

    def on_map_pane_pointed(self, message: MapPane.Pointed) -> None:
        self._point(*message.cell)

    def on_map_pane_wheel_turned(self, message: MapPane.WheelTurned) -> None:
        self.action_move(0, message.steps)
