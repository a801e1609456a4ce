"""What the keys of explore do: move, ablate, let the model write on, ask for a text or a file.

Each public method is one action of ``KEYS``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnviz.draw.labels import visible
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.removals import Effects
from attnviz.inspect.explore.desk import Desk
from attnviz.inspect.explore.dialogs import AskedLine, Field, KeysPane
from attnviz.inspect.explore.map import MapPane
from attnviz.inspect.explore.saving import command_line, save_view
from attnviz.inspect.explore.session import LiveSession, Mode, weigh
from attnviz.inspect.explore.terminal_app import Waiting
from attnviz.inspect.explore.view import PALETTE_NAMES, SIDES, Written, places_of
from attnviz.measures.words import joined

_LONG = 200
"""The most characters of a text that goes without saying in a copied command."""


class Writing:
    """The key actions of explore for a generated text: begin, pause, step, change the sampling.

    tokens: how many tokens are generated at a time.
    pace: the least seconds from one generated token to the next, so that a person can follow.
    """

    tokens = 40
    pace = 0.08

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._going = threading.Event()

    def generate(self) -> None:
        if not self._desk.whole("attnviz generate"):
            return
        if self._desk.view.written is None:
            self._write(self._desk.source.session.sampling or Sampling(tokens=self.tokens))
        else:
            self._desk.leave_written()

    def _write(self, sampling: Sampling) -> None:
        """Start a job in which the model continues the text, from its first new token on."""
        desk = self._desk
        text, removed = desk.view.frame.text, desk.view.removed
        self._going.set()
        desk.app.drop("mode")
        desk.put(replace(desk.view, mode="raw", side="a", written=Written(sampling)).fitted())

        def work(waiting: Waiting) -> None:
            began = time.monotonic()
            for step in desk.source.session.generation(text, sampling, removed):
                time.sleep(max(self.pace - (time.monotonic() - began), 0))
                while not self._going.wait(0.05) and waiting():
                    pass
                waiting.tell(partial(stepped, step))
                began = time.monotonic()

        def stepped(step: Step) -> None:
            if (written := desk.view.written) is not None:
                at = written.at + (written.at == len(written.steps))
                self._change(replace(written, steps=(*written.steps, step), at=at))

        def then(_: None) -> None:
            if desk.view.written is not None:
                self._change(replace(desk.view.written, running=False))

        desk.app.later("write", work, then)

    def _change(self, written: Written) -> None:
        self._desk.put(self._desk.view.with_written(written))

    def pause(self) -> None:
        written = self._desk.view.written
        if written is not None and written.running:
            (self._going.clear if self._going.is_set() else self._going.set)()
            paused = not self._going.is_set()
            self._change(replace(written, paused=paused, at=len(written.steps)))

    def walk(self, written: Written, step: int) -> None:
        """Show one more generated token (step is 1), or one less (−1)."""
        self._going.clear()
        at = min(max(written.at + step, 0), len(written.steps))
        self._change(replace(written, at=at, paused=True))

    def temperature(self, change: float) -> None:
        self._resample(
            lambda old: replace(old, temperature=max(round(old.temperature + change, 2), 0.0))
        )

    def reseed(self) -> None:
        written = self._desk.view.written
        if written is not None and not written.sampling.temperature:
            self._desk.say("greedy: a seed changes nothing, t makes it warmer")
        else:
            self._resample(lambda old: replace(old, seed=old.seed + 1))

    def _resample(self, changed: Callable[[Sampling], Sampling]) -> None:
        written = self._desk.view.written
        if written is None:
            self._desk.say("g lets the model write; then t, T and r change how")
        elif self._desk.live("is written already"):
            self._write(changed(written.sampling))


class Moves:
    """The key actions of explore that move the cursor or change head, mode or side.

    map_pane: the pane of the map. writing: steps through a generated text.
    """

    def __init__(self, desk: Desk, writing: Writing, map_pane: MapPane) -> None:
        self._desk, self._writing, self._map = desk, writing, map_pane

    def move(self, right: int, down: int) -> None:
        view, focused = self._desk.view, self._desk.app.focused
        if view.written is not None and right:
            self._writing.walk(view.written, right)
        elif focused is not None and focused.id == "grid":
            self._desk.see(view.next_in_layer(right) if right else view.next_layer(down))
        else:
            zoom = 1 if self._map.drawn is None else self._map.drawn.plan.factors[0]
            self.point(view.query + down * zoom, view.key + right * zoom)

    def point(self, query: int, key: int) -> None:
        """Put the cursor on a cell of the map; in a causal map, not on a key after its query.

        query, key: their indices.
        """
        view, part = self._desk.view, self._desk.view.frame.long
        if part is not None and not part.pooled:
            token = part.place(query, key)
            cell = part.cell(*token)
            if cell is None:
                self._desk.open(*token)
                return
            query, key = cell
        self._desk.see(view.at(query, min(key, max(query, 0)) if view.record.causal else key))

    def open(self) -> None:
        """Open the cell of a long text's pooled map in full resolution (the key Enter)."""
        view, part = self._desk.view, self._desk.view.frame.long
        if part is None:
            self._desk.say("every map is shown whole: Enter opens cells of a long text's map")
        elif part.pooled:
            self._desk.open(*part.place(view.query, view.key))

    def layer(self, step: int) -> None:
        self._desk.see(self._desk.view.next_layer(step))

    def head(self, step: int) -> None:
        self._desk.see(self._desk.view.next_in(self._desk.view.shown.heads, step))

    def choose(self, layer: int, head: int) -> None:
        self._desk.see(self._desk.view.with_head((layer, head)))

    def same(self, step: int) -> None:
        view = self._desk.view.next_same_label(step)
        if view.head == self._desk.view.head:
            self._desk.say("no other head has this label")
        self._desk.see(view)

    def zoom(self, step: int) -> None:
        """Make cells larger (step 1) or smaller (−1), or go a page of the text on or back."""
        if self._map.as_text:
            self.point(self._desk.view.query, self._map.page(step))
        else:
            self._map.zoom(step)

    def fit(self) -> None:
        self._map.zoom(0)

    def text(self) -> None:
        """Show the text in the colours of what the cursor's query attends to, or the map again."""
        part = self._desk.view.frame.long
        if part is not None and part.pooled:
            self._desk.say("the text of a cell: open it with Enter first")
            return
        self._map.as_text = not self._map.as_text
        self._map.redraw()

    def mode(self, mode: Mode) -> None:
        """Show the attention weights in another mode; value-weighted ones need one more pass."""
        desk, view = self._desk, self._desk.view
        if not self._writes():
            desk.app.later(
                "mode",
                lambda _: weigh((view.frame, view.against), view.head, mode),
                lambda _: desk.see(replace(desk.view, mode=mode)),
            )

    def side(self) -> None:
        view = self._desk.view
        if view.against is None:
            self._desk.say("one side only: ablate a head, or start with --with TEXT|MODEL")
        elif not self._writes():
            step = 1 if view.comparable or view.side == "a" else 2
            side = SIDES[(SIDES.index(view.side) + step) % len(SIDES)]
            self._desk.say(view.unlike if step == 2 else "")
            self._desk.put(replace(view, side=side).fitted())

    def _writes(self) -> bool:
        """Return True if a generated text is shown; then show a note that it has one mode only."""
        if writes := self._desk.view.written is not None:
            self._desk.say(
                "a text that is written has one side, weights as they are: Esc leaves it"
            )
        return writes

    def palette(self) -> None:
        place = PALETTE_NAMES.index(self._desk.view.palette) + 1
        palette = PALETTE_NAMES[place % len(PALETTE_NAMES)]
        self._desk.see(replace(self._desk.view, palette=palette))


