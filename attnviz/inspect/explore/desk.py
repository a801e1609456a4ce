"""The state of ``attnviz explore`` and its changes, independent of how it is drawn.

The state is one ``View``. A change makes another one, and the display draws the differences.
Everything that may take long is a job, and only the result of the latest request is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.inspect.explore.jobs import Jobs, Waiting
from attnviz.inspect.explore.scene import Scene
from attnviz.inspect.explore.session import ExploreSession, Frame, refuse_long_pair, weighed
from attnviz.inspect.explore.view import View


@dataclass(frozen=True)
class SideSource:
    """One of the two compared sides of explore: a model or a saved file, and its first text.

    session: runs the model or reads the saved file. text: the first text; empty for a second side
        that uses the text of the first side. options: the options of the command line that chose
        the model. file: that the text was read from.
    """

    session: ExploreSession
    text: str
    options: tuple[str, ...] = ()
    file: Path | None = None


class Display(Protocol):
    """The interface of the app for a ``Desk``: it draws the screen state and shows notes."""

    def draw(self, before: View) -> None:
        """Draw the desk's screen state. before: the state that was drawn before it."""

    def say(self, note: str) -> None:
        """Show a note until the next key is pressed."""


class Desk:
    """The screen state of explore with its changes; runs the models when new results are needed.

    source: the first side. second: the second side for comparisons, or None.
    look: the theme; its palette is replaced by that of the scene.
    """

    def __init__(
        self,
        source: SideSource,
        view: View,
        look: Theme,
        second: SideSource | None,
        *,
        jobs: Jobs,
        display: Display,
    ) -> None:
        self.source, self.view, self.look, self.second = source, view, look, second
        self.jobs = jobs
        self._display = display
        self.say = display.say
        self._looks: dict[str, Theme] = {}

    @property
    def drawn_with(self) -> Theme:
        """Return the theme with the palette that the user chose, stored for its style cache."""
        palette = self.view.scene.palette
        return self._looks.setdefault(palette, replace(self.look, palette=palette))

    def show(self, **changed: Any) -> None:
        """Replace fields of the screen state, and draw it.

        changed: the new values by the names of ``View``'s fields.
        """
        self.put(replace(self.view, **changed))

    def put(self, view: View) -> None:
        """Replace the screen state; every pane draws what has changed."""
        before, self.view = self.view, view
        self._display.draw(before)

    def see(self, scene: Scene) -> None:
        """Show another scene (head, cursor, mode); run the model if its ablated heads differ."""
        view = replace(self.view, scene=scene)
        removed = scene.removed != self.view.scene.removed
        if removed and view.written is not None:
            self.jobs.drop("write")
            view = replace(view, written=None)
            self.say("what was written with other heads is gone: g writes anew")
        self.put(view if view.written is not None else view.fitted(scene.removed))
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
        frame, part = self.view.frame, self.view.frame.long
        assert part is not None
        self.say(f"reading around {query:,}, {key:,}")
        self.jobs.later(
            "frame",
            lambda _: frame.showing(part.text.around(query, key)),
            lambda found: self._opened(found, query, key),
        )

    def overview(self) -> bool:
        """Show the pooled maps of a long text again; return whether a window was shown."""
        frame, part, scene = self.view.frame, self.view.frame.long, self.view.scene
        if part is None or part.pooled:
            return False
        place = part.place(scene.query, scene.key)
        self._opened(frame.showing(part.text.overview), *place)
        return True

    def _opened(self, frame: Frame, query: int, key: int) -> None:
        assert frame.long is not None
        view = replace(self.view, frame=frame, whole=frame).fitted()
        self.say("")
        self.put(replace(view, scene=view.scene.at(*(frame.long.cell(query, key) or (0, 0)))))

    def leave_written(self) -> None:
        """Stop generating, and show the prompt alone again."""
        self.jobs.drop("write")
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
        """Run the model on a text with the scene's heads ablated, and show the result.

        This takes one pass, and one more for a second side.
        """
        scene, other = self.view.scene, self.second
        if text != self.view.frame.text and self.jobs.drop("scan"):
            self.show(scanned=None)
        whole = None if text != self.view.whole.text else self.view.whole

        def work(waiting: Waiting) -> tuple[Frame, Frame, Frame | None]:
            session = self.source.session
            frame, against = session.frame(text, scene.removed), None
            if other is not None:
                heads = scene.removed if other.session.live else frozenset()
                against = other.session.frame(other.text or text, heads)
                refuse_long_pair(frame, against)
            for each in (frame, against):
                weighed(each, scene.head, scene.mode)
            if not scene.removed:
                return frame, frame, against
            return frame, whole or session.frame(text), against

        self.jobs.later("frame", work, self._arrived)

    def _arrived(self, found: tuple[Frame, Frame, Frame | None]) -> None:
        frame, whole, other = found
        effects = self.view.effects if frame.text == self.view.frame.text else None
        view = replace(self.view, frame=frame, whole=whole, other=other, effects=effects)
        self.put(view.fitted())
