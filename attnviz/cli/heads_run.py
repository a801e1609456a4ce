"""What ``attnviz heads`` does once its options are read: load, observe, score, show."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from attnviz.analysis.traits import head_scores, telling_heads
from attnviz.analysis.words import word_spans
from attnviz.cli.observe import Choice, observe
from attnviz.cli.progress import loading
from attnviz.cli.terminal import ColourChoice, messages, open_console, reader_gone
from attnviz.errors import UsageError
from attnviz.models.resolve import LoadOptions, load
from attnviz.records import AttentionRecord, HeadScores, HeadsReport, Tokens
from attnviz.render.labels import visible
from attnviz.render.screen import View, heads_screen
from attnviz.render.theme import Theme
from attnviz.render.token_view import Word

__all__ = ["Choice", "Output", "Wish", "show_heads"]

_TELLING = 3


@dataclass(frozen=True)
class Wish:
    """What is to be seen of the heads; the options of the same names."""

    values: bool = False
    top: int | None = None
    token: str | None = None
    sort: str | None = None
    reverse: bool = False
    explain: bool = False


@dataclass(frozen=True)
class Output:
    """Where the result goes and what it may use there; the options of the same names."""

    json: bool = False
    save: tuple[Path, ...] = ()
    palette: str = "viridis"
    colour: ColourChoice = "auto"
    ascii: bool = False
    width: int | None = None
    quiet: bool = False


def show_heads(
    read_text: Callable[[], str],
    model_name: str,
    options: LoadOptions,
    choice: Choice,
    wish: Wish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    console = open_console(output.width, output.colour)
    notices = messages(output.quiet or output.json)
    if output.save:
        from attnviz.render.export.save import check_save_path

        for path in output.save:
            check_save_path(path)
    text = read_text()
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
        record, selected = observe(model, text, choice)
    report = _report(record, selected, choice.index_base, wish)
    target = None if record.kind in ("self", "encoder") else _joined(record.queries)
    if output.json:
        _print_json(report, text, target)
    plain = not selected and wish.top is None and wish.token is None
    theme = Theme.of(console, output.palette, output.ascii)
    view = View(
        text,
        target,
        values=wish.values,
        top=wish.top,
        token=_word(record, wish.token) if wish.token is not None else None,
        explain=wish.explain,
        hints=_hints(report) if plain and not output.quiet else (),
    )
    if not output.json:
        console.print(heads_screen(report, view, theme, console.width, console.height), end="")
    for path in output.save:
        _save(report, view, path, output, console)
        notices.print(f"saved {visible(str(path))}")


def _report(record: AttentionRecord, selected: bool, index_base: int, wish: Wish) -> HeadsReport:
    """The scores of the record, in the order that was asked for."""
    heads = head_scores(record)
    if wish.sort is not None:
        heads = _sorted(heads, wish.sort, wish.reverse)
    elif wish.reverse:
        raise UsageError("--reverse turns the order of --sort around: add --sort MEASURE")
    ranked = [(entry.layer, entry.head) for entry in heads[:_TELLING]]
    telling = tuple(ranked) if wish.sort is not None else telling_heads(heads, _TELLING)
    return HeadsReport(record, heads, telling, selected, index_base, wish.sort)


def _sorted(
    heads: tuple[HeadScores, ...], measure: str, smallest_first: bool
) -> tuple[HeadScores, ...]:
    """The heads by a measure; those that it does not apply to come last."""
    measured = [entry for entry in heads if entry.scores[measure] is not None]
    if not measured:
        raise UsageError(
            f"{measure} cannot be measured here: the text repeats no token, or this kind of "
            "attention has none; choose another --sort"
        )
    measured.sort(key=lambda entry: entry.scores[measure] or 0.0, reverse=not smallest_first)
    return (*measured, *(entry for entry in heads if entry.scores[measure] is None))


def _joined(tokens: Tokens) -> str:
    """The text of tokens without the special ones."""
    pairs = zip(tokens.texts, tokens.special, strict=True)
    return "".join(text for text, special in pairs if not special).strip()


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
    if re.fullmatch(r"-?\d+", wanted):
        place = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        return Word(range(place, place + 1)) if 0 <= place < len(tokens) else None
    spans = word_spans(tokens, wanted)
    return Word(spans[0], tuple(span.start for span in spans[1:])) if spans else None


def _hints(report: HeadsReport) -> tuple[str, ...]:
    """What to try next."""
    name = report.name(*report.telling[0])
    return (
        f"next: --head {name} draws one head",
        "--token WORD follows a word",
        "--top 3 lists the strongest pairs",
        "--explain reads it for you",
    )


def _print_json(report: HeadsReport, text: str, target: str | None) -> None:
    from attnviz.render.export.heads_json import write_heads_json

    try:
        write_heads_json(report, text, target, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        reader_gone()


def _save(report: HeadsReport, view: View, path: Path, output: Output, console: Console) -> None:
    from attnviz.render.export.save import save

    # A file has no colours: half blocks would all look the same there.
    theme = Theme(output.palette, colour=False, ascii=output.ascii)
    screen = heads_screen(report, view, theme, console.width, console.height)
    save(
        report,
        path,
        text=view.text,
        target=view.target,
        palette=output.palette,
        screen_text=screen.plain,
    )
