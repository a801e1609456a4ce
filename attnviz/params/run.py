"""What ``attnviz params`` does once its options are read: count, compare, show, save."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.errors import UsageError
from attnviz.models.option_rules import nearest
from attnviz.params.accounts.built import BuiltCount
from attnviz.params.built import built_sheet
from attnviz.params.compare import compare_sheet
from attnviz.params.design_options import OPTIONS, design_from_options
from attnviz.params.designs import (
    Request,
    check_numbers,
    counted_case,
    found_design,
    named_case,
    refuse_both,
    requested_cases,
)
from attnviz.params.explain import comparison_explanation, explanation
from attnviz.params.metrics import Case
from attnviz.params.screen import sheet_screen
from attnviz.params.sheet import Sheet
from attnviz.params.side_by_side import side_by_side_sheet
from attnviz.params.single import account_sheet
from attnviz.params.values import parse_choices

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["ParamsView", "compared_cases", "show_params"]

_RUNNING = ("tokens", "source_tokens", "batch", "dtype", "cache_dtype", "memory")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MOST_ROWS = 500


def compared_cases(request: Request, wishes: Sequence[str]) -> tuple[tuple[str, ...], list[Case]]:
    """The compared options and a case for each combination of their values, the last fastest.

    Raises UsageError where nothing can be compared; values that do not go together become a case
    with the reason, unless that holds for all of them.
    """
    choices = [parse_choices(wish) for wish in wishes]
    options = tuple(name for name, _ in choices)
    for option in options:
        _check_option(option, request)
    if len(set(options)) < len(options):
        raise UsageError("--compare names an option twice: put all its values into one")
    if math.prod(len(values) for _, values in choices) > _MOST_ROWS:
        raise UsageError(f"--compare would make more than {_MOST_ROWS} rows: give fewer values")
    refuse_both(request)
    found = [found_design(name, request) for name in request.named]
    cases: list[Case] = []
    failure: UsageError | None = None
    for values in itertools.product(*(values for _, values in choices)):
        try:
            changed = _changed(request, options, values)
            check_numbers(changed)
            case = (
                named_case(found[0], changed)
                if found
                else counted_case(design_from_options(**changed.shape), changed)
            )
            cases.append(replace(case, values=values))
        except UsageError as error:
            failure = failure or error
            cases.append(Case("", values, refusal=str(error)))
    if failure is not None and all(case.account is None for case in cases):
        raise failure
    return options, cases


def _check_option(option: str, request: Request) -> None:
    """Raise UsageError for a compared option that does not exist or means nothing here."""
    name = option.replace("-", "_")
    if len(request.named) > 1:
        raise UsageError("--compare takes one design: name one model, or describe one shape")
    known = (*OPTIONS, *_RUNNING)
    if name not in known:
        written = [other.replace("_", "-") for other in known]
        raise UsageError(f"--compare {option}=…: no such option{nearest(option, written)}")
    if request.named and name not in _RUNNING:
        others = ", ".join(other.replace("_", "-") for other in _RUNNING)
        raise UsageError(
            f"--compare {option}=… changes a shape, and {next(iter(request.named))!r} has its own: "
            f"compare {others}, or describe the shape with --d-model, --heads, …"
        )


def _changed(request: Request, options: Sequence[str], values: Sequence[str]) -> Request:
    """The request with the compared options set."""
    shape = dict(request.shape)
    running: dict[str, Any] = {}
    for option, text in zip(options, values, strict=True):
        name = option.replace("-", "_")
        target = running if name in _RUNNING else shape
        target[name] = text if name in ("dtype", "cache_dtype", "memory") else _value(text)
    return replace(request, shape=shape, **running)


def _value(text: str) -> object:
    """A number, yes or no, or a word."""
    try:
        return int(text)
    except ValueError:
        return _WORDS.get(text.lower(), text)


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
        from attnviz.params.json import write_params_json

        write_params_json(_document(self.answer, self.sheet), stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import text_file
        from attnviz.params.csv import write_built_csv, write_params_csv
        from attnviz.params.html import write_params_html
        from attnviz.params.markdown import write_params_markdown
        from attnviz.params.svg import write_params_svg

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
    from attnviz.params import json as params_json

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
