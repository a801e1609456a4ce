"""What ``attnviz params`` does once its options are read: count, show, save."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.params_designs import Request, compared_cases, requested_cases
from attnviz.cli.streams import printing
from attnviz.cli.terminal import ColourChoice, messages, open_console
from attnviz.render.labels import visible
from attnviz.render.params.compare import compare_sheet
from attnviz.render.params.explain import explanation
from attnviz.render.params.metrics import Case
from attnviz.render.params.screen import sheet_screen
from attnviz.render.params.sheet import Sheet
from attnviz.render.params.side_by_side import side_by_side_sheet
from attnviz.render.params.single import account_sheet
from attnviz.render.theme import Theme

__all__ = ["ParamsOutput", "ParamsView", "show_params"]


@dataclass(frozen=True)
class ParamsView:
    """What is to be seen; the options of the same names."""

    formula: bool = False
    per_layer: bool = False
    explain: bool = False


@dataclass(frozen=True)
class ParamsOutput:
    """Where the result goes and what it may use there; the options of the same names."""

    json: bool = False
    save: tuple[Path, ...] = ()
    palette: str = "viridis"
    colour: ColourChoice = "auto"
    ascii: bool = False
    width: int | None = None
    quiet: bool = False


def show_params(
    request: Request, compare: Sequence[str], view: ParamsView, output: ParamsOutput
) -> None:
    """Run the command. Files that could not be written are refused before anything is counted."""
    if output.save:
        from attnviz.render.export.params_save import check_params_path

        for path in output.save:
            check_params_path(path)
    drawn = not output.json or any(path.suffix.lower() == ".txt" for path in output.save)
    console = open_console(output.width, output.colour) if drawn else None
    options, cases = compared_cases(request, compare) if compare else ((), requested_cases(request))
    sheet = _sheet(options, cases, view)
    block = None
    if console is not None:
        theme = Theme.of(console, output.palette, output.ascii)
        first = next(case.account for case in cases if case.account is not None)
        told = explanation(first) if view.explain else ()
        hints = () if output.quiet else _hints(request, options, cases, view)
        block = sheet_screen(sheet, console.width, theme, told, hints)
    with printing():
        if output.json:
            from attnviz.render.export.params_json import write_params_json

            write_params_json(_document(options, cases, sheet), sys.stdout)
        elif console is not None and block is not None:
            console.print(block, end="")
    if output.save:
        _save(sheet, options, cases, output, "" if block is None else block.plain)


def _sheet(options: Sequence[str], cases: Sequence[Case], view: ParamsView) -> Sheet:
    if options:
        return compare_sheet(options, cases)
    if len(cases) > 1:
        return side_by_side_sheet(cases)
    counted = cases[0].account
    assert counted is not None
    return account_sheet(counted, cases[0].fit, formulas=view.formula, layers=view.per_layer)


def _document(options: Sequence[str], cases: Sequence[Case], sheet: Sheet) -> dict[str, object]:
    from attnviz.render.export import params_json

    if options:
        return params_json.compare_document(options, cases, sheet.sentences)
    if len(cases) > 1:
        return params_json.models_document(cases)
    counted = cases[0].account
    assert counted is not None
    return params_json.account_document(counted, cases[0].fit)


def _save(
    sheet: Sheet, options: Sequence[str], cases: Sequence[Case], output: ParamsOutput, screen: str
) -> None:
    from attnviz.render.export.params_save import Answer, save_params

    document = _document(options, cases, sheet)
    answer = Answer(sheet, document, options, cases, output.palette, screen)
    notices = messages(output.quiet or output.json)
    for path in output.save:
        save_params(answer, path)
        notices.print(f"saved {visible(str(path))}", soft_wrap=True)


def _hints(
    request: Request, options: Sequence[str], cases: Sequence[Case], view: ParamsView
) -> tuple[str, ...]:
    """What to try next, on the plain screen of one design only."""
    if options or len(cases) > 1 or view.formula or view.per_layer or view.explain:
        return ()
    if request.named:
        return (
            "next: --formula shows the arithmetic",
            "--memory 24GB says what fits",
            "--compare tokens=1024,4096 what grows",
            "--explain reads it for you",
        )
    return (
        "next: --compare heads=8,16,32 shows the trade-off",
        "--formula the arithmetic",
        "--layers, --d-ff, --vocab make a whole model",
        "--explain reads it for you",
    )
