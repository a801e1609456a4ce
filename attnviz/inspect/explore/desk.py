"""The state of ``attnviz explore`` and its changes, independent of how it is drawn.

The state is one ``View``. A change makes another one, and the app draws the differences.
Everything that may take long is a job, and only the result of the latest request is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.explore.long import LongPart
from attnviz.inspect.explore.saved import Session, is_saved, open_saved
from attnviz.inspect.explore.session import Frame, LiveSession, refuse_long_pair, weigh
from attnviz.inspect.explore.terminal_app import TerminalApp, Waiting
from attnviz.inspect.explore.view import View

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""The name of a model on the Hub."""


@dataclass(frozen=True)
class SideSource:
    """One of the two compared sides of explore: a model or a saved file, and its first text.

    session: runs the model or reads the saved file. text: the first text; empty for a second side
        that uses the text of the first side. options: the options of the command line that chose
        the model. file: that the text was read from.
    """

    session: Session
    text: str
    options: tuple[str, ...] = ()
    file: Path | None = None


def second_side(
    typed: str, first: SideSource, live: Callable[[str, str], LiveSession]
) -> SideSource:
    """Return the second side of explore: a saved file, another model, or another text.

    typed: the value of ``--with``. live: opens a session, given the name of a model and a text.
    """
    if is_saved(typed):
        saved = open_saved(Path(typed))
        return SideSource(saved, saved.seen.text)
    if _NAME.fullmatch(typed) or Path(typed).is_dir() or typed in ("tiny", "mha"):
        session = live(typed, first.text)
        return SideSource(session, "" if session.text == first.text else session.text)
    if not first.session.live:
        raise UsageError(f"--with {typed!r} is a text, and what was saved reads no other one")
    return SideSource(first.session, typed)


class Desk:
    """The screen state of explore with its changes; runs the models when new results are needed.

    source: the first side. second: the second side for comparisons, or None.
    look: the theme; its palette is replaced by that of the view. app: draws the state.
    """

    def __init__(
        self,
        source: SideSource,
        view: View,
        look: Theme,
        second: SideSource | None,
        app: TerminalApp,
    ) -> None:
        self.source, self.view, self.look, self.second = source, view, look, second
        self.app, self.say = app, app.say
        self._looks: dict[str, Theme] = {}

    @property
    def drawn_with(self) -> Theme:
        """Return the theme with the palette that the user chose, stored for its style cache."""
        palette = self.view.palette
        return self._looks.setdefault(palette, replace(self.look, palette=palette))

    def show(self, **changed: Any) -> None:
        """Replace fields of the screen state, and draw it.

        changed: the new values by the names of ``View``'s fields.
        """
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
            self.say("what was written with other heads is gone: g writes anew")
        self.put(view if view.written is not None else view.fitted(view.removed))
        if removed:
            self.read(view.frame.text)

    def live(self, cannot: str) -> bool:
        """Return whether there is a model that can run; if not, show a note that says so.

        cannot: the end of that note, such as ``removes no heads``.
        """
        if not self.source.session.live:
            self.say(f"what was saved {cannot}: explore the model itself")
        return self.source.session.live

    def whole(self, instead: str) -> bool:
        """Return whether whole maps are in memory; if not, show a note that says what to use.

        instead: the command, such as ``attnviz ablate``.
        """
        if self.view.frame.long is not None:
            self.say(f"not over a long text, whose whole maps are not held: {instead}")
        return self.view.frame.long is None

    def open(self, query: int, key: int) -> None:
        """Show the window of a long text around a query and a key, with the cursor there.

        query, key: tokens of the text.
        """
        part = self.view.frame.long
        assert part is not None

        def then(window: LongPart) -> None:
            self.say("")
            self.put(self.view.at_part(window, query, key))

        self.say(f"reading around {query:,}, {key:,}")
        self.app.later("frame", lambda _: part.text.around(query, key), then)

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
        self.say(str(error).replace(repr(self.source.session.info.name), "this model"))

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
                refuse_long_pair(frame, other)
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
