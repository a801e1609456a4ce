"""Drives the screen of ``attnviz explore`` without a terminal: keys in, what is seen out."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from functools import cache

import textual.app
import textual.pilot

from attnviz.draw.theme import Theme
from attnviz.inspect.explore.app import Explorer, SideSource
from attnviz.inspect.explore.session import LiveSession
from attnviz.inspect.explore.terminal_app import Field
from attnviz.inspect.explore.view import View
from attnviz.models.bundled import Bundled

SENTENCE = "The cat sat on the mat because it was tired."

SESSION = LiveSession(Bundled())
SESSION.frame = cache(SESSION.frame)  # made once: no test changes a frame
COLOUR = Theme()
GLYPHS = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


@dataclass(frozen=True)
class Played:
    """What was left: the app, its last view, and the screen as text and, if asked, as a picture."""

    app: Explorer
    view: View
    lines: tuple[str, ...]
    svg: str
    styled: str

    @property
    def screen(self):
        return "\n".join(self.lines)

    @property
    def digest(self):
        """Of characters and their styles."""
        return hashlib.sha256(self.styled.encode()).hexdigest()[:16]


def explorer(text=SENTENCE, *, look=COLOUR, session=SESSION, second=None, options=(), file=None):
    """The app over one text."""
    other = None if second is None else second.session.frame(second.text or text)
    source = SideSource(session, text, options, file)
    frame = session.frame(text)
    app = Explorer(source, View.of(frame, other), look, second)
    app.desk.pace, app.desk.tokens = 0.0, 8
    return app


async def handed_on(least=0.0, most=0.0):
    """Let every task that can go on do so, a few times, as messages are handed on by several."""
    for _ in range(20):
        await asyncio.sleep(0)


# Textual waits until the process has computed nothing for 20 ms, four times a key.
textual.app.wait_for_idle = textual.pilot.wait_for_idle = handed_on


async def settled(pilot):
    """Nothing runs any more, and everything is drawn."""
    await pilot.pause()
    while any(not worker.is_finished for worker in pilot.app.workers):
        await pilot.pause(0.005)
    await pilot.pause()


def play(app, *acts, size=(80, 24), picture=False):
    """Press keys one by one, each after all that the one before started is done.

    An act may also be a coroutine function of the pilot. picture: True makes the SVG.
    """

    played = []  # Python writes out what a coroutine returns, and all its arrays

    async def run():
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            for act in acts:
                if callable(act):
                    await act(pilot)
                else:
                    await pilot.press(act)
                await settled(pilot)
            strips = app.screen._compositor.render_strips()
            lines = tuple(strip.text.rstrip() for strip in strips)
            styled = "\n".join(str([(text, str(style)) for text, style, _ in s]) for s in strips)
            svg = app.export_screenshot() if picture else ""
            played.append(Played(app, app.desk.view, lines, svg, styled))

    asyncio.run(run())
    return played[0]


def noting(read):
    """A list, and an act that appends to it what is read."""
    seen = []

    async def note(pilot):
        seen.append(read())

    return seen, note


def typed(words):
    names = {" ": "space", ".": "full_stop", "/": "slash", "-": "minus", "_": "underscore"}
    return [names.get(letter, letter) for letter in words]


def line(words):
    async def fill(pilot):
        pilot.app.keys_pane.ask(pilot.app.keys_pane.asked._replace(field=Field(words)))

    return fill
