"""The commands that show a model live: ``attnviz explore`` and ``attnviz generate``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.cli.terminal import ColourChoice
from attnviz.draw.labels import visible
from attnviz.draw.report import EVERY
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.generate.request import GenerateRequest
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:
    from attnviz.engine.head_run import Head
    from attnviz.inspect.generate.generate import Advance

EXPLORE = """
attnviz explore "The cat sat on the mat because it was tired."
attnviz explore "Mary gave John a book." --with "John gave Mary a book."
attnviz explore "A text." --model ./my-checkpoint --with ./tuned
attnviz heads "A text." --save heads.npz && attnviz explore heads.npz
"""

_TEXT = "The cat sat on the mat because it was tired."


@dataclass(frozen=True)
class _Opened(Options):
    text: str | None = argument("TEXT|FILE", "The text, in quotes, or a saved file.")
    file: Path | None = option("PATH", "Read the text from a UTF-8 file.")
    other: str | None = option(
        "TEXT|MODEL|FILE", "What to compare with: another text, another model or a saved file.",
        name="--with", words=True,
        brief="A second text, another model or a saved file.",
    )  # fmt: skip
    image: str | None = option("FILE", "See attnviz heads --image.", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is not None:
            raise UsageError(
                f"explore shows texts: type attnviz heads --image {visible(self.image)} --save "
                "page.html, and look around on that page"
            )


@dataclass(frozen=True)
class _Screen(Options, panel="Screen"):
    palette: Literal["viridis", "magma", "blues", "grey"] = option(
        "NAME", "Colours: viridis, magma, blues or grey.", "blues"
    )
    contrast: float = shared.contrast()
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR), always or never.", "auto", name="--color"
    )
    ascii: bool = flag("Draw with ASCII only.")


@command(EXPLORE, "--with --head --layer --file")
def explore(
    opened: _Opened,
    shown: options.HeadChoice,
    kinds: options.Kind,
    truncation: options.Truncation,
    known: options.Known,
    regions: options.RegionOptions,
    counted: options.IndexBase,
    model: shared.SeededModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    screen: _Screen,
) -> None:
    """Explore a model live: navigate, ablate, edit the text, generate."""
    groups: tuple[Options, ...] = (kinds, truncation, known, regions, model, own, loading, screen)
    typed = tuple(word for group in groups for word in group.typed())
    _require_terminal(opened, (*shown.typed(), *typed, *counted.typed()))
    from attnviz.cli.default_model import blamed
    from attnviz.cli.progress import loading as loads
    from attnviz.cli.terminal import messages, text_console
    from attnviz.draw.palette import contrasted
    from attnviz.draw.theme import Theme
    from attnviz.engine.capture import Choice
    from attnviz.engine.selection import choose_heads
    from attnviz.inspect.explore.app import Explorer, SideSource, at_finding, second_side
    from attnviz.inspect.explore.session import (
        LiveSession,
        SavedSession,
        is_saved,
        open_saved,
        open_session,
    )
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
    if opened.text is not None and is_saved(opened.text):
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
        session = live(model.model, given_text(regions, text, opened.file, "explore"))
        first = SideSource(session, session.text, typed, opened.file)
    if opened.other is not None:
        second = second_side(opened.other, first, live)
    frame = first.session.frame(first.text)
    other = None if second is None else second.session.frame(second.text or first.text)
    view = at_finding(View.of(frame, other))
    info = first.session.info
    heads = choose_heads(shown.layer, shown.head, info.layers, info.heads, counted.index_base)
    if heads is not None:
        view = view.with_head((min(heads), min(heads[min(heads)])))
    if opened.text is not None and isinstance(first.session, SavedSession) and first.session.run:
        run = first.session.run
        view = view.with_written(Written(run.sampling, run.steps, at=len(run.steps), running=False))
    palette = contrasted(screen.palette, screen.contrast)
    look = Theme.of(text_console(None, screen.colour), palette, screen.ascii)
    Explorer(first, view, look, second).run_to_its_end()


def _require_terminal(opened: _Opened, typed: tuple[str, ...]) -> None:
    """Raise UsageError without a usable terminal, UnsupportedError without textual."""
    terminal, reason = os.environ.get("TERM", ""), ""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        stream = "input" if not sys.stdin.isatty() else "output"
        reason = f"standard {stream} is not a terminal"
    elif terminal in ("dumb", "unknown", ""):
        reason = f"this terminal cannot move its cursor (TERM={terminal})"
    if reason:
        from attnviz.inspect.explore.view import shell_word

        text = [] if opened.text is None else [opened.text]
        file = [] if opened.file is None else ["--file", str(opened.file)]
        words = " ".join(shell_word(word) for word in ("attnviz", "heads", *text, *file, *typed))
        again = "" if opened.other is None else f", and again for {visible(opened.other)}"
        raise UsageError(f"explore needs a terminal, and {reason}: use {words}{again}")
    for name, value in list(os.environ.items()):  # Textual's own settings, impossible sizes
        size = name in ("COLUMNS", "LINES") and not (value.isdecimal() and int(value) <= 1000)
        if size or name.startswith("TEXTUAL"):
            del os.environ[name]
    try:
        import_module("textual.app")
    except ImportError as error:
        raise UnsupportedError(
            "explore needs textual: pip install 'attnviz[tui]', or use attnviz heads "
            f"({visible(str(error))})"
        ) from error


GENERATE = """
attnviz generate "The cat sat on the mat because"
attnviz generate "Nancy met John, and then Nancy" --head L1H2 --tokens 12
attnviz generate "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 3 --save run.jsonl
attnviz generate "The cat sat." --ablate L1H0,L1H2
"""


@dataclass(frozen=True)
class _Output(shared.Output):
    save: tuple[Path, ...] = shared.saved(f"{EVERY} .jsonl")


@command(GENERATE, "--tokens --temperature --seed --head --ablate", draws="weights, sampling")
def generate(
    prompt: shared.PromptText, request: GenerateRequest, model: shared.DrawnModel, output: _Output
) -> None:
    """Let the model continue a text, and see where its heads look."""
    # Options are checked before a model is loaded. Ctrl-C shows the text so far.
    from attnviz.inspect.generate import generate as question
    from attnviz.progress import between_steps
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    text = given_text(request, prompt.text, prompt.file, "generate")
    loaded = outlet.load_model(question.work(text, request))
    with between_steps() as asked:
        job = question.WritingJob.prepare(loaded, text, request, cancelled=asked)
        with _watched(outlet, job.heads[0]) as advance:
            report, early = job.write(asked, advance)
    if report is not None:
        outlet.show(report)
    if early is not None:
        raise early


@contextmanager
def _watched(outlet: Outlet, head: Head) -> Iterator[Advance]:
    """Show the growing text in a terminal, or the progress elsewhere, during generation.

    outlet: where it is shown. head: the (layer, head) whose attention weights colour the text.
        Yields the function to call after each step.
    """
    console, output = outlet.console, outlet.output
    if console is None or not console.is_interactive or output.for_programs or output.quiet:
        with outlet.advancing("writing") as advance:
            yield lambda share, run: advance(share)
        return
    from attnviz.draw.theme import Theme
    from attnviz.inspect.generate.live import shown_live

    with shown_live(console, Theme.of(console, output.colours, output.ascii), head) as draw:
        yield draw
