"""The screen of ``attnviz explore``: its state and what each key does, its panes, who gets a key.

The state is one ``View``. A change makes another one, and the app draws the differences.
Everything that may take long is a job, and only the result of the latest request is shown.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, geometry
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from attnviz.draw.labels import visible, width
from attnviz.draw.theme import Theme
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.scan.run import Effects
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.explore.panes import (
    Act,
    GridPane,
    HeadingPane,
    MapPane,
    Pane,
    WordsPane,
    grid_columns,
)
from attnviz.inspect.explore.screen import finding_lines, moved_attention
from attnviz.inspect.explore.session import (
    Frame,
    LiveSession,
    Mode,
    Session,
    is_saved,
    open_saved,
    weigh,
)
from attnviz.inspect.explore.terminal_app import (
    KEYS,
    AskedLine,
    Field,
    Help,
    KeysPane,
    TerminalApp,
    Waiting,
)
from attnviz.inspect.explore.view import SIDES, View, Written, command_line, places_of, save_view
from attnviz.inspect.heads.look import named_links
from attnviz.measures.words import joined

_LONG = 200  # the most characters of a text that goes without saying in a copied command
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # the name of a model on the Hub


@dataclass(frozen=True)
class SideSource:
    """One of the two compared sides of explore: a model or a saved file, and its first text.

    text: the first text; empty for a second side that uses the text of the first side. options: the
        options of the command line that chose the model. file: that the text was read from.
    """

    session: Session
    text: str
    options: tuple[str, ...] = ()
    file: Path | None = None


def second_side(
    typed: str, first: SideSource, live: Callable[[str, str], LiveSession]
) -> SideSource:
    """Return the second side of explore: a saved file, another model, or another text."""
    if is_saved(typed):
        saved = open_saved(Path(typed))
        return SideSource(saved, saved.seen.text)
    if _NAME.fullmatch(typed) or Path(typed).is_dir() or typed in ("tiny", "mha"):
        session = live(typed, first.text)
        return SideSource(session, "" if session.text == first.text else session.text)
    if not first.session.live:
        raise UsageError(f"--with {typed!r} is a text, and what was saved reads no other one")
    return SideSource(first.session, typed)


def at_finding(view: View) -> View:
    """Return the screen state at the head and the cell that its finding names, if it names one."""
    if view.other is not None:
        moved = moved_attention(view.frame, view.other)
        return view.with_head(max(moved, key=lambda head: moved[head])) if moved else view
    for link, _ in named_links(view.shown.alone):
        return view.with_head(link[:2]).at(link.query, link.key)
    return view


@dataclass(eq=False)
class Desk:
    """The screen state of explore with its changes; runs the models when new results are needed.

    map, line: the panes of the map and of questions. going: set unless a generation is paused.
    """

    source: SideSource
    view: View
    look: Theme
    second: SideSource | None
    app: Explorer
    map: MapPane
    line: KeysPane
    going: threading.Event = field(default_factory=threading.Event)

    def show(self, **changed: Any) -> None:
        """Replace fields of the screen state, and draw it."""
        self.put(replace(self.view, **changed))

    def put(self, view: View) -> None:
        """Replace the screen state; every pane draws what has changed."""
        before, self.view = self.view, view
        self.app.draw(before)

    def see(self, view: View) -> None:
        """Show a view with another head, cursor or mode; run the model if its heads differ."""
        removed = view.removed != self.view.removed
        if removed and view.written is not None:
            self.app.drop("write")
            view = replace(view, written=None)
            self.app.say("what was written with other heads is gone: g writes again")
        self.put(view if view.written is not None else view.fitted(view.removed))
        if removed:
            self.read(view.frame.text)

    def live(self, cannot: str) -> bool:
        """Return whether there is a model that can run; if not, show a note that says so."""
        if not self.source.session.live:
            self.app.say(f"what was saved {cannot}: explore the model itself")
        return self.source.session.live

    def leave_written(self) -> None:
        """Stop generating, and show the prompt alone again."""
        self.app.drop("write")
        if self.view.written is not None:
            self.put(replace(self.view, written=None).fitted())

    def failed(self, name: str, error: AttnvizError) -> None:
        """Show the error of the job called ``name``, and return to the screen state before it."""
        if name == "scan":
            self.show(scanned=None)
        elif name == "write":
            self.leave_written()
        elif name == "frame":  # what is seen is still the frame before
            self.put(self.view.fitted())
        self.app.say(str(error).replace(repr(self.source.session.info.name), "this model"))

    def read(self, text: str) -> None:
        """Run the model on a text with the view's heads ablated, and show the result.

        This takes one pass, and one more for a second side.
        """
        view, source, second = self.view, self.source, self.second
        if text != view.frame.text and self.app.drop("scan"):
            self.show(scanned=None)

        def work(waiting: Waiting) -> tuple[Frame, Frame, Frame | None]:
            frame, other = source.session.frame(text, view.removed), None
            if second is not None:
                heads = view.removed if second.session.live else frozenset()
                other = second.session.frame(second.text or text, heads)
            weigh((frame, other), view.head, view.mode)
            if not view.removed:
                return frame, frame, other
            whole = view.whole if view.whole.text == text else source.session.frame(text)
            return frame, whole, other

        def then(frames: tuple[Frame, Frame, Frame | None]) -> None:
            frame, whole, other = frames
            effects = self.view.effects if frame.text == self.view.frame.text else None
            after = replace(self.view, frame=frame, whole=whole, other=other, effects=effects)
            self.put(after.fitted())

        self.app.later("frame", work, then)


class Actions(Desk):
    """The desk with a method for each action of ``KEYS`` that is not the app's own.

    tokens: how many tokens are generated at a time.
    pace: the least seconds from one generated token to the next, so that a person can follow.
    """

    tokens = 40
    pace = 0.08
    _searched = ""

    # Move ------------------------------------------------------------------------------------

    def move(self, right: int, down: int) -> None:
        view, focused = self.view, self.app.focused
        if view.written is not None and right:
            self.going.clear()  # one more generated token, or one less
            at = min(max(view.written.at + right, 0), len(view.written.steps))
            self._change(replace(view.written, at=at, paused=True))
        elif focused is not None and focused.id == "grid":
            self.see(view.next_in_layer(right) if right else view.next_layer(down))
        else:
            drawn = self.map.drawn
            zoom = 1 if drawn is None else drawn.plan.factors[0]
            self.point(view.query + down * zoom, view.key + right * zoom)

    def point(self, query: int, key: int) -> None:
        """Put the cursor on a cell of the map; in a causal map, not on a key after its query."""
        causal = self.view.record.causal
        self.see(self.view.at(query, min(key, max(query, 0)) if causal else key))

    def layer(self, step: int) -> None:
        self.see(self.view.next_layer(step))

    def head(self, step: int) -> None:
        self.see(self.view.next_in(self.view.shown.heads, step))

    def choose(self, layer: int, head: int) -> None:
        self.see(self.view.with_head((layer, head)))

    def zoom(self, step: int) -> None:
        """Make cells larger (step 1) or smaller (−1); 0 shows the whole map."""
        self.map.zoom(step)

    def find(self) -> None:
        start = self.view

        def typing(typed: str) -> None:
            view = self.view.at(start.query, start.key)
            self.see(view.search(typed) if typed else view)

        def answered(typed: str) -> None:
            if not typed and self._searched:
                typing(self._searched)
            if typed and not places_of(self.view.record.queries, typed):
                self.app.say(f"no token has “{visible(typed)}” in it")
            self._searched = typed or self._searched

        self.line.ask(AskedLine("/", Field(), answered, typing, lambda: typing("")))

    # See -------------------------------------------------------------------------------------

    def mode(self, mode: Mode) -> None:
        """Show the attention weights in another mode; value-weighted ones need one more pass."""
        view = self.view
        if not self._writes():
            self.app.later(
                "mode",
                lambda _: weigh((view.frame, view.against), view.head, mode),
                lambda _: self.see(replace(self.view, mode=mode)),
            )

    def side(self) -> None:
        view = self.view
        if view.against is None:
            self.app.say("one side only: ablate a head, or start with --with TEXT|MODEL")
        elif not self._writes():
            step = 1 if view.comparable or view.side == "a" else 2
            side = SIDES[(SIDES.index(view.side) + step) % len(SIDES)]
            self.app.say(view.unlike if step == 2 else "")
            self.put(replace(view, side=side).fitted())

    def _writes(self) -> bool:
        """Return True if a generated text is shown; then show a note that it has one mode only."""
        if writes := self.view.written is not None:
            self.app.say("a text that is written has one side, weights as they are: Esc leaves it")
        return writes

    # Ablate ----------------------------------------------------------------------------------

    def ablate(self) -> None:
        if self.live("removes no heads"):
            self.see(replace(self.view, removed=self.view.removed ^ {self.view.head}))
            self._scan()

    def restore(self) -> None:
        self.see(replace(self.view, removed=frozenset()))

    def _scan(self) -> None:
        """Start measuring the effect of each single ablation, unless that was already started."""
        text = self.view.frame.text
        if self.view.effects is not None or self.view.scanned is not None:
            return

        def work(waiting: Waiting) -> Effects:
            told = 0

            def advance(share: float) -> None:
                nonlocal told
                if not waiting() or int(100 * share) > told:
                    told = int(100 * share)
                    waiting.tell(lambda: self.show(scanned=share))

            return self.source.session.effects(text, advance)

        def then(effects: Effects) -> None:
            self.show(effects=effects, scanned=None)
            if self.view.by_effect:
                self.see(self.view.with_head(effects.ranking()[0]))

        self.show(scanned=0.0)
        self.app.later("scan", work, then)

    def important(self, step: int) -> None:
        effects = self.view.effects
        if effects is None:
            if self.live("has no effects of removals"):
                self.show(by_effect=True)
                self._scan()
        elif self.view.by_effect:
            self.see(self.view.next_in(effects.ranking(), step))
        else:
            self.see(replace(self.view, by_effect=True).with_head(effects.ranking()[0]))

    def by_effect(self) -> None:
        if self.view.effects is None and self.live("has no effects of removals"):
            self._scan()
        self.show(by_effect=not self.view.by_effect)

    def stop(self) -> None:
        """Stop measuring the ablations, or leave the generated text (the key Esc)."""
        if self.app.drop("scan"):
            self.show(scanned=None)
            self.app.say("the scan was stopped; i starts it again")
        else:
            self.leave_written()

    # Write -----------------------------------------------------------------------------------

    def generate(self) -> None:
        """Let the model continue the text from its first new token on, or leave what it wrote."""
        if self.view.written is not None:
            self.leave_written()
            return
        text, removed, going = self.view.frame.text, self.view.removed, self.going
        sampling = self.source.session.sampling or Sampling(tokens=self.tokens)
        going.set()
        self.app.drop("mode")
        self.put(replace(self.view, mode="raw", side="a", written=Written(sampling)).fitted())

        def stepped(step: Step) -> None:
            if (written := self.view.written) is not None:
                at = written.at + (written.at == len(written.steps))
                self._change(replace(written, steps=(*written.steps, step), at=at))

        def work(waiting: Waiting) -> None:
            began = time.monotonic()
            for step in self.source.session.generation(text, sampling, removed):
                time.sleep(max(self.pace - (time.monotonic() - began), 0))
                while not going.wait(0.05) and waiting():
                    pass
                waiting.tell(partial(stepped, step))
                began = time.monotonic()

        def then(_: None) -> None:
            if self.view.written is not None:
                self._change(replace(self.view.written, running=False))

        self.app.later("write", work, then)

    def _change(self, written: Written) -> None:
        self.put(self.view.with_written(written))

    def pause(self) -> None:
        written = self.view.written
        if written is not None and written.running:
            (self.going.clear if self.going.is_set() else self.going.set)()
            paused = not self.going.is_set()
            self._change(replace(written, paused=paused, at=len(written.steps)))

    # Change the text, keep it ----------------------------------------------------------------

    def edit(self) -> None:
        view = self.view

        def answered(typed: str) -> None:
            self.leave_written()
            if self.second is not None and self.second.text and self.view.side == "b":
                self.second = replace(self.second, text=typed)
                typed = self.view.frame.text
            self.read(typed)

        if self.live("has no other text"):
            text = view.shown.text if view.written is None else joined(view.record.queries)
            self.line.ask(AskedLine("text ", Field(text), answered))

    def save(self) -> None:
        def write(path: Path) -> None:
            view, look, columns = self.view, self.look, self.app.size.width
            self.app.later(
                "save",
                lambda _: save_view(path, view, look, columns),
                lambda _: self.app.say(f"saved {visible(str(path))}"),
            )

        def answered(typed: str) -> None:
            path = Path(os.path.expanduser(typed.strip()))
            if typed.strip() and os.path.exists(path):
                question = f"{visible(path.name)} already exists: replace it? y, or Esc "
                self.line.ask(
                    AskedLine(question, Field(), lambda yes: write(path) if yes == "y" else None)
                )
            elif typed.strip():
                write(path)

        view = self.view
        name = f"{view.name(view.head)}.svg" if view.written is None else "written.jsonl"
        self.line.ask(AskedLine("save as ", Field(name, suggested=True), answered))

    def yank(self) -> None:
        source, shown = self.source, self.view.shown
        file = source.file if shown.text == source.text else None
        line = command_line(self.view, source.options, file)
        self.app.copy_to_clipboard(line)
        whole = f" with the whole text, {len(shown.text):,} characters"
        self.app.say(f"copied{whole * (file is None and len(shown.text) > _LONG)}: {line}")


_SPACED, _TALL = 24, 36
"""Lines of a terminal from which empty lines part the panes, and the finding may take two."""

_WORDS = 4

_ACTIONS = {name: key.action for key in KEYS for name in key.keys.split(",") if name != "tab"}
"""By textual's name of a key what it does; Tab goes from pane to pane in every screen."""


