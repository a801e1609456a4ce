"""The screen of ``attnviz explore``: its panes, where they stand, and who receives a key."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events, geometry
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.inspect.explore.desk import KEYS, Actions, AskedLine, Field, Help, KeysPane, SideSource
from attnviz.inspect.explore.panes import (
    Act,
    GridPane,
    HeadingPane,
    MapPane,
    Pane,
    WordsPane,
    grid_columns,
)
from attnviz.inspect.explore.screen import finding_lines
from attnviz.inspect.explore.terminal_app import TerminalApp
from attnviz.inspect.explore.view import View

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
