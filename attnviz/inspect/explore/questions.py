"""The keys that ask in a line: a token to find, a text, a file; and the command that is copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from attnviz.draw.labels import visible
from attnviz.inspect.explore.command import command_line
from attnviz.inspect.explore.desk import Desk
from attnviz.inspect.explore.dialogs import KeysPane
from attnviz.inspect.explore.field import AskedLine, Field
from attnviz.inspect.explore.saving import save_view
from attnviz.inspect.explore.scene import places_of
from attnviz.inspect.explore.session import LiveSession
from attnviz.measures.words import joined

_LONG = 200
"""The most characters of a text that goes without saying in a copied command."""


class Questions:
    """The key actions of explore that ask for a token, a text or a file, or copy the command.

    Each method is one action. line: the pane that asks. columns: returns the width of the screen in
    characters. copy: puts a text on the clipboard.
    """

    def __init__(
        self, desk: Desk, line: KeysPane, columns: Callable[[], int], copy: Callable[[str], None]
    ) -> None:
        self._desk, self._line, self._columns, self._copy = desk, line, columns, copy
        self._searched = ""

    def find(self) -> None:
        desk = self._desk
        start = desk.view.scene
        if desk.view.frame.long is not None:
            self._line.ask(AskedLine("/", Field(), self._find_in_long))
            return

        def typing(typed: str) -> None:
            scene = start.found(desk.view.record.queries, typed) if typed else start
            desk.see(scene)

        def answered(typed: str) -> None:
            if not typed and self._searched:
                desk.see(start.found(desk.view.record.queries, self._searched))
            if typed and not places_of(desk.view.record.queries, typed):
                desk.say(f"no token has “{visible(typed)}” in it")
            self._searched = typed or self._searched

        self._line.ask(AskedLine("/", Field(), answered, typing, lambda: desk.see(start)))

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
        here = part.queries[0] - 1 if part.pooled else part.queries[desk.view.scene.query]
        place = next((at for at in places if at > here), places[0])
        desk.open(place, place)

    def edit(self) -> None:
        desk = self._desk
        if not desk.live("has no other text"):
            return

        def answered(typed: str) -> None:
            desk.leave_written()
            if desk.second is not None and desk.second.text and desk.view.scene.side == "b":
                desk.second = replace(desk.second, text=typed)
                typed = desk.view.frame.text
            desk.read(typed)

        view = desk.view
        text = view.shown.text if view.written is None else joined(view.record.queries)
        self._line.ask(AskedLine("text ", Field(text), answered))

    def save(self) -> None:
        desk = self._desk
        if not desk.whole("y copies an attnviz heads command, which --save completes"):
            return

        def write(path: Path) -> None:
            view, look, columns = desk.view, desk.drawn_with, self._columns()
            desk.jobs.later(
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

        name = f"{desk.view.scene.name(desk.view.scene.head)}.svg"
        name = "written.jsonl" if desk.view.written is not None else name
        self._line.ask(AskedLine("save as ", Field(name, suggested=True), answered))

    def why(self) -> None:
        desk, session = self._desk, self._desk.source.session
        scene, shown = desk.view.scene, desk.view.shown
        if not desk.live("does not tell who wrote queries and keys") or not desk.whole(
            "attnviz link"
        ):
            return
        if scene.removed or desk.view.written is not None or not isinstance(session, LiveSession):
            desk.say("only of the text itself, with every head: Esc, and X")
            return
        place = scene.head, scene.query, scene.key
        desk.jobs.later("link", lambda _: session.link(shown.text, *place), desk.say)

    def yank(self) -> None:
        desk = self._desk
        scene, shown = desk.view.scene, desk.view.shown
        scene = replace(scene, removed=shown.removed)
        source = desk.source
        file = source.file if shown.text == source.text else None
        line = command_line(scene, shown.text, source.options, shown.long, file)
        self._copy(line)
        whole = f" with the whole text, {len(shown.text):,} characters"
        desk.say(f"copied{whole * (file is None and len(shown.text) > _LONG)}: {line}")