class Explorer(TerminalApp):
    """The terminal app of ``attnviz explore``: lays out the panes and receives the keys."""

    CSS = """
    Screen { layout: vertical; }
    #heading { height: 2; }
    #body { height: 1fr; }
    #grid { margin-right: 3; }
    #map { width: 1fr; height: 100%; }
    #keys { height: 1; }
    Help { align: center middle; }
    #sheet { width: auto; height: auto; max-width: 96%; max-height: 96%;
        border: round ansi_bright_black; padding: 0 2; }
    #help { width: auto; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+q", "leave", priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False

    def __init__(
        self, source: SideSource, view: View, look: Theme, second: SideSource | None = None
    ) -> None:
        super().__init__()
        self._heading, self._grid = HeadingPane("heading", view, look), GridPane("grid", view, look)
        self._words = WordsPane("words", view, look)
        self.map_pane, self.keys_pane = MapPane("map", view, look), KeysPane("keys", view, look)
        panes = self.map_pane, self.keys_pane
        self.desk = Actions(source, view, look, second, self, *panes)

    # The panes -------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        self._body = Horizontal(self._grid, self.map_pane, id="body")
        self._arrange(self.size)
        yield from (self._heading, self._body, self._words, self.keys_pane)

    def on_mount(self) -> None:
        self.map_pane.focus()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size)

    def _arrange(self, size: geometry.Size) -> None:
        """Set the size of each pane; the map gets the space that the others leave."""
        columns, lines = size
        view = self.desk.view
        top = 3 if lines >= _TALL else 2
        rest = lines - top - _WORDS - 1 - 2  # the lines of a map, but for its title and its scores
        rows = len(view.shown.report.record.queries)
        spaced = lines >= _SPACED and not rest - 2 < rows <= rest
        finding = finding_lines(view, self.desk.look, columns, 2)
        second = top == 2 and lines >= _SPACED and len(finding) > 1  # in place of an empty line
        above, top = spaced and not second, top + second
        self._body.styles.margin = (int(above), 0, int(spaced), 0)
        self._heading.styles.height, self._words.styles.height = top, _WORDS
        room = lines - top - _WORDS - 1 - above - spaced
        self._grid.styles.width = grid_columns(view, self.desk.look, columns, room)

    def draw(self, before: View) -> None:
        """Draw the parts of the screen whose state has changed."""
        view = self.desk.view
        if before.shown.report is not view.shown.report or (
            (before.written is None) != (view.written is None)
        ):
            self._arrange(self.size)
        for pane in self.query(Pane):
            pane.show(view)

    def say(self, note: str) -> None:
        """Show a note until the next key is pressed, in the line of keys or, if long, above it."""
        long = width(self.desk.look.spell(note)) > self.size.width
        for pane, own in ((self.keys_pane, note * (not long)), (self._words, note * long)):
            if pane.note != own:
                pane.note = own
                pane.redraw()

    def failed(self, name: str, error: AttnvizError) -> None:
        self.desk.failed(name, error)

    # Keys ------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Carry out the action of a key at once, before the next key is processed.

        A widget would do it later: a key that was typed ahead would not reach the line or the sheet
        that the key before it opens.
        """
        if self._exit:  # what was typed behind the end would only delay it
            return
        if isinstance(event, events.Paste) and not event.is_forwarded:
            if (asked := self.keys_pane.asked) is not None:
                self._edited(asked, asked.field.with_text(event.text))
        elif isinstance(event, events.Key) and not event.is_forwarded:
            await asyncio.sleep(0)  # or a signal waits for all that was typed ahead
            if event.key == "ctrl+j":  # Enter, typed before the terminal sent each key as it is
                event = events.Key("enter", None)
            self.say("")
            if not await self._check_bindings(event.key, priority=True):
                await self._answer(event)
        else:
            await super().on_event(event)

    async def _answer(self, event: events.Key) -> None:
        sheet, asked = self.screen, self.keys_pane.asked
        if isinstance(sheet, Help):
            sheet.dismiss()
        elif asked is not None and event.key in ("enter", "escape"):
            self.keys_pane.ask(None)
            asked.answered(asked.field.text) if event.key == "enter" else asked.left()
        elif asked is not None:
            self._edited(asked, asked.field.typed(event.key, event.character))
        elif event.key in _ACTIONS:
            await self.do(_ACTIONS[event.key])
        else:
            await self._check_bindings(event.key)

    def _edited(self, asked: AskedLine, field: Field) -> None:
        self.keys_pane.ask(asked._replace(field=field))
        if field.text != asked.field.text:
            asked.typing(field.text)

    async def do(self, action: str) -> None:
        """Carry out an action of ``KEYS``: the call of a method of the desk, else of the app."""
        _, name, values = parse(action)
        if (method := getattr(self.desk, name, None)) is not None:
            method(*values)
        else:
            await self.run_action(action)

    def action_pane(self) -> None:
        self.screen.focus_next()

    def action_keys(self) -> None:
        self.push_screen(Help(self.desk.look))

    async def on_act(self, message: Act) -> None:
        await self.do(message.action)
