"""``attnviz explore``: a model and a text, live in the terminal."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from attnviz.cli import options as shared
from attnviz.cli.groups import Options, argument, command, flag, option
from attnviz.cli.terminal import ColourChoice
from attnviz.errors import UnsupportedError, UsageError

EXAMPLES = """
[bold]Examples[/bold]

attnviz explore "The cat sat on the mat because it was tired."

attnviz explore "Mary gave John a book." --with "John gave Mary a book."

attnviz explore "A text." --model ./my-checkpoint --with ./tuned

attnviz heads "A text." --save heads.npz && attnviz explore heads.npz
"""

_TEXT = "The cat sat on the mat because it was tired."
_SAVED = (".npz", ".safetensors", ".json", ".jsonl")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Opened(Options):
    """What else is opened."""

    text: str | None = argument(
        "TEXT|FILE", "The text, in quotes; or what heads or generate saved, or --record recorded."
    )
    file: Path | None = option("PATH", "Read the text from a UTF-8 file.")
    other: str | None = option(
        "TEXT|MODEL|FILE", "A second side: another text, another model or a saved file.",
        name="--with", words=True,
    )  # fmt: skip
    record: Path | None = option("FILE", "Write keys and screens to a file, to be seen again.")


@dataclass(frozen=True)
class Kinds(shared.Kind):
    """Which attention of a model that has several."""


@dataclass(frozen=True)
class Screen(Options, panel="Screen"):
    """How it is drawn."""

    palette: Literal["viridis", "magma", "blues", "grey"] = option(
        "NAME", "Colours: viridis, magma, blues or grey.", "viridis"
    )
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR), always or never.", "auto", name="--color"
    )
    ascii: bool = flag("Draw with ASCII only.")


@command(EXAMPLES)
def explore(
    opened: Opened,
    kinds: Kinds,
    truncation: shared.Truncation,
    counted: shared.IndexBase,
    model: shared.Model,
    own: shared.OwnShape,
    loading: shared.Loading,
    screen: Screen,
) -> None:
    """Explore a model live: move, ablate, edit the text, generate."""
    groups: tuple[Options, ...] = (kinds, truncation, model, own, loading)
    typed = tuple(word for group in groups for word in group.typed())
    _require_terminal(opened, (*typed, *counted.typed()))
    from attnviz.cli.inputs import read_text
    from attnviz.cli.progress import loading as loads
    from attnviz.cli.terminal import messages, text_console
    from attnviz.draw.theme import Theme
    from attnviz.engine.capture import Choice
    from attnviz.explore.session import open_session

    text = _TEXT if opened.text is None and opened.file is None else opened.text
    content = read_text(text, opened.file)
    options = shared.load_options(model.model, loading, model.seed, own)
    choice = Choice(
        index_base=counted.index_base,
        kind=kinds.kind,
        target=kinds.target,
        truncate=truncation.truncate,
    )
    with loads(model.model, messages(False)):
        session = open_session(model.model, options, choice, content)
        frame = session.frame(content)
    from attnviz.explore.app import Explorer, Source

    console = text_console(None, screen.colour)
    look = Theme.of(console, screen.palette, screen.ascii)
    app = Explorer(Source(session, content, typed), frame, look, screen.palette)
    app.joined = console.color_system == "256"
    app.run()
    if app.failure is not None:
        raise app.failure
    if app.interrupted:
        raise KeyboardInterrupt


def _require_terminal(opened: Opened, typed: tuple[str, ...]) -> None:
    """Raises UsageError where there is no terminal to draw on, UnsupportedError without textual."""
    terminal = os.environ.get("TERM", "")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        stream = "input" if not sys.stdin.isatty() else "output"
        reason = f"standard {stream} is no terminal"
    elif terminal in ("dumb", "unknown", ""):
        reason = f"this terminal cannot move its cursor (TERM={terminal})"
    else:
        reason = ""
    if reason:
        from attnviz.explore.scene import shell_word

        text = [] if opened.text is None else [opened.text]
        file = [] if opened.file is None else ["--file", str(opened.file)]
        words = " ".join(shell_word(word) for word in ("attnviz", "heads", *text, *file, *typed))
        raise UsageError(f"explore needs a terminal, and {reason}: use {words}")
    if find_spec("textual") is None:
        raise UnsupportedError(
            "explore needs textual: pip install 'attnviz[tui]', or use attnviz heads"
        )
