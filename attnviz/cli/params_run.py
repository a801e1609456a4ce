"""What ``attnviz params`` does once its options are read: count, show, save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from attnviz.accounts.built import BuiltCount
from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.params_compare import compared_cases
from attnviz.cli.params_designs import Request, requested_cases
from attnviz.render.blocks import Block
from attnviz.render.params.built import built_sheet
from attnviz.render.params.compare import compare_sheet
from attnviz.render.params.explain import comparison_explanation, explanation
from attnviz.render.params.metrics import Case
from attnviz.render.params.screen import sheet_screen
from attnviz.render.params.sheet import Sheet
from attnviz.render.params.side_by_side import side_by_side_sheet
from attnviz.render.params.single import account_sheet
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["ParamsView", "show_params"]


@dataclass(frozen=True)
class ParamsView:
    """What is to be seen; the options of the same names."""

    formula: bool = False
    per_layer: bool = False
    explain: bool = False


@dataclass(frozen=True)
class _Answer:
    """What was counted: cases, of which ``options`` were compared, or a model that was built."""

    options: tuple[str, ...] = ()
    cases: Sequence[Case] = ()
    built: BuiltCount | None = None


def show_params(request: Request, compare: Sequence[str], view: ParamsView, output: Output) -> None:
    """Run the command. Files that could not be written are refused before anything is counted."""
    outlet = open_outlet(output)
    answer = _answer(request, compare)
    told = _explanation(answer) if view.explain else ()
    hints = () if output.quiet else _hints(request, answer, view)
    outlet.show(_Counted(answer, _sheet(answer, view), told, hints))


@dataclass(frozen=True)
class _Counted:
    """The answer, and how it is to be seen."""

    answer: _Answer
    sheet: Sheet
    told: tuple[str, ...]
    hints: tuple[str, ...]

    def screen(self, theme: Theme, console: Console) -> Block:
        return sheet_screen(self.sheet, console.width, theme, self.told, self.hints)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.params_json import write_params_json

        write_params_json(_document(self.answer, self.sheet), stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.files import text_file
        from attnviz.render.export.params_csv import write_built_csv, write_params_csv
        from attnviz.render.export.params_html import write_params_html
        from attnviz.render.export.params_markdown import write_params_markdown
        from attnviz.render.export.params_svg import write_params_svg

        csv = partial(write_params_csv, self.answer.options, self.answer.cases)
        if self.answer.built is not None:
            csv = partial(write_built_csv, self.answer.built)
        return {
            ".csv": text_file(csv),
            ".md": text_file(partial(write_params_markdown, self.sheet)),
            ".svg": text_file(partial(write_params_svg, self.sheet, palette)),
            ".html": text_file(partial(write_params_html, self.sheet, palette)),
        }


def _answer(request: Request, compare: Sequence[str]) -> _Answer:
    if compare:
        return _Answer(*compared_cases(request, compare))
    asked = requested_cases(request)
    return _Answer(built=asked) if isinstance(asked, BuiltCount) else _Answer(cases=asked)


def _sheet(answer: _Answer, view: ParamsView) -> Sheet:
    if answer.built is not None:
        return built_sheet(answer.built)
    if answer.options:
        return compare_sheet(answer.options, answer.cases)
    if len(answer.cases) > 1:
        return side_by_side_sheet(answer.cases)
    return account_sheet(answer.cases[0], formulas=view.formula, layers=view.per_layer)


def _explanation(answer: _Answer) -> tuple[str, ...]:
    if answer.options:
        return comparison_explanation()
    accounts = [case.account for case in answer.cases if case.account is not None]
    return explanation(accounts[0]) if accounts else ()


def _document(answer: _Answer, sheet: Sheet) -> dict[str, Any]:
    from attnviz.render.export import params_json

    if answer.built is not None:
        return params_json.built_document(answer.built)
    if answer.options:
        return params_json.compare_document(answer.options, answer.cases, sheet.sentences)
    if len(answer.cases) > 1:
        return params_json.models_document(answer.cases)
    return params_json.account_document(answer.cases[0])


def _hints(request: Request, answer: _Answer, view: ParamsView) -> tuple[str, ...]:
    """What to try next, on the plain screen of one design only."""
    if len(answer.cases) != 1 or view.formula or view.per_layer or view.explain:
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
