"""Labelled heads: what is to be seen of them, on the screen, by a program, in a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.patterns_wish import PatternWish, ViewWish
from attnviz.patterns import PatternReport
from attnviz.render.blocks import Block
from attnviz.render.patterns.screen import patterns_screen
from attnviz.render.patterns.view import PatternView
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["Labelled", "make_pattern_view"]


@dataclass(frozen=True)
class Labelled:
    """A report and how it is to be seen."""

    report: PatternReport
    view: PatternView

    def screen(self, theme: Theme, console: Console) -> Block:
        return patterns_screen(self.report, self.view, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.patterns_json import write_patterns_json

        write_patterns_json(self.report, self.view, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.files import page_files, text_file
        from attnviz.render.export.patterns_csv import write_patterns_csv
        from attnviz.render.export.patterns_page import patterns_page

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
