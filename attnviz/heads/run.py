"""What ``attnviz heads`` does once its options are read: load, observe, score, show, save."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.options import Output
from attnviz.cli.outlet import Result, open_outlet
from attnviz.cli.progress import loading
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.engine.over_text import Choice, observe
from attnviz.errors import UsageError
from attnviz.heads.report import heads_report
from attnviz.heads.screen import View, heads_screen
from attnviz.heads.token_view import Word
from attnviz.heads.variants import Variant
from attnviz.measures.words import joined, word_spans
from attnviz.models.resolve import load
from attnviz.records import AttentionRecord, HeadsComparison, HeadsReport, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Choice", "Compared", "Single", "Wish", "comparison_hints", "make_view", "show_heads"]


@dataclass(frozen=True)
class Single:
    """One run."""

    report: HeadsReport
    view: View

    def screen(self, theme: Theme, console: Console) -> Block:
        return heads_screen(self.report, self.view, theme, console.width, console.height)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.heads.json import write_heads_json

        write_heads_json(self.report, self.view.text, self.view.target, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.heads.files import heads_files

        return heads_files(self.report, self.view.text, self.view.target, palette)


@dataclass(frozen=True)
class Compared:
    """Several runs; a view of each."""

    comparison: HeadsComparison
    views: Sequence[View]

    def screen(self, theme: Theme, console: Console) -> Block:
        from attnviz.heads.comparison_screen import comparison_screen

        return comparison_screen(self.comparison, self.views, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.heads.comparison_data import write_comparison_json

        write_comparison_json(self.comparison, self.views[0].text, self._target, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.heads.comparison_page import comparison_files

        return comparison_files(self.comparison, self.views[0].text, self._target, palette)

    @property
    def _target(self) -> str | None:
        """The text of the runs that have one."""
        return next((view.target for view in self.views if view.target is not None), None)


@dataclass(frozen=True)
class Wish:
    """What is to be seen of the heads; the options of the same names."""

    values: bool = False
    top: int | None = None
    token: str | None = None
    sort: str | None = None
    reverse: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        if self.reverse and self.sort is None:
            raise UsageError("--reverse turns the order of --sort around: add --sort MEASURE")


def make_view(
    report: HeadsReport, text: str, target: str | None, wish: Wish, hinting: bool
) -> View:
    """The views of the report that were asked for; hints only on the plain overview.

    target: the decoder's text as given; None where the model wrote it or has none.

    Raises UsageError for a word that the text does not have.
    """
    record = report.record
    plain = not report.selected and wish.top is None and wish.token is None
    if target is None and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    return View(
        text,
        target,
        values=wish.values,
        top=wish.top,
        token=_word(record, wish.token) if wish.token is not None else None,
        explain=wish.explain,
        hints=_hints(report, wish.explain) if plain and hinting else (),
    )


def _word(record: AttentionRecord, wanted: str) -> tuple[Word | None, Word | None]:
    """Where the chosen word stands among the queries and among the keys."""
    queries = _place(record.queries, wanted)
    keys = queries if record.keys is record.queries else _place(record.keys, wanted)
    if queries is None and keys is None:
        last = max(len(record.queries), len(record.keys)) - 1
        raise UsageError(
            f"no token {wanted!r} in the text: give a word of it, or an index from 0 to {last}"
        )
    return queries, keys


def _place(tokens: Tokens, wanted: str) -> Word | None:
    """The token of an index, or the first occurrence of a word."""
    if re.fullmatch(r"-?\d{1,18}", wanted):
        place = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        return Word(range(place, place + 1)) if 0 <= place < len(tokens) else None
    spans = word_spans(tokens, wanted)
    return Word(spans[0], tuple(span.start for span in spans[1:])) if spans else None


def _hints(report: HeadsReport, explained: bool) -> tuple[str, ...]:
    """What to try next."""
    name = report.name(*report.telling[0])
    return (
        f"next: --head {name} draws one head",
        "--token WORD follows a word",
        "--top 3 lists the strongest pairs",
        *_reading(explained),
    )


def comparison_hints(report: HeadsReport, explained: bool) -> tuple[str, ...]:
    """What to try next where runs stand side by side."""
    name = report.name(*report.telling[0])
    return (f"next: --head {name} compares one head", *_reading(explained))


def _reading(explained: bool) -> tuple[str, ...]:
    return () if explained else ("--explain reads it for you",)


def show_heads(
    read_text: Callable[[], str],
    model_name: str,
    variants: Sequence[Variant],
    wish: Wish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    outlet = open_outlet(output)
    text = read_text()
    with loading(model_name, outlet.notices) as progress:
        reports = _reports(model_name, text, variants, wish, progress)
    outlet.show(_result(reports, text, variants, wish, hinting=not output.quiet))


def _reports(
    model_name: str,
    text: str,
    variants: Sequence[Variant],
    wish: Wish,
    progress: Callable[[str, int, int | None], None] | None,
) -> list[HeadsReport]:
    """One report for each run; a model is loaded again only where it is another."""
    reports: list[HeadsReport] = []
    model, loaded = None, None
    for variant in variants:
        if model is None or loaded != variant.options:
            model = load(model_name, replace(variant.options, progress=progress))
            loaded = variant.options
        choice = variant.choice
        record, selected = observe(model, text, choice)
        reports.append(heads_report(record, selected, choice.index_base, wish.sort, wish.reverse))
    return reports


def _result(
    reports: Sequence[HeadsReport],
    text: str,
    variants: Sequence[Variant],
    wish: Wish,
    hinting: bool,
) -> Result:
    """Raises UsageError where runs that were to be compared are the same."""
    views = [
        make_view(report, text, variant.choice.target, wish, hinting)
        for report, variant in zip(reports, variants, strict=True)
    ]
    if len(reports) == 1:
        return Single(reports[0], views[0])
    ways = {(each.record.kind, each.record.causal, each.record.model.score) for each in reports}
    if len(ways) < len(reports):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    from attnviz.heads.compared import compare_heads

    hints = comparison_hints(reports[0], wish.explain) if views[0].hints else ()
    return Compared(compare_heads(reports), [replace(view, hints=hints) for view in views])
