"""The command ``attnviz check``: tests a model's heads against rules in a file, for CI."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import AttnvizError, CheckError
from attnviz.inspect.check.request import CheckRequest
from attnviz.options import Options, argument, option
from attnviz.ranks import follows

if TYPE_CHECKING:
    from attnviz.inspect.check.report import CheckReport

EXAMPLES = """
attnviz check checks.toml --init
attnviz check checks.toml
attnviz check checks.toml --model ./tuned --junit report.xml
attnviz check checks.toml --update
"""


@dataclass(frozen=True)
class _File(Options):
    file: Path = argument("FILE", "Rules in TOML; see attnviz docs check.", ...)


@dataclass(frozen=True)
class _Model(Options, panel="Model"):
    model: str | None = option(
        "NAME",
        "Instead of the file's model: tiny, mha, a directory or a Hugging Face id.",
        short="-m",
        autocompletion=shared.complete_model,
        brief="Check this model instead of the file's.",
    )
    seed: int = option("N", "Random seed (weights, random tokens).", 0, min=0)


@dataclass(frozen=True)
class _Junit(Options, panel="Output"):
    junit: Path | None = option("FILE", "Write JUnit XML, one test case per rule.", writes=True)


@command(EXAMPLES, "--init --update --junit --device")
def check(
    file: _File,
    request: CheckRequest,
    model: _Model,
    loading: shared.Loading,
    output: shared.Output,
    junit: _Junit,
) -> None:
    """Test a model against rules in a file: a gate for CI."""
    from attnviz.inspect.check import check as question

    outlet = Outlet.open(output)
    also = [*output.save, *([junit.junit] if junit.junit else [])]
    rules = question.rules_of(file.file, request, also)
    checked = question.checked_model(
        *(model.model, rules, model.seed),
        options=lambda name: shared.load_options(name, loading, model.seed),
        load=outlet.load,
    )
    if rules is None or any(rule.kind != "CountRule" for rule in rules.rules):
        _ = checked.model  # loads it under its own spinner
    with outlet.advancing("scoring heads") as advance:
        report = question.check(checked, file.file, request, rules, advance)
    if report.written and (outlet.console is None or output.whole):  # else it is on the screen
        outlet.notices.print(report.files_written, soft_wrap=True)
        report = replace(report, written=())
    _show(report, outlet, junit.junit)


def _show(report: CheckReport, outlet: Outlet, junit: Path | None) -> None:
    """Show the report, write the files for CI, and end with an exit code if a rule fails.

    junit: the path of the JUnit file, if any. If one output fails, the others are still written,
        and a failed rule still fails the command.
    """
    from attnviz.cli.terminal import discard_output
    from attnviz.inspect.check import ci
    from attnviz.inspect.check.report import on_github

    lost: list[AttnvizError] = []
    try:
        if junit is not None:
            ci.write_junit(junit, report)
    except AttnvizError as error:
        lost.append(error)
    try:
        outlet.show(report)
    except AttnvizError as error:
        lost.append(error)
    except (BrokenPipeError, SystemExit):  # rich turns the first into the second
        discard_output()
    if on_github() and not follows():
        for line in ci.github_lines(report):
            print(line, file=sys.stderr)
        try:
            ci.add_summary(report.document(explain=outlet.output.explain))
        except OSError as error:  # does not affect the result
            outlet.notices.print(f"no step summary: {error.strerror}", soft_wrap=True)
    failures = "; ".join(map(str, lost))
    if not report.passed:
        if outlet.output.for_programs or lost:
            raise CheckError("; ".join(filter(None, (report.finding, failures))))
        raise typer.Exit(CheckError.exit_code)  # the reason is on the screen
    if lost:
        raise type(lost[0])(failures)
