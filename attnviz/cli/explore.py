"""The command ``attnviz explore``: a model and a text, live in the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.terminal import ColourChoice
from attnviz.draw.labels import visible
from attnviz.errors import UnsupportedError, UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:
    from attnviz.inspect.explore.desk import SideSource
    from attnviz.inspect.explore.session import LiveSession
    from attnviz.inspect.explore.view import View

EXAMPLES = """
attnviz explore "The cat sat on the mat because it was tired."
attnviz explore "Mary gave John a book." --with "John gave Mary a book."
attnviz explore "A text." --model ./my-checkpoint --with ./tuned
attnviz heads "A text." --save heads.npz && attnviz explore heads.npz
"""

_TEXT = "The cat sat on the mat because it was tired."
_SAVED = (".npz", ".safetensors", ".json", ".jsonl")
_LARGEST = 1000
"""Largest plausible number of columns or lines of a terminal."""

_LONG = 4_000
"""The characters from which the progress of the first pass is shown."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class _Opened(Options):
    """The argument and options on the text or saved file to open, and on a second side."""

    text: str | None = argument(
        "TEXT|FILE", "The text, in quotes; or what heads or generate saved."
    )
    file: Path | None = option("PATH", "Read the text from a UTF-8 file.")
    other: str | None = option(
        "TEXT|MODEL|FILE", "A second side: another text, another model or a saved file.",
        name="--with", words=True,
    )  # fmt: skip


@dataclass(frozen=True)
class _Zoom(Options):
    """The option on the cell of a map to begin at."""

    zoom: str | None = option(
        "HEAD@QUERY,KEY", "Begin at a cell of a head's map, a token a cell: L5H1@8000,120."
    )


@dataclass(frozen=True)
class _Kinds(options.Kind):
    """The kind of attention, if a model has several."""


@dataclass(frozen=True)
class _Screen(Options, panel="Screen"):
    """The options on the colours and characters of the screen."""

    palette: Literal["viridis", "magma", "blues", "grey"] = option(
        "NAME", "Colours: viridis, magma, blues or grey.", "viridis"
    )
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR), always or never.", "auto", name="--color"
    )
    ascii: bool = flag("Draw with ASCII only.")


@command(EXAMPLES, "--with --head --layer --file")
def explore(
    opened: _Opened,
    shown: options.HeadChoice,
    zoom: _Zoom,
    kinds: _Kinds,
    truncation: options.Truncation,
    known: options.Known,
    regions: options.RegionOptions,
    counted: options.IndexBase,
    model: shared.SeededModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    screen: _Screen,
) -> None:
    """Explore a model live: move, ablate, edit the text, generate."""
    groups: tuple[Options, ...] = (kinds, truncation, known, regions, model, own, loading)
    typed = tuple(word for group in groups for word in group.typed())
    _require_terminal(opened, (*shown.typed(), *typed, *counted.typed(), *screen.typed()))
    from attnviz.cli.default_model import blamed
    from attnviz.cli.progress import loading as loads
    from attnviz.cli.progress import scanning
    from attnviz.cli.terminal import messages, text_console
    from attnviz.draw.theme import Theme
    from attnviz.engine.capture import Choice
    from attnviz.engine.selection import choose_heads
    from attnviz.inspect.explore.app import Explorer
    from attnviz.inspect.explore.desk import SideSource
    from attnviz.inspect.explore.heading import at_finding
    from attnviz.inspect.explore.saved import SavedSession, open_saved
    from attnviz.inspect.explore.scene import Scene
    from attnviz.inspect.explore.session import LiveSession, open_session, refuse_long_pair
    from attnviz.inspect.explore.view import View, Written
    from attnviz.regions import given_text

    choice = Choice(
        index_base=counted.index_base,
        kind=kinds.kind,
        target=kinds.target,
        truncate=truncation.truncate,
        no_known_labels=known.no_known_labels,
    )

    def live(name: str, text: str) -> LiveSession:
        options = shared.load_options(name, loading, model.seed, own)
        with blamed(name), loads(name, messages(False)) as progress:
            return open_session(name, replace(options, progress=progress), choice, text, regions)

    second: SideSource | None = None
    if opened.text is not None and _is_saved(opened.text):
        saved = open_saved(Path(opened.text), regions)
        first = SideSource(saved, saved.seen.text, typed)
        second = None if saved.other is None else SideSource(saved.other, saved.other.seen.text)
    else:
        usual = opened.text is None and opened.file is None and regions.chat is None
        text = _TEXT if usual else opened.text
        if text is not None and "/" in text and Path(text).is_dir():
            raise UsageError(
                f"{visible(text)} is a directory: explore a text or what was saved; a model is "
                "named by --model"
            )
        content = given_text(regions, text, opened.file, "explore")
        session = live(model.model, content)
        first = SideSource(session, session.texts[0], typed, opened.file)
    if opened.other is not None:
        second = _second(opened.other, first, live)
    if isinstance(first.session, LiveSession) and len(first.text) > _LONG:
        with scanning("reading the text", messages(False)) as watch:
            frame = first.session.frame(first.text, advance=watch)
    else:
        frame = first.session.frame(first.text)
    other = None if second is None else second.session.frame(second.text or first.text)
    refuse_long_pair(frame, other)
    console = text_console(None, screen.colour)
    look = Theme.of(console, screen.palette, screen.ascii)
    view = at_finding(View(Scene.of(frame, screen.palette), frame, frame, other))
    info = first.session.info
    heads = choose_heads(shown.layer, shown.head, info.layers, info.heads, counted.index_base)
    if heads is not None:
        begin = min(heads), min(heads[min(heads)])
        view = replace(view, scene=view.scene.with_head(begin))
    if opened.text is not None and isinstance(first.session, SavedSession) and first.session.run:
        run = first.session.run
        written = Written(run.sampling, run.steps, at=len(run.steps), running=False)
        view = view.with_written(written)
    if zoom.zoom is not None:
        view = _zoomed(view, zoom.zoom)
    Explorer(first, view, look, second, zoomed=zoom.zoom is not None).run_to_its_end()