class Ablating:
    """The key actions of explore that ablate heads, and rank them by what each ablation changes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def ablate(self) -> None:
        desk, view = self._desk, self._desk.view
        if desk.live("removes no heads") and desk.whole("attnviz ablate"):
            desk.see(replace(view, removed=view.removed ^ {view.head}))
            self._scan()

    def restore(self) -> None:
        self._desk.see(replace(self._desk.view, removed=frozenset()))

    def _scan(self) -> None:
        """Start measuring the effect of each single ablation, unless that was already started."""
        desk, text = self._desk, self._desk.view.frame.text
        if desk.view.effects is not None or desk.view.scanned is not None:
            return

        def work(waiting: Waiting) -> Effects:
            told = 0

            def advance(share: float) -> None:
                nonlocal told
                if not waiting() or int(100 * share) > told:
                    told = int(100 * share)
                    waiting.tell(lambda: desk.show(scanned=share))

            return desk.source.session.effects(text, advance)

        def then(effects: Effects) -> None:
            desk.show(effects=effects, scanned=None)
            if desk.view.by_effect:
                desk.see(desk.view.with_head(effects.ranking()[0]))

        desk.show(scanned=0.0)
        desk.app.later("scan", work, then)

    def important(self, step: int) -> None:
        desk, effects = self._desk, self._desk.view.effects
        if effects is None:
            if desk.live("has no effects of removals") and desk.whole("attnviz ablate"):
                desk.show(by_effect=True)
                self._scan()
        elif desk.view.by_effect:
            desk.see(desk.view.next_in(effects.ranking(), step))
        else:
            desk.see(replace(desk.view, by_effect=True).with_head(effects.ranking()[0]))

    def by_effect(self) -> None:
        desk = self._desk
        if not desk.whole("attnviz ablate"):
            return
        if desk.view.effects is None and desk.live("has no effects of removals"):
            self._scan()
        desk.show(by_effect=not desk.view.by_effect)

    def stop(self) -> None:
        """Stop measuring the ablations, or leave the generated text or the window of a long one.

        This is the action of the key Esc.
        """
        desk, view, part = self._desk, self._desk.view, self._desk.view.frame.long
        if desk.app.drop("scan"):
            desk.show(scanned=None)
            desk.say("the scan was stopped; i starts it anew")
        elif view.written is not None:
            desk.leave_written()
        elif part is not None and not part.pooled:
            desk.say("")
            desk.put(view.at_part(part.text.overview, *part.place(view.query, view.key)))


class Questions:
    """The key actions of explore that ask for a token, a text or a file, or copy the command.

    line: the pane that asks.
    """

    def __init__(self, desk: Desk, line: KeysPane) -> None:
        self._desk, self._line = desk, line
        self._searched = ""

    def find(self) -> None:
        desk, start = self._desk, self._desk.view
        if start.frame.long is not None:
            self._line.ask(AskedLine("/", Field(), self._find_in_long))
            return

        def typing(typed: str) -> None:
            view = desk.view.at(start.query, start.key)
            desk.see(view.found(typed) if typed else view)

        def answered(typed: str) -> None:
            if not typed and self._searched:
                typing(self._searched)
            if typed and not places_of(desk.view.record.queries, typed):
                desk.say(f"no token has “{visible(typed)}” in it")
            self._searched = typed or self._searched

        self._line.ask(AskedLine("/", Field(), answered, typing, lambda: typing("")))

    def _find_in_long(self, typed: str) -> None:
        """Open the window at the next place of a text that is typed, cyclically."""
        desk, part = self._desk, self._desk.view.frame.long
        self._searched = typed or self._searched
        if part is None or not self._searched:
            return
        places = places_of(part.text.tokens, self._searched)
        if not places:
            desk.say(f"no token has “{visible(self._searched)}” in it")
            return
        here = part.queries[0] - 1 if part.pooled else part.queries[desk.view.query]
        token = next((at for at in places if at > here), places[0])
        desk.open(token, token)

    def edit(self) -> None:
        desk, view = self._desk, self._desk.view

        def answered(typed: str) -> None:
            desk.leave_written()
            if desk.second is not None and desk.second.text and desk.view.side == "b":
                desk.second = replace(desk.second, text=typed)
                typed = desk.view.frame.text
            desk.read(typed)

        if desk.live("has no other text"):
            text = view.shown.text if view.written is None else joined(view.record.queries)
            self._line.ask(AskedLine("text ", Field(text), answered))

    def save(self) -> None:
        desk = self._desk
        if not desk.whole("y copies an attnviz heads command, which --save completes"):
            return

        def write(path: Path) -> None:
            view, look, columns = desk.view, desk.drawn_with, desk.app.size.width
            desk.app.later(
                "save",
                lambda _: save_view(path, view, look, columns),
                lambda _: desk.say(f"saved {visible(str(path))}"),
            )

        def answered(typed: str) -> None:
            path = Path(os.path.expanduser(typed.strip()))
            if typed.strip() and os.path.exists(path):
                question = f"{visible(path.name)} is there: replace it? y, or Esc "
                yes = AskedLine(
                    question, Field(), lambda said: write(path) if said == "y" else None
                )
                self._line.ask(yes)
            elif typed.strip():
                write(path)

        view = desk.view
        name = f"{view.name(view.head)}.svg" if view.written is None else "written.jsonl"
        self._line.ask(AskedLine("save as ", Field(name, suggested=True), answered))

    def why(self) -> None:
        desk, view, session = self._desk, self._desk.view, self._desk.source.session
        live = desk.live("does not tell who wrote queries and keys")
        if not live or not desk.whole("attnviz link"):
            return
        if view.removed or view.written is not None or not isinstance(session, LiveSession):
            desk.say("only of the text itself, with every head: Esc, and X")
            return
        desk.app.later(
            "link",
            lambda _: session.link(view.shown.text, view.head, view.query, view.key),
            desk.say,
        )

    def yank(self) -> None:
        desk, source, shown = self._desk, self._desk.source, self._desk.view.shown
        file = source.file if shown.text == source.text else None
        line = command_line(desk.view, source.options, file)
        desk.app.copy_to_clipboard(line)
        whole = f" with the whole text, {len(shown.text):,} characters"
        desk.say(f"copied{whole * (file is None and len(shown.text) > _LONG)}: {line}")
