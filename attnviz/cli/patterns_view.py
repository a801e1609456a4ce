"""From labelled heads to what is shown of them: where texts come from, and what to try next."""

from __future__ import annotations

import shlex

from attnviz.cli.patterns_wish import PatternWish, ViewWish
from attnviz.patterns import PatternReport
from attnviz.render.patterns.view import PatternView

__all__ = ["make_pattern_view"]


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