def _zoomed(view: View, typed: str) -> View:
    """Return the view at the cell that was typed, such as ``L5H1@8000,120``.

    Of a long text it is the window around the cell. Raises UsageError if there is no such head or
    cell.
    """
    scene, frame = view.scene, view.frame
    part, causal = frame.long, frame.report.record.causal
    queries, keys = scene.queries, scene.keys
    if part is not None:
        queries, keys, causal = part.size, part.size, part.text.causal
    found = re.fullmatch(r"[lL](\d{1,6})[hH](\d{1,6})@(\d{1,9}),(\d{1,9})", typed.replace(" ", ""))
    if found is None:
        raise UsageError(f"expected --zoom such as L5H1@8000,120, got {visible(typed)[:40]!r}")
    layer, head, query, key = map(int, found.groups())
    place = layer - scene.index_base, head - scene.index_base
    if place not in scene.heads:
        last = scene.name(scene.heads[-1])
        raise UsageError(f"no head {scene.name(place)} to zoom into: the last one is {last}")
    if query >= queries or key >= keys:
        raise UsageError(
            f"no cell {query},{key} to zoom into: the text has {queries:,} queries and "
            f"{keys:,} keys, from 0"
        )
    if causal and key > query:
        raise UsageError(f"query {query} sees no later key {key}: the attention is causal")
    if part is None:
        return replace(view, scene=scene.with_head(place).at(query, key))
    window = part.text.around(query, key)
    frame = frame.showing(window)
    cell = window.cell(query, key) or (0, 0)
    scene = scene.over(frame).with_head(place).at(*cell)
    return replace(view, scene=scene, frame=frame, whole=frame)


def _is_saved(typed: str) -> bool:
    """Return whether the typed string names a saved file and is not a text."""
    path = Path(typed)
    return path.suffix.lower() in _SAVED and (path.is_file() or " " not in typed.strip())


def _second(typed: str, first: SideSource, live: Callable[[str, str], LiveSession]) -> SideSource:
    """Return the second side of explore: a saved file, another model, or another text.

    typed: the value of ``--with``. first: the first side. live: opens a session, given the name of
    a model and a text.
    """
    from attnviz.inspect.explore.desk import SideSource
    from attnviz.inspect.explore.saved import open_saved

    if _is_saved(typed):
        saved = open_saved(Path(typed))
        return SideSource(saved, saved.seen.text)
    if _NAME.fullmatch(typed) or Path(typed).is_dir() or typed in ("tiny", "mha"):
        session = live(typed, first.text)
        own = session.texts[0]
        return SideSource(session, "" if own == first.text else own)
    if not first.session.live:
        raise UsageError(f"--with {typed!r} is a text, and what was saved reads no other one")
    return SideSource(first.session, typed)


def _require_terminal(opened: _Opened, typed: tuple[str, ...]) -> None:
    """Raise UsageError if there is no usable terminal, UnsupportedError without textual.

    opened: the text or file of the command. typed: the given options, for the command in the
        message.
    """
    terminal = os.environ.get("TERM", "")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        stream = "input" if not sys.stdin.isatty() else "output"
        reason = f"standard {stream} is no terminal"
    elif terminal in ("dumb", "unknown", ""):
        reason = f"this terminal cannot move its cursor (TERM={terminal})"
    else:
        reason = ""
    if reason:
        from attnviz.inspect.explore.command import shell_word

        text = [] if opened.text is None else [opened.text]
        file = [] if opened.file is None else ["--file", str(opened.file)]
        words = " ".join(shell_word(word) for word in ("attnviz", "heads", *text, *file, *typed))
        again = "" if opened.other is None else f", and again for {visible(opened.other)}"
        raise UsageError(f"explore needs a terminal, and {reason}: use {words}{again}")
    _steady_environment()
    try:
        import_module("textual.app")
    except ImportError as error:
        raise UnsupportedError(
            "explore needs textual: pip install 'attnviz[tui]', or use attnviz heads "
            f"({visible(str(error))})"
        ) from error


def _steady_environment() -> None:
    """Remove Textual's own settings and impossible terminal sizes from the environment."""
    for name, value in list(os.environ.items()):
        size = name in ("COLUMNS", "LINES") and not (value.isdecimal() and int(value) <= _LARGEST)
        if size or name.startswith("TEXTUAL"):
            del os.environ[name]
