"""What ``attnviz patterns`` does once its options are read: load, score, label, show, save."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.scan_progress import Advance, scanning, spoken_time
from attnviz.cli.text_input import read_text
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
from attnviz.engine.probing import read_probe_file
from attnviz.engine.selection import choose_heads
from attnviz.measures.records import LABELS, AnnotatedSentence, PatternReport
from attnviz.measures.words import joined
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.resolve import LoadOptions, load
from attnviz.patterns.names import find_label
from attnviz.patterns.request import PatternWish, ViewWish
from attnviz.patterns.score import score_patterns
from attnviz.patterns.screen import patterns_screen
from attnviz.patterns.view import PatternView
from attnviz.records import Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Labelled", "make_pattern_view", "show_patterns"]


@dataclass(frozen=True)
class Labelled:
    """A report and how it is to be seen."""

    report: PatternReport
    view: PatternView

    def screen(self, theme: Theme, console: Console) -> Block:
        return patterns_screen(self.report, self.view, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.patterns.json import write_patterns_json

        write_patterns_json(self.report, self.view, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import page_files, text_file
        from attnviz.patterns.csv import write_patterns_csv
        from attnviz.patterns.page import patterns_page

        csv = text_file(partial(write_patterns_csv, self.report, self.view))
        page = partial(patterns_page, self.report, self.view, palette)
        return {".csv": csv, **page_files(page, palette)}


_LONGEST = 100
"""Characters of a text that is written out in a hint."""


def make_pattern_view(
    model_name: str,
    report: PatternReport,
    text: str | None,
    target: str | None,
    wish: PatternWish,
    view_wish: ViewWish,
    hinting: bool,
) -> PatternView:
    """What is to be shown; ``text`` is a person's own, ``target`` what a decoder read.

    model_name: as it was asked for.
    """
    files = [wish.file] if wish.file is not None else []
    return PatternView(
        text,
        target,
        ", ".join(map(str, [*files, *wish.probes])),
        watch=view_wish.watch,
        stats=view_wish.stats,
        top=view_wish.top,
        explain=view_wish.explain,
        hints=_hints(model_name, report, wish, view_wish) if hinting else (),
    )


def _hints(
    model_name: str, report: PatternReport, scored: PatternWish, wish: ViewWish
) -> tuple[str, ...]:
    """What to try next."""
    hints = []
    named = [name for name in report.labels if report.labelled(name)]
    if wish.watch is None and named:
        known = "induction" if "induction" in named else named[0]
        hints.append(f"--watch {known} ranks every head by one label")
    elif wish.watch in named:
        best = report.labelled(wish.watch)[0]
        name = report.name(best.layer, best.head)
        command = shlex.join(["attnviz", "ablate", "--head", name, *_same(model_name, scored)])
        hints.append(f"{command} measures whether it matters")
    if not wish.stats and wish.watch is None:
        hints.append("--stats tells more of every head")
    if not wish.explain:
        hints.append("--explain reads it for you")
    return tuple(f"next: {hint}" if hint is hints[0] else hint for hint in hints)


def _same(model_name: str, wish: PatternWish) -> list[str]:
    """The options with which another command looks at the same heads over the same text."""
    options = [] if model_name == "tiny" else ["--model", model_name]
    options += ["--kind", wish.kind] if wish.kind is not None else []
    options += ["--index-base", str(wish.index_base)] if wish.index_base else []
    options += ["--file", str(wish.file)] if wish.file is not None else []
    options += ["--target", _short(wish.target)] if wish.target is not None else []
    return [*options, *([_short(wish.text)] if wish.text is not None else [])]


def _short(text: str) -> str:
    """A text that a hint can hold and a shell takes as one; a word in its place for others."""
    typed = text.isprintable() and len(text) <= _LONGEST and not text.startswith("-")
    return text if typed else "TEXT"


_LONG = 5.0
"""Seconds of a run that are worth a word."""

_SEEDS = 3
"""Draws of random tokens."""


@dataclass(frozen=True)
class _Reading:
    """What is scored and ranked, read before a model is loaded.

    text: a person's own; None for the probes.
    sentences: of their probe files; None where there are none.
    watch: the label to rank, by its full name.
    """

    text: str | None
    sentences: tuple[AnnotatedSentence, ...] | None
    watch: str | None


def show_patterns(
    model_name: str, options: LoadOptions, wish: PatternWish, view_wish: ViewWish, output: Output
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    outlet = open_outlet(output)
    notices = outlet.notices
    reading = _read(wish, view_wish.watch)
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
    choice = Choice(kind=wish.kind, target=wish.target, truncate=wish.truncate)
    texts, targets = _tokens(model, reading.text, choice)
    with scanning("scoring heads", notices) as advance:
        report = _score(model, texts, targets, reading, wish, options.seed, advance)
    target = None
    if targets:
        target = wish.target if wish.target is not None else joined(targets[0])
    shown = replace(view_wish, watch=reading.watch)
    view = make_pattern_view(
        model_name, report, reading.text, target, wish, shown, hinting=not output.quiet
    )
    outlet.show(Labelled(report, view))
    if report.seconds > _LONG:
        notices.print(f"scoring took {spoken_time(report.seconds)}")


def _read(wish: PatternWish, watch: str | None) -> _Reading:
    """The text, the probe files and the label.

    Raises LoadError for a file that cannot be read, UsageError for a label that does not exist.
    """
    text = read_text(wish.text, wish.file, "patterns") if wish.own_text else None
    sentences = None
    if wish.probes:
        sentences = tuple(one for path in wish.probes for one in read_probe_file(path))
    if watch is not None:
        pairs = (pair for sentence in sentences or () for pair in sentence.pairs)
        known = dict.fromkeys([*LABELS, *(pair.relation for pair in pairs)])
        watch = find_label(watch, known)
    return _Reading(text, sentences, watch)


def _score(
    model: Model,
    texts: tuple[Tokens, ...] | None,
    targets: tuple[Tokens, ...],
    reading: _Reading,
    wish: PatternWish,
    seed: int,
    advance: Advance,
) -> PatternReport:
    info = model.info
    heads = choose_heads(wish.layers, wish.heads, info.layers, info.heads, wish.index_base)
    control = None
    if wish.control is not None:
        # The twin of a model that is random itself must not be drawn from the same seed.
        control = seed + 1 if info.seed == seed else seed
    return score_patterns(
        model,
        texts,
        kind=wish.kind,
        view=wish.view,
        targets=targets,
        sentences=reading.sentences,
        seeds=range(seed, seed + _SEEDS),
        control=control,
        heads=heads,
        progress=lambda done, total: advance(done / max(total, 1)),
        index_base=wish.index_base,
    )


def _tokens(
    model: Model, text: str | None, choice: Choice
) -> tuple[tuple[Tokens, ...] | None, tuple[Tokens, ...]]:
    """A person's own text and what its decoder reads; (None, ()) for the probes.

    Raises UsageError for a kind that the model does not have, or a text that does not fit it.
    """
    kind = attention_kind(model, choice)
    if text is None:
        return None, ()
    tokens = encoded(model, text, choice.truncate)
    if isinstance(model, TwoStackModel) and kind in ("decoder", "cross"):
        return (tokens,), (target_tokens(model, tokens, choice),)
    return (tokens,), ()
